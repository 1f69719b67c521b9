"""The extender as a process that preempts: what it reads and writes at an API server, and the option."""

import json
from pathlib import Path
from typing import Any

from aiohttp import web

from allocator.names import POD_ASSIGNED
from standins.apiserver.server import ApiServer
from tests.cluster_builders import uuid
from tests.extender_client import extender
from tests.waiting import until


async def test_a_pod_is_evicted_and_both_are_told(tmp_path: Path) -> None:
    evictions: list[tuple[str, Any]] = []

    async def evict(request: Any) -> Any:
        if not request.path.endswith("/eviction"):
            return None
        evictions.append((request.path, await request.json()))
        return web.json_response({"kind": "Status", "status": "Success"}, status=201)

    async with ApiServer() as api, extender(tmp_path, api) as client:
        api.http.intercept = evict
        assigned = {POD_ASSIGNED: json.dumps({"main": [[uuid("n", 0), 8]]})}
        victim = client.make_pod("victim", 8, node="n", annotations=assigned, spec={"priority": 1})
        client.make_node("n", (16,), (8,), holds=[victim["metadata"]["uid"]], seen=10**6)
        needy = client.make_pod("needy", 16, spec={"priority": 2})
        await until(client.ready)
        await client.knows(needy["metadata"]["uid"])
        assert (await client.filter(needy, "n"))["NodeNames"] == []
        await until(lambda: {"Nominated", "Preempted"} <= {each["reason"] for each in api.objects("events")})
        ((path, body),) = evictions
        assert path == "/api/v1/namespaces/default/pods/victim/eviction"
        assert body["deleteOptions"]["preconditions"] == {"uid": victim["metadata"]["uid"]}
        (found,) = [each for each in api.objects("pods") if each["metadata"]["name"] == "needy"]
        assert found["status"]["nominatedNodeName"] == "n"
        messages = {each["involvedObject"]["name"]: each["message"] for each in api.objects("events")}
        assert messages["victim"] == (
            "Evicted from node n for pod default/needy of priority 2, which needs its GPU memory"
        )
        assert "gpupack_preemption_nominated_pods 1.0" in (await client.get("/metrics"))[1]


async def test_preemption_can_be_switched_off(tmp_path: Path) -> None:
    async with ApiServer() as api, extender(tmp_path, api, preemption=False) as client:
        await until(client.ready)
        assert "gpupack_preemption" not in (await client.get("/metrics"))[1]
