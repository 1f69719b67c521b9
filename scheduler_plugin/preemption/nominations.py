"""Nominations: reserved cards, from the choice of victims until the pod is bound.

The reservation is also written to the pod's status.nominatedNodeName, so that kube-scheduler counts it and a
new process finds it. The field is only a hint: kube-scheduler may clear it, and it sets the field for its own
preemptions, whose cards are reserved in the same way.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from kubeapi.errors import UNREADABLE, KubeApiError
from kubeapi.eviction import nominate_node
from kubeapi.object_api import ObjectApi
from kubeapi.objects import decode_pod
from scheduler_plugin.cache.pods import OVERDUE_AFTER_S, PodRecord
from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.preemption.victims import EvictionRules, PreemptionPlan

RESERVED_AFTER_EVICTION_S: Final = 60.0
"""How long cards stay reserved after the last victim has gone."""

REANNOUNCE_AFTER_S: Final = 15.0
"""How long after kube-scheduler has cleared a nomination it is written again."""

FOREIGN_NOMINATION_S: Final = 30.0
"""How long a nomination that is not ours counts as a preemption of kube-scheduler's own."""

log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class Nomination:
    """Cards that are reserved for a pod for which others are evicted.

    Attributes:
        ours: True if this process evicts pods for it; else kube-scheduler does, or an earlier process did.
        since: When it began, in seconds of the clock.
    """

    pod: PodRecord
    plan: PreemptionPlan
    ours: bool
    since: float
    announced_at: float = float("-inf")
    free_since: float | None = None

    @property
    def node(self) -> str:
        return self.plan.reservation.node


