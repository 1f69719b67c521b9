"""`gpupack queue status`: the tables, and what cannot be shown."""

import asyncio
import json
import re

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from allocator.names import POD_CARDS, POD_CONTAINERS, POD_GPU_MODEL
from gpupack.errors import InputError
from gpupack.queuestatus import fetch_from, read, render
from kubeapi.errors import ConfigError
from scheduler_plugin.queue.controller import status
from tests.cluster_builders import container
from tests.queue_world import QueueWorld


def answer() -> bytes:
    """What a queue with one pod that runs and one that waits says."""
    world = QueueWorld(
        "queues: [{name: a, nominalQuota: 8, cohort: x}, {name: b, nominalQuota: 8, cohort: x}]"
    )
    world.node("n1", (16, 16))
    world.pod("one", 12, queue="a")
    world.decide()
    world.pod("two", 8, queue="b")
    world.pod("three", 1, queue="nobody")
    world.now = 150
    queue = world.queue
    body = {
        "queues": status.report_queues(queue, world.now),
        "pods": status.explain_waiting(queue, world.now),
    }
    return msgspec.json.encode(body)


def explain_second_pod(a: str, b: str, units: int) -> tuple[str, str]:
    """Explain why a pod waits in queue `a`, which has 12 units already; its cohort has queue `b` too."""
    world = QueueWorld(f"queues: [{{name: a, cohort: x, {a}}}, {{name: b, cohort: x, {b}}}]", n1=(16, 16))
    world.pod("one", 12, queue="a")
    world.decide()
    world.pod("two", units, queue="a")
    world.decide()
    (why,) = status.explain_waiting(world.queue, world.now)
    return why.reason, why.message


def test_a_queue_that_borrows_is_told_by_how_much() -> None:
    text = "it needs 8 units; queue a uses 12 units, 4 more than its quota of 8, and its cohort has 4 more"
    assert explain_second_pod("nominalQuota: 8", "nominalQuota: 8", 8) == ("Quota", text)


def test_a_queue_that_may_borrow_no_more_is_told_what_is_left_to_it() -> None:
    text = "it needs 2 units; queue a uses 12 units, 4 more than its quota of 8, and its cohort has 20 more"
    found = explain_second_pod("nominalQuota: 8, borrowingLimit: 5", "nominalQuota: 24", 2)
    assert found == ("Quota", f"{text}, of which it may have 1")


def test_the_tables() -> None:
    text = render(read(answer()), pods=True)
    quota = "it needs 8 units; queue b uses 0 units of its quota of 8, and its cohort has 4 more"
    assert text.splitlines() == [
        "QUEUE  COHORT  WEIGHT  NOMINAL  USED  BORROWED  LENT  RUNNING  WAITING  OLDEST  STOP",
        "a      x       1       8        12    4         0     1        0        -       None",
        "b      x       1       8        0     0         4     0        1        2m      None",
        "",
        "QUEUE   POSITION  POD            GANG  WAITS  REASON   WHY",
        f"b       1         default/two    -     2m     Quota    {quota}",
        'nobody  -         default/three  -     2m     Refused  queue "nobody" does not exist; allowed: a, b',
    ]


def test_one_queue_only() -> None:
    found = read(answer(), "b")
    assert [queue.name for queue in found.queues] == ["b"]
    assert [pod.name for pod in found.pods] == ["two"]


def test_a_queue_that_does_not_exist() -> None:
    with pytest.raises(InputError, match="queue 'c' does not exist; allowed: a, b"):
        read(answer(), "c")


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"<html>", b"[" * 100_000, b'"\xff"', json.dumps({"queues": 1}).encode()]
)
def test_an_answer_of_something_else(raw: bytes) -> None:
    with pytest.raises(InputError, match="the answer is not a queue's"):
        read(raw)


def test_trouble_comes_first() -> None:
    body = {"queues": [], "pods": [], "trouble": "another process is the leader", "fault": "f: slots: x"}
    lines = render(read(json.dumps(body).encode()), pods=True).splitlines()
    assert lines[0] == "nothing is admitted: another process is the leader"
    assert lines[2:4] == ["the newest configuration is not in force:", "f: slots: x"]
    warned = render(read(b'{"queues": [], "pods": [], "warning": "too much"}'), pods=False)
    assert warned.startswith("warning: too much")


