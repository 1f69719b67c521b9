"""Reserve cards and quota for pods and gangs that waited too long, one workload of each queue. Pure."""

from collections.abc import Collection, Hashable, Mapping
from enum import Enum, auto
from typing import Final

from scheduler_plugin.queue.cache.queues import QueueState
from scheduler_plugin.queue.cache.waiting import QueuedWorkload
from scheduler_plugin.queue.capacity.requirements import Needs, PodRequirements
from scheduler_plugin.queue.capacity.reservation_planner import ReservationPlanner
from scheduler_plugin.queue.capacity.reservations import QueueReservation
from scheduler_plugin.queue.scheduler.admission import AdmissionScheduler
from scheduler_plugin.queue.scheduler.reservation_delay import ReservationDelay

VAIN_S: Final = 60.0
"""How long a failed plan counts, unless nodes or their cards change."""

MAX_SEARCHES: Final = 16
"""Searches for room in one call; the queue decides before the next one."""


class _PlannedReservation(Enum):
    """Result of planning a reservation."""

    NOTHING = auto()
    """The workload needs nothing that could be kept."""
    QUOTA = auto()
    """Its quota is to be kept; its room is when it has that."""
    ROOM = auto()
    """Its room is kept."""
    VAIN = auto()
    """The workload will never have room."""
    BEHIND = auto()
    """Only reservations of others are in its way, which are given up after a while.

    If somebody younger reserved room then, a gang that needs much would never have it.
    """


