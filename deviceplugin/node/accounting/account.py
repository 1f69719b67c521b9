"""The ledger in the daemon: what the kubelet asks is answered here, and whoever needs to know is told.

Everything here belongs to one event loop.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, Protocol

import structlog

from allocator.cards import Card
from allocator.errors import LedgerError
from allocator.ledger import Ask, BookEntry, Ledger
from allocator.names import PERCENT_RESOURCE, SCHEDULER_NAME
from deviceplugin.errors import BookError, RefusedError, TornBookError
from deviceplugin.gpus.grant import ContainerGrant
from deviceplugin.gpus.handover import Handover
from deviceplugin.gpus.vendor import UNNAMED
from deviceplugin.node.accounting.otherunits import OtherUnits

VIEW_WAIT_S: Final = 1.0
"""How long a container waits for its pod to come into view; usually the API's watch is a moment behind."""

ROOM_WAIT_S: Final = 5.0
"""The same for a container that no single card can take: it may have asked for several, only the API says."""

AGAIN: Final = "delete this pod, what made it makes another"
NOT_OURS: Final = (
    f"was this pod bound by gpupack's scheduler? If not, set spec.schedulerName: {SCHEDULER_NAME} in its "
    "template, and delete this pod"
)
TAKEN: Final = (
    "the card that the scheduler chose has been taken since, perhaps by a pod that was bound without "
    f"schedulerName: {SCHEDULER_NAME}; {AGAIN}"
)
CROWDED: Final = f"containers of pods that were deleted still run on this node's cards; {AGAIN}"

_BARE: Final = Handover(UNNAMED)
_UNASKED: Final[tuple[frozenset[str], Collection[tuple[str, str]] | None]] = (frozenset(), None)
_NOT_READ: Final = "the kubelet's book was not read yet"

BOOK_WAIT_S: Final = 5.0
"""How long the first container waits for a book that was torn when we came: the kubelet is writing it."""

log = structlog.get_logger(__name__)


class Contents(Protocol):
    """What the kubelet's book says; the same object as long as the book was not written again."""

    @property
    def entries(self) -> Iterable[BookEntry]:
        """The devices of every container, of all resources."""


class BookSource(Protocol):
    """The kubelet's book."""

    def read(self) -> Contents | None:
        """Return what it says now, None where there is none.

        Raises:
            BookError: it cannot be read.
        """


