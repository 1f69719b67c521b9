"""The ledger in the daemon: what the kubelet asks is answered here, and whoever needs to know is told.

Everything here belongs to one event loop.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

import structlog

from allocator.errors import LedgerError
from allocator.ids import device_id
from allocator.ledger import Grant, Ledger
from deviceplugin.errors import RefusedError
from deviceplugin.node.grant import ContainerGrant

VIEW_WAIT_S: Final = 1.0
"""How long a container waits for its pod to come into view; usually the API's watch is a moment behind."""

ROOM_WAIT_S: Final = 5.0
"""The same for a container that no single card can take: it may have asked for several, only the API says."""

log = structlog.get_logger(__name__)


class Account:
    """A node's ledger and those who follow it.

    Args:
        ledger: the accounts.
        unit_mib: MiB a unit.
        cdi: name the cards as CDI devices too.
        clock: monotonic seconds.
        view_wait_s: see `VIEW_WAIT_S`.
        room_wait_s: see `ROOM_WAIT_S`.
    """

    def __init__(
        self,
        ledger: Ledger,
        unit_mib: int,
        *,
        cdi: bool = False,
        clock: Callable[[], float] = time.monotonic,
        view_wait_s: float = VIEW_WAIT_S,
        room_wait_s: float = ROOM_WAIT_S,
    ) -> None:
        self.ledger = ledger
        self._unit_mib = unit_mib
        self._cdi = cdi
        self._clock = clock
        self._view_wait_s = view_wait_s
        self._room_wait_s = room_wait_s
        self._followers: list[Callable[[], None]] = []
        self._news = asyncio.Event()
        self._ids = {
            card.uuid: [device_id(card.uuid, slot) for slot in range(card.size_units)]
            for card in ledger.cards()
        }
        self._devices: dict[str, bool] = {}
        self.health_changed()

    def follow(self, follower: Callable[[], None]) -> None:
        """Have `follower` called after everything that may have changed the ledger."""
        self._followers.append(follower)

    def changed(self) -> None:
        """Tell everybody that the ledger may have changed."""
        self._news.set()
        self._news = asyncio.Event()
        for follower in self._followers:
            follower()

    def now_s(self) -> float:
        """Seconds by the ledger's clock."""
        return self._clock()

    # What the kubelet asks; the `Allocator` of plugin.py.

    def devices(self) -> Mapping[str, bool]:
        """Return every device ID with its health."""
        return self._devices

    def health_changed(self) -> None:
        """Make the list of devices anew from the cards' health."""
        self._devices = {
            identifier: card.healthy for card in self.ledger.installed for identifier in self._ids[card.uuid]
        }

    async def preferred(
        self, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> Collection[str]:
        """Choose `size` of the available IDs.

        Waits a little for the pod that asks to come into view, and for all others before it goes elsewhere
        than the scheduler said.

        Raises:
            RefusedError: no card has room.
        """
        asked = (size, available, must_include)
        sure = await self._until(
            lambda: self.ledger.expects(*asked) and not self.ledger.displaces(*asked), self._view_wait_s
        )
        known = sure or self.ledger.expects(*asked)
        if not known:
            log.warning("container of an unknown pod", units=size, waited_s=self._view_wait_s)
        try:
            return self.ledger.preferred(available, must_include, size, self.now_s())
        except LedgerError as error:
            if known or not await self._until(lambda: self.ledger.expects(*asked), self._room_wait_s):
                raise RefusedError("no-room", str(error)) from error
        try:
            return self.ledger.preferred(available, must_include, size, self.now_s())
        except LedgerError as error:
            raise RefusedError("no-room", str(error)) from error

    async def allocate(self, ids: Sequence[str]) -> ContainerGrant:
        """Record what the kubelet hands out and describe it to the container.

        Raises:
            RefusedError: the IDs do not belong together.
        """
        try:
            grant = self.ledger.allocate(ids, self.now_s())
        except LedgerError as error:
            raise RefusedError("spans-cards", str(error)) from error
        log.info("allocated", cards=dict(grant.shares))
        self.changed()
        return self._describe(grant)

    async def _until(self, ready: Callable[[], bool], limit_s: float) -> bool:
        """Wait until the ledger is `ready`, or the limit has passed; tells which."""
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

    def _describe(self, grant: Grant) -> ContainerGrant:
        uuids = [uuid for uuid, _ in grant.shares]
        return ContainerGrant(
            envs={
                "NVIDIA_VISIBLE_DEVICES": ",".join(uuids),
                "GPUPACK_MEMORY_MIB": str(min(units for _, units in grant.shares) * self._unit_mib),
                "GPUPACK_CARDS": ",".join(f"{uuid}:{units}" for uuid, units in grant.shares),
            },
            cdi_devices=tuple(f"nvidia.com/gpu={uuid}" for uuid in uuids) if self._cdi else (),
        )
