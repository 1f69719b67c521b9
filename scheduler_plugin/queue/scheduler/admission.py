"""Which waiting pods are released, and for which node: order of the tenants, quotas, slots and room. Pure.

One decision after the other: while there is an idle slot on a node that can take some waiting pod, the slot
is offered (docs/queue.md#data-and-slots). Without slots there is one pool: the first tenant with a pod that
fits anywhere.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

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
from scheduler_plugin.queue.cache.waiting import QueuedWorkload, SlotType, WorkloadGroup, WorkloadGroupKey
from scheduler_plugin.queue.capacity.candidate_lists import CandidateListPlacer
from scheduler_plugin.queue.capacity.free_capacity import FreeCapacity
from scheduler_plugin.queue.capacity.locality import Locality
from scheduler_plugin.queue.capacity.quota_usage import QuotaUsage
from scheduler_plugin.queue.capacity.requirements import Needs, PodRequirements
from scheduler_plugin.queue.config.queues import QueueConfig
from scheduler_plugin.scheduling.pending_pods import PendingPods


@dataclass(frozen=True, slots=True)
class AdmittedPod:
    """AdmittedPod is a pod of an admitted workload.

    Attributes:
        uid: Of the pod.
        requirements: Its needs.
        node: Where its cards were taken.
        others: Nodes that it may be bound to where that fails, in order: those next in its list.
    """

    uid: str
    requirements: PodRequirements
    node: str
    others: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AdmittedWorkload:
    """A task whose turn it is: a pod, or a gang with all its pods.

    Attributes:
        queue: Its tenant.
        workload: The task.
        members: Its pods.
        slot_match: How the slot was lent, None where there are no slots, and for a task out of turn.
        relaxed: Its data is elsewhere.
        lender: Tenant whose turn it was, empty when it was its own.
        borrowed: Units that its tenant has beyond its nominal quota because of it.
        names_node: Its pods run where their room was taken: a slot was idle there, or data is near.
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
    """Decides, and takes what it decides: room in the state, quota of the tenant, a slot.

    Args:
        config: The configuration.
        queues: Who waits and who has what.
        capacity: The cluster.
        slots: Its slots.
        locality: Where data is.

    Attributes:
        pending_pods: The pods that wait, for policies that want to know.
        unplaced: Needs that seemed to fit and did not, of the newest `admit_workloads`: gangs as a rule.
    """

    def __init__(
        self,
        config: QueueConfig,
        tenants: Queues,
        room: FreeCapacity,
        slots: ClusterSlots,
        locality: Locality,
    ) -> None:
        self.queues = tenants
        self.capacity = room
        self.quota_usage = QuotaUsage(room.state)
        self.placer = CandidateListPlacer(room)
        self.pending_pods = PendingPods(room.state, room.policies)
        self.slots = slots
        self.locality = locality
        self.unplaced: set[Needs] = set()
        self._near: dict[frozenset[str], BoolArray] = {}
        self._near_key: object = None
        self.configure(config)

    def configure(self, config: QueueConfig) -> None:
        """Take another configuration.

        Raises:
            PolicyError: of its node policy; then nothing has changed.
        """
        if self.capacity.policies.configure(config.node_policy, config.node_policy_parameters):
            self.placer.forget_lists()
        self.config = config

    def admit_workloads(
        self, now: float, first: Iterable[tuple[str, QueuedWorkload[Needs]]] = ()
    ) -> Iterator[AdmittedWorkload]:
        """Release what can be released; each is taken before it is yielded.

        Args:
            now: Seconds, for the state.
            first: Tenants and waiting tasks that go before all others where they fit, wherever their data is.
        """
        self.unplaced.clear()
        self.queues.set_cluster(self.capacity.total_resources)
        self.pending_pods.report_to_policies(now)
        for name, task in first:
            release = self._admit_out_of_turn(name, task, now)
            if release is not None:
                yield release
        while True:
            release = self._admit_next(now)
            if release is None:
                return
            yield release

    def _admit_out_of_turn(
        self, name: str, task: QueuedWorkload[Needs], now: float
    ) -> AdmittedWorkload | None:
        """Release a task, where it may go and fits; else None."""
        tenant = self.queues[name]
        if not tenant.is_open or tenant.waiting.is_held(task.uid):
            return None
        if not self.queues.allows_units(
            name, self.quota_usage.compute_least_units(task.requirements), task.uid
        ):
            return None
        look = AdmissionCycle(self, [tenant])
        for relaxed in (False, True) if task.data and self.config.locality.enabled else (False,):
            release = self._assume(SlotChoice(name, task, None, relaxed, lender=""), look, None, now)
            if release is not None:
                return release
        return None

    def _admit_next(self, now: float) -> AdmittedWorkload | None:
        """Offer idle slots until one is taken."""
        while True:
            order = sort_by_share(tenant for tenant in self.queues if tenant.is_open)
            look = AdmissionCycle(self, order)
            slot, row = None, None
            if self.config.slots is not None:
                offer = look.find_idle_slot()
                if offer is None:
                    return None
                row, slot = offer
            choice = look.pick_workload(slot, row)
            if choice is None:
                return None
            release = self._assume(choice, look, row, now)
            if release is not None:
                return release
            self.unplaced.add(choice.workload.requirements)

    def _assume(
        self, choice: SlotChoice[Needs], look: "AdmissionCycle", row: int | None, now: float
    ) -> AdmittedWorkload | None:
        """Take room, quota and slot for a choice; None, and nothing taken, when its pods do not all fit."""
        task, tenant = choice.workload, self.queues[choice.queue]
        pods = self.quota_usage.list_members(task.requirements, task.uid)
        taken: list[AdmittedPod] = []
        amounts: list[int] = []
        headroom = self.queues.compute_headroom(choice.queue, task.uid)
        names_node = self.config.slots is not None or self._is_near(choice)
        for uid, wants in pods:
            others: tuple[str, ...] = ()
            # Pods of a gang fit together where room was kept for them, and need not elsewhere.
            together = len(pods) > 1 and self.capacity.reservations.get_reservation(uid) is not None
            if row is not None and not taken and not together:
                node = (
                    self.capacity.state.nodes.names[row]
                    if self.capacity.assume_pod(uid, wants, row, now)
                    else ""
                )
            else:
                most = None if headroom is None else headroom - sum(amounts)
                fits = self.quota_usage.mask_within(wants, self._mask_rows(wants, choice, look), most)
                node = self._place_on_reserved(uid, wants, fits, now)
                if not node:
                    node = self.placer.place_pod(uid, wants, fits, now)
                    # Pods of a gang fit together where they were placed, and need not elsewhere.
                    alone = self.config.mode == "batch" and not names_node and len(pods) == 1
                    others = self.placer.next_nodes if alone else ()
            if not node:
                for member in taken:
                    self._forget(member.uid, now)
                return None
            taken.append(AdmittedPod(uid, wants, node, others))
            amounts.append(self.quota_usage.compute_pod_units(self.capacity.state.pods[uid], wants) or 0)
            self.slots.occupy(uid, node, task.kind)
        before = self._count_borrowed(choice.queue)
        for member, units in zip(taken, amounts, strict=True):
            self.queues.charge_pod(choice.queue, member.uid, member.requirements.make_resources(units))
        tenant.waiting.remove(task.uid)
        self.capacity.reservations.remove_workload(task.uid)
        self.queues.unreserve_quota(choice.queue, task.uid)
        return AdmittedWorkload(
            queue=choice.queue,
            workload=task,
            members=tuple(taken),
            slot_match=choice.slot_match,
            relaxed=choice.relaxed,
            lender=choice.lender,
            borrowed=self._count_borrowed(choice.queue) - before,
            names_node=names_node,
        )

    def _place_on_reserved(self, uid: str, wants: PodRequirements, fits: BoolArray, now: float) -> str:
        """Take what was kept for a pod, where it fits there; the node's name, empty for none."""
        kept = self.capacity.reservations.get_reservation(uid)
        node = kept.node if kept is not None else ""
        row = self.capacity.state.nodes.rows.get(node)
        return (
            node if row is not None and fits[row] and self.capacity.assume_pod(uid, wants, row, now) else ""
        )

    def _mask_rows(
        self, wants: PodRequirements, choice: SlotChoice[Needs], look: "AdmissionCycle"
    ) -> BoolArray:
        """Where a pod of a choice may be placed, bool[R]."""
        fits = self.capacity.mask_fits(wants, holder=choice.workload.uid)
        if self.config.slots is not None:
            fits = fits & look.mask_idle_slots()
        if self._is_near(choice):
            fits = fits & look.mask_near(choice.workload.data)
        return fits

    def _is_near(self, choice: SlotChoice[Needs]) -> bool:
        """Whether a task was chosen for a place that its data is near to."""
        return bool(choice.workload.data) and not choice.relaxed and self.config.locality.enabled

    def place_pod(self, uid: str, wants: PodRequirements, now: float) -> str:
        """Take a pod's cards on the best node that has them; the node's name, empty for none."""
        fits = self.capacity.mask_fits(wants)
        return self.placer.place_pod(uid, wants, fits, now) if fits.any() else ""

    def mask_near(self, data: frozenset[str]) -> BoolArray:
        """Rows that some data is near to: bool[R], remembered while nodes and their data stay."""
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

    def _forget(self, uid: str, now: float) -> None:
        take = self.capacity.state.get_assumed(uid)
        if take is not None:
            self.capacity.state.forget(take, now)
        self.slots.vacate(uid)

    def _count_borrowed(self, tenant: str) -> int:
        cohort = self.queues.get_cohort(tenant)
        return 0 if cohort is None else cohort.accounts[tenant].borrowed


