from dataclasses import replace
from fractions import Fraction
from math import sqrt

import numpy as np
import pytest

from scheduler_plugin.cache.amounts import Amounts
from scheduler_plugin.errors import PolicyError
from scheduler_plugin.scheduling.policies import make_policy
from scheduler_plugin.scheduling.policies.weighted_balance import (
    WeightedBalance,
    WeightedBalanceSettings,
    compute_chart,
)
from tests.policy_view import ask, place, view

CAPACITY = (100, 1000, [10])
GOLDEN = {
    "a": (*CAPACITY, 0, 0, [0]),
    "b": (*CAPACITY, 60, 300, [4]),
    "c": (*CAPACITY, 40, 700, [8]),
    "d": (*CAPACITY, 90, 900, [9]),
}
W0 = (Fraction(1, 5), Fraction(1, 5), Fraction(3, 5))
JOB = ask(20, 300, (2, 1))


@pytest.mark.parametrize(
    ("values", "weights"),
    [
        ((0, 0, 0), (Fraction(1, 3),) * 3),
        ((5, 5, 1), (Fraction(4, 9), Fraction(4, 9), Fraction(1, 9))),
        ((3, 1, 2, 2), (Fraction(7, 16), Fraction(1, 16), Fraction(1, 4), Fraction(1, 4))),
    ],
)
def test_precedence_charts(values, weights):
    assert compute_chart(values) == weights


def test_a_chart_needs_something_to_compare():
    with pytest.raises(PolicyError, match="precedence chart of 1 classes"):
        compute_chart([1])


def imbalance(used, request, capacity, weights):
    """Compute y of one node after placing a request as the module's text has it, one number at a time."""
    kept = [at for at, there in enumerate(capacity) if there > 0]
    total = sum(float(weights[at]) for at in kept)
    if not kept or total <= 0:
        return 0.0
    d = [(used[at] + request[at]) / capacity[at] for at in kept]
    level = sum(d) / len(d)
    return sqrt(sum(float(weights[at]) / total * (f - level) ** 2 for at, f in zip(kept, d, strict=True)))


def golden(threshold=Fraction(1, 2)):
    """The golden cluster, with two pods waiting for cpu and five for gpu-memory."""
    arrays = view(GOLDEN)
    policy = WeightedBalance(WeightedBalanceSettings(configured=W0, threshold=threshold))
    rows = np.array([arrays.rows["c"]])
    for number in range(2):
        policy.pending(f"cpu{number}", arrays, ask(61, 0), rows)
    for number in range(5):
        policy.pending(f"gpu{number}", arrays, ask(0, 0, (3, 1)), rows)
    return arrays, policy


def test_golden_weights_and_use():
    arrays, policy = golden()
    assert policy.pending_by_class == (2, 0, 5)
    weights = policy.weights(arrays)
    assert policy._utilisation(policy._shares()) == pytest.approx(59 / 120)
    assert weights == (Fraction(34, 135), Fraction(8, 45), Fraction(77, 135))


@pytest.mark.parametrize(
    ("name", "before", "after"), [("a", 0, 0.041276), ("b", 0.103876, 0.088332), ("c", 0.174200, 0.176663)]
)
def test_golden_imbalance(name, before, after):
    weights = (Fraction(34, 135), Fraction(8, 45), Fraction(77, 135))
    cpu, memory, _, cpu_used, memory_used, used = GOLDEN[name]
    mine = (cpu_used, memory_used, used[0])
    assert imbalance(mine, (0, 0, 0), (cpu, memory, 10), weights) == pytest.approx(before, abs=5e-7)
    assert imbalance(mine, (20, 300, 2), (cpu, memory, 10), weights) == pytest.approx(after, abs=5e-7)


@pytest.mark.parametrize(("threshold", "expected"), [(Fraction(1, 2), "b"), (Fraction(2, 5), "a")])
def test_golden_choice(threshold, expected):
    arrays, policy = golden(threshold)
    rows = np.array([arrays.rows[name] for name in "abc"])
    scores = policy.score(arrays, JOB, rows)
    assert "abc"[int(scores.argmin())] == expected
    if threshold < Fraction(1, 2):
        assert scores[1] == pytest.approx(0.088332, abs=5e-7)


def test_scalar_and_vector_agree():
    arrays, policy = golden(Fraction(0))
    rows = np.array([arrays.rows[name] for name in "abc"])
    weights = policy.weights(arrays)
    scores = policy.score(arrays, JOB, rows)
    for row, score in zip(rows, scores, strict=True):
        used = (arrays.cpu_used[row], arrays.memory_used[row], arrays.gpu_used[row])
        assert score == pytest.approx(imbalance(used, (20, 300, 2), (100, 1000, 10), weights), abs=1e-12)


