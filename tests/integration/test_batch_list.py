"""Batch placing over both processes: a failed Binding tries the next node of the pod's list."""

from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from allocator.names import BATCH_SCHEDULER, POD_ASSIGNED
from standins.apiserver.server import ApiServer
from tests.extender_client import Client, extender
from tests.integration.test_queue_process import ONE_QUEUE, make_node, make_pod, queue
from tests.waiting import until

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
NODES = {"n1": 12, "n2": 8, "n3": 4, "n4": 0, "n5": 0}
"""Units in use of 16: best-fit goes by what is left."""


def listed(pod: dict[str, Any]) -> list[str]:
    """The nodes that an admitted pod may run on, in order."""
    terms = pod["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    return [name for term in terms for field in term["matchFields"] for name in field["values"]]


async def goes_to(client: Client, pod: dict[str, Any]) -> list[str]:
    return list((await client.filter(pod, *listed(pod)))["NodeNames"])


def is_released(client: Client, pod: dict[str, Any]) -> bool:
    """Whether the extender knows the pod, and that the queue has admitted it."""
    known = client.state.pods.get(pod["metadata"]["uid"])
    return known is not None and not known.is_gated


async def test_a_failed_binding_tries_the_next_node_of_the_list(tmp_path: Path) -> None:
    """In the list's order; after the last one the first is tried again."""
    options = {"node_policy": "best-fit", "shortlist": 1}
    async with ApiServer(seed=1) as api, extender(tmp_path, api, **options) as client:
        for name, used in NODES.items():
            make_node(api, name, (16,), (used,))
        make_pod(api, "p", 4)
        text = f"{ONE_QUEUE}\nmode: batch"
        async with queue(api, tmp_path, text, node_policy="best-fit") as running:
            await running.admitted("p")
        pod = api.pod("default", "p")
        assert listed(pod) == ["n1", "n2", "n3", "n4"]
        await until(client.ready)
        await until(lambda: is_released(client, pod))
        refused = client.refuse("/binding")
        for _ in range(6):
            (node,) = await goes_to(client, pod)
            # Asking again, as after other news, changes nothing.
            assert await goes_to(client, pod) == [node]
            assert "not so" in await client.bind(pod, node)
        assert [binding["target"]["name"] for binding in refused] == ["n1", "n2", "n3", "n4", "n1", "n2"]
        api.http.intercept = None
        (node,) = await goes_to(client, pod)
        assert node == "n3"
        assert await client.bind(pod, node) == ""
        bound = api.pod("default", "p")
        assert bound["spec"]["nodeName"] == "n3"
        assert "GPU-n3-0" in bound["metadata"]["annotations"][POD_ASSIGNED]


async def test_metrics_and_events_tell_what_became_of_each_pod_of_a_call(tmp_path: Path) -> None:
    """The API server binds one pod, refuses one, and does not say what became of the third."""
    # Nothing to wait for before the first Binding: else the call's own time may be over by then.
    options: dict[str, Any] = {"commit": True, "after_another": False, "bind_timeout_s": 30.0}
    async with ApiServer(seed=1) as api, extender(tmp_path, api, **options) as client:
        client.make_node("n1", (16, 16, 16), allocatable_units=48)
        uids = {}
        for name in ("bound", "refused", "unknown"):
            uids[name] = client.make_pod(name, 4, spec={"schedulerName": BATCH_SCHEDULER})["metadata"]["uid"]
            await client.knows(uids[name])
        await until(client.ready)

        async def answer(request: web.Request) -> web.StreamResponse | None:
            if request.path.endswith("/refused/binding"):
                return aiohttp.web.json_response({"kind": "Status", "message": "not so"}, status=403)
            if "/pods/unknown" in request.path:
                return aiohttp.web.json_response({"kind": "Status", "message": "down"}, status=500)
            return None

        api.http.intercept = answer
        lists = [
            [{"namespace": "default", "name": name, "uid": uid, "nodes": ["n1"]}]
            for name, uid in uids.items()
        ]
        status, reply = await client.post("/commit", {"groups": lists})
        assert status == 200
        assert [result["outcome"] for result in reply["results"]] == list(uids), reply
        _, metrics = await client.get("/metrics")
        for outcome in uids:
            assert f'gpupack_extender_batch_pods_total{{outcome="{outcome}"}} 1.0' in metrics
        await until(lambda: api.objects("events"))
        (event,) = api.objects("events")
        assert (event["reason"], event["involvedObject"]["name"]) == ("CardsAssigned", "bound")
        assert event["message"].startswith("Assigned on node n1: card ")
