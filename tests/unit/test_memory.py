"""What containers use: from the driver's own count, else from processes; and who is told of over-use."""

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from allocator.ledger import Pod as LedgerPod
from allocator.request import ContainerRequest, PodRequest
from deviceplugin.allocation.objects import PodObject
from deviceplugin.container_memory_metrics import ContainerMemoryMetrics
from deviceplugin.gpus.api.memory_limits import Enforcement, LimitSupport
from deviceplugin.gpus.api.source import GpuProcess, GpuSample
from deviceplugin.host.cgroups import ProcessPlace
from deviceplugin.metrics import SLICE, Metrics
from deviceplugin.monitoring.container_use import NOT_YET, ContainerUse, ContainerUseReader
from deviceplugin.monitoring.overuse import OverUseWatcher
from deviceplugin.publishing.published_use import PublishedUse
from kubeapi.errors import BudgetRefused, Conflict
from kubeapi.objects import (
    MIRROR_ANNOTATION,
    ContainerState,
    ContainerStateTerminated,
    ContainerStatus,
    ObjectMeta,
    PodStatus,
)
from tests.limits_world import GIB, OTHER, UID, LimitsWorld, identifier, world
from tests.waiting import until

__all__ = ["world"]


class View:
    """The part of a PodView that is needed."""

    def __init__(self) -> None:
        self.pods: dict[str, PodObject] = {}

    def find_pod(self, uid: str) -> PodObject | None:
        return self.pods.get(uid)


class Node:
    """What the driver measures of `processes`, by (card, pid): UID, letter of the container, MiB."""

    def __init__(self, world: LimitsWorld) -> None:
        self.world = world
        self.view = View()
        self.processes: dict[tuple[str, int], tuple[str, str, int | None]] = {}
        self.busy: dict[int, int] = {}
        self.told_apart = True
        self.unknown: set[int] = set()
        self.now_s = self.sampled_s = time.monotonic()
        self.memory = ContainerUseReader(
            world.granted_memory,
            world.enforcement,
            world.enforcer,
            self.view,  # type: ignore[arg-type]
            self,
            lambda: self.now_s,
        )

    @property
    def samples(self) -> list[GpuSample]:
        def on(card: str) -> tuple[GpuProcess, ...]:
            found = self.processes.items()
            return tuple(
                GpuProcess(pid, mib, self.busy.get(pid)) for (uuid, pid), (_, _, mib) in found if uuid == card
            )

        return [GpuSample(card, 0, on(card) if self.told_apart else None) for card in ("c0", "c1")]

    @property
    def places(self) -> dict[int, ProcessPlace | None]:
        return {
            pid: ProcessPlace(uid, identifier(letter) if letter else "") if uid else None
            for (_, pid), (uid, letter, _) in self.processes.items()
            if pid not in self.unknown
        }

    def runs(self, uid: str, names: dict[str, str], ended: frozenset[str] = frozenset()) -> None:
        statuses = [
            ContainerStatus(
                name,
                identifier(letter),
                ContainerState(ContainerStateTerminated() if name in ended else None),
            )
            for letter, name in names.items()
        ]
        metadata = ObjectMeta("web", "default", uid)
        self.view.pods[uid] = PodObject(metadata, status=PodStatus(container_statuses=statuses))

    def used(self) -> dict[tuple[str, str, str], int | None]:
        return {(row.uid, row.container, row.uuid): row.used_mib for row in self.memory.read_rows()}


@pytest.fixture
def node(world: LimitsWorld) -> Node:
    return Node(world)


