"""Client of the committer, which is in the scheduler's process."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Final

import aiohttp

from kubeapi.errors import shorten_body
from scheduler_plugin.binding.batch_protocol import (
    CommitCall,
    PodResult,
    decode_commit_reply,
    encode,
)
from scheduler_plugin.errors import ProtocolError
from scheduler_plugin.queue.controller.settings import QueueSettings


class CommitFailedError(Exception):
    """The committer gave no answer that says what became of the pods.

    Attributes:
        sent: The committer may have received the call.
    """

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


SLACK_S: Final = 5.0
"""An answer may take that much longer than the three times a Binding's time-out that the committer waits."""


class CommitterClient:
    """Calls the committer over HTTP."""

    def __init__(self, url: str, timeout_s: float, can_write: Callable[[], bool]) -> None:
        self._url = url.rstrip("/") + "/commit"
        self._timeout = aiohttp.ClientTimeout(total=3 * timeout_s + SLACK_S, connect=timeout_s)
        self._can_write = can_write
        self._session: aiohttp.ClientSession | None = None

    async def commit(self, call: CommitCall) -> Sequence[PodResult]:
        """Hand pods over.

        Raises:
            CommitFailedError: it is not known what became of them.
        """
        if not self._can_write():
            raise CommitFailedError("this queue is not the leader", sent=False)
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=self._timeout)
        try:
            async with self._session.post(self._url, data=encode(call)) as answer:
                body = await answer.read()
                if answer.status != HTTPStatus.OK:
                    # The committer refuses a call as a whole before it looks at a pod, or fails in it.
                    raise CommitFailedError(
                        f"committer: {shorten_body(body)}",
                        sent=answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR,
                    )
            return decode_commit_reply(body).results
        except aiohttp.ClientConnectorError as error:
            raise CommitFailedError(f"committer not reached: {error}", sent=False) from error
        except (aiohttp.ClientError, TimeoutError, OSError, ProtocolError) as error:
            raise CommitFailedError(f"committer without an answer: {error}", sent=True) from error

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


@asynccontextmanager
async def open_committer_client(
    settings: QueueSettings, can_write: Callable[[], bool]
) -> AsyncIterator[CommitterClient | None]:
    """Call the committer of the settings while the context lasts, None if they name none."""
    if settings.committer is None:
        yield None
        return
    client = CommitterClient(settings.committer, settings.write_timeout_s, can_write)
    try:
        yield client
    finally:
        await client.close()
