"""Patches of the Node and annotations of pods: as many as needed, again when they fail."""

import asyncio
import json

import msgspec
import pytest
from structlog.testing import capture_logs

from allocator.ledger import BookEntry, Ledger
from allocator.names import NODE_HOLDS, POD_ALLOCATION
from deviceplugin.node.account import Account
from deviceplugin.node.inventory import records
from deviceplugin.node.objects import NodeObject
from deviceplugin.node.publisher import Annotator, Publisher
from deviceplugin.node.views import NodeView, PodView, Seat
from kubeapi.errors import Conflict, Forbidden, Invalid, KubeApiError, NotFound, Unreachable
from tests.book_world import FakeBook
from tests.kubelet_world import until
from tests.ledger_world import RESOURCE as GIB
from tests.ledger_world import cards, ids, pod


class FakeApi:
    """One Node; merges patches of its status as the API server does."""

    def __init__(self) -> None:
        self.node = {
            "metadata": {"name": "n1", "annotations": {}},
            "status": {"capacity": {}, "allocatable": {}},
        }
        self.version = 1
        self.failures: list[KubeApiError] = []
        self.patches: list[dict] = []
        self.dropped: set[str] = set()
        self.notes: list[tuple[str, str, str, dict[str, str]]] = []

    def body(self) -> bytes:
        self.node["metadata"]["resourceVersion"] = str(self.version)
        return json.dumps(self.node).encode()

    def decoded(self) -> NodeObject:
        return msgspec.json.decode(self.body(), type=NodeObject)

    async def patch_node_status(self, name: str, body: dict, *, timeout_s: float) -> bytes:
        assert name == "n1"
        if self.failures:
            raise self.failures.pop(0)
        self.patches.append(body)
        self.version += 1
        self.node["metadata"]["annotations"] |= body["metadata"]["annotations"]
        for key in self.dropped:
            self.node["metadata"]["annotations"].pop(key, None)
        for part in ("capacity", "allocatable"):
            merged = self.node["status"][part] | body["status"][part]
            self.node["status"][part] = {key: value for key, value in merged.items() if value is not None}
        return self.body()

    async def annotate_pod(self, namespace, name, uid, annotations, *, timeout_s) -> bytes:
        if self.failures:
            raise self.failures.pop(0)
        self.notes.append((namespace, name, uid, annotations))
        return b"{}"


class Bench:
    """A node with pod `a` on its way."""

    def __init__(self, gap_s: float = 2.0) -> None:
        self.now_s = 100.0
        self.api = FakeApi()
        self.account = Account(Ledger(cards(8, 8)), FakeBook(), GIB, 1024, clock=lambda: self.now_s)
        self.ledger = self.account.ledger
        self.nodes = NodeView(self.account, "n1")
        self.pods = PodView(self.account, GIB, POD_ALLOCATION)
        self.publisher = Publisher(
            self.api,
            self.account,
            self.nodes,
            self.pods,
            node_name="n1",
            unit_mib=1024,
            inventory=lambda: records(self.ledger.cards(), GPUS),
            gap_s=gap_s,
            now_ms=lambda: 50,
        )
        self.nodes.replace([self.api.decoded()], "1")

    def complete(self) -> None:
        self.ledger.pods_synced([], self.ledger.mark(self.now_s))
        self.book()

    def admit(self, *, written: bool = True) -> None:
        self.ledger.pod_changed(pod("a", 3, "c0"), self.now_s)
        self.ledger.allocate(ids("c0", 0, 1, 2), self.now_s)
        if written:
            self.book(a=ids("c0", 0, 1, 2))
            self.ledger.looked(["a"], ["a"], self.ledger.mark(self.now_s))

    def book(self, **held: frozenset[str]) -> None:
        """The kubelet writes its book: IDs by pod."""
        self.ledger.read_book([BookEntry(uid, "main", GIB, ids) for uid, ids in held.items()], self.now_s)

    def end(self, **held: frozenset[str]) -> None:
        """Pod `a` is deleted, its containers and its entry are gone; the book has `held`."""
        self.ledger.pod_gone("a", self.now_s)
        self.book(**held)
        self.ledger.looked(["a"], [], self.ledger.mark(self.now_s))

    def undo(self) -> None:
        """Somebody else writes words."""
        for part in ("capacity", "allocatable"):
            self.api.node["status"][part]["gpupack.io/packed-used-0"] = 5
        self.api.version += 1
        self.nodes.take(self.api.decoded())

    async def until_s(self, end_s: float) -> None:
        """Step whenever a step wants to."""
        while (wait_s := await self.step()) is not None and self.now_s + wait_s <= end_s:
            self.now_s += wait_s
        self.now_s = end_s

    async def step(self) -> float | None:
        return await self.publisher._step()

    def said(self) -> tuple[tuple[int, ...], set[str]]:
        told = self.api.decoded()
        words, holds = told.words(), told.holds()
        assert words is not None
        assert holds is not None
        return words.used, set(holds.uids)

    async def leave(self) -> None:
        """Run until the farewell is said; `run` must end by itself then."""
        running = asyncio.create_task(self.publisher.run())
        await self.publisher.leave()
        await running


