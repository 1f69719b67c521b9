"""A label on the leader's pod and on no other, so that a Service can select the leader.

Readiness cannot say who leads: a Deployment counts its ready pods, and an update waits for all of them.
The label is written through `pods/status`: the right to do that changes neither images nor volumes of a pod.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
import structlog

from kubeapi.backoff import KeyedBackoff
from kubeapi.errors import KubeApiError, NotFound, decode_answer
from kubeapi.object_api import ObjectApi
from kubeapi.objects import Pod, make_list_decoder
from kubeapi.paths import make_collection_path, make_pod_path

DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
"""A ReplicaSet that becomes smaller deletes pods of low cost first: so an update changes the leader once."""

LEADER_COST: Final = "100"

WRITE_AGAIN_S: Final = 10.0
"""Seconds after which the leader writes its label anew, which mends one that was removed by hand."""

LOOK_S: Final = 0.2
"""Seconds between two checks of who leads."""

LONGEST_RETRY_S: Final = 2.0
"""Longest pause before a write that failed is tried again."""

log = structlog.get_logger(__name__)


_decode_pods: Final = make_list_decoder(Pod)


class LeaderLabel:
    """Keeps a label true of one pod: present while its process leads, absent while it does not.

    A process that begins to lead takes the label from every other pod that has it: the former leader may be
    cut off or dead.

    Args:
        value: Says which election is meant.
    """

    def __init__(
        self,
        client: ObjectApi,
        namespace: str,
        pod: str,
        label: str,
        value: str,
        leads: Callable[[], bool],
        timeout_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._pod = pod
        self._label = label
        self._value = value
        self._leads = leads
        self._timeout_s = timeout_s
        self._clock = clock
        self._sleep = sleep
        self._shown: bool | None = None
        self._written_at = float("-inf")
        self._refused: KeyedBackoff[bool] = KeyedBackoff(LOOK_S, LONGEST_RETRY_S, random.uniform)

    async def run(self) -> None:
        while True:
            await self._write_if_due()
            await self._sleep(LOOK_S)

    async def _write_if_due(self) -> None:
        leads = self._leads()
        if leads == self._shown and not (leads and self._clock() >= self._written_at + WRITE_AGAIN_S):
            return
        self._refused.forget(not leads)
        self._refused.pop_due(self._clock())
        if self._refused.is_paused(leads):
            return
        try:
            await self._write(self._pod, leads=leads)
            if leads:
                await self._take_from_others()
        except KubeApiError as error:
            self._shown = None
            self._refused.log_failure(
                leads, self._clock(), log, "leader label not written", error, pod=self._pod, leads=leads
            )
            return
        if leads != self._shown:
            log.info("leader label written", pod=self._pod, leads=leads)
        self._shown, self._written_at = leads, self._clock()
        self._refused.forget(leads)

    async def _write(self, pod: str, uid: str = "", *, leads: bool) -> None:
        """Put the label on a pod or take it off, unless it is so; an empty UID means any pod of that name."""
        metadata: dict[str, object] = {
            "labels": {self._label: self._value if leads else None},
            "annotations": {DELETION_COST: LEADER_COST if leads else None},
        }
        if uid:
            metadata["uid"] = uid
        body = msgspec.json.encode({"metadata": metadata})
        await self._client.patch(
            f"{make_pod_path(self._namespace, pod)}/status", body, timeout_s=self._timeout_s
        )

    async def _take_from_others(self) -> None:
        path = make_collection_path(self._namespace, "pods")
        selector = f"{self._label}={self._value}"
        body = await self._client.get(path, timeout_s=self._timeout_s, labelSelector=selector)
        for other in decode_answer(body, _decode_pods, "a list of pods").items or ():
            if other.metadata.name == self._pod or not self._leads():
                continue
            try:
                await self._write(other.metadata.name, other.metadata.uid, leads=False)
            except NotFound:
                continue