class Account:
    """A node's ledger and those who follow it.

    Args:
        ledger: the accounts.
        book: the kubelet's, read before every answer.
        resource: name of our extended resource that counts units.
        unit_mib: MiB a unit.
        hand_over: describes cards, by UUID, to a container.
        clock: monotonic seconds.
        view_wait_s: see `VIEW_WAIT_S`.
        room_wait_s: see `ROOM_WAIT_S`.

    Attributes:
        book_problem: why the book cannot be read, None while it can.
        book_torn: it is no whole JSON.
        want_list: asks for a complete list of this node's pods that begins now.
        taken_up: asks the kubelet for namespace and name of the pods that it has taken up; None where it does
            not say.
        others: the pods that hold another unit.
        extras: say what else a container is given, by its units on each card's UUID.
        limit_envs: names a container's variables for whoever limits its memory, by MiB on each of its cards.
    """

    def __init__(
        self,
        ledger: Ledger,
        book: BookSource,
        resource: str,
        unit_mib: int,
        *,
        hand_over: Callable[[Sequence[str]], ContainerGrant] = _BARE.grant,
        clock: Callable[[], float] = time.monotonic,
        view_wait_s: float = VIEW_WAIT_S,
        room_wait_s: float = ROOM_WAIT_S,
    ) -> None:
        self.ledger = ledger
        self.book_problem: str | None = _NOT_READ
        self.book_torn = False
        self.want_list: Callable[[], None] = lambda: None
        self.taken_up: Callable[[], Awaitable[Collection[tuple[str, str]] | None]] = _nobody_asks
        self.others = OtherUnits(resource)
        self.limit_envs: Callable[[Mapping[str, int]], Mapping[str, str]] = lambda _: {}
        self.extras: list[Callable[[Sequence[tuple[str, int]]], ContainerGrant]] = []
        self._withheld: Mapping[str, str] = {}
        self._book = book
        self._last: object = self
        self._resource = resource
        self._unit_mib = unit_mib
        self._hand_over = hand_over
        self._clock = clock
        self._view_wait_s = view_wait_s
        self._room_wait_s = room_wait_s
        self._followers: list[Callable[[], None]] = []
        self._news = asyncio.Event()
        self._answered = _UNASKED
        self.percent = Percent(self)
        self.health_changed()

    def follow(self, follower: Callable[[], None]) -> None:
        """Have `follower` called after everything that may have changed the ledger."""
        self._followers.append(follower)

    def changed(self) -> None:
        """Tell everybody that the ledger may have changed."""
        self._wake()
        for follower in self._followers:
            follower()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def now_s(self) -> float:
        """Seconds by the ledger's clock."""
        return self._clock()

    def state(self) -> tuple[object, ...]:
        """What followers look at rests on this; compare two. To work out all that follows takes long."""
        facts = self.ledger.facts
        return facts.version, len(facts.pods), self.ledger.complete

    def refresh(self) -> None:
        """Take the kubelet's book as it is now, and what time has ended; tell everybody of a change.

        A book that cannot be read is not an empty one: what it said before stays.
        """
        try:
            contents = self._book.read()
        except BookError as error:
            if self.book_problem != str(error):
                log.warning("the kubelet's book cannot be read, nothing is released", error=str(error))
            self.book_problem, self.book_torn = str(error), isinstance(error, TornBookError)
            return
        if self.book_problem not in {None, _NOT_READ}:
            log.info("the kubelet's book can be read again")
        self.book_problem, self.book_torn = None, False
        if contents is self._last:
            return
        entries = () if contents is None else tuple(contents.entries)
        self.others.read(entries)
        self._last = contents
        before = self.state()
        ours = {self._resource, PERCENT_RESOURCE}
        self.ledger.read_book([e for e in entries if e.resource in ours], self.now_s())
        # Whoever waits for the first book that can be read.
        self._wake()
        if self.state() != before:
            self.changed()

    # What the kubelet asks.

    def devices(self) -> Mapping[str, bool]:
        """Return every device ID of a unit with its health."""
        return self._devices

    def percent_devices(self) -> Mapping[str, bool]:
        """Return every device ID of a percent with its health."""
        return self._percent

    def install(self, cards: Sequence[Card]) -> dict[str, dict[str, int]]:
        """Take another list of cards while pods run; see `Ledger.set_cards`."""
        gone = self.ledger.set_cards(cards)
        self.health_changed()
        return gone

    def health_changed(self) -> None:
        """Make the lists of devices from the cards' health."""
        facts = self.ledger.facts
        healthy = {uuid: card.healthy for uuid, card in facts.cards.items()}
        self._devices = {text: healthy[uuid] for text, uuid in facts.card_of.items()}
        self._percent = {text: healthy[uuid] for text, uuid in facts.share_of.items()}

    def withhold(self, reasons: Mapping[str, str]) -> None:
        """Give exactly these cards to no container, healthy as they may be; they count as full.

        Args:
            reasons: why, by UUID.
        """
        self._withheld = dict(reasons)
        self.ledger.keep_out("withheld", reasons)
        self.health_changed()

    def cordon(self, uuids: Iterable[str]) -> None:
        """Keep exactly these cards free of new pods, by people's wish."""
        self.ledger.keep_out("cordoned", uuids)

    def close(self, uuids: Iterable[str]) -> None:
        """Keep exactly these cards free of new pods, because they can take no more."""
        if self.ledger.keep_out("closed", uuids):
            self.changed()

    def why_not(self, identifier: str) -> str:
        """Say why a known ID cannot be had though it is on a card."""
        facts = self.ledger.facts
        return self._why_not_card(facts.card_of.get(identifier) or facts.share_of.get(identifier, ""))

    def _why_not_card(self, uuid: str) -> str:
        return self._withheld.get(uuid) or "the card is unhealthy"

    async def preferred(
        self, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> Collection[str]:
        """Choose `size` of the available IDs, which are all of units or all of percent.

        Waits a little for the pod that asks to come into view, and where nobody said on which cards for a
        fresh list of all pods. Where there is no room because containers of pods that are over still run, it
        waits for their end.

        Raises:
            RefusedError: no card has room.
        """
        taken_up = await self.taken_up()
        await self._first_book()
        ledger, asked_at = self.ledger, self.ledger.mark(self.now_s())
        ask = ledger.ask(available, must_include, size, taken_up)

        def settled() -> bool:
            view = ledger.facts.view
            return (view is not None and view.order > asked_at.order) or not ask.wants_list()

        known = await self._until(ask.is_expected, self._view_wait_s)
        if not known:
            what = "percent" if ask.percent else "units"
            log.warning("container of an unknown pod", waited_s=self._view_wait_s, **{what: size})
        elif not settled():
            self.want_list()
            await self._until(settled, self._view_wait_s)

        if ask.is_crowded() or not known:
            await self._until(ask.has_room, self._room_wait_s)
        answer = self._answer(ask)
        self._answered = frozenset(answer), taken_up
        return answer

    def _answer(self, ask: Ask) -> Collection[str]:
        """Choose, or tell the likely cause and the way out: this is all that the pod's status will say."""
        try:
            return self.ledger.preferred(ask)
        except LedgerError as error:
            cause = CROWDED if ask.is_crowded() else TAKEN if ask.is_assigned() else NOT_OURS
            for uuid in ask.sick():
                cause = f"card {uuid} cannot be had: {self._why_not_card(uuid)}; {AGAIN}"
            raise RefusedError("no-room", f"{error}; {cause}") from error

    async def allocate(self, ids: Sequence[str]) -> ContainerGrant:
        """Record what the kubelet hands out and describe it to the container.

        Raises:
            RefusedError: the IDs do not belong together.
        """
        try:
            if self._answered[0] != frozenset(ids):
                # The kubelet did not ask: an init container of the pod had as many.
                await self.preferred(ids, ids, len(ids))
            (_, taken_up), self._answered = self._answered, _UNASKED
            units = self.ledger.allocate(ids, self.now_s(), taken_up)
        except LedgerError as error:
            raise RefusedError("spans-cards", f"{error}; {AGAIN}") from error
        log.info("allocated", cards=units)
        self.changed()
        return self._describe(units)

    async def _first_book(self) -> None:
        """Read the book; wait for the first that can be read.

        Raises:
            RefusedError: none came, so it is not known what is in use.
        """
        self.refresh()
        if not await self._until(lambda: self.ledger.facts.read > 0, BOOK_WAIT_S):
            raise RefusedError("not-ready", f"{self.book_problem}; {AGAIN}")

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

    def _describe(self, units: Mapping[str, int]) -> ContainerGrant:
        mib = {uuid: count * self._unit_mib for uuid, count in units.items()}
        share = {
            "GPUPACK_MEMORY_MIB": str(min(mib.values())),
            "GPUPACK_CARDS": ",".join(f"{uuid}:{count}" for uuid, count in units.items()),
        }
        given = self._hand_over(list(units)) + ContainerGrant({**share, **self.limit_envs(mib)})
        return sum((extra(list(units.items())) for extra in self.extras), given)


async def _nobody_asks() -> None:
    return None


class Percent:
    """The account as the kubelet's second resource, percent of cards; of the same cards as the first.

    Args:
        account: Whose cards.
    """

    def __init__(self, account: Account) -> None:
        self.devices = account.percent_devices
        self.why_not = account.why_not
        self.preferred = account.preferred
        self.allocate = account.allocate
