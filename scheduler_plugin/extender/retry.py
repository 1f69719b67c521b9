"""Retry refused pods that kube-scheduler would leave waiting.

kube-scheduler tries a refused pod again when something in the cluster changes. That leaves two kinds of pods
waiting, until the next change anywhere or for five minutes:

- kube-scheduler saw the change before us, so we refused the pod on old data. `stale_refusals` waits for such
  events, but not for long.
- Room became free without a change that kube-scheduler can see, as when the reservation of another pod is
  dropped.

A pod that asks for compute, and that kube-scheduler's own sums refused last, is left waiting too. A change of
its status does not help it: `NodeResourcesFit` looks at no such change.

Checking such a pod does not count as an attempt to place it, so it uses up no round for which a policy holds
it back.

A process that has just started, or just become the leader, does not know which pods its predecessor refused.
So it treats every waiting pod as refused by every node.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from allocator.names import BATCH_SCHEDULER
from kubeapi.bounded import BoundedDict
from kubeapi.errors import Conflict, Invalid, KubeApiError, NotFound, decode_answer
from kubeapi.lease import LeaderStatus
from kubeapi.metadata import format_time
from kubeapi.object_api import ObjectApi
from kubeapi.objects import decode_pod
from kubeapi.paths import make_pod_path
from kubeapi.pod_scheduled import write_scheduled
from scheduler_plugin.cache.pods import PodRecord
from scheduler_plugin.cache.signals import Signal
from scheduler_plugin.extender.filter_reply import FilterReply
from scheduler_plugin.extender.node_set import NodeSet
from scheduler_plugin.extender.verbs import Extender

RETRY_AFTER_S: Final = 1.0
"""A refused pod is checked after so long: by then kube-scheduler usually has asked again itself."""

HELD_RETRY_AFTER_S: Final = 5.0
"""A pod that its node policy holds back has its next round after so long, unless something else has it tried.
"""

PODS_PER_ROUND: Final = 16
"""Pods that are checked in one round, one round a second."""

MAX_REFUSED_PODS: Final = 1024
"""Refused pods that are remembered, the last ones; with more that wait, something changes all the time."""

UNKNOWN_POD_S: Final = 10.0
"""A refused pod that our view does not have after so long is gone."""

WRITE_S: Final = 10.0


log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class _RefusedPod:
    asked_nodes: NodeSet
    refused_at: float


class RefusedPodRetrier:
    """Checks refused pods again, and makes kube-scheduler retry those that now fit; only the leader does."""

    def __init__(
        self,
        extender: Extender,
        api: ObjectApi,
        clock: Callable[[], float],
        stale: Callable[[], str],
        leadership: LeaderStatus,
    ) -> None:
        self.fits: Signal[[str]] = Signal()
        self._extender = extender
        self._api = api
        self._clock = clock
        self._stale = stale
        self._leadership = leadership
        self._refused: BoundedDict[str, _RefusedPod] = BoundedDict(MAX_REFUSED_PODS)
        self._term: float | None = None
        extender.state.pod_resolved.connect(self._forget_pod)

    def record_reply(self, reply: FilterReply) -> None:
        self._refused.pop(reply.refused or reply.passed, None)
        if reply.asked_nodes is not None:
            self._add_refused(reply.refused, reply.asked_nodes)

    def _add_refused(self, uid: str, among: NodeSet) -> None:
        self._refused[uid] = _RefusedPod(among, self._clock())

    async def run(self) -> None:
        while True:
            await asyncio.sleep(RETRY_AFTER_S)
            await self.run_once()

    async def run_once(self) -> None:
        """Check the pods that have waited long enough, the least recently checked first."""
        term = self._leadership.since
        if term is None or self._stale():
            return
        if term != self._term:
            self._term = term
            self._add_waiting_pods()
        now = self._clock()
        due = [
            (uid, refused)
            for uid, refused in self._refused.items()
            if now >= refused.refused_at + RETRY_AFTER_S
        ]
        for uid, refused in due[:PODS_PER_ROUND]:
            await asyncio.sleep(0)  # calls under way come first
            if self._stale():
                return
            if self._refused.get(uid) is not refused:
                continue
            self._refused.move_to_end(uid)
            pod = self._pop_if_passing(uid, refused)
            if pod is not None and not await self._request_retry(pod, known=bool(refused.asked_nodes.bits)):
                self._refused.setdefault(uid, refused)
                return

    def _add_waiting_pods(self) -> None:
        """Treat every waiting pod as refused; kube-scheduler's calls correct that within a second."""
        for pod in self._extender.state.pods.values():
            waits = pod.request is not None and pod.can_be_scheduled
            # kube-scheduler tries a gang again by itself, as a whole.
            waits = waits and not self._extender.state.pod_groups.ends_together(pod.scheduling_group)
            if waits and pod.uid not in self._refused:
                self._add_refused(pod.uid, NodeSet())

    def _pop_if_passing(self, uid: str, refused: _RefusedPod) -> PodRecord | None:
        """Check one pod; if a node can take it now, forget and return it."""
        state = self._extender.state
        pod = state.pods.get(uid)
        if pod is None:
            if self._clock() >= refused.refused_at + UNKNOWN_POD_S:
                del self._refused[uid]
            return None
        if state.get_assumed(uid) is not None:
            return None
        try:
            now = self._clock()
            if not self._extender.would_pass(
                pod, refused.asked_nodes, now, held=now >= refused.refused_at + HELD_RETRY_AFTER_S
            ):
                return None
        except Exception:
            # As in filter, nobody else suffers from what a policy of another package may raise.
            log.exception("second look failed", pod=pod.full_name)
            pod = None
        del self._refused[uid]
        return pod

    async def _request_retry(self, pod: PodRecord, *, known: bool) -> bool:
        """Have kube-scheduler try a pod again by changing its status; return False if that may work later.

        If it is not `known` that the pod was refused, its status decides: without a refusal there,
        kube-scheduler has not come to the pod yet, or another scheduler handles it.

        The write sets `lastProbeTime` of the condition that says why the pod waits. kube-scheduler does not
        use that field and clears it with its next write, so nothing of this remains. It needs the same right
        to change pod status as kube-scheduler has.
        """
        name, path = pod.full_name, make_pod_path(pod.namespace, pod.name)
        probed = {"lastProbeTime": format_time(time.time())}
        try:
            if not known and not _was_refused(await self._api.get(path, timeout_s=WRITE_S)):
                return True
            await write_scheduled(self._api, pod.namespace, pod.name, probed, uid=pod.uid, timeout_s=WRITE_S)
        except KubeApiError as error:
            log.info("pod is not tried again", pod=name, error=str(error))
            # Gone, another pod of the name, or nothing that may be written; else it may work later.
            return isinstance(error, NotFound | Invalid | Conflict)
        self.fits(pod.uid)
        log.info("pod fits by now, and is tried again", pod=name)
        return True

    def _forget_pod(self, pod: PodRecord) -> None:
        self._refused.pop(pod.uid, None)


def _was_refused(body: bytes) -> bool:
    """Tell whether kube-scheduler has refused a pod; of a pod of batch mode the queue writes so."""
    pod = decode_answer(body, decode_pod, "a Pod")
    return pod.status.was_refused and pod.spec.scheduler_name != BATCH_SCHEDULER
