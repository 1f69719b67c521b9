"""Bind pods of batch mode: try the nodes on each pod's list in order, assume its cards, send one Binding.

This is the second tier. It keeps the order of the list and skips nodes where the pod no longer fits: the
queue has ranked the nodes by its own policy and learned weights, and it counts the attempts of each pod. If
no node on the list takes the pod, it goes back to the queue, which scores all nodes again. The cards are
chosen, assumed and forgotten by `Binder`, as for pods that kube-scheduler places: there is one committer for
both.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import structlog

from kubeapi.client import CONNECTIONS
from kubeapi.lease import LeaderStatus
from scheduler_plugin.binding.batch_protocol import CommitCall, CommitOutcome, PodCandidates, PodResult
from scheduler_plugin.binding.binder import Binder
from scheduler_plugin.binding.committer import PendingBinding
from scheduler_plugin.binding.shared_nodes import SharedNodes
from scheduler_plugin.errors import FAULT, CommitError
from scheduler_plugin.scheduling.kubernetes_checks import KubernetesChecks

LATE: Final = "its Binding could not be sent in time; it is tried again"

NOT_LEADER: Final = "the kube-scheduler of this gpupack scheduler does not lead; the leader's binds"

log = structlog.get_logger(__name__)


class BatchCommitter:
    """Commits the queue's lists, one after the other, and sends their Bindings side by side."""

    def __init__(
        self,
        binder: Binder,
        checks: KubernetesChecks,
        stale: Callable[[], str],
        leadership: LeaderStatus,
        shared: SharedNodes,
    ) -> None:
        self._binder = binder
        self._checks = checks
        self._stale = stale
        self._leadership = leadership
        self._shared = shared
        self._opened = float("-inf")
        self._opening = asyncio.Lock()
        self._turns = asyncio.Semaphore(CONNECTIONS)

    async def commit(self, call: CommitCall) -> list[PodResult]:
        """Commit a call; return a result for each of its pods, in their order."""
        pods = [pod for group in call.groups for pod in group]
        # Who takes the place of a queue that has died waits so long before it decides.
        until = self._binder.clock() + self._binder.timeout_s
        refused = partial(PodResult, outcome=CommitOutcome.REFUSED)
        if why := self._stale():
            return [refused(pod.uid, why=why) for pod in pods]
        try:
            async with asyncio.timeout(2 * self._binder.timeout_s):
                await self._binder.wait_for_fence()
                await self._open()
        except CommitError as error:
            return [refused(pod.uid, why=str(error)) for pod in pods]
        except TimeoutError:
            why = "this gpupack scheduler has not listed the pods since it may bind"
            return [refused(pod.uid, why=why) for pod in pods]
        results: dict[str, PodResult] = {}
        begun: list[PendingBinding] = []
        for group in call.groups:
            # No await: what one pod takes the next one sees.
            group_begun, group_refused = self._begin_group(group, call.headroom)
            begun += group_begun
            results |= {result.uid: result for result in group_refused}
        sent = await asyncio.gather(*(self._send(commitment, until) for commitment in begun))
        results |= {result.uid: result for result in sent}
        return [results[pod.uid] for pod in pods]

    async def _open(self) -> None:
        """List the pods once per term, to see everything that the previous leader has bound.

        Its last Binding is over by now, because a leader stops long enough before another one can lead.

        Raises:
            CommitError: this process does not lead.
        """
        async with self._opening:
            since = self._leadership.since
            if since is None:
                raise CommitError(NOT_LEADER)
            if since != self._opened:
                await self._binder.refresh()
                self._opened = since

    def _begin_group(
        self, group: Sequence[PodCandidates], headroom: float
    ) -> tuple[list[PendingBinding], list[PodResult]]:
        """Assume the cards of all pods of a group, or of none and return results that say why."""
        begun: list[PendingBinding] = []
        refused: list[tuple[PodCandidates, PodResult]] = []
        for pod in group:
            try:
                found = self._begin(pod, headroom)
            except Exception:
                log.exception("pod not bound", pod=f"{pod.namespace}/{pod.name}")
                found = PodResult(pod.uid, CommitOutcome.REFUSED, why=FAULT)
            if isinstance(found, PendingBinding):
                begun.append(found)
            else:
                refused.append((pod, found))
        if not refused:
            return begun, []
        for commitment in begun:
            self._binder.abandon(commitment)
        pod, first = refused[0]
        why = first.why if len(group) == 1 else f"pod {pod.name} of its gang: {first.why}"
        rejected = tuple(dict.fromkeys(node for _, result in refused for node in result.rejected))
        return [], [PodResult(each.uid, CommitOutcome.REFUSED, why=why, rejected=rejected) for each in group]

    def _begin(self, pod: PodCandidates, headroom: float) -> PendingBinding | PodResult:
        """Assume a pod's cards on the first node of its list that takes it, or say why none does."""
        state, now = self._binder.committer.state, self._binder.clock()
        record = state.pods.get(pod.uid)
        refused = partial(PodResult, pod.uid, CommitOutcome.REFUSED)
        if record is not None and not record.asks_for_cards:
            return refused(why="it asks for no card")
        if why := self._checks.explain_batch_refusal(pod.uid):
            return refused(why=why)
        why = "no node of its list is there any more"
        rejected: list[str] = []
        for node in pod.nodes:
            if node not in state.nodes.rows:
                continue
            margin = 0.0 if self._shared.is_own(node) else headroom
            why = self._shared.explain_stop(node, now) or self._checks.find_rejection(
                pod.uid, node, now, margin=margin
            )
            if why:
                rejected.append(node)
                continue
            try:
                cards = pod.cards if node == pod.nodes[0] else ()
                return self._binder.begin(pod.namespace, pod.name, pod.uid, node, cards)
            except CommitError as error:
                why = str(error)
        return refused(why=why, rejected=tuple(rejected))

    async def _send(self, commitment: PendingBinding, until: float) -> PodResult:
        """Send a Binding, unless it is later than `until`, seconds."""
        uid, node = commitment.pod.uid, commitment.node
        async with self._turns:
            why = await self._binder.finish(
                replace(commitment, explain_stop=partial(self._explain_stop, until))
            )
        if not why:
            return PodResult(uid, CommitOutcome.BOUND, node)
        outcome = CommitOutcome.UNKNOWN if self._binder.is_unsettled(commitment) else CommitOutcome.REFUSED
        return PodResult(uid, outcome, node, why)

    def _explain_stop(self, until: float) -> str:
        if self._binder.clock() > until:
            return LATE
        return "" if self._leadership.is_leader else NOT_LEADER
