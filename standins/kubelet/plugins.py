"""The stand-in kubelet's side of the device plugin API: registration, dial-back, the plugins' streams.

As in kubelet 1.37 a plugin is known by its resource and its socket. A second registration at the same
socket while the old stream is open is refused and does harm. The kubelet forgets the old one as well, and
does not notice the end of its stream. The kubelet goes on offering the devices and refuses that socket until
it is restarted. Up to 1.36 a plugin is known by its resource alone, and the end of the old stream takes the
new one down.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any, Final

import grpc

from deviceplugin.kubelet.wire import deviceplugin_pb2 as pb
from deviceplugin.kubelet.wire import deviceplugin_pb2_grpc as rpc
from kubeapi.objects import is_extended_resource
from standins.kubelet.devices import AdmissionError, DeviceManager

API_VERSION: Final = "v1beta1"
_DIAL_S: Final = 10.0
_PRE_START_S: Final = 30.0
_CLOSING: Final = "rpc error: code = Canceled desc = grpc: the client connection is closing"
_CHANNEL_OPTIONS: Final = (("grpc.use_local_subchannel_pool", 1),)


class PluginClient:
    """Plugin that registered: the kubelet's end of its socket, and the `Endpoint` of its devices.

    The connection reads messages of at most 4 MiB, gRPC's default in Go and here alike.
    """

    def __init__(self, resource: str, socket: Path) -> None:
        self.resource = resource
        self.socket = socket
        self.options = pb.DevicePluginOptions()
        self._channel: Any = grpc.aio.insecure_channel(f"unix:{socket}", options=_CHANNEL_OPTIONS)
        self._stub: Any = rpc.DevicePluginStub(self._channel)  # type: ignore[no-untyped-call]
        self._stopped = False

    async def connect(self) -> None:
        """Dial, for at most 10 s, and ask for the options.

        Raises:
            ConnectionError: there was no answer.
        """
        try:
            async with asyncio.timeout(_DIAL_S):
                await self._channel.channel_ready()
            self.options = await self._stub.GetDevicePluginOptions(pb.Empty(), timeout=_DIAL_S)
        except TimeoutError:
            raise ConnectionError("failed to dial device plugin: context deadline exceeded") from None
        except grpc.aio.AioRpcError as error:
            raise ConnectionError(f"failed to get device plugin options: {_as_go_prints(error)}") from error
        except (asyncio.CancelledError, grpc.aio.UsageError):
            if not self._stopped:
                raise
            # The stream of another one of its name ended, and this connection was closed with that one's.
            raise ConnectionError(_CLOSING) from None

    async def listen(self, take: Callable[[str, Iterable[pb.Device]], None]) -> None:
        """Pass the plugin's lists on until either side ends the stream."""
        if self._stopped:
            return
        try:
            async for response in self._stub.ListAndWatch(pb.Empty()):
                take(self.resource, response.devices)
        except grpc.aio.AioRpcError:
            return
        except asyncio.CancelledError:
            # What gRPC raises here when we closed the connection under the call.
            if not self._stopped:
                raise

    async def close(self) -> None:
        """Close the connection; calls from now on fail."""
        self._stopped = True
        await self._channel.close()

    async def preferred(self, available: Collection[str], required: Collection[str], size: int) -> set[str]:
        """Ask GetPreferredAllocation for one container.

        Raises:
            AdmissionError: the plugin refused, or is gone.
        """
        asked = pb.ContainerPreferredAllocationRequest(
            available_deviceIDs=sorted(available),
            must_include_deviceIDs=sorted(required),
            allocation_size=size,
        )
        try:
            response = await self._call(
                self._stub.GetPreferredAllocation, pb.PreferredAllocationRequest(container_requests=[asked])
            )
        except AdmissionError as error:
            raise AdmissionError(
                f"device plugin GetPreferredAllocation rpc failed with err: {error}"
            ) from error
        answers = response.container_responses
        return set(answers[0].deviceIDs) if answers else set()

    async def allocate(self, ids: Collection[str]) -> pb.ContainerAllocateResponse:
        asked = pb.ContainerAllocateRequest(devices_ids=sorted(ids))
        response = await self._call(self._stub.Allocate, pb.AllocateRequest(container_requests=[asked]))
        if not response.container_responses:
            raise AdmissionError("no containers return in allocation response")
        granted: pb.ContainerAllocateResponse = response.container_responses[0]
        return granted

    async def pre_start(self, ids: Collection[str]) -> None:
        """Ask PreStartContainer, for at most 30 s.

        Raises:
            AdmissionError: the plugin refused, or is gone.
        """
        request = pb.PreStartContainerRequest(devices_ids=sorted(ids))
        try:
            await self._call(self._stub.PreStartContainer, request, _PRE_START_S)
        except AdmissionError as error:
            raise AdmissionError(f"device plugin PreStartContainer rpc failed with err: {error}") from error

    async def _call(self, method: Any, request: Any, timeout_s: float | None = None) -> Any:
        if self._stopped:
            raise AdmissionError(f"endpoint {self.resource} has been stopped")
        try:
            return await method(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            raise AdmissionError(_as_go_prints(error)) from error
        except asyncio.CancelledError:
            if not self._stopped:
                raise
            # The plugin's stream ended, and the connection was closed under the call.
            raise AdmissionError(_CLOSING) from None


class PluginRegistry(rpc.RegistrationServicer):
    """The registration service and the plugins that came through it; one per kubelet process.

    Args:
        on_change: called after anything that may change the node's capacity.
        by_resource: a plugin is known by its resource alone, as before 1.37.
    """

    def __init__(
        self,
        folder: Path,
        devices: DeviceManager,
        on_change: Callable[[], None],
        *,
        by_resource: bool,
    ) -> None:
        self._folder = folder
        self._devices = devices
        self._on_change = on_change
        self._by_resource = by_resource
        self._clients: list[PluginClient] = []
        # By resource, then by socket: the plugins that the device manager has taken in.
        self._connected: dict[str, dict[Path, PluginClient]] = {}
        self._listening: set[asyncio.Task[None]] = set()
        self.registrations = 0

    async def Register(self, request: pb.RegisterRequest, context: Any) -> pb.Empty:  # noqa: N802 - wire
        """Dial the plugin, ask for its options, answer, and listen to its devices from then on."""
        self.registrations += 1
        resource = request.resource_name
        if request.version != API_VERSION:
            await context.abort(
                grpc.StatusCode.UNKNOWN,
                f'requested API version "{request.version}" is not supported by kubelet. '
                f'Supported version is ["{API_VERSION}"]',
            )
        if not is_extended_resource(resource):
            await context.abort(grpc.StatusCode.UNKNOWN, f'the ResourceName "{resource}" is invalid')
        client = PluginClient(resource, self._folder / request.endpoint)
        if self._by_resource:
            self._forget(client)
        self._clients.append(client)
        try:
            await client.connect()
            self._take_in(client)
        except ConnectionError as error:
            self._forget(client)
            await client.close()
            await context.abort(grpc.StatusCode.UNKNOWN, str(error))
        task = asyncio.create_task(self._listen(client))
        self._listening.add(task)
        task.add_done_callback(self._listening.discard)
        return pb.Empty()

    @property
    def streams(self) -> int:
        return len(self._listening)

    async def close(self) -> None:
        """Drop every connection, as the end of the process does."""
        for task in tuple(self._listening):
            task.cancel()
        await asyncio.gather(*self._listening, return_exceptions=True)
        for client in (*self._clients, *(one for each in self._connected.values() for one in each.values())):
            await client.close()
        self._clients.clear()
        self._connected.clear()

    def _take_in(self, client: PluginClient) -> None:
        sockets = self._connected.setdefault(client.resource, {})
        if self._by_resource:
            sockets.clear()
        elif client.socket in sockets:
            raise ConnectionError(f"device plugin already connected: {client.socket}")
        sockets[client.socket] = client
        self._devices.plugin_connected(client.resource, client)

    def _forget(self, client: PluginClient) -> None:
        """Forget everybody known by the same name, not this client alone: the kubelet's own behaviour."""
        self._clients = [one for one in self._clients if self._name(one) != self._name(client)]

    def _name(self, client: PluginClient) -> tuple[str, Path | None]:
        return client.resource, None if self._by_resource else client.socket

    def _take(self, resource: str, devices: Iterable[pb.Device]) -> None:
        self._devices.plugin_listed(resource, devices)
        self._on_change()

    async def _listen(self, client: PluginClient) -> None:
        await client.listen(self._take)
        # Not `client`: whoever has its name by now.
        present = next((one for one in self._clients if self._name(one) == self._name(client)), None)
        if present is None:
            return
        self._forget(present)
        await present.close()
        sockets = self._connected[client.resource]
        sockets.pop(present.socket, None)
        if sockets:
            self._devices.plugin_connected(client.resource, next(iter(sockets.values())))
        else:
            self._devices.plugin_disconnected(client.resource)
        self._on_change()
        if present is not client:
            await client.close()


def _as_go_prints(error: Any) -> str:
    name = "".join(part.capitalize() for part in error.code().name.split("_"))
    return f"rpc error: code = {name} desc = {error.details()}"
