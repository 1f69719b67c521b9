"""Writes to the API server what the ledger knows: the Node's words and the pods' `allocation`."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import msgspec
import structlog

from allocator.names import POD_ALLOCATION
from allocator.records import Assignment, CardRecord, dump_allocation
from deviceplugin.node.account import Account
from deviceplugin.node.objects import NodeObject
from deviceplugin.node.views import NodeView, PodView, Seat
from deviceplugin.node.words import (
    GAP_S,
    Wanted,
    differences,
    due_s,
    farewell,
    news,
    next_revision,
    patch,
    urgency,
)
from kubeapi.backoff import Backoff
from kubeapi.client import KubeClient
from kubeapi.errors import Conflict, KubeApiError, NotFound

log = structlog.get_logger(__name__)

WRITE_TIMEOUT_S: Final = 10.0

FAREWELL_AGAIN_S: Final = 0.2
"""After a last patch that failed: there is no time for more patience."""

BURST_S: Final = 0.05
"""One event seldom comes alone: what comes within this time is looked at once, between two Allocates."""

QUIET_S: Final = 0.2
"""Allocations are written once nothing has happened for so long: no Allocate has to wait for them.

People read them, and a daemon that starts after the kubelet lost its checkpoint.
"""

ANNOTATE_WITHIN_S: Final = 1.0
"""But at the latest so long after the first news, on a node that is never quiet."""

CALM_S: Final = 60.0
"""A Node that kept what was written for so long is not disputed any more."""

ANNOTATE_GAP_S: Final = 0.02
"""Least time between two such writes: an Allocate gets its turn in between."""

_decode_node = msgspec.json.Decoder(NodeObject).decode


def wall_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class Publisher:
    """Keeps the own Node's words as the ledger has them: one patch at a time, none when nothing changed.

    Args:
        client: API server.
        account: the ledger.
        node_view: the own Node.
        pod_view: its pods.
        node_name: of the own Node.
        unit_mib: MiB a unit.
        inventory: describes the cards as they are now.
        gap_s: least seconds between two patches that only bring gains.
        now_ms: milliseconds since the epoch.
        offers: whether pods can be served yet; until then the Node's words stay as they are.

    Attributes:
        patches: successful patches so far.
        errors: failed ones.
        revision: of the last patch.
    """

    def __init__(
        self,
        client: KubeClient,
        account: Account,
        node_view: NodeView,
        pod_view: PodView,
        *,
        node_name: str,
        unit_mib: int,
        inventory: Callable[[], Sequence[CardRecord]],
        gap_s: float = GAP_S,
        now_ms: Callable[[], int] = wall_ms,
        offers: Callable[[], bool] = lambda: True,
    ) -> None:
        self._client = client
        self._account = account
        self._node_view = node_view
        self._pod_view = pod_view
        self._node_name = node_name
        self._unit_mib = unit_mib
        self._inventory = inventory
        self._gap_s = gap_s
        self._now_ms = now_ms
        self._offers = offers
        self._leaving = asyncio.Event()
        self._left = asyncio.Event()
        self._backoff = Backoff(0.2, 15.0)
        self._wake = asyncio.Event()
        self._since_s: float | None = None
        self._last_s = float("-inf")
        self._written: Wanted | None = None
        self._disputes = Backoff(0.2, 15.0)
        self._disputed_s = self._patient_s = float("-inf")
        self.patches = 0
        self.errors = 0
        self.revision = 0
        account.follow(self._wake.set)

    async def run(self) -> None:
        """Publish until cancelled, or until `leave` has had its way."""
        while not self._leaving.is_set():
            self._wake.clear()
            wait_s = await self._step()
            try:
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(BURST_S)
        # Here, after the last ordinary patch: it must not arrive behind the farewell.
        while not await self._say_full():
            continue
        self._left.set()

    async def leave(self) -> None:
        """Have `run` say that every card is full, and nothing after that; returns once it is said."""
        self._leaving.set()
        self._wake.set()
        await self._left.wait()

    async def _say_full(self) -> bool:
        """Tell whether the Node offers nothing any more."""
        node = self._node_view.node
        if node is None:
            return True
        revision = next_revision(self.revision, node, self._now_ms())
        body = farewell(node, revision)
        if body is None:
            return True
        try:
            await self._client.patch_node_status(self._node_name, body, timeout_s=WRITE_TIMEOUT_S)
        except KubeApiError as error:
            self.errors += 1
            log.warning("farewell not published", error=str(error))
            await asyncio.sleep(FAREWELL_AGAIN_S)
            return False
        self.revision = revision
        self.patches += 1
        log.info("offers nothing until the next start", revision=revision)
        return True

    async def _step(self) -> float | None:
        """Patch if it is time.

        Returns:
            Seconds after which to look again even if nothing happens, None for no need.
        """
        node = self._node_view.node
        if node is None or not (self._account.ledger.complete and self._offers()):
            # A Node that comes again has lost what was written to it, and nobody undid it.
            self._since_s = self._written = None
            return None
        wanted, owed = self._wanted(), self._pod_view.owed
        reason = urgency(wanted, node, owed)
        if reason is None:
            self._since_s = None
            return None
        now_s = self._account.now_s()
        self._since_s = now_s if self._since_s is None else self._since_s
        due = due_s(reason, self._since_s, self._last_s, settled=self._settled(), gap_s=self._gap_s)
        if self._written is not None and news(wanted, self._written, owed) != "released":
            due = max(due, self._patient_s)
        left_s = due - now_s
        if left_s > 0:
            return left_s
        return await self._patch(wanted, node, owed, reason)

    async def _patch(self, wanted: Wanted, node: NodeObject, owed: int, reason: str) -> float:
        revision = next_revision(self.revision, node, self._now_ms())
        try:
            answer = await self._client.patch_node_status(
                self._node_name, patch(wanted, node, revision), timeout_s=WRITE_TIMEOUT_S
            )
            patched = _decode_node(answer)
        except (KubeApiError, msgspec.MsgspecError) as error:
            self.errors += 1
            delay_s = self._backoff.failed(getattr(error, "retry_after_s", None))
            note = log.warning if self._backoff.failures == 1 else log.debug
            note("words not published", error=str(error), retry_s=round(delay_s, 2))
            with suppress(TimeoutError):
                async with asyncio.timeout(delay_s):
                    await self._leaving.wait()
            return 0.0
        self._backoff.reset()
        self.revision = revision
        self.patches += 1
        self._since_s = None
        self._last_s = self._account.now_s()
        log.info(
            "published", reason=reason, used=list(wanted.used), holds=len(wanted.holds), revision=revision
        )
        differs = differences(wanted, patched, owed)
        if not differs and self._written is not None and news(wanted, self._written, owed) is None:
            differs = differences(wanted, node, owed)
        self._written = wanted
        if differs:
            self._disputed(differs)
        self._node_view.take(patched)
        return 0.0

    def _disputed(self, differs: list[str]) -> None:
        """Be patient with a Node that does not keep what is written: whoever undoes it may go on for ever."""
        if self._last_s - self._disputed_s > CALM_S:
            self._disputes.reset()
        self._disputed_s = self._last_s
        delay_s = self._disputes.failed()
        self._patient_s = self._last_s + delay_s
        note = log.warning if self._disputes.failures == 1 else log.debug
        note("the Node does not keep what is written to it", differs=differs, retry_s=round(delay_s, 2))

    def _wanted(self) -> Wanted:
        ledger = self._account.ledger
        return Wanted(
            unit_mib=self._unit_mib,
            sizes=tuple(card.size_units for card in ledger.installed),
            used=ledger.used(),
            holds=ledger.published_holds(),
            inventory=tuple(self._inventory()),
            seen=self._pod_view.seen,
        )

    def _settled(self) -> bool:
        ledger = self._account.ledger
        return not ledger.in_flight()


@dataclass(slots=True)
class _Trouble:
    """A pod whose annotation was refused: how often, and when to try again by the ledger's clock."""

    backoff: Backoff
    due_s: float = float("-inf")