async def test_processes_are_told_apart_by_their_containers(world: LimitsWorld, node: Node) -> None:
    world.give(UID, "main", range(3))
    world.give(UID, "side", range(3, 4))
    world.give(OTHER, "main", range(4, 6))
    node.runs(UID, {"a": "main", "b": "side"})
    node.processes = {
        ("c0", 1): (UID, "a", 100),
        ("c0", 2): (UID, "a", 200),
        ("c0", 3): (UID, "b", 50),
        ("c0", 4): (OTHER, "c", 70),
        ("c0", 5): ("", "", 9000),
        ("c1", 1): (UID, "a", 1),
    }
    assert node.used() == {(UID, "main", "c0"): 300, (UID, "side", "c0"): 50, (OTHER, "main", "c0"): 70}
    (other, main, side) = node.memory.read_rows()
    assert (other.pod, main.namespace, main.pod, side.promised_mib) == ("", "default", "web", GIB)
    assert (main.limit_mib, main.enforcement) == (None, Enforcement.ACCOUNTED)


async def test_what_compute_a_container_asks_for_and_uses(world: LimitsWorld, node: Node) -> None:
    world.give(UID, "main", range(3))
    world.give(UID, "side", range(3, 4))
    containers = ContainerRequest("main", 3, "main", compute=30), ContainerRequest("side", 1, "main")
    world.account.ledger.apply_pod(LedgerPod(UID, "default", "web", PodRequest(containers)), 1.0)
    node.runs(UID, {"a": "main", "b": "side"})
    node.processes = {("c0", 1): (UID, "a", 100), ("c0", 2): (UID, "a", 200), ("c0", 3): (UID, "b", 50)}
    node.busy = {1: 20, 2: 15}
    rows = node.memory.read_rows()
    assert [(row.container, row.compute, row.used_compute) for row in rows] == [
        ("main", 30, 35),
        ("side", 0, None),
    ]
    metrics = ContainerMemoryMetrics(lambda: rows, lambda _: False, dict)
    lines = generate_latest(metrics).decode().splitlines()
    told = [line for line in lines if line.startswith("gpupack_container_compute")]
    assert [(line.partition("{")[0], line.rpartition(" ")[2]) for line in told] == [
        ("gpupack_container_compute_percent", "30.0"),
        ("gpupack_container_compute_limited", "0.0"),
        ("gpupack_container_compute_used_percent", "35.0"),
    ]
    node.busy = {1: 80, 2: 70}
    assert node.memory.read_rows()[0].used_compute == 100, "MPS runs both at the same time"


async def test_use_that_nobody_can_tell_is_not_zero(world: LimitsWorld, node: Node) -> None:
    world.give(UID, "main", range(3))
    world.give(UID, "side", range(3, 4))
    # A container that the pod's status does not name yet may be either.
    node.processes = {("c0", 1): (UID, "a", 100)}
    assert set(node.used().values()) == {None}
    node.runs(UID, {"a": "main"})
    assert node.used()[UID, "main", "c0"] == 100
    node.processes["c0", 2] = (UID, "a", None)
    assert node.used()[UID, "main", "c0"] is None
    node.processes = {("c0", 3): ("", "", 9000)}
    assert node.used()[UID, "main", "c0"] == 0, "it is known to be of no pod"
    node.unknown = {3}
    assert node.used()[UID, "main", "c0"] is None, "it may be anybody's"
    node.told_apart = False
    assert set(node.used().values()) == {None}


async def test_an_init_container_that_ended_has_nothing_any_more(world: LimitsWorld, node: Node) -> None:
    world.give(UID, "setup", range(3))
    world.give(UID, "main", range(3))
    node.runs(UID, {"a": "setup", "b": "main"}, frozenset({"setup"}))
    assert set(node.used()) == {(UID, "main", "c0")}


async def test_the_limits_own_count_comes_first(world: LimitsWorld, node: Node) -> None:
    await world.start()
    world.give(UID, "main", range(3))
    cgroup = world.container("a")
    await world.limited(cgroup, 3)
    world.name("a", "main")
    node.processes = {("c0", 1): (UID, "a", 100)}
    world.driver.use("c0", 1, 700, cgroup)
    world.account.notify_subscribers()
    await world.enforcer._check_limits()
    await until(lambda: node.used() == {(UID, "main", "c0"): 700})
    (row,) = node.memory.read_rows()
    assert (row.limit_mib, row.enforcement, row.problem) == (3 * GIB, Enforcement.DRIVER, "")


