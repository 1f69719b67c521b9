"""What a node's daemon tells people of cards and of neighbours: Events about the Node, metrics, /explain."""

import aiohttp
from structlog.testing import capture_logs

from allocator.names import NODE_CORDON
from tests.integration.node_world import NODE, card, events, metrics, node_world
from tests.waiting import until


async def test_an_xid_a_card_out_of_use_and_its_return_are_events_of_the_node():
    async with node_world(8, 8) as world:
        await world.settled([0, 0], set())
        name = f"card {card(1)} (Test card)"
        world.source.fail(card(1), "ecc_uncorrectable", xid=79)
        await until(lambda: "GPUUnhealthy" in events(world))
        assert events(world) == {
            "GPUXidError": f"Warning {name}: XID 79: the card has fallen off the bus",
            "GPUUnhealthy": (
                f"Warning {name} is unhealthy and takes no new pods: XID 79: the card has fallen off the bus"
            ),
        }
        world.source.heal(card(1))
        await until(lambda: "GPURecovered" in events(world))
        assert events(world)["GPURecovered"] == f"Normal {name} is healthy again"


async def test_xids_are_counted_by_code_those_of_applications_too_and_only_these_make_no_event():
    async with node_world(8, 8) as world:
        world.source.fail(card(0), "ecc_uncorrectable", xid=31)
        world.source.fail(card(0), "ecc_uncorrectable", xid=31)
        world.source.fail(card(1), "ecc_uncorrectable", xid=79)
        await until(lambda: "GPUUnhealthy" in events(world))
        told = await metrics(world)
        assert told["gpupack_card_xid_errors_total"] == {
            ("31", "Test card", card(0)): 2,
            ("79", "Test card", card(1)): 1,
        }
        assert told["gpupack_card_healthy"] == {("Test card", card(0)): 1, ("Test card", card(1)): 0}
        assert card(0) not in str(events(world))


async def test_another_device_plugin_is_noticed_for_as_long_as_it_offers_gpus():
    async with node_world(8) as world, aiohttp.ClientSession() as session:
        await world.settled([0], set())
        assert "gpupack_node_foreign_gpus" not in await metrics(world)
        with capture_logs() as logs:
            offers = {"nvidia.com/gpu": "8"}
            world.api.patch_node(NODE, {"status": {"capacity": offers, "allocatable": offers}})
            await until(lambda: "ConflictingDevicePlugin" in events(world))
            world.api.patch_node(NODE, {"metadata": {"annotations": {"beat": "1"}}})
        (line,) = [line for line in logs if line["event"] == "another device plugin is on this node"]
        assert (line["log_level"], line["resources"]) == ("warning", {"nvidia.com/gpu": 8})
        said = events(world)["ConflictingDevicePlugin"]
        assert said.startswith("Warning another device plugin offers nvidia.com/gpu: 8 here")
        assert "keep it off this node" in said
        assert (await metrics(world))["gpupack_node_foreign_gpus"] == {("nvidia.com/gpu",): 8}
        async with session.get(f"http://127.0.0.1:{world.daemon.http_port}/explain") as answer:
            assert (await answer.json())["foreign_gpus"] == {"nvidia.com/gpu": 8}
        gone = {"nvidia.com/gpu": "0"}
        world.api.patch_node(NODE, {"status": {"capacity": gone, "allocatable": gone}})
        await until(lambda: "ConflictingDevicePluginGone" in events(world))
        assert "gpupack_node_foreign_gpus" not in await metrics(world)


async def test_a_cordon_of_a_card_that_is_not_here_is_an_event_of_the_node():
    async with node_world(8, 8) as world:
        await world.settled([0, 0], set())
        assert (await metrics(world))["gpupack_node_unknown_cordoned_cards"] == {(): 0}
        world.api.patch_node(NODE, {"metadata": {"annotations": {NODE_CORDON: f"GPU-9,{card(1)}"}}})
        await until(lambda: "InvalidCordon" in events(world))
        said = events(world)["InvalidCordon"]
        assert said.startswith(f'Warning annotation {NODE_CORDON} holds "GPU-9", no card of this node')
        assert card(0) in said
        await until(lambda: world.used == [0, 8])
        assert (await metrics(world))["gpupack_node_unknown_cordoned_cards"] == {(): 1}


async def test_what_prometheus_expects_of_every_process_and_whether_the_node_is_fit():
    async with node_world(8) as world:
        uid = await world.run("a", 3, on=0)
        await world.settled([3], {uid})
        told = await metrics(world)
        assert list(told["gpupack_build_info"].values()) == [1]
        assert told["process_resident_memory_bytes"][()] > 1e6
        assert told["process_cpu_seconds_total"][()] > 0
        assert told["gpupack_node_registered"] == told["gpupack_node_ready"] == {(): 1}
        assert told["gpupack_node_other_daemon"] == {(): 0}
        assert told["gpupack_node_kubelet_requests_total"]["OK", "Allocate"] == 1
        assert told["gpupack_node_kubelet_request_duration_seconds_count"]["Allocate",] == 1
        assert [name for name in told if name.endswith("_created")] == []
        await world.kubelet.kill()
        await until(lambda: not world.daemon._serving.registrars.is_registered)
        told = await metrics(world)
        assert told["gpupack_node_registered"] == told["gpupack_node_ready"] == {(): 0}
