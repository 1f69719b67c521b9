"""Where the cluster has room for a pod of the queue: cards, processor, host memory, labels, taints. Pure."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Final

import numpy as np

from allocator.cards import Card
from allocator.place import place
from scheduler_plugin.cluster.arrays import BoolArray, FloatArray, LongArray, RowArray
from scheduler_plugin.cluster.cards import cards_of
from scheduler_plugin.cluster.state import ClusterState
from scheduler_plugin.placement.cluster_policies import Policies
from scheduler_plugin.placement.filtering import fitting
from scheduler_plugin.placement.placing import place_with, score
from scheduler_plugin.placement.query import Query
from scheduler_plugin.placement.ranking import best
from scheduler_plugin.queue.labels import Taint
from scheduler_plugin.queue.wants import Wants

_NEVER: Final = 1 << 40

if TYPE_CHECKING:
    from allocator.records import Assignment


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What placing needs to know of a node besides its cards.

    Attributes:
        labels: Of the node.
        taints: Of the node.
        unschedulable: It is cordoned.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False


@dataclass(frozen=True, slots=True)
class Kept:
    """Cards that are kept free for a pod.

    Attributes:
        task: UID of the task that waits: the pod's, or its gang's.
        node: Its name: rows are given to other nodes when one is gone.
        cards: Of the node, by position.
    """

    task: str
    node: str
    cards: tuple[int, ...]


@dataclass(slots=True)
class _Mask:
    """Where a pod fits, by row, and which version of each row says so."""

    fits: BoolArray
    made: np.ndarray[tuple[int], np.dtype[np.int64]]
    facts: int
    query: Query


class Room:
    """The cluster's room, and room that is kept free for single pods.

    Args:
        state: The cluster, with what was released and is not bound as takes.
        policies: Of the cluster.
    """

    def __init__(self, state: ClusterState, policies: Policies) -> None:
        self.state = state
        self.policies = policies
        self.facts: dict[str, NodeFacts] = {}
        self._facts_version = 0
        self._masks: dict[Wants, _Mask] = {}
        self._kept: dict[str, Kept] = {}

    def set_facts(self, node: str, facts: NodeFacts | None) -> bool:
        """Take what is known of a node, None when it is gone; tell whether that changed anything."""
        if self.facts.get(node) == facts:
            return False
        if facts is None:
            del self.facts[node]
        else:
            self.facts[node] = facts
        self._facts_version += 1
        return True

    def forget_unused(self, used: set[Wants]) -> None:
        """Drop what was remembered of needs that no waiting pod has any more."""
        for wants in [wants for wants in self._masks if wants not in used]:
            del self._masks[wants]

    def fits(self, wants: Wants, *, holder: str = "") -> BoolArray:
        """Tell where a pod fits now.

        Args:
            wants: The pod's needs.
            holder: UID of the task that asks: what is kept free for it is free to it.

        Returns:
            bool[R]. Read it before anything changes.

        Raises:
            RequestError: it names a node policy that does not exist.
        """
        mask = self._mask(wants)
        if not self._kept:
            return mask.fits
        fits = mask.fits.copy()
        for kept in self._kept.values():
            row = self.state.nodes.rows.get(kept.node)
            if row is not None and kept.task != holder and fits[row]:
                fits[row] = self._place_beside(mask.query, row, kept.cards)
        return fits

    def fits_but_for_kept(self, wants: Wants) -> bool:
        """Whether a pod would fit somewhere if nothing were kept free."""
        return bool(self._mask(wants).fits.any())

    def best(self, wants: Wants, rows: RowArray, limit: int = 1) -> RowArray:
        """Order rows that fit by the node policy.

        Args:
            wants: The pod's needs.
            rows: intp[m], all of them fit.
            limit: How many at most.

        Returns:
            intp[k], best first; the policy may hold a pod back from every row.
        """
        ranks = self.state.nodes.name_rank[rows]
        return rows[best(self.scores(wants, rows), ranks, limit)] if len(rows) else rows

    def scores(self, wants: Wants, rows: RowArray) -> FloatArray:
        """Score rows that fit by the node policy, float64[m]; lower is better, infinite: held back."""
        query = self.query(wants)
        if not len(rows):
            return np.zeros(0, dtype=np.float64)
        return score(self.policies.of(query.request), self.state.nodes, query, rows)

    def policy(self, wants: Wants) -> str:
        """Name of the node policy for a pod."""
        return wants.request.node_policy or self.policies.node_policy

    def epoch(self, wants: Wants) -> int:
        """Of the weights of that policy: scores of another one cannot be compared."""
        return self.policies.of(wants.request).epoch

    def take(self, uid: str, wants: Wants, row: int, now: float) -> bool:
        """Take a pod's cards on a node; False when it does not fit there (then nothing is taken)."""
        nodes, query = self.state.nodes, self.query(wants)
        mine = self._kept.get(uid)
        kept = self.kept_from(uid if mine is None else mine.task, row)
        placement = None
        if mine is not None and mine.node == nodes.names[row]:
            others = set(range(int(nodes.cards[row]))).difference(mine.cards)
            placement = place(self._without(row, [*kept, *others]), query.request, query.ask.card_policy)
        if placement is None:
            placement = place_with(self.policies.of(query.request), nodes, row, query)
        if placement is not None and not set(kept).isdisjoint(placement.charge):
            placement = place(self._without(row, kept), query.request, query.ask.card_policy)
        if placement is None:
            return False
        uuids = nodes.uuids[row]
        assigned: Assignment | None = None
        if uuids:
            assigned = {
                container: tuple((uuids[card], units) for card, units in shares)
                for container, shares in placement.containers
            }
        self.state.take(uid, nodes.names[row], assigned, now)
        return True

    # Room that is kept.

    def keep(self, uid: str, wants: Wants, node: str = "", among: BoolArray | None = None) -> str:
        """Keep cards for a pod that fits nowhere: those that need the least to become free.

        Args:
            uid: Of the pod.
            wants: Its needs.
            node: Where, empty: on the node that needs the least.
            among: bool[R], nodes that come into question; None: all.

        Returns:
            The node, empty where no node could ever take the pod.
        """
        nodes = self.state.nodes
        wanted = nodes.usable.copy()
        wanted[[nodes.rows[kept.node] for kept in self._kept.values() if kept.node in nodes.rows]] = False
        if node:
            wanted &= np.arange(len(wanted)) == nodes.rows.get(node, -1)
        if among is not None:
            wanted &= among
        rows = np.flatnonzero(wanted)
        bound = self._least_missing(wants, rows)
        found: tuple[int, str, int, tuple[int, ...]] | None = None
        for at in np.lexsort((nodes.name_rank[rows], bound)).tolist():
            row = int(rows[at])
            name = nodes.names[row]
            if found is not None and (bound[at], name) > found[:2]:
                break
            choice = self._least_used(wants, row) if self.allowed(wants, name) else None
            if choice is not None and (found is None or (choice[0], name) < found[:2]):
                found = (choice[0], name, row, choice[1])
        if found is None:
            return ""
        self._kept[uid] = Kept(uid, found[1], found[3])
        return found[1]

    def keep_cards(self, uid: str, kept: Kept) -> None:
        """Keep these cards free for a pod."""
        self._kept[uid] = kept

    def _least_missing(self, wants: Wants, rows: RowArray) -> LongArray:
        """Units that must become free at least before a pod fits, int64[m]: for its largest demand."""
        nodes = self.state.nodes
        size = nodes.evictable[rows]
        if not size.size:
            return np.zeros(len(rows), dtype=np.int64)
        largest = int(size.max())
        demand = max(wants.request.demands, key=lambda each: each.units_on(largest) * each.cards)
        sizes, at = np.unique(size, return_inverse=True)
        units = np.array([demand.units_on(each) for each in sizes.tolist()])[at].reshape(size.shape)
        missing = np.maximum(0, nodes.occupied[rows] + units - size).astype(np.int64)
        missing[size < units] = _NEVER
        if demand.cards > missing.shape[1]:
            return np.full(len(rows), _NEVER, dtype=np.int64)
        least: LongArray = np.sort(missing, axis=1)[:, : demand.cards].sum(axis=1)
        return least

    def give_up(self, task: str) -> None:
        """Keep nothing for a task any more."""
        for uid in [uid for uid, kept in self._kept.items() if kept.task == task]:
            del self._kept[uid]

    def kept_for(self, uid: str) -> str:
        """Name of the node on which cards are kept for a pod, empty for none."""
        kept = self._kept.get(uid)
        return "" if kept is None else kept.node

    def serves(self, pods: Iterable[tuple[str, Wants]]) -> bool:
        """Whether what is kept for pods can still become free, on nodes that they may run on."""
        for uid, wants in pods:
            kept = self._kept.get(uid)
            row = None if kept is None else self.state.nodes.rows.get(kept.node)
            if kept is None or row is None or not self.state.nodes.usable[row]:
                return False
            if not self.allowed(wants, kept.node) or self._least_used(wants, row, kept.cards) is None:
                return False
        return True

    @property
    def keeping(self) -> tuple[str, ...]:
        """UIDs of the tasks for which cards are kept."""
        return tuple(dict.fromkeys(kept.task for kept in self._kept.values()))

    def kept_from(self, task: str, row: int) -> list[int]:
        """Cards of a node that are kept from a task for others."""
        name = self.state.nodes.names[row]
        others = (kept for kept in self._kept.values() if kept.node == name and kept.task != task)
        return list(chain.from_iterable(kept.cards for kept in others))

    def _least_used(
        self, wants: Wants, row: int, among: Collection[int] | None = None
    ) -> tuple[int, tuple[int, ...]] | None:
        """Units that must become free before a pod fits on a node, and the cards; None: it never will.

        Args:
            wants: The pod's needs.
            row: Of the node.
            among: Cards that come into question; None: all.
        """
        nodes = self.state.nodes
        if nodes.cpu_capacity[row] < wants.cpu_milli or nodes.memory_capacity[row] < wants.memory_bytes:
            return None
        open_units = nodes.evictable[row].tolist()
        occupied = nodes.occupied[row].tolist()
        admits = self.query(wants).ask.admits
        missing, cards, added = 0, [], dict.fromkeys(range(len(open_units)), 0)
        for demand in wants.request.demands:
            needs = [demand.units_on(size) for size in open_units]
            able = sorted(
                (max(0, occupied[card] + added[card] + needs[card] - size), card)
                for card, size in enumerate(open_units)
                if size >= added[card] + needs[card]
                and (admits is None or admits[row, card])
                and (among is None or card in among)
            )[: demand.cards]
            if len(able) < demand.cards:
                return None
            for short, card in able:
                missing += short
                added[card] += needs[card]
                cards.append(card)
        return missing, tuple(sorted(set(cards)))

    def _place_beside(self, query: Query, row: int, cards: Sequence[int]) -> bool:
        left = self._without(row, cards)
        return place(left, query.request, query.ask.card_policy) is not None

    def _without(self, row: int, cards: Sequence[int]) -> list[Card]:
        """The cards of a node, some of them counted as full."""
        return [
            replace(card, used_units=card.size_units) if card.index in cards else card
            for card in cards_of(self.state.nodes, row)
        ]

    # Masks.

    def _mask(self, wants: Wants) -> _Mask:
        nodes = self.state.nodes
        mask = self._masks.get(wants)
        size = nodes.row_count
        if mask is not None and wants.request.selector.admits_all:
            query = mask.query
        else:
            query = self.policies.query(nodes, wants.request, wants.cpu_milli, wants.memory_bytes)
        if mask is None or len(mask.made) != size or mask.facts != self._facts_version:
            made = np.full(size, -1, dtype=np.int64)
            mask = _Mask(np.zeros(size, dtype=np.bool_), made, self._facts_version, query)
            self._masks[wants] = mask
        mask.query = query
        rows = np.flatnonzero(mask.made != nodes.version)
        if rows.size:
            mask.fits[rows] = self._fit(wants, query, rows)
            mask.made[rows] = nodes.version[rows]
        return mask

    def _fit(self, wants: Wants, query: Query, rows: RowArray) -> BoolArray:
        nodes = self.state.nodes
        fits = fitting(nodes, query, rows)
        fits &= nodes.cpu_used[rows] + wants.cpu_milli <= nodes.cpu_capacity[rows]
        fits &= nodes.memory_used[rows] + wants.memory_bytes <= nodes.memory_capacity[rows]
        for at in np.flatnonzero(fits).tolist():
            fits[at] = self.allowed(wants, nodes.names[rows[at]])
        return fits

    def query(self, wants: Wants) -> Query:
        """A pod's needs, ready to be asked of the arrays."""
        return self._mask(wants).query

    def allowed(self, wants: Wants, name: str) -> bool:
        """Whether labels and taints of a node let a pod run there."""
        facts = self.facts.get(name)
        if facts is None:
            return False
        return wants.rules.allow(name, facts.labels, facts.taints, unschedulable=facts.unschedulable)
