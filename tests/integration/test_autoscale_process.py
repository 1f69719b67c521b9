"""`gpupack autoscale` as a process in front of the API server stand-in."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from allocator.names import NODE_HOST, NODE_KEPT, PLACEHOLDER_FOR, PLACEHOLDER_LABEL
from gpupack.autoscale.app import AutoscaleLoop, run
from gpupack.autoscale.metrics import AutoscaleMetrics
from gpupack.autoscale.scale_down import DO_NOT_DISRUPT, SCALE_DOWN_DISABLED
from gpupack.autoscale.settings import AutoscaleSettings
from gpupack.autoscale.writer import Writer
from gpupack.whatif.cluster import Cluster
from gpupack.whatif.live_cluster import LiveCluster
from scheduler_plugin.errors import SettingsError
from standins.apiserver.server import ApiServer
from tests.autoscale_world import Node, Pod, fragments, grown, waits
from tests.running import background, served
from tests.waiting import until

NAMESPACE = "gpupack-system"


class Running:
    def __init__(self, api: ApiServer, url: str, session: aiohttp.ClientSession) -> None:
        self.api, self.url, self.session = api, url, session

    async def get(self, path: str) -> tuple[int, str]:
        async with self.session.get(self.url + path) as response:
            return response.status, await response.text()

    async def counts(self, *lines: str) -> None:
        """Wait until metrics say so: a pass writes them when it is through."""

        async def said() -> bool:
            metrics = (await self.get("/metrics"))[1]
            return all(line in metrics for line in lines)

        await until(said)

    async def status(self) -> dict[str, Any]:
        return json.loads((await self.get("/status"))[1])  # type: ignore[no-any-return]


def refusal(code: int, message: str) -> web.Response:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message}
    return web.json_response(body, status=code)


def placeholders(api: ApiServer) -> list[dict[str, Any]]:
    return [pod for pod in api.objects("pods") if PLACEHOLDER_LABEL in pod["metadata"].get("labels", {})]


def is_marked(pod: dict[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any((each["type"], each["reason"]) == ("PodScheduled", "Unschedulable") for each in conditions)


def fill(api: ApiServer, world: Any) -> None:
    """Put a world's nodes and pods on the API server."""
    for item in json.loads(world.text)["items"]:
        meta = item["metadata"]
        if item["kind"] == "Node":
            api.add_node(meta["name"], meta["labels"], item["status"]["allocatable"], meta["annotations"])
            continue
        made = {"metadata": meta, "spec": item["spec"], "status": item["status"]}
        for key in ("uid", "resourceVersion", "creationTimestamp"):
            meta.pop(key, None)
        api.add_pod(made)
    node_holds(api)


def node_holds(api: ApiServer) -> None:
    """Make what the nodes say of their pods true for the UIDs that the API server gave."""
    for node in api.objects("nodes"):
        text = json.dumps(node["metadata"]["annotations"])
        for pod in api.objects("pods"):
            text = text.replace(f"uid-{pod['metadata']['name']}", pod["metadata"]["uid"])
        api.patch_node(node["metadata"]["name"], {"metadata": {"annotations": json.loads(text)}})


@asynccontextmanager
async def autoscale(api: ApiServer, folder: Path, **options: Any) -> AsyncIterator[Running]:
    settings = AutoscaleSettings(
        kubeconfig=api.kubeconfig(folder / "kubeconfig"),
        http="127.0.0.1:0",
        write_timeout_s=0.5,
        **{"grace_s": 0.0, "period_s": 0.0, "guard_period_s": 0.0, **options},
    )
    async with served(run, settings) as (url,), aiohttp.ClientSession() as session:
        yield Running(api, url, session)


@asynccontextmanager
async def cluster(*, waiting: int = 1) -> AsyncIterator[ApiServer]:
    """Two nodes with 20 free on each card, and pods of 40 that wait."""
    nodes, pods = fragments(2)
    async with ApiServer(seed=1) as api:
        fill(api, grown(nodes, [*pods, *(waits(f"w{at}", 40) for at in range(waiting))]))
        make_namespace(api)
        yield api


def make_namespace(api: ApiServer) -> None:
    """A namespace is there once anything is in it."""
    spec = {"containers": [{"name": "c", "image": "i"}]}
    api.add_pod({"metadata": {"name": "first", "namespace": NAMESPACE}, "spec": spec})


async def there_are(api: ApiServer, number: int) -> None:
    async def so_many() -> bool:
        found = placeholders(api)
        return len(found) == number and all(is_marked(pod) for pod in found)

    await until(so_many)


