"""For whom room is kept free: pods and gangs that waited too long, one task of each tenant. Pure."""

from collections.abc import Callable, Hashable, Iterable
from itertools import chain
from typing import Final

import numpy as np

from scheduler_plugin.cluster.arrays import BoolArray
from scheduler_plugin.queue.admission import Admission
from scheduler_plugin.queue.clearing import Clearing, Pod
from scheduler_plugin.queue.kept import Kept
from scheduler_plugin.queue.patience import Patience
from scheduler_plugin.queue.tenants import TenantState
from scheduler_plugin.queue.waiting import Kind, Task
from scheduler_plugin.queue.wants import Needs, Wants

VAIN_S: Final = 60.0
"""For so long it is not asked again whether pods could ever have room, unless nodes or their cards change."""

LOOKED_AT: Final = 16
"""Tasks for which room is looked for at one time; the queue decides before the next ones."""


class RoomKeeper:
    """Keeps room free, and gives it up where it cannot serve who waits for it.

    The room of a gang is kept for all of its pods at once or not at all: no two gangs hold parts of what
    both need.

    Args:
        admission: Who waits, quotas and the cluster.
        patience: Who has waited too long.
    """

    def __init__(self, admission: Admission, patience: Patience) -> None:
        self._admission = admission
        self._patience = patience
        self._vain: set[tuple[str, Hashable]] = set()
        self._vain_key: object = None
        self._vain_since = 0.0

    def keep(self, now: float) -> list[tuple[str, str]]:
        """Keep cards free for tasks that waited too long; one for each tenant, the oldest first.

        Args:
            now: Seconds.

        Returns:
            UIDs of the pods for which cards are kept from now on, and their nodes.
        """
        served = self._served()
        self._forget_vain(now)
        kept: list[tuple[str, str]] = []
        looked = 0
        lost = self._patience.lost(self._admission.config, self._admission.tenants, now)
        for uid, name in lost:
            task = self._may_keep(uid, name) if name not in served else None
            vain = (name, task.wants if isinstance(task.wants, Wants) else task.wants.shape) if task else None
            if task is None or vain is None or vain in self._vain or self._has_room(task):
                continue
            found = self._find(task, name)
            for pod, spot in found.items():
                self._admission.room.kept.put(pod, spot)
                kept.append((pod, spot.node))
            if found:
                served.add(name)
            elif self._admission.room.kept and self._find(task, name, alone=True):
                # Only what is kept for others is in its way. They are released after a while; if somebody
                # younger kept room then, a gang that needs much would never have it.
                break
            else:
                self._vain.add(vain)
            looked += 1
            if looked == LOOKED_AT:
                break
        return kept

    def _forget_vain(self, now: float) -> None:
        """Nodes, their labels or cards have changed, or perhaps something that is not looked at."""
        room = self._admission.room
        nodes = room.state.nodes
        amounts = (nodes.usable, nodes.evictable, nodes.cpu_capacity, nodes.memory_capacity)
        key = (room.facts_version, nodes.epoch, *(int(array.sum()) for array in amounts))
        if key != self._vain_key or now - self._vain_since >= VAIN_S:
            self._vain.clear()
            self._vain_key, self._vain_since = key, now

    def _has_room(self, task: Task[Needs]) -> bool:
        """Whether a pod fits now; of a gang it is not known whether all of it does."""
        return isinstance(task.wants, Wants) and bool(self._admission.room.fits(task.wants).any())

    def _served(self) -> set[str]:
        """Give up what is kept in vain; names of the tenants for which something is kept still."""
        served: set[str] = set()
        for uid in self._admission.room.kept.tasks:
            tenant = next((tenant for tenant in self._admission.tenants if uid in tenant.waiting), None)
            if tenant is not None and self._is_worth_keeping(tenant, uid):
                served.add(tenant.name)
            else:
                self._admission.room.kept.give_up(uid)
        return served

    def _may_keep(self, uid: str, name: str) -> Task[Needs] | None:
        """The task, where nothing but room keeps it from its release."""
        tenant = self._admission.tenants[name]
        task = tenant.waiting.get(uid) if tenant.is_open else None
        if task is None or tenant.waiting.is_held(uid) or not _is_next(tenant, task):
            return None
        allows = self._admission.tenants.allows(name, self._admission.amounts.least(task.wants))
        return task if allows else None

    def _find(self, task: Task[Needs], name: str, *, alone: bool = False) -> dict[str, Kept]:
        """Find cards for all pods of a task, within its tenant's quota; empty where there will never be."""
        admission = self._admission
        pods = admission.amounts.members(task.wants, task.uid)
        headroom = admission.tenants.headroom(name)
        clearing = Clearing(admission.room, task.uid, alone=alone)
        if headroom is None or not task.wants.percent:
            return clearing.find(pods)
        # What shares count for depends on the node. First each pod by itself may be wherever the others leave
        # it enough; where that is too much together, each is where it counts for the least.
        for left in (headroom - admission.amounts.least(task.wants), 0):
            found = clearing.find(pods, self._within(left))
            if self._units(pods, found) <= headroom:
                return found
        return {}

    def _within(self, more: int) -> Callable[[Wants], BoolArray]:
        """Where a pod counts for so many units more at most than where it counts for the least: bool[R]."""
        amounts = self._admission.amounts
        everywhere = np.ones(self._admission.room.state.nodes.row_count, dtype=np.bool_)
        return lambda wants: amounts.within(wants, everywhere, more + amounts.least(wants))

    def _units(self, pods: Iterable[Pod], kept: dict[str, Kept]) -> int:
        """Units that pods count for where room is kept for them."""
        amounts = self._admission.amounts
        return sum(amounts.on_node(wants, kept[uid].node) or 0 for uid, wants in pods if uid in kept)

    def _is_worth_keeping(self, tenant: TenantState, uid: str) -> bool:
        """Whether what is kept for a task can serve it still, and only room keeps it from its release."""
        admission = self._admission
        task = tenant.waiting.get(uid)
        if task is None or not tenant.is_open or tenant.waiting.is_held(uid) or not _is_next(tenant, task):
            return False
        pods, kept = admission.amounts.members(task.wants, uid), admission.room.kept.pods(uid)
        if kept.keys() != {pod for pod, _ in pods}:
            # Its pods are others now. What has become free is taken into account when room is found for them.
            return False
        cohort, units = admission.tenants.cohort(tenant.name), self._units(pods, kept)
        if cohort is None or not (cohort.is_own(tenant.name, units) or cohort.allows(tenant.name, units)):
            # What is its own comes back to it when borrowers end; what it would borrow may not.
            return False
        return Clearing(admission.room, uid).serves(pods)


def _is_next(tenant: TenantState, task: Task[Needs]) -> bool:
    """Whether order lets a task go: of a strict queue only the oldest one may."""
    if tenant.form is None or tenant.form.strategy != "StrictFIFO":
        return True
    groups = chain.from_iterable(tenant.waiting.groups(kind) for kind in Kind)
    oldest = min((group.oldest() for group in groups), key=lambda each: each.age_key, default=None)
    return oldest is not None and oldest.uid == task.uid
