"""Two-tier scheduling of batches: many workers score snapshots, one commits; see docs/two-tiers.md.

`merge_candidates`, `commit_first` and `commit_list` are a committer's steps for one list, where it scores
nodes itself: the queue's, for equal pods, and that of `benchmarks/two_tier`, whose first tier runs in
processes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

OTHERS: Final = 3
"""Nodes next in the list that a pod may be bound to where a Binding fails."""


@dataclass(frozen=True, slots=True)
class ScoredNode:
    """A node that the first tier found: lower scores are better; version and epoch are those of the score."""

    node: str
    score: float
    version: int
    epoch: int = 0


def merge_candidates(
    offered: Sequence[ScoredNode],
    version: Callable[[str], int | None],
    rescore: Callable[[str], float | None],
    *,
    epoch: int = 0,
) -> list[ScoredNode]:
    """Turn the first tier's list into the order in which to try nodes.

    Args:
        version: The node's latest version, None when it is gone.
        rescore: Filters and scores a node's latest record; None when the pod no longer fits.
        epoch: Epoch of the weights in force; a candidate of another epoch is scored anew.

    Returns:
        Lists 2 and 4 together, by (score, name).
    """
    merged: list[ScoredNode] = []
    for candidate in offered:
        latest = version(candidate.node)
        if latest is None:
            continue
        if latest == candidate.version and epoch == candidate.epoch:
            merged.append(candidate)
            continue
        score = rescore(candidate.node)
        if score is not None:
            merged.append(replace(candidate, score=score, version=latest, epoch=epoch))
    return sorted(merged, key=lambda candidate: (candidate.score, candidate.node))


def commit_first(order: Sequence[ScoredNode], bind: Callable[[str], bool]) -> tuple[str | None, list[str]]:
    """Try candidates in order until one binds; return the node, None if all failed, and the nodes tried.

    Args:
        bind: Binds the pod to a node, updates the node's record and returns True; or returns False and
            changes nothing.
    """
    tried: list[str] = []
    for candidate in order:
        tried.append(candidate.node)
        if bind(candidate.node):
            return candidate.node, tried
    return None, tried


def commit_list(
    offered: Sequence[ScoredNode],
    version: Callable[[str], int | None],
    rescore: Callable[[str], float | None],
    bind: Callable[[str], bool],
    *,
    epoch: int,
) -> tuple[str | None, list[str]]:
    """Commit one list; for the arguments see `merge_candidates` and `commit_first`.

    Returns:
        The node, None if all failed, and the nodes that would have been tried next, in order.
    """
    merged = merge_candidates(offered, version, rescore, epoch=epoch)
    node, tried = commit_first(merged, bind)
    return node, [candidate.node for candidate in merged[len(tried) :]]
