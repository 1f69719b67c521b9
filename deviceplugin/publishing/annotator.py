"""Writes what each pod got into its `allocation` annotation."""

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from allocator.ledger import PodAccount
from allocator.ledger.accounts import NodeAccounts
from allocator.names import POD_ALLOCATION
from allocator.records import Assignment, MemoryRecord, dump_allocation, read_own_allocation
from deviceplugin.allocation.ledger_service import LedgerService
from deviceplugin.allocation.objects import PodObject
from deviceplugin.allocation.own_pods import OwnPods
from deviceplugin.publishing.published_use import PublishedUse
from deviceplugin.publishing.publisher import WRITE_TIMEOUT_S
from kubeapi.backoff import KeyedBackoff
from kubeapi.client import KubeClient
from kubeapi.errors import KubeApiError, is_gone
from kubeapi.stepper import Stepper

log = structlog.get_logger(__name__)

QUIET_S: Final = 0.2
"""Allocations are written once nothing has happened for so long: no Allocate has to wait for them.

People read them, and a daemon that starts after the kubelet lost its checkpoint.
"""

QUIET_TURNS: Final = 5
"""Most times `QUIET_S` that writing waits, on a node that is never quiet."""

ANNOTATE_GAP_S: Final = 0.02
"""Least time between two such writes: an Allocate gets its turn in between."""

REPAIR_S: Final = 60.0
"""Least time between two writes of one text: whoever keeps changing an annotation causes no more of them."""

TURN: Final = 25
"""Pods that are checked in one go: an Allocate waits for no more than these, some 0.2 ms."""


@dataclass(frozen=True, slots=True)
class _WrittenAnnotation:
    """The newest annotation that was written of a pod."""

    text: str
    before: PodObject
    at_s: float


class AllocationAnnotator:
    """Writes what each pod got into its `allocation` annotation, for people.

    An annotation that others have changed is written again, at most once in `REPAIR_S`.

    Args:
        use: what the pods use, as far as it is worth a write; None: nothing is written.
    """

    def __init__(
        self, client: KubeClient, account: LedgerService, pods: OwnPods, use: PublishedUse | None = None
    ) -> None:
        self._use = use
        self._client = client
        self._account = account
        self._pods = pods
        self._stepper = Stepper(self._step, QUIET_S, QUIET_TURNS)
        self._done: dict[str, _WrittenAnnotation] = {}
        self._refused: KeyedBackoff[str] = KeyedBackoff(1.0, 60.0, random.uniform)
        self.errors = 0
        account.subscribe(self._stepper.wake)

    def wake(self) -> None:
        self._stepper.wake()

    async def run(self) -> None:
        await self._stepper.run()

    async def _step(self) -> float | None:
        """Write every annotation that is missing or wrong; return the seconds until a later one is due."""
        found = list_allocations(self._account.ledger.accounts)
        self._done = {uid: done for uid, done in self._done.items() if uid in found}
        self._refused.forget_others(found)
        self._refused.pop_due(self._account.now_s())
        repairs: list[float] = []
        for number, (uid, assignment) in enumerate(sorted(found.items()), 1):
            if number % TURN == 0:
                await asyncio.sleep(0)
            pod = self._pods.pods_by_uid.get(uid)
            text = self._text(uid, pod, assignment)
            due_s = self._find_due(uid, pod, text)
            if pod is None or due_s is None:
                self._refused.forget(uid)
                continue
            if self._account.now_s() < due_s:
                repairs.append(due_s)
                continue
            if self._refused.is_paused(uid):
                continue
            if await self._write(uid, pod, text):
                log.info("allocation", pod=pod.full_name, uid=uid, cards=_cards(assignment))
            await asyncio.sleep(ANNOTATE_GAP_S)
        now_s = self._account.now_s()
        waits_s = [*(due_s - now_s for due_s in repairs), self._refused.find_wait_s(now_s)]
        return min((max(0.0, wait_s) for wait_s in waits_s if wait_s is not None), default=None)

    def _find_due(self, uid: str, pod: PodObject | None, text: str) -> float | None:
        """Find the earliest time to write an annotation; None if there is nothing to write."""
        done = self._done.get(uid)
        if pod is None or _written(pod) == text:
            return None
        if done is None or done.text != text:
            return self._account.now_s()
        # The watch has not shown the pod since that write: its new version is on the way.
        return None if done.before is pod else done.at_s + REPAIR_S

    def _text(self, uid: str, pod: PodObject | None, assignment: Assignment) -> str:
        if self._use is None or pod is None:
            return dump_allocation(uid, assignment)
        return dump_allocation(
            uid,
            assignment,
            self._use.list_records(pod.runtime_uid, assignment, lambda: _read_memory(_written(pod), uid)),
        )

    async def _write(self, uid: str, item: PodObject, text: str) -> bool:
        """Write one annotation; return True on success. A refused pod does not delay others."""
        pod, metadata = item.full_name, item.metadata
        try:
            await self._client.annotate_pod(
                metadata.namespace, metadata.name, uid, {POD_ALLOCATION: text}, timeout_s=WRITE_TIMEOUT_S
            )
        except KubeApiError as error:
            if not is_gone(error):
                self.errors += 1
                self._refused.log_failure(
                    uid, self._account.now_s(), log, "allocation not written", error, pod=pod
                )
                return False
            # The pod is gone, and perhaps another one has its name: there is nothing to write.
            log.debug("allocation not written", pod=pod, error=str(error))
            written = False
        else:
            written = True
        self._done[uid] = _WrittenAnnotation(text, item, self._account.now_s())
        self._refused.forget(uid)
        return written


def _written(pod: PodObject) -> str | None:
    return pod.metadata.get_annotation(POD_ALLOCATION)


def _read_memory(text: str | None, uid: str) -> Mapping[str, Mapping[str, MemoryRecord]]:
    allocation = read_own_allocation(text, uid)
    return {} if allocation is None else allocation.memory


def _cards(assignment: Assignment) -> list[str]:
    return sorted({uuid for shares in assignment.values() for uuid, _ in shares})


def list_allocations(accounts: NodeAccounts) -> dict[str, Assignment]:
    """List units by card and container of living pods that have all they asked for, by UID of the API.

    Without pods of which a card is not known, or of which a share is less than a unit on a smaller card.
    """
    served = [
        account for account in accounts.pods.values() if account.is_live and not account.unserved_containers
    ]
    return {
        account.pod.uid: found for account in served if (found := _list_shares(accounts, account)) is not None
    }


def _list_shares(accounts: NodeAccounts, account: PodAccount) -> Assignment | None:
    request = account.pod.request
    shares: dict[str, tuple[tuple[str, int], ...]] = {}
    for container in request.containers:
        demand = request.demand_of(container.name)
        cards = accounts.units_of_containers(account.id_sets(demand.containers))
        if len(cards) != demand.cards:
            return None
        units = {uuid: request.units_of(container, accounts.cards[uuid].size_units) for uuid in cards}
        if not all(units.values()):
            return None
        shares[container.name] = tuple(units.items())
    return shares