JOBS = {5: (20, 500, 4), 2: (30, 400, 2), 1: (40, 200, 2), 4: (40, 300, 4), 3: (30, 300, 1), 6: (30, 200, 1)}


def run(policy):
    """The headline: one node, jobs in order 5 2 1 4 3 6; the jobs that run, and what is left."""
    arrays = view({"n": (100, 1000, [10], 0, 0, [0])})
    row = arrays.rows["n"]
    ran = []
    for number, (cpu, memory, gpu) in JOBS.items():
        job = ask(cpu, memory, (gpu, 1))
        left = (100 - arrays.cpu_used[row], 1000 - arrays.memory_used[row], arrays.free[row, 0])
        if cpu <= left[0] and memory <= left[1] and gpu <= left[2]:
            if policy.score(arrays, job, np.array([row]))[0] < np.inf:
                place(arrays, row, ((0,),), job)
                ran.append(number)
        else:
            policy.pending(str(number), arrays, job, np.array([row]))
    return ran, (
        100 - int(arrays.cpu_used[row]),
        1000 - int(arrays.memory_used[row]),
        int(arrays.free[row, 0]),
    )


def test_headline_hold_runs_one_more_job():
    hold = WeightedBalanceSettings(parts=("W2",), threshold=Fraction(1), on_no_improvement="hold")
    assert run(WeightedBalance(hold)) == ([5, 1, 4], (0, 0, 0))
    assert run(WeightedBalance(WeightedBalanceSettings(threshold=Fraction(1), on_no_improvement="hold"))) == (
        [5, 1, 4],
        (0, 0, 0),
    )


def test_headline_first_come():
    ran, left = run(WeightedBalance())
    assert ran[:2] == [5, 2]
    arrays_left_after_two = (50, 100, 4)
    assert left == arrays_left_after_two


def test_headline_numbers():
    weights = compute_chart((Fraction(20, 100), Fraction(500, 1000), Fraction(4, 10)))
    assert weights == (Fraction(1, 9), Fraction(5, 9), Fraction(1, 3))
    used, capacity = (20, 500, 4), (100, 1000, 10)
    expected = {None: 0.115470, 2: 0.186587, 1: 0.054433, 4: 0}
    for job, y in expected.items():
        if job == 4:
            value = imbalance((60, 700, 6), JOBS[4], capacity, weights)
        else:
            value = imbalance(used, JOBS.get(job, (0, 0, 0)), capacity, weights)
        assert value == pytest.approx(y, abs=5e-7)


def test_hold_ends_after_its_rounds():
    policy = make_policy(
        "weighted-balance", {"on-no-improvement": "hold", "hold-rounds": "2", "threshold": "1"}
    )
    arrays = view({"n": (100, 1000, [10], 20, 500, [4])})
    rows = np.array([arrays.rows["n"]])
    job = ask(0, 400, (1, 1))
    assert [attempt(policy, arrays, "p", job, rows) for _ in range(4)] == [None, None, 0, 0]
    # Each pod has its own rounds; who is bound, or gone, begins anew.
    assert [attempt(policy, arrays, "q", job, rows) for _ in range(3)] == [None, None, 0]
    policy.pod_resolved("p", None)
    assert attempt(policy, arrays, "p", job, rows) is None


def attempt(policy, arrays, pod, job, rows):
    """Try to place a pod as those who place pods do; the position of the best row."""
    scores = policy.score(arrays, replace(job, pod=pod), rows)
    best = int(scores.argmin())
    best = best if scores[best] < np.inf else None
    policy.record_attempt(arrays, pod, None if best is None else int(rows[best]))
    return best


def test_asking_is_no_round():
    """Whoever only asks sees what the pod's next attempt will be answered, however often."""
    policy = make_policy(
        "weighted-balance", {"on-no-improvement": "hold", "hold-rounds": "1", "threshold": "1"}
    )
    arrays = view({"n": (100, 1000, [10], 20, 500, [4])})
    rows = np.array([arrays.rows["n"]])
    job = ask(0, 400, (1, 1), pod="p")
    for _ in range(5):
        assert policy.score(arrays, job, rows)[0] == np.inf
    assert attempt(policy, arrays, "p", job, rows) is None
    for _ in range(5):
        assert policy.score(arrays, job, rows)[0] < np.inf
        assert policy.score(arrays, ask(0, 400, (1, 1)), rows)[0] == np.inf
    assert attempt(policy, arrays, "p", job, rows) == 0