async def test_a_placeholder_comes_and_goes_with_the_need(tmp_path: Path) -> None:
    async with cluster() as api, autoscale(api, tmp_path) as running:
        await there_are(api, 1)
        (made,) = placeholders(api)
        assert made["metadata"]["namespace"] == NAMESPACE
        assert made["metadata"]["annotations"][PLACEHOLDER_FOR] == "default/w0"
        status = await running.status()
        assert [(pod["name"], pod["outcome"]) for pod in status["pods"]] == [("w0", "asked")]
        await running.counts(
            "gpupack_autoscale_placeholders 1.0", 'gpupack_autoscale_waiting_pods{outcome="asked"} 1.0'
        )
        await until(
            lambda: any(
                (event["reason"], event["involvedObject"]["name"]) == ("NodeAskedFor", "w0")
                for event in api.objects("events")
            )
        )
        api.delete_pod("default", "w0", 0)
        await there_are(api, 0)


async def test_placeholders_deleted_by_hand_come_back_once(tmp_path: Path) -> None:
    async with cluster() as api, autoscale(api, tmp_path):
        await there_are(api, 1)
        (made,) = placeholders(api)
        api.delete_pod(NAMESPACE, made["metadata"]["name"], 0)
        await there_are(api, 1)
        (again,) = placeholders(api)
        assert again["metadata"]["uid"] != made["metadata"]["uid"]
        assert again["metadata"]["name"] == made["metadata"]["name"]


def left_behind(api: ApiServer) -> Any:
    """Everything of ours on the API server that a leader could leave half done."""
    found = [
        (pod["metadata"]["name"], pod["metadata"]["annotations"][PLACEHOLDER_FOR], is_marked(pod))
        for pod in placeholders(api)
    ]
    ours = (NODE_KEPT, SCALE_DOWN_DISABLED, DO_NOT_DISRUPT)
    nodes = {
        node["metadata"]["name"]: [
            *(node["metadata"]["annotations"].get(key) for key in ours),
            node["metadata"]["labels"].get(NODE_HOST),
        ]
        for node in api.objects("nodes")
    }
    return sorted(found), nodes


def writes(request: web.Request) -> bool:
    return request.method in {"POST", "PATCH", "DELETE"} and "events" not in request.path


@pytest.mark.parametrize("number", range(6))
async def test_a_leader_that_dies_after_any_write_leaves_what_the_next_one_completes(
    tmp_path: Path, number: int
) -> None:
    """Six writes: a label, two placeholders with a condition each, and what keeps a node."""
    nodes, pods = fragments()
    full = Node("n2", (80, 80), foreign=(79, 79))
    options = {"autoscaler": "karpenter"}
    allowed = 0

    async def die_then(request: web.Request) -> web.Response | None:
        nonlocal allowed
        if not writes(request):
            return None
        allowed -= 1
        return refusal(500, "dies here") if allowed < 0 else None

    async with ApiServer(seed=1) as api:
        fill(api, grown([*nodes, full], [*pods, *(waits(f"w{at}", 40) for at in range(5))]))
        make_namespace(api)

        async def lead_and_die(until_done: int) -> None:
            nonlocal allowed
            allowed = until_done
            api.http.intercept = die_then
            async with autoscale(api, tmp_path, **options):
                await until(lambda: allowed < 0)
            api.http.intercept = None

        async def is_whole() -> bool:
            found, states = left_behind(api)
            both = f"{SCALE_DOWN_DISABLED},{DO_NOT_DISRUPT}"
            nodes = {"n1": [both, "true", "true", None], "n2": [None, None, None, "n2"]}
            return [marked for _, _, marked in found] == [True, True] and states == nodes

        await lead_and_die(number)
        async with autoscale(api, tmp_path, **options) as one, autoscale(api, tmp_path, **options):
            await until(is_whole)
            assert (await one.status())["autoscaler"] == "karpenter"
            before = left_behind(api)
            await asyncio.sleep(1.5)
            assert left_behind(api) == before
            for at in range(5):
                api.delete_pod("default", f"w{at}", 0)
            await there_are(api, 0)


async def test_a_full_quota_is_told_and_tried_again(tmp_path: Path) -> None:
    async with cluster() as api:

        async def full(request: web.Request) -> web.Response | None:
            if request.method == "POST" and request.path.endswith("/pods"):
                return refusal(403, "exceeded quota: pods")
            return None

        api.http.intercept = full
        async with autoscale(api, tmp_path) as running:

            async def is_told() -> bool:
                return "exceeded quota" in (await running.status())["trouble"]

            await until(is_told)
            await running.counts('gpupack_autoscale_failed_writes{what="create"}')
            api.http.intercept = None
            await there_are(api, 1)


async def test_while_the_api_server_is_away_nothing_is_decided(tmp_path: Path) -> None:
    async with cluster() as api, autoscale(api, tmp_path) as running:
        await there_are(api, 1)
        await api.away(True)

        async def is_blind() -> bool:
            return (await running.get("/readyz"))[0] == 503

        await until(is_blind)
        await api.away(False)
        api.delete_pod("default", "w0", 0)
        await there_are(api, 0)


