"""The node daemon beside NVIDIA's MIG manager, which changes MIG mode while nobody has the driver open.

Source: mig-parted, pkg/mig/reconfigure, the order of its `Run`; its issue 19; NVML API Reference,
`nvmlDeviceSetMigMode`.
"""

import json
from collections.abc import Awaitable, Callable, Sequence

from allocator.names import NODE_CARDS, NODE_CORDON
from deviceplugin.errors import GpuError
from tests.integration.node_world import GIB, NODE, NodeWorld, card, metrics, node_world
from tests.integration.test_node_cards import on, profile, sizes, told, uuids
from tests.waiting import until

Clients = Callable[[], Awaitable[None]]


async def nobody() -> None:
    """There is no client that the MIG manager knows of."""


async def reconfigure(
    world: NodeWorld,
    profiles: Sequence[str] | None,
    stop_clients: Clients = nobody,
    start_clients: Clients = nobody,
) -> str:
    """Do what the MIG manager does with the first card; returns the state that it writes to its label.

    Args:
        world: the node.
        profiles: of the instances; None: MIG mode off.
        stop_clients: has the pods of DaemonSets with its labels in their nodeSelector deleted, and waits.
        start_clients: has them come again.
    """
    world.api.patch_node(NODE, {"metadata": {"labels": {"nvidia.com/mig.config.state": "pending"}}})
    await stop_clients()
    try:
        world.source.set_mig_mode(card(0), on=profiles is not None)
        if profiles is not None:
            world.source.partition(card(0), profiles)
    except GpuError:
        state = "failed"
    else:
        state = "success"
    await start_clients()
    world.api.patch_node(NODE, {"metadata": {"labels": {"nvidia.com/mig.config.state": state}}})
    return state


def cordon(world: NodeWorld, *names: str) -> None:
    """Write what `kubectl gpupack cordon` and `uncordon` write."""
    note = ",".join(names) or None
    world.api.patch_node(NODE, {"metadata": {"annotations": {NODE_CORDON: note}}})


def drivers(world: NodeWorld) -> list[str | None]:
    """What the inventory says of each card's driver."""
    notes = world.api.node(NODE)["metadata"].get("annotations", {})
    return [each.get("driver") for each in json.loads(notes.get(NODE_CARDS, "[]"))]


async def restarted(world: NodeWorld) -> None:
    """Let the daemon be one that lets the driver go at once."""
    await world.stop_daemon()
    world.detach_after_s = 0.0
    world.sample_s = 0.1
    await world.start_daemon()


async def test_a_daemon_that_has_the_driver_open_is_in_the_way():
    async with node_world(profile=profile(None, None)) as world:
        await until(lambda: sizes(world) == [80, 80])
        assert await reconfigure(world, ["3g.40gb", "3g.40gb"]) == "failed"
        assert sizes(world) == [80, 80]


async def test_cordoned_empty_cards_are_let_go_partitioned_and_taken_up_again():
    async with node_world(profile=profile(None, None)) as world:
        await restarted(world)
        await on(world, "last", 8, card(1))
        cordon(world, card(0), card(1))
        await until(lambda: world.used == [80, 80])
        # A card that a pod has is needed.
        assert await reconfigure(world, ["3g.40gb", "3g.40gb"]) == "failed"
        assert not world.daemon._sampler.driver.is_detached
        world.api.delete_pod("default", "last")
        await until(lambda: drivers(world) == ["detached", "detached"])
        assert "GPUDriverDetached" in told(world)
        assert (await metrics(world))["gpupack_node_driver_detached"] == {(): 1}
        assert await reconfigure(world, ["3g.40gb", "3g.40gb"]) == "success"
        # Nothing is looked at, offered or said until people want the cards again.
        assert (sizes(world), world.used, world.daemon._sampler.problem) == ([80, 80], [80, 80], None)
        cordon(world)
        await until(lambda: sizes(world) == [40, 40, 80])
        await until(lambda: world.used == [0, 0, 0])
        assert drivers(world) == [None] * 3
        assert "GPUDriverAttached" in told(world)
        assert (await metrics(world))["gpupack_node_driver_detached"] == {(): 0}
        uid = await on(world, "new", 40, uuids(world)[1])
        assert world.env(uid)["NVIDIA_VISIBLE_DEVICES"] == uuids(world)[1]


async def test_cards_that_may_be_others_are_offered_to_nobody_before_they_were_looked_at():
    """The cordon ends, and the driver takes its time: what the words said before may be no card by now."""
    async with node_world(profile=profile(None)) as world:
        await restarted(world)
        cordon(world, card(0))
        await until(lambda: drivers(world) == ["detached"])
        assert await reconfigure(world, ["1g.10gb"] * 7) == "success"
        world.source.hang()
        cordon(world)
        await until(lambda: not world.daemon.account.ledger.is_unavailable("cordoned"))
        await until(lambda: world.daemon._driver.busy_s > 0)
        assert world.daemon.account.ledger.used() == (80,)
        world.source.resume()
        await until(lambda: sizes(world) == [10] * 7)
        await until(lambda: world.used == [0] * 7)


async def test_a_pod_that_comes_all_the_same_has_the_driver_taken_up():
    """One that was bound by hand, past the cordon."""
    async with node_world(8) as world:
        await restarted(world)
        cordon(world, card(0))
        await until(lambda: world.daemon._sampler.driver.is_detached)
        await on(world, "by-hand", 3, card(0))
        await until(lambda: not world.daemon._sampler.driver.is_detached)
        await until(lambda: drivers(world) == [None])


async def test_the_mig_manager_stops_and_starts_the_daemon_itself():
    """From 0.15 on: a DaemonSet with nvidia.com/gpu.deploy.client in its nodeSelector; without a cordon."""
    async with node_world(profile=profile(None)) as world:
        await until(lambda: sizes(world) == [80])
        state = await reconfigure(world, ["3g.40gb", "3g.40gb"], world.stop_daemon, world.start_daemon)
        assert state == "success"
        await until(lambda: sizes(world) == [40, 40])
        await on(world, "new", 40, uuids(world)[0])
        world.api.delete_pod("default", "new")
        await world.settled([0, 0], set())
        assert await reconfigure(world, None, world.stop_daemon, world.start_daemon) == "success"
        await until(lambda: sizes(world) == [80])


async def test_a_daemon_that_starts_meanwhile_keeps_new_instances_of_a_cordoned_card_free():
    async with node_world(profile=profile(None)) as world:
        await restarted(world)
        cordon(world, card(0))
        await until(lambda: drivers(world) == ["detached"])
        assert await reconfigure(world, ["3g.40gb", "3g.40gb"]) == "success"
        await world.kill_daemon()
        world.spawn_daemon()
        await until(lambda: sizes(world) == [40, 40])
        await until(lambda: drivers(world) == ["detached", "detached"])
        assert world.used == [40, 40]
        assert "InvalidCordon" not in told(world)
        cordon(world)
        await until(lambda: world.used == [0, 0])


async def test_a_card_is_reset_while_the_driver_is_let_go():
    async with node_world(8) as world:
        await restarted(world)
        world.daemon._sampler.health._tracker._quiet_s = 0
        world.source.fail(card(0))
        await until(lambda: "GPUUnhealthy" in told(world))
        cordon(world, card(0))
        await until(lambda: world.daemon._sampler.driver.is_detached)
        world.source.reset(card(0))
        cordon(world)
        await until(lambda: world.used == [0])
        await until(lambda: world.kubelet.allocatable().get(GIB) == 8)