def reasons(world: QueueWorld) -> list[tuple[str, str, str]]:
    return [(why.name, why.reason, why.message) for why in status.explain_waiting(world.queue, world.now)]


def test_a_pod_without_an_idle_slot_is_told_so() -> None:
    world = QueueWorld("slots: {per: node, local: {count: 0}, free: {count: 1}}\nqueues: [{name: a}]")
    world.node("n1", (16, 16))
    for name in ("first", "second"):
        world.pod(name, 4)
    world.decide()
    assert reasons(world) == [("second", "NoRoom", "no node that it fits on has an idle slot")]


def test_a_gang_that_is_larger_than_all_slots_is_told_so() -> None:
    world = QueueWorld("slots: {per: node, local: {count: 1}, free: {count: 1}}\nqueues: [{name: a}]")
    world.node("n1", (16, 16))
    for number in range(3):
        world.pod(f"g{number}", 4, gang="G", size=3)
    world.decide()
    why = "its gang has 3 waiting pods, and the cluster has 2 slots in all"
    assert reasons(world) == [(f"g{number}", "NeverFits", why) for number in range(3)]


def test_a_pod_that_fits_beside_what_is_kept_only_is_told_so() -> None:
    world = QueueWorld(n1=(16,))
    world.run("runs", 8, created=1)
    world.pod("large", 16, created=2)
    world.now = 10_000
    assert [node for _, node in world.queue.update_reservations(world.now)] == ["n1"]
    world.pod("small", 4, created=3)
    world.decide()
    found = {name: message for name, _, message in reasons(world)}
    assert found["small"] == status.KEPT
    assert found["large"].endswith("cards of node n1 are reserved for it")


def test_a_pod_alone_hears_nothing_of_a_gang() -> None:
    world = QueueWorld(n1=(16,))
    world.pod("alone", 4)
    (pod,) = world.queue.queued_pods.values()
    assert pod.requirements is not None
    world.queue.admission.unplaced.add(pod.requirements)
    assert reasons(world) == [("alone", "NoRoom", status.NOT_TAKEN)]


ENDED = status.EVEN_EMPTY
NO_STARS = (
    f"it needs 8 GiB: no card of the cluster that the pod's gpu-model and gpu-uuid admit {ENDED}"
    """; "*a100*" would match: a pattern without stars is the whole name"""
)
LIMITED = """
queues:
- {name: a, nominalQuota: 8, cohort: x, borrowingLimit: 2}
- {name: b, nominalQuota: 8, cohort: x}
"""


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"units": 40}, f"it needs 40 GiB: no healthy card of 40 GiB or more {ENDED}"),
        ({"units": 8, "annotations": {"gpupack.io/gpu-model": "A100"}}, NO_STARS),
        (
            {"units": 8, "cpu": "41"},
            (
                "it needs 8 GiB, and its rules, processor, memory and number of pods allow no node"
                f" with such cards, {ENDED}"
            ),
        ),
        ({"units": 12, "config": LIMITED}, "it needs 12 units; queue a can never have more than 10"),
        ({"units": 16}, "it needs 16 units on one card; the largest free card has 8"),
    ],
    ids=["too-large", "no-such-card", "processor", "quota", "full"],
)
def test_what_can_never_run_is_told_apart_from_what_waits_for_room(more, message) -> None:
    pod = {"config": "queues: [{name: a}]", **more}
    world = QueueWorld(pod.pop("config"))
    world.node("n1", (16, 16), (8, 8))
    world.pod("waits", **pod)
    world.decide()
    reason = "NoRoom" if message.endswith("the largest free card has 8") else "NeverFits"
    assert reasons(world) == [("waits", reason, message)]


def test_card_rules_that_hold_on_an_empty_node_are_not_why_a_pod_never_runs() -> None:
    """One card has room for both containers, and the other none: emptied, the node lacks processor alone."""
    world = QueueWorld("queues: [{name: a}]")
    world.node("n1", (16, 16), (0, 16))
    two = [container("x", 4, cpu="40"), container("y", 4, cpu="40")]
    world.pod("waits", containers=two, annotations={POD_CONTAINERS: "apart"})
    world.decide()
    others = "its rules, processor, memory and number of pods allow no node with such cards,"
    assert reasons(world) == [("waits", "NeverFits", f"it needs 4 GiB + 4 GiB, and {others} {ENDED}")]