async def test_what_was_measured_long_ago_is_missing(world: LimitsWorld, node: Node) -> None:
    world.give(UID, "main", range(3))
    node.runs(UID, {"a": "main"})
    node.processes = {("c0", 1): (UID, "a", 9000)}
    (now,) = node.memory.read_rows()
    assert (now.used_mib, now.measured_s) == (9000, node.sampled_s)
    node.now_s += 16.0
    (old,) = node.memory.read_rows()
    assert (old.used_mib, old.measured_s) == (None, None)


async def test_a_limit_that_was_read_long_ago_tells_no_use(world: LimitsWorld, node: Node) -> None:
    await world.start()
    world.give(UID, "main", range(3))
    cgroup = world.container("a")
    world.driver.use("c0", 1, 700, cgroup)
    await world.limited(cgroup, 3)
    await world.enforcer._check_limits()
    await until(lambda: node.memory.read_rows()[0].used_mib == 700)
    node.now_s += 60.0
    (old,) = node.memory.read_rows()
    assert (old.used_mib, old.limit_mib) == (None, 3 * GIB)


async def test_a_limit_that_is_not_in_force_is_accounted_with_the_reason(
    world: LimitsWorld, node: Node
) -> None:
    world.driver.least_mib = 4 * GIB
    await world.start()
    world.give(UID, "main", range(3))
    world.container("a")
    await until(lambda: world.enforcer.faults)
    (row,) = node.memory.read_rows()
    assert (row.limit_mib, row.enforcement) == (None, Enforcement.ACCOUNTED)
    assert "allowed: 4096 MiB or more" in row.problem


async def test_a_container_without_a_limit_so_far_is_accounted(world: LimitsWorld, node: Node) -> None:
    world.give(UID, "main", range(3))
    await world.supports.start()
    world.account.read_checkpoint()
    (before,) = node.memory.read_rows()
    assert (before.limit_mib, before.enforcement) == (None, Enforcement.ACCOUNTED)
    assert before.problem == "no limit was read back yet"


# Over-use


def row(used_mib: int | None, uid: str = UID, promised_mib: int = 1000) -> ContainerUse:
    return ContainerUse(
        uid, "default", "web", "main", "c0", promised_mib, used_mib, None, Enforcement.ACCOUNTED
    )


class Watch:
    """Over-use with a clock of its own; `refusal` is what evictions end with."""

    def __init__(self, *, evict_after_s: float = 0.0, static: bool = False) -> None:
        self.now_s = 0.0
        self.events: list[tuple[str, str, str]] = []
        self.evicted: list[tuple[str, str, str]] = []
        self.refusal: Exception | None = None
        marks = {MIRROR_ANNOTATION: "digest"} if static else {}
        self.names = {
            uid: PodObject(ObjectMeta("web", "default", f"api-{uid}", annotations=marks))
            for uid in (UID, OTHER)
        }
        self.over_use = OverUseWatcher(
            self.names.get,
            lambda ref, kind, reason, said: self.events.append((ref.uid, reason, said)),
            self.evict,
            tolerance_mib=100,
            evict_after_s=evict_after_s,
            clock=lambda: self.now_s,
        )

    async def evict(self, namespace: str, name: str, uid: str) -> None:
        self.evicted.append((namespace, name, uid))
        if self.refusal is not None:
            raise self.refusal

    async def look(self, *rows: ContainerUse, after_s: float = 5.0) -> None:
        now_s = self.now_s + after_s
        measured = [row if row.used_mib is None else replace(row, measured_s=now_s) for row in rows]
        await self.look_at(*measured, after_s=after_s)

    async def look_at(self, *rows: ContainerUse, after_s: float = 5.0) -> None:
        self.now_s += after_s
        await self.over_use.check_rows(rows)


