"""The services that the kubelet calls: what this plugin is, and claims to prepare and to unprepare."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import structlog

from allocator.errors import AllocatorError
from allocator.names import DRA_DRIVER
from deviceplugin.dra.claims import PreparedDevice
from deviceplugin.errors import AllocationRefusedError
from deviceplugin.kubelet.wire import dra_pb2 as pb
from deviceplugin.kubelet.wire import dra_pb2_grpc as rpc
from deviceplugin.kubelet.wire import pluginregistration_pb2 as registration_pb
from deviceplugin.kubelet.wire import pluginregistration_pb2_grpc as registration_rpc

log = structlog.get_logger(__name__)

PLUGIN_TYPE: Final = "DRAPlugin"
VERSION: Final = "v1.DRAPlugin"

Observe = Callable[[str, float, str], None]


class ClaimPreparer(Protocol):
    """Prepares claims; refusals are `AllocationRefusedError` or any `AllocatorError`."""

    async def prepare(self, namespace: str, name: str, uid: str) -> Sequence[PreparedDevice]: ...

    async def unprepare(self, uid: str) -> None:
        """Take them back."""


class DraPlugin(rpc.DRAPluginServicer):
    """The servicer of claims.

    Args:
        pool: name of the node's pool.
        observe: called after every claim with the method, the seconds it took and OK or the refusal's kind.
    """

    def __init__(self, claims: ClaimPreparer, pool: str, *, observe: Observe | None = None) -> None:
        self._claims = claims
        self._pool = pool
        self._observe = observe

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
        """Unprepare claims, one after the other."""
        answer = pb.NodeUnprepareResourcesResponse()
        for claim in request.claims:
            _, error = await self._call("NodeUnprepareResources", self._claims.unprepare(claim.uid))
            answer.claims[claim.uid].CopyFrom(pb.NodeUnprepareResourceResponse(error=error))
        return answer

    async def _prepare(self, claim: pb.Claim) -> pb.NodePrepareResourceResponse:
        work = self._claims.prepare(claim.namespace, claim.name, claim.uid)
        prepared, error = await self._call("NodePrepareResources", work)
        if prepared is None:
            return pb.NodePrepareResourceResponse(error=error)
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

    async def _call(self, method: str, work: Awaitable[Any]) -> tuple[Any, str]:
        """Return the result and an empty text, or None and why not."""
        began_s, code = time.perf_counter(), "OK"
        try:
            return await work, ""
        except AllocationRefusedError as error:
            code, message = error.kind, str(error)
        except AllocatorError as error:
            code, message = "invalid", str(error)
        except Exception as error:
            log.exception("kubelet call failed", method=method)
            code, message = "internal", f"{method} failed inside gpupack: {type(error).__name__}"
        finally:
            if self._observe is not None:
                self._observe(method, time.perf_counter() - began_s, code)
        log.warning("claim refused", method=method, kind=code, reason=message)
        return None, message


class PluginRegistration(registration_rpc.RegistrationServicer):
    """The servicer that describes this plugin to the kubelet.

    Args:
        endpoint: path of the socket with the claims' service, as the kubelet sees it.
        on_status: called with whether the kubelet has registered the plugin, and why not.
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
