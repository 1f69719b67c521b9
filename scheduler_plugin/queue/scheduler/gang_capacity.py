"""Capacity for all pods of a workload at once: which fit now, and which pods must go for the rest. Pure."""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache, partial
from itertools import chain
from typing import Final

import numpy as np

from allocator.cards import Card, CardAmounts
from allocator.request import Demand
from scheduler_plugin.preemption.node_victims import NodeUnderPreemption, drop_needless, view_node
from scheduler_plugin.queue.cache.queued_pods import QueuedPod, VictimGroup
from scheduler_plugin.queue.capacity.free_capacity import FreeCapacity
from scheduler_plugin.queue.capacity.quota_usage import RowFilter
from scheduler_plugin.queue.capacity.requirements import Member, PodRequirements
from scheduler_plugin.queue.capacity.reservations import NodeReservations, QueueReservation
from scheduler_plugin.scheduling.node_fit import leave_out_undecided
from scheduler_plugin.scheduling.scratch_node import ScratchNode

BEST: Final = 32
"""Nodes that come first by the node policy; others come by name."""

Pods = Mapping[str, Sequence[Member]]
"""Pods of the gang by the node where they are to go."""


class GangPlacer:
    """Finds places for one workload, a gang or a single pod, without assuming anything.

    Args:
        pods: Its pods, the hardest to place first.
        leaving: Pods that are about to be gone in any case.
        ended: What of ended pods is about to become free, see `EndedPods.sum_charges`.
        among: bool[R], nodes that come into question for a pod; None: all.
        places_left: Counts the pods that a node may still take without evictions; None: no limit.
    """

    def __init__(
        self,
        capacity: FreeCapacity,
        workload_uid: str,
        pods: Iterable[Member],
        *,
        leaving: Iterable[QueuedPod],
        ended: Mapping[str, Mapping[int, CardAmounts]],
        among: RowFilter | None,
        places_left: Callable[[str], int] | None,
    ) -> None:
        self._capacity = capacity
        self._workload_uid = workload_uid
        self._among = None if among is None else cache(among)
        self._places_left = places_left
        self._ended = ended
        self._leaving: dict[str, list[QueuedPod]] = {}
        for pod in leaving:
            self._leaving.setdefault(pod.record.node, []).append(pod)
        self._views: dict[str, NodeUnderPreemption | None] = {}
        self._placed: dict[str, list[Member]] = {}
        self._cleared: dict[str, str] = {}
        self.rest = self._place_now(pods)
        """Pods that find no room beside the others unless somebody goes."""

    def _place_now(self, pods: Iterable[Member]) -> list[Member]:
        """Place the pods that fit without evictions; return the rest."""
        nodes = self._capacity.state.nodes
        names, rank = nodes.names, nodes.name_rank
        able: dict[PodRequirements, list[str]] = {}
        rest = []
        for pod in pods:
            if pod[1] not in able:
                rows = np.flatnonzero(self._capacity.mask_fits(pod[1], holder=self._workload_uid))
                best = self._capacity.rank_rows(pod[1], rows, BEST).tolist()
                by_name = [row for row in rows[np.argsort(rank[rows])].tolist() if row not in set(best)]
                fits = [names[row] for row in (*best, *by_name)]
                soon = self._leaving.keys() | self._ended.keys()
                able[pod[1]] = [*fits, *sorted(soon - set(fits))][::-1]
            left = able[pod[1]]
            # Who finds no room beside those placed so far never will.
            while left and self._place_on_node(left[-1], (), [*self._placed.get(left[-1], ()), pod]) is None:
                left.pop()
            if left:
                self._placed.setdefault(left[-1], []).append(pod)
            else:
                rest.append(pod)
        return rest

    def find_victims(self, borrowed: Mapping[str, Sequence[VictimGroup]]) -> list[VictimGroup] | None:
        """Find the victims for the rest, pod by pod: each time the fewest victims of a single node.

        Args:
            borrowed: Possible victims by node, in the order in which to evict them. Of nodes with equally
                many victims the first one is chosen.

        Returns:
            None if no victims would suffice.
        """
        gone: list[VictimGroup] = []
        placed = {node: list(pods) for node, pods in self._placed.items()}
        known: dict[tuple[str, PodRequirements], list[VictimGroup] | None] = {}
        for pod in self.rest:
            best: tuple[int, str, list[VictimGroup]] | None = None
            for node in borrowed:
                key = (node, pod[1])
                if key not in known:
                    pods = [*placed.get(node, ()), pod]
                    known[key] = self._find_more_victims(node, pods, gone, borrowed[node])
                more = known[key]
                if more is not None and (best is None or count_pods(more) < best[0]):
                    best = (count_pods(more), node, more)
                    if not more or (best[0] == 1 and not gone):
                        # Nobody else can need fewer.
                        break
            if best is None:
                return None
            _, node, more = best
            gone.extend(more)
            placed.setdefault(node, []).append(pod)
            self._cleared[pod[0]] = node
            changed = {node, *(queued_pod.record.node for victims in more for queued_pod in victims.pods)}
            known = {key: found for key, found in known.items() if key[0] not in changed}
        return gone

    def find_places(self, victims: Collection[QueuedPod]) -> dict[str, QueueReservation]:
        """Find the node of each pod once the victims are gone, by UID; empty if not all pods fit."""
        placed, nodes = self._place_rest(victims), self._capacity.state.nodes
        found: dict[str, QueueReservation] = {}
        for node, pods in (placed or {}).items():
            cards = self._place_on_node(node, _list_on_node(node, victims), pods) or {}
            uuids = nodes.uuids[nodes.rows[node]]
            for uid, requirements in pods:
                if uid in cards:
                    amounts = requirements.amounts.without_sums()
                    found[uid] = QueueReservation(self._workload_uid, node, cards[uid], amounts, uuids)
        return found

    def _place_rest(self, victims: Collection[QueuedPod]) -> Pods | None:
        """Place the rest as if these victims were gone; None if not all of it fits.

        A pod goes where `find_victims` found room for it, or else to any node of a victim.
        """
        placed = {node: list(pods) for node, pods in self._placed.items()}
        # In whatever order the victims are named.
        nodes = dict.fromkeys([*self._placed, *sorted({victim.record.node for victim in victims})])
        for pod in self.rest:
            cleared = self._cleared.get(pod[0])
            for node in dict.fromkeys([cleared, *nodes]) if cleared in nodes else nodes:
                pods = [*placed.get(node, ()), pod]
                if self._place_on_node(node, _list_on_node(node, victims), pods) is not None:
                    placed[node] = pods
                    break
            else:
                return None
        return placed

    def _find_more_victims(
        self,
        node: str,
        pods: Sequence[Member],
        gone: Sequence[VictimGroup],
        candidates: Iterable[VictimGroup],
    ) -> list[VictimGroup] | None:
        """Find the fewest further victims of a node for these pods to fit there; None: none suffice."""
        left = [victims for victims in candidates if victims not in gone]

        def is_enough(more: Sequence[VictimGroup]) -> bool:
            return self._place_on_node(node, _list_on_node(node, list_pods([*gone, *more])), pods) is not None

        if not is_enough(left):
            return None
        count = bisect_left(range(len(left)), True, key=lambda count: is_enough(left[:count]))
        found = [left[:count]]
        of_cards = self._find_card_victims(node, pods, _list_on_node(node, list_pods(gone)), left)
        if is_enough(of_cards):
            found.append(of_cards)
        return min((drop_needless(each, is_enough) for each in found), key=count_pods)

    def _find_card_victims(
        self, node: str, pods: Sequence[Member], gone: Iterable[QueuedPod], candidates: Sequence[VictimGroup]
    ) -> list[VictimGroup]:
        """Find victims on the cards of a node that need the fewest, for the last of these pods.

        Only cards are checked, one demand after the other, so the result may not suffice.
        """
        requirements, row = pods[-1][1], self._capacity.state.nodes.rows[node]
        view = self._read_node(node, requirements)
        if view is None:
            return []
        scratch = self._make_scratch(node, view, self._list_gone(node, gone))
        if self._put_pods(node, scratch, pods[:-1]) is None:
            return []
        admits, closed = (
            self._capacity.make_query(requirements).policy_request.admits,
            self._sum_reserved(node).cards,
        )
        found: set[VictimGroup] = set()
        for demand in requirements.request.demands:
            able: list[tuple[int, int, list[VictimGroup]]] = []
            for at, card in enumerate(scratch.cards):
                if at in closed or (admits is not None and not admits[row, at]):
                    continue
                goes = _take_largest(view, at, card, demand, candidates) if view.open_units[at] else None
                if goes is not None:
                    able.append((count_pods(goes), at, goes))
            found.update(
                chain.from_iterable(
                    goes for *_, goes in sorted(able, key=lambda each: each[:2])[: demand.cards]
                )
            )
        return [victims for victims in candidates if victims in found]

    def _is_allowed(self, node: str, row: int, requirements: PodRequirements) -> bool:
        if not self._capacity.state.nodes.mask_offering(requirements.request)[row]:
            return False
        if self._among is not None and not self._among(requirements)[row]:
            return False
        return self._capacity.is_allowed(requirements, node)

    def _place_on_node(
        self, node: str, gone: Iterable[QueuedPod], pods: Sequence[Member]
    ) -> dict[str, tuple[int, ...]] | None:
        """Place pods on one node as if some others were gone: cards by UID; None if not all of them fit."""
        row = self._capacity.state.nodes.rows.get(node)
        if row is None or not self._is_allowed(node, row, pods[-1][1]):
            # Those before it were let on to the node when they were the last.
            return None
        view = self._read_node(node, pods[0][1])
        if view is None:
            return None
        uids = self._list_gone(node, gone)
        reserved = self._sum_reserved(node)
        if (
            self._places_left is not None
            and self._places_left(node) + len(uids) < len(pods) + reserved.amounts.pods
        ):
            return None
        return self._put_pods(node, self._make_scratch(node, view, uids), pods)

    def _read_node(self, node: str, requirements: PodRequirements) -> NodeUnderPreemption | None:
        """Return a node as preemption sees it, cached; None if its cards cannot be used."""
        if node not in self._views:
            self._views[node] = view_node(self._capacity.state, node, self._capacity.make_query(requirements))
        return self._views[node]

    def _list_gone(self, node: str, gone: Iterable[QueuedPod]) -> list[str]:
        return [pod.uid for pod in (*self._leaving.get(node, ()), *gone)]

    def _sum_reserved(self, node: str) -> NodeReservations:
        nodes = self._capacity.state.nodes
        return self._capacity.reservations.sum_others(self._workload_uid, node, nodes.uuids[nodes.rows[node]])

    def _make_scratch(self, node: str, view: NodeUnderPreemption, uids: Collection[str]) -> ScratchNode:
        """Make a node as if these pods, and those that have ended, were gone.

        Cards that are reserved for others are full, and what else is reserved there is not left.
        """
        reserved = self._sum_reserved(node)
        cards = [
            card.with_free_units(0) if at in reserved.cards else card
            for at, card in enumerate(view.get_cards_without(uids, self._ended.get(node, {})))
        ]
        return ScratchNode(cards, view.get_left_without(uids).subtract(reserved.amounts))

    def _put_pods(
        self, node: str, scratch: ScratchNode, pods: Iterable[Member]
    ) -> dict[str, tuple[int, ...]] | None:
        """Put pods on a node one after the other: cards by UID; None if not all of them fit."""
        capacity = self._capacity.state.node_records[node].capacity
        found: dict[str, tuple[int, ...]] = {}
        for uid, requirements in pods:
            query = self._capacity.make_query(requirements)
            asked = leave_out_undecided(requirements.amounts, capacity).without_sums()
            put = partial(scratch.put_pod, query.request, query.policy_request.card_policy, asked)
            done = self._capacity.call_policy(requirements, put, None)
            if done is None:
                return None
            found[uid] = tuple(sorted(done.placement.charge))
        return found


