"""Delay after which a pod or gang that does not fit gets a reservation. Pure."""

from collections.abc import Mapping
from typing import Final

from scheduler_plugin.queue.cache.queued_pods import Phase, QueuedPod
from scheduler_plugin.queue.cache.queues import Queues
from scheduler_plugin.queue.config.queues import QueueConfig
from scheduler_plugin.queue.scheduler.gangs import Gangs

AGAIN_S: Final = 10.0
"""How long a computed mean age of the running pods is used: it changes slowly."""


def compute_delay_s(age_s: float, least_s: float, most_s: float) -> float:
    """Compute how long a pod waits before cards are reserved for it.

    Running pods will, on average, go on for about as long as they have run so far. During that time reserved
    cards stand idle while they become free one after the other. So a reservation for a pod that has waited
    less than that takes more from others than it gives. It comes after minutes where pods run for minutes,
    and after days where they run for days.

    Args:
        age_s: How long the running pods have run on average, in seconds.
        least_s: Shortest wait, in seconds.
        most_s: Longest wait, in seconds, unless `least_s` is longer.
    """
    return max(least_s, min(age_s, most_s))


class ReservationDelay:
    """Finds the pods and gangs that have waited for that long."""

    def __init__(self, pods: Mapping[str, QueuedPod], gangs: Gangs) -> None:
        self._queued_pods = pods
        self._gangs = gangs
        self._at = float("-inf")
        self._age_s = 0.0

    def list_overdue(self, config: QueueConfig, queues: Queues, now: float) -> list[tuple[str, str]]:
        """List workloads that have waited long enough for a reservation: UIDs and queues, the oldest first.

        A gang has waited since its first waiting pod began to, as for its position in the queue.
        """
        limit = now - config.keep_room_after_s
        long = [
            (pod.wait_start, pod.waiting_since, pod.uid, pod.waiting_queue)
            for pod in self._queued_pods.values()
            if pod.waiting_queue and pod.wait_start <= limit
        ]
        long += [
            (gang.wait_start, gang.waiting_since, gang.uid, gang.waiting_queue)
            for gang in self._gangs.list_waiting()
            if gang.wait_start <= limit
        ]
        if long:
            if now - self._at >= AGAIN_S:
                self._at, self._age_s = (
                    now,
                    self._compute_mean_age_s(queues, now, config.keep_room_at_latest_s),
                )
            limit = now - compute_delay_s(self._age_s, config.keep_room_after_s, config.keep_room_at_latest_s)
        found = sorted((since, uid, queue) for began, since, uid, queue in long if began <= limit)
        return [(uid, queue) for _, uid, queue in found]

    def _compute_mean_age_s(self, queues: Queues, now: float, most_s: float) -> float:
        """Compute how long the bound pods have run on average, weighted by units.

        No pod counts with more than `most_s`: a few pods that run for ever, or that a wrong clock dates to
        1970, must not decide for all.
        """
        units = total = 0.0
        for queue in queues:
            for uid, has in queue.admitted.items():
                pod = self._queued_pods.get(uid)
                if pod is not None and pod.phase is Phase.BOUND:
                    units += has.units
                    total += has.units * min(most_s, max(0.0, now - pod.bound_at))
        return total / units if units else 0.0
