"""Pods on borrowed quota that may be evicted, and pods that are leaving already. Pure."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kubeapi.backoff import KeyedBackoff
from scheduler_plugin.cache.amounts import NOTHING
from scheduler_plugin.cache.pods import OVERDUE_AFTER_S
from scheduler_plugin.queue.cache.queued_pods import Gang, Phase, QueuedPod, VictimGroup
from scheduler_plugin.queue.config.quota import Cohort
from scheduler_plugin.queue.scheduler.queue import Queue

PROTECTED_S: Final = (15.0, 300.0)
"""The shortest and the longest time for which a pod that could not be evicted is passed over for others."""

MOST_ON_NODE: Final = 64
"""Borrowed pods of a node that are considered, the youngest ones."""


@dataclass(slots=True)
class PendingEvictions:
    """Evictions for one lender that are under way.

    Attributes:
        waiting: UID of the pod, or gang, that waits.
        units: Units of quota that it will use.
        since: When that began, seconds.
        last_gone_at: When the last one went, seconds.
    """

    waiting: str
    units: int
    uids: set[str]
    since: float
    last_gone_at: float
    pods_left: int


class BorrowedPods:
    """Knows which pods may be evicted. Pods whose eviction was refused are skipped for a while.

    Attributes:
        pending: Evictions under way, by lender. Pods that are leaving count as gone.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._protected: KeyedBackoff[str] = KeyedBackoff(*PROTECTED_S)
        self.pending: dict[str, PendingEvictions] = {}

    def update_pending(self, now: float) -> None:
        """Update which pods that were evicted are gone, or should be."""
        pods = self._queue.queued_pods
        self._protected.pop_due(now)
        self._protected.forget_others(pods)
        for going in self.pending.values():
            going.uids = {
                uid for uid in going.uids if uid in pods and not _is_overdue(pods[uid], going.since, now)
            }

    def protect_pod(self, uid: str, now: float) -> None:
        """Skip a pod for a while, because its eviction was refused."""
        self._protected.failed(uid, now)

    def are_ending(self, uids: Collection[str]) -> bool:
        pods = self._queue.queued_pods
        return all(uid in pods and pods[uid].deleted_at is not None for uid in uids)

    def list_leaving(self, now: float) -> list[QueuedPod]:
        """List pods whose cards are about to become free in any case."""
        evicted = set().union(*(going.uids for going in self.pending.values()))
        pods = self._queue.queued_pods
        ending = {
            uid for uid, pod in pods.items() if pod.deleted_at is not None and not _is_overdue(pod, now, now)
        }
        return [pods[uid] for uid in sorted(evicted | ending) if pods[uid].phase is Phase.BOUND]

    def sum_freed(
        self, leaving: Collection[QueuedPod], victims: Collection[QueuedPod], cohort: Cohort
    ) -> dict[str, int]:
        """Count the units that become free by queue, less those that other lenders' pods are about to use.

        With its victims a queue gives back what it had borrowed. The rest is its own quota, which its pods
        may use again at once when they are created anew.
        """
        freed = self.sum_units_by_queue(leaving)
        for name, units in self.sum_units_by_queue(victims).items():
            left = max(0, cohort.accounts[name].borrowed - freed.get(name, 0))
            freed[name] = freed.get(name, 0) + min(units, left)
        for lender, going in self.pending.items():
            if lender in cohort.accounts and going.waiting in self._queue.queues[lender].waiting:
                freed[lender] = freed.get(lender, 0) - going.units
        return freed

    def list_borrowed(
        self, cohort: Cohort, queue_name: str, leaving: Collection[QueuedPod]
    ) -> list[VictimGroup]:
        """List the pods with which other queues exceed their own quota, by `make_reclaim_key`."""
        borrowed = []
        uids = {pod.uid for pod in leaving}
        gone = self.sum_units_by_queue(leaving)
        for name in cohort.list_borrowers(queue_name):
            left = cohort.accounts[name].borrowed - gone.get(name, 0)
            for group in sorted(self._list_groups(name, uids), key=make_reclaim_key):
                if left <= 0:
                    break
                if all(map(self._can_evict, group.pods)):
                    left -= self.sum_units_by_queue(group.pods).get(name, 0)
                    borrowed.append(group)
        return sorted(borrowed, key=make_reclaim_key)

    def _list_groups(self, queue_name: str, leaving: Collection[str]) -> Iterator[VictimGroup]:
        """List the staying pods admitted on a queue's quota; admitted pods of a gang form one group."""
        pods, gangs = self._queue.queued_pods, dict[str, Gang]()
        for uid in self._queue.queues[queue_name].admitted:
            pod = pods.get(uid)
            if pod is None or uid in leaving:
                continue
            gang = self._queue.gangs.get(pod.gang)
            if gang is not None and self._queue.gangs.ends_together(gang):
                gangs[gang.uid] = gang
            else:
                yield VictimGroup((pod,))
        for gang in gangs.values():
            stays = [pods[uid] for uid in gang.members if uid not in leaving]
            stays = [pod for pod in stays if pod.phase is not Phase.GATED and not pod.queue_info.ending]
            if stays:
                yield VictimGroup(tuple(stays))

    def sum_units(self, pods: Collection[QueuedPod]) -> int:
        return sum(self.sum_units_by_queue(pods).values())

    def sum_units_by_queue(self, pods: Collection[QueuedPod]) -> dict[str, int]:
        found: dict[str, int] = {}
        for pod in pods:
            if pod.charged_queue:
                has = self._queue.queues[pod.charged_queue].admitted.get(pod.uid, NOTHING)
                found[pod.charged_queue] = found.get(pod.charged_queue, 0) + has.units
        return found

    def _can_evict(self, pod: QueuedPod) -> bool:
        """Return True if a pod can be evicted and is not being deleted already."""
        bound = pod.requirements is not None and pod.phase is Phase.BOUND and not pod.record.is_mirror
        return bound and not pod.queue_info.ending and not self._protected.is_paused(pod.uid)


def make_reclaim_key(victims: VictimGroup) -> tuple[int, float, str]:
    """Sort key of victims: the smallest priority first, then the youngest.

    A gang is as old as its oldest pod.
    """
    oldest = min(victims.pods, key=lambda pod: (pod.waiting_since, pod.uid))
    return victims.priority, -oldest.waiting_since, oldest.uid


def group_by_node(borrowed: Sequence[VictimGroup]) -> Mapping[str, list[VictimGroup]]:
    """Group possible victims by node, at most `MOST_ON_NODE`; nodes in the order of their first pods.

    A gang is listed at each of its nodes.
    """
    found: dict[str, list[VictimGroup]] = {}
    for victims in borrowed:
        for node in dict.fromkeys(pod.record.node for pod in victims.pods):
            on_node = found.setdefault(node, [])
            if len(on_node) < MOST_ON_NODE:
                on_node.append(victims)
    return found


def _is_overdue(pod: QueuedPod, evicted_at: float, now: float) -> bool:
    """Return True if a pod that is being deleted, or whose eviction was begun, should have ended by now."""
    since = evicted_at if pod.deleted_at is None else pod.deleted_at
    return now - since >= pod.queue_info.grace_s + OVERDUE_AFTER_S
