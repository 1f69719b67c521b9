"""Admit waiting pods and choose their nodes, by the queues' order, quotas, slots and capacity. Pure.

Decisions are made one after the other. As long as a node that can take some waiting pod has an idle slot, the
slot is offered (docs/queue/data.md#data-and-slots). All idle slots of a type are offered together, and the
node policy chooses among those that the pod may use. Without slots there is a single pool, and the first
queue with a pod that fits anywhere admits it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from kubeapi.selectors import NodeTraits
from scheduler_plugin.binding.two_tier import OTHERS
from scheduler_plugin.cache.arrays import BoolArray
from scheduler_plugin.queue.cache.lending import (
    LendingQueue,
    SlotChoice,
    SlotMatch,
    pick_workload,
    sort_by_share,
)
from scheduler_plugin.queue.cache.queues import Queues, QueueState
from scheduler_plugin.queue.cache.slots import ClusterSlots
from scheduler_plugin.queue.cache.waiting import QueuedWorkload, SlotType, WorkloadGroup
from scheduler_plugin.queue.capacity.candidate_lists import LISTED, CandidateListPlacer
from scheduler_plugin.queue.capacity.free_capacity import FreeCapacity
from scheduler_plugin.queue.capacity.locality import Locality
from scheduler_plugin.queue.capacity.quota_usage import QuotaUsage
from scheduler_plugin.queue.capacity.rejected_nodes import RejectedNodes
from scheduler_plugin.queue.capacity.requirements import Needs, PodRequirements
from scheduler_plugin.queue.config.queues import QueueConfig
from scheduler_plugin.scheduling.pending_pods import PendingPods


@dataclass(frozen=True, slots=True)
class AdmittedPod:
    """A pod of an admitted workload.

    Attributes:
        others: Further nodes to bind it to if that fails: the next ones on its list, in order.
    """

    uid: str
    requirements: PodRequirements
    node: str
    others: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AdmittedWorkload:
    """A workload whose turn it is: a pod, or a gang with all its pods.

    Attributes:
        slot_match: How the slot was lent; None without slots, and for a workload admitted out of turn.
        relaxed: Its data is elsewhere.
        lender: Queue whose turn it was, empty when it was its own.
        borrowed: Units that its queue has beyond its nominal quota because of it.
        names_node: Its pods must run on the nodes chosen here, because of an idle slot or near data.
    """

    queue: str
    workload: QueuedWorkload[Needs]
    members: tuple[AdmittedPod, ...]
    slot_match: SlotMatch | None
    relaxed: bool
    lender: str
    borrowed: int
    names_node: bool


class AdmissionScheduler:
    """Decides on admissions, and charges each one: capacity in the state, quota of the queue, a slot.

    Attributes:
        pending_pods: The waiting pods, for policies that use them.
        unplaced: Requirements that seemed to fit in the newest `admit_workloads` and did not; usually those
            of gangs.
        crowded: Requirements and data of gangs that did not fit near their data as a whole, likewise.
        rejected_nodes: Nodes to which the committer of batch mode did not bind pods, by requirements.
    """

    def __init__(
        self,
        config: QueueConfig,
        queues: Queues,
        capacity: FreeCapacity,
        slots: ClusterSlots,
    ) -> None:
        self.queues = queues
        self.capacity = capacity
        self.quota_usage = QuotaUsage(capacity.state)
        self.placer = CandidateListPlacer(capacity)
        self.rejected_nodes = RejectedNodes()
        self.pending_pods = PendingPods(capacity.state, capacity.policies)
        self.slots = slots
        self.unplaced: set[Needs] = set()
        self.crowded: set[tuple[Needs, frozenset[str]]] = set()
        self._near: dict[frozenset[str], BoolArray] = {}
        self._near_key: object = None
        self._idle: dict[SlotType, BoolArray] = {}
        self._idle_key: object = None
        self.configure(config)

    def configure(self, config: QueueConfig) -> None:
        if self.capacity.policies.configure(config.node_policy, config.node_policy_parameters):
            self.placer.forget_lists()
            # What the former policy returned is no reason to wait any more.
            self.capacity.forget_unused(set())
        self.config = config
        self.slots.form = config.slots
        self.locality = Locality(config.locality)
        for name, facts in self.capacity.facts.items():
            self.set_node(name, facts)

    def set_node(self, name: str, facts: NodeTraits | None) -> None:
        """Set the slots and the data of a node, None once it is deleted."""
        nodes = self.capacity.state.nodes
        row = nodes.rows.get(name)
        self.slots.set_node(name, facts, 0 if row is None else int(nodes.cards[row]))
        self.locality.set_node(name, None if facts is None else facts.labels)

    def admit_workloads(
        self, now: float, first: Iterable[tuple[str, QueuedWorkload[Needs]]] = ()
    ) -> Iterator[AdmittedWorkload]:
        """Admit every workload that can be admitted; each is charged before it is yielded.

        Args:
            now: Seconds, for the state.
            first: Queues and waiting workloads that precede all others where they fit, wherever their data
                is.
        """
        self.unplaced.clear()
        self.crowded.clear()
        self.rejected_nodes.expire(now)
        self.queues.set_cluster(self.capacity.total_resources)
        self.pending_pods.report_to_policies(now)
        for name, workload in first:
            admitted = self._admit_out_of_turn(name, workload, now)
            if admitted is not None:
                yield admitted
        while True:
            admitted = self._admit_next(now)
            if admitted is None:
                return
            yield admitted

    def _admit_out_of_turn(
        self, name: str, workload: QueuedWorkload[Needs], now: float
    ) -> AdmittedWorkload | None:
        """Admit a workload if it is allowed somewhere and fits there; else return None."""
        queue = self.queues[name]
        # Others were admitted since it was listed, and whoever writes those lets news in.
        if queue.waiting.get(workload.uid) is not workload:
            return None
        if not queue.is_open or queue.waiting.waits_for_stage(workload.uid):
            return None
        if not self.queues.allows_units(
            name, self.quota_usage.compute_least_units(workload.requirements), workload.uid
        ):
            return None
        cycle = AdmissionCycle(self, [queue])
        for relaxed in (False, True) if workload.data and self.config.locality.enabled else (False,):
            admitted = self._assume(SlotChoice(name, workload, None, relaxed, lender=""), cycle, None, now)
            if admitted is not None:
                return admitted
        return None

    def _admit_next(self, now: float) -> AdmittedWorkload | None:
        """Offer idle slots until one is taken."""
        while True:
            order = sort_by_share(queue for queue in self.queues if queue.is_open)
            cycle = AdmissionCycle(self, order)
            slot, choice = None, None
            if self.config.slots is None:
                choice = cycle.pick_workload(None)
            else:
                slot, choice = cycle.pick_workload_for_slot()
            if choice is None:
                return None
            admitted = self._assume(choice, cycle, slot, now)
            if admitted is not None:
                return admitted
            workload = choice.workload
            if not self._is_near(choice):
                self.unplaced.add(workload.requirements)
            else:
                # Whoever else can go near its data, or has none, goes first; then it may go elsewhere.
                self.crowded.add((workload.requirements, workload.data))

    def _assume(
        self, choice: SlotChoice[Needs], cycle: "AdmissionCycle", slot: SlotType | None, now: float
    ) -> AdmittedWorkload | None:
        """Charge capacity, quota and slot for a choice; None, with nothing charged, if not all pods fit."""
        workload, queue = choice.workload, self.queues[choice.queue]
        pods = self.quota_usage.list_members(workload.requirements, workload.uid)
        admitted_pods: list[AdmittedPod] = []
        amounts: list[int] = []
        headroom = self.queues.compute_headroom(choice.queue, workload.uid)
        names_node = self.config.slots is not None or self._is_near(choice)
        for uid, requirements in pods:
            others: tuple[str, ...] = ()
            # Pods of a gang fit together where room was kept for them, and need not elsewhere.
            together = len(pods) > 1 and self.capacity.reservations.get_reservation(uid) is not None
            of_type = None if admitted_pods or together else slot
            most = None if headroom is None else headroom - sum(amounts)
            fits = self.quota_usage.mask_within(
                requirements, self._mask_rows(requirements, choice, cycle, of_type), most
            )
            node = self._place_on_reserved(uid, requirements, fits, now)
            if not node:
                node = self.placer.place_pod(uid, requirements, fits, now, leader_uid=pods[0][0])
                # Pods of a gang fit together where they were placed, and need not elsewhere.
                alone = self.config.mode == "batch" and not names_node and len(pods) == 1
                further = LISTED - 1 if requirements in self.rejected_nodes else OTHERS
                others = self.placer.list_next_nodes(further) if alone else ()
            if not node:
                for member in admitted_pods:
                    self._forget(member.uid, now)
                return None
            admitted_pods.append(AdmittedPod(uid, requirements, node, others))
            amounts.append(
                self.quota_usage.compute_pod_units(self.capacity.state.pods[uid], requirements) or 0
            )
            self.slots.occupy(uid, node, workload.kind)
        before = self._count_borrowed(choice.queue)
        for member, units in zip(admitted_pods, amounts, strict=True):
            self.queues.charge_pod(
                choice.queue, member.uid, member.requirements.amounts._replace(units=units)
            )
        queue.waiting.remove(workload.uid)
        self.capacity.reservations.remove_workload(workload.uid)
        self.queues.unreserve_quota(choice.queue, workload.uid)
        return AdmittedWorkload(
            queue=choice.queue,
            workload=workload,
            members=tuple(admitted_pods),
            slot_match=choice.slot_match,
            relaxed=choice.relaxed,
            lender=choice.lender,
            borrowed=self._count_borrowed(choice.queue) - before,
            names_node=names_node,
        )

    def _place_on_reserved(self, uid: str, requirements: PodRequirements, fits: BoolArray, now: float) -> str:
        """Assume a pod on its reservation if it fits there; return the node's name, empty for none."""
        reserved_workloads = self.capacity.reservations.get_reservation(uid)
        node = reserved_workloads.node if reserved_workloads is not None else ""
        row = self.capacity.state.nodes.rows.get(node)
        return (
            node
            if row is not None and fits[row] and self.capacity.assume_pod(uid, requirements, row, now)
            else ""
        )

    def _mask_rows(
        self,
        requirements: PodRequirements,
        choice: SlotChoice[Needs],
        cycle: "AdmissionCycle",
        slot: SlotType | None,
    ) -> BoolArray:
        """Find the rows where a pod of a choice may be placed: bool[R]; `slot` None means any type."""
        fits = self.mask_fits(requirements, choice.workload.uid)
        if self.config.slots is not None:
            fits = fits & self.mask_idle_slots(slot)
        if self._is_near(choice):
            fits = fits & cycle.mask_near(choice.workload.data)
        return fits

    def _is_near(self, choice: SlotChoice[Needs]) -> bool:
        """Return True if a workload was chosen for a place near its data."""
        return bool(choice.workload.data) and not choice.relaxed and self.config.locality.enabled

    def mask_fits(self, requirements: PodRequirements, holder: str) -> BoolArray:
        """Tell where a pod fits now; a reservation for another pod also occupies a slot.

        Args:
            holder: UID of the workload that asks; empty if it has no reservation.

        Returns:
            bool[R]; valid until anything changes.
        """
        nodes, reservations = self.capacity.state.nodes, self.capacity.reservations
        fits, _ = self.rejected_nodes.leave_out(
            requirements, self.capacity.mask_fits(requirements, holder=holder), nodes.rows
        )
        if self.config.slots is None:
            return fits
        for name in reservations.node_names:
            row = nodes.rows.get(name)
            if row is not None and fits[row]:
                kept = reservations.sum_ahead(holder, name, nodes.uuids[row]).amounts.pods
                fits[row] = kept == 0 or self.slots.count_left(name) > kept
        return fits

    def has_untried_nodes(self, requirements: PodRequirements, holder: str) -> bool:
        """Return True if a pod fits on a node that has rejected none like it."""
        fits = self.capacity.mask_fits(requirements, holder=holder)
        return self.rejected_nodes.leave_out(requirements, fits, self.capacity.state.nodes.rows)[1]

    def place_pod(self, uid: str, requirements: PodRequirements, now: float) -> str:
        """Assume a pod's cards on the best node; return the node's name, empty if no node fits."""
        fits = self.capacity.mask_fits(requirements)
        return self.placer.place_pod(uid, requirements, fits, now) if fits.any() else ""

    def mask_near(self, data: frozenset[str]) -> BoolArray:
        """Return the rows near some data: bool[R], cached until nodes or their data change."""
        nodes = self.capacity.state.nodes
        key = (self.locality, self.locality.version, nodes.row_count)
        if key != self._near_key:
            self._near.clear()
            self._near_key = key
        near = self._near.get(data)
        if near is None:
            near = self._near[data] = np.zeros(nodes.row_count, dtype=np.bool_)
            names = self.locality.list_near_nodes(data)
            near[[nodes.rows[name] for name in names if name in nodes.rows]] = True
        return near

    def mask_idle_slots(self, kind: SlotType | None = None) -> BoolArray:
        """Rows with an idle slot of a type, or of any: bool[R]; valid until anything changes."""
        nodes, slots = self.capacity.state.nodes, self.slots
        key = (slots, nodes.index.epoch, nodes.row_count)
        if key != self._idle_key:
            self._idle_key = key
            self._idle = {each: np.zeros(nodes.row_count, dtype=np.bool_) for each in SlotType}
            slots.changed.update(nodes.rows)
        for name in slots.changed & nodes.rows.keys():
            for each, idle in self._idle.items():
                idle[nodes.rows[name]] = slots.count_idle(name, each) > 0
        slots.changed.clear()
        if kind is not None:
            return self._idle[kind]
        return self._idle[SlotType.LOCAL] | self._idle[SlotType.FREE]

    def _forget(self, uid: str, now: float) -> None:
        assumed = self.capacity.state.get_assumed(uid)
        if assumed is not None:
            self.capacity.state.forget(assumed, now)
        self.slots.vacate(uid)

    def _count_borrowed(self, queue: str) -> int:
        cohort = self.queues.get_cohort(queue)
        return 0 if cohort is None else cohort.accounts[queue].borrowed


