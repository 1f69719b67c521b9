"""Makes the kubelet drop the entries of pods that ended from its book, and write it.

Left alone the kubelet does so at its next allocation only. Measured on 1.36.3: a PodResources List drops them
from its memory and writes nothing, a ListAndWatch message writes the book and drops nothing; so first the
one, then the other (docs/kubelet-book.md).
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import grpc
import structlog

log = structlog.get_logger(__name__)

_LIST: Final = "/v1.PodResourcesLister/List"
_OPTIONS: Final = (
    ("grpc.enable_retries", 0),
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    ("grpc.use_local_subchannel_pool", 1),
)


class BookCleaner:
    """Asks the kubelet's PodResources service and throws the answer away.

    Args:
        socket: of the service.
        resend: sends the list of devices again.
        timeout_s: for the answer.

    Attributes:
        errors: failed questions so far.
        problem: what was wrong with the last question, None where it was answered.
    """

    def __init__(self, socket: Path, resend: Callable[[], None], *, timeout_s: float = 2.0) -> None:
        self._socket = socket
        self._resend = resend
        self._timeout_s = timeout_s
        self._channel: Any = None
        self.errors = 0
        self.problem: str | None = None

    async def clean(self) -> None:
        """Have the book cleaned and written; a kubelet that does not answer is asked again by the caller."""
        if self._channel is None:
            self._channel = grpc.aio.insecure_channel(f"unix:{self._socket}", options=_OPTIONS)
        ask = self._channel.unary_unary(
            _LIST, request_serializer=lambda _: b"", response_deserializer=lambda _: b""
        )
        try:
            async with asyncio.timeout(self._timeout_s + 1):
                await ask(b"", timeout=self._timeout_s)
        except (grpc.aio.AioRpcError, TimeoutError) as error:
            await self.close()
            self.errors += 1
            told, self.problem = (
                self.problem,
                f"PodResources at {self._socket} cannot be asked: {_reason(error)}",
            )
            if told is None:
                log.warning(
                    "the kubelet does not clean its book, ended pods stay charged", error=self.problem
                )
            return
        if self.problem is not None:
            log.info("the kubelet cleans its book again")
        self.problem = None
        self._resend()

    async def close(self) -> None:
        """Close the connection; the next question opens a new one."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()


def _reason(error: Any) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return f"{error.code().name}: {str(error.details())[:256]}"