@pytest.mark.parametrize(
    ("h100", "used", "more", "message"),
    [
        (
            16,
            (10, 10, 13),
            {"containers": [container(name, 4, cpu="1") for name in "xyz"]},
            "it needs 4 GiB + 4 GiB + 4 GiB: no node has all of that free together",
        ),
        (
            16,
            (10, 12, 13),
            {"units": 10, "annotations": {POD_CARDS: "2"}},
            "it needs 2 cards of a node with 5 units free each; the node with the most has 1",
        ),
        (
            64,
            (10, 12, 0),
            {"units": 8, "annotations": {POD_GPU_MODEL: "*A100*"}},
            "it needs 8 units on one card; the largest free card that it admits has 6",
        ),
        (
            16,
            (10, 12, 13),
            {"units": 4, "cpu": "40"},
            (
                "it needs 4 units on one card, "
                "on a node that its rules, processor, memory and number of pods allow: none has that"
            ),
        ),
    ],
    ids=["several-containers", "several-cards", "other-model", "processor"],
)
def test_what_a_pod_lacks_is_what_no_node_has(h100, used, more, message) -> None:
    """Of a pod with several containers it named the largest, which fits by itself, and blamed its rules."""
    world = QueueWorld()
    sizes, models = (16, 16, h100), ("NVIDIA A100", "NVIDIA A100", "NVIDIA H100")
    world.node("n1", sizes, (0, 0, 0), models=models)
    uid = world.run("runs", 1)
    world.node("n1", sizes, used, models=models, holds=[uid])
    world.pod("waits", **more)
    world.decide()
    assert reasons(world) == [("waits", "NoRoom", message)]


def test_where_only_the_nodes_sum_is_in_the_way_it_is_said() -> None:
    world = QueueWorld()
    world.node("n1", (16, 16), allocatable_units=32)
    uid = world.run("runs", 14)
    world.node("n1", (16, 16), (14, 0), healthy=(False, True), holds=[uid], allocatable_units=16)
    world.pod("waits", 8)
    world.decide()
    said = "it needs 8 units on one card; by kube-scheduler's count of a node's sum too little is left"
    assert reasons(world) == [("waits", "NoRoom", f"{said}, which counts pods on unhealthy cards, too")]


@pytest.mark.parametrize(
    ("sizes", "units", "reason"),
    [
        ((39, 39), (30, 30, 20), "NeverFits"),
        ((39, 39), (30, 30, 15), "NeverFits"),
        ((39, 39), (30, 30, 9), "NoRoom"),
        ((5, 5), (2, 2, 4), "NoRoom"),
    ],
    ids=["sum", "no-way", "a-way", "largest-first"],
)
def test_a_gang_whose_pods_ask_for_different_things_never_fits_where_no_cards_hold_it(sizes, units, reason):
    """Each kind by itself had room on empty cards, so it waited for room for good."""
    world = QueueWorld()
    world.node("n", sizes)
    uid = world.run("runs", 1)
    world.node("n", sizes, sizes, holds=[uid])
    for number, each in enumerate(units):
        world.pod(f"g{number}", each, gang="G", size=len(units))
    world.decide()
    found = reasons(world)
    assert {why for _, why, _ in found} == {reason}
    said = f"its gang has {len(units)} waiting pods, and the cards do not hold all of them at once {ENDED}"
    assert (found[0][2] == said) is (reason == "NeverFits")


def test_a_gang_of_which_three_pods_can_ever_run_is_told_so_and_has_one_position() -> None:
    world = QueueWorld(n1=(39, 39), n2=(39, 16))
    for number in range(4):
        world.pod(f"g{number}", 30, gang="G", size=4)
    world.decide()
    why = f"its gang has 4 waiting pods, and the cluster has room for 3 of them at once {ENDED}"
    assert reasons(world) == [(f"g{number}", "NeverFits", why) for number in range(4)]
    pods = status.explain_waiting(world.queue, world.now)
    assert {(pod.position, pod.gang, pod.gang_size) for pod in pods} == {(1, "G", 4)}
    text = render(read(msgspec.json.encode({"queues": [], "pods": pods})), pods=True)
    rows = [line.split()[:4] for line in text.splitlines() if line.startswith("a ")]
    assert rows == [["a", "1", f"default/g{number}", "G"] for number in range(4)]
    assert text.count("  G (4)  ") == 4


