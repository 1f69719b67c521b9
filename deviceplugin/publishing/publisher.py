"""Writes to the API server what the ledger knows: the Node's words."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from allocator.records import CardRecord
from deviceplugin.allocation.ledger_service import LedgerService
from deviceplugin.allocation.objects import NodeObject, decode_node
from deviceplugin.allocation.own_node import OwnNode
from deviceplugin.allocation.own_pods import OwnPods
from deviceplugin.option_values import PUBLISH_GAP_S
from deviceplugin.publishing.node_publication import (
    NodePublication,
    PublishedClaims,
    changes_since,
    differences,
    due_s,
    make_last_patch,
    make_status_patch,
    next_revision,
    place_claims,
    publish_reason,
)
from kubeapi.backoff import Backoff
from kubeapi.client import KubeClient
from kubeapi.errors import KubeApiError, decode_answer
from kubeapi.stepper import Stepper

log = structlog.get_logger(__name__)

WRITE_TIMEOUT_S: Final = 10.0

LAST_PATCH_AGAIN_S: Final = 0.2
"""Pause after a last patch that failed: there is no time for more patience."""

FAILING_S: Final = 60.0
"""How long after the first patch that failed the daemon says that it is not ready."""

BURST_S: Final = 0.05
"""Events within this time are handled together, between two Allocates."""

CALM_S: Final = 60.0
"""A Node that kept what was written for so long is not disputed any more."""


def read_wall_ms() -> int:
    return time.time_ns() // 1_000_000


class NodePublisher:
    """Keeps the own Node's words as the ledger has them: one patch at a time, only for changes.

    Args:
        gap_s: least seconds between two patches that only bring gains.
        offers: whether pods can be served yet; until then the Node's words stay as they are.
        owns: whether the Node is ours to write to.
        offers_compute: whether the Node offers compute to Kubernetes' own sums.
    """

    def __init__(
        self,
        client: KubeClient,
        account: LedgerService,
        own_node: OwnNode,
        pods: OwnPods,
        *,
        node_name: str,
        unit_mib: int,
        inventory: Callable[[], Sequence[CardRecord]],
        gap_s: float = PUBLISH_GAP_S,
        now_ms: Callable[[], int] = read_wall_ms,
        offers: Callable[[], bool] = lambda: True,
        owns: Callable[[], bool] = lambda: True,
        claims: Callable[[], PublishedClaims] = dict,
        offers_compute: bool = True,
    ) -> None:
        self._client = client
        self._account = account
        self._own_node = own_node
        self._pods = pods
        self._node_name = node_name
        self._unit_mib = unit_mib
        self._inventory = inventory
        self._gap_s = gap_s
        self._now_ms = now_ms
        self._offers = offers
        self._owns = owns
        self._claims = claims
        self._offers_compute = offers_compute
        self._leaving = asyncio.Event()
        self._left = asyncio.Event()
        self._stepper = Stepper(self._step, BURST_S)
        self._since_s: float | None = None
        self._last_s = float("-inf")
        self._written: NodePublication | None = None
        self._proven = False
        self._failing_since_s: float | None = None
        self._error = ""
        self._disputes = Backoff(0.2, 15.0)
        self._disputed_s = self._patient_s = float("-inf")
        self.patches = 0
        self.errors = 0
        self.revision = 0
        account.subscribe(self._stepper.wake)

    @property
    def is_failing(self) -> bool:
        return self._failing_since_s is not None

    @property
    def problem(self) -> str | None:
        """Why the Node's words may be outdated; None once a patch succeeded, and while patches succeed."""
        if self._failing_since_s is not None:
            since_s = self._account.now_s() - self._failing_since_s
            if not self._proven or since_s >= FAILING_S:
                what = f"the status of Node {self._node_name} cannot be patched"
                return f"{what}, for {since_s:.0f} s now: {self._error}"
        return None if self._proven else f"no patch of the status of Node {self._node_name} went through yet"

    async def run(self) -> None:
        """Publish until cancelled, or until `publish_full` is done."""
        while not self._leaving.is_set():
            await self._stepper.run_once()
        # Only once no ordinary patch is under way: one that came after the shutdown's patch would undo it.
        while not await self._say_full():
            continue
        self._left.set()

    async def publish_full(self) -> None:
        """Make `run` publish every card as full, and nothing after that; return once it is published."""
        self._leaving.set()
        self._stepper.hurry()
        await self._left.wait()

    async def _say_full(self) -> bool:
        """Publish every card as full; return True once the Node offers nothing any more."""
        node = self._own_node.node
        if node is None or not self._owns():
            return True
        revision = next_revision(self.revision, node, self._now_ms())
        body = make_last_patch(node, revision)
        if body is None:
            return True
        try:
            await self._client.patch_node_status(self._node_name, body, timeout_s=WRITE_TIMEOUT_S)
        except KubeApiError as error:
            self.errors += 1
            log.warning("shutdown not published", error=str(error))
            await asyncio.sleep(LAST_PATCH_AGAIN_S)
            return False
        self.revision = revision
        self.patches += 1
        log.info("offers nothing until the next start", revision=revision)
        return True

    async def _step(self) -> float | None:
        """Patch if it is time; return the seconds after which to check again even if nothing happens."""
        node = self._own_node.node
        if node is None or not (self._account.ledger.is_complete and self._offers() and self._owns()):
            # A Node that was deleted and created again has lost our words; nobody has reverted them.
            self._since_s = self._written = None
            return None
        wanted, owed = self._wanted(), self._pods.owed_version
        reason = publish_reason(wanted, node, owed)
        if reason is None:
            self._since_s = None
            return await self._prove()
        now_s = self._account.now_s()
        self._since_s = now_s if self._since_s is None else self._since_s
        due = due_s(reason, self._since_s, self._last_s, settled=self._settled(), gap_s=self._gap_s)
        if self._written is not None and changes_since(wanted, self._written, owed) != "released":
            due = max(due, self._patient_s)
        left_s = due - now_s
        if left_s > 0:
            return left_s
        return await self._patch(wanted, node, owed, reason)

    async def _patch(self, wanted: NodePublication, node: NodeObject, owed: int, reason: str) -> float:
        revision = next_revision(self.revision, node, self._now_ms())
        try:
            answer = await self._client.patch_node_status(
                self._node_name, make_status_patch(wanted, node, revision), timeout_s=WRITE_TIMEOUT_S
            )
            patched = decode_answer(answer, decode_node, "a Node")
        except KubeApiError as error:
            return await self._failed(error)
        self._succeeded()
        self.revision = revision
        self.patches += 1
        self._since_s = None
        self._last_s = self._account.now_s()
        log.info(
            "published",
            reason=reason,
            used=list(wanted.words.used),
            holds=len(wanted.accounted_pods),
            revision=revision,
        )
        differs = differences(wanted, patched, owed)
        if not differs and self._written is not None and changes_since(wanted, self._written, owed) is None:
            differs = differences(wanted, node, owed)
        self._written = wanted
        if differs:
            self._disputed(differs)
        self._own_node.apply_node(patched)
        return 0.0

    async def _prove(self) -> float | None:
        """Find out whether patches succeed when there is nothing to publish.

        The API server checks an empty patch like any other, and writes nothing.
        """
        if self._proven and not self.is_failing:
            return None
        try:
            await self._client.patch_node_status(self._node_name, {}, timeout_s=WRITE_TIMEOUT_S)
        except KubeApiError as error:
            return await self._failed(error)
        self._succeeded()
        return 0.0

    async def _failed(self, error: Exception) -> float:
        """Wait until it is time for another try."""
        self.errors += 1
        self._error = str(error)
        if self._failing_since_s is None:
            self._failing_since_s = self._account.now_s()
        return await self._stepper.back_off(log, "words not published", error)

    def _succeeded(self) -> None:
        self._proven, self._failing_since_s = True, None

    def _disputed(self, differs: list[str]) -> None:
        """Back off from a Node whose words are reverted: whatever reverts them may go on for ever."""
        if self._last_s - self._disputed_s > CALM_S:
            self._disputes.reset()
        self._disputed_s = self._last_s
        delay_s = self._disputes.failed()
        self._patient_s = self._last_s + delay_s
        note = log.warning if self._disputes.failures == 1 else log.debug
        note("the Node does not keep what is written to it", differs=differs, retry_s=round(delay_s, 2))

    def _wanted(self) -> NodePublication:
        ledger, claims = self._account.ledger, self._claims()
        uuids = [card.uuid for card in ledger.installed]
        return NodePublication(
            words=ledger.make_words(self._unit_mib),
            accounted_pods=ledger.published_holds(),
            inventory=tuple(self._inventory()),
            seen_version=self._pods.seen_version,
            claims=place_claims(claims, uuids),
            offered_compute=ledger.offered_compute() if self._offers_compute else None,
        )

    def _settled(self) -> bool:
        ledger = self._account.ledger
        return not ledger.has_pods_in_flight()