class AdmissionCycle:
    """What is asked of the cluster during one decision, each question once.

    Args:
        admission: Whose decision.
        order: The tenants, in order.

    Attributes:
        able_requirements: Needs of eligible tasks that fit somewhere.
    """

    def __init__(self, admission: AdmissionScheduler, order: Sequence[QueueState]) -> None:
        self._admission = admission
        self._order = order
        self._fits: dict[tuple[PodRequirements, str, int | None], tuple[BoolArray, bool]] = {}
        self._near_somewhere: dict[tuple[PodRequirements, frozenset[str], str, int | None], bool] = {}
        self._strict: dict[str, WorkloadGroup[Needs] | None] = {}
        self._reserved_uids = frozenset(admission.capacity.reservations.workload_uids)
        self.able_requirements = self._find_able()

    def _find_able(self) -> set[Needs]:
        """Find the needs that fit somewhere; also those for which room is kept, fit or not."""
        admission = self._admission
        needs = (
            set().union(*(tenant.waiting.list_requirements() for tenant in self._order)) - admission.unplaced
        )
        able: set[Needs] = {
            each for each in needs if self._find_fitting_rows(self._get_first_requirements(each), "", None)[1]
        }
        for tenant in self._order if self._reserved_uids else ():
            kept = tenant.waiting.list_known(self._reserved_uids)
            able.update(task.requirements for task in kept if task.requirements not in admission.unplaced)
        return able

    def pick_workload(self, slot: SlotType | None, row: int | None) -> SlotChoice[Needs] | None:
        """Offer a slot of a type on a row, or where both are None the whole cluster."""
        name = "" if row is None else self._admission.capacity.state.nodes.names[row]

        def may(tenant: LendingQueue[Needs], group: WorkloadGroup[Needs]) -> bool:
            fits, somewhere = self._find_rows(tenant.name, group)
            return bool(somewhere if row is None else fits[row]) and self._is_admissible(tenant.name, group)

        def near(tenant: LendingQueue[Needs], group: WorkloadGroup[Needs]) -> bool:
            data = group.key.data
            if row is not None:
                return self._admission.locality.is_near(name, data)
            wants = self._get_first_requirements(group.key.requirements)
            # Room that is kept for a workload is near for that workload alone.
            holder = self._get_reserved_uid(group)
            key = (wants, data, holder, self._compute_most(tenant.name, group))
            found = self._near_somewhere.get(key)
            if found is None:
                found = bool((self._find_rows(tenant.name, group)[0] & self.mask_near(data)).any())
                self._near_somewhere[key] = found
            return found

        locality = self._admission.config.locality.enabled
        return pick_workload(
            slot, self._order, near=near, may=may, among=self.able_requirements, locality=locality
        )

    def mask_near(self, data: frozenset[str]) -> BoolArray:
        """Rows that some data is near to: bool[R]."""
        return self._admission.mask_near(data)

    def mask_idle_slots(self) -> BoolArray:
        """Rows with an idle slot of any type: bool[R]."""
        nodes, slots = self._admission.capacity.state.nodes, self._admission.slots
        idle = np.zeros(nodes.row_count, dtype=np.bool_)
        for name, row in nodes.rows.items():
            idle[row] = any(slots.count_idle(name, kind) for kind in SlotType)
        return idle

    def find_idle_slot(self) -> tuple[int, SlotType] | None:
        """An idle slot where an admissible task fits, of the task's own type if there is one.

        Slots near to some task's data come first: those of other nodes are offered when nobody has any.
        """
        near = self._find_slot(relaxed=False) if self._admission.config.locality.enabled else None
        return near or self._find_slot(relaxed=True)

    def _find_slot(self, *, relaxed: bool) -> tuple[int, SlotType] | None:
        nodes, slots = self._admission.capacity.state.nodes, self._admission.slots
        rows = {kind: np.zeros(nodes.row_count, dtype=np.bool_) for kind in SlotType}
        seen: set[tuple[WorkloadGroupKey[Needs], int | None]] = set()
        for tenant in self._order:
            for kind in SlotType:
                for group in tenant.waiting.list_groups(kind, self.able_requirements):
                    alike = (group.key, self._compute_most(tenant.name, group))
                    known = alike in seen and not self._admission.capacity.reservations
                    if not known and self._is_admissible(tenant.name, group):
                        seen.add(alike)
                        where = self._find_rows(tenant.name, group)[0]
                        data = frozenset() if relaxed else group.key.data
                        rows[kind] |= where & self.mask_near(data) if data else where
        for row in np.flatnonzero(rows[SlotType.LOCAL] | rows[SlotType.FREE]).tolist():
            idle = [kind for kind in SlotType if slots.count_idle(nodes.names[row], kind)]
            own = [kind for kind in idle if rows[kind][row]]
            if idle:
                return row, (own or idle)[0]
        return None

    def _is_admissible(self, tenant: str, group: WorkloadGroup[Needs]) -> bool:
        """Whether order and quota allow the group, wherever there may be room."""
        if not self._is_next(tenant, group):
            return False
        least = self._admission.quota_usage.compute_least_units(group.key.requirements)
        return self._admission.queues.allows_units(tenant, least, group.get_oldest().uid)

    def _is_next(self, tenant: str, group: WorkloadGroup[Needs]) -> bool:
        """Tell whether order lets a group go: a strict queue admits its oldest workload only."""
        state = self._admission.queues[tenant]
        if state.form is None or not state.form.is_strict:
            return True
        if tenant not in self._strict:
            groups = chain.from_iterable(state.waiting.list_groups(kind) for kind in SlotType)
            self._strict[tenant] = min(groups, key=lambda each: each.get_oldest().age_key, default=None)
        return self._strict[tenant] is group

    def _find_rows(self, tenant: str, group: WorkloadGroup[Needs]) -> tuple[BoolArray, bool]:
        """Rows on which the oldest task of a group fits (of a gang its first pod), and whether any does."""
        wants = self._get_first_requirements(group.key.requirements)
        return self._find_fitting_rows(
            wants, self._get_reserved_uid(group), self._compute_most(tenant, group)
        )

    def _get_reserved_uid(self, group: WorkloadGroup[Needs]) -> str:
        """Return the UID of a group's oldest workload if room is kept for it, else an empty one."""
        uid = group.get_oldest().uid
        return uid if uid in self._reserved_uids else ""

    def _get_first_requirements(self, needs: Needs) -> PodRequirements:
        """What a task needs; of a gang its first pod."""
        return (
            needs
            if isinstance(needs, PodRequirements)
            else self._admission.quota_usage.list_members(needs, "")[0][1]
        )

    def _compute_most(self, tenant: str, group: WorkloadGroup[Needs]) -> int | None:
        """The most units that quotas allow, for pods that count for different ones on different rows."""
        if not self._get_first_requirements(group.key.requirements).percent:
            return None
        return self._admission.queues.compute_headroom(tenant, group.get_oldest().uid)

    def _find_fitting_rows(
        self, wants: PodRequirements, holder: str, most: int | None
    ) -> tuple[BoolArray, bool]:
        found = self._fits.get((wants, holder, most))
        if found is None:
            fits = self._admission.capacity.mask_fits(wants, holder=holder)
            fits = self._admission.quota_usage.mask_within(wants, fits, most)
            found = self._fits[wants, holder, most] = (fits, bool(fits.any()))
        return found
