"""The kubelet's checkpoint and the cgroups against the ledger: their order, and how often."""

import asyncio
from collections.abc import AsyncIterator, Collection

import pytest

from allocator.ledger import Ledger, charges
from deviceplugin.allocation.ledger_service import LedgerService
from deviceplugin.allocation.own_pods import OwnPods
from deviceplugin.allocation.reconciler import ReconcileIntervals, Reconciler
from deviceplugin.errors import UnitInUseError
from deviceplugin.host.cgroups import CgroupProbe
from tests.checkpoint_world import FakeCheckpoint
from tests.ledger_world import RESOURCE, cards, ids, pod
from tests.running import background
from tests.waiting import until

QUICK = ReconcileIntervals(soon_s=0.001, unsettled_s=0.002, slow_s=3600.0)
A_WHILE_S = 11.0
"""Longer than a container that the kubelet is about to start needs for its cgroup."""


class FollowedBook(FakeCheckpoint):
    """Tells of its changes; notes when it was read."""

    def __init__(self, log: list[str]) -> None:
        super().__init__()
        self.log = log
        self.news = asyncio.Event()

    def read(self):
        self.log.append("read")
        return super().read()

    async def changes(self) -> AsyncIterator[None]:
        while True:
            await self.news.wait()
            self.news.clear()
            yield


class FakeCgroups:
    def __init__(self, log: list[str]) -> None:
        self.log = log
        self.running: set[str] = set()
        self.asked: list[frozenset[str]] = []
        self.during = lambda: None
        self.problem: str | None = None

    def probe(self, uids: Collection[str]) -> CgroupProbe:
        self.log.append("cgroups")
        self.asked.append(frozenset(uids))
        self.during()
        if self.problem is not None:
            return CgroupProbe(unknown=frozenset(uids), problem=self.problem)
        return CgroupProbe(frozenset(uids) & self.running)