class ReservationManager:
    """Makes reservations, and drops those that cannot serve their workload.

    Room is reserved for all pods of a gang at once or for none. So no two gangs hold parts of what both need.
    """

    def __init__(self, admission: AdmissionScheduler, delay: ReservationDelay) -> None:
        self._admission = admission
        self._delay = delay
        self._vain: set[tuple[str, Hashable]] = set()
        self._vain_key: object = None
        self._vain_since = 0.0
        self._searches = 0

    def update_reservations(self, now: float) -> list[tuple[str, str]]:
        """Reserve cards for workloads that have waited too long: one of each queue, the oldest first.

        Returns:
            UIDs of the pods for which cards are newly reserved, and their nodes.
        """
        admission = self._admission
        self._forget_vain(now)
        self._searches = 0
        quota, reservations = self._drop_useless(), []
        passed: set[str] = set()
        content: set[tuple[str, Hashable]] = set()
        for uid, name in self._delay.list_overdue(admission.config, admission.queues, now):
            workload = None if name in quota or name in passed else self._get_eligible(uid, name, passed)
            group_key = (name, workload.requirements.shape) if workload is not None else None
            if workload is None or group_key is None or group_key in self._vain or group_key in content:
                continue
            units = admission.quota_usage.compute_least_units(workload.requirements)
            planned = self._reserve_for(workload, name, units)
            if planned is _PlannedReservation.NOTHING:
                content.add(group_key)
            elif planned is _PlannedReservation.VAIN:
                self._vain.add(group_key)
            elif planned is not _PlannedReservation.BEHIND:
                quota[name] = (uid, units)
            if planned is _PlannedReservation.ROOM:
                reservations += [
                    (pod, each.node) for pod, each in admission.capacity.reservations.get_by_pod(uid).items()
                ]
            if planned is _PlannedReservation.BEHIND or self._searches >= MAX_SEARCHES:
                # Those that were not looked at keep what they have.
                quota |= self._sum_reserved_before(quota, passed)
                break
        quota = {name: each for name, each in quota.items() if self._fits_nominal(name, each[1])}
        admission.queues.overtaken.intersection_update(uid for uid, _ in quota.values())
        admission.queues.reserve_quota(quota)
        return reservations

    def _reserve_for(self, workload: QueuedWorkload[Needs], name: str, units: int) -> "_PlannedReservation":
        admission, capacity = self._admission, self._admission.capacity
        known = admission.queues.reserved_quota.get(name) == (workload.uid, units)
        if not admission.queues.allows_units(name, units, workload.uid):
            if not self._fits_nominal(name, units):
                return _PlannedReservation.NOTHING
            # Whose room will never be there is not worth that others wait for its quota.
            return (
                _PlannedReservation.QUOTA
                if known or self._plan_cards(workload, None, alone=True)
                else _PlannedReservation.VAIN
            )
        if isinstance(workload.requirements, PodRequirements) and self._fits_now(workload.requirements):
            return _PlannedReservation.QUOTA if known else _PlannedReservation.NOTHING
        headroom = admission.queues.compute_headroom(name, workload.uid)
        found = self._plan_cards(workload, headroom)
        for pod, spot in found.items():
            capacity.reservations.add_reservation(pod, spot)
        if found:
            return _PlannedReservation.ROOM
        return (
            _PlannedReservation.BEHIND
            if capacity.reservations and self._plan_cards(workload, headroom, alone=True)
            else _PlannedReservation.VAIN
        )

    def _fits_now(self, requirements: PodRequirements) -> bool:
        admission = self._admission
        fits = admission.capacity.mask_fits(requirements)
        if fits.any() and admission.config.slots is not None:
            fits = fits & admission.mask_idle_slots()
        return bool(fits.any())

    def _make_planner(self, uid: str, *, alone: bool = False) -> ReservationPlanner:
        admission = self._admission
        count_slots = None if admission.config.slots is None else admission.slots.count_total
        return ReservationPlanner(admission.capacity, uid, count_slots, alone=alone)

    def _sum_reserved_before(
        self, quota: Mapping[str, tuple[str, int]], passed: Collection[str]
    ) -> dict[str, tuple[str, int]]:
        """Return the quota reserved for other queues whose workloads still wait."""
        queues = self._admission.queues
        return {
            name: (uid, units)
            for name, (uid, units) in queues.reserved_quota.items()
            if name not in quota
            and name not in passed
            and queues[name].is_open
            and uid in queues[name].waiting
        }

    def _fits_nominal(self, name: str, units: int) -> bool:
        """Return True if a queue's nominal quota alone covers so many units, with nothing else in use."""
        form = self._admission.queues[name].form
        return form is not None and form.nominal_quota is not None and units <= form.nominal_quota

    def _forget_vain(self, now: float) -> None:
        """Forget failed plans after nodes have changed, or after a while, in case anything else has."""
        capacity = self._admission.capacity
        nodes = capacity.state.nodes
        amounts = (nodes.usable, nodes.percent, nodes.evictable, nodes.compute_limit, *nodes.amounts.capacity)
        key = (capacity.facts_version, nodes.index.epoch, *(int(array.sum()) for array in amounts))
        if key != self._vain_key or now - self._vain_since >= VAIN_S:
            self._vain.clear()
            self._vain_key, self._vain_since = key, now

    def _drop_useless(self) -> dict[str, tuple[str, int]]:
        """Drop useless reservations; return the remaining one of each queue: workload UID and units."""
        served: dict[str, tuple[str, int]] = {}
        for uid in self._admission.capacity.reservations.workload_uids:
            queue = next((queue for queue in self._admission.queues if uid in queue.waiting), None)
            workload = None if queue is None else queue.waiting.get(uid)
            if queue is not None and workload is not None and self._is_reservation_useful(queue, workload):
                pods = self._admission.quota_usage.list_members(workload.requirements, uid)
                served[queue.name] = (
                    uid,
                    self._admission.quota_usage.sum_reserved(
                        pods, self._admission.capacity.reservations.get_by_pod(uid)
                    ),
                )
            else:
                self._admission.capacity.reservations.remove_workload(uid)
        return served

    def _get_eligible(self, uid: str, name: str, passed: set[str]) -> QueuedWorkload[Needs] | None:
        """Return a workload if order and stage allow it; add queues that allow no younger one to `passed`."""
        queue = self._admission.queues[name]
        workload = queue.waiting.get(uid) if queue.is_open else None
        if workload is None or queue.waiting.waits_for_stage(uid):
            return None
        if queue.form is not None and queue.form.is_strict:
            passed.add(name)
        return workload if queue.is_next(workload) else None

    def _plan_cards(
        self, workload: QueuedWorkload[Needs], headroom: int | None, *, alone: bool = False
    ) -> dict[str, QueueReservation]:
        """Find cards for all pods of a workload within the headroom; empty if there can never be any."""
        admission = self._admission
        pods = admission.quota_usage.list_members(workload.requirements, workload.uid)
        self._searches += 1
        planner = self._make_planner(workload.uid, alone=alone)
        if headroom is None or not workload.requirements.percent:
            return planner.plan_workload(pods)
        # What shares count for depends on the node. First each pod may be wherever the others leave enough.
        # Where that is too much together, each goes where it counts for the least.
        for left in (headroom - admission.quota_usage.compute_least_units(workload.requirements), 0):
            found = planner.plan_workload(pods, admission.quota_usage.make_filter(left))
            if admission.quota_usage.sum_reserved(pods, found) <= headroom:
                return found
        return {}

    def _is_reservation_useful(self, queue: QueueState, workload: QueuedWorkload[Needs]) -> bool:
        """Return True if a workload's reservation can still serve it and it lacks nothing but cards.

        An older workload may return (requeued, or no longer held back) after room was reserved for a younger
        one. Then neither would start: the older one must go first, but the room is reserved for the younger
        one.
        """
        admission, uid = self._admission, workload.uid
        if not queue.is_open or not queue.is_next(workload):
            return False
        pods, reservations = (
            admission.quota_usage.list_members(workload.requirements, uid),
            admission.capacity.reservations.get_by_pod(uid),
        )
        if reservations.keys() != {pod for pod, _ in pods}:
            # Its pods are others now. What has become free is taken into account when room is found for them.
            return False
        cohort, units = (
            admission.queues.get_cohort(queue.name),
            admission.quota_usage.sum_reserved(pods, reservations),
        )
        if cohort is None:
            return False
        if not (
            cohort.fits_nominal(queue.name, units) or admission.queues.allows_units(queue.name, units, uid)
        ):
            # Its own quota comes back to it when borrowers end. What it would borrow may not come back. The
            # lender needs it, or it is kept for a workload of the lender, which may wait for this very room.
            if self._fits_nominal(queue.name, units):
                admission.queues.overtaken.add(uid)
            return False
        return self._make_planner(uid).can_serve(pods)
