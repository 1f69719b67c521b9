"""Writes of the queue: admission (removes the gate and names the node in one patch), requeue, removal.

Every write names the pod's UID and tests what it changes, so repeating it does no harm. A write without an
answer is repeated a few times; after that the pod is read to find out what became of it.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum, auto
from typing import Any, Final, NamedTuple

from allocator.names import POD_PLANNED, POD_REQUEUED, QUEUE_GATE, QUEUE_NAME
from kubeapi.backoff import Backoff
from kubeapi.errors import (
    UNREADABLE,
    Conflict,
    Forbidden,
    Invalid,
    KubeApiError,
    NotFound,
    is_gone,
)
from kubeapi.eviction import evict_pod
from kubeapi.object_api import ObjectApi
from kubeapi.objects import Pod, decode_pod
from kubeapi.paths import JSON_PATCH, make_pod_path
from kubeapi.selectors import REQUIRED
from scheduler_plugin.cache.pods import PodRecord, is_requeued
from scheduler_plugin.queue.cache.node_pins import add_pins, make_node_affinity
from scheduler_plugin.queue.cache.pods import Affinities
from scheduler_plugin.queue.cache.queued_pods import QueuedPod

TRIES: Final = 4
"""Patches of one pod before others have its turn: what fails for one pod may be done for others."""


class WriteOutcome(Enum):
    """Outcome of a write."""

    DONE = auto()
    REFUSED = auto()
    """The pod is not as the queue saw it, and its newest version is on its way here; or it must not be so."""
    UNKNOWN = auto()
    """There was no answer, or one that says nothing of the pod: it may have been done."""
    GONE = auto()


class WriteResult(NamedTuple):
    """Outcome of a write, why the API server refused it, and nodes that rejected the pod in batch mode."""

    written: WriteOutcome
    why: str = ""
    rejected: tuple[str, ...] = ()


class PodWriter:
    """Writes, and repeats each write until its outcome is known.

    Args:
        can_write: Whether this process may still write; asked before each request.
        timeout_s: Longest time of a request; shorter than the gap between two leaders' terms.
    """

    def __init__(
        self,
        api: ObjectApi,
        can_write: Callable[[], bool],
        timeout_s: float,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._api = api
        self._can_write = can_write
        self._timeout_s = timeout_s
        self._sleep = sleep
        self._uniform = uniform

    async def admit_pod(
        self, pod: QueuedPod, node: str = "", cards: Sequence[str] = (), others: Sequence[str] = ()
    ) -> WriteResult:
        """Admit a pod: remove our gate, which must be its only one, and the mark that it is requeued.

        Args:
            node: The only node that it may run on from now on; empty: any that its spec allows.
            cards: UUIDs of the cards planned for it there.
            others: Further nodes that it may run on if it cannot be bound to that one.
        """
        record = pod.record
        path = make_pod_path(record.namespace, record.name)
        patch = make_admission_patch(pod, node, cards, others)
        backoff = Backoff(cap_s=5.0, uniform=self._uniform)
        while self._can_write():
            try:
                await self._api.patch(path, patch, JSON_PATCH, timeout_s=self._timeout_s)
            except NotFound:
                return WriteResult(WriteOutcome.GONE)
            except (Invalid, Conflict, Forbidden) as error:
                return await self._check_earlier_patch(record, error.message, requeued=False)
            except KubeApiError as error:
                pause_s = backoff.failed(error.retry_after_s)
                if backoff.failures == TRIES:
                    return await self._check_earlier_patch(record, error.message, requeued=False)
                await self._sleep(pause_s)
            else:
                return WriteResult(WriteOutcome.DONE)
        return WriteResult(WriteOutcome.REFUSED)

    async def requeue_pod(self, pod: QueuedPod) -> WriteResult:
        """Mark a pod without a node as requeued: it is placed nowhere until it is admitted again.

        After this write no Binding that was decided earlier can succeed, because each names the
        resourceVersion of the pod that it was decided on.
        """
        path = make_pod_path(pod.record.namespace, pod.record.name)
        if not self._can_write():
            return WriteResult(WriteOutcome.REFUSED)
        try:
            await self._api.patch(path, make_requeue_patch(pod), JSON_PATCH, timeout_s=self._timeout_s)
        except NotFound:
            return WriteResult(WriteOutcome.GONE)
        except (Conflict, Invalid, Forbidden) as error:
            # It has changed, was bound perhaps, or a policy or webhook does not let it be marked.
            return await self._check_earlier_patch(pod.record, error.message, requeued=True)
        except KubeApiError as error:
            return WriteResult(WriteOutcome.UNKNOWN, error.message)
        return WriteResult(WriteOutcome.DONE)

    async def evict_pod(self, queued_pod: QueuedPod, is_wanted: Callable[[], bool]) -> WriteResult:
        """Evict a pod, respecting PodDisruptionBudgets; a pod without a node is deleted at once.

        Args:
            is_wanted: Whether it is still to go; asked before each request.
        """
        pod = queued_pod.record
        backoff = Backoff(cap_s=5.0, uniform=self._uniform)
        while self._can_write() and is_wanted():
            try:
                await evict_pod(self._api, pod.namespace, pod.name, pod.uid, timeout_s=self._timeout_s)
            except KubeApiError as error:
                if is_gone(error):
                    return WriteResult(WriteOutcome.GONE)
                if error.maybe_done:
                    return WriteResult(WriteOutcome.UNKNOWN, error.message)
                pause_s = backoff.failed(error.retry_after_s)
                if not error.can_be_repeated or backoff.failures == TRIES:
                    return WriteResult(WriteOutcome.REFUSED, error.message)
                await self._sleep(pause_s)
            else:
                return WriteResult(WriteOutcome.DONE)
        return WriteResult(WriteOutcome.REFUSED)

    async def find_node(self, pod: QueuedPod) -> WriteResult:
        """Find out whether a pod was bound, after the time when a Binding could still take effect.

        The committer sends no Binding later than one write time-out after it receives the call.
        """
        await self._sleep(2 * self._timeout_s)
        now = await self._read_pod(pod.record)
        if isinstance(now, WriteResult):
            return now
        return WriteResult(WriteOutcome.DONE if now.spec.node_name else WriteOutcome.REFUSED)

    async def _check_earlier_patch(self, record: PodRecord, why: str, *, requeued: bool) -> WriteResult:
        """Find out whether a refused patch had already been applied by an earlier try without an answer.

        Args:
            why: The API server's message; it means nothing if the pod has changed since.
            requeued: Whether the patch marks the pod as requeued instead of admitting it.
        """
        now = await self._read_pod(record, why)
        if isinstance(now, WriteResult):
            return now
        if is_requeued(now) if requeued else not (now.is_gated or is_requeued(now)):
            return WriteResult(WriteOutcome.DONE)
        changed = now.metadata.resource_version != record.resource_version
        return WriteResult(WriteOutcome.REFUSED, "" if changed else why)

    async def _read_pod(self, record: PodRecord, why: str = "") -> Pod | WriteResult:
        """Read a pod as it is now; where that says nothing of it, return what became of the write.

        This read is repeated until it is answered: if an admitted pod were taken for one that was not
        admitted, its room would be given away.
        """
        backoff = Backoff(cap_s=5.0, uniform=self._uniform)
        path = make_pod_path(record.namespace, record.name)
        while self._can_write():
            try:
                now = decode_pod(await self._api.get(path, timeout_s=self._timeout_s))
            except NotFound:
                return WriteResult(WriteOutcome.GONE)
            except UNREADABLE:
                return WriteResult(WriteOutcome.REFUSED, why)
            except KubeApiError as error:
                await self._sleep(backoff.failed(error.retry_after_s))
                continue
            return WriteResult(WriteOutcome.GONE) if now.metadata.uid != record.uid else now
        return WriteResult(WriteOutcome.REFUSED)


def make_admission_patch(
    pod: QueuedPod, node: str = "", cards: Sequence[str] = (), others: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Make the JSON patch that admits a pod, to any node or to one, and names the cards planned for it.

    The next nodes of its list are named too, to be tried if a Binding fails.

    The API server does not allow the affinity of a gated pod to be loosened. So the node is added to each of
    its terms as one more condition. A term without conditions selects no node, and stays as it is.

    A gate cannot be added again, but the requeue mark can. If a patch without an answer were repeated after
    the pod was requeued, it would admit the pod once more. So the mark is removed only from the version that
    was seen.

    A pod whose label names another queue meanwhile is not admitted: it is for that queue to admit it.
    """
    patch: list[dict[str, Any]] = [{"op": "test", "path": "/metadata/uid", "value": pod.uid}]
    if pod.queue_info.requeued:
        patch.append(_test_same_version(pod))
        patch.append({"op": "remove", "path": _point_to_annotation(POD_REQUEUED)})
    if pod.queue_info.has_gate:
        if pod.queue_info.label:
            path = f"/metadata/labels/{_escape(QUEUE_NAME)}"
            patch.append({"op": "test", "path": path, "value": pod.queue_info.label})
        patch.append({"op": "test", "path": "/spec/schedulingGates", "value": [{"name": QUEUE_GATE}]})
        patch.append({"op": "remove", "path": "/spec/schedulingGates"})
        # The affinity of a pod that has no gate any more cannot be changed.
        patch += _patch_node_affinity(pod, node, others) if node else []
    return patch + _patch_planned_cards(pod, cards)


