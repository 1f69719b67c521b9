"""The stand-in kubelet against an API server: pods come from there, statuses and capacity go there."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from standins.apiserver.server import ApiServer
from tests.kubelet_world import RESOURCE, World, cards_of, pod, world
from tests.waiting import until


@asynccontextmanager
async def cluster(**settings: Any) -> AsyncIterator[tuple[ApiServer, World]]:
    async with ApiServer() as api, world(api_url=api.url, **settings) as here:
        yield api, here


def add(api: ApiServer, manifest: dict[str, Any]) -> dict[str, Any]:
    """Create a pod that is bound already, and return it with the UID that it got."""
    return api.add_pod(manifest)


def phase(api: ApiServer, name: str) -> str:
    return str(api.pod("default", name).get("status", {}).get("phase"))


def resources(api: ApiServer, which: str) -> dict[str, Any]:
    amounts: dict[str, Any] = api.node("n1")["status"][which]
    return amounts


async def test_makes_its_node_and_reports_devices() -> None:
    async with cluster() as (api, _):
        await until(lambda: resources(api, "capacity").get(RESOURCE) == "16")
        assert resources(api, "allocatable")[RESOURCE] == "16"
        assert api.node("n1")["metadata"]["labels"]["kubernetes.io/hostname"] == "n1"


async def test_runs_a_bound_pod() -> None:
    async with cluster() as (api, here):
        created = add(api, pod("a", 3))
        await until(lambda: phase(api, "a") == "Running")
        assert api.pod("default", "a")["status"]["startTime"]
        assert cards_of(here.ids(created, "m0")) == {"GPU-0"}
        assert here.kubelet.containers[created["metadata"]["uid"], "m0"].envs["UNITS"] == "3"


async def test_a_pod_bound_later_by_a_scheduler() -> None:
    async with cluster() as (api, _):
        unbound = pod("a", 3)
        del unbound["spec"]["nodeName"]
        add(api, unbound)
        await until(lambda: api.objects("nodes"))
        api.bind_pod("default", "a", "n1")
        await until(lambda: phase(api, "a") == "Running")


async def test_statuses_wait_for_the_api_server() -> None:
    async with cluster() as (api, here):
        created = add(api, pod("a", 3))
        await until(lambda: phase(api, "a") == "Running")
        await api.away(True)
        here.kubelet.finish(created["metadata"]["uid"], "Failed")
        await api.away(False)
        await until(lambda: phase(api, "a") == "Failed")


async def test_pods_deleted_while_the_kubelet_was_away_are_killed() -> None:
    async with cluster() as (api, here):
        created = add(api, pod("a", 3))
        await until(lambda: phase(api, "a") == "Running")
        await here.kubelet.kill()
        api.delete_pod("default", "a", 0)
        assert here.kubelet.running_pods() == {created["metadata"]["uid"]}
        await here.kubelet.start()
        await until(lambda: not here.kubelet.running_pods())


async def test_watch_that_expires_or_ends() -> None:
    async with cluster() as (api, _):
        add(api, pod("a", 1))
        await until(lambda: phase(api, "a") == "Running")
        api.expire_watches()
        add(api, pod("b", 1))
        await until(lambda: phase(api, "b") == "Running")
        api.end_watches()
        add(api, pod("c", 1))
        await until(lambda: phase(api, "c") == "Running")
        api.drop_connections()
        add(api, pod("d", 1))
        await until(lambda: phase(api, "d") == "Running")


async def test_a_lost_checkpoint_zeroes_every_extended_resource_of_the_node() -> None:
    async with cluster() as (api, here):
        await until(lambda: api.objects("nodes") and resources(api, "capacity").get(RESOURCE) == "16")
        api.patch_node("n1", {"status": {"capacity": {"example.com/thing": "7"}, "allocatable": {}}})
        await here.kubelet.restart()
        await here.registered()
        await here.kubelet.synced()
        assert resources(api, "capacity")["example.com/thing"] == "7"
        await here.kubelet.restart(lose_checkpoint=True)
        await until(lambda: resources(api, "capacity")["example.com/thing"] == "0")
        await until(lambda: resources(api, "capacity")[RESOURCE] == "16")


async def test_a_deleted_node_stays_away_until_the_kubelet_restarts() -> None:
    async with cluster() as (api, here):
        await until(lambda: api.objects("nodes"))
        api.delete_node("n1")
        here.allocator.health["GPU-0::0"] = False
        here.plugin.send_devices()
        await until(lambda: here.kubelet.allocatable()[RESOURCE] == 15)
        assert not api.objects("nodes")
        await here.kubelet.restart()
        await until(lambda: api.objects("nodes"))