_NearKey = tuple[PodRequirements, frozenset[str], str, int | None, SlotType | None]


class AdmissionCycle:
    """A single decision; it computes each fact about the cluster once."""

    def __init__(self, admission: AdmissionScheduler, order: Sequence[QueueState]) -> None:
        self._admission = admission
        self._order = order
        self._fits: dict[tuple[PodRequirements, str, int | None], tuple[BoolArray, bool]] = {}
        self._near_somewhere: dict[_NearKey, bool] = {}
        self._able: dict[Needs, bool] = {}
        self._idle_somewhere: dict[tuple[PodRequirements, str, int | None, SlotType], bool] = {}
        self._reserved_uids = frozenset(admission.capacity.reservations.workload_uids)
        self._reserved = {
            workload.requirements
            for queue in (order if self._reserved_uids else ())
            for workload in queue.waiting.list_known(self._reserved_uids)
        }

    def _is_able(self, needs: Needs) -> bool:
        """Return True if workloads with these requirements fit somewhere, or one has a reservation."""
        able = self._able.get(needs)
        if able is None:
            reserved, admission = needs in self._reserved, self._admission
            able = needs not in admission.unplaced and (
                reserved or self._find_fitting_rows(self._get_first_requirements(needs), "", None)[1]
            )
            self._able[needs] = able
        return able

    def pick_workload_for_slot(self) -> tuple[SlotType | None, SlotChoice[Needs] | None]:
        """Choose a type of idle slot and the workload that gets it; its rows are those of `mask_idle_slots`.

        A slot near some workload's data is preferred, then the first queue in the order, then a slot that
        need not be lent.
        """
        ranks = {queue.name: rank for rank, queue in enumerate(self._order)}
        found: list[tuple[tuple[bool, int, bool], SlotType, SlotChoice[Needs]]] = []
        for slot in SlotType:
            choice = self.pick_workload(slot)
            if choice is not None:
                relaxed = choice.relaxed and self._admission.config.locality.enabled
                place = relaxed, ranks[choice.queue], choice.workload.kind is not slot
                found.append((place, slot, choice))
        if not found:
            return None, None
        _, slot, choice = min(found, key=lambda each: each[0])
        return slot, choice

    def pick_workload(self, slot: SlotType | None) -> SlotChoice[Needs] | None:
        """Offer all idle slots of a type together, or without slots the whole cluster."""

        def can_run(queue: LendingQueue[Needs], group: WorkloadGroup[Needs]) -> bool:
            return (
                self._is_able(group.key.requirements)
                and self._fits_somewhere(queue.name, group, slot)
                and self._is_admissible(queue.name, group)
            )

        def is_near(queue: LendingQueue[Needs], group: WorkloadGroup[Needs]) -> bool:
            data = group.key.data
            if (group.key.requirements, data) in self._admission.crowded:
                return False
            # Room that is kept for a workload is near for that workload alone.
            key = (
                self._get_first_requirements(group.key.requirements),
                data,
                self._get_reserved_uid(group),
                self._compute_most(queue.name, group),
                slot,
            )
            found = self._near_somewhere.get(key)
            if found is None:
                rows = self._find_rows(queue.name, group)[0] & self.mask_near(data)
                if slot is not None:
                    rows &= self._admission.mask_idle_slots(slot)
                found = self._near_somewhere[key] = bool(rows.any())
            return found

        locality = self._admission.config.locality.enabled
        return pick_workload(
            slot,
            self._order,
            is_near=is_near,
            can_run=can_run,
            locality=locality,
        )

    def _fits_somewhere(self, queue: str, group: WorkloadGroup[Needs], slot: SlotType | None) -> bool:
        """Return True if a group's oldest workload fits somewhere, where a slot of a type is idle."""
        fits, somewhere = self._find_rows(queue, group)
        if slot is None or not somewhere:
            return somewhere
        key = (
            self._get_first_requirements(group.key.requirements),
            self._get_reserved_uid(group),
            self._compute_most(queue, group),
            slot,
        )
        found = self._idle_somewhere.get(key)
        if found is None:
            found = bool((fits & self._admission.mask_idle_slots(slot)).any())
            self._idle_somewhere[key] = found
        return found

    def mask_near(self, data: frozenset[str]) -> BoolArray:
        return self._admission.mask_near(data)

    def _is_admissible(self, queue: str, group: WorkloadGroup[Needs]) -> bool:
        """Return True if order and quota allow the group, regardless of capacity."""
        oldest = group.get_oldest()
        if not self._admission.queues[queue].is_next(oldest):
            return False
        least = self._admission.quota_usage.compute_least_units(group.key.requirements)
        return self._admission.queues.allows_units(queue, least, oldest.uid)

    def _find_rows(self, queue: str, group: WorkloadGroup[Needs]) -> tuple[BoolArray, bool]:
        """Find the rows where a group's oldest workload (a gang's first pod) fits, and whether any does."""
        requirements = self._get_first_requirements(group.key.requirements)
        return self._find_fitting_rows(
            requirements, self._get_reserved_uid(group), self._compute_most(queue, group)
        )

    def _get_reserved_uid(self, group: WorkloadGroup[Needs]) -> str:
        uid = group.get_oldest().uid
        return uid if uid in self._reserved_uids else ""

    def _get_first_requirements(self, needs: Needs) -> PodRequirements:
        return (
            needs
            if isinstance(needs, PodRequirements)
            else self._admission.quota_usage.list_members(needs, "")[0][1]
        )

    def _compute_most(self, queue: str, group: WorkloadGroup[Needs]) -> int | None:
        """Return the most units that quotas allow, for pods whose charge differs from row to row."""
        if not self._get_first_requirements(group.key.requirements).percent:
            return None
        return self._admission.queues.compute_headroom(queue, group.get_oldest().uid)

    def _find_fitting_rows(
        self, requirements: PodRequirements, holder: str, most: int | None
    ) -> tuple[BoolArray, bool]:
        found = self._fits.get((requirements, holder, most))
        if found is None:
            fits = self._admission.mask_fits(requirements, holder)
            fits = self._admission.quota_usage.mask_within(requirements, fits, most)
            found = self._fits[requirements, holder, most] = (fits, bool(fits.any()))
        return found
