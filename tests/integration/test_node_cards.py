"""Cards that change while pods run: partitioned anew, lost and back; a driver that hangs."""

import asyncio
import json

import aiohttp
import pytest

from allocator.names import NODE_CARDS
from deviceplugin.errors import DriverGoneError
from deviceplugin.gpus.api.source import GpuProcess
from tests.integration.node_world import NODE, NodeWorld, card, metrics, node_world
from tests.waiting import DEADLINE_S, until

GIB = 2**30


def profile(*instances: list[str] | None, **more: object) -> str:
    """H100s of 80 GiB without a reserved part, partitioned or not: an instance has 10 GiB for each slice."""
    devices = [
        {"index": at, "uuid": card(at)} | ({} if profiles is None else {"mig": profiles})
        for at, profiles in enumerate(instances)
    ]
    defaults = {"name": "NVIDIA H100 80GB HBM3", "memory": {"total_bytes": 80 * GIB}}
    return json.dumps({"version": "1.0", "device_defaults": defaults, "devices": devices, **more})


def sizes(world: NodeWorld) -> list[int]:
    words = world.words()
    return [] if words is None else list(words.sizes)


def uuids(world: NodeWorld) -> list[str]:
    """Of the inventory, in word order."""
    notes = world.api.node(NODE)["metadata"].get("annotations", {})
    return [each["uuid"] for each in json.loads(notes[NODE_CARDS])]


def told(world: NodeWorld, kind: str = "Node") -> dict[str, str]:
    """Messages of Events by reason."""
    found = [event for event in world.api.objects("events") if event["involvedObject"]["kind"] == kind]
    return {event["reason"]: event["message"] for event in found}


async def on(world: NodeWorld, name: str, units: int, uuid: str) -> str:
    """Run a pod on a card; returns its UID."""
    return await world.run(name, units, assigned={"main": [[uuid, units]]})


async def ready(world: NodeWorld) -> tuple[int, str]:
    url = f"http://127.0.0.1:{world.daemon.http_port}/readyz"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return answer.status, await answer.text()


async def test_a_card_is_partitioned_anew_while_pods_run():
    async with node_world(profile=profile(None, ["3g.40gb", "3g.40gb"])) as world:
        await until(lambda: sizes(world) == [80, 40, 40])
        stays, goes = uuids(world)[1:]
        await on(world, "stays", 30, stays)
        goner = await on(world, "goes", 20, goes)
        await world.settled(
            [0, 30, 20], {world.api.pod("default", n)["metadata"]["uid"] for n in ("stays", "goes")}
        )
        registrations = world.daemon._serving.registrars.registrations
        world.source.partition(card(1), ["3g.40gb", "2g.20gb", "1g.10gb"])
        await until(lambda: sizes(world) == [80, 40, 20, 10])
        # The charge of what stays moved with its card; of what is gone nothing is charged, nor offered.
        assert world.used == [0, 30, 0, 0]
        assert uuids(world)[1] == stays
        assert goes not in uuids(world)
        await until(lambda: world.kubelet.allocatable()["gpupack.io/gpu-memory-gib"] == 150)
        assert not any(goes in each for each in world.daemon._serving.plugin._devices.list_devices())
        new = await on(world, "new", 20, uuids(world)[2])
        assert world.env(new)["NVIDIA_VISIBLE_DEVICES"] == uuids(world)[2]
        await until(lambda: "GPUGone" in told(world) and "GPUGone" in told(world, "Pod"))
        assert "pods on it: default/goes" in told(world)["GPUGone"]
        assert "GPUsChanged" in told(world)
        assert (goner in world.holds, world.daemon._serving.registrars.registrations) == (True, registrations)
        # The same instances again: the old instance is back, with its pod's charge.
        world.source.partition(card(1), ["3g.40gb", "3g.40gb"])
        await until(lambda: sizes(world) == [80, 40, 40])
        assert world.used == [0, 30, 20]


