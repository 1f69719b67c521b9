"""The ledger in the daemon: fed from the kubelet's checkpoint, with subscribers that hear of changes.

Everything here belongs to one event loop.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, Protocol

import structlog

from allocator.ledger import CheckpointEntry, Ledger
from allocator.names import PERCENT_RESOURCE
from deviceplugin.allocation.other_units import OtherUnitPods
from deviceplugin.errors import CheckpointError, TornCheckpointError

_NOT_READ: Final = "the kubelet's checkpoint was not read yet"

log = structlog.get_logger(__name__)


class CheckpointContents(Protocol):
    """A version of the kubelet's checkpoint."""

    @property
    def entries(self) -> tuple[CheckpointEntry, ...]:
        """The devices of every container, of all resources."""


class LedgerService:
    """A node's ledger and its subscribers.

    Args:
        read: Returns the kubelet's checkpoint: the same object until it is written again, None if there is
            none. Raises `CheckpointError` where it cannot be read. Called before every answer.

    Attributes:
        checkpoint_problem: Why the checkpoint cannot be read; None while it can.
        is_checkpoint_torn: The kubelet may mend that once we are registered.
    """

    def __init__(
        self,
        ledger: Ledger,
        read: Callable[[], CheckpointContents | None],
        resource: str,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.ledger = ledger
        self._read = read
        self.now_s = clock
        self.checkpoint_problem: str | None = _NOT_READ
        self.is_checkpoint_torn = False
        self.other_unit_pods = OtherUnitPods(resource)
        self._not_enforced: Mapping[str, str] = {}
        self._resources = {resource, PERCENT_RESOURCE}
        self._contents: object = self
        self._followers: list[Callable[[], None]] = []
        self._device_followers: list[Callable[[], None]] = []
        self._given_followers: list[Callable[[Collection[str]], None]] = []
        self._news = asyncio.Event()

    def subscribe(self, follower: Callable[[], None]) -> None:
        """Have `follower` called after everything that may have changed the ledger."""
        self._followers.append(follower)

    def notify_subscribers(self) -> None:
        self._wake()
        for follower in self._followers:
            follower()

    def subscribe_devices(self, follower: Callable[[], None]) -> None:
        """Have `follower` called when devices, or their health, may have changed."""
        self._device_followers.append(follower)

    def notify_devices_changed(self) -> None:
        for follower in self._device_followers:
            follower()

    def subscribe_given(self, follower: Callable[[Collection[str]], None]) -> None:
        """Have `follower` called with device IDs that a pod is given now: whoever had them before is gone."""
        self._given_followers.append(follower)

    def notify_given(self, ids: Collection[str]) -> None:
        for follower in self._given_followers:
            follower(ids)

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def wait_until(self, ready: Callable[[], bool], limit_s: float) -> bool:
        """Wait until the ledger is `ready`, or the limit has passed; return which."""
        deadline_s = self.now_s() + limit_s
        while not ready():
            left_s = deadline_s - self.now_s()
            if left_s <= 0:
                return False
            try:
                async with asyncio.timeout(left_s):
                    await self._news.wait()
            except TimeoutError:
                continue
        return True

    def change_key(self) -> tuple[object, ...]:
        """Return a value that differs where anything that subscribers read may differ."""
        accounts = self.ledger.accounts
        return accounts.version, self.ledger.is_complete

    def read_checkpoint(self) -> None:
        """Read the kubelet's checkpoint, and notify subscribers of a change.

        A checkpoint that cannot be read is not an empty one: what it said before stays.
        """
        try:
            contents = self._read()
        except CheckpointError as error:
            if self.checkpoint_problem != str(error):
                log.warning("what containers have cannot be read, nothing is released", error=str(error))
            self.checkpoint_problem, self.is_checkpoint_torn = (
                str(error),
                isinstance(error, TornCheckpointError),
            )
            return
        if self.checkpoint_problem not in {None, _NOT_READ}:
            log.info("what containers have can be read again")
        self.checkpoint_problem, self.is_checkpoint_torn = None, False
        if contents is self._contents:
            return
        self._contents, before = contents, self.change_key()
        entries = () if contents is None else contents.entries
        self.other_unit_pods.apply_entries(entries)
        self.ledger.apply_checkpoint([e for e in entries if e.resource in self._resources], self.now_s())
        # Whoever waits for the first checkpoint that can be read.
        self._wake()
        if self.change_key() != before:
            self.notify_subscribers()

    def set_not_enforced(self, reasons: Mapping[str, str]) -> None:
        """Set which cards, by UUID, no container is given; they count as full."""
        self._not_enforced = dict(reasons)
        self.ledger.set_unavailable("not_enforced", reasons)

    def explain_unhealthy(self, uuid: str) -> str:
        """Say why no container is given a card that is unhealthy to the kubelet."""
        return self._not_enforced.get(uuid) or "the card is unhealthy"

    def set_client_limit(self, uuids: Iterable[str]) -> None:
        """Set which cards get no new pods because they have as many clients as they can."""
        if self.ledger.set_unavailable("client_limit", uuids):
            self.notify_subscribers()