class Bench:
    """A node of two cards of 8; `cleaned` is what the kubelet does when asked to clean its checkpoint."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.log: list[str] = []
        self.checkpoint, self.cgroups = FollowedBook(self.log), FakeCgroups(self.log)
        self.account = LedgerService(
            Ledger(cards(8, 8)), self.checkpoint.read, RESOURCE, clock=lambda: self.now_s
        )
        self.ledger = self.account.ledger
        self.lists: list[str] = []
        self.view = OwnPods(self.account, RESOURCE, lambda: self.lists.append("list"))
        self.cleaned = lambda: None
        self.reconciler = Reconciler(
            self.account, self.view, self.checkpoint.changes, self.cgroups, self.clean, pace=QUICK
        )
        self.told = 0
        self.account.subscribe(self.count)

    def count(self) -> None:
        self.told += 1

    async def clean(self) -> None:
        self.log.append("clean")
        self.cleaned()

    def list_pods(self, *pods) -> None:
        self.ledger.apply_pod_list(pods, self.now_s, self.now_s)

    async def once(self) -> list[str]:
        """One turn; returns what was done in it."""
        self.log.clear()
        await self.reconciler._once()
        return list(self.log)

    async def run_pod(self) -> None:
        """Pod `a` holds 3 units of c0, runs, and everything was seen."""
        self.list_pods(pod("a", 3, "c0"))
        self.checkpoint.write("a", ids("c0", 0, 1, 2))
        self.cgroups.running = {"a"}
        await self.reconciler._once()

    @property
    def promised(self) -> int:
        return self.ledger.allocated_units()["c0"]


async def running(bench: Bench) -> asyncio.Task[None]:
    task = asyncio.create_task(bench.reconciler.run())
    await until(bench.reconciler.can_register.is_set)
    return task


async def end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def bench():
    return Bench()


async def test_a_checkpoint_reaches_the_ledger_and_is_told_once(bench):
    bench.checkpoint.write("a", ids("c0", 0, 1, 2))
    await bench.reconciler._once()
    assert (bench.promised, bench.told) == (3, 1)
    assert bench.reconciler.can_register.is_set()
    await bench.reconciler._once()
    assert bench.told == 1


async def test_nothing_counts_as_read_before_the_checkpoint_could_be(bench):
    bench.checkpoint.problem = "torn"
    await bench.reconciler._once()
    assert not bench.reconciler.can_register.is_set()
    bench.checkpoint.problem = None
    await bench.reconciler._once()
    assert bench.reconciler.can_register.is_set()


async def test_a_torn_checkpoint_is_written_anew_by_a_kubelet_that_we_register_with(bench):
    bench.checkpoint.problem, bench.checkpoint.torn = "torn", True
    await bench.reconciler._once()
    assert bench.reconciler.can_register.is_set()
    assert not bench.account.ledger.is_complete


async def test_a_checkpoint_that_cannot_be_read_any_more_releases_nothing(bench):
    await bench.run_pod()
    bench.list_pods()
    bench.cgroups.running = set()
    bench.checkpoint.problem = "torn"
    bench.now_s += A_WHILE_S
    for _ in range(3):
        await bench.once()
    assert bench.promised == 3
    bench.checkpoint.problem = None
    bench.cleaned = lambda: bench.checkpoint.drop("a")
    await bench.once()
    await bench.once()
    assert bench.promised == 0


async def test_the_checkpoint_is_cleaned_once_the_cgroups_of_an_ended_pod_are_gone_and_read_again(bench):
    """Until the second look, after the kubelet's checkpoint lacks it, the charge stays."""
    await bench.run_pod()
    bench.list_pods()
    assert await bench.once() == ["read", "cgroups", "read"]
    assert bench.promised == 3
    bench.cgroups.running = set()
    bench.cleaned = lambda: bench.checkpoint.drop("a")
    assert await bench.once() == ["read", "cgroups", "read", "clean", "read"]
    assert (bench.promised, bench.ledger.accounts.pods["a"].checkpoint_ids) == (3, {})
    assert await bench.once() == ["read", "cgroups", "read"]
    assert bench.promised == 0
    assert await bench.once() == ["read"]


async def test_a_kubelet_that_does_not_clean_its_checkpoint_is_asked_again_and_keeps_the_charge(bench):
    await bench.run_pod()
    bench.list_pods()
    bench.cgroups.running = set()
    for _ in range(3):
        assert "clean" in await bench.once()
        bench.checkpoint.write()
    assert bench.promised == 3
    bench.checkpoint.drop("a")
    assert "clean" not in await bench.once()
    assert bench.promised == 0


async def test_what_was_written_during_the_look_is_known_before_its_result(bench):
    """The pod is not said to run before the units of its last container are counted."""
    bench.list_pods(pod("a", [("one", 2, "main"), ("two", 3, "main")], "c0", "c1"))
    bench.checkpoint.write("a", ids("c0", 0, 1), container="one")
    bench.cgroups.running = {"a"}
    bench.cgroups.during = lambda: bench.checkpoint.write("a", ids("c1", 0, 1, 2), container="two")
    await bench.once()
    assert charges.charge_published_pods(bench.ledger.accounts) == {"a": {"c0": 2, "c1": 3}}


async def test_cgroups_are_looked_for_of_pods_not_seen_to_run_and_of_those_that_are_over(bench):
    await bench.run_pod()
    assert bench.cgroups.asked == [{"a"}]
    assert await bench.once() == ["read"]
    bench.ledger.apply_pod(pod("b", 2, "c1"), bench.now_s)
    await bench.once()
    assert bench.cgroups.asked[-1] == {"b"}
    bench.ledger.remove_pod("a", bench.now_s)
    await bench.once()
    assert bench.cgroups.asked[-1] == {"a", "b"}


