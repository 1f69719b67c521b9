"""The device plugin service on a server; bytes that are no request are refused like any other bad call."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError

from allocator.errors import shown
from deviceplugin.errors import RefusedError
from deviceplugin.kubelet.service import DevicePlugin
from deviceplugin.kubelet.wire import deviceplugin_pb2 as pb

SERVICE: Final = "v1beta1.DevicePlugin"
_STREAM: Final = "ListAndWatch"
_METHODS: Final[Mapping[str, tuple[Any, Any]]] = {
    "GetDevicePluginOptions": (pb.Empty, pb.DevicePluginOptions),
    _STREAM: (pb.Empty, pb.ListAndWatchResponse),
    "GetPreferredAllocation": (pb.PreferredAllocationRequest, pb.PreferredAllocationResponse),
    "Allocate": (pb.AllocateRequest, pb.AllocateResponse),
    "PreStartContainer": (pb.PreStartContainerRequest, pb.PreStartContainerResponse),
}


@dataclass(frozen=True, slots=True)
class _Unreadable:
    """Stands for a request that could not be read: gRPC would end the call with words of its own."""

    size: int
    start: bytes


def add_to_server(plugin: DevicePlugin, server: Any) -> None:
    """Serve the plugin, as the generated function of the same purpose does."""
    handlers = {method: _handler(plugin, method) for method in _METHODS}
    server.add_registered_method_handlers(SERVICE, handlers)


def _handler(plugin: DevicePlugin, method: str) -> Any:
    request, response = _METHODS[method]
    behaviour: Any = getattr(plugin, method)

    def read(body: bytes) -> Any:
        try:
            return request.FromString(body)
        except DecodeError:
            return _Unreadable(len(body), body[:64])

    async def answer(asked: Any, context: Any) -> Any:
        if isinstance(asked, _Unreadable):
            name = request.DESCRIPTOR.name
            reason = f"{method} of {asked.size} bytes, {shown(asked.start)}: allowed is a message {name}"
            return await plugin.refuse(method, RefusedError("invalid", reason), context)
        return await behaviour(asked, context)

    make = grpc.unary_stream_rpc_method_handler if method == _STREAM else grpc.unary_unary_rpc_method_handler
    return make(answer, request_deserializer=read, response_serializer=response.SerializeToString)
