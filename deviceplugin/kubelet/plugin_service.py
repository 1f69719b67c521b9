"""Serves the device plugin API: passes the kubelet's calls to `DeviceAllocator` and answers them.

This file knows the wire and nothing of cards. A call that is refused, or fails, is answered with a gRPC
status and one clear line, and no other call suffers.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from allocator.errors import shown
from deviceplugin.errors import AllocationRefusedError
from deviceplugin.gpus.api.container_grant import ContainerGrant
from deviceplugin.kubelet.call_runner import CallRunner, Observe, Refusal, Response
from deviceplugin.kubelet.wire import deviceplugin_pb2 as pb
from deviceplugin.kubelet.wire import deviceplugin_pb2_grpc as rpc

HEALTHY: Final = "Healthy"
UNHEALTHY: Final = "Unhealthy"


class DeviceAllocator(Protocol):
    """Decides which devices a container gets, and keeps the record of it.

    Refusals are `AllocationRefusedError`, or any `AllocatorError`, which counts as kind `invalid`.
    """

    def list_devices(self) -> Mapping[str, bool]:
        """Return every device ID with its current health; `send_devices` below announces changes."""

    def explain_unavailable(self, identifier: str) -> str:
        """Say, in words, why a known ID cannot be had now."""

    async def choose_ids(
        self, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> Collection[str]:
        """Choose exactly `size` of the `available` IDs, all of `must_include` among them, which are known."""

    async def allocate(self, ids: Sequence[str]) -> ContainerGrant:
        """Grant known, healthy IDs to one container; whether they belong together is for it to check."""


@dataclass(eq=False, slots=True)
class DeviceStream:
    """An open ListAndWatch call.

    Attributes:
        stopping: we asked it to end.
        ended: set once the call is over, whichever side ended it.
    """

    number: int
    stopping: bool = False
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    wake: asyncio.Event = field(default_factory=asyncio.Event)


class DevicePlugin(rpc.DevicePluginServicer):
    """The servicer. All of it, `send_devices` too, belongs to one event loop."""

    def __init__(self, devices: DeviceAllocator, *, observe: Observe | None = None) -> None:
        self._devices = devices
        self._calls = CallRunner(observe)
        self._streams: dict[int, DeviceStream] = {}
        self._opened = 0
        self._on_streams: Callable[[], None] = lambda: None

    # --- what the registrar and the daemon use -------------------------------------------------

    def send_devices(self) -> None:
        """Send the list again on every open stream; several calls in one turn of the loop are one message."""
        for stream in self._streams.values():
            stream.wake.set()

    @property
    def streams_opened(self) -> int:
        return self._opened

    @property
    def open_streams(self) -> tuple[DeviceStream, ...]:
        """The open ListAndWatch calls, oldest first."""
        return tuple(self._streams.values())

    def set_stream_listener(self, on_change: Callable[[], None]) -> None:
        """Have `on_change` called whenever a ListAndWatch call was opened or is over."""
        self._on_streams = on_change

    async def end_streams(self) -> bool:
        """End every open ListAndWatch call from our side, and wait for it; return True if there was one."""
        streams = self.open_streams
        for stream in streams:
            stream.stopping = True
            stream.wake.set()
        for stream in streams:
            await stream.ended.wait()
        return bool(streams)

    # --- the service ------------------------------------------------------------------------------

    async def GetDevicePluginOptions(  # noqa: N802 - the wire's name
        self, _request: pb.Empty, _context: Any
    ) -> pb.DevicePluginOptions:
        """Say that we want to be asked which devices to take, and that no call is needed before a start."""
        return pb.DevicePluginOptions(pre_start_required=False, get_preferred_allocation_available=True)

    async def ListAndWatch(self, _request: pb.Empty, context: Any) -> None:  # noqa: N802 - the wire's name
        """Send the list at once and again on each change, until either side ends the call."""
        self._opened += 1
        stream = DeviceStream(self._opened)
        self._streams[stream.number] = stream
        self._on_streams()
        try:
            while not stream.stopping:
                stream.wake.clear()
                await context.write(encode_device_list(self._devices.list_devices()))
                await stream.wake.wait()
        finally:
            del self._streams[stream.number]
            stream.ended.set()
            self._on_streams()

    async def GetPreferredAllocation(  # noqa: N802 - the wire's name
        self, request: pb.PreferredAllocationRequest, context: Any
    ) -> pb.PreferredAllocationResponse:
        """Answer each container's request with exactly the IDs to take."""

        async def answer() -> pb.PreferredAllocationResponse:
            return pb.PreferredAllocationResponse(
                container_responses=[
                    pb.ContainerPreferredAllocationResponse(deviceIDs=await self._prefer(asked))
                    for asked in request.container_requests
                ]
            )

        return await self._reply("GetPreferredAllocation", answer(), context)

    async def Allocate(  # noqa: N802 - the wire's name
        self, request: pb.AllocateRequest, context: Any
    ) -> pb.AllocateResponse:
        """Grant each container's IDs, or refuse with the reason, which is final for the pod."""

        async def answer() -> pb.AllocateResponse:
            for asked in request.container_requests:
                self._check_granted(asked.devices_ids)
            return pb.AllocateResponse(
                container_responses=[
                    _granted(await self._devices.allocate(tuple(asked.devices_ids)))
                    for asked in request.container_requests
                ]
            )

        return await self._reply("Allocate", answer(), context)

    async def PreStartContainer(  # noqa: N802 - the wire's name
        self, _request: pb.PreStartContainerRequest, _context: Any
    ) -> pb.PreStartContainerResponse:
        """Do nothing, successfully: the options say that we need not be asked."""
        return pb.PreStartContainerResponse()

    # --- checks --------------------------------------------------------------------------------------

    async def _prefer(self, asked: pb.ContainerPreferredAllocationRequest) -> list[str]:
        available, required = tuple(asked.available_deviceIDs), tuple(asked.must_include_deviceIDs)
        size = asked.allocation_size
        known = self._devices.list_devices()
        for identifier in required:
            # What an init container got before the cards, or the unit, were changed.
            if identifier not in known:
                raise _unknown(identifier)
        if len(set(required)) > size:
            raise AllocationRefusedError(
                "invalid", f"{len(set(required))} devices must be included in {size}; allowed: at most {size}"
            )
        chosen = list(await self._devices.choose_ids(available, required, size))
        taken = set(chosen)
        # The kubelet would fill up a wrong answer at random across cards: better to fail here, and say so.
        if not (len(chosen) == len(taken) == size and taken.issuperset(required) and taken <= set(available)):
            raise RuntimeError(f"{len(chosen)} IDs were chosen that do not answer a request for {size}")
        return chosen

    def _check_granted(self, ids: Sequence[str]) -> None:
        health = self._devices.list_devices()
        for identifier in ids:
            if identifier not in health:
                raise _unknown(identifier)
            if not health[identifier]:
                reason = self._devices.explain_unavailable(identifier)
                raise AllocationRefusedError(
                    "unhealthy",
                    f"device {shown(identifier)} cannot be had: {reason}; "
                    "delete this pod, what made it makes another",
                )

    async def _reply(self, method: str, work: Awaitable[Response], context: Any) -> Response:
        answer = await self._calls.run(method, work)
        if not isinstance(answer, Refusal):
            return answer
        await context.abort(answer.code, answer.message)
        raise AssertionError("abort raises")  # pragma: no cover


def encode_device_list(devices: Mapping[str, bool]) -> pb.ListAndWatchResponse:
    """Encode the list of devices; never with a topology, or the kubelet would choose without asking us."""
    return pb.ListAndWatchResponse(
        devices=[
            pb.Device(ID=identifier, health=HEALTHY if healthy else UNHEALTHY)
            for identifier, healthy in devices.items()
        ]
    )


def _granted(grant: ContainerGrant) -> pb.ContainerAllocateResponse:
    return pb.ContainerAllocateResponse(
        envs=grant.envs,
        annotations=grant.annotations,
        cdi_devices=[pb.CDIDevice(name=name) for name in grant.cdi_devices],
        mounts=[
            pb.Mount(container_path=each.container_path, host_path=each.host_path, read_only=each.read_only)
            for each in grant.mounts
        ],
        devices=[
            pb.DeviceSpec(container_path=each.path, host_path=each.path, permissions=each.permissions)
            for each in grant.devices
        ],
    )


def _unknown(identifier: str) -> AllocationRefusedError:
    return AllocationRefusedError(
        "unknown",
        f"device {shown(identifier)} is not one of this node's; its cards or their unit have changed, delete "
        "this pod, what made it makes another",
    )
