"""What is wrong with pods, jobs, gangs, queues and clocks: told on the pod, and the others go on."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from allocator.names import POD_REQUEUED, QUEUE_GATE, QUEUE_NAME
from kubeapi.client import CONNECTIONS
from kubeapi.errors import BudgetRefused, Forbidden, Invalid, KubeApiError
from kubeapi.events import BUSY_S
from scheduler_plugin.queue.cache.queue_clock import TOLERANCE_S, QueueClock
from scheduler_plugin.queue.cache.queued_pods import Phase
from scheduler_plugin.queue.controller import status
from scheduler_plugin.queue.controller.controller import Controller
from scheduler_plugin.queue.controller.explainer import AGAIN_S
from scheduler_plugin.queue.controller.writer import PodWriter
from tests.api_requests import ApiRequests
from tests.queue_world import UNSCHEDULABLE, QueueWorld

TWO = "queues: [{name: a}, {name: b}]"


class Running(ApiRequests):
    """A controller on a world that takes its patches as an API server does."""

    def __init__(self, config: str = TWO) -> None:
        super().__init__()
        self.world = QueueWorld(config)
        self.world.node("n1", (16, 16), cpu="100000", memory="100000Gi")
        self.events: list[tuple[str, str]] = []
        self.patches: dict[str, int] = {}
        self.refuses: KubeApiError = Forbidden("denied by policy x")
        self.leads = self.has_budget = True
        writer = PodWriter(self, lambda: self.leads, 1.0)
        self.controller = Controller(self.world.queue, writer, self, lambda: self.world.now, lambda: True)

    def answer(self, verb: str, path: str, body: Any) -> Any:
        name = path.rpartition("/")[2]
        if verb == "get":
            return self.world.objects[f"uid-{name}"]
        if verb == "post":
            if self.has_budget:
                raise BudgetRefused("budget keeps it")
            return {}
        if body[-1]["op"] == "add" and "requeued" in str(body[-1]):
            if name.startswith("kept"):
                raise self.refuses
            self.world.requeue(f"uid-{name}")
            return {}
        assert any(step["op"] == "remove" for step in body)
        self.patches[name] = self.patches.get(name, 0) + 1
        if name.startswith("bad"):
            raise self.refuses
        self.world.objects[f"uid-{name}"]["metadata"]["annotations"].pop(POD_REQUEUED, None)
        self.world.change(f"uid-{name}", spec={"schedulingGates": []})
        return {}

    def event(self, ref: Any, type_: str, reason: str, message: str) -> None:
        self.events.append((ref.name, f"{type_} {reason} {message}"))

    async def pass_time(self, seconds: float = 2.0) -> None:
        """Let some time go by, and everything be decided and said."""
        self.world.now += seconds
        self.controller.record_change()
        for _ in range(50):
            await asyncio.sleep(0)

    def told(self, name: str) -> list[str]:
        return [text for who, text in self.events if who == name]

    def is_released(self, name: str) -> bool:
        return not self.world.objects[f"uid-{name}"]["spec"]["schedulingGates"]


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    made = Running()
    task = asyncio.create_task(made.controller.run())
    yield made
    task.cancel()


async def test_a_stage_that_does_not_end_is_told_with_the_pods_that_hold_it_up(running: Running) -> None:
    """First they run, then one has failed and nothing is made in its place."""
    world = running.world
    for name in ("map-0", "map-1"):
        world.pod(name, data="d", job="j")
    world.pod("reduce", job="j")
    world.pod("other")
    await running.pass_time()
    world.bind(*(f"uid-{name}" for name in ("map-0", "map-1")))
    (told,) = running.told("reduce")
    assert told.startswith("Normal Waiting FirstStage: its job waits for 2 unfinished pods with data")
    assert "default/map-0" in told
    assert running.is_released("other")
    world.change("uid-map-1", status={"phase": "Failed"})
    world.change("uid-map-0", status={"phase": "Succeeded"})
    await running.pass_time()
    assert len(running.told("reduce")) == 1, "not so soon again"
    await running.pass_time(AGAIN_S)
    told = running.told("reduce")[-1]
    assert told.endswith(
        "1 unfinished pod with data, its first stage: default/map-1 (failed: it counts until it is deleted)"
    )
    await running.pass_time(AGAIN_S)
    assert len(running.told("reduce")) == 2, "nothing new"
    world.delete("uid-map-1")
    world.pod("map-2", data="d", job="j")
    await running.pass_time()
    world.bind("uid-map-2")
    assert not running.is_released("reduce")
    world.change("uid-map-2", status={"phase": "Succeeded"})
    await running.pass_time()
    assert running.is_released("reduce")


async def test_of_many_pods_that_hold_a_stage_up_some_are_named_the_worst_first(running: Running) -> None:
    world = running.world
    world.pod("refused", 1, data="d", job="j", queue="a", annotations={"gpupack.io/node-policy": "none"})
    for number in range(5):
        world.pod(f"map-{number}", 17, data="d", job="j")
    world.pod("reduce", job="j")
    await running.pass_time()
    (told,) = running.told("reduce")
    assert (
        "6 unfinished pods with data, its first stage: default/refused (refused), default/map-0 (waits)"
        in told
    )
    assert told.endswith("and 3 more")


async def test_a_gang_whose_pods_disagree_is_told_and_others_go_on(running: Running) -> None:
    world = running.world
    world.pod("g0", gang="g", size=2)
    world.pod("g1", gang="g", size=3)
    world.pod("q0", gang="h", size=2, queue="a")
    world.pod("q1", gang="h", size=2, queue="b")
    world.pod("other")
    await running.pass_time()
    said = "Warning Waiting GangIncomplete: its pods disagree on gpupack.io/"
    for name in ("g0", "g1"):
        assert running.told(name) == [f"{said}gang-size: 2, 3; allowed: one"]
    for name in ("q0", "q1"):
        assert running.told(name) == [f"{said}queue-name: a, b; allowed: one"]
    assert running.is_released("other")
    world.change("uid-q1", metadata={"labels": {"gpupack.io/queue-name": "a"}})
    await running.pass_time()
    assert running.is_released("q0")
    assert running.is_released("q1")


async def test_pods_of_a_deleted_queue_are_told_and_go_on_by_another_queue_or_when_it_is_back(
    running: Running,
) -> None:
    """What runs is counted all the time."""
    world = running.world
    world.pod("runs", 16, queue="b")
    await running.pass_time()
    world.bind("uid-runs")
    for name in ("moves", "stays"):
        world.pod(name, 16, queue="b", created=int(name == "stays"))
    world.configure("queues: [{name: a}]")
    await running.pass_time()
    refused = 'Warning Waiting Refused: queue "b" does not exist; allowed: a'
    assert running.told("moves") == running.told("stays") == [refused]
    (gone,) = [each for each in status.report_queues(world.queue, 0) if each.name == "b"]
    assert (gone.stop, gone.used, gone.waiting) == ("not configured", 16, 2)
    world.change("uid-moves", metadata={"labels": {"gpupack.io/queue-name": "a"}})
    await running.pass_time()
    assert running.is_released("moves")
    world.delete("uid-runs")
    await running.pass_time()
    assert not running.is_released("stays")
    world.configure(TWO)
    await running.pass_time()
    assert running.is_released("stays")


async def test_another_fault_of_a_pod_is_another_event(running: Running) -> None:
    world = running.world
    world.pod("p", gates=("gpupack.io/queue", "example.com/hold"))
    await running.pass_time()
    world.change("uid-p", metadata={"labels": {"gpupack.io/queue-name": "c"}})
    await running.pass_time()
    assert running.told("p") == [
        "Warning Waiting Refused: it waits for the scheduling gates example.com/hold",
        'Warning Waiting Refused: queue "c" does not exist; allowed: a, b',
    ]


@pytest.mark.parametrize("refuses", [Forbidden("denied by policy x"), Invalid("denied by policy x")])
async def test_pods_that_the_api_server_refuses_hold_up_nobody(
    running: Running, refuses: KubeApiError
) -> None:
    """They are told its words once, and tried again later and later."""
    running.refuses = refuses
    bad = [f"bad{at}" for at in range(CONNECTIONS)]
    for name in bad:
        running.world.pod(name)
    await running.pass_time()
    running.world.pod("good")
    await running.pass_time()
    assert running.is_released("good")
    for _ in range(60):
        await running.pass_time()
    for name in bad:
        assert 4 <= running.patches[name] <= 8
        told = [text for text in running.told(name) if "Refused" in text]
        refused = "Refused: the API server refuses its admission: denied by policy x"
        assert set(told) == {f"Warning Waiting {refused}"}
        assert not [text for text in running.told(name) if "not bound within" in text]


async def test_a_pod_that_cannot_be_removed_says_so_and_is_asked_again(running: Running) -> None:
    running.world.pod("p")
    await running.pass_time()
    running.world.bind("uid-p")
    running.world.configure("queues: [{name: a, stopPolicy: HoldAndDrain}]")
    for _ in range(10):
        await running.pass_time()
    told = [text for text in running.told("p") if "Admitted" not in text]
    refused = "queue a is drained, but the API server refuses to remove it: budget keeps it"
    assert told == [f"Warning NotRemoved {refused}"] * 3


@pytest.mark.parametrize("requeued", [False, True])
async def test_a_pod_that_names_another_queue_before_its_admission_is_sent(requeued: bool) -> None:
    """Writes wait for their turn; one that was seen to be for another queue by then is not sent."""

    class Relabelling(Running):
        def answer(self, verb: str, path: str, body: Any) -> Any:
            if path.endswith("/first"):
                self.world.change("uid-p", metadata={"labels": {QUEUE_NAME: "b"}})
            return super().answer(verb, path, body)

    running = Relabelling()
    task = asyncio.create_task(running.controller.run())
    running.world.pod("p", 1, created=2, gates=() if requeued else (QUEUE_GATE,))
    if requeued:
        running.world.requeue("uid-p")
    running.world.pod("first", 1, created=1)
    for _ in range(4):
        await running.pass_time()
    told = [text for text in running.told("p") if "Admitted" in text]
    assert [text.partition(" for ")[0] for text in told] == ["Normal Admitted admitted from queue b"]
    assert running.world.queue.queued_pods["uid-p"].charged_queue == "b"
    task.cancel()


async def test_a_pod_that_is_refused_and_then_removed_counts_once_as_taken_back() -> None:
    """Batch mode tells it twice: at once that others have its room, later that it is removed."""
    running = Running("mode: batch\nqueues: [{name: a}]")
    task = asyncio.create_task(running.controller.run())
    uid = running.world.pod("p", 16)
    running.world.change(uid, metadata={"ownerReferences": [{"uid": "set", "controller": True}]})
    await running.pass_time()
    failed = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]
    running.world.change(uid, status={"conditions": failed})
    for _ in range(3):
        await running.pass_time(70)
    assert [text.partition(" ")[2].partition(" ")[0] for text in running.told("p")] == [
        "Admitted",
        "Requeued",
        "NotRemoved",
        "NotRemoved",
    ]
    running.has_budget = False
    await running.pass_time(70)
    told = [text for text in running.told("p") if "Requeued" in text]
    assert [text.rpartition(": ")[2] for text in told] == [
        "its room is given to others",
        "it is removed and waits again",
    ]
    assert running.controller.counts.requeued == {"a": 1}
    task.cancel()


@pytest.mark.parametrize(
    ("launch", "order"), [("free-first", ["reduce", "map"]), ("fifo", ["map", "reduce"])]
)
async def test_pods_are_released_in_the_order_of_launch_and_told_which_case_it_was(
    launch: str, order: list[str]
) -> None:
    """Those that read no data finish jobs, so they start first unless the configuration says otherwise."""
    running = Running(
        f"{TWO}\nslots: {{per: node, local: {{count: 2}}, free: {{count: 0}}}}\nlaunchOrder: {launch}"
    )
    running.world.node("n1", (16, 16), labels={"data.gpupack.io/d": ""})
    task = asyncio.create_task(running.controller.run())
    running.world.pod("map", created=1, data="d")
    running.world.pod("reduce", created=2)
    await running.pass_time()
    assert list(running.patches) == order
    assert "case 1 (" in running.told("map")[0]
    assert "case 3 (" in running.told("reduce")[0]
    task.cancel()


async def test_quotas_over_the_sum_of_the_cluster(running: Running) -> None:
    """Pods are admitted as long as cards take them; who waits then waits for room."""
    world = running.world
    world.configure("queues: [{name: a, nominalQuota: 1000}, {name: b, nominalQuota: 1000}]")
    for number in range(3):
        world.pod(f"p{number}", 16, created=number)
    await running.pass_time()
    assert running.controller.warning == "nominal quotas sum up to 2000 units and the cluster's cards have 32"
    assert [running.is_released(f"p{number}") for number in range(3)] == [True, True, False]
    assert running.told("p2")[0].startswith("Normal Waiting NoRoom: it needs 16 units on one card")


async def test_thousands_of_pods_of_one_tenant_at_once(running: Running) -> None:
    """They wait in their order, and another queue's pod goes before them."""
    world = running.world
    for number in range(3_000):
        world.pod(f"p{number}", 16, created=number % 60)
    world.pod("other", 16, queue="b", created=3599)
    await running.pass_time()
    admitted = {name for name in ("p0", "p60", "other") if running.is_released(name)}
    assert admitted == {"p0", "other"}
    queues = {each.name: each for each in status.report_queues(world.queue, world.now)}
    assert (queues["a"].waiting, queues["b"].waiting) == (2_999, 0)
    for name in ("p0", "other"):
        world.bind(f"uid-{name}")
        world.delete(f"uid-{name}")
    await running.pass_time()
    oldest = sorted(f"uid-p{60 * number}" for number in range(1, 50))[:2]
    assert all(not world.objects[uid]["spec"]["schedulingGates"] for uid in oldest)