def test_a_node_without_gpu_use_always_accepts():
    """Its own daemons use some cpu and memory."""
    policy = make_policy("weighted-balance", {"on-no-improvement": "hold", "threshold": "1"})
    arrays = view({"n": (100, 1000, [10], 20, 500, [4]), "o": (100, 1000, [10], 1, 100, [0])})
    rows = np.array([arrays.rows[name] for name in "no"])
    scores = policy.score(arrays, ask(0, 400, (1, 1)), rows)
    assert scores[0] == np.inf
    assert scores[1] < np.inf


def test_the_cursor_rotates():
    nodes = {name: (100, 1000, [10], 50, 0, [0]) for name in "abc"}
    arrays = view(nodes)
    rows = np.array([arrays.rows[name] for name in "abc"])
    job = ask(0, 100, (1, 1))
    still = make_policy("weighted-balance")
    assert [int(still.score(arrays, job, rows).argmin()) for _ in range(3)] == [0, 0, 0]
    rotating = make_policy("weighted-balance", {"rotate": "yes"})
    assert [attempt(rotating, arrays, "p", job, rows) for _ in range(4)] == [0, 1, 2, 0]
    assert [int(rotating.score(arrays, job, rows).argmin()) for _ in range(3)] == [1, 1, 1]
    assert [attempt(still, arrays, "p", job, rows) for _ in range(2)] == [0, 0]


def test_rows_in_any_order_are_polled_by_name():
    arrays = view({name: (100, 1000, [10], 50, 0, [0]) for name in "abc"})
    rows = np.array([arrays.rows[name] for name in "cab"])
    assert int(make_policy("weighted-balance").score(arrays, ask(0, 100, (1, 1)), rows).argmin()) == 1


def test_polling_goes_on_past_the_first_nodes():
    nodes = {f"a{number:03}": (100, 1000, [10], 0, 0, [0]) for number in range(100)}
    nodes["b"] = (100, 1000, [10], 50, 0, [0])
    arrays = view(nodes)
    rows = np.array([arrays.rows[name] for name in sorted(nodes)])
    assert int(make_policy("weighted-balance").score(arrays, ask(0, 100, (1, 1)), rows).argmin()) == 100


def test_pending_pods_stop_counting():
    arrays = view({"n": (100, 1000, [10], 0, 0, [10])})
    rows = np.array([arrays.rows["n"]])
    policy = WeightedBalance()
    epoch = policy.epoch
    policy.pending("p", arrays, ask(0, 0, (3, 1)), rows)
    policy.pending("p", arrays, ask(0, 0, (3, 1)), rows)
    policy.pending("fits", arrays, ask(1, 1), rows)
    policy.pending("fits, but was asked about no node", arrays, ask(1, 1), rows[:0])
    assert policy.pending_by_class == (0, 0, 1)
    policy.weights(arrays)
    policy.pod_resolved("p", None)
    policy.pod_resolved("q", None)
    assert policy.pending_by_class == (0, 0, 0)
    policy.weights(arrays)
    assert policy.epoch > epoch


def test_pending_counts_over_all_nodes():
    """kube-scheduler asks about nodes that have the cpu and memory: on others less may be short."""
    arrays = view(
        {"a": (100, 10, [4], 0, 0, [4]), "b": (10, 10, [4], 0, 0, [0]), "c": (9, 9, [4], 0, 0, [4])}
    )
    policy = WeightedBalance()
    rows = np.array([arrays.rows["a"]])
    policy.pending("p", arrays, ask(50, 5, (2, 1)), rows)
    assert policy.pending_by_class == (0, 0, 1), "one class on a and on b: the first name"
    policy.pending("p", arrays, ask(50, 50, (2, 1)), rows)
    assert policy.pending_by_class == (0, 1, 1), "two everywhere"
    # What one node has enough of may be short where the pod may go.
    policy.pending("p", arrays, ask(1, 1, (2, 1)), rows)
    assert policy.pending_by_class == (0, 0, 1)


def test_waiting_replaces_what_was_counted():
    arrays = view({"a": (100, 10, [4], 0, 0, [4]), "b": (10, 10, [4], 0, 0, [0])})
    arrays.amounts.set_capacity(arrays.add_node("no-cards"), Amounts(110, 50, 10))
    policy = WeightedBalance()
    policy.pending("gone", arrays, ask(0, 0, (5, 1)), np.array([arrays.rows["a"]]))
    elsewhere = ask(0, 0, (2, 1))
    policy.pending("refused", arrays, elsewhere, np.array([arrays.rows["a"]]))
    policy.waiting(
        arrays,
        [
            (ask(101, 1), ("p", "q")),
            (ask(1, 1), ("fits",)),
            (ask(60, 1, (1, 1)), ("gpu or cpu",)),
            (elsewhere, ("refused", "never refused")),
        ],
    )
    assert policy.pending_by_class == (2, 0, 2)
    policy.pod_resolved("p", None)
    policy.waiting(arrays, [])
    assert policy.pending_by_class == (0, 0, 0)


