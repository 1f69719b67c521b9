"""The two tiers with real processes over shared arrays."""

import numpy as np
import pytest

from allocator.request import ContainerRequest, PodRequest
from allocator.selector import Selector
from benchmarks.two_tier.shared_arrays import SharedRows
from benchmarks.two_tier.workers import BatchSettings, Job, schedule
from scheduler_plugin.cache.amounts import Amounts
from scheduler_plugin.cache.node_arrays import NodeArrays
from scheduler_plugin.errors import PolicyError, SettingsError
from scheduler_plugin.scheduling.policies import NODE_POLICIES


def cluster(count, used=(0, 0)):
    arrays = NodeArrays(rows=4, cards=2)
    for number in range(count):
        row = arrays.add_node(f"n{number}")
        arrays.amounts.set_capacity(row, Amounts(110, 8000, 64 << 30))
        arrays.set_cards(
            row, [16, 16], list(used), models=["A100", "T4"], uuids=[f"u{number}a", f"u{number}b"]
        )
    return arrays


def job(units, cards=1, cpu=100, **more):
    return Job(
        PodRequest((ContainerRequest("main", units * cards, "main"),), cards, **more),
        Amounts(1, cpu, 1 << 30),
    )


def check(arrays, jobs, result):
    """No card is over-committed, and the arrays hold exactly what was placed."""
    taken = np.zeros_like(arrays.assumed)
    cpu = np.zeros_like(arrays.cpu_used)
    for number, (node, placement) in result.placed.items():
        for card, units in placement.charge.items():
            taken[arrays.rows[node], card] += units
        cpu[arrays.rows[node]] += jobs[number].amounts.cpu_milli
    assert (taken == arrays.assumed).all()
    assert (cpu == arrays.cpu_used).all()
    assert (taken + arrays.used <= arrays.size).all()
    assert (cpu <= arrays.cpu_capacity).all()


@pytest.mark.parametrize("policy", ["weighted-balance", "fragmentation"])
def test_a_burst_fills_the_cluster_exactly(policy):
    arrays = cluster(4)
    jobs = [job(8) for _ in range(18)]
    card_policy = "fragmentation" if policy == "fragmentation" else "most-used"
    settings = BatchSettings(
        workers=2, node_policy=policy, card_policy=card_policy, attempts=2, backoff_s=0.0
    )
    result = schedule(arrays, jobs, settings, lambda *_: True)
    check(arrays, jobs, result)
    assert len(result.placed) == 16
    assert len(result.failed) == 2
    assert result.lists == 20


def test_selectors_cards_and_other_classes():
    arrays = cluster(2)
    jobs = [
        job(16, selector=Selector(models=("t4",))),
        job(16, selector=Selector(models=("t4",))),
        job(16, selector=Selector(models=("t4",))),
        job(8, cards=2),
        job(8, cpu=9000),
    ]
    settings = BatchSettings(workers=1, attempts=1, card_policy="fragmentation", node_policy="fragmentation")
    result = schedule(arrays, jobs, settings, lambda *_: True)
    check(arrays, jobs, result)
    assert sorted(result.placed) == [0, 1]
    assert {card for _, placed in result.placed.values() for card in placed.charge} == {1}
    assert sorted(result.failed) == [2, 3, 4]


def test_further_resources_are_kept_level_and_not_overcommitted():
    arrays = cluster(2)
    arrays.amounts.set_other_resources(["example.com/nic"])
    for name, (has, used) in {"n0": (8, 6), "n1": (8, 2)}.items():
        row = arrays.rows[name]
        arrays.amounts.set_capacity(row, Amounts(110, 8000, 64 << 30, others=(("example.com/nic", has),)))
        arrays.amounts.set_requested(row, Amounts(others=(("example.com/nic", used),)))
    request = job(1).request
    jobs = [Job(request, Amounts(1, 100, 1 << 30, others=(("example.com/nic", 2),))) for _ in range(5)]
    settings = BatchSettings(
        workers=1, node_policy="least-requested", parameters={"resources": "example.com/nic"}, attempts=1
    )
    result = schedule(arrays, jobs, settings, lambda *_: True)
    check(arrays, jobs, result)
    assert [result.placed[number][0] for number in range(4)] == ["n1", "n1", "n0", "n1"]
    assert result.failed == [4]
    assert arrays.other_used[:, :2].tolist() == [[8, 8]]


def test_a_refused_bind_tries_the_next_node_and_leaves_no_trace():
    arrays = cluster(3)
    refused = []

    def bind(number, node, placement):
        if node == "n0":
            refused.append(number)
            return False
        return True

    jobs = [job(16) for _ in range(4)]
    result = schedule(arrays, jobs, BatchSettings(workers=2), bind)
    check(arrays, jobs, result)
    assert refused
    assert {node for node, _ in result.placed.values()} == {"n1", "n2"}


def test_failed_pods_come_back():
    arrays = cluster(1)
    tries = []

    def bind(number, node, placement):
        tries.append(number)
        return tries.count(number) == 2

    result = schedule(arrays, [job(8), job(8)], BatchSettings(workers=1, backoff_s=0.01), bind)
    assert sorted(tries) == [0, 0, 1, 1]
    assert sorted(result.placed) == [0, 1]


def test_nothing_to_do():
    assert schedule(cluster(1), [], BatchSettings(workers=1), lambda *_: True).placed == {}


def test_bad_settings():
    with pytest.raises(SettingsError, match="0 workers"):
        schedule(cluster(1), [], BatchSettings(workers=0), lambda *_: True)
    with pytest.raises(PolicyError, match=f'node policy "x"; allowed: {NODE_POLICIES.allowed}$'):
        schedule(cluster(1), [], BatchSettings(node_policy="x"), lambda *_: True)


def test_workers_that_die_are_told_of():
    # Only the committer's selectors are checked here; the workers stumble over the broken job.
    broken = Job(None)  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="1 of 1 ended"):
        schedule(cluster(1), [broken], BatchSettings(workers=1), lambda *_: True)


def test_snapshots_follow_the_committer():
    mine, theirs = cluster(2), cluster(2)
    shared = SharedRows(mine)
    joined = SharedRows(theirs, shared.name)
    try:
        assert joined.snapshot() == 0
        row = mine.rows["n1"]
        mine.set_assumed(row, [5, 0])
        mine.amounts.set_requested(row, Amounts(1, 100, 7))
        shared.publish(row, 3)
        assert joined.snapshot() == 3
        for field in ("free", "occupied", "free_order", "gpu_used", "cpu_used", "memory_used", "version"):
            assert (getattr(mine, field) == getattr(theirs, field)).all()
    finally:
        joined.close()
        shared.close()
