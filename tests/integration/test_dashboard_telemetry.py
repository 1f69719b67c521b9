"""What cards do, on the dashboard: asked of one node's daemon, through the API server or directly."""

import asyncio
import contextlib
import json
from contextlib import AsyncExitStack

import aiohttp
import msgspec
import pytest
from aiohttp import web

from benchmarks.dashboard import make_up_course, shown
from benchmarks.fleet import Fleet
from gpupack.dashboard.telemetry import (
    ANSWER_S,
    ASKED_AT_ONCE,
    POD_S,
    NodeCourse,
    TelemetrySource,
    read_own_namespace,
)
from gpupack.inventory.fetching import connect
from gpupack.inventory.telemetry import MAX_BYTES
from tests.http_server import serving
from tests.integration.telemetry_world import (
    BUSY,
    IN_PART,
    SYSTEM_PODS,
    Cluster,
    cluster,
    daemon_pod,
    measure,
)

__all__ = ["cluster"]


@contextlib.asynccontextmanager
async def source_of(cluster: Cluster, tmp_path, **options):
    """A source with a clock in a list of one entry."""
    now_s = [0.0]
    async with cluster.serve(tmp_path) as config, await connect(config, None) as client:
        yield TelemetrySource(client, now_s=lambda: now_s[0], **options), now_s


def asked(cluster: Cluster, part: str) -> int:
    return sum(part in path for path, _ in cluster.asked)


async def test_a_node_is_asked_with_its_course(cluster, tmp_path):
    async with source_of(cluster, tmp_path) as (source, _):
        course = await source.fetch("a")
    first, second = course.cards
    assert course.error == ""
    assert (first.uuid, first.cards, first.now["power_w"]) == ("GPU-a-0", ("GPU-a-0",), 301.6)
    assert first.now["throttle_reasons"] == ("sw_power_cap",)
    assert first.history["age_s"] == (0.0,)
    assert second.history == {"age_s": (0.0,), "temperature_c": (31.0,)}


async def test_many_pages_are_one_question(cluster, tmp_path):
    async with source_of(cluster, tmp_path) as (source, now_s):
        for _ in range(5):
            await source.fetch("a")
        assert (asked(cluster, "/proxy/"), asked(cluster, "/pods")) == (1, 2)
        now_s[0] = ANSWER_S
        await source.fetch("a")
        assert asked(cluster, "/proxy/") == 2
        now_s[0] = POD_S
        await source.fetch("a")
        assert [path for path, _ in cluster.asked].count(SYSTEM_PODS) == 2


async def test_who_asks_at_a_time_is_one_question_and_few_nodes_are_asked_at_a_time(tmp_path, mocker):
    names = [f"n{number}" for number in range(3 * ASKED_AT_ONCE)]
    cluster = Cluster(
        {name: measure(name, BUSY, IN_PART) for name in names}, [daemon_pod(name) for name in names]
    )
    under_way, most = 0, 0
    forward = cluster.forward

    async def count(name, request):
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.01)
        answer = await forward(name, request)
        under_way -= 1
        return answer

    mocker.patch.object(cluster, "forward", count)
    async with source_of(cluster, tmp_path) as (source, _):
        courses = await asyncio.gather(*(source.fetch(name) for name in names * 3))
    assert {course.error for course in courses} == {""}
    assert (asked(cluster, "/proxy/"), most) == (len(names), ASKED_AT_ONCE)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"forbidden": ("/telemetry",)}, "no right: "),
        ({"forbidden": ("/pods",)}, "no right: "),
        ({"pods": []}, "no pod of the node's daemon runs"),
        ({"pods": [daemon_pod("a", "Pending")]}, "no pod of the node's daemon runs"),
    ],
)
async def test_what_is_not_known_is_said(cluster, tmp_path, change, error):
    for name, value in change.items():
        setattr(cluster, name, value)
    async with source_of(cluster, tmp_path) as (source, _):
        course = await source.fetch("a")
    assert course.cards == ()
    assert error in course.error


