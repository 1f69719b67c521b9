"""/metrics of a node's daemon while things go well, and while each of its errors happens."""

from collections.abc import Sequence

import aiohttp
import pytest
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from deviceplugin.errors import GpuError
from deviceplugin.gpus.api.source import GpuSample
from deviceplugin.gpus.simulated.profile import parse_profile
from deviceplugin.gpus.simulated.source import SimulatedGpus
from tests.integration.node_world import GIB, NodeWorld, card, node_world, profile_text
from tests.waiting import until

ERRORS = ("annotation_errors", "clean_errors", "patch_errors", "sample_errors")


class SimulatedGpusOfADriver(SimulatedGpus):
    """Cards that can be read only while the driver works."""

    driver_works = True

    def sample(self) -> Sequence[GpuSample]:
        if not self.driver_works:
            raise GpuError("Driver Not Loaded")
        return super().sample()


async def metrics(world: NodeWorld) -> dict[str, float]:
    """Every sample by its name and, where it has one, its card."""
    url = f"http://127.0.0.1:{world.daemon.http_port}/metrics"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        families = text_string_to_metric_families(await answer.text())
        return {
            sample.name + (f" {sample.labels['uuid']}" if "uuid" in sample.labels else ""): sample.value
            for family in families
            for sample in family.samples
        }


async def says(world: NodeWorld, name: str, least: float) -> None:
    """Wait until a metric is there and at least so high."""

    async def says_so() -> bool:
        return (await metrics(world)).get(name, -1) >= least

    await until(says_so, name)


async def test_what_the_driver_counts_is_told_by_card() -> None:
    async with node_world(8, 8) as world:
        uid = await world.run("a", 3, on=0)
        await world.settled([3, 0], {uid})
        await says(world, f"gpupack_card_measured_bytes {card(0)}", 0)
        world.source.set_used(card(0), 1536)
        await world.daemon._sampler._once()
        told = await metrics(world)
        measured = [told[f"gpupack_card_measured_bytes {card(index)}"] for index in range(2)]
        assert measured == [1536 * 2**20, 0]
        promised = [told[f"gpupack_card_promised_bytes {card(index)}"] for index in range(2)]
        assert promised == [3 * 2**30, 0]
        world.daemon.account.ledger.set_unavailable("client_limit", [card(1)])
        told = await metrics(world)
        given = [told[f"gpupack_card_compute_given_percent {card(index)}"] for index in range(2)]
        assert given == [0, 100], "a card that takes no pods has none to give"
        limits = [told[f"gpupack_card_compute_limit_percent {card(index)}"] for index in range(2)]
        assert limits == [100, 100]


async def test_a_card_that_fails_is_not_said_to_be_measured() -> None:
    async with node_world(8) as world:
        name = f"gpupack_card_measured_bytes {card(0)}"
        await says(world, name, 0)
        world.source.fail(card(0))
        await world.daemon._sampler._once()
        assert name not in await metrics(world)


async def test_a_card_that_was_never_measured_tells_nothing() -> None:
    async with node_world(8) as world:
        await world.stop_daemon()
        world.source = SimulatedGpusOfADriver(parse_profile("test", profile_text(8)))
        world.source.driver_works = False
        await world.start_daemon()
        await says(world, "gpupack_node_sample_errors_total", 1)
        told = await metrics(world)
        assert told[f"gpupack_card_size_bytes {card(0)}"] == 8 * 2**30
        assert f"gpupack_card_measured_bytes {card(0)}" not in told


@pytest.mark.parametrize("name", ERRORS)
async def test_every_kind_of_error_is_counted(name: str) -> None:
    async with node_world(8) as world:
        await world.stop_daemon()
        source = world.source = SimulatedGpusOfADriver(parse_profile("test", profile_text(8)))
        await world.start_daemon()
        await world.settled([0], set())
        told = await metrics(world)
        assert {error: told[f"gpupack_node_{error}_total"] for error in ERRORS} == dict.fromkeys(ERRORS, 0)

        async def refuse(request: web.Request) -> web.Response | None:
            part = {"patch_errors": "/status", "annotation_errors": "/pods/"}.get(name, "nothing")
            ours = request.headers.get("User-Agent") == "gpupack-node"
            return (
                web.Response(status=503)
                if ours and request.method == "PATCH" and part in request.path
                else None
            )

        world.api.http.intercept = refuse
        match name:
            case "clean_errors":
                await world.kubelet.kill()
                await world.daemon._pod_resources.purge_checkpoint(lambda: None)
            case "sample_errors":
                source.driver_works = False
                await world.daemon._sampler._once()
            case _:
                await world.run("a", 3, on=0)
        await says(world, f"gpupack_node_{name}_total", 1)
        told = await metrics(world)
        assert [error for error in ERRORS if told[f"gpupack_node_{error}_total"]] == [name]


async def test_registrations_and_patches_are_counted() -> None:
    async with node_world(8) as world:
        uid = await world.run("a", 3, on=0)
        await world.settled([3], {uid})
        told = await metrics(world)
        patches = told["gpupack_node_patches_total"]
        assert (told["gpupack_node_registrations_total"], patches) == (2, world.daemon._publisher.patches)
        await world.kubelet.restart()
        await says(world, "gpupack_node_registrations_total", 2)
        await until(lambda: world.kubelet.allocatable()[GIB] == 8)
        await world.run("b", 2, on=0)
        await says(world, "gpupack_node_patches_total", patches + 1)