async def test_a_static_pod_is_looked_for_under_the_uid_that_the_kubelet_uses(bench):
    bench.list_pods(pod("mirror", 3, "c0", runtime_uid="hash"))
    bench.checkpoint.write("hash", ids("c0", 0, 1, 2))
    await bench.once()
    assert bench.cgroups.asked == [{"hash"}]
    assert charges.charge_published_pods(bench.ledger.accounts) == {"mirror": {"c0": 3}}


async def test_a_pod_of_the_checkpoint_that_nobody_knows_makes_a_list_of_pods(bench):
    bench.list_pods()
    assert await bench.once() == ["read"]
    assert bench.lists == []
    bench.checkpoint.write("a", ids("c0", 0))
    await bench.once()
    assert bench.lists == ["list"]


async def test_another_unit_in_use_is_an_error(bench):
    bench.checkpoint.write("x", frozenset({"c0::0"}), resource="gpupack.io/gpu-memory-512mib")
    bench.cgroups.running.add("x")
    with pytest.raises(UnitInUseError, match=r"pod x holds gpupack.io/gpu-memory-512mib"):
        await bench.reconciler.run()


async def test_the_checkpoint_counts_as_read_once_pods_of_another_unit_are_known_to_have_ended(bench):
    bench.checkpoint.write("x", frozenset({"c0::0"}), resource="gpupack.io/gpu-memory-512mib")
    async with background(bench.reconciler.run()):
        await until(lambda: len(bench.cgroups.asked) > 1)
        assert not bench.reconciler.can_register.is_set()
        bench.view.replace([], "7")
        await until(bench.reconciler.can_register.is_set)


async def test_a_written_checkpoint_is_read_at_once(bench):
    following = asyncio.create_task(bench.reconciler.follow_checkpoint())
    bench.checkpoint.write("a", ids("c0", 0))
    bench.checkpoint.news.set()
    await until(lambda: bench.promised == 1)
    assert bench.told == 1
    await end(following)


async def test_a_checkpoint_that_becomes_readable_counts_as_read_at_once(bench):
    bench.checkpoint.problem = "torn"
    following = asyncio.create_task(bench.reconciler.follow_checkpoint())
    bench.checkpoint.problem = None
    bench.checkpoint.news.set()
    await until(bench.reconciler.can_register.is_set)
    await end(following)


async def test_a_list_of_pods_is_followed_by_a_look_at_their_cgroups(bench):
    """A pod that runs already does not ask for devices, also where its kubelet lost the checkpoint."""
    bench.cgroups.running = {"a"}
    task = await running(bench)
    bench.list_pods(pod("a", 3, "c0"))
    bench.account.notify_subscribers()
    await until(lambda: bench.ledger.accounts.pods["a"].has_run)
    await end(task)


async def test_a_second_list_that_began_with_the_first_is_followed_by_a_look_too(bench):
    """A reflector that lists again by itself says of neither when it began."""
    bench.list_pods(pod("b", 1, "c1", has_run=True))
    task = await running(bench)
    bench.checkpoint.write("b", ids("c1", 0))
    bench.account.notify_subscribers()
    await until(lambda: not bench.reconciler._unsettled())
    bench.cgroups.running = {"a"}
    await asyncio.sleep(0.05)
    began_s = bench.ledger.accounts.listed_at_s
    bench.ledger.apply_pod_list([pod("a", 3, "c0"), pod("b", 1, "c1", has_run=True)], began_s, bench.now_s)
    bench.account.notify_subscribers()
    await until(lambda: bench.ledger.accounts.pods["a"].has_run)
    await end(task)


async def test_what_runs_is_known_to_run_also_while_the_checkpoint_cannot_be_read(bench):
    """But nothing is released then."""
    await bench.run_pod()
    bench.list_pods(pod("a", 3, "c0"), pod("b", 3, "c1"))
    bench.cgroups.running = {"b"}
    bench.checkpoint.problem = "torn"
    bench.account.notify_subscribers()
    await bench.reconciler._once()
    pods = bench.ledger.accounts.pods
    assert pods["b"].has_run
    assert pods["a"].cgroups_gone_at_s is None