class _Gpu:
    schedulable_mib = 8192


GPUS = (_Gpu(), _Gpu())


async def test_nothing_is_said_before_everything_was_read():
    bench = Bench()
    assert await bench.step() is None
    bench.ledger.pods_synced([], bench.ledger.mark(0.0))
    assert await bench.step() is None
    bench.book()
    assert await bench.step() == 0.0
    assert bench.said() == ((0, 0), set())
    assert await bench.step() is None
    assert bench.publisher.patches == 1
    assert bench.publisher.revision == 51


async def test_nothing_is_said_where_there_is_no_node():
    bench = Bench()
    bench.complete()
    bench.nodes.replace([], "2")
    assert await bench.step() is None
    assert bench.api.patches == []


async def test_a_gain_waits_for_its_turn_and_comes_with_its_pod():
    bench = Bench()
    bench.complete()
    await bench.step()
    bench.now_s += 0.5
    bench.admit(written=False)
    assert await bench.step() == 1.5
    bench.now_s += 1.2
    bench.book(a=ids("c0", 0, 1, 2))
    assert await bench.step() == pytest.approx(0.3)
    bench.now_s += 0.3
    assert await bench.step() == 0.0
    assert bench.said() == ((3, 0), {"a"})
    holds = bench.api.decoded().holds()
    assert holds is not None
    assert holds.units == {"a": {0: 3}}
    assert bench.publisher.patches == 2


async def test_a_gain_whose_pod_the_book_does_not_show_waits_a_second():
    bench = Bench()
    bench.complete()
    await bench.step()
    bench.now_s += 60
    bench.admit(written=False)
    assert await bench.step() == 1.0
    bench.now_s += 1
    assert await bench.step() == 0.0
    assert bench.said()[0] == (3, 0)


async def test_a_release_goes_out_at_once():
    bench = Bench()
    bench.complete()
    bench.admit()
    await bench.step()
    assert bench.said() == ((3, 0), {"a"})
    bench.end()
    assert await bench.step() == 0.0
    assert bench.said() == ((0, 0), set())


async def test_a_pod_that_vanished_unheld_is_told_though_the_words_are_the_same():
    bench = Bench()
    bench.complete()
    await bench.step()
    bench.pods.seen = bench.pods.owed = 77
    assert await bench.step() == 0.0
    assert json.loads(bench.api.node["metadata"]["annotations"][NODE_HOLDS])["seen"] == "77"
    assert await bench.step() is None


async def test_after_an_etcd_restore_seen_goes_back_on_the_node_too():
    bench = Bench()
    bench.complete()
    bench.pods.seen = 501
    await bench.step()
    bench.pods.seen = 50
    assert await bench.step() == 0.0
    assert json.loads(bench.api.node["metadata"]["annotations"][NODE_HOLDS])["seen"] == "50"
    assert await bench.step() is None


async def test_words_of_another_are_overwritten_and_revisions_grow():
    bench = Bench()
    bench.complete()
    await bench.step()
    for part in ("capacity", "allocatable"):
        bench.api.node["status"][part]["gpupack.io/packed-revision"] = 900
        bench.api.node["status"][part]["gpupack.io/packed-used-0"] = 5
    bench.api.version += 1
    bench.nodes.take(bench.api.decoded())
    assert await bench.step() == 0.0
    assert bench.publisher.revision == 901
    assert bench.said() == ((0, 0), set())


