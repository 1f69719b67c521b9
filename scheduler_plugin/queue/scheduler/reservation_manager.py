"""For whom room is kept free: pods and gangs that waited too long, one task of each tenant. Pure."""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from enum import Enum, auto
from itertools import chain
from typing import Final

import numpy as np

from scheduler_plugin.cache.arrays import BoolArray
from scheduler_plugin.queue.cache.queues import QueueState
from scheduler_plugin.queue.cache.waiting import QueuedWorkload, SlotType
from scheduler_plugin.queue.capacity.requirements import Needs, PodRequirements
from scheduler_plugin.queue.capacity.reservation_planner import Pod, ReservationPlanner
from scheduler_plugin.queue.capacity.reservations import QueueReservation
from scheduler_plugin.queue.scheduler.admission import AdmissionScheduler
from scheduler_plugin.queue.scheduler.reservation_delay import ReservationDelay

VAIN_S: Final = 60.0
"""For so long it is not asked again whether pods could ever have room, unless nodes or their cards change."""

LOOKED_AT: Final = 16
"""So often room is looked for at one time; the queue decides before it goes on."""


class _PlannedReservation(Enum):
    """What was found for a task."""

    NOTHING = auto()
    """It needs nothing that could be kept."""
    QUOTA = auto()
    """Its quota is to be kept; its room is when it has that."""
    ROOM = auto()
    """Its room is kept."""
    VAIN = auto()
    """It will never have room."""
    BEHIND = auto()
    """Only what is kept for others is in its way. They are released after a while; if somebody younger kept
    room then, a gang that needs much would never have it."""


