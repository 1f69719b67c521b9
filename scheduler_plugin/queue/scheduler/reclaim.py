"""Victims with which a lender reclaims its quota: the fewest and youngest pods on borrowed quota. Pure.

A gang is evicted as a whole: without one of its pods the others would only block cards.
"""

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import comb
from typing import Final

import numpy as np

from allocator.cards import CardAmounts
from kubeapi.backoff import KeyedBackoff
from scheduler_plugin.preemption.node_victims import drop_needless
from scheduler_plugin.queue.cache.ended_pods import STILL_COUNTED_S
from scheduler_plugin.queue.cache.queued_pods import QueuedPod, VictimGroup
from scheduler_plugin.queue.cache.queues import QueueState
from scheduler_plugin.queue.cache.waiting import QueuedWorkload
from scheduler_plugin.queue.capacity.quota_usage import RowFilter
from scheduler_plugin.queue.capacity.requirements import GangRequirements, Needs, PodRequirements
from scheduler_plugin.queue.capacity.reservations import QueueReservation
from scheduler_plugin.queue.config.quota import Cohort
from scheduler_plugin.queue.scheduler.borrowed import (
    BorrowedPods,
    PendingEvictions,
    group_by_node,
    make_reclaim_key,
)
from scheduler_plugin.queue.scheduler.gang_capacity import GangPlacer, count_pods, list_pods
from scheduler_plugin.queue.scheduler.queue import Queue

IN_VAIN_S: Final = (60.0, 3600.0)
"""Shortest and longest pause of a workload that was not admitted although all victims had gone twice."""

REFUSED_S: Final = (600.0, 86_400.0)
"""Shortest and longest pause of workloads like one that kube-scheduler refused, until one is bound."""

DENIED_S: Final = (300.0, 86_400.0)
"""Shortest and longest pause of a workload whose admission the API server refuses, until it allows it."""

MOST_SETS: Final = 400
"""Other sets of victims that are tried, one after the other, before those found are evicted."""

MOST_SIZES: Final = 8
"""Card sizes for which room is searched for pods that ask for shares; the smallest ones."""

MAX_SEARCHES: Final = 4
"""Workloads without victims that one call examines at most; the next call goes on with others."""


@dataclass(frozen=True, slots=True)
class ReclaimPlan:
    """Victims and reservations for one lender.

    Attributes:
        uid: Its waiting pod or gang.
        node: Node where room is made; empty if only quota is missing, or for a gang.
        groups: Victims to evict; empty if the pods that are leaving already suffice.
        reserved: Reservations to make meanwhile, by UID of the waiting pods.
    """

    queue: str
    uid: str
    node: str
    groups: tuple[VictimGroup, ...]
    reserved: Mapping[str, QueueReservation] = field(default_factory=dict)

    @property
    def victims(self) -> list[QueuedPod]:
        return list_pods(self.groups)

    def reserve(self, queue: Queue) -> None:
        """Reserve what becomes free for the waiting pods, replacing their other reservations."""
        queue.capacity.reservations.remove_workload(self.uid)
        for uid, reservation in self.reserved.items():
            queue.capacity.reservations.add_reservation(uid, reservation)