async def test_a_revision_at_the_end_of_its_word_starts_again_from_the_clock():
    bench = Bench()
    bench.complete()
    await bench.step()
    for part in ("capacity", "allocatable"):
        bench.api.node["status"][part]["gpupack.io/packed-revision"] = (1 << 53) - 1
    bench.api.version += 1
    bench.nodes.take(bench.api.decoded())
    assert await bench.step() == 0.0
    assert bench.publisher.revision == 51
    assert bench.said() == ((0, 0), set())
    assert await bench.step() is None


async def test_a_node_that_does_not_keep_the_holds_is_patched_ever_more_seldom():
    bench = Bench()
    bench.complete()
    bench.api.dropped = {NODE_HOLDS}
    with capture_logs() as logs:
        await bench.until_s(bench.now_s + 60)
    # After 0.1 to 0.2 s, 0.2 to 0.4 s and so on, at last after 7.5 to 15 s.
    assert 10 <= bench.publisher.patches <= 17
    warnings = [line for line in logs if line["log_level"] == "warning"]
    assert [line["differs"] for line in warnings] == [[NODE_HOLDS]]
    bench.api.dropped = set()
    await bench.until_s(bench.now_s + 15)
    assert bench.said() == ((0, 0), set())
    assert await bench.step() is None


async def test_a_release_goes_out_at_once_to_a_node_that_does_not_keep_the_holds():
    bench = Bench()
    bench.complete()
    bench.api.dropped = {NODE_HOLDS}
    bench.admit()
    await bench.until_s(bench.now_s + 60)
    assert await bench.step() != 0.0
    bench.end()
    assert await bench.step() == 0.0
    assert bench.api.decoded().words().used == (0, 0)
    assert await bench.step() != 0.0


async def test_words_that_another_writes_again_and_again_are_overwritten_ever_more_seldom():
    bench = Bench()
    bench.complete()
    await bench.step()
    began_s, end_s = bench.now_s, bench.now_s + 60
    with capture_logs() as logs:
        while bench.now_s < end_s:
            bench.undo()
            await bench.until_s(min(end_s, bench.now_s + 0.05))
    assert bench.publisher.patches <= 17
    assert bench.now_s - began_s == pytest.approx(60)
    warnings = [line for line in logs if line["log_level"] == "warning"]
    assert [line["differs"] for line in warnings] == [["gpupack.io/packed-*"]]


async def test_words_that_another_writes_seldom_are_overwritten_at_once():
    bench = Bench()
    bench.complete()
    await bench.step()
    for _ in range(5):
        bench.now_s += 61
        bench.undo()
        assert await bench.step() == 0.0
        assert bench.said() == ((0, 0), set())


async def test_a_node_that_comes_again_is_patched_at_once_and_nobody_undid_it():
    bench = Bench()
    bench.complete()
    await bench.step()
    with capture_logs() as logs:
        for _ in range(5):
            bench.nodes.replace([], "2")
            assert await bench.step() is None
            bench.api.node["status"] = {"capacity": {}, "allocatable": {}}
            bench.api.version += 1
            bench.nodes.replace([bench.api.decoded()], "3")
            assert await bench.step() == 0.0
    assert [line for line in logs if "differs" in line] == []


async def test_a_failed_patch_is_tried_again():
    bench = Bench()
    bench.complete()
    bench.publisher._backoff._base_s = 0.001
    bench.api.failures = [Unreachable("away"), NotFound("no node"), Forbidden("no right")]
    for _ in range(3):
        assert await bench.step() == 0.0
    assert (bench.publisher.errors, bench.publisher.patches) == (3, 0)
    await bench.step()
    assert bench.said() == ((0, 0), set())


async def test_the_loop_follows_the_ledger():
    bench = Bench(gap_s=0.0)
    bench.complete()
    task = asyncio.create_task(bench.publisher.run())
    for _ in range(1000):
        if bench.api.patches:
            break
        await asyncio.sleep(0.001)
    bench.admit()
    bench.account.changed()
    for _ in range(1000):
        if len(bench.api.patches) > 1:
            break
        await asyncio.sleep(0.001)
    assert bench.said() == ((3, 0), {"a"})
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def annotated(bench: Bench, annotator: Annotator) -> list:
    await annotator._all()
    return [(name, json.loads(notes[POD_ALLOCATION])) for _, name, _, notes in bench.api.notes]


