"""The two-tier pre-scheduler of the queue (docs/two-tiers.md): equal pods share a list of candidates. Pure.

The first tier scores all nodes once for each shape and keeps the best nodes with their versions. The second
tier, the single committer, tries a pod on that list and filters and scores again only the nodes that have
changed since. An unchanged node that is not on the list ranks behind the last one on it. So the decision is
the same as if all nodes were scored for each pod.
"""

from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

import numpy as np

from kubeapi.bounded import BoundedDict
from scheduler_plugin.binding.two_tier import ScoredNode, commit_list
from scheduler_plugin.cache.arrays import BoolArray, LongArray
from scheduler_plugin.queue.capacity.free_capacity import FreeCapacity
from scheduler_plugin.queue.capacity.requirements import PodRequirements
from scheduler_plugin.scheduling.ranking import rank_best

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

LISTED: Final = 32
"""Candidates that a list has; a longer one lasts for more pods and costs each of them more."""

CHANGED: Final = 64
"""Nodes that may have changed since a list was made; with more of them another list costs less."""

REMEMBERED: Final = 256
"""Shapes with a list."""

_Place = tuple[float, str]


@dataclass(slots=True)
class _CandidateList:
    """The first tier's list for one shape.

    Attributes:
        last: Rank behind which every unchanged node that is not on the list stands; None: there is no such
            node.
        made: int64[R], versions of the nodes when the list was made.
        epoch: Epoch of the policy's weights.
        names: Epoch of the rows' names; in another epoch a row may belong to another node.
    """

    offered: tuple[ScoredNode, ...]
    last: _Place | None
    made: LongArray
    epoch: int
    rows: frozenset[int]
    names: int


class CandidateListPlacer:
    """Places pods one after the other, with the result that scoring all nodes for each would give."""

    def __init__(self, capacity: FreeCapacity) -> None:
        self._capacity = capacity
        self._lists: BoundedDict[PodRequirements, _CandidateList] = BoundedDict(REMEMBERED)
        self.lists = 0
        self._next_nodes: Callable[[], Iterable[str]] = tuple

    def list_next_nodes(self, most: int) -> tuple[str, ...]:
        """List up to `most` nodes that come next for the pod that was placed last, in order.

        The nodes are those of its list, or those that the policy would take next.
        """
        return tuple(islice(self._next_nodes(), most))

    def forget_lists(self) -> None:
        """Forget all lists, because the policy that made them has been replaced."""
        self._lists.clear()

    def place_pod(
        self, uid: str, requirements: PodRequirements, fits: BoolArray, now: float, *, leader_uid: str = ""
    ) -> str:
        """Take a pod's cards on the best node that has them.

        Args:
            fits: bool[R], where it fits now and may be placed.
            leader_uid: UID of the first pod of its gang, for policies that count attempts: the pods of a gang
                are held back together. Empty: it has none.
        """
        self._next_nodes = tuple
        if not self._capacity.is_scored_by_row(requirements):
            return self._place_alone(uid, requirements, fits, now, leader_uid or uid)
        known = self._lists.get(requirements)
        if known is not None:
            node = self._commit_from_list(uid, requirements, known, fits, now)
            if node is not None:
                return node
        return self._commit_from_list(uid, requirements, self._make_list(requirements, fits), fits, now) or ""

    def _place_alone(
        self, uid: str, requirements: PodRequirements, fits: BoolArray, now: float, leader_uid: str
    ) -> str:
        row = self._capacity.choose_row(leader_uid, requirements, fits, now)
        if row is None or not self._capacity.assume_pod(uid, requirements, row, now):
            return ""
        self._next_nodes = partial(self._capacity.list_next_nodes, leader_uid, requirements, row, fits)
        return self._capacity.state.nodes.names[row]

    def _make_list(self, requirements: PodRequirements, fits: BoolArray) -> _CandidateList:
        """Run the first tier: score all nodes where the pod may be placed."""
        nodes = self._capacity.state.nodes
        rows = np.flatnonzero(fits)
        scores = self._capacity.score_rows(requirements, rows)
        first = rank_best(scores, nodes.name_rank[rows], LISTED)
        epoch = self._capacity.get_policy_epoch(requirements)
        offered = tuple(
            ScoredNode(nodes.names[row], score, int(nodes.version[row]), epoch)
            for row, score in zip(rows[first].tolist(), scores[first].tolist(), strict=True)
        )
        made = nodes.version.copy()
        # Who could not be placed when the list was made is not behind its last: it counts as changed.
        made[~fits] = -1
        last = (offered[-1].score, offered[-1].node) if len(offered) == LISTED else None
        found = self._lists[requirements] = _CandidateList(
            offered, last, made, epoch, frozenset(rows[first].tolist()), nodes.index.epoch
        )
        self.lists += 1
        return found

    def _commit_from_list(
        self, uid: str, requirements: PodRequirements, known: _CandidateList, fits: BoolArray, now: float
    ) -> str | None:
        """Run the second tier: commit a pod from a list; None once the list is used up."""
        nodes, capacity = self._capacity.state.nodes, self._capacity
        epoch = capacity.get_policy_epoch(requirements)
        if known.names != nodes.index.epoch or epoch != known.epoch:
            return None
        changed = np.flatnonzero((nodes.version != known.made) & fits)
        if changed.size > CHANGED:
            return None
        scores = dict(zip(changed.tolist(), capacity.score_rows(requirements, changed).tolist(), strict=True))
        more = [ScoredNode(nodes.names[row], 0.0, -1, epoch) for row in scores if row not in known.rows]
        offered = [scored for scored in known.offered if self._is_allowed(scored.node, fits)]

        def version(node: str) -> int | None:
            row = nodes.rows.get(node)
            return None if row is None else int(nodes.version[row])

        def rescore(node: str) -> float | None:
            score = scores.get(nodes.rows[node], np.inf)
            return score if score < np.inf else None

        def bind(node: str) -> bool:
            row = nodes.rows[node]
            if known.last is not None and (scores.get(row, -np.inf), node) > known.last:
                # Somebody who is not on the list may be better.
                return False
            return capacity.assume_pod(uid, requirements, row, now)

        chosen, left = commit_list([*offered, *more], version, rescore, bind, epoch=epoch)
        if chosen:
            self._next_nodes = partial(iter, left)
        return chosen or (None if known.last is not None else "")

    def _is_allowed(self, node: str, fits: BoolArray) -> bool:
        row = self._capacity.state.nodes.rows.get(node)
        return row is not None and bool(fits[row])
