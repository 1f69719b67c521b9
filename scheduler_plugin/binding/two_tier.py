"""Two-tier scheduling of batches: many workers score snapshots, one commits; see docs/two-tiers.md.

`merge_candidates`, `commit_first` and `commit_list` are the committer's steps for one list. `TurnQueue` keeps
the order of pods and their retries. `benchmarks/two_tier/workers.py` runs the first tier in processes.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from scheduler_plugin.errors import SettingsError

Rescore = Literal["on-epoch", "on-version"]

_LONGEST_BACKOFF_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class PodTurn:
    """A pod's place in the queue of a batch: its number, earlier turns, and the earliest time of this one."""

    pod: int
    attempt: int = 0
    not_before_s: float = 0.0


class TurnQueue:
    """The pods of a batch in order; a pod that failed goes to the tail, later each time.

    Args:
        attempts: Turns a pod gets at most.
        backoff_s: Wait after the first failure; doubled each time, 5 s at most.

    Raises:
        SettingsError: attempts below 1, or a negative back-off.
    """

    def __init__(self, pods: int, attempts: int = 5, backoff_s: float = 0.05) -> None:
        if attempts < 1 or backoff_s < 0:
            raise SettingsError(
                f"{attempts} attempts with a back-off of {backoff_s:g} s; allowed: 1 or more, from 0 s"
            )
        self.attempts = attempts
        self.backoff_s = backoff_s
        self._queue = deque(PodTurn(pod) for pod in range(pods))

    def __len__(self) -> int:
        return len(self._queue)

    def pop_due(self, now_s: float) -> PodTurn | None:
        for at, turn in enumerate(self._queue):
            if turn.not_before_s <= now_s:
                del self._queue[at]
                return turn
        return None

    def get_next_due_s(self) -> float:
        return min((turn.not_before_s for turn in self._queue), default=float("inf"))

    def requeue_failed(self, turn: PodTurn, now_s: float) -> bool:
        """Put a pod back at the tail; False if it has used up its turns."""
        if turn.attempt + 1 >= self.attempts:
            return False
        wait_s = min(_LONGEST_BACKOFF_S, self.backoff_s * 2**turn.attempt)
        self._queue.append(PodTurn(turn.pod, turn.attempt + 1, now_s + wait_s))
        return True


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


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The outcome of one list.

    Attributes:
        left: Nodes that would have been tried next, in order.
        conflicts: Nodes of the list that had changed since they were scored.
    """

    node: str | None
    tried: tuple[str, ...]
    left: tuple[str, ...]
    conflicts: int


def commit_list(
    offered: Sequence[ScoredNode],
    version: Callable[[str], int | None],
    rescore: Callable[[str], float | None],
    bind: Callable[[str], bool],
    *,
    epoch: int = 0,
    mode: Rescore = "on-epoch",
) -> CommitResult:
    """Commit one list; for the arguments see `merge_candidates` and `commit_first`.

    Args:
        mode: `on-epoch` rescores candidates that were scored with other weights, `on-version` does not.
    """
    if mode == "on-version":
        offered = [replace(candidate, epoch=epoch) for candidate in offered]
    conflicts = sum(version(candidate.node) != candidate.version for candidate in offered)
    merged = merge_candidates(offered, version, rescore, epoch=epoch)
    node, tried = commit_first(merged, bind)
    left = tuple(candidate.node for candidate in merged[len(tried) :])
    return CommitResult(node, tuple(tried), left, conflicts)