async def test_an_installation_elsewhere_has_its_daemons_there(cluster, tmp_path):
    cluster.pods.append(daemon_pod("a", name="gpupack-node-b", namespace="gpu"))
    async with source_of(cluster, tmp_path, namespace="gpu") as (source, _):
        await source.fetch("a")
    assert asked(cluster, "/namespaces/gpu/pods/gpupack-node-b/proxy/") == 1


def test_a_pod_knows_its_own_namespace(tmp_path):
    file = tmp_path / "namespace"
    assert read_own_namespace(file) == ""
    file.write_text("gpu\n")
    assert read_own_namespace(file) == "gpu"


async def test_values_that_cannot_be_are_left_out(cluster, tmp_path):
    now = {"power_w": 1e308, "temperature_c": 31, "throttle_reasons": []}
    history = {"age_s": [5, 0], "power_w": [1e308, 7]}
    told = {"cards": [{"uuid": "GPU-a-0", "cards": [], "now": now, "history": history}]}
    cluster.answers = {"a": web.json_response(told)}
    async with source_of(cluster, tmp_path) as (source, _):
        (card,) = (await source.fetch("a")).cards
    assert card.now == {"temperature_c": 31.0, "throttle_reasons": ()}
    assert card.history == {"age_s": (5.0, 0.0), "power_w": (None, 7.0)}


DEEP = b'{"x":' + b"[" * 100_000
LONG = b'{"cards": []}' + b" " * MAX_BYTES


@pytest.mark.parametrize(
    "body",
    [b"soup", b"[]", b"\xff", b'{"cards": [{"uuid": 1}]}', DEEP, LONG],
    ids=["text", "list", "bytes", "number", "deep", "long"],
)
async def test_a_daemon_that_answers_something_else_is_asked_again(cluster, tmp_path, body):
    cluster.answers = {"a": web.Response(body=body)}
    async with source_of(cluster, tmp_path) as (source, now_s):
        assert (await source.fetch("a")).error != ""
        now_s[0] = ANSWER_S
        assert (await source.fetch("a")).error == ""


async def test_in_the_cluster_pods_are_asked_directly(cluster, tmp_path):
    answer = {"cards": [{"uuid": "GPU-a-0", "cards": ["GPU-a-0"], "now": {"power_w": 7.0}, "history": {}}]}

    async def tell(_request):
        return answers.pop() if answers else web.json_response(answer)

    answers = [web.Response(body=LONG)]
    daemon = AsyncExitStack()
    port = int((await daemon.enter_async_context(serving(tell))).rpartition(":")[2])
    cluster.pods = [daemon_pod("a")]
    cluster.pods[0]["status"]["podIP"] = "127.0.0.1"
    cluster.forbidden = ("/telemetry",)
    async with (
        daemon,
        aiohttp.ClientSession() as session,
        source_of(cluster, tmp_path, session=session, port=port) as (source, now_s),
    ):
        assert f"an answer above {MAX_BYTES} bytes" in (await source.fetch("a")).error
        now_s[0] = ANSWER_S
        course = await source.fetch("a")
        assert (course.error, course.cards[0].now) == ("", {"power_w": 7.0})
        await daemon.aclose()
        now_s[0] = 2 * ANSWER_S
        assert str(port) in (await source.fetch("a")).error
    assert asked(cluster, "/proxy/") == 0


async def test_over_http():
    fleet = Fleet(4)
    name = next(each.name for each in fleet.nodes if each.pods and not each.corrupt)
    async with (
        shown(fleet, telemetry=make_up_course) as (_, url),
        aiohttp.ClientSession() as session,
    ):
        async with session.get(f"{url}api/telemetry", params={"name": name}) as answer:
            course = msgspec.json.decode(await answer.read(), type=NodeCourse)
        assert answer.status == 200
        assert all(card.now["power_w"] for card in course.cards)
        async with session.get(f"{url}api/telemetry", params={"name": "x"}) as answer:
            assert (answer.status, json.loads(await answer.read())["error"]) == (
                404,
                'no node has the name "x"',
            )
