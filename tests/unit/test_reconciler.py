"""The kubelet's list and the cgroups against the ledger."""

import asyncio
from collections.abc import Collection

import pytest
from deviceplugin.kubelet.podresources import PodResourcesList

from allocator.ledger import Ledger
from allocator.names import POD_ALLOCATION
from deviceplugin.errors import PodResourcesUnavailable, UnitInUseError
from deviceplugin.kubelet.sockets import SocketId
from deviceplugin.node.account import Account
from deviceplugin.node.reconciler import Pace, Reconciler
from deviceplugin.node.views import PodView
from tests.ledger_world import cards, ids, pod

GIB = "gpupack.io/gpu-memory-gib"
QUICK = Pace(soon_s=0.001, slow_s=3600.0)


class FakeKubelet:
    """Answers what it is told to."""

    def __init__(self) -> None:
        self.entries: dict[tuple[str, str, str], dict[str, tuple[str, ...]]] = {}
        self.socket = 1
        self.away = False
        self.asked = 0

    async def list(self) -> PodResourcesList:
        self.asked += 1
        if self.away:
            raise PodResourcesUnavailable("nobody")
        return PodResourcesList(dict(self.entries), frozenset(), 0.0, SocketId(self.socket, 0))


class FakeCgroups:
    def __init__(self) -> None:
        self.running: set[str] = set()

    def alive(self, uids: Collection[str]) -> frozenset[str]:
        return frozenset(uids) & self.running


class Bench:
    def __init__(self, pace: Pace = QUICK) -> None:
        self.account = Account(Ledger(cards(8, 8)), 1024)
        self.ledger = self.account.ledger
        self.view = PodView(self.account, GIB, POD_ALLOCATION)
        self.kubelet, self.cgroups = FakeKubelet(), FakeCgroups()
        self.reconciler = Reconciler(self.account, self.view, GIB, self.kubelet, self.cgroups, pace=pace)
        self.told = 0
        self.account.follow(self.count)

    def count(self) -> None:
        self.told += 1

    def run_pod(self, uid: str) -> None:
        self.ledger.pod_changed(pod(uid, 3, "c0"))
        self.ledger.allocate(ids("c0", 0, 1, 2), 0.0)
        self.kubelet.entries["ns", f"pod-{uid}", "main"] = {GIB: tuple(ids("c0", 0, 1, 2))}


async def test_a_list_reaches_the_ledger_and_is_told_once():
    bench = Bench()
    bench.run_pod("a")
    await bench.reconciler._once()
    assert bench.ledger.explain()["holdings"][0]["listed"]
    assert bench.reconciler.listed.is_set()
    assert bench.told == 1
    await bench.reconciler._once()
    assert bench.told == 1


async def test_a_kubelet_that_does_not_answer_proves_nothing():
    bench = Bench()
    bench.run_pod("a")
    await bench.reconciler._once()
    bench.kubelet.away = True
    await bench.reconciler._once()
    await bench.reconciler._once()
    assert bench.reconciler.errors == 2
    assert bench.ledger.explain()["holdings"][0]["listed"]
    bench.kubelet.away = False
    await bench.reconciler._once()
    assert bench.reconciler.errors == 2


async def test_another_kubelet_is_noticed_by_its_socket():
    bench = Bench()
    bench.run_pod("a")
    await bench.reconciler._once()
    bench.kubelet.socket = 2
    bench.kubelet.entries.clear()
    await bench.reconciler._once()
    assert bench.ledger.explain()["holdings"][0]["listed"]
    await bench.reconciler._once()
    assert not bench.ledger.explain()["holdings"][0]["listed"]
    assert bench.ledger.promised() == {"c0": 3, "c1": 0}


async def test_a_pods_charge_ends_with_its_last_process():
    bench = Bench()
    bench.run_pod("a")
    bench.ledger.pods_synced([pod("a", 3, "c0")], bench.ledger.mark(0.0))
    await bench.reconciler._once()
    bench.cgroups.running = {"a"}
    bench.kubelet.entries.clear()
    bench.ledger.pod_gone("a")
    await bench.reconciler._once()
    assert bench.ledger.doubtful() == {"a"}
    bench.cgroups.running = set()
    bench.ledger.pods_synced([], bench.ledger.mark(0.0))
    await bench.reconciler._once()
    assert bench.ledger.promised() == {"c0": 0, "c1": 0}


async def test_other_resources_are_not_looked_at():
    bench = Bench()
    bench.kubelet.entries["ns", "x", "main"] = {"nvidia.com/gpu": ("GPU-1",), "gpupack.io/else": ("1",)}
    await bench.reconciler._once()
    assert bench.ledger.promised() == {"c0": 0, "c1": 0}


async def test_another_unit_in_use_is_an_error():
    bench = Bench()
    bench.kubelet.entries["ns", "x", "main"] = {"gpupack.io/gpu-memory-512mib": ("c0::0",)}
    with pytest.raises(UnitInUseError, match=r"ns/x holds gpupack.io/gpu-memory-512mib"):
        await bench.reconciler.run()


async def until(condition) -> None:
    for _ in range(5000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("never")


async def test_an_allocate_is_followed_by_a_question_soon():
    bench = Bench()
    task = asyncio.create_task(bench.reconciler.run())
    await until(bench.reconciler.listed.is_set)
    asked = bench.kubelet.asked
    bench.run_pod("a")
    bench.account.changed()
    await until(lambda: bench.kubelet.asked > asked)
    await until(lambda: bench.ledger.explain()["holdings"][0]["listed"])
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("turns", range(4))
async def test_a_cancellation_that_meets_news_is_not_lost(turns: int):
    bench = Bench()
    task = asyncio.create_task(bench.reconciler.run())
    await until(bench.reconciler.listed.is_set)
    await asyncio.sleep(0.05)
    bench.reconciler._wake.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=5)
    assert done == {task}


async def test_a_list_of_pods_is_asked_for_where_only_that_helps():
    bench = Bench()
    asked: list[str] = []
    bench.view.on_relist(lambda: asked.append("list"))
    bench.view.replace([], "1")
    task = asyncio.create_task(bench.reconciler.run())
    await until(bench.reconciler.listed.is_set)
    assert asked == []
    bench.reconciler.kubelet_restarted()
    await until(lambda: "list" in asked)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