async def test_nodes_are_kept_whose_pods_have_no_cards_elsewhere(tmp_path: Path) -> None:
    async with cluster(waiting=0) as api:
        api.patch_node("n2", {"metadata": {"annotations": {SCALE_DOWN_DISABLED: "true"}}})
        async with autoscale(api, tmp_path) as running:
            await until(
                lambda: all(NODE_KEPT in node["metadata"]["annotations"] for node in api.objects("nodes"))
            )
            first = api.node("n1")["metadata"]["annotations"]
            assert (first[SCALE_DOWN_DISABLED], first[DO_NOT_DISRUPT]) == ("true", "true")
            await running.counts('gpupack_autoscale_kept_nodes{reason="no_cards"} 2.0')
            for card in (0, 1):
                api.delete_pod("default", f"on-n1-{card}", 0)
                api.delete_pod("default", f"on-n2-{card}", 0)
            for name in ("n1", "n2"):
                api.patch_node(name, {"metadata": {"annotations": {"gpupack.io/holds": None}}})
            await until(
                lambda: not any(NODE_KEPT in node["metadata"]["annotations"] for node in api.objects("nodes"))
            )
            assert SCALE_DOWN_DISABLED not in api.node("n1")["metadata"]["annotations"]
            assert api.node("n2")["metadata"]["annotations"][SCALE_DOWN_DISABLED] == "true", "a person's"


async def test_consolidate_says_which_node_few_moves_would_empty(tmp_path: Path) -> None:
    async with ApiServer(seed=1) as api:
        fill(api, grown([Node("n1"), Node("n2")], [Pod("a", 4, "n1", (0,))]))
        async with autoscale(api, tmp_path, consolidate=True):
            await until(lambda: any(event["reason"] == "CouldBeEmptied" for event in api.objects("events")))
            (event,) = [each for each in api.objects("events") if each["reason"] == "CouldBeEmptied"]
            assert event["involvedObject"]["name"] == "n1"
            assert event["message"] == (
                "1 pod with cards here would find cards on other nodes; gpupack advise --empty n1"
            )
            assert api.has_pod("default", "a")


async def test_status_says_that_no_node_is_asked_for(tmp_path: Path) -> None:
    async with cluster() as api, autoscale(api, tmp_path, placeholders=False) as running:

        async def is_told() -> bool:
            pods = (await running.status())["pods"]
            return [(pod["name"], pod["outcome"]) for pod in pods] == [("w0", "off")]

        await until(is_told)
        status = await running.status()
        assert status["asksForNodes"] is False
        assert "--no-placeholders" in status["pods"][0]["message"]
        await running.counts('gpupack_autoscale_waiting_pods{outcome="off"} 1.0')
        assert not placeholders(api)


class BoardOfOddThings(LiveCluster):
    """Something is wrong with an object of the cluster, and then not any more."""

    broken = True

    def get_cluster(self) -> Cluster:
        if self.broken:
            raise ValueError("an object that nobody thought of")
        return grown(*fragments()).cluster


async def test_a_pass_that_fails_is_told_and_the_next_one_is_tried() -> None:
    board = BoardOfOddThings()
    nothing: Any = None
    writer = Writer(nothing, NAMESPACE, lambda: True, 1.0)
    settings = AutoscaleSettings(period_s=0.0, keep_nodes=False)
    made = AutoscaleLoop(board, settings, writer, nothing, AutoscaleMetrics(), lambda: "")
    told = "a pass failed: ValueError: an object that nobody thought of"
    async with background(made.run()):
        await until(lambda: made.status()["trouble"] == told)
        board.broken = False
        await until(lambda: made.status()["trouble"] == "")


async def test_without_the_lease_nothing_is_written(tmp_path: Path) -> None:
    async with cluster() as api:
        elect = {"leader_elect": True, "lease_namespace": NAMESPACE, "lease_s": 3}
        async with autoscale(api, tmp_path, **elect, identity="a"):
            await there_are(api, 1)
            async with autoscale(api, tmp_path, **elect, identity="b") as other:

                async def stands_by() -> bool:
                    return await other.get("/readyz") == (503, "another process is the leader\n")

                await until(stands_by)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"grace_s": -1.0}, "--grace-s -1; allowed: 0 to 3600"),
        ({"most": 0}, "--max-placeholders 0; allowed: 1 to 500"),
        ({"namespace": "A B"}, "--namespace 'A B'; allowed:"),
        ({"shapes": "/no/such/file"}, "shapes '/no/such/file': No such file or directory"),
        ({"consolidate": True, "keep_nodes": False}, "--consolidate with --no-keep-nodes; allowed: both"),
        ({"autoscaler": "other"}, "--autoscaler 'other'; allowed: cluster-autoscaler, karpenter"),
        ({"unit_mib": 0}, "--unit-mib 0; allowed: 1 to 16777215"),
    ],
)
def test_settings_that_cannot_work_are_said_in_one_line(options: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError) as caught:
        AutoscaleSettings(**options).check()
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
