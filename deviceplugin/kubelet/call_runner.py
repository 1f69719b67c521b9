"""Runs what answers a call of the kubelet: a call that is refused, or fails, costs no other call."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple, TypeVar

import grpc
import structlog

from allocator.errors import AllocatorError
from deviceplugin.errors import AllocationRefusedError, RefusalKind

Response = TypeVar("Response")
Observe = Callable[[str, float, str], None]

log = structlog.get_logger(__name__)

STATUS_OF: Final[Mapping[RefusalKind, grpc.StatusCode]] = {
    "invalid": grpc.StatusCode.INVALID_ARGUMENT,
    "unknown": grpc.StatusCode.NOT_FOUND,
    "unhealthy": grpc.StatusCode.FAILED_PRECONDITION,
    "spans-cards": grpc.StatusCode.FAILED_PRECONDITION,
    "no-room": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "not-ready": grpc.StatusCode.UNAVAILABLE,
}


class Refusal(NamedTuple):
    """Why a call has no answer: a status, and one clear line."""

    code: grpc.StatusCode
    message: str


class CallRunner:
    """Turns errors into refusals, and has every call counted.

    Args:
        observe: Called after every call with the method, the seconds it took and the status' name.
    """

    def __init__(self, observe: Observe | None) -> None:
        self._observe = observe

    async def run(self, method: str, work: Awaitable[Response]) -> Response | Refusal:
        began_s, code = time.perf_counter(), grpc.StatusCode.OK
        try:
            return await work
        except AllocationRefusedError as error:
            code, message = STATUS_OF[error.kind], str(error)
        except AllocatorError as error:
            code, message = STATUS_OF["invalid"], str(error)
        except Exception as error:
            log.exception("kubelet call failed", method=method)
            code = grpc.StatusCode.INTERNAL
            return Refusal(code, f"{method} failed inside gpupack: {type(error).__name__}")
        except asyncio.CancelledError:
            code = grpc.StatusCode.CANCELLED
            raise
        finally:
            if self._observe is not None:
                # The kubelet has its answer before it is counted.
                took_s = time.perf_counter() - began_s
                asyncio.get_running_loop().call_soon(self._observe, method, took_s, code.name)
        log.warning("kubelet call refused", method=method, status=code.name, reason=message)
        return Refusal(code, message)