async def test_an_allocation_is_written_once():
    bench = Bench()
    annotator = Annotator(bench.api, bench.account, bench.pods)
    bench.complete()
    bench.admit()
    assert await annotated(bench, annotator) == []
    bench.pods.seats["a"] = Seat("ns", "pod-a", None)
    told = [("pod-a", {"uid": "a", "containers": {"main": [["c0", 3]]}})]
    assert await annotated(bench, annotator) == told
    assert await annotated(bench, annotator) == told


async def test_an_allocation_that_is_there_already_is_left_alone():
    bench = Bench()
    annotator = Annotator(bench.api, bench.account, bench.pods)
    bench.complete()
    bench.admit()
    bench.pods.seats["a"] = Seat("ns", "pod-a", '{"uid":"a","containers":{"main":[["c0",3]]}}')
    assert await annotated(bench, annotator) == []


async def test_a_copied_allocation_is_overwritten():
    bench = Bench()
    annotator = Annotator(bench.api, bench.account, bench.pods)
    bench.complete()
    bench.admit()
    bench.pods.seats["a"] = Seat("ns", "pod-a", '{"uid":"other","containers":{"main":[["c1",3]]}}')
    assert len(await annotated(bench, annotator)) == 1


def admitted_pair() -> Bench:
    """Pods `a` and `b` run, and no annotation says so yet."""
    bench = Bench()
    bench.complete()
    bench.admit()
    bench.ledger.pod_changed(pod("b", 2, "c1"), bench.now_s)
    bench.book(a=ids("c0", 0, 1, 2), b=ids("c1", 0, 1))
    bench.pods.seats |= {uid: Seat("ns", f"pod-{uid}", None) for uid in "ab"}
    return bench


@pytest.mark.parametrize("failure", [Conflict("another uid", cause="uid"), NotFound("gone")])
async def test_a_pod_that_is_gone_is_not_tried_again(failure):
    bench = Bench()
    annotator = Annotator(bench.api, bench.account, bench.pods)
    bench.complete()
    bench.admit()
    bench.pods.seats["a"] = Seat("ns", "pod-a", None)
    bench.api.failures = [failure]
    assert await annotated(bench, annotator) == []
    bench.now_s += 3600
    assert await annotated(bench, annotator) == []
    assert annotator.errors == 0


@pytest.mark.parametrize(
    "failure",
    [
        Forbidden("webhook denied", status=403),
        Invalid("too long", status=422),
        Conflict("the object has been modified"),
        Conflict("who knows"),
        Unreachable("away"),
    ],
)
async def test_a_refused_annotation_is_tried_again_and_holds_up_no_other(failure):
    bench = admitted_pair()
    annotator = Annotator(bench.api, bench.account, bench.pods)
    bench.api.failures = [failure]
    wait_s = await annotator._all()
    assert [name for _, name, _, _ in bench.api.notes] == ["pod-b"]
    assert annotator.errors == 1
    assert wait_s is not None
    assert 0.5 <= wait_s <= 1.0
    assert await annotator._all() == wait_s
    bench.now_s += 1.0
    assert await annotator._all() is None
    assert [name for _, name, _, _ in bench.api.notes] == ["pod-b", "pod-a"]


async def test_an_annotation_that_is_always_refused_is_tried_ever_more_seldom_with_one_warning():
    bench = Bench()
    annotator = Annotator(bench.api, bench.account, bench.pods)
    bench.complete()
    bench.admit()
    bench.pods.seats["a"] = Seat("ns", "pod-a", None)
    bench.api.failures = [Forbidden("webhook denied", status=403)] * 10
    waits_s = []
    with capture_logs() as logs:
        for _ in range(10):
            waits_s.append(await annotator._all())
            bench.now_s += waits_s[-1]
    assert waits_s[5] >= 16
    assert max(waits_s) <= 60
    assert annotator.errors == 10
    warnings = [line for line in logs if line["log_level"] == "warning"]
    assert [(line["pod"], line["error"]) for line in warnings] == [("ns/pod-a", "webhook denied")]
    assert await annotator._all() is None
    assert len(bench.api.notes) == 1


async def test_a_pod_that_is_gone_is_not_waited_for():
    bench = admitted_pair()
    annotator = Annotator(bench.api, bench.account, bench.pods)
    bench.api.failures = [Forbidden("webhook denied", status=403)]
    assert await annotator._all() is not None
    bench.end(b=ids("c1", 0, 1))
    assert await annotator._all() is None


