"""Two tiers with the numbers of the method: score = 100 - (free - request), request 8, higher is better."""

from collections.abc import Collection

import pytest

from scheduler_plugin.binding.two_tier import ScoredNode, commit_first, merge_candidates

REQUEST = 8


class Nodes:
    """Records of nodes, name:free/version, and a committer on them."""

    def __init__(self, text: str, failing: Collection[str] = ()) -> None:
        parts = [part.replace("/", ":").split(":") for part in text.split()]
        self.free = {name: int(free) for name, free, _ in parts}
        self.version = {name: int(version) for name, _, version in parts}
        self.failing = failing
        self.scored: list[str] = []

    def score(self, node: str) -> float | None:
        self.scored.append(node)
        left = self.free[node] - REQUEST
        return left - 100 if left >= 0 else None

    def bind(self, node: str) -> bool:
        if node in self.failing:
            return False
        self.free[node] -= REQUEST
        self.version[node] += 1
        return True

    def record(self, node: str) -> str:
        return f"{self.free[node]}/{self.version[node]}"


def offered(text: str, epoch: int = 0) -> list[ScoredNode]:
    """List 1, written name(version,score)."""
    candidates = []
    for part in text.split():
        name, rest = part.rstrip(")").split("(")
        version, score = rest.split(",")
        candidates.append(ScoredNode(name, -float(score), int(version), epoch))
    return candidates


@pytest.mark.parametrize(
    ("records", "list1", "failing", "rescored", "tried", "chosen", "after"),
    [
        ("n1:10/3 n2:12/7", "n1(3,98) n2(7,96)", (), [], ["n1"], "n1", "2/4"),
        ("n1:20/3 n2:9/8 n3:12/1", "n1(3,88) n2(7,95) n3(1,96)", (), ["n2"], ["n2"], "n2", "1/9"),
        ("n1:4/12 n2:12/7", "n1(10,98) n2(7,96)", (), ["n1"], ["n2"], "n2", "4/8"),
        ("n1:12/1 n2:10/1 n3:8/1", "n2(1,98) n3(1,100)", ("n3",), [], ["n3", "n2"], "n2", "2/2"),
        ("n1:12/1 n2:10/1 n3:8/1", "n2(1,98) n3(1,100)", ("n3", "n2"), [], ["n3", "n2"], None, ""),
    ],
    ids=["1", "2", "3", "4", "5"],
)
def test_golden(
    records: str,
    list1: str,
    failing: Collection[str],
    rescored: list[str],
    tried: list[str],
    chosen: str | None,
    after: str,
) -> None:
    nodes = Nodes(records, failing)
    order = merge_candidates(offered(list1), nodes.version.get, nodes.score)
    assert nodes.scored == rescored
    assert commit_first(order, nodes.bind) == (chosen, tried)
    if chosen is None:
        assert " ".join(f"{name}:{nodes.record(name)}" for name in nodes.free) == records
    else:
        assert nodes.record(chosen) == after


def test_rescored_candidates_carry_what_was_found() -> None:
    nodes = Nodes("n1:20/3 n2:9/8 n3:12/1")
    order = merge_candidates(offered("n1(3,88) n2(7,95) n3(1,96)"), nodes.version.get, nodes.score)
    assert order == offered("n2(8,99) n3(1,96) n1(3,88)")


def test_a_node_that_is_gone_is_dropped() -> None:
    nodes = Nodes("n1:10/3")
    assert merge_candidates(offered("n0(1,99) n1(3,98)"), nodes.version.get, nodes.score) == offered(
        "n1(3,98)"
    )


def test_equal_scores_go_by_name() -> None:
    nodes = Nodes("n2:10/3 n1:10/3")
    order = merge_candidates(offered("n2(3,98) n1(3,98)"), nodes.version.get, nodes.score)
    assert [candidate.node for candidate in order] == ["n1", "n2"]


def test_other_weights_score_anew_although_the_version_is_the_same() -> None:
    nodes = Nodes("n1:10/3")
    assert merge_candidates(offered("n1(3,50)", epoch=1), nodes.version.get, nodes.score, epoch=2) == offered(
        "n1(3,98)", epoch=2
    )


def test_nothing_offered_nothing_tried() -> None:
    assert commit_first([], Nodes("n1:10/3").bind) == (None, [])