async def test_over_use_is_told_once_and_its_end_too() -> None:
    watch = Watch()
    for used_mib in (1000, 1100, 1101, 1500, None, 1200):
        await watch.look(row(used_mib), row(50, OTHER))
    assert [event[:2] for event in watch.events] == [(f"api-{UID}", "GPUMemoryOverUse")]
    assert "uses 1101 MiB of card c0, it was given 1000; up to 100 more" in watch.events[0][2]
    await watch.look(row(1100))
    assert [event[1] for event in watch.events] == ["GPUMemoryOverUse", "GPUMemoryOverUseEnded"]
    await watch.look(row(2000))
    assert (watch.over_use.found, watch.evicted) == (2, [])


async def test_a_pod_is_evicted_after_its_grace_once_and_by_its_uid() -> None:
    watch = Watch(evict_after_s=30.0)
    for _ in range(6):
        await watch.look(row(2000), row(50, OTHER))
    assert watch.evicted == []
    for _ in range(6):
        await watch.look(row(2000), row(50, OTHER))
    assert watch.evicted == [("default", "web", f"api-{UID}")]
    assert watch.over_use.evictions == 1
    assert [event[1] for event in watch.events] == ["GPUMemoryOverUse", "GPUMemoryEvicted"]


async def test_a_pod_that_is_back_in_time_is_not_evicted() -> None:
    watch = Watch(evict_after_s=30.0)
    for _ in range(10):
        await watch.look(row(2000), after_s=20.0)
        await watch.look(row(1000), after_s=20.0)
    assert watch.evicted == []


async def test_an_old_measurement_evicts_nobody() -> None:
    watch = Watch(evict_after_s=30.0)
    measured = replace(row(2000), measured_s=0.0)
    for _ in range(20):
        await watch.look_at(measured)
    assert watch.evicted == []
    await watch.look_at(replace(measured, measured_s=30.0))
    assert watch.evicted == [("default", "web", f"api-{UID}")]


async def test_the_grace_begins_again_where_nobody_could_measure() -> None:
    watch = Watch(evict_after_s=30.0)
    await watch.look(row(2000))
    for _ in range(12):
        await watch.look_at(row(None))
    for _ in range(6):
        await watch.look(row(2000))
    assert watch.evicted == []
    await watch.look(row(2000))
    assert watch.evicted == [("default", "web", f"api-{UID}")]
    assert [event[1] for event in watch.events] == ["GPUMemoryOverUse", "GPUMemoryEvicted"], "told once"


async def test_an_eviction_that_is_refused_is_tried_again_but_never_another_pod(
    capsys: pytest.CaptureFixture[str],
) -> None:
    watch = Watch(evict_after_s=1.0)
    watch.refusal = BudgetRefused("a budget", retry_after_s=10.0)
    await watch.look(row(2000))
    for _ in range(4):
        await watch.look(row(2000), after_s=2.0)
    assert (len(watch.evicted), watch.over_use.errors) == (1, 1)
    await watch.look(row(2000), after_s=1000.0)
    assert watch.over_use.errors == 2
    said = capsys.readouterr().out
    assert [said.count(word) for word in ("warning", "pod not evicted")] == [3, 2], (
        "each refusal is a warning"
    )
    watch.refusal = Conflict("the pod has been modified", cause="stale")
    await watch.look(row(2000), after_s=1000.0)
    assert watch.over_use.errors == 3
    watch.refusal = Conflict("another pod", cause="uid")
    await watch.look(row(2000), after_s=1000.0)
    await watch.look(row(2000), after_s=1000.0)
    assert (len(watch.evicted), watch.over_use.evictions) == (4, 0)


@pytest.mark.parametrize("known", [True, False])
async def test_static_and_unknown_pods_are_not_evicted(known: bool) -> None:
    watch = Watch(evict_after_s=1.0, static=True)
    if not known:
        watch.names.clear()
    for _ in range(3):
        await watch.look(row(2000))
    assert watch.evicted == []
    watch.over_use.record_not_limited(UID, "main", "too small")
    assert [event[1] for event in watch.events] == ["GPUMemoryOverUse", "GPUMemoryNotLimited"] * known


