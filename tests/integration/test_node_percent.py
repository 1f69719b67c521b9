"""Percent of cards on a node's daemon: the second resource has its socket, health and checkpoint entries."""

import pytest

from allocator.names import PERCENT_RESOURCE, RESOURCE_PREFIX
from tests.integration.node_world import NodeWorld, card, node_world
from tests.waiting import until

GIB = f"{RESOURCE_PREFIX}gib"


async def share(world: NodeWorld, name: str, percent: int, units: int, on: int) -> str:
    """Bind a pod that asks for percent, as the extender does, and wait until it runs."""
    asking = {"name": "main", "image": "x", "resources": {"limits": {PERCENT_RESOURCE: str(percent)}}}
    assigned = {"main": [[card(on), units]]}
    return await world.run(name, 0, containers=[asking], assigned=assigned)


async def test_percent_and_gib_share_a_card_over_restarts_of_daemon_and_kubelet():
    async with node_world(8, 8) as world:
        a = await world.run("a", 3, on=1)
        b = await share(world, "b", 60, 4, on=1)
        assert world.env(b) == {
            "NVIDIA_VISIBLE_DEVICES": card(1),
            "GPUPACK_MEMORY_MIB": "4096",
            "GPUPACK_CARDS": f"{card(1)}:4",
            "SIMULATED_GPU_MEMORY_REQUEST": "0",
            "SIMULATED_GPU_MEMORY_LIMIT": "4096",
        }
        await world.settled([0, 7], {a, b})
        await until(lambda: (world.allocation("b") or {}).get("containers") == {"main": [[card(1), 4]]})
        await world.kill_daemon()
        await world.start_daemon()
        await world.settled([0, 7], {a, b})
        c = await share(world, "c", 100, 8, on=0)
        await world.settled([8, 7], {a, b, c})
        world.api.delete_pod("default", "b")
        await world.settled([8, 3], {a, c})


async def test_what_the_card_has_not_is_refused_though_the_kubelet_has_ids():
    async with node_world(8) as world:
        await world.run("a", 5, on=0)
        with pytest.raises(AssertionError, match="UnexpectedAdmissionError"):
            await share(world, "b", 50, 4, on=0)
        await share(world, "c", 38, 3, on=0)


async def test_a_lost_card_is_lost_for_both_resources_and_a_daemon_that_ends_offers_neither():
    async with node_world(8, 8) as world:
        assert world.kubelet.allocatable() == {GIB: 16, PERCENT_RESOURCE: 400}
        world.source.fail(card(1))
        await world.daemon._sampler._once()
        await until(lambda: world.kubelet.allocatable() == {GIB: 8, PERCENT_RESOURCE: 200}, "one card less")
        await world.settled([0, 8], set())
        await world.stop_daemon()
        await until(lambda: not any(world.kubelet.allocatable().values()), "none")
        await world.settled([8, 8], set())