async def test_pods_on_a_card_where_mig_is_turned_on_in_two_steps_are_told():
    async with node_world(profile=profile(None, None)) as world:
        await until(lambda: sizes(world) == [80, 80])
        await on(world, "a", 8, card(1))
        await on(world, "other", 8, card(0))
        world.source.partition(card(1), [])
        await until(lambda: sizes(world) == [80, 0])
        await until(lambda: "GPUGone" in told(world) and "GPUGone" in told(world, "Pod"))
        assert told(world, "Pod")["GPUGone"].startswith(
            f"card {card(1)} (NVIDIA H100 80GB HBM3) has no longer"
        )
        assert told(world)["GPUGone"].endswith("pods on it: default/a")
        world.source.partition(card(1), ["1g.10gb"] * 7)
        await until(lambda: sizes(world) == [80] + [10] * 7)
        events = [each for each in world.api.objects("events") if each["reason"] == "GPUGone"]
        assert sorted(each["involvedObject"]["name"] for each in events) == ["a", NODE]


async def test_a_daemon_that_starts_after_the_change_says_the_same():
    async with node_world(profile=profile(["3g.40gb", "3g.40gb"])) as world:
        await until(lambda: sizes(world) == [40, 40])
        first, second = uuids(world)
        await on(world, "a", 30, first)
        await on(world, "b", 5, second)
        world.source.partition(card(0), ["3g.40gb", "1g.10gb"])
        await until(lambda: sizes(world) == [40, 10])
        before = world.used, world.holds
        await world.kill_daemon()
        await world.start_daemon()
        await until(lambda: (world.used, world.holds) == before)


async def test_a_card_that_vanishes_is_full_until_it_is_back():
    async with node_world(8, 8) as world:
        await on(world, "a", 3, card(1))
        world.daemon._sampler.health._tracker._quiet_s = 0
        world.source.vanish(card(1))
        await until(lambda: world.used == [0, 8])
        await until(lambda: "GPUUnhealthy" in told(world) and "GPUUnhealthy" in told(world, "Pod"))
        assert told(world)["GPUUnhealthy"].endswith("the card is not there any more; pods on it: default/a")
        assert sizes(world) == [8, 8]
        world.source.restore(card(1))
        await until(lambda: world.used == [0, 3])
        changes = (await metrics(world))["gpupack_card_health_changes_total"]
        assert changes["Test card", "unhealthy", card(1)] == changes["Test card", "healthy", card(1)] == 1


async def test_a_driver_that_hangs_holds_up_nothing_and_its_cards_recover():
    async with node_world(8, 8) as world:
        world.source.hang()
        await until(lambda: world.daemon._driver.busy_s > 0)
        await on(world, "served", 2, card(0))
        sampler = world.daemon._sampler
        shipped_s, sampler._unmeasured_s, sampler.driver.hangs_after_s = sampler._unmeasured_s, 0.3, 0.3
        await until(lambda: world.used == [8, 8])
        status, said = await ready(world)
        assert status == 503
        assert "the cards' driver has not answered for" in said
        assert (await metrics(world))["gpupack_node_driver_hangs_seconds"][()] > 0
        assert not any(world.daemon._serving.plugin._devices.list_devices().values())
        # A driver that answers is not late again, however slow the machine.
        sampler._unmeasured_s = sampler.driver.hangs_after_s = shipped_s
        world.source.resume()
        await until(lambda: world.used == [2, 0])
        await until(lambda: {"GPUDriverHangs", "GPUDriverAnswers", "GPURecovered"} <= told(world).keys())
        assert (await ready(world))[0] == 200
        assert all(world.daemon._serving.plugin._devices.list_devices().values())


async def test_the_daemon_ends_while_the_driver_hangs():
    async with node_world(8) as world:
        await world.settled([0], set())
        world.source.hang()
        await until(lambda: world.daemon._driver.busy_s > 0)
        await world.stop_daemon()
        world.source.resume()


async def healthy(world: NodeWorld) -> tuple[int, str]:
    url = f"http://127.0.0.1:{world.daemon.http_port}/healthz"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return answer.status, await answer.text()