class Reclaimer:
    """Finds victims, for one pod or gang of a queue at a time.

    The next search for a queue begins once that workload was admitted: a victim's node needs a moment to
    report its cards as free. If something else took the room, it begins some seconds after the last victim
    has gone.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._borrowed = BorrowedPods(queue)
        self._passed: set[tuple[str, Hashable]] = set()
        self._rounds: dict[str, int] = {}
        self._in_vain: KeyedBackoff[str] = KeyedBackoff(*IN_VAIN_S)
        self._refused: KeyedBackoff[Hashable] = KeyedBackoff(*REFUSED_S)
        self._denied: KeyedBackoff[str] = KeyedBackoff(*DENIED_S)

    @property
    def has_more(self) -> bool:
        """Whether the newest call of `find_plans` stopped before it had checked every workload."""
        return bool(self._passed)

    def find_plans(self, now: float) -> list[ReclaimPlan]:
        """Find the evictions to make now, and reserve the room for them; no victim is named twice."""
        if self._queue.config.reclaim != "evict":
            return []
        self._queue.state.expire_tombstones(now)
        self._borrowed.update_pending(now)
        self._end_finished(now)
        found: list[ReclaimPlan] = []
        looked_at = 0
        for queue in self._queue.queues:
            for search in self._list_searches(queue, now):
                self._passed.add((queue.name, search.shape))
                reclaim = search.find_victims()
                if reclaim is not None:
                    self._record_begun(reclaim, search, now)
                    reclaim.reserve(self._queue)
                    found.append(reclaim)
                    break
                looked_at += 1
                if looked_at == MAX_SEARCHES:
                    return found
        self._passed.clear()
        return found

    def record_refusal(self, queue: str, uid: str, now: float, *, stays: bool = True) -> None:
        """Record that an eviction was refused: a budget protects the victim, or the pod has changed.

        Other victims are searched: at once if none is leaving, else once it is known what the leaving ones
        free.

        Args:
            stays: Whether it is certain that the victim stays; it is not if the API server did not answer.
        """
        going = self._borrowed.pending.get(queue)
        if going is not None and uid in going.uids:
            going.uids.discard(uid)
            if stays:
                going.pods_left -= 1
                self._borrowed.protect_pod(uid, now)
            if not going.pods_left:
                self._rounds.pop(going.waiting, None)
                self._queue.capacity.reservations.remove_workload(going.waiting)
                del self._borrowed.pending[queue]

    def _record_begun(self, reclaim: ReclaimPlan, search: "_VictimSearch", now: float) -> None:
        uids = {pod.uid for pod in reclaim.victims or search.leaving}
        for gang in {pod.gang for pod in reclaim.victims if pod.gang}:
            self._queue.gangs.begin_removal(gang, now)
        self._borrowed.pending[reclaim.queue] = PendingEvictions(
            reclaim.uid, search.sum_units(reclaim.reserved), uids, now, now, len(uids)
        )
        if reclaim.victims:
            self._rounds[reclaim.uid] = self._rounds.get(reclaim.uid, 0) + 1
            template = self._get_refused_template(reclaim.uid)
            if template is not None:
                self._refused.failed(template, now)
            if self._is_denied(reclaim.uid):
                self._denied.failed(reclaim.uid, now)

    def _end_finished(self, now: float) -> None:
        """End evictions that led to an admission, or that did not although every victim has gone."""
        queues, going = self._queue.queues, self._borrowed.pending
        self._in_vain.pop_due(now)
        self._refused.pop_due(now)
        self._denied.pop_due(now)
        self._refused.forget_others(
            {
                *self._queue.equivalence_backoff.refused_templates,
                *self._queue.gangs.equivalence_backoff.refused_templates,
            }
        )
        for lender, each in list(going.items()):
            waits = each.waiting in queues[lender].waiting
            if each.uids and (waits or not self._borrowed.are_ending(each.uids)):
                each.last_gone_at = now
            elif not waits or now - each.last_gone_at >= STILL_COUNTED_S:
                del going[lender]
                if waits and self._rounds.get(each.waiting, 0) > 1:
                    # Whatever keeps it from its admission, it is not what it was evicted for.
                    self._in_vain.failed(each.waiting, now)
        waiting = {uid for uid in self._rounds if any(uid in queue.waiting for queue in queues)}
        self._rounds = {uid: self._rounds[uid] for uid in waiting}
        self._in_vain.forget_others(waiting)
        self._denied.forget_others({uid for uid in self._denied if self._is_denied(uid)})

    def _list_searches(self, queue: QueueState, now: float) -> Iterator["_VictimSearch"]:
        """Give the workloads of a queue that lack quota which others have borrowed, the oldest first."""
        cohort = self._queue.queues.get_cohort(queue.name)
        if cohort is None or not queue.is_open or queue.name in self._borrowed.pending:
            return
        if not cohort.list_borrowers(queue.name) or not len(queue.waiting):
            return
        leaving, ended = self._borrowed.list_leaving(now), self._queue.ended_pods.sum_charges(now)
        borrowed = self._borrowed.list_borrowed(cohort, queue.name, leaving)
        for workload in _list_in_order(queue):
            if (queue.name, workload.requirements.shape) in self._passed or self._in_vain.is_paused(
                workload.uid
            ):
                continue
            if self._was_refused(workload.uid, now) or self._was_denied(workload.uid, now):
                continue
            search = _VictimSearch(
                self._queue, self._borrowed, queue.name, cohort, workload, borrowed, leaving, ended
            )
            if search.is_needed():
                yield search

    def _was_refused(self, uid: str, now: float) -> bool:
        """Return True if no pod is evicted for a workload yet: an equivalent one was refused."""
        template = self._get_refused_template(uid)
        if template is not None and not self._refused.count_failures(template):
            self._refused.failed(template, now)
        return template is not None and self._refused.is_paused(template)

    def _was_denied(self, uid: str, now: float) -> bool:
        """Return True if no pod is evicted for a workload yet, because its admission was refused."""
        if self._is_denied(uid) and not self._denied.count_failures(uid):
            self._denied.failed(uid, now)
        return self._denied.is_paused(uid)

    def _is_denied(self, uid: str) -> bool:
        """Return True if the admission of a pod of a workload is denied, see `PodRefusals`."""
        gang = self._queue.gangs.get(uid)
        uids = [uid] if gang is None else gang.members
        pods = (pod for uid in uids if (pod := self._queue.queued_pods.get(uid)) is not None)
        return any(map(self._queue.refusals.is_denied, pods))

    def _get_refused_template(self, uid: str) -> Hashable:
        """Return the template of a workload if a unit of that template was refused, else None."""
        queue = self._queue
        for unit, backoff in (
            (queue.gangs.get(uid), queue.gangs.equivalence_backoff),
            (queue.queued_pods.get(uid), queue.equivalence_backoff),
        ):
            if unit is not None and unit.template in backoff.refused_templates:
                return unit.template
        return None


class _VictimSearch:
    """Searches the victims for one workload.

    Args:
        candidates: Possible victims for a workload of any priority, in the order of eviction.
        leaving: Pods that are about to be gone in any case.
        ended: What of ended pods is about to become free, see `EndedPods.sum_charges`.
    """

    def __init__(
        self,
        queue: Queue,
        borrowed: BorrowedPods,
        queue_name: str,
        cohort: Cohort,
        workload: QueuedWorkload[Needs],
        candidates: Sequence[VictimGroup],
        leaving: Sequence[QueuedPod],
        ended: Mapping[str, Mapping[int, CardAmounts]],
    ) -> None:
        self._queue = queue
        self._borrowed = borrowed
        self._queue_name = queue_name
        self._cohort = cohort
        self._workload = workload
        self._pods = queue.quota_usage.list_members(workload.requirements, workload.uid)
        priority = self._get_priority()
        self._candidates = [victims for victims in candidates if victims.priority <= priority]
        self._least = queue.quota_usage.compute_least_units(workload.requirements)
        uid, units = queue.queues.reserved_quota.get(queue_name, (workload.uid, 0))
        self._reserved = 0 if uid == workload.uid else units
        self.leaving = leaving
        self._ended = ended
        self.shape = workload.requirements.shape

    def is_needed(self) -> bool:
        """Return True if the lender's own quota would cover the workload and something is still missing."""
        if not self._cohort.fits_nominal(self._queue_name, self._least + self._reserved):
            return False
        if not self._candidates and not self.leaving:
            return False
        if isinstance(self._workload.requirements, GangRequirements):
            return True
        fits = self._queue.admission.mask_fits(self._workload.requirements, self._workload.uid)
        if self._queue.slots.form is not None:
            names, left = self._queue.state.nodes.names, self._queue.slots.count_left
            fits = fits & np.array([left(name) > 0 for name in names], dtype=np.bool_)
        units = (
            self._queue.quota_usage.compute_least_units(self._workload.requirements, fits)
            if fits.any()
            else 0
        )
        return (
            not fits.any()
            or self._compute_missing(units, {}) > 0
            or not self._cohort.fits_nominal(self._queue_name, units)
        )

    def find_victims(self) -> ReclaimPlan | None:
        """Find the fewest victims whose eviction lets the workload be admitted; None if there are none."""
        found = [
            each for among in self._list_restrictions() if (each := self._find_on_nodes(among)) is not None
        ]
        return min(found, key=lambda each: _make_order_key(each.groups), default=None)

    def _find_on_nodes(self, among: RowFilter | None) -> ReclaimPlan | None:
        placer = self._make_placer(among, self.leaving, self._ended)
        victims = placer.find_victims(group_by_node(self._candidates)) if placer.rest else []
        if victims is not None:
            victims = self._add_quota_victims(placer, victims)
        if victims is None or (not victims and not self._needs_leaving(among)):
            return None
        victims = self._reduce_victims(placer, victims)
        spots = placer.find_places(list_pods(victims))
        single = isinstance(self._workload.requirements, PodRequirements) and bool(placer.rest)
        node = spots[self._workload.uid].node if single else ""
        return ReclaimPlan(self._queue_name, self._workload.uid, node, tuple(victims), spots)

    def sum_units(self, spots: Mapping[str, QueueReservation]) -> int:
        return self._queue.quota_usage.sum_reserved(self._pods, spots)

    def _get_priority(self) -> int:
        """Return the priority of the waiting pod; for a gang, the smallest of its pods' priorities."""
        pods = (self._queue.queued_pods.get(uid) for uid, _ in self._pods)
        return min((pod.record.priority for pod in pods if pod is not None), default=0)

    def _make_placer(
        self,
        among: RowFilter | None,
        leaving: Sequence[QueuedPod],
        ended: Mapping[str, Mapping[int, CardAmounts]],
    ) -> GangPlacer:
        slots = self._queue.slots
        return GangPlacer(
            self._queue.capacity,
            self._workload.uid,
            self._pods,
            leaving=leaving,
            ended=ended,
            among=among,
            places_left=None if slots.form is None else slots.count_left,
        )

    def _list_restrictions(self) -> Iterator[RowFilter | None]:
        """Give the sets of nodes to try, so that pods that ask for percent stay within quota.

        A percentage is charged more units on a larger card: that costs quota but may need fewer victims. So
        each card size is tried for which the quota allows the difference to the smallest charge.
        """
        if not self._workload.requirements.percent:
            yield None
            return
        account = self._cohort.accounts[self._queue_name]
        own = (account.quota.nominal or 0) - account.used - self._reserved
        nodes, usage = self._queue.state.nodes, self._queue.quota_usage
        by_row, least = usage.compute_units_by_row, usage.compute_least_units
        shapes = {requirements for _, requirements in self._pods}
        extra = {
            more for w in shapes for more in (by_row(w)[nodes.mask_offering(w.request)] - least(w)).tolist()
        }
        for more in sorted(extra & set(range(own - self._least + 1)))[:MOST_SIZES]:
            yield usage.make_filter(more)

    def _compute_missing(self, units: int, freed: Mapping[str, int]) -> int:
        return self._cohort.compute_missing(self._queue_name, units + self._reserved, freed)

    def _is_enough(self, placer: GangPlacer, groups: Collection[VictimGroup]) -> bool:
        victims = list_pods(groups)
        freed = self._borrowed.sum_freed(self.leaving, victims, self._cohort)
        if not self._workload.requirements.percent and self._compute_missing(self._least, freed):
            return False
        spots = placer.find_places(victims)
        if len(spots) < len(self._pods):
            return False
        units = self.sum_units(spots)
        return self._cohort.fits_nominal(
            self._queue_name, units + self._reserved
        ) and not self._compute_missing(units, freed)

    def _add_quota_victims(self, placer: GangPlacer, victims: list[VictimGroup]) -> list[VictimGroup] | None:
        """Add as few victims as possible until the quota suffices too; None if it never does."""
        spots = placer.find_places(list_pods(victims))
        if len(spots) < len(self._pods):
            return None
        units, chosen = self.sum_units(spots), list(victims)
        rest = [group for group in self._candidates if group not in victims]

        def lacks(*more: VictimGroup) -> int:
            gone = list_pods([*chosen, *more])
            return self._compute_missing(units, self._borrowed.sum_freed(self.leaving, gone, self._cohort))

        while missing := lacks():
            left = {group: lacks(group) for group in rest}
            # Whoever is enough alone, the first of them; else whoever brings most. Of a gang that is by pod.
            best = min(rest, key=lambda group: (left[group] - missing) / len(group.pods), default=None)
            if best is None or left[best] == missing:
                return None
            chosen.append(best)
            rest.remove(best)
        return chosen if self._is_enough(placer, chosen) else None

    def _reduce_victims(self, placer: GangPlacer, victims: list[VictimGroup]) -> list[VictimGroup]:
        """Drop victims that need not go, the last in order first, and try other small sets.

        Of sets with equally many pods, the one whose last victim comes first in the order of eviction wins,
        and so on.
        """
        remaining = drop_needless(
            sorted(victims, key=make_reclaim_key), lambda fewer: self._is_enough(placer, fewer)
        )
        tried, count = 0, 1
        # A set of so many groups has as many pods at least.
        while count <= count_pods(remaining):
            tried += comb(len(self._candidates), count)
            if tried > MOST_SETS:
                break
            for some in sorted(combinations(self._candidates, count), key=_make_order_key):
                if _make_order_key(some) >= _make_order_key(remaining):
                    break
                if self._is_enough(placer, some):
                    remaining = list(some)
                    break
            count += 1
        return remaining

    def _needs_leaving(self, among: RowFilter | None) -> bool:
        """Return True if the workload depends on the leaving or ended pods being gone."""
        placer = self._make_placer(among, (), {})
        spots = {} if placer.rest else placer.find_places(())
        return not spots or self._compute_missing(self.sum_units(spots), {}) > 0


def _make_order_key(victims: Collection[VictimGroup]) -> tuple[int, list[tuple[int, float, str]]]:
    """Sort key of victim sets: the fewest pods, then the set whose last victim comes first in order."""
    return count_pods(victims), sorted(map(make_reclaim_key, victims), reverse=True)


def _list_in_order(queue: QueueState) -> list[QueuedWorkload[Needs]]:
    """List the workloads that are next in the queue's order, the oldest first."""
    workloads = sorted(queue.waiting.list_oldest(), key=lambda workload: workload.age_key)
    return [workload for workload in workloads if queue.is_next(workload)]