async def test_the_annotator_wakes_up_for_what_is_due_again(mocker):
    bench = admitted_pair()
    annotator = Annotator(bench.api, bench.account, bench.pods)
    bench.api.failures = [Unreachable("away")]

    def soon(trouble_of):
        def refused(*arguments):
            trouble_of(*arguments)
            annotator._troubles["a"].due_s = bench.now_s

        return refused

    mocker.patch.object(annotator, "_refused", soon(annotator._refused))
    task = asyncio.create_task(annotator.run())
    for _ in range(1000):
        if len(bench.api.notes) > 1:
            break
        await asyncio.sleep(0.001)
    assert annotator.errors == 1
    assert [name for _, name, _, _ in bench.api.notes] == ["pod-b", "pod-a"]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(("news", "waits_s"), [(1, 0.2), (4, 0.8), (10**6, 1.0)])
async def test_allocations_wait_for_a_quiet_moment_but_not_for_ever(mocker, news, waits_s):
    bench = Bench()
    annotator = Annotator(bench.api, bench.account, bench.pods)
    began_s, told = bench.now_s, 1

    async def sleep(seconds: float) -> None:
        nonlocal told
        bench.now_s += seconds
        if told < news:
            told += 1
            bench.account.changed()

    mocker.patch("deviceplugin.node.publisher.asyncio.sleep", sleep)
    bench.account.changed()
    await annotator._quiet()
    assert bench.now_s - began_s == pytest.approx(waits_s)


async def test_an_allocate_gets_its_turn_between_two_annotations(mocker):
    bench = admitted_pair()
    annotator = Annotator(bench.api, bench.account, bench.pods)
    pauses: list[tuple[float, int]] = []

    async def sleep(seconds: float) -> None:
        pauses.append((seconds, len(bench.api.notes)))

    mocker.patch("deviceplugin.node.publisher.asyncio.sleep", sleep)
    await annotator._all()
    assert pauses == [(0.02, 1), (0.02, 2)]


async def test_the_last_patch_says_that_all_is_full_and_holds_stay():
    bench = Bench()
    bench.complete()
    bench.admit()
    await bench.until_s(110)
    assert bench.said() == ((3, 0), {"a"})
    before = len(bench.api.patches)
    await bench.leave()
    assert bench.said() == ((8, 8), {"a"})
    assert len(bench.api.patches) == before + 1
    assert NODE_HOLDS not in bench.api.patches[-1]["metadata"]["annotations"]
    assert bench.publisher.revision == bench.api.decoded().words().revision


async def test_a_farewell_before_everything_was_read_ends_the_offers_of_the_daemon_before():
    bench = Bench()
    bench.complete()
    bench.admit()
    await bench.until_s(110)
    again = Bench()
    again.api.node = bench.api.node
    again.nodes.replace([again.api.decoded()], "2")
    await again.leave()
    assert again.said() == ((8, 8), {"a"})


async def test_a_farewell_that_fails_is_said_again():
    bench = Bench()
    bench.complete()
    await bench.until_s(110)
    bench.api.failures += [Unreachable("gone"), Unreachable("still gone")]
    await bench.leave()
    assert bench.said() == ((8, 8), set())
    assert bench.publisher.errors == 2


async def test_no_back_off_holds_up_the_farewell(mocker):
    bench = Bench()
    bench.complete()
    mocker.patch.object(bench.publisher._backoff, "failed", return_value=1e6)
    bench.api.failures.append(Unreachable("gone"))
    running = asyncio.create_task(bench.publisher.run())
    await until(lambda: bench.publisher.errors)
    await bench.publisher.leave()
    await running
    # Nothing had been offered, so nothing was taken back.
    assert bench.api.patches == []


async def test_without_a_node_there_is_no_farewell():
    bench = Bench()
    bench.nodes.replace([], "2")
    await bench.leave()
    assert bench.api.patches == []


async def test_nothing_is_said_before_pods_can_be_served():
    bench = Bench()
    bench.complete()
    serves = []
    bench.publisher._offers = lambda: bool(serves)
    assert await bench.step() is None
    assert bench.api.patches == []
    serves.append("registered")
    assert await bench.step() == 0.0
    assert bench.said() == ((0, 0), set())
