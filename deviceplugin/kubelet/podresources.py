"""What the kubelet says its containers hold: a client of the PodResources service."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc

from deviceplugin.errors import (
    PodResourcesError,
    PodResourcesThrottled,
    PodResourcesTimedOut,
    PodResourcesUnavailable,
)
from deviceplugin.kubelet.sockets import SocketId, identify
from deviceplugin.kubelet.wire import podresources_pb2 as pb
from deviceplugin.kubelet.wire import podresources_pb2_grpc as rpc

ContainerKey = tuple[str, str, str]
Devices = Mapping[str, tuple[str, ...]]

# One entry per device: a node of 50 000 units is listed in about 7 MB.
_MAX_LIST_BYTES: Final = 64 * 1024 * 1024
_CHANNEL_OPTIONS: Final = (
    ("grpc.max_receive_message_length", _MAX_LIST_BYTES),
    ("grpc.use_local_subchannel_pool", 1),
)


@dataclass(frozen=True, slots=True)
class PodResourcesList:
    """One complete answer.

    Attributes:
        entries: (namespace, pod, container) -> resource -> its device IDs, sorted; containers without
            devices are left out. Ordinary init containers never appear, whatever they hold.
        pods: (namespace, name) of every pod that the kubelet listed, with or without devices.
        began: monotonic seconds just before the question: the answer knows everything up to then.
        kubelet: the socket that was asked; another one means another kubelet process.
    """

    entries: Mapping[ContainerKey, Devices]
    pods: frozenset[tuple[str, str]]
    began: float
    kubelet: SocketId


class PodResourcesClient:
    """Asks the kubelet; one connection, one question at a time, and not more often than allowed.

    Args:
        socket: path of the kubelet's PodResources socket.
        timeout_s: for one answer.
        gap_s: least time between the beginnings of two questions; the kubelet allows 100 a second in all.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        socket: Path,
        *,
        timeout_s: float = 5.0,
        gap_s: float = 0.05,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._socket = socket
        self._timeout_s = timeout_s
        self._gap_s = gap_s
        self._clock = clock
        self._lock = asyncio.Lock()
        self._last_began = -gap_s
        self._channel: Any = None

    async def list(self) -> PodResourcesList:
        """Ask for what every container holds now.

        Raises:
            PodResourcesUnavailable: nobody answers on the socket, or another kubelet came in between.
            PodResourcesTimedOut: no answer in time.
            PodResourcesThrottled: the kubelet refused for the number of requests.
            PodResourcesError: any other refusal.
        """
        async with self._lock:
            await asyncio.sleep(max(0.0, self._last_began + self._gap_s - self._clock()))
            before = identify(self._socket)
            if before is None:
                await self._disconnect()
                raise PodResourcesUnavailable(f"no kubelet at {self._socket}: there is no socket")
            began = self._last_began = self._clock()
            answer = await self._call()
            if identify(self._socket) != before:
                await self._disconnect()
                raise PodResourcesUnavailable(f"the kubelet at {self._socket} changed while it was asked")
        return PodResourcesList(
            entries=aggregate(answer),
            pods=frozenset((pod.namespace, pod.name) for pod in answer.pod_resources),
            began=began,
            kubelet=before,
        )

    async def close(self) -> None:
        """Close the connection; the next question opens a new one."""
        async with self._lock:
            await self._disconnect()

    async def _call(self) -> pb.ListPodResourcesResponse:
        if self._channel is None:
            self._channel = grpc.aio.insecure_channel(f"unix:{self._socket}", options=_CHANNEL_OPTIONS)
        stub = rpc.PodResourcesListerStub(self._channel)  # type: ignore[no-untyped-call]
        try:
            answer: pb.ListPodResourcesResponse = await stub.List(
                pb.ListPodResourcesRequest(), timeout=self._timeout_s
            )
        except grpc.aio.AioRpcError as error:
            await self._disconnect()
            raise _translated(error, self._socket) from error
        return answer

    async def _disconnect(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()


def aggregate(answer: pb.ListPodResourcesResponse) -> Mapping[ContainerKey, Devices]:
    """Collect one entry per device into one per container and resource, IDs sorted, each once."""
    found: dict[ContainerKey, dict[str, set[str]]] = {}
    for pod in answer.pod_resources:
        for container in pod.containers:
            for devices in container.devices:
                if devices.device_ids:
                    held = found.setdefault((pod.namespace, pod.name, container.name), {})
                    held.setdefault(devices.resource_name, set()).update(devices.device_ids)
    return {
        key: {resource: tuple(sorted(ids)) for resource, ids in sorted(held.items())}
        for key, held in found.items()
    }


def _translated(error: Any, socket: Path) -> PodResourcesError:
    code, details = error.code(), error.details()
    message = f"PodResources at {socket}: {code.name}: {str(details)[:256]}"
    if code is grpc.StatusCode.UNAVAILABLE:
        return PodResourcesUnavailable(message)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return PodResourcesTimedOut(message)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "rate limit" in str(details):
        return PodResourcesThrottled(message)
    return PodResourcesError(message)