async def test_no_charge_ends_and_nothing_runs_by_a_look_that_saw_nothing(bench, capsys):
    """A pod that is taken to have run would be charged 10 s less after its end."""
    await bench.run_pod()
    bench.list_pods(pod("b", 3, "c1"))
    bench.cgroups.problem = "Too many open files"
    for _ in range(3):
        bench.now_s += 60
        await bench.once()
    pods = bench.ledger.accounts.pods
    assert pods["a"].cgroups_gone_at_s is None
    assert not pods["b"].has_run
    assert bench.promised == 3
    assert bench.reconciler.cgroup_problem == "Too many open files"
    bench.cgroups.problem, bench.cgroups.running = None, {"b"}
    bench.cleaned = lambda: bench.checkpoint.drop("a")
    for _ in range(3):
        bench.now_s += 60
        await bench.once()
    assert pods.keys() == {"b"}
    assert bench.reconciler.cgroup_problem is None
    said = capsys.readouterr().out
    assert said.count("cgroups cannot be read") == said.count("cgroups can be read again") == 1


async def test_a_pod_of_another_unit_whose_cgroups_cannot_be_read_may_run(bench):
    bench.checkpoint.write("x", frozenset({"c0::0"}), resource="gpupack.io/gpu-memory-512mib")
    bench.view.replace([], "7")
    bench.cgroups.problem = "Too many open files"
    await bench.once()
    assert bench.account.other_unit_pods.resource_by_pod
    assert not bench.reconciler.can_register.is_set()
    bench.cgroups.problem = None
    await bench.once()
    assert not bench.account.other_unit_pods.resource_by_pod


async def test_an_end_is_followed_by_looks_until_the_charge_ends_and_then_by_none(bench):
    await bench.run_pod()
    task = await running(bench)
    bench.cgroups.running = set()
    bench.cleaned = lambda: bench.checkpoint.drop("a")
    bench.list_pods()
    bench.account.notify_subscribers()
    await until(lambda: bench.promised == 0)
    reads = bench.checkpoint.reads
    await asyncio.sleep(0.05)
    assert bench.checkpoint.reads <= reads + 1
    await end(task)


async def test_an_allocate_of_a_pod_that_nobody_knows_asks_for_a_list_of_pods(bench):
    bench.list_pods()
    bench.checkpoint.write()
    await bench.once()
    assert bench.lists == []
    bench.ledger.allocate(ids("c0", 0, 1), bench.now_s)
    await bench.once()
    assert bench.lists == ["list"]
    assert bench.promised == 2


@pytest.mark.parametrize("turns", range(4))
async def test_a_cancellation_that_meets_news_is_not_lost(bench, turns: int):
    task = await running(bench)
    await asyncio.sleep(0.05)
    bench.reconciler._wake()
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=5)
    assert done == {task}


async def test_nothing_is_released_if_the_checkpoint_becomes_unreadable_during_a_look(bench):
    bench.account.read_checkpoint()
    await bench.run_pod()
    bench.checkpoint.drop("a")
    bench.account.read_checkpoint()
    bench.ledger.remove_pod("a", bench.now_s)
    bench.now_s += 1
    bench.cgroups.running.clear()
    bench.cgroups.during = lambda: setattr(bench.checkpoint, "problem", "too many open files")
    await bench.once()
    assert bench.promised == 3
    bench.cgroups.during, bench.checkpoint.problem = lambda: None, None
    await bench.once()
    assert bench.promised == 0


async def test_what_a_restarted_kubelet_forgot_is_told(bench):
    """A limit is set by what the ledger says that a container has had."""
    bench.list_pods(pod("a", 3, "c0"))
    await bench.reconciler._once()
    bench.ledger.allocate(ids("c0", 0, 1, 2), bench.now_s, [("ns", "pod-a")])
    told = bench.told
    bench.reconciler.apply_kubelet_restart()
    assert bench.told == told + 1
    bench.reconciler.apply_kubelet_restart()
    assert bench.told == told + 1