def test_a_clock_that_jumps_puts_nobody_who_comes_later_before_those_who_wait() -> None:
    """Forwards and back again: the pod that was dated to next year keeps its place."""
    ages, day = QueueClock(), 86_400.0
    times = [
        ages.get_wait_start_wall(created, now, live=True)
        for created, now in ((1000, 0), (1010, 10), (1000 + 365 * day, 20), (1030, 30), (1000 - day, 40))
    ]
    assert times[:3] == [1000, 1010, 1000 + 365 * day]
    assert times == sorted(times)


def test_news_that_are_late_change_no_order() -> None:
    ages = QueueClock()
    assert ages.get_wait_start_wall(5000, 10, live=True) == 5000
    assert ages.get_wait_start_wall(5000 - TOLERANCE_S + 5, 15, live=True) == 5000 - TOLERANCE_S + 5


def test_pods_that_are_listed_are_in_the_order_of_their_creation() -> None:
    """After a restart their age is all that is known."""
    ages = QueueClock()
    assert [ages.get_wait_start_wall(created, 0, live=False) for created in (10**9, 5, 7)] == [10**9, 5, 7]


def test_the_order_of_a_queue_when_its_pods_were_dated_by_a_clock_that_jumped() -> None:
    """Pods from before the clock went back by a day are not passed by those that come for a day."""
    world = QueueWorld(n1=(16,))
    for number, hour in enumerate((23, 1)):
        world.now = number
        world.pod(f"p{number}", 16, live=True, created=hour * 3600)
    assert world.admitted() == ["p0"]


