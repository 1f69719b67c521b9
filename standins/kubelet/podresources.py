"""The stand-in kubelet's PodResources service, version v1."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import grpc

from deviceplugin.kubelet.wire import podresources_pb2 as pb
from deviceplugin.kubelet.wire import podresources_pb2_grpc as rpc
from kubeapi.ratelimit import TokenBucket
from standins.kubelet.devices import DeviceManager
from standins.kubelet.pods import Pod

# Over all clients together, as in the kubelet.
_BURST: Final = 10
_REFILL_S: Final = 0.01


class PodResourcesServer(rpc.PodResourcesListerServicer):
    """Answers from the kubelet's view of its pods, which is empty until a source of pods has spoken.

    There is an entry per device ID; sidecars are shown, ordinary init containers are not; no UID. List frees
    the devices of pods that have ended, before it answers.

    Args:
        refresh: called before List answers, to free what has ended.
    """

    def __init__(
        self,
        devices: DeviceManager,
        listed: Callable[[], Sequence[Pod]],
        known: Callable[[], Sequence[Pod]],
        refresh: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self._devices = devices
        self._listed = listed
        self._known = known
        self._refresh = refresh
        self._bucket = TokenBucket(_BURST, _REFILL_S, clock)

    async def List(  # noqa: N802 - the wire's name
        self, _request: pb.ListPodResourcesRequest, context: Any
    ) -> pb.ListPodResourcesResponse:
        await self._limit(context)
        self._refresh()
        return pb.ListPodResourcesResponse(pod_resources=[self._pod(pod) for pod in self._listed()])

    async def GetAllocatableResources(  # noqa: N802 - the wire's name
        self, _request: pb.AllocatableResourcesRequest, context: Any
    ) -> pb.AllocatableResourcesResponse:
        """List the healthy devices, in use or not."""
        await self._limit(context)
        return pb.AllocatableResourcesResponse(
            devices=[
                pb.ContainerDevices(resource_name=resource, device_ids=[identifier])
                for resource, ids in self._devices.healthy().items()
                for identifier in sorted(ids)
            ]
        )

    async def Get(  # noqa: N802 - the wire's name
        self, request: pb.GetPodResourcesRequest, context: Any
    ) -> pb.GetPodResourcesResponse:
        await self._limit(context)
        for pod in self._known():
            if pod.key == (request.pod_namespace, request.pod_name):
                return pb.GetPodResourcesResponse(pod_resources=self._pod(pod))
        await context.abort(
            grpc.StatusCode.UNKNOWN, f"pod {request.pod_name} in namespace {request.pod_namespace} not found"
        )
        raise AssertionError("abort raises")  # pragma: no cover

    async def _limit(self, context: Any) -> None:
        if not self._bucket.take():
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")

    def _pod(self, pod: Pod) -> pb.PodResources:
        return pb.PodResources(
            name=pod.name,
            namespace=pod.namespace,
            containers=[
                pb.ContainerResources(
                    name=container.name,
                    devices=[
                        pb.ContainerDevices(resource_name=resource, device_ids=[identifier])
                        for resource, held in self._devices.held(pod.uid, container.name).items()
                        for identifier in sorted(held.ids)
                    ],
                )
                for container in pod.containers
                if container.kind != "init"
            ],
        )
