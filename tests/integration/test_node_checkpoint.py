"""A node's daemon and the kubelet's checkpoint: cleaned before a release, read before anything is offered."""

from pathlib import Path

import aiohttp

from allocator.names import POD_GPU_UUID
from deviceplugin.kubelet.checkpoint import CHECKPOINT_NAME
from deviceplugin.publishing.explain import explain_node
from tests.integration.node_world import NodeWorld, card, node_world
from tests.waiting import until


def checkpoint_path(world: NodeWorld) -> Path:
    return world.kubelet.device_plugin_dir / CHECKPOINT_NAME


async def not_ready(world: NodeWorld, session: aiohttp.ClientSession) -> str:
    """What /readyz complains of, empty where it does not."""
    async with session.get(f"http://127.0.0.1:{world.daemon.http_port}/readyz") as answer:
        text = await answer.text()
        return "" if answer.status == 200 else text


async def test_a_pod_bound_while_the_kubelet_is_away_finds_the_room_that_was_released():
    """A kubelet that starts admits its first pods against its checkpoint as it lies there."""
    async with node_world(8) as world:
        uid = await world.run("a", 8, on=0)
        await world.settled([8], {uid})
        world.api.delete_pod("default", "a")
        await world.settled([0], set())
        await world.kubelet.kill()
        other = world.bind("b", 8, on=0)
        await world.kubelet.start()
        await until(lambda: world.phase("b") in {"Running", "Failed"})
        assert world.phase("b") == "Running"
        await world.settled([8], {other})


async def test_pods_of_one_size_get_their_own_cards_in_whatever_order_the_kubelet_asks():
    """Bound within one second they have the same age, and each wants a card of its own."""
    async with node_world(8, 8, 8, 8) as world:
        await world.kubelet.kill()
        uids = {on: world.bind(f"pod-{on}", 3, on, annotations={POD_GPU_UUID: card(on)}) for on in range(4)}
        # By its UID, which is all that the daemon could guess by, another one would come first.
        assert sorted(uids, key=lambda on: uids[on]) != sorted(uids)
        await world.kubelet.start()
        await world.settled([3, 3, 3, 3], set(uids.values()))
        for on, uid in uids.items():
            assert world.env(uid)["NVIDIA_VISIBLE_DEVICES"] == card(on)


async def test_what_was_allocated_is_its_pods_before_the_checkpoint_says_so():
    """Also where the kubelet does not ask: main has what its init container had, all that is left."""
    async with node_world(8, 8) as world:
        facts = world.daemon.account.ledger.accounts
        given: list[tuple[str, str]] = []
        world.daemon.account.subscribe(
            lambda: given.extend((one["pod"], one["container"]) for one in explain_node(facts)["pending"])
        )
        first = await world.run("first", 8, on=1)
        last = await world.run("last", 8, on=0, init=8)
        await world.settled([8, 8], {first, last})
        assert list(dict.fromkeys(given)) == [(first, "main"), (last, "setup"), (last, "main")]


async def test_an_ended_pod_stays_charged_while_the_kubelet_cannot_clean_its_checkpoint():
    async with node_world(8) as world, aiohttp.ClientSession() as session:
        uid = await world.run("a", 3, on=0)
        await world.settled([3], {uid})
        await world.kubelet.kill()
        world.api.delete_pod("default", "a", 0)
        await until(lambda: not world.api.has_pod("default", "a"))
        world.kubelet._runtime.stop_pod(uid)
        await until(lambda: world.daemon._pod_resources.problem)
        async with session.get(f"http://127.0.0.1:{world.daemon.http_port}/readyz") as answer:
            assert answer.status == 503
            assert "PodResources" in await answer.text()
        assert (world.used, world.holds) == ([3], {uid})
        await world.kubelet.start()
        await world.settled([0], set())
        assert world.daemon._pod_resources.problem is None


async def test_a_checkpoint_that_cannot_be_read_releases_nothing_and_says_so():
    async with node_world(8) as world, aiohttp.ClientSession() as session:
        uid = await world.run("a", 3, on=0)
        await world.settled([3], {uid})
        whole = checkpoint_path(world).read_bytes()
        checkpoint_path(world).write_bytes(whole[:40])
        await until(lambda: world.daemon.account.checkpoint_problem)
        assert f"{checkpoint_path(world)}: torn" in await not_ready(world, session)
        assert world.daemon.account.ledger.used() == (3,)
        checkpoint_path(world).write_bytes(whole)
        await until(lambda: world.daemon.account.checkpoint_problem is None)
        assert await not_ready(world, session) == ""
        assert (world.used, world.holds) == ([3], {uid})


async def test_before_the_first_readable_checkpoint_nothing_is_offered_nor_published():
    async with node_world(8) as world, aiohttp.ClientSession() as session:
        await world.settled([0], set())
        await world.stop_daemon()
        words, registrations = world.words(), world.kubelet.registrations
        whole = checkpoint_path(world).read_bytes()
        checkpoint_path(world).write_text('{"Data": {"PodDeviceEntries": 7}}')
        running = world.spawn_daemon()
        await until(lambda: running.done() or (world.daemon.account and world.daemon._pods.is_connected))
        assert "unknown format" in await not_ready(world, session)
        assert "not registered" in await not_ready(world, session)
        assert (world.words(), world.kubelet.registrations) == (words, registrations)
        checkpoint_path(world).write_bytes(whole)
        await until(world.daemon.ready.is_set)
        await world.settled([0], set())
        assert await not_ready(world, session) == ""


async def test_a_daemon_that_finds_a_torn_checkpoint_has_the_kubelet_write_it_anew():
    async with node_world(8) as world, aiohttp.ClientSession() as session:
        uid = await world.run("a", 3, on=0)
        await world.settled([3], {uid})
        await world.stop_daemon()
        checkpoint_path(world).write_bytes(b"")
        await world.start_daemon()
        await until(world.daemon.ready.is_set)
        other = await world.run("b", 5, on=0)
        await world.settled([8], {uid, other})
        assert await not_ready(world, session) == ""
