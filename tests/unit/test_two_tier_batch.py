import pytest

from benchmarks.burst import commit_times
from benchmarks.two_tier.turns import PodTurn, TurnQueue
from scheduler_plugin.binding.two_tier import ScoredNode, commit_list
from scheduler_plugin.errors import SettingsError


@pytest.mark.parametrize(("workers", "expected"), [(100, 5200), (4, 5200), (3, 6850), (2, 10100), (1, 20050)])
def test_headline(workers, expected):
    times = commit_times(100, workers, 200, 50)
    assert len(times) == 100
    assert times[-1] == expected


def test_the_source_counts_one_scheduler_without_its_commits():
    assert 100 * 200 / commit_times(100, 4, 200, 50)[-1] == pytest.approx(3.846, abs=5e-4)


def test_no_workers():
    with pytest.raises(ValueError, match="0 workers; allowed: 1 or more"):
        commit_times(1, 0, 1, 1)


def test_turns_come_in_order_and_again_at_the_tail():
    turns = TurnQueue(2, attempts=3, backoff_s=1.0)
    first, second = turns.pop_due(0.0), turns.pop_due(0.0)
    assert (first, second, turns.pop_due(0.0)) == (PodTurn(0), PodTurn(1), None)
    assert turns.get_next_due_s() == float("inf")
    assert turns.requeue_failed(first, 10.0)
    assert len(turns) == 1
    assert turns.pop_due(10.9) is None
    assert turns.get_next_due_s() == 11.0
    again = turns.pop_due(11.0)
    assert again == PodTurn(0, 1, 11.0)
    assert turns.requeue_failed(again, 20.0)
    last = turns.pop_due(30.0)
    assert last == PodTurn(0, 2, 22.0)
    assert not turns.requeue_failed(last, 30.0)
    assert len(turns) == 0


def test_the_wait_is_capped():
    turns = TurnQueue(1, attempts=99, backoff_s=1.0)
    turns.requeue_failed(turns.pop_due(0.0), 0.0)
    turns.requeue_failed(PodTurn(0, 60), 0.0)
    assert turns.pop_due(1.0) == PodTurn(0, 1, 1.0)
    assert turns.pop_due(4.9) is None
    assert turns.pop_due(5.0) == PodTurn(0, 61, 5.0)


def test_a_turn_that_is_due_passes_one_that_is_not():
    turns = TurnQueue(2)
    turns.requeue_failed(turns.pop_due(0.0), 0.0)
    assert turns.pop_due(0.0) == PodTurn(1)


@pytest.mark.parametrize(("attempts", "backoff_s"), [(0, 1.0), (1, -1.0)])
def test_bad_turns(attempts, backoff_s):
    with pytest.raises(SettingsError, match="allowed: 1 or more, from 0 s"):
        TurnQueue(1, attempts, backoff_s)


@pytest.mark.parametrize(("mode", "rescored"), [("on-epoch", ["a", "b"]), ("on-version", ["b"])])
def test_what_is_scored_anew(mode, rescored):
    versions = {"a": 1, "b": 3}
    seen = []

    def score(node):
        seen.append(node)
        return 1.0

    offered = [ScoredNode("a", 5.0, 1, 7), ScoredNode("b", 6.0, 2, 7), ScoredNode("gone", 1.0, 1, 7)]
    decision = commit_list(offered, versions.get, score, lambda node: node == "b", epoch=8, mode=mode)
    assert seen == rescored
    assert decision.node == "b"
    assert decision.tried == (("a", "b") if mode == "on-epoch" else ("b",))
    assert decision.conflicts == 2