def test_metrics_say_what_is_known_and_no_more() -> None:
    watch = Watch()
    rows = [row(2000), row(None, OTHER)]
    held, forbidden = {"c0": Enforcement.DRIVER}, {"c0": False, "c1": True}
    metrics = ContainerMemoryMetrics(
        lambda: rows, watch.over_use.is_over_use, lambda: held, lambda: forbidden
    )
    found = {metric.name: [sample.value for sample in metric.samples] for metric in metrics.collect()}
    mib = 1 << 20
    assert found == {
        "gpupack_container_promised_bytes": [1000 * mib, 1000 * mib],
        "gpupack_container_used_bytes": [2000 * mib],
        "gpupack_container_limit_bytes": [],
        "gpupack_container_over_use_bytes": [1000 * mib, 0],
        "gpupack_container_compute_percent": [],
        "gpupack_container_compute_limited": [],
        "gpupack_container_compute_used_percent": [],
        "gpupack_card_memory_held": [1],
        "gpupack_card_memory_limits_forbidden": [0, 1],
    }


# What is written


def test_only_changes_that_are_worth_a_write_are_told() -> None:
    now_s = [0.0]
    told = PublishedUse(lambda *_: Enforcement.ACCOUNTED, lambda: now_s[0])
    assignment = {"main": (("c0", 1),)}

    def text() -> dict[str, object]:
        (record,) = told.list_records(UID, assignment, dict)["main"].values()
        return {"held": record.held, "used": record.used}

    assert text() == {"held": "accounted", "used": None}
    assert told.apply_use([row(500)])
    assert text() == {"held": "accounted", "used": 500}
    assert not told.apply_use([row(5000)]), "too soon"
    now_s[0] = 100.0
    assert not told.apply_use([row(600)]), "too little"
    assert told.apply_use([row(5000)])
    assert text()["used"] == 5000
    assert not told.apply_use([])


def test_a_limit_that_is_not_in_force_is_told() -> None:
    """What should limit a new container is told at first; later, what does."""
    now_s = [0.0]
    told = PublishedUse(lambda *_: Enforcement.DRIVER, lambda: now_s[0])

    def looks(used_mib: int | None, held: Enforcement, problem: str = "") -> str:
        now_s[0] += 100.0
        told.apply_use([replace(row(used_mib), enforcement=held, problem=problem)])
        (record,) = told.list_records(UID, {"main": (("c0", 1),)}, dict)["main"].values()
        return record.held

    driver, accounted = Enforcement.DRIVER, Enforcement.ACCOUNTED
    told.list_records(UID, {"main": (("c0", 1),)}, dict)
    assert looks(0, accounted, NOT_YET) == "driver", "it gets one as it starts"
    assert looks(10, accounted, NOT_YET) == "accounted"
    assert looks(10, driver) == "driver"
    assert looks(0, accounted, "too small") == "accounted"
    assert looks(None, driver) == "driver"
    assert looks(None, accounted, NOT_YET) == "accounted"


def test_a_container_that_starts_is_told_to_be_limited_also_if_it_was_measured_first() -> None:
    told = PublishedUse(lambda *_: Enforcement.DRIVER, lambda: 100.0)
    for used_mib in (0, 300):
        told.apply_use([replace(row(used_mib), enforcement=Enforcement.ACCOUNTED, problem=NOT_YET)])
        (record,) = told.list_records(UID, {"main": (("c0", 1),)}, dict)["main"].values()
        assert record.held == "driver"


def test_the_compute_of_containers_that_ask_for_some_is_told() -> None:
    now_s = [0.0]
    told = PublishedUse(lambda *_: Enforcement.ACCOUNTED, lambda: now_s[0])

    def looks(
        percent: int, asked: int = 30, by: Enforcement = Enforcement.ACCOUNTED
    ) -> tuple[bool, int | None, str]:
        now_s[0] += 100.0
        use = replace(row(500), compute=asked, used_compute=percent, compute_enforcement=by)
        is_due = told.apply_use([use])
        (record,) = told.list_records(UID, {"main": (("c0", 1),)}, dict)["main"].values()
        return is_due, record.compute, record.compute_held

    held = "accounted"
    assert [looks(percent) for percent in (25, 44, 45)] == [
        (True, 25, held), (False, 25, held), (True, 45, held),
    ]  # fmt: skip
    assert looks(45, by=Enforcement.MPS) == (True, 45, "mps")
    assert looks(99, asked=0) == (True, None, "")


