"""The services that the kubelet calls: what this plugin is, and claims to prepare and to unprepare."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from allocator.names import DRA_DRIVER
from deviceplugin.dra.claim_service import ClaimService
from deviceplugin.kubelet.call_runner import CallRunner, Observe, Refusal
from deviceplugin.kubelet.wire import dra_pb2 as pb
from deviceplugin.kubelet.wire import dra_pb2_grpc as rpc
from deviceplugin.kubelet.wire import pluginregistration_pb2 as registration_pb
from deviceplugin.kubelet.wire import pluginregistration_pb2_grpc as registration_rpc

PLUGIN_TYPE: Final = "DRAPlugin"
VERSION: Final = "v1.DRAPlugin"


class DraPlugin(rpc.DRAPluginServicer):
    """The servicer of claims, of which `observe` is called as `CallRunner` says."""

    def __init__(self, claims: ClaimService, pool: str, *, observe: Observe | None = None) -> None:
        self._claims = claims
        self._pool = pool
        self._calls = CallRunner(observe)

    async def NodePrepareResources(  # noqa: N802 - the wire's name
        self, request: pb.NodePrepareResourcesRequest, _context: Any
    ) -> pb.NodePrepareResourcesResponse:
        """Prepare claims at the same time: one that waits for room holds up no other."""
        results = await asyncio.gather(*(self._prepare(claim) for claim in request.claims))
        answer = pb.NodePrepareResourcesResponse()
        for claim, result in zip(request.claims, results, strict=True):
            answer.claims[claim.uid].CopyFrom(result)
        return answer

    async def NodeUnprepareResources(  # noqa: N802 - the wire's name
        self, request: pb.NodeUnprepareResourcesRequest, _context: Any
    ) -> pb.NodeUnprepareResourcesResponse:
        answer = pb.NodeUnprepareResourcesResponse()
        for claim in request.claims:
            refusal = await self._calls.run("NodeUnprepareResources", self._claims.unprepare(claim.uid))
            error = "" if refusal is None else refusal.message
            answer.claims[claim.uid].CopyFrom(pb.NodeUnprepareResourceResponse(error=error))
        return answer

    async def _prepare(self, claim: pb.Claim) -> pb.NodePrepareResourceResponse:
        work = self._claims.prepare(claim.namespace, claim.name, claim.uid)
        prepared = await self._calls.run("NodePrepareResources", work)
        if isinstance(prepared, Refusal):
            return pb.NodePrepareResourceResponse(error=prepared.message)
        return pb.NodePrepareResourceResponse(
            devices=[
                pb.Device(
                    request_names=[device.request],
                    pool_name=self._pool,
                    device_name=device.device,
                    cdi_device_ids=device.cdi,
                    share_id=device.share_id or None,
                )
                for device in prepared
            ]
        )


class PluginRegistration(registration_rpc.RegistrationServicer):
    """The servicer that describes this plugin to the kubelet.

    Args:
        endpoint: path of the socket with the claims' service, as the kubelet sees it.
    """

    def __init__(self, endpoint: Path, on_status: Callable[[bool, str], None]) -> None:
        self._endpoint = endpoint
        self._on_status = on_status

    async def GetInfo(  # noqa: N802 - the wire's name
        self, _request: registration_pb.InfoRequest, _context: Any
    ) -> registration_pb.PluginInfo:
        return registration_pb.PluginInfo(
            type=PLUGIN_TYPE, name=DRA_DRIVER, endpoint=str(self._endpoint), supported_versions=[VERSION]
        )

    async def NotifyRegistrationStatus(  # noqa: N802 - the wire's name
        self, request: registration_pb.RegistrationStatus, _context: Any
    ) -> registration_pb.RegistrationStatusResponse:
        self._on_status(request.plugin_registered, request.error)
        return registration_pb.RegistrationStatusResponse()
