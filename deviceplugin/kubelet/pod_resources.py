"""Asks the kubelet's PodResources service which pods it has admitted, which also cleans its checkpoint.

The kubelet takes up one pod after the other. A pod is listed from the moment before it is admitted, and while
the plugin is asked for its devices nothing else is taken up. So the list says whose devices are asked for,
which the question itself does not.

Left alone the kubelet drops the entries of pods that ended at its next allocation only. Measured on 1.36.3: a
List drops them from its memory and writes nothing. A ListAndWatch message writes the checkpoint and drops
nothing. So first the one, then the other (docs/kubelet-checkpoint.md).
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import grpc
import structlog

from deviceplugin.kubelet.grpc_sockets import CHANNEL_OPTIONS
from deviceplugin.kubelet.wire import podresources_pb2 as pb

AGAIN_S: Final = 0.02
"""The kubelet answers 100 questions a second, of all who ask, and after its start the connection is new."""

log = structlog.get_logger(__name__)

_LIST: Final = "/v1.PodResourcesLister/List"


class PodResources:
    """Asks the kubelet's PodResources service.

    Attributes:
        errors: questions so far that were not answered.
        problem: what was wrong with the last question, None if it was answered.
    """

    def __init__(self, socket: Path, *, timeout_s: float = 2.0) -> None:
        self._socket = socket
        self._timeout_s = timeout_s
        self._channel: Any = None
        self._turn = asyncio.Lock()
        self.errors = 0
        self.problem: str | None = None

    async def list_admitted_pods(self) -> frozenset[tuple[str, str]] | None:
        """List namespace and name of the pods that the kubelet has taken up, None if it does not say.

        The kubelet is asked again for a while, but not when the last question had no answer at all.
        """
        if self.problem is not None and self._turn.locked():
            return None  # somebody waits for an answer already, and none has come before
        answer = await self._call_list(self._timeout_s if self.problem is None else 0.0)
        if answer is None:
            return None
        return frozenset((pod.namespace, pod.name) for pod in answer.pod_resources)

    async def purge_checkpoint(self, send_devices: Callable[[], None]) -> None:
        """Have the checkpoint purged and written. The caller repeats it where the kubelet does not answer."""
        if await self._call_list(0.0) is not None:
            send_devices()

    async def _call_list(self, patience_s: float) -> pb.ListPodResourcesResponse | None:
        """List all pods; None if there is no answer for at least `patience_s`."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + patience_s
        while True:
            try:
                answer = await self._list()
            except (grpc.aio.AioRpcError, TimeoutError) as error:
                if loop.time() < end_s:
                    await asyncio.sleep(AGAIN_S)
                    continue
                self._failed(error)
                return None
            if self.problem is not None:
                log.info("the kubelet's PodResources answers again")
            self.problem = None
            return answer

    async def _list(self) -> pb.ListPodResourcesResponse:
        """Send one request; other callers wait, because closing a connection ends all its calls."""
        async with self._turn:
            if self._channel is None:
                self._channel = grpc.aio.insecure_channel(f"unix:{self._socket}", options=CHANNEL_OPTIONS)
            ask = self._channel.unary_unary(
                _LIST,
                request_serializer=pb.ListPodResourcesRequest.SerializeToString,
                response_deserializer=pb.ListPodResourcesResponse.FromString,
            )
            try:
                async with asyncio.timeout(self._timeout_s + 1):
                    answer: pb.ListPodResourcesResponse = await ask(
                        pb.ListPodResourcesRequest(), timeout=self._timeout_s
                    )
            except (grpc.aio.AioRpcError, TimeoutError):
                await self.close()
                raise
            return answer

    def _failed(self, error: Exception) -> None:
        self.errors += 1
        told, self.problem = (
            self.problem,
            f"PodResources at {self._socket} cannot be asked: {_reason(error)}",
        )
        if told is None:
            log.warning(
                "the kubelet does not clean its checkpoint, ended pods stay charged, "
                "and whose devices it asks for is guessed",
                error=self.problem,
            )

    async def close(self) -> None:
        """Close the connection; the next request opens a new one."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()


def _reason(error: Any) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return f"{error.code().name}: {str(error.details())[:256]}"