async def test_the_controller_is_busy_until_what_it_released_is_bound(running: Running) -> None:
    """Its Events wait so long: a batch is admitted sooner than kube-scheduler binds it."""
    world = running.world
    assert not running.controller.is_busy
    uid = world.pod("one")
    await running.pass_time()
    assert running.is_released("one")
    assert running.controller.is_busy
    world.now += BUSY_S
    assert not running.controller.is_busy
    world.bind(uid)
    assert running.controller.is_busy, "one of a batch was bound, the next one may be under way"
    world.now += BUSY_S
    assert not running.controller.is_busy


async def test_a_controller_that_stands_by_forgets_what_no_pod_needs_any_more() -> None:
    world = QueueWorld(TWO)
    api: Any = Running()
    for number in range(400):
        world.delete(world.pod(f"p{number}", 1, cpu=f"{number + 1}m"))
    assert len(world.queue._requirement_pool) == 400
    controller = Controller(
        world.queue, PodWriter(api, lambda: True, 1.0), api, lambda: world.now, lambda: False
    )
    running = asyncio.create_task(controller.run())
    controller.record_change()
    for _ in range(50):
        await asyncio.sleep(0)
    running.cancel()
    assert not len(world.queue._requirement_pool)


async def test_a_pod_that_is_requeued_is_told_and_so_is_one_that_cannot_be(running: Running) -> None:
    world = running.world
    uids = [world.pod("back", 16), world.pod("kept", 16)]
    await running.pass_time()
    for uid in uids:
        world.change(uid, status=UNSCHEDULABLE)
    await running.pass_time()
    taken = "Warning Requeued kube-scheduler found no node for it: it waits in its queue again"
    assert taken in running.told("back")
    refused = "but the API server refuses to requeue it: denied by policy x"
    assert running.told("kept")[1:] == [f"Warning NotRequeued kube-scheduler found no node for it, {refused}"]
    assert world.queue.queues["a"].units == 16
    await running.pass_time(15)
    assert world.queue.queued_pods[uids[0]].phase is Phase.ADMITTED, "its turn has come again"


