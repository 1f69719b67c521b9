"""Free and total capacity for pods of the queue: cards, cpu, host memory, labels, taints. Pure."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeVar

import numpy as np

from allocator.cards import Card
from allocator.place import Placement, place
from kubeapi.bounded import BoundedDict
from kubeapi.selectors import NodeRules, NodeTraits
from scheduler_plugin.cache.amounts import Amounts
from scheduler_plugin.cache.arrays import BoolArray, FloatArray, LongArray, RowArray
from scheduler_plugin.cache.cards import build_cards
from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.queue.capacity.requirements import PodRequirements
from scheduler_plugin.queue.capacity.reservations import NodeReservations, QueueReservations
from scheduler_plugin.scheduling.cluster_policies import ClusterPolicies
from scheduler_plugin.scheduling.filtering import filter_nodes
from scheduler_plugin.scheduling.fit_counts import count_most_on_empty
from scheduler_plugin.scheduling.node_fit import can_run_on, leave_out_undecided
from scheduler_plugin.scheduling.placing import POLICY_FAULTS, place_by_policy, score_nodes
from scheduler_plugin.scheduling.policies.registry import is_scored_by_row, picks_nodes
from scheduler_plugin.scheduling.ranking import rank_best
from scheduler_plugin.scheduling.request import SchedulingRequest, with_compute

T = TypeVar("T")


FEW_ROWS: Final = 64
"""Up to this many rows, labels and taints are checked row by row."""

REMEMBERED_RULES: Final = 256
"""Scheduling rules whose allowed rows are cached."""

ROUND_S: Final = 1.0
"""The queue decides whenever something changes; a policy that holds pods back counts a round a second."""

REMEMBERED_ROUNDS: Final = 4096
"""Held back pods whose newest round is remembered."""


@dataclass(slots=True)
class _FitMask:
    """Rows where a pod fits, and the version of each row that this was computed from.

    Attributes:
        changes: The count of `RowChanges` when the mask was last computed; 0: never.
        beside: By node: whether the pod fits beside the reservations there, preceded by the versions and the
            UID that this was computed for.
    """

    fits: BoolArray
    made: np.ndarray[tuple[int], np.dtype[np.int64]]
    facts: int
    query: SchedulingRequest
    changes: int = 0
    beside: dict[str, tuple[int, int, str, bool]] = field(default_factory=dict)


class FreeCapacity:
    """The free capacity of the cluster, and the reservations in it.

    Args:
        state: The cluster; pods that are admitted and not yet bound are assumed in it.

    Attributes:
        reservations: Capacity reserved for pods that have waited long, or for which others are being evicted.
        capacity: What the cluster could hold if it were empty.
        faults: By requirements: the invalid scores, cards or costs that a pod's policy returned. Such pods
            wait.
        held_back: Requirements of pods that a policy held back from every node that they fit on.
        facts_version: +1 whenever anything but the cards of a node changes.
    """

    def __init__(self, state: ClusterState, policies: ClusterPolicies) -> None:
        self.state = state
        self.policies = policies
        self.facts: dict[str, NodeTraits] = {}
        self.facts_version = 0
        self._masks: dict[PodRequirements, _FitMask] = {}
        self._rounds: BoundedDict[str, float] = BoundedDict(REMEMBERED_ROUNDS)
        self._allowed: BoundedDict[NodeRules, BoolArray] = BoundedDict(REMEMBERED_RULES)
        self._allowed_key: object = None
        self.faults: dict[PodRequirements, str] = {}
        self.held_back: set[PodRequirements] = set()
        self.reservations = QueueReservations()
        self.capacity = TotalCapacity(self)
        state.set_other_resources(policies.other_resources)
        policies.resources_changed.connect(state.set_other_resources)

    @property
    def total_resources(self) -> Amounts:
        """Resources of all nodes with usable cards."""
        nodes = self.state.nodes
        return Amounts(
            units=int(nodes.size[nodes.usable].sum()),
            cpu_milli=int(nodes.cpu_capacity[nodes.usable].sum()),
            memory_bytes=int(nodes.memory_capacity[nodes.usable].sum()),
        )

    def set_facts(self, node: str, facts: NodeTraits | None) -> bool:
        """Set the facts of a node, None once it is deleted; return True if anything changed."""
        if self.facts.get(node) == facts:
            return False
        if facts is None:
            del self.facts[node]
        else:
            self.facts[node] = facts
        self.facts_version += 1
        return True

    def forget_unused(self, used: set[PodRequirements]) -> None:
        """Drop what is cached for requirements that no waiting pod has any more."""
        for requirements in [requirements for requirements in self._masks if requirements not in used]:
            del self._masks[requirements]
        for requirements in [requirements for requirements in self.faults if requirements not in used]:
            del self.faults[requirements]
        self.held_back &= used
        self.capacity.forget_unused(used)

    def mask_fits(self, requirements: PodRequirements, *, holder: str = "") -> BoolArray:
        """Tell where a pod fits now.

        Args:
            holder: UID of the workload that asks; its own reservations do not count against it.

        Returns:
            bool[R]; valid until anything changes.

        Raises:
            RequestError: it names a node policy that does not exist.
        """
        mask = self._get_fit_mask(requirements)
        if not self.reservations:
            return mask.fits
        fits = mask.fits.copy()
        rows = self.state.nodes.rows
        for node in self.reservations.node_names:
            row = rows.get(node)
            if row is not None and fits[row]:
                fits[row] = self._fits_beside(mask, requirements, node, row, holder)
        return fits

    def fits_without_reservations(self, requirements: PodRequirements) -> bool:
        """Return True if a pod would fit somewhere without the reservations."""
        return bool(self._get_fit_mask(requirements).fits.any())

    def rank_rows(self, requirements: PodRequirements, rows: RowArray, limit: int = 1) -> RowArray:
        """Order rows that fit by the node policy.

        Args:
            rows: intp[m], all of them fit.
            limit: How many at most.

        Returns:
            intp[k], best first; the policy may hold a pod back from every row.
        """
        ranks = self.state.nodes.name_rank[rows]
        return rows[rank_best(self.score_rows(requirements, rows), ranks, limit)] if len(rows) else rows

    def choose_row(self, uid: str, requirements: PodRequirements, fits: BoolArray, now: float) -> int | None:
        """Choose the row for a pod whose turn it is; policies count this as an attempt to place it.

        Args:
            uid: UID under which the policy counts attempts: the pod's own, or that of the first pod of its
                gang.
            now: Seconds; a pod that was held back is tried again after `ROUND_S`.

        Returns:
            None if no row fits, or the policy holds the pod back.
        """
        if not fits.any() or now < self._rounds.get(uid, -ROUND_S) + ROUND_S:
            return None
        query = self._make_query_of(uid, requirements)
        row = self._find_first_choice(requirements, query, fits)
        if row is not None:
            self._rounds.pop(uid, None)
            self.held_back.discard(requirements)
        else:
            self._rounds[uid] = now
            self.held_back.add(requirements)
        self.policies.record_attempt(self.state.nodes, query, row)
        return row

    def _make_query_of(self, uid: str, requirements: PodRequirements) -> SchedulingRequest:
        query = self.make_query(requirements)
        return replace(query, policy_request=replace(query.policy_request, pod=uid))

    def _find_first_choice(
        self, requirements: PodRequirements, query: SchedulingRequest, fits: BoolArray
    ) -> int | None:
        """Find the row that the node policy ranks first; None if it holds the pod back."""
        nodes, policy = self.state.nodes, self.policies.get_policy(query.request)
        rules = query.request.rules
        by_cards = query.request.percent or (rules.same_model and nodes.inventory.mixed_models.any())
        if picks_nodes(policy) and not by_cards:
            ask = with_compute(nodes, query).policy_request
            return self.call_policy(requirements, partial(policy.pick_row, nodes, ask, fits), None)
        rows = np.flatnonzero(fits)
        held: FloatArray = np.full(len(rows), np.inf, dtype=np.float64)
        scores = self.call_policy(requirements, lambda: score_nodes(policy, nodes, query, rows), held)
        first = rank_best(scores, nodes.name_rank[rows], 1)
        return int(rows[first[0]]) if len(first) else None

    def list_next_nodes(
        self, uid: str, requirements: PodRequirements, row: int, fits: BoolArray
    ) -> Iterator[str]:
        """List the nodes that the node policy ranks next for a pod; this counts as no attempt to place it."""
        query, left = self._make_query_of(uid, requirements), fits.copy()
        found: int | None = row
        while found is not None:
            left[found] = False
            found = self._find_first_choice(requirements, query, left)
            if found is not None:
                yield self.state.nodes.names[found]

    def score_rows(self, requirements: PodRequirements, rows: RowArray) -> FloatArray:
        """Score fitting rows by the node policy: float64[m]; lower is better, infinite means held back."""
        query = self.make_query(requirements)
        if not len(rows):
            return np.zeros(0, dtype=np.float64)
        policy = self.policies.get_policy(query.request)
        held: FloatArray = np.full(len(rows), np.inf, dtype=np.float64)
        return self.call_policy(
            requirements, lambda: score_nodes(policy, self.state.nodes, query, rows), held
        )

    def is_scored_by_row(self, requirements: PodRequirements) -> bool:
        """Return True if the node policy for a pod scores each node independently."""
        return is_scored_by_row(self.policies.get_policy(requirements.request))

    def get_policy_epoch(self, requirements: PodRequirements) -> int:
        """Get the epoch of the policy's weights: scores of different epochs cannot be compared."""
        return self.policies.get_policy(requirements.request).epoch

    def assume_pod(self, uid: str, requirements: PodRequirements, row: int, now: float) -> bool:
        """Assume a pod's cards on a node; return False, and change nothing, if it does not fit there."""
        nodes = self.state.nodes
        placement = self.call_policy(requirements, lambda: self._choose_cards(uid, requirements, row), None)
        if placement is None:
            return False
        self.faults.pop(requirements, None)
        self.state.assume(uid, nodes.names[row], placement.name_cards(nodes.uuids[row]), now)
        return True

    def _choose_cards(self, uid: str, requirements: PodRequirements, row: int) -> Placement | None:
        nodes, query = self.state.nodes, self.make_query(requirements)
        own_reservation, uuids = self.reservations.get_reservation(uid), nodes.uuids[row]
        reserved = self.reservations.sum_others(
            uid if own_reservation is None else own_reservation.workload_uid, nodes.names[row], uuids
        ).cards
        placement = None
        if own_reservation is not None and own_reservation.node == nodes.names[row]:
            others = set(range(int(nodes.cards[row]))).difference(own_reservation.get_positions(uuids))
            placement = place(
                self._get_cards_without(row, [*reserved, *others]),
                query.request,
                query.policy_request.card_policy,
            )
        if placement is None:
            placement = place_by_policy(self.policies.get_policy(query.request), nodes, row, query)
        if placement is not None and not set(reserved).isdisjoint(placement.charge):
            placement = place(
                self._get_cards_without(row, reserved), query.request, query.policy_request.card_policy
            )
        return placement

    def _fits_beside(
        self, mask: _FitMask, requirements: PodRequirements, node: str, row: int, holder: str
    ) -> bool:
        """Return True if a pod that fits on a node also fits beside the reservations of others there."""
        holder_uid = holder if self.reservations.has_on_node(holder, node) else ""
        version = int(self.state.nodes.version[row])
        known = mask.beside.get(node)
        if known is not None and known[:3] == (version, self.reservations.version, holder_uid):
            return known[3]
        others = self.reservations.sum_ahead(holder_uid, node, self.state.nodes.uuids[row])
        found = self._leaves_reserved(mask.query, requirements, row, others)
        mask.beside[node] = (version, self.reservations.version, holder_uid, found)
        return found

    def _leaves_reserved(
        self, query: SchedulingRequest, requirements: PodRequirements, row: int, others: NodeReservations
    ) -> bool:
        """Return True if placing a pod on a node leaves the reservations of others intact."""
        if not (others.amounts.pods or others.cards):
            return True
        if not self.count_fits(others.amounts.add(requirements.amounts.without_sums()), row):
            return False
        left = self._get_cards_without(row, others.cards)
        return (
            self.call_policy(
                requirements, lambda: place(left, query.request, query.policy_request.card_policy), None
            )
            is not None
        )

    def _get_cards_without(self, row: int, cards: Collection[int]) -> list[Card]:
        return [
            card.with_free_units(0) if card.index in cards else card
            for card in build_cards(self.state.nodes, row)
        ]

    # Masks.

    def _get_fit_mask(self, requirements: PodRequirements) -> _FitMask:
        nodes = self.state.nodes
        mask = self._masks.get(requirements)
        size = nodes.row_count
        if mask is not None and requirements.request.selector.admits_all:
            query = mask.query
        else:
            query = self.policies.make_request(
                nodes,
                requirements.request,
                requirements.amounts,
            )
        if mask is None or len(mask.made) != size or mask.facts != self.facts_version:
            made = np.full(size, -1, dtype=np.int64)
            mask = _FitMask(np.zeros(size, dtype=np.bool_), made, self.facts_version, query)
            self._masks[requirements] = mask
        mask.query = query
        rows = nodes.changes.list_since(mask.changes) if mask.changes else None
        if rows is None:
            rows = np.flatnonzero(mask.made != nodes.version)
        if rows.size:
            mask.fits[rows] = self.call_policy(
                requirements,
                partial(self._compute_fit, requirements, query, requirements.amounts, rows),
                np.zeros(len(rows), dtype=np.bool_),
            )
            mask.made[rows] = nodes.version[rows]
        mask.changes = nodes.changes.count
        return mask

    def call_policy(self, requirements: PodRequirements, work: Callable[[], T], otherwise: T) -> T:
        """Call `work`; if the pod's policy returns an invalid result, record why and return `otherwise`."""
        try:
            found = work()
        except POLICY_FAULTS as error:
            self.faults[requirements] = str(error)
            return otherwise
        return found

    def lacks_sum(self, requirements: PodRequirements, rows: RowArray) -> bool:
        """Return True if only kube-scheduler's sum of the node keeps a pod off some of these rows."""
        query, asked = self.make_query(requirements), requirements.amounts
        if not self._compute_fit(requirements, query, asked.without_sums(), rows).any():
            return False
        return not self._compute_fit(requirements, query, asked, rows).any()

    def _compute_fit(
        self, requirements: PodRequirements, query: SchedulingRequest, asked: Amounts, rows: RowArray
    ) -> BoolArray:
        """Find the rows where a pod fits that asks for so much besides the choice of cards."""
        nodes = self.state.nodes
        fits = filter_nodes(nodes, query, rows) & nodes.amounts.mask_fits(asked, rows)
        if asked.others:
            fits[fits] = [self.count_fits(Amounts(others=asked.others), row) > 0 for row in rows[fits]]
        able = rows[fits]
        # What a few rows allow costs less than what all do; of many rows it is remembered.
        if len(able) > FEW_ROWS:
            allowed = self.mask_allowed(requirements)[able]
        else:
            allowed = np.array(
                [self.is_allowed(requirements, nodes.names[row]) for row in able], dtype=np.bool_
            )
        fits[fits] = allowed
        return fits

    def count_fits(self, asked: Amounts, row: int) -> int:
        """Count how often the amounts fit into what a node has left, its cards apart.

        The arrays have no columns of resources that no node policy names: the node's record has them.
        A resource that a DeviceClass may serve limits nothing.
        """
        record = self.state.node_records[self.state.nodes.names[row]]
        return leave_out_undecided(asked, record.capacity).count_in(record.left)

    def make_query(self, requirements: PodRequirements) -> SchedulingRequest:
        return self._get_fit_mask(requirements).query

    def is_allowed(self, requirements: PodRequirements, name: str) -> bool:
        facts = self.facts.get(name)
        return facts is not None and can_run_on(facts, requirements.rules)

    def mask_allowed(self, requirements: PodRequirements) -> BoolArray:
        """Find the rows whose labels and taints admit a pod: bool[R], cached until a node changes."""
        nodes = self.state.nodes
        key = (self.facts_version, nodes.index.epoch, nodes.row_count)
        if key != self._allowed_key:
            self._allowed_key = key
            self._allowed.clear()
        allowed = self._allowed.get(requirements.rules)
        if allowed is None:
            allowed = self._allowed[requirements.rules] = np.zeros(nodes.row_count, dtype=np.bool_)
            for name, row in nodes.rows.items():
                allowed[row] = self.is_allowed(requirements, name)
        return allowed


