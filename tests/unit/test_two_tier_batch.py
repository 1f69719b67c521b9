import pytest

from allocator.request import ContainerRequest, PodRequest
from benchmarks.burst import commit_times
from benchmarks.two_tier.turns import PodTurn, TurnQueue
from benchmarks.two_tier.workers import BatchSettings, Committer, Job
from scheduler_plugin.binding.two_tier import ScoredNode, commit_list
from scheduler_plugin.cache.amounts import Amounts
from scheduler_plugin.cache.node_arrays import NodeArrays
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


def test_nodes_scored_with_other_weights_are_scored_anew():
    versions = {"a": 1, "b": 3, "c": 1}
    seen = []

    def score(node):
        seen.append(node)
        return 1.0

    offered = [
        ScoredNode("a", 5.0, 1, 7),
        ScoredNode("b", 6.0, 2, 8),
        ScoredNode("c", 9.0, 1, 8),
        ScoredNode("gone", 1.0, 1, 7),
    ]
    assert commit_list(offered, versions.get, score, lambda node: node == "b", epoch=8) == ("b", ["c"])
    assert seen == ["a", "b"]


@pytest.mark.parametrize(("mode", "chosen"), [("on-epoch", "n0"), ("on-version", "n1")])
def test_a_batch_may_keep_scores_of_other_weights(mode, chosen):
    nodes = NodeArrays(rows=2, cards=1)
    for name in ("n0", "n1"):
        row = nodes.add_node(name)
        nodes.amounts.set_capacity(row, Amounts(110, 8000, 64 << 30))
        nodes.set_cards(row, [16], [0], models=["T4"], uuids=[name])
    job = Job(PodRequest((ContainerRequest("main", 4, "main"),)))
    committer = Committer(nodes, [job], BatchSettings(mode=mode), lambda *_: True)
    now = int(nodes.version[0])
    offered = [
        ScoredNode("n1", -9.0, now, -1),
        ScoredNode("n0", 9.0, now, -1),
        ScoredNode("gone", 1.0, 1, -1),
    ]
    node, _, conflicts = committer.commit(0, offered)
    assert (node, conflicts) == (chosen, 1)
