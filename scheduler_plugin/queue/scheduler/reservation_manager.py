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
        self._patience = patience
        self._vain: set[tuple[str, Hashable]] = set()
        self._vain_key: object = None
        self._vain_since = 0.0
        self._searches = 0

    def keep(self, now: float) -> list[tuple[str, str]]:
        """Keep cards free for tasks that waited too long; one for each tenant, the oldest first.

        Args:
            now: Seconds.

        Returns:
            UIDs of the pods for which cards are kept from now on, and their nodes.
        """
        admission = self._admission
        self._forget_vain(now)
        self._searches = 0
        quota, kept = self._served(), []
        passed: set[str] = set()
        content: set[tuple[str, Hashable]] = set()
        for uid, name in self._patience.lost(admission.config, admission.tenants, now):
            task = None if name in quota or name in passed else self._may_go(uid, name, passed)
            alike = (name, _make_shape(task)) if task is not None else None
            if task is None or alike is None or alike in self._vain or alike in content:
                continue
            units = admission.amounts.least(task.wants)
            found = self._look(task, name, units)
            if found is _PlannedReservation.NOTHING:
                content.add(alike)
            elif found is _PlannedReservation.VAIN:
                self._vain.add(alike)
            elif found is not _PlannedReservation.BEHIND:
                quota[name] = (uid, units)
            if found is _PlannedReservation.ROOM:
                kept += [(pod, each.node) for pod, each in admission.room.kept.pods(uid).items()]
            if found is _PlannedReservation.BEHIND or self._searches >= LOOKED_AT:
                # Those that were not looked at keep what they have.
                quota = self._before(quota, passed) | quota
                break
        admission.tenants.keep({name: each for name, each in quota.items() if self._is_own(name, each[1])})
        return kept

    def _look(self, task: QueuedWorkload[Needs], name: str, units: int) -> "_PlannedReservation":
        """Look for what a task lacks, and keep its room."""
        admission, room = self._admission, self._admission.room
        known = admission.tenants.kept.get(name) == (task.uid, units)
        if not admission.tenants.allows(name, units, task.uid):
            if not self._is_own(name, units):
                return _PlannedReservation.NOTHING
            # Whose room will never be there is not worth that others wait for its quota.
            return (
                _PlannedReservation.QUOTA
                if known or self._find(task, None, alone=True)
                else _PlannedReservation.VAIN
            )
        if isinstance(task.wants, PodRequirements) and room.fits(task.wants).any():
            return _PlannedReservation.QUOTA if known else _PlannedReservation.NOTHING
        headroom = admission.tenants.headroom(name, task.uid)
        found = self._find(task, headroom)
        for pod, spot in found.items():
            room.kept.put(pod, spot)
        if found:
            return _PlannedReservation.ROOM
        return (
            _PlannedReservation.BEHIND
            if room.kept and self._find(task, headroom, alone=True)
            else _PlannedReservation.VAIN
        )

    def _before(
        self, quota: Mapping[str, tuple[str, int]], passed: Collection[str]
    ) -> dict[str, tuple[str, int]]:
        """The quota that is kept for tasks of other tenants, which still wait."""
        tenants = self._admission.tenants
        return {
            name: (uid, units)
            for name, (uid, units) in tenants.kept.items()
            if name not in quota
            and name not in passed
            and tenants[name].is_open
            and uid in tenants[name].waiting
        }

    def _is_own(self, name: str, units: int) -> bool:
        """Whether a tenant's own quota covers so many units, when nothing else uses it."""
        form = self._admission.tenants[name].form
        return form is not None and form.nominal_quota is not None and units <= form.nominal_quota

    def _forget_vain(self, now: float) -> None:
        """Nodes, their labels or cards have changed, or perhaps something that is not looked at."""
        room = self._admission.room
        nodes = room.state.nodes
        amounts = (nodes.usable, nodes.evictable, nodes.cpu_capacity, nodes.memory_capacity)
        key = (room.facts_version, nodes.epoch, *(int(array.sum()) for array in amounts))
        if key != self._vain_key or now - self._vain_since >= VAIN_S:
            self._vain.clear()
            self._vain_key, self._vain_since = key, now

    def _served(self) -> dict[str, tuple[str, int]]:
        """Give up what is kept in vain; by tenant for whom something is kept still, and its units."""
        served: dict[str, tuple[str, int]] = {}
        for uid in self._admission.room.kept.tasks:
            tenant = next((tenant for tenant in self._admission.tenants if uid in tenant.waiting), None)
            task = None if tenant is None else tenant.waiting.get(uid)
            if tenant is not None and task is not None and self._is_worth_keeping(tenant, task):
                pods = self._admission.amounts.members(task.wants, uid)
                served[tenant.name] = (uid, self._units(pods, self._admission.room.kept.pods(uid)))
            else:
                self._admission.room.kept.give_up(uid)
        return served

    def _may_go(self, uid: str, name: str, passed: set[str]) -> QueuedWorkload[Needs] | None:
        """The task, where order and stage let it go; `passed` takes tenants of which nobody younger may."""
        tenant = self._admission.tenants[name]
        task = tenant.waiting.get(uid) if tenant.is_open else None
        if task is None or tenant.waiting.is_held(uid):
            return None
        if tenant.form is not None and tenant.form.is_strict:
            passed.add(name)
        return task if _is_next(tenant, task) else None

    def _find(
        self, task: QueuedWorkload[Needs], headroom: int | None, *, alone: bool = False
    ) -> dict[str, QueueReservation]:
        """Find cards for all pods of a task, within so much quota; empty where there will never be."""
        admission = self._admission
        pods = admission.amounts.members(task.wants, task.uid)
        self._searches += 1
        clearing = ReservationPlanner(admission.room, task.uid, alone=alone)
        if headroom is None or not task.wants.percent:
            return clearing.find(pods)
        # What shares count for depends on the node. First each pod by itself may be wherever the others leave
        # it enough; where that is too much together, each is where it counts for the least.
        for left in (headroom - admission.amounts.least(task.wants), 0):
            found = clearing.find(pods, self._within(left))
            if self._units(pods, found) <= headroom:
                return found
        return {}

    def _within(self, more: int) -> Callable[[PodRequirements], BoolArray]:
        """Where a pod counts for so many units more at most than where it counts for the least: bool[R]."""
        amounts = self._admission.amounts
        everywhere = np.ones(self._admission.room.state.nodes.row_count, dtype=np.bool_)
        return lambda wants: amounts.within(wants, everywhere, more + amounts.least(wants))

    def _units(self, pods: Iterable[Pod], kept: dict[str, QueueReservation]) -> int:
        """Units that pods count for where room is kept for them."""
        amounts = self._admission.amounts
        return sum(amounts.on_node(wants, kept[uid].node) or 0 for uid, wants in pods if uid in kept)

    def _is_worth_keeping(self, tenant: QueueState, task: QueuedWorkload[Needs]) -> bool:
        """Whether what is kept for a task can serve it still, and only room keeps it from its release."""
        admission, uid = self._admission, task.uid
        if not tenant.is_open or tenant.waiting.is_held(uid) or not _is_next(tenant, task):
            return False
        pods, kept = admission.amounts.members(task.wants, uid), admission.room.kept.pods(uid)
        if kept.keys() != {pod for pod, _ in pods}:
            # Its pods are others now. What has become free is taken into account when room is found for them.
            return False
        cohort, units = admission.tenants.cohort(tenant.name), self._units(pods, kept)
        if cohort is None:
            return False
        if not (cohort.is_own(tenant.name, units) or admission.tenants.allows(tenant.name, units, uid)):
            # What is its own comes back to it when borrowers end. What it would borrow may not: its lender
            # needs it, or it is kept for a task of the lender, which may wait for this very room.
            return False
        return ReservationPlanner(admission.room, uid).serves(pods)


def _make_shape(task: QueuedWorkload[Needs]) -> Hashable:
    """What tasks have in common that find room alike."""
    return task.wants if isinstance(task.wants, PodRequirements) else task.wants.shape


def _is_next(tenant: QueueState, task: QueuedWorkload[Needs]) -> bool:
    """Whether order lets a task go: of a strict queue only the oldest, of others the oldest of those alike.

    An older one may come back after something was kept for a younger one: it was requeued, or held back. Then
    neither would go, since what is kept for the younger one is not for the older one, which goes first.
    """
    if not tenant.waiting.is_first_of_group(task):
        return False
    if tenant.form is None or not tenant.form.is_strict:
        return True
    groups = chain.from_iterable(tenant.waiting.groups(kind) for kind in SlotType)
    oldest = min((group.oldest() for group in groups), key=lambda each: each.age_key, default=None)
    return oldest is not None and oldest.uid == task.uid
