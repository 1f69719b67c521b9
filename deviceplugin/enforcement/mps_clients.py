"""Cards on which a service beside the driver holds containers to their shares, where the driver cannot.

A container of one card, with less than all of it, becomes a client of the service. Others use their cards
without it. A process has one service, so several cards would need one together; a container that has a card
alone needs none. The service takes so many clients: a card that has them all counts as full.

Where the driver limits the memory, a service with namespaces still limits the compute of those that ask for
some. It keeps a namespace until the container's pod is gone for good.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Final

import structlog

from allocator.ledger.accounts import NodeAccounts
from deviceplugin.allocation.ledger_service import LedgerService
from deviceplugin.errors import AllocationRefusedError, GpuError
from deviceplugin.gpus.api.container_grant import ContainerGrant
from deviceplugin.gpus.api.memory_limits import Enforcement
from deviceplugin.gpus.api.mps import LimitedContainer, MpsClientLimits, MpsControl

log = structlog.get_logger(__name__)

LOOK_S: Final = 2.0
"""How often it is checked whether the service still answers for each card."""


class MpsClients:
    """Makes containers clients of the service; it belongs to one event loop.

    Args:
        threads: limit the compute of a container that asks for none like its memory.
        requires_compute: refuse a container that asks for compute which nothing would limit.
    """

    def __init__(
        self,
        account: LedgerService,
        service: MpsControl,
        driver_holds: Callable[[str], bool],
        *,
        unit_mib: int,
        threads: bool = False,
        requires_compute: bool = False,
        look_s: float = LOOK_S,
    ) -> None:
        self._account = account
        self._service = service
        self._driver_holds = driver_holds
        self._unit_mib = unit_mib
        self._threads = threads
        self._requires_compute = requires_compute
        self._look_s = look_s
        self._limited: dict[str, Collection[LimitedContainer]] = {}
        self._states: dict[str, MpsClientLimits] = {}
        self._unread = ""
        self._server_pids: frozenset[int] = frozenset()
        account.subscribe(self._close)
        account.subscribe_given(self._forget_former)

    def get_enforcement(self, uuid: str) -> Enforcement:
        """Return what limits containers that a card is given to now, where the driver does not."""
        return Enforcement.MPS if uuid in self._states else Enforcement.ACCOUNTED

    def find_limits(
        self, uuid: str, mib: int, cards: int, ids: Collection[str]
    ) -> Collection[LimitedContainer]:
        """Find the limits in which a card's service holds one container, as it was last read.

        There are none for a container that began without the service, though the service answers again.

        Args:
            mib: what the container has of the card.
            cards: how many cards it has in all.
            ids: its device IDs.
        """
        if not self._can_join(uuid, mib, cards):
            return ()
        limited = self._limited.get(uuid, ())
        return [each for each in limited if each.device_id in ids and each.mib in {0, mib}]

    def _can_join(self, uuid: str, mib: int, cards: int) -> bool:
        """Return True if a container with so much of a card, and so many cards in all, may be a client."""
        return cards == 1 and mib < self._size_mib(uuid)

    def _size_mib(self, uuid: str) -> int:
        card = self._account.ledger.accounts.cards.get(uuid)
        return 0 if card is None else card.size_units * self._unit_mib

    def list_server_pids(self) -> Collection[int]:
        """Return the pids of the service's own processes, whose memory is charged to no pod.

        Where they cannot be read they are what they were.
        """
        try:
            self._server_pids = frozenset().union(*map(self._service.list_server_pids, self._states))
        except OSError as error:
            log.debug("servers of a card's service cannot be read", error=str(error))
        return self._server_pids

    async def make_grant(
        self, shares_mib: Mapping[str, int], compute: int, ids: Collection[str]
    ) -> ContainerGrant:
        """Make a container a client that has so many MiB by card and asks for compute, in percent.

        Raises:
            AllocationRefusedError: its compute would not be limited, which is required.
        """
        uuid, mib = next(iter(shares_mib.items()))
        if len(shares_mib) == 1 and not self._can_join(uuid, mib, 1):
            return ContainerGrant()
        if len(shares_mib) > 1:
            problem, grant = "it has several cards", ContainerGrant()
        else:
            problem, grant = await self._join(uuid, mib, compute, ids)
        if compute and self._requires_compute and (problem or not grant.envs):
            raise AllocationRefusedError(
                "not-ready",
                f"--compute-limits require, and nothing limits the {compute} percent of compute that this "
                f"container asks for: {problem or 'the driver limits memory, and MPS v3 is not there'}",
            )
        return grant

    async def _join(
        self, uuid: str, mib: int, compute: int, ids: Collection[str]
    ) -> tuple[str, ContainerGrant]:
        """Make a container of one card a client; else say why it is none, though it could be."""
        is_held, size_mib = self._driver_holds(uuid), self._size_mib(uuid)
        limit = compute or (share_of_compute(mib, size_mib) if self._threads else 0)
        try:
            state = self._service.read_state(uuid)
        except OSError:
            state = self._states.get(uuid)
        if is_held and not (compute if state is None else limit and state.has_namespaces):
            return "", ContainerGrant()
        if state is None:
            problem = "the card's service does not answer"
        elif containers_by_card(self._account.ledger.accounts)[uuid] > state.clients:
            problem = f"the card has all {state.clients} clients"
        else:
            try:
                grant = await self._service.make_grant(uuid, state, 0 if is_held else mib, limit, ids)
            except GpuError as error:
                problem = str(error)
            else:
                self._read_limited(uuid, state)
                return "", grant
        log.warning(
            "container is no client", card=uuid, unlimited="compute" if is_held else "memory", reason=problem
        )
        return problem, ContainerGrant()

    def _forget_former(self, ids: Collection[str]) -> None:
        """Have the service give back what it keeps for former holders of IDs: it would count for new ones."""
        card_of = self._account.ledger.accounts.card_of
        for uuid in {card_of[text] for text in ids if text in card_of}:
            try:
                self._service.forget(uuid, ids)
            except OSError as error:
                log.warning("what a card's service keeps cannot be given back", card=uuid, error=str(error))
            self._read_limited(uuid, self._states.get(uuid))

    def _read_limited(self, uuid: str, state: MpsClientLimits | None) -> None:
        """Read what a card's service limits, nothing if it does not answer.

        Where that cannot be found out, what it said last stays.
        """
        try:
            self._limited[uuid] = set() if state is None else self._service.list_limited(uuid, state)
        except OSError as error:
            log.debug("what a card's service limits cannot be read", card=uuid, error=str(error))

    async def run(self) -> None:
        while True:
            self.update_states()
            self.release_unused()
            await asyncio.sleep(self._look_s)

    def update_states(self) -> None:
        """Ask the service about every card, and report changes to all parts.

        Where that cannot be found out, what it said last stays true: its clients run on.
        """
        states: dict[str, MpsClientLimits] = {}
        before, limited, unread = self._states, dict(self._limited), ""
        for card in self._account.ledger.installed:
            try:
                state = self._service.read_state(card.uuid)
            except OSError as error:
                state, unread = before.get(card.uuid), str(error)
            if state is not None:
                states[card.uuid] = state
            self._read_limited(card.uuid, state)
        if unread and not self._unread:
            log.warning("whether services answer cannot be read, what they said last stays", error=unread)
        self._states, self._unread = states, unread
        for uuid in states.keys() - before.keys():
            log.info("card has a service that holds its clients", card=uuid, clients=states[uuid].clients)
        for uuid in before.keys() - states.keys():
            log.warning("card's service does not answer: its memory is accounted only", card=uuid)
        if states.keys() != before.keys() or self._limited != limited:
            self._account.notify_subscribers()

    def release_unused(self) -> None:
        """Have the service give back what it keeps for containers that are gone, whoever was there then."""
        accounts = self._account.ledger.accounts
        if accounts.checkpoint_read_at_s is None or not self._states:
            return
        used = {text for pod in accounts.pods.values() for ids in pod.charged_ids for text in ids}
        for uuid in self._states:
            try:
                self._service.keep_only(uuid, used)
            except OSError as error:
                log.debug("what the card's service keeps cannot be given back", error=str(error))

    def _close(self) -> None:
        if not self._states:
            self._account.set_client_limit(())
            return
        there = containers_by_card(self._account.ledger.accounts)
        self._account.set_client_limit(
            uuid
            for uuid, state in self._states.items()
            if there[uuid] >= state.clients and not self._driver_holds(uuid)
        )


def share_of_compute(mib: int, size_mib: int) -> int:
    """Return the percent of a card's multiprocessors that is as large a share as of its memory."""
    return min(100, max(1, -(-100 * mib // size_mib)))


def containers_by_card(accounts: NodeAccounts) -> Counter[str]:
    """Count by card the containers that have a part of it alone, in the checkpoint or just granted."""
    given = (accounts.cards_of([ids]) for pod in accounts.pods.values() for ids in pod.given_ids.values())
    return Counter(next(iter(cards)) for cards in given if len(cards) == 1)