async def test_how_long_it_takes_to_find_that_nobody_else_can_be_admitted_counts_too() -> None:
    """It takes longest where thousands of pods wait for room."""
    running, took = Running(), list[float]()
    world = running.world
    for name in ("p0", "p1"):
        world.pod(name, 16)
    world.pod("large", 16, created=9)
    writer = PodWriter(running, lambda: True, 1.0)
    controller = Controller(world.queue, writer, running, lambda: world.now, lambda: True, took.append)
    task = asyncio.create_task(controller.run())
    controller.record_change()
    for _ in range(50):
        await asyncio.sleep(0)
    task.cancel()
    assert len(took) == 3


@pytest.mark.parametrize(("config", "verb"), [(TWO, "patch"), (f"mode: batch\n{TWO}", "post")])
async def test_a_pod_that_is_bound_before_its_requeue_is_written_stays(config: str, verb: str) -> None:
    """Writes wait for their turn: it was to be marked, or to be removed, because it had no node."""

    class Binding(Running):
        def answer(self, verb: str, path: str, body: Any) -> Any:
            if "/p0" in path and "uid-p1" in self.world.objects and self.world.now > 120:
                self.world.bind_to("uid-p1", "n1")
            return super().answer(verb, path, body)

    running = Binding(config)
    task = asyncio.create_task(running.controller.run())
    for name in ("p0", "p1"):
        running.world.pod(name, 4, metadata={"ownerReferences": [{"uid": "set", "controller": True}]})
    await running.pass_time()
    running.asked.clear()
    await running.pass_time(121)
    assert [(each, "/p1" in path) for each, path in running.asked] == [(verb, False)]
    task.cancel()


async def test_a_node_whose_cards_were_taken_before_the_admission_is_sent_is_not_named() -> None:
    """The pod would be bound to that node for good, and wait for it however much room others have."""

    class Filling(Running):
        def answer(self, verb: str, path: str, body: Any) -> Any:
            if path.endswith("/first"):
                self.world.node("n1", (16, 16), (16, 16), cpu="100000", memory="100000Gi")
                self.world.node("n2", (16, 16))
            return super().answer(verb, path, body)

    running = Filling(f"mode: batch\n{TWO}")
    task = asyncio.create_task(running.controller.run())
    running.world.pod("first", 16, created=1)
    running.world.pod("p", 16, created=2)
    for _ in range(3):
        await running.pass_time()
    nodes = [
        str(body) for (_, path), body in zip(running.asked, running.bodies, strict=True) if "/p" in path[-2:]
    ]
    assert ["n2" in text for text in nodes] == [True]
    task.cancel()