class Annotator:
    """Writes what each pod got into its `allocation` annotation, for people.

    Args:
        client: API server.
        account: the ledger.
        pod_view: the pods and what their annotations say.

    Attributes:
        errors: failed writes so far.
    """

    def __init__(self, client: KubeClient, account: Account, pod_view: PodView) -> None:
        self._client = client
        self._account = account
        self._pod_view = pod_view
        self._wake = asyncio.Event()
        self._done: dict[str, str] = {}
        self._troubles: dict[str, _Trouble] = {}
        self.errors = 0
        account.follow(self._wake.set)

    async def run(self) -> None:
        """Annotate until cancelled."""
        while True:
            self._wake.clear()
            wait_s = await self._all()
            try:
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
            except TimeoutError:
                continue
            await self._quiet()

    async def _quiet(self) -> None:
        """Wait until nothing has happened for a while, but not for ever."""
        latest_s = self._account.now_s() + ANNOTATE_WITHIN_S
        while self._wake.is_set() and self._account.now_s() < latest_s:
            self._wake.clear()
            await asyncio.sleep(QUIET_S)

    async def _all(self) -> float | None:
        """Write every annotation that is missing or wrong; one that was written is not looked at again.

        Returns:
            Seconds until one that was refused is due again, None where there is none.
        """
        found = self._account.ledger.allocations()
        self._done = {uid: text for uid, text in self._done.items() if uid in found}
        self._troubles = {uid: trouble for uid, trouble in self._troubles.items() if uid in found}
        for uid, assignment in found.items():
            seat = self._pod_view.seats.get(uid)
            text = dump_allocation(uid, assignment)
            if seat is None or text in (seat.allocation_text, self._done.get(uid)):
                self._troubles.pop(uid, None)
                continue
            trouble = self._troubles.get(uid)
            if trouble is not None and self._account.now_s() < trouble.due_s:
                continue
            if await self._write(uid, seat, text):
                log.info("allocation", pod=f"{seat.namespace}/{seat.name}", uid=uid, cards=_cards(assignment))
            await asyncio.sleep(ANNOTATE_GAP_S)
        due_s = min((trouble.due_s for trouble in self._troubles.values()), default=None)
        return None if due_s is None else max(0.0, due_s - self._account.now_s())

    async def _write(self, uid: str, seat: Seat, text: str) -> bool:
        """Write one annotation; tells whether it was. A pod that is refused holds up no other."""
        pod = f"{seat.namespace}/{seat.name}"
        try:
            await self._client.annotate_pod(
                seat.namespace, seat.name, uid, {POD_ALLOCATION: text}, timeout_s=WRITE_TIMEOUT_S
            )
        except KubeApiError as error:
            if not _is_gone(error):
                self._refused(uid, pod, error)
                return False
            # Another pod has the name by now, or none: nothing to tell anybody.
            log.debug("allocation not written", pod=pod, error=str(error))
            written = False
        else:
            written = True
        self._done[uid] = text
        self._troubles.pop(uid, None)
        return written

    def _refused(self, uid: str, pod: str, error: KubeApiError) -> None:
        self.errors += 1
        trouble = self._troubles.setdefault(uid, _Trouble(Backoff(1.0, 60.0)))
        delay_s = trouble.backoff.failed(getattr(error, "retry_after_s", None))
        trouble.due_s = self._account.now_s() + delay_s
        note = log.warning if trouble.backoff.failures == 1 else log.debug
        note("allocation not written", pod=pod, error=str(error), retry_s=round(delay_s, 2))


def _is_gone(error: KubeApiError) -> bool:
    """Whether the pod that was meant is no more; every other refusal may end."""
    return isinstance(error, NotFound) or (isinstance(error, Conflict) and error.cause == "uid")


def _cards(assignment: Assignment) -> list[str]:
    return sorted({uuid for shares in assignment.values() for uuid, _ in shares})
