"""What a kubelet's PodResources service lists, for tests: the daemon only has it clean its checkpoint."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import grpc

from deviceplugin.kubelet.sockets import SocketId, identify
from deviceplugin.kubelet.wire import podresources_pb2 as pb
from deviceplugin.kubelet.wire import podresources_pb2_grpc as rpc

# One entry per device: a node of 50 000 units is listed in about 7 MB.
_MAX_LIST_BYTES = 64 * 1024 * 1024

Devices = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class PodResourcesList:
    """One complete answer.

    Attributes:
        entries: (namespace, pod, container) -> resource -> its device IDs, sorted; containers without
            devices are left out.
        pods: (namespace, name) of every pod that the kubelet listed, with or without devices.
        kubelet: the socket that was asked; another one means another kubelet process.
    """

    entries: Mapping[tuple[str, str, str], Devices]
    pods: frozenset[tuple[str, str]]
    kubelet: SocketId | None


async def list_pod_resources(socket: Path) -> PodResourcesList:
    """Ask a kubelet what every container holds now, on a connection of its own.

    Raises:
        grpc.aio.AioRpcError: nobody answers, or the kubelet refuses.
    """
    kubelet = identify(socket)
    options = [("grpc.max_receive_message_length", _MAX_LIST_BYTES), ("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(f"unix:{socket}", options=options) as channel:
        stub = rpc.PodResourcesListerStub(channel)  # type: ignore[no-untyped-call]
        answer = await stub.List(pb.ListPodResourcesRequest(), timeout=5.0)
    return PodResourcesList(
        entries=_by_container(answer),
        pods=frozenset((pod.namespace, pod.name) for pod in answer.pod_resources),
        kubelet=kubelet,
    )


def _by_container(answer: pb.ListPodResourcesResponse) -> Mapping[tuple[str, str, str], Devices]:
    """Collect one entry per device into one per container and resource."""
    found: dict[tuple[str, str, str], dict[str, set[str]]] = {}
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
