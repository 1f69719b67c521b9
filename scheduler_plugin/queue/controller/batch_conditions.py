"""Writes the condition `PodScheduled` of pods that wait for batch mode, as every scheduler has to.

People read it with kubectl, and cluster autoscalers look for the reason `Unschedulable`, which is written
only if more nodes would help. Other waits get the queue's own reason.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Final

import structlog

from kubeapi.backoff import Backoff
from kubeapi.errors import Conflict, Invalid, KubeApiError, NotFound
from kubeapi.events import BUSY_S
from kubeapi.object_api import ObjectApi
from kubeapi.pod_scheduled import make_refusal, write_scheduled
from scheduler_plugin.queue.cache.queued_pods import Phase, QueuedPod
from scheduler_plugin.queue.controller.status import WaitReason

PACE_S: Final = 0.1
"""Conditions are written ten a second at most, and none while pods are being bound."""

log = structlog.get_logger(__name__)


class BatchConditions:
    """Remembers the newest reason of each pod, and writes it while the process is not busy."""

    def __init__(
        self,
        api: ObjectApi,
        can_write: Callable[[], bool],
        busy: Callable[[], bool],
        timeout_s: float,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._api = api
        self._can_write = can_write
        self._busy = busy
        self._timeout_s = timeout_s
        self._sleep = sleep
        self._backoff = Backoff()
        self._due: dict[str, tuple[QueuedPod, WaitReason, str]] = {}
        self._more = asyncio.Event()

    def record_reason(self, pod: QueuedPod, reason: WaitReason, message: str) -> None:
        if pod.queue_info.is_batch:
            self._due[pod.uid] = (pod, reason, message)
            self._more.set()

    async def run(self) -> None:
        while True:
            await self._more.wait()
            while self._due:
                await self._sleep(BUSY_S if self._busy() else PACE_S)
                if self._busy() or not self._due:
                    continue
                uid = next(iter(self._due))
                pod, reason, message = self._due.pop(uid)
                # Once it is on its way to a node, a write would only make its Binding fail.
                if pod.phase is Phase.GATED and self._can_write():
                    await self._write_condition(pod, reason, message)
            self._more.clear()

    async def _write_condition(self, pod: QueuedPod, reason: WaitReason, message: str) -> None:
        """Write a condition; if that may work later, it is due again after those of the other pods."""
        record = pod.record
        condition = make_condition(reason, message, datetime.now(UTC))
        try:
            await write_scheduled(
                self._api, record.namespace, record.name, condition, uid=record.uid, timeout_s=self._timeout_s
            )
        except (NotFound, Conflict, Invalid) as error:
            log.info("condition not written", pod=record.full_name, error=str(error))
        except KubeApiError as error:
            self._due.setdefault(pod.uid, (pod, reason, message))
            await self._sleep(
                self._backoff.log_failure(log, "condition not written", error, pod=record.full_name)
            )
        else:
            self._backoff.reset()


def make_condition(reason: WaitReason, message: str, now: datetime) -> dict[str, str]:
    more_nodes_help = reason in {WaitReason.ROOM, WaitReason.NEVER}
    return make_refusal("Unschedulable" if more_nodes_help else reason.value, message, now.timestamp())