def make_requeue_patch(pod: QueuedPod) -> list[dict[str, Any]]:
    """Make the JSON patch that requeues a pod, provided that it still has no node."""
    add: dict[str, Any] = {"op": "add", "path": _point_to_annotation(POD_REQUEUED), "value": "true"}
    if not pod.queue_info.annotated:
        add = {"op": "add", "path": "/metadata/annotations", "value": {POD_REQUEUED: "true"}}
    return [
        {"op": "test", "path": "/metadata/uid", "value": pod.uid},
        _test_same_version(pod),
        add,
    ]


def _test_same_version(pod: QueuedPod) -> dict[str, Any]:
    return {"op": "test", "path": "/metadata/resourceVersion", "value": pod.record.resource_version}


def _point_to_annotation(name: str) -> str:
    return f"/metadata/annotations/{_escape(name)}"


def _escape(key: str) -> str:
    """Escape a key for a JSON pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")


def _patch_planned_cards(pod: QueuedPod, cards: Sequence[str]) -> list[dict[str, Any]]:
    """Name the planned cards; creating `annotations` must not overwrite one added meanwhile."""
    text = ",".join(cards)
    if not text:
        return []
    if pod.queue_info.annotated:
        return [{"op": "add", "path": _point_to_annotation(POD_PLANNED), "value": text}]
    return [
        _test_same_version(pod),
        {"op": "add", "path": "/metadata/annotations", "value": {POD_PLANNED: text}},
    ]


def _patch_node_affinity(pod: QueuedPod, node: str, others: Sequence[str]) -> list[dict[str, Any]]:
    affinity = make_node_affinity([node, *others])
    match pod.queue_info.affinity:
        case Affinities.NONE:
            return [{"op": "add", "path": "/spec/affinity", "value": {"nodeAffinity": affinity}}]
        case Affinities.SOME:
            return [{"op": "add", "path": "/spec/affinity/nodeAffinity", "value": affinity}]
        case Affinities.NODES:
            path = f"/spec/affinity/nodeAffinity/{REQUIRED}"
            return [{"op": "add", "path": path, "value": affinity[REQUIRED]}]
    own = pod.requirements.rules.terms if pod.requirements is not None else None
    path = f"/spec/affinity/nodeAffinity/{REQUIRED}/nodeSelectorTerms"
    return [
        {"op": "add", "path": f"{path}/{place}/matchFields", "value": fields}
        for place, fields in add_pins(own or (), node).items()
    ]