class ReservationManager:
    """Keeps room free, and gives it up where it cannot serve who waits for it.

    The room of a gang is kept for all of its pods at once or not at all: no two gangs hold parts of what
    both need.

    Args:
        admission: Who waits, quotas and the cluster.
        patience: Who has waited too long.
    """

    def __init__(self, admission: AdmissionScheduler, patience: ReservationDelay) -> None:
        self._admission = admission
        self._delay = patience
        self._vain: set[tuple[str, Hashable]] = set()
        self._vain_key: object = None
        self._vain_since = 0.0
        self._searches = 0

    def update_reservations(self, now: float) -> list[tuple[str, str]]:
        """Keep cards free for tasks that waited too long; one for each tenant, the oldest first.

        Args:
            now: Seconds.

        Returns:
            UIDs of the pods for which cards are kept from now on, and their nodes.
        """
        admission = self._admission
        self._forget_vain(now)
        self._searches = 0
        quota, kept = self._drop_useless(), []
        passed: set[str] = set()
        content: set[tuple[str, Hashable]] = set()
        for uid, name in self._delay.list_overdue(admission.config, admission.queues, now):
            task = None if name in quota or name in passed else self._get_eligible(uid, name, passed)
            alike = (name, _make_shape(task)) if task is not None else None
            if task is None or alike is None or alike in self._vain or alike in content:
                continue
            units = admission.quota_usage.compute_least_units(task.requirements)
            found = self._reserve_for(task, name, units)
            if found is _PlannedReservation.NOTHING:
                content.add(alike)
            elif found is _PlannedReservation.VAIN:
                self._vain.add(alike)
            elif found is not _PlannedReservation.BEHIND:
                quota[name] = (uid, units)
            if found is _PlannedReservation.ROOM:
                kept += [
                    (pod, each.node) for pod, each in admission.capacity.reservations.get_by_pod(uid).items()
                ]
            if found is _PlannedReservation.BEHIND or self._searches >= LOOKED_AT:
                # Those that were not looked at keep what they have.
                quota = self._sum_reserved_before(quota, passed) | quota
                break
        admission.queues.reserve_quota(
            {name: each for name, each in quota.items() if self._fits_nominal(name, each[1])}
        )
        return kept

    def _reserve_for(self, task: QueuedWorkload[Needs], name: str, units: int) -> "_PlannedReservation":
        """Look for what a task lacks, and keep its room."""
        admission, room = self._admission, self._admission.capacity
        known = admission.queues.reserved_quota.get(name) == (task.uid, units)
        if not admission.queues.allows_units(name, units, task.uid):
            if not self._fits_nominal(name, units):
                return _PlannedReservation.NOTHING
            # Whose room will never be there is not worth that others wait for its quota.
            return (
                _PlannedReservation.QUOTA
                if known or self._plan_cards(task, None, alone=True)
                else _PlannedReservation.VAIN
            )
        if isinstance(task.requirements, PodRequirements) and room.mask_fits(task.requirements).any():
            return _PlannedReservation.QUOTA if known else _PlannedReservation.NOTHING
        headroom = admission.queues.compute_headroom(name, task.uid)
        found = self._plan_cards(task, headroom)
        for pod, spot in found.items():
            room.reservations.add_reservation(pod, spot)
        if found:
            return _PlannedReservation.ROOM
        return (
            _PlannedReservation.BEHIND
            if room.reservations and self._plan_cards(task, headroom, alone=True)
            else _PlannedReservation.VAIN
        )

    def _sum_reserved_before(
        self, quota: Mapping[str, tuple[str, int]], passed: Collection[str]
    ) -> dict[str, tuple[str, int]]:
        """The quota that is kept for tasks of other tenants, which still wait."""
        tenants = self._admission.queues
        return {
            name: (uid, units)
            for name, (uid, units) in tenants.reserved_quota.items()
            if name not in quota
            and name not in passed
            and tenants[name].is_open
            and uid in tenants[name].waiting
        }

    def _fits_nominal(self, name: str, units: int) -> bool:
        """Whether a tenant's own quota covers so many units, when nothing else uses it."""
        form = self._admission.queues[name].form
        return form is not None and form.nominal_quota is not None and units <= form.nominal_quota

    def _forget_vain(self, now: float) -> None:
        """Nodes, their labels or cards have changed, or perhaps something that is not looked at."""
        room = self._admission.capacity
        nodes = room.state.nodes
        amounts = (nodes.usable, nodes.evictable, nodes.cpu_capacity, nodes.memory_capacity)
        key = (room.facts_version, nodes.epoch, *(int(array.sum()) for array in amounts))
        if key != self._vain_key or now - self._vain_since >= VAIN_S:
            self._vain.clear()
            self._vain_key, self._vain_since = key, now

    def _drop_useless(self) -> dict[str, tuple[str, int]]:
        """Give up what is kept in vain; by tenant for whom something is kept still, and its units."""
        served: dict[str, tuple[str, int]] = {}
        for uid in self._admission.capacity.reservations.workload_uids:
            tenant = next((tenant for tenant in self._admission.queues if uid in tenant.waiting), None)
            task = None if tenant is None else tenant.waiting.get(uid)
            if tenant is not None and task is not None and self._is_worth_keeping(tenant, task):
                pods = self._admission.quota_usage.list_members(task.requirements, uid)
                served[tenant.name] = (
                    uid,
                    self._sum_units(pods, self._admission.capacity.reservations.get_by_pod(uid)),
                )
            else:
                self._admission.capacity.reservations.remove_workload(uid)
        return served

    def _get_eligible(self, uid: str, name: str, passed: set[str]) -> QueuedWorkload[Needs] | None:
        """The task, where order and stage let it go; `passed` takes tenants of which nobody younger may."""
        tenant = self._admission.queues[name]
        task = tenant.waiting.get(uid) if tenant.is_open else None
        if task is None or tenant.waiting.is_held(uid):
            return None
        if tenant.form is not None and tenant.form.is_strict:
            passed.add(name)
        return task if _is_next(tenant, task) else None

    def _plan_cards(
        self, task: QueuedWorkload[Needs], headroom: int | None, *, alone: bool = False
    ) -> dict[str, QueueReservation]:
        """Find cards for all pods of a task, within so much quota; empty where there will never be."""
        admission = self._admission
        pods = admission.quota_usage.list_members(task.requirements, task.uid)
        self._searches += 1
        clearing = ReservationPlanner(admission.capacity, task.uid, alone=alone)
        if headroom is None or not task.requirements.percent:
            return clearing.plan_workload(pods)
        # What shares count for depends on the node. First each pod by itself may be wherever the others leave
        # it enough; where that is too much together, each is where it counts for the least.
        for left in (headroom - admission.quota_usage.compute_least_units(task.requirements), 0):
            found = clearing.plan_workload(pods, self._mask_within(left))
            if self._sum_units(pods, found) <= headroom:
                return found
        return {}

    def _mask_within(self, more: int) -> Callable[[PodRequirements], BoolArray]:
        """Where a pod counts for so many units more at most than where it counts for the least: bool[R]."""
        amounts = self._admission.quota_usage
        everywhere = np.ones(self._admission.capacity.state.nodes.row_count, dtype=np.bool_)
        return lambda wants: amounts.mask_within(wants, everywhere, more + amounts.compute_least_units(wants))

    def _sum_units(self, pods: Iterable[Pod], kept: dict[str, QueueReservation]) -> int:
        """Units that pods count for where room is kept for them."""
        amounts = self._admission.quota_usage
        return sum(
            amounts.compute_units_on_node(wants, kept[uid].node) or 0 for uid, wants in pods if uid in kept
        )

    def _is_worth_keeping(self, tenant: QueueState, task: QueuedWorkload[Needs]) -> bool:
        """Whether what is kept for a task can serve it still, and only room keeps it from its release."""
        admission, uid = self._admission, task.uid
        if not tenant.is_open or tenant.waiting.is_held(uid) or not _is_next(tenant, task):
            return False
        pods, kept = (
            admission.quota_usage.list_members(task.requirements, uid),
            admission.capacity.reservations.get_by_pod(uid),
        )
        if kept.keys() != {pod for pod, _ in pods}:
            # Its pods are others now. What has become free is taken into account when room is found for them.
            return False
        cohort, units = admission.queues.get_cohort(tenant.name), self._sum_units(pods, kept)
        if cohort is None:
            return False
        if not (
            cohort.fits_nominal(tenant.name, units) or admission.queues.allows_units(tenant.name, units, uid)
        ):
            # What is its own comes back to it when borrowers end. What it would borrow may not: its lender
            # needs it, or it is kept for a task of the lender, which may wait for this very room.
            return False
        return ReservationPlanner(admission.capacity, uid).can_serve(pods)


def _make_shape(task: QueuedWorkload[Needs]) -> Hashable:
    """What tasks have in common that find room alike."""
    return task.requirements if isinstance(task.requirements, PodRequirements) else task.requirements.shape


def _is_next(tenant: QueueState, task: QueuedWorkload[Needs]) -> bool:
    """Whether order lets a task go: of a strict queue only the oldest, of others the oldest of those alike.

    An older one may come back after something was kept for a younger one: it was requeued, or held back. Then
    neither would go, since what is kept for the younger one is not for the older one, which goes first.
    """
    if not tenant.waiting.is_first_of_group(task):
        return False
    if tenant.form is None or not tenant.form.is_strict:
        return True
    groups = chain.from_iterable(tenant.waiting.list_groups(kind) for kind in SlotType)
    oldest = min((group.get_oldest() for group in groups), key=lambda each: each.age_key, default=None)
    return oldest is not None and oldest.uid == task.uid