@dataclass(slots=True)
class _PodCounts:
    """Pods that each row could hold, and the version of each row that this was computed from."""

    pods: LongArray
    made: LongArray
    facts: int


class TotalCapacity:
    """Counts the pods that could run at once on an otherwise empty cluster."""

    def __init__(self, capacity: "FreeCapacity") -> None:
        self._capacity = capacity
        self._known: dict[PodRequirements, _PodCounts] = {}

    def count_pods(self, requirements: PodRequirements) -> int:
        """Count the pods with these requirements that the empty cluster could hold; 0: none can ever run."""
        return int(self.count_by_row(requirements).sum())

    def list_nodes(self, requirements: PodRequirements) -> list[str]:
        """List the nodes that could hold a pod with these requirements if they were empty."""
        names = self._capacity.state.nodes.names
        return [names[row] for row in np.flatnonzero(self.count_by_row(requirements)).tolist()]

    def count_fits(self, asked: Amounts, row: int) -> int:
        """Count how often the amounts fit into a node without its pods, see `FreeCapacity.count_fits`."""
        state = self._capacity.state
        capacity = state.node_records[state.nodes.names[row]].capacity
        return leave_out_undecided(asked, capacity).count_in(capacity)

    def count_missing(self, members: Iterable[PodRequirements]) -> int:
        """Count the pods of a gang that could not run beside its other pods even on an empty cluster.

        Pods with equal requirements are counted together, different ones separately. So a gang with a result
        of 0 may still not fit as a whole.
        """
        lacks = (count - self.count_pods(requirements) for requirements, count in Counter(members).items())
        return max(0, *lacks, 0)

    def forget_unused(self, used: set[PodRequirements]) -> None:
        """Drop what is cached for requirements that no waiting pod has any more."""
        for requirements in [requirements for requirements in self._known if requirements not in used]:
            del self._known[requirements]

    def count_by_row(self, requirements: PodRequirements) -> LongArray:
        """Count the pods with these requirements that each row could hold if it were empty: int64[R]."""
        nodes, free_capacity = self._capacity.state.nodes, self._capacity
        known = self._known.get(requirements)
        if known is None or len(known.made) != nodes.row_count or known.facts != free_capacity.facts_version:
            rows = nodes.row_count
            known = _PodCounts(
                np.zeros(rows, np.int64), np.full(rows, -1, np.int64), free_capacity.facts_version
            )
            self._known[requirements] = known
        stale = np.flatnonzero(known.made != nodes.version)
        if stale.size:
            query, beside = free_capacity.make_query(requirements), requirements.amounts.without_sums()
            most = count_most_on_empty(nodes, query, beside, stale)
            for at in np.flatnonzero(most).tolist() if beside.others else ():
                most[at] = min(most[at], self.count_fits(beside, stale[at]))
            known.pods[stale] = np.where(free_capacity.mask_allowed(requirements)[stale], most, 0)
            known.made[stale] = nodes.version[stale]
        return known.pods