def test_pending_counts_the_node_that_lacks_fewest():
    arrays = view({"m": (10, 10, [4], 0, 0, [0]), "n": (100, 10, [4], 0, 0, [0])})
    policy = WeightedBalance()
    policy.pending("p", arrays, ask(50, 50, (2, 1)), np.array([arrays.rows["m"], arrays.rows["n"]]))
    assert policy.pending_by_class == (0, 1, 0)
    admits = np.zeros(arrays.size.shape, dtype=bool)
    policy.pending("q", arrays, ask(50, 0, (2, 1), admits=admits), np.array([arrays.rows["n"]]))
    assert policy.pending_by_class == (0, 1, 1)


def test_classes_without_capacity_are_dropped():
    arrays = view({"n": (0, 1000, [10], 0, 100, [1]), "o": (100, 1000, [10], 10, 100, [1])})
    rows = np.array([arrays.rows[name] for name in "no"])
    policy = make_policy("weighted-balance", {"threshold": "0"})
    weights = policy.weights(arrays)
    scores = policy.score(arrays, ask(0, 300, (1, 1)), rows)
    assert scores[0] == pytest.approx(imbalance((0, 100, 1), (0, 300, 1), (0, 1000, 10), weights))
    assert imbalance((0,), (0,), (0,), (1,)) == 0
    nobody = make_policy("weighted-balance")
    nobody.weights(view({}))
    assert nobody._utilisation(nobody._shares()) == 0


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"weights": "0.5,0.5,0.5"}, "weights are 1/2,1/2,1/2; allowed: 3 from 0 that sum to 1"),
        ({"weights": "1"}, "weights are 1; allowed"),
        ({"weights": "a,b,c"}, "weights is 'a'; allowed: numbers"),
        ({"threshold": "1.5"}, "threshold is 1.5; allowed: 0 to 1"),
        ({"threshold": "1/0"}, "threshold is '1/0'"),
        ({"parts": "W3"}, "parts are W3; allowed: some of W0,W1,W2"),
        ({"on-no-improvement": "wait"}, "on-no-improvement is 'wait'; allowed: place, hold"),
        ({"rotate": "maybe"}, "rotate is 'maybe'; allowed: yes, no"),
        ({"hold-rounds": "1.5"}, "hold-rounds is 3/2; allowed: a whole number"),
        ({"hold-rounds": "-1"}, "hold-rounds is -1; allowed: 0 or more"),
        ({"x": "y"}, 'parameter "x" does not exist; allowed: weights, threshold'),
    ],
)
def test_bad_parameters(parameters, message):
    with pytest.raises(PolicyError, match=message):
        make_policy("weighted-balance", parameters)


def test_what_is_remembered_is_limited(monkeypatch):
    monkeypatch.setattr("scheduler_plugin.scheduling.policies.weighted_balance._PENDING_PODS", 2)
    monkeypatch.setattr("scheduler_plugin.scheduling.policies.weighted_balance._HELD_PODS", 1)
    arrays = view({"n": (100, 1000, [10], 20, 500, [4])})
    rows = np.array([arrays.rows["n"]])
    policy = make_policy(
        "weighted-balance", {"on-no-improvement": "hold", "hold-rounds": "1", "threshold": "1"}
    )
    for number in range(4):
        policy.pending(str(number), arrays, ask(0, 0, (9, 1)), rows)
    assert policy.pending_by_class == (0, 0, 2)
    job = ask(0, 400, (1, 1))
    for pod in ("first", "second", "first"):
        assert attempt(policy, arrays, pod, job, rows) is None
    assert attempt(policy, arrays, "first", job, rows) == 0
    assert policy.score(arrays, job, rows[:0]).size == 0


def test_another_order_with_the_same_weights_is_no_new_epoch():
    arrays, policy = golden()
    only = make_policy("weighted-balance", {"parts": "W0"})
    only.weights(arrays)
    epoch = only.epoch
    arrays.amounts.set_requested(arrays.rows["a"], Amounts(0, 99))
    only.weights(arrays)
    assert only.epoch == epoch
    policy.weights(arrays)
    assert policy.epoch >= 1
