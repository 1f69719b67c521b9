"""Cards on which a service beside the driver holds containers to their shares, where the driver cannot.

A container of one card, with less than all of it, becomes a client of the service. Others use their cards
without it. A process has one service, so several cards would need one together; a container that has a card
alone needs none. The service takes so many clients: a card that has them all counts as full.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Final

import structlog

from allocator.ledger.accounts import NodeAccounts
from deviceplugin.allocation.ledger_service import LedgerService
from deviceplugin.gpus.api.container_grant import ContainerGrant
from deviceplugin.gpus.api.memory_limits import Enforcement
from deviceplugin.gpus.api.mps import MpsClientLimits, MpsControl

log = structlog.get_logger(__name__)

LOOK_S: Final = 2.0
"""How often it is checked whether the service still answers for each card."""


class MpsClients:
    """Makes containers clients of the service; it belongs to one event loop."""

    def __init__(
        self,
        account: LedgerService,
        service: MpsControl,
        driver_holds: Callable[[str], bool],
        *,
        unit_mib: int,
        look_s: float = LOOK_S,
    ) -> None:
        self._account = account
        self._service = service
        self._driver_holds = driver_holds
        self._unit_mib = unit_mib
        self._look_s = look_s
        self._states: dict[str, MpsClientLimits] = {}
        self._unread = ""
        self._server_pids: frozenset[int] = frozenset()
        account.subscribe(self._close)

    def get_enforcement(self, uuid: str) -> Enforcement:
        """Return what limits a card's containers where the driver does not."""
        return Enforcement.MPS if uuid in self._states else Enforcement.ACCOUNTED

    def can_limit(self, uuid: str, mib: int, cards: int) -> bool:
        """Return True if a container with these units on a card, and these cards in all, is a client."""
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

    def make_grant(self, shares_mib: Mapping[str, int], compute: int) -> ContainerGrant:
        """Make a container a client that has so many MiB by card and asks for compute, in percent."""
        uuid, mib = next(iter(shares_mib.items()))
        if self._driver_holds(uuid) or not self.can_limit(uuid, mib, len(shares_mib)):
            return ContainerGrant()
        try:
            state = self._service.read_state(uuid)
        except OSError:
            state = self._states.get(uuid)
        if state is None:
            log.warning("container without memory limit: the card's service does not answer", card=uuid)
            return ContainerGrant()
        if containers_by_card(self._account.ledger.accounts)[uuid] > state.clients:
            log.warning(
                "container without memory limit: the card has all clients", card=uuid, most=state.clients
            )
            return ContainerGrant()
        return self._service.make_grant(uuid, mib, self._size_mib(uuid), compute)

    async def run(self) -> None:
        while True:
            self.update_states()
            await asyncio.sleep(self._look_s)

    def update_states(self) -> None:
        """Ask the service about every card, and report changes to all parts.

        Where that cannot be found out, what it said last stays true: its clients run on.
        """
        states: dict[str, MpsClientLimits] = {}
        before, unread = self._states, ""
        for card in self._account.ledger.installed:
            try:
                state = self._service.read_state(card.uuid)
            except OSError as error:
                state, unread = before.get(card.uuid), str(error)
            if state is not None:
                states[card.uuid] = state
        if unread and not self._unread:
            log.warning("whether services answer cannot be read, what they said last stays", error=unread)
        self._states, self._unread = states, unread
        for uuid in states.keys() - before.keys():
            log.info("card has a service that holds its clients", card=uuid, clients=states[uuid].clients)
        for uuid in before.keys() - states.keys():
            log.warning("card's service does not answer: its memory is accounted only", card=uuid)
        if states.keys() != before.keys():
            self._account.notify_subscribers()

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


def containers_by_card(accounts: NodeAccounts) -> Counter[str]:
    """Count the containers with a part of each card, in the checkpoint or just granted, once each."""
    given = (ids for pod in accounts.pods.values() for ids in (pod.known_ids | pod.pending_ids).values())
    firsts = (next(iter(ids), "") for ids in given)
    return Counter(accounts.card_of.get(first, "") for first in firsts)
