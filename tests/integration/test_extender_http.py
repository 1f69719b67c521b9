"""The extender as a whole: HTTP in front, an API server behind."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
import structlog
from pytest_mock import MockerFixture

from allocator.names import NODE_HOLDS, POD_ASSIGNED, QUEUE_GATE
from allocator.policies import CARD_POLICIES
from scheduler_plugin.errors import FAULT
from scheduler_plugin.extender.server import MAX_BODY
from scheduler_plugin.extender.stale_refusals import WatchActivity
from standins.apiserver.server import ApiServer
from tests.cluster_builders import container, node_object, pod_object, uuid
from tests.extender_client import LIMIT_S, Client, client, extender
from tests.other_policies import offered
from tests.waiting import until

__all__ = ["client"]


async def test_a_pod_from_filter_to_its_node_s_words(client: Client) -> None:
    pod = client.make_pod("p", 9)
    await client.knows(pod["metadata"]["uid"])
    answer = await client.filter(pod, "a", "b")
    assert answer["NodeNames"] == ["b"]
    status, scores = await client.post("/prioritize", {"Pod": pod, "NodeNames": ["b"]})
    assert (status, scores) == (200, [{"Host": "b", "Score": 10}])
    assert await client.bind(pod, "b") == ""
    bound = client.api.pod("default", "p")
    assert bound["spec"]["nodeName"] == "b"
    assert json.loads(bound["metadata"]["annotations"][POD_ASSIGNED]) == {"main": [[uuid("b", 1), 9]]}
    assert client.state.nodes.assumed[client.state.nodes.rows["b"], :2].tolist() == [0, 9]
    await until(lambda: client.state.pods[pod["metadata"]["uid"]].node)
    assert "is bound to node b already" in await client.bind(pod, "b")
    made: Any = node_object("b", (16, 16), (4, 9), holds=[pod["metadata"]["uid"]])
    annotations = made["metadata"]["annotations"]
    client.api.patch_node("b", {"metadata": {"annotations": {NODE_HOLDS: annotations[NODE_HOLDS]}}})
    client.api.patch_node("b", {"status": made["status"]})

    async def confirmed() -> bool:
        row = client.state.nodes.rows["b"]
        return client.state.nodes.used[row, 1] == 9 and client.state.nodes.assumed[row].sum() == 0

    await until(confirmed)
    assert client.state.nodes.free[client.state.nodes.rows["b"], :2].tolist() == [12, 7]


async def test_a_pod_that_changes_while_its_binding_is_on_the_way_is_refused_and_bound_the_next_time(
    client: Client,
) -> None:
    pod = client.make_pod("p", 9)
    await client.knows(pod["metadata"]["uid"])

    async def change_first(request: Any) -> Any:
        if request.path.endswith("/binding"):
            client.api.http.intercept = None
            client.api.patch_pod("default", "p", {"metadata": {"labels": {"a": "b"}}})

    client.api.http.intercept = change_first
    error = await client.bind(pod, "b")
    assert error.startswith("Binding refused: ")
    assert "Precondition failed: ResourceVersion" in error
    assert client.state.nodes.assumed.sum() == 0
    assert "nodeName" not in client.api.pod("default", "p")["spec"]
    assert await client.bind(pod, "b") == ""
    assert client.state.nodes.assumed.sum() == 9


async def test_a_pod_whose_gate_goes_is_bound_once_that_is_known(
    client: Client, mocker: MockerFixture
) -> None:
    """kube-scheduler may see before us that the queue has released a pod; a refusal costs it a second."""
    first = client.make_pod("first", 1)
    await client.knows(first["metadata"]["uid"])
    assert await client.bind(first, "a") == ""
    waits = mocker.spy(WatchActivity, "wait_until")
    pod = client.make_pod("p", 9, gates=[QUEUE_GATE])
    uid = pod["metadata"]["uid"]
    await until(lambda: uid in client.state.pods and client.state.pods[uid].is_gated)
    binding = asyncio.create_task(client.bind(pod, "b"))
    await until(lambda: waits.called)
    client.api.patch_pod("default", "p", {"spec": {"schedulingGates": None}})
    assert await binding == ""


async def test_events_of_both_kinds_reach_the_state(client: Client) -> None:
    pod = client.make_pod("p", 9)
    uid = pod["metadata"]["uid"]
    await client.knows(uid)
    client.api.delete_pod("default", "p", 0)
    client.api.delete_node("a")
    client.api.bookmark()
    await until(lambda: uid not in client.state.pods and "a" not in client.state.nodes.rows)


async def test_health_and_metrics(client: Client) -> None:
    assert await client.get("/healthz") == (200, "ok\n")
    await client.filter(pod_object("p", 8), "a", "b")
    await client.post("/filter", b"rubbish")
    status, text = await client.get("/metrics")
    assert status == 200
    assert 'gpupack_extender_request_duration_seconds_count{verb="filter"} 1.0' in text
    assert 'gpupack_extender_request_errors_total{verb="filter"} 1.0' in text
    assert 'gpupack_scheduler_nodes{words="readable"} 2.0' in text
    assert 'gpupack_scheduler_gpu_memory_bytes{kind="size"} 6.8719476736e+10' in text


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/filter", b"rubbish", 400, "ExtenderArgs is not JSON but b'rubbish': "),
        ("/bind", b'{"PodName":"p"}', 422, "without PodNamespace, PodUID, Node"),
        ("/bind", b'{"PodName":3}', 422, "Expected `str`"),
        ("/preempt", b"1", 422, "another shape"),
        ("/bind", b"\n" * 1000, 400, r"ExtenderBindingArgs is not JSON but b'\n\n\n\n"),
        ("/filter", b" " * (MAX_BODY + 1), 413, f"body of {MAX_BODY + 1} bytes; allowed: {MAX_BODY}"),
        ("/nowhere", b"", 404, 'POST "/nowhere"; allowed: POST /filter, POST /prioritize, POST /bind, '),
        ("/nowhere%0A" + "x" * 400, b"", 404, 'x…"; allowed: '),
        ("/healthz", b"", 405, 'POST "/healthz"; allowed: POST /filter, '),
    ],
)
async def test_rubbish_gets_one_line(
    client: Client, path: str, body: bytes, status: int, message: str
) -> None:
    got, text = await client.post(path, body)
    assert got == status
    assert message in text
    assert text.count("\n") <= 1


async def test_a_body_that_is_not_what_its_headers_say_gets_one_line(client: Client) -> None:
    headers = {"Content-Encoding": "gzip"}
    async with client.session.post(f"{client.url}/filter", data=b"rubbish", headers=headers) as response:
        assert (response.status, response.headers["Connection"]) == (400, "close")
        text = await response.text()
    assert "body cannot be read" in text
    assert text.count("\n") == 1
    assert (await client.post("/filter", b"{}"))[0] == 422


async def test_preempt_over_http(client: Client) -> None:
    status, answer = await client.post("/preempt", {"Pod": pod_object("p", 8), "NodeNameToMetaVictims": {}})
    assert (status, answer) == (200, {"NodeNameToMetaVictims": {}})


async def test_a_body_of_exactly_the_limit_is_answered(client: Client) -> None:
    names = json.dumps([f"{'long-name-' * 24}{index:05d}" for index in range(60_000)] + ["b"])
    pod = pod_object("p", 8, annotations={"padding": ""})
    form = '{"Pod":%s,"Nodes":null,"NodeNames":%s}'
    short = MAX_BODY - len(form % (json.dumps(pod), names))
    assert short > 0
    pod["metadata"]["annotations"]["padding"] = "x" * short  # type: ignore[index]
    body = (form % (json.dumps(pod), names)).encode()
    assert len(body) == MAX_BODY
    status, answer = await client.post("/filter", body)
    assert (status, answer["NodeNames"]) == (200, ["b"])
    status, message = await client.post("/filter", body + b" ")
    assert (status, message) == (413, f"body of {MAX_BODY + 1} bytes; allowed: {MAX_BODY}\n")


async def test_a_body_of_unknown_length_is_refused_once_it_is_too_long(client: Client) -> None:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(17):
            yield b" " * 2**20

    async with client.session.post(f"{client.url}/filter", data=parts()) as response:
        assert response.status == 413
        assert await response.text() == f"body of more than {MAX_BODY} bytes; allowed: {MAX_BODY}\n"


@pytest.mark.parametrize(
    ("verb", "method", "status", "shown"),
    [
        (
            "filter",
            "scheduler_plugin.extender.verbs.Extender.filter",
            200,
            {"NodeNames": None, "Error": FAULT},
        ),
        ("bind", "scheduler_plugin.binding.binder.Binder.bind", 200, {"Error": FAULT}),
        ("prioritize", "scheduler_plugin.extender.verbs.Extender.prioritize", 500, f"{FAULT}\n"),
        ("preempt", "scheduler_plugin.extender.verbs.Extender.preempt", 500, f"{FAULT}\n"),
    ],
)
async def test_a_fault_of_ours_is_the_error_of_the_verb_and_told_once(
    client: Client, mocker: MockerFixture, verb: str, method: str, status: int, shown: dict[str, Any] | str
) -> None:
    pod = pod_object("p", 8)
    await client.knows(client.make_pod("q", 8)["metadata"]["uid"])
    uid = next(iter(client.state.pods))
    args = {"PodName": "q", "PodNamespace": "default", "PodUID": uid, "Node": "a"}
    body = args if verb == "bind" else {"Pod": pod, "NodeNames": ["a"], "NodeNameToMetaVictims": {}}
    mocker.patch(method, side_effect=KeyError("a bug"))
    with structlog.testing.capture_logs() as logs:
        got, answer = await client.post(f"/{verb}", body)
    assert got == status
    assert answer == shown if isinstance(shown, str) else shown.items() <= answer.items()
    faults = [line for line in logs if line["log_level"] == "error"]
    assert [(line["event"], line["path"]) for line in faults] == [("call failed", f"/{verb}")]
    assert f'gpupack_extender_request_errors_total{{verb="{verb}"}} 1.0' in (await client.get("/metrics"))[1]


async def test_a_policy_that_gives_no_costs_is_named_by_filter_and_bind(client: Client) -> None:
    """Other verbs have no place for it; nothing is charged."""
    broken = SimpleNamespace(costs=lambda cards, _: [float("nan")] * len(cards), by_fill=True)
    named = 'card policy "broken" of others 1.0: cost of card '
    with offered(CARD_POLICIES, broken=lambda _: broken):
        notes = {"gpupack.io/card-policy": "broken"}
        many = [container("x", 5), container("y", 13)]
        pod = client.make_pod("p", 0, containers=many, annotations=notes)
        await client.knows(pod["metadata"]["uid"])
        answer = await client.filter(pod, "a", "b")
        assert answer["NodeNames"] is None
        assert answer["Error"].startswith(named)
        assert named in await client.bind(pod, "b")
    assert not client.state.nodes.assumed.any()
    assert 'gpupack_extender_request_errors_total{verb="filter"} 1.0' in (await client.get("/metrics"))[1]


async def half_a_call(client: Client) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a filter call but for the end of its body; returns when the handler waits for that."""
    url = urlsplit(client.url)
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    writer.write(b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n{")
    assert await reader.readline() == b"HTTP/1.1 100 Continue\r\n"
    return reader, writer


async def test_a_call_that_never_ends_does_not_hold_up_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler_plugin.app.SHUTDOWN_S", 0.05)
    async with ApiServer() as api, asyncio.timeout(LIMIT_S):
        async with extender(tmp_path, api) as client:
            _, writer = await half_a_call(client)
        writer.close()


async def test_without_the_api_server_filter_goes_on_and_then_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler_plugin.settings.Settings.check", lambda _: None)
    async with ApiServer() as api, extender(tmp_path, api, stale_s=0.5) as client:
        api.http.bookmark_s = 0.05
        client.make_node("b", (16, 16))
        await until(client.ready)
        await api.away(True)

        async def stale() -> bool:
            answer = await client.filter(pod_object("p", 8), "b")
            assert answer["Error"] or answer["NodeNames"] == ["b"]
            return "has not heard from the API server" in answer["Error"]

        await until(stale)
        assert (await client.get("/readyz"))[0] == 503
        assert (await client.get("/healthz"))[0] == 200
        assert "has not heard" in await client.bind(pod_object("p", 8), "b")
        await api.away(False)
        await until(client.ready)


async def test_before_the_lists_are_read_filter_says_so(tmp_path: Path) -> None:
    async with ApiServer() as api:
        api.http.latency_s = 60.0
        async with extender(tmp_path, api) as client:
            answer = await client.filter(pod_object("p", 8), "b")
            assert "has not read nodes and pods yet" in answer["Error"]
            assert await client.get("/readyz") == (503, f"{answer['Error']}\n")