def _take_largest(
    view: NodeUnderPreemption, at: int, card: Card, demand: Demand, candidates: Iterable[VictimGroup]
) -> list[VictimGroup] | None:
    """Take those who free most by pod of what a demand lacks on a card, until nothing is short."""
    units, compute = card.compute_shortage(demand.units_on(card.size_units), demand.compute)
    of_units, of_compute = (units > 0) / max(1, card.size_units), (compute > 0) / max(1, card.compute_limit)
    freed: list[tuple[float, int, int, VictimGroup]] = []
    for group in candidates:
        amounts = [view.freed.get(pod.uid, {}).get(at, (0, 0)) for pod in group.pods]
        more_units, more_compute = sum(each for each, _ in amounts), sum(each for _, each in amounts)
        gain = (more_units * of_units + more_compute * of_compute) / len(group.pods)
        freed.append((gain, more_units, more_compute, group))
    goes: list[VictimGroup] = []
    for gain, more_units, more_compute, group in sorted(freed, key=lambda each: -each[0]):
        if not gain or (units <= 0 and compute <= 0):
            break
        goes.append(group)
        units, compute = units - more_units, compute - more_compute
    return goes if units <= 0 and compute <= 0 else None


def count_pods(victims: Collection[VictimGroup]) -> int:
    return sum(len(group.pods) for group in victims)


def list_pods(victims: Iterable[VictimGroup]) -> list[QueuedPod]:
    return [pod for group in victims for pod in group.pods]


def _list_on_node(node: str, victims: Iterable[QueuedPod]) -> list[QueuedPod]:
    return [victim for victim in victims if victim.record.node == node]