def test_compute_that_rises_and_falls_is_written_as_its_average() -> None:
    """For twenty minutes a container is busy half of the time, in turns of ten seconds."""
    now_s = [0.0]
    told = PublishedUse(lambda *_: Enforcement.ACCOUNTED, lambda: now_s[0])
    written = []
    for look in range(240):
        now_s[0] += 5.0
        if told.apply_use([replace(row(500), compute=30, used_compute=90 * (look // 2 % 2))]):
            (record,) = told.list_records(UID, {"main": (("c0", 1),)}, dict)["main"].values()
            written.append(record.compute)
    assert written[0] == 0, "the first look"
    assert len(written) <= 3, written
    assert 35 <= written[-1] <= 55


def test_what_a_daemon_before_wrote_is_not_written_again() -> None:
    told = PublishedUse(lambda *_: Enforcement.ACCOUNTED, lambda: 0.0)
    before = PublishedUse(lambda *_: Enforcement.ACCOUNTED, lambda: 0.0)
    before.apply_use([row(500)])
    written = before.list_records(UID, {"main": (("c0", 1),)}, dict)
    assert told.list_records(UID, {"main": (("c0", 1),)}, lambda: written) == written
    assert not told.apply_use([row(510)])


def test_cards_that_cannot_are_said_to_be_accounted(tmp_path: Path) -> None:
    world = LimitsWorld(tmp_path)
    world.driver.say(LimitSupport(False, "old"))
    assert world.enforcement.get_enforcement("c0") is Enforcement.ACCOUNTED


async def test_compute_over_use_is_told_once_after_a_minute_and_never_evicts() -> None:
    watch = Watch(evict_after_s=5.0)
    asking = replace(row(10), compute=30, used_compute=41)
    for seconds in (0, 55):
        await watch.look(asking, after_s=seconds)
    await watch.look(replace(asking, used_compute=40), after_s=5)  # within what is tolerated: begins again
    for seconds in (5, 55):
        await watch.look(asking, after_s=seconds)
    assert watch.events == []
    for seconds in (5, 5, 600):
        await watch.look(asking, after_s=seconds)
    assert [event[:2] for event in watch.events] == [(f"api-{UID}", "GPUComputeOverUse")]
    assert "busy for 41 percent of the time, it asked for 30 percent" in watch.events[0][2]
    assert watch.evicted == []


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"compute_enforcement": Enforcement.MPS}, id="MPS limits its multiprocessors"),
        pytest.param({"compute": 0}, id="asks for none"),
        pytest.param({"used_compute": None}, id="not measured"),
    ],
)
async def test_whose_compute_is_not_told(change: dict[str, Any]) -> None:
    watch = Watch()
    for _ in range(3):
        await watch.look(replace(row(10), **({"compute": 30, "used_compute": 99} | change)), after_s=60)
    assert watch.events == []


async def test_metrics_of_many_containers_are_written_in_turns():
    """The same text as in one go, and the event loop turns on the way."""
    row = ContainerUse("u", "ns", 'p"0', "main", "c0", 10, None, 3, Enforcement.DRIVER)
    rows = [replace(row, pod=f"p{number}") for number in range(3 * SLICE)] + [row]
    collector = ContainerMemoryMetrics(lambda: rows, lambda _: False, lambda: {"c0": Enforcement.DRIVER})
    metrics, turns, looked = Metrics(), [], []

    async def look() -> None:
        looked.append(1)

    def turn() -> None:
        turns.append(1)
        asyncio.get_running_loop().call_soon(turn)

    metrics.add_collector(collector, look)
    turn()
    text = await metrics.write_text()
    assert generate_latest(collector) in text
    assert (len(looked), len(turns) > 9) == (1, True)
