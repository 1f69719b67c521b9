"""What a daemon that stops leaves behind: no offers, nothing lost; pods on their way are served."""

import asyncio

from allocator.ledger import release
from allocator.names import NODE_CARDS
from allocator.records import load_cards
from tests.integration.node_world import NODE, node_world
from tests.waiting import until


async def test_a_stopped_daemon_offers_nothing_and_the_next_start_restores_the_words():
    async with node_world(8, 4) as world:
        uid = await world.run("a", 3, on=0)
        await world.settled([3, 0], {uid})
        before = world.words()
        await world.stop_daemon()
        assert (world.used, world.holds) == ([8, 4], {uid})
        inventory = load_cards(world.api.node(NODE)["metadata"]["annotations"][NODE_CARDS])
        assert [card.healthy for card in inventory] == [False, False]
        await world.start_daemon()
        await world.settled([3, 0], {uid})
        inventory = load_cards(world.api.node(NODE)["metadata"]["annotations"][NODE_CARDS])
        assert [card.healthy for card in inventory] == [True, True]
        after = world.words()
        assert before is not None
        assert after is not None
        assert after.revision > before.revision


async def test_what_ended_while_nobody_offered_anything_is_free_after_the_start(monkeypatch):
    monkeypatch.setattr(release, "CGROUP_GRACE_S", 0.5)
    async with node_world(8, 8) as world:
        uid, other = await world.run("a", 3, on=0), await world.run("b", 5, on=1)
        await world.settled([3, 5], {uid, other})
        await world.stop_daemon()
        world.api.delete_pod("default", "a")
        await until(lambda: uid not in world.kubelet.running_pods())
        await world.start_daemon()
        await world.settled([0, 5], {other})


async def test_a_pod_on_its_way_is_served_before_the_daemon_goes():
    async with node_world(8, 8) as world:
        await world.settled([0, 0], set())
        world.kubelet.api_away = True
        world.bind("late", 5, on=1)
        await until(lambda: world.daemon._pods.pods_by_uid)
        stopping = asyncio.create_task(world.stop_daemon())
        await until(lambda: world.used == [8, 8])
        assert not stopping.done()
        world.kubelet.api_away = False
        await stopping
        await until(lambda: world.phase("late") in {"Running", "Failed"})
        assert world.phase("late") == "Running"


async def test_a_daemon_ends_though_its_api_is_away():
    async with node_world(8) as world:
        await world.settled([0], set())
        await world.api.stop()
        await world.stop_daemon()
        await world.api.start()
        assert world.used == [0]


async def test_words_are_not_restored_before_the_kubelet_has_the_devices():
    async with node_world(8) as world:
        await world.settled([0], set())
        await world.stop_daemon()
        listens = world.kubelet.device_plugin_dir / "kubelet.sock"
        away = listens.rename(listens.with_name("away"))
        world.spawn_daemon()
        await until(lambda: world.daemon.account is not None and world.daemon.account.ledger.is_complete)
        await asyncio.sleep(0.3)  # several steps of the publisher
        assert not world.daemon._serving.registrars.is_registered
        assert world.used == [8]
        away.rename(listens)
        await world.settled([0], set())
        assert world.daemon._serving.registrars.is_registered