async def test_the_daemon_ends_for_a_driver_that_was_exchanged_and_says_why():
    async with node_world(8) as world:
        await on(world, "stays", 3, card(0))
        # As long as it takes to end.
        monitor = world.daemon._sampler
        world.source.load(other=True)
        with pytest.raises(
            DriverGoneError, match="the driver was exchanged; this process ends, and its cont"
        ):
            await world.running
        assert "GPUDriverGone" in told(world)
        assert told(world)["GPUDriverGone"] == monitor.driver_gone_reason
        # The container begins anew: with the library of the node's driver all is as it was.
        await world.start_daemon()
        await until(lambda: world.used == [3])
        assert world.phase("stays") == "Running"


async def test_a_driver_that_is_loaded_again_soon_is_taken_up_by_the_same_daemon():
    async with node_world(8) as world:
        world.source.unload()
        await until(lambda: world.daemon._sampler.errors)
        world.source.load()
        await on(world, "a", 3, card(0))
        await world.settled([3], {world.api.pod("default", "a")["metadata"]["uid"]})
        assert (await healthy(world))[0] == 200


async def test_probes_say_that_the_process_is_of_no_use_any_more():
    async with node_world(8) as world:
        world.daemon._sampler.driver_gone_reason = "the driver was exchanged"
        assert await healthy(world) == (503, "the driver was exchanged\n")
        status, said = await ready(world)
        assert (status, "the driver was exchanged" in said) == (503, True)


async def test_pages_that_the_system_keeps_fill_no_card():
    """GH200 in NUMA mode: 75 of 80 GiB are used by nobody, and pods get all of them."""
    memory = {"total_bytes": 80 * GIB, "numa_node": 1, "residue_bytes": 75 * GIB}
    defaults = {"name": "NVIDIA GH200 480GB", "memory": memory}
    async with node_world(profile=profile(None, device_defaults=defaults)) as world:
        await until(lambda: sizes(world) == [80])
        assert world.used == [0]
        await on(world, "a", 80, card(0))
        told_bytes = await metrics(world)
        assert told_bytes["gpupack_card_residue_bytes"] == {("NVIDIA GH200 480GB", card(0)): 75 * GIB}
        assert told_bytes["gpupack_card_beyond_bytes"] == {("NVIDIA GH200 480GB", card(0)): 0}
        (record,) = json.loads(world.api.node(NODE)["metadata"]["annotations"][NODE_CARDS])
        assert record["memory_mode"] == "numa"
        # A process of nobody's counts, beside what nobody uses.
        world.source.set_used(card(0), 2 * 1024, [GpuProcess(1, 2 * 1024)])
        await until(lambda: world.daemon._sampler.uses[card(0)].foreign_mib == 2 * 1024)


async def test_a_storm_of_faults_is_counted_and_makes_few_events():
    async with node_world(8, 8) as world:
        for _ in range(20_000):
            world.source.xid(card(0), 31)
            world.source.xid(card(1), 79)
        found = {}
        async with asyncio.timeout(DEADLINE_S):
            while sum(found.values()) < 40_000:
                found = (await metrics(world)).get("gpupack_card_xid_errors_total", {})
        assert sorted(found.values()) == [20_000, 20_000]
        assert len(world.api.objects("events")) <= 4


async def test_a_pod_whose_card_fell_sick_before_it_started_is_refused_and_told_why():
    """It is not served on the other card, of which the scheduler knows nothing."""
    async with node_world(8, 8) as world:
        await world.kubelet.kill()
        world.bind("a", 3, on=0)
        well = world.bind("b", 3, on=1)
        world.source.fail(card(0))
        await world.daemon._sampler._once()
        await world.kubelet.start()
        await until(lambda: (world.phase("a"), world.phase("b")) == ("Failed", "Running"))
        why = f"card {card(0)} cannot be had: the card is unhealthy; delete this pod"
        assert why in world.api.pod("default", "a")["status"]["message"]
        await world.settled([8, 3], {well})