class Nominations:
    """Keeps the state's reservations, one for each nomination."""

    def __init__(
        self,
        state: ClusterState,
        api: ObjectApi,
        clock: Callable[[], float],
        eligible: Callable[[], EvictionRules],
        plan: Callable[[PodRecord, str], PreemptionPlan | None],
    ) -> None:
        self._state = state
        self._api = api
        self._clock = clock
        self._eligible = eligible
        self._plan = plan
        self._by_uid: dict[str, Nomination] = {}
        self._seen: dict[tuple[str, str], float] = {}

    def get_nomination(self, uid: str) -> Nomination | None:
        return self._by_uid.get(uid)

    def is_foreign(self, pod: PodRecord) -> bool:
        """Return True if kube-scheduler may be preempting for a pod."""
        seen = self._seen.get((pod.uid, pod.nominated), self._clock())
        return bool(pod.nominated) and self._clock() < seen + FOREIGN_NOMINATION_S

    def nominate(self, pod: PodRecord, plan: PreemptionPlan, *, ours: bool = True) -> Nomination:
        nomination = Nomination(pod, plan, ours, self._clock())
        self._by_uid[pod.uid] = nomination
        self._state.reservations.add_reservation(plan.reservation)
        return nomination

    def remove_nomination(self, uid: str) -> None:
        self._by_uid.pop(uid, None)
        self._state.reservations.remove_reservation(uid)

    async def announce(self, nomination: Nomination) -> None:
        """Write the node into the pod, and end reservations of these cards for less important pods.

        Raises:
            KubeApiError: the pod is gone, or the write failed.
        """
        for other in self._withdraw_displaced(nomination):
            await self.withdraw(other)
        pod = nomination.pod
        nomination.announced_at = self._clock()
        if self._state.pod_groups.ends_together(pod.scheduling_group):
            return  # kube-scheduler places a gang anew each time; see also `GroupHolds`
        body = await nominate_node(self._api, pod.namespace, pod.name, pod.uid, nomination.node)
        try:
            # The newest version of the pod: it may be bound or deleted already.
            self._state.apply_pod(decode_pod(body), self._clock())
        except UNREADABLE as error:
            log.warning("pod not read", pod=pod.full_name, error=str(error))

    def _withdraw_displaced(self, nomination: Nomination) -> list[Nomination]:
        reservation = nomination.plan.reservation
        cards = reservation.amounts.keys()
        return [
            other
            for other in self._by_uid.values()
            if other.node == nomination.node
            and other.pod.priority < nomination.pod.priority
            and not other.plan.reservation.get_current_amounts(reservation.uuids).keys().isdisjoint(cards)
        ]

    async def withdraw(self, nomination: Nomination) -> None:
        """End a reservation and clear the pod's status, so that pods refused because of it are retried."""
        pod = nomination.pod
        self.remove_nomination(pod.uid)
        if not nomination.ours or self._state.pod_groups.ends_together(pod.scheduling_group):
            return
        try:
            await nominate_node(self._api, pod.namespace, pod.name, pod.uid, "")
        except KubeApiError as error:
            log.info("nomination not taken back", pod=pod.full_name, error=str(error))

    async def withdraw_if_waiting(self, nomination: Nomination) -> None:
        """End the reservation of a pod that no longer waits; clear its status if it may be queued again."""
        pod = self._state.pods.get(nomination.pod.uid)
        if pod is not None and pod.is_requeued:
            await self.withdraw(nomination)
        else:
            self.remove_nomination(nomination.pod.uid)

    async def review_all(self) -> list[tuple[PodRecord, str]]:
        """Review all nominations; return pods that wait on though others were evicted for them, and why."""
        self._adopt_nominated()
        unserved = []
        for uid, nomination in list(self._by_uid.items()):
            pod = self._state.pods.get(uid)
            if pod is None or not pod.can_be_scheduled:
                await self.withdraw_if_waiting(nomination)
            elif why := self._explain_failure(nomination):
                await self.withdraw(nomination)
                if nomination.ours:
                    unserved.append((pod, why))
            elif nomination.ours and pod.nominated != nomination.node:
                await self._announce_again(nomination)
        return unserved

    async def _announce_again(self, nomination: Nomination) -> None:
        if self._clock() < nomination.announced_at + REANNOUNCE_AFTER_S:
            return
        try:
            await self.announce(nomination)
        except KubeApiError as error:
            log.info("nomination not written", pod=nomination.pod.name, error=str(error))

    def _explain_failure(self, nomination: Nomination) -> str:
        """Say why a reservation is no longer needed; empty while it is."""
        if self._has_lost_cards(nomination):
            return f"node {nomination.node} has lost a card that was kept for it"
        return (
            "the cards that were kept for it were not taken in time" if self._is_overdue(nomination) else ""
        )

    def _has_lost_cards(self, nomination: Nomination) -> bool:
        """Return True if the node no longer publishes one of the reserved cards."""
        row = self._state.nodes.rows.get(nomination.node)
        uuids = () if row is None else self._state.nodes.uuids[row]
        reservation = nomination.plan.reservation
        return bool(uuids) and len(reservation.get_current_amounts(uuids)) < len(reservation.amounts)

    def _is_overdue(self, nomination: Nomination) -> bool:
        now = self._clock()
        if any(self._is_still_leaving(uid, nomination) for uid in nomination.plan.leaving_or_evicted):
            nomination.free_since = None
            return False
        if nomination.free_since is None:
            nomination.free_since = now
        return now >= nomination.free_since + RESERVED_AFTER_EVICTION_S

    def _is_still_leaving(self, uid: str, nomination: Nomination) -> bool:
        victim = self._state.pods.get(uid)
        if victim is None or victim.ended:
            return False
        if victim.grace_ends_at is None:
            return self._clock() < nomination.since + OVERDUE_AFTER_S
        return self._eligible().is_leaving(victim)

    def _adopt_nominated(self) -> None:
        """Reserve cards also for nominated pods without a reservation, if that needs no further victims."""
        now = self._clock()
        wanted = {(uid, self._state.pods[uid].nominated) for uid in self._state.nominated}
        self._seen = {key: self._seen.get(key, now) for key in wanted}
        for (uid, node), seen in self._seen.items():
            pod = self._state.pods[uid]
            if (
                uid in self._by_uid
                or now >= seen + FOREIGN_NOMINATION_S
                or not pod.can_be_scheduled
                or self._state.pod_groups.ends_together(pod.scheduling_group)  # see `GroupHolds`
                or self._state.get_assumed(uid)
            ):
                continue
            plan = self._plan(pod, node)
            if plan is not None and not plan.victims:
                self.nominate(pod, plan, ours=False)