def test_what_waits_of_a_gang_that_runs_in_part_is_not_said_to_be_all_of_it() -> None:
    world = QueueWorld(n1=(16,), n2=(16, 16))
    uids = [world.pod(f"g{number}", 12, gang="G", size=3) for number in range(3)]
    world.decide()
    world.bind(*uids)
    world.lose_node("n2")
    for number, uid in enumerate(uids):
        if world.queue.queued_pods[uid].record.node == "n2":
            world.delete(uid)
            world.pod(f"again{number}", 12, gang="G", size=3)
    world.decide()
    why = f"its gang has 2 waiting pods, and the cluster has room for 1 of them at once {ENDED}"
    assert {(reason, message) for _, reason, message in reasons(world)} == {("NeverFits", why)}


def test_a_gang_whose_pods_need_several_cards_or_differ() -> None:
    world = QueueWorld(n1=(16, 16, 16))
    for number in range(2):
        pair = {"gpupack.io/cards": "2"}
        world.pod(f"g{number}", 32, gang="G", size=2, annotations=pair)
    world.pod("h0", 40, gang="H", size=2)
    world.pod("h1", 8, gang="H", size=2)
    world.decide()
    found = {name: message for name, _, message in reasons(world)}
    assert (
        found["g0"] == f"its gang has 2 waiting pods, and the cluster has room for 1 of them at once {ENDED}"
    )
    assert found["h0"] == f"it needs 40 GiB: no healthy card of 40 GiB or more {ENDED}"
    assert found["h1"] == found["h0"]


def test_capacity_follows_nodes_and_forgets_needs() -> None:
    world = QueueWorld(n1=(16,))
    world.pod("p", 20)
    (pod,) = world.queue.queued_pods.values()
    capacity = world.queue.capacity.capacity
    assert capacity.count_pods(pod.requirements) == 0
    world.node("n1", (24, 24))
    assert capacity.count_pods(pod.requirements) == 2
    world.node("n2", (24,), healthy=[False])
    world.node("n3", (24,), spec={"unschedulable": True})
    assert capacity.count_pods(pod.requirements) == 2
    world.queue.capacity.forget_unused(set())
    assert capacity.count_pods(pod.requirements) == 2


def test_a_queue_is_asked_at_its_own_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """And directly, as the API server of this machine is; nobody answers at the proxy."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")

    async def ask(path: str) -> bytes:
        app = web.Application()
        app.router.add_get("/status", status_of)
        async with TestServer(app) as server:
            return await fetch_from(str(server.make_url(path)))

    async def status_of(_request: web.Request) -> web.Response:
        return web.Response(body=answer())

    for path in ("", "/", "/status", "/status/"):
        assert asyncio.run(ask(path)) == answer()
    with pytest.raises(InputError, match="answers 404: is it a queue"):
        asyncio.run(ask("/elsewhere"))


@pytest.mark.parametrize("url", ["ftp://x", "127.0.0.1:8914", "http://[", "https://", "http://a b"])
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"--url {url!r}; allowed: http://HOST[:PORT] and")):
        asyncio.run(fetch_from(url))


def test_an_address_where_nobody_answers() -> None:
    with pytest.raises(InputError, match=r"no queue answers at http://127.0.0.1:1: Connection refused"):
        asyncio.run(fetch_from("http://127.0.0.1:1"))


def test_an_address_behind_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    with pytest.raises(InputError, match=r"no queue answers at http://queue\.test: Connection refused"):
        asyncio.run(fetch_from("http://queue.test"))
    monkeypatch.setenv("HTTP_PROXY", "socks5://h:1")
    with pytest.raises(ConfigError, match="HTTP_PROXY 'socks5://h:1'; allowed"):
        asyncio.run(fetch_from("http://queue.test"))
