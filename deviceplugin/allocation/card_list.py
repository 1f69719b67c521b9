"""The node's list of cards: the source's, in units, in the ledger and for the kubelet; it may change."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import structlog

from allocator.ids import SEPARATOR
from allocator.ledger import Pod, PodAccount
from allocator.ledger.accounts import NodeAccounts
from allocator.records import DETACHED, CardRecord
from deviceplugin.allocation.inventory import card_records, cards_in_units, check_units
from deviceplugin.allocation.ledger_service import LedgerService
from deviceplugin.gpus.api.memory_limits import Enforcement
from deviceplugin.gpus.api.source import GpuCard
from deviceplugin.node_events import NodeEvents

log = structlog.get_logger(__name__)


class CardList:
    """The node's list of cards, which follows the source's.

    A card that stays keeps its charges. A card that is gone is not offered any more, and Events name its
    pods. Events also name the pods of a card that stays with fewer units than they were given. Its instances
    may be offered instead, or the driver has lost it. All this happens between two answers to the kubelet.

    Cards may change while no daemon runs, as where other instances of a card take effect with a reboot. A
    daemon that starts names the pods of such cards once it has read the kubelet's checkpoint and a list of
    pods.

    Args:
        on_change: called before the words are written: the kubelet must hear of new devices first.
        enforcement: how a card's memory is held, by UUID.
        detached: whether the cards' driver is let go.
    """

    def __init__(
        self,
        account: LedgerService,
        gpus: Sequence[GpuCard],
        unit_mib: int,
        notices: NodeEvents,
        on_change: Callable[[], None],
        enforcement: Callable[[str], Enforcement] = lambda _: Enforcement.ACCOUNTED,
        detached: Callable[[], bool] = lambda: False,
    ) -> None:
        self._account = account
        self._gpus = tuple(gpus)
        self._unit_mib = unit_mib
        self._notices = notices
        self._on_change = on_change
        self._enforcement = enforcement
        self._detached = detached
        self._looked_back = False
        account.subscribe(self._look_back)

    @property
    def gpus(self) -> tuple[GpuCard, ...]:
        return self._gpus

    def list_records(self) -> tuple[CardRecord, ...]:
        driver = DETACHED if self._detached() else ""
        return card_records(self._account.ledger.installed, self._gpus, self._enforcement, driver)

    def apply_gpus(self, gpus: Sequence[GpuCard], healthy: Callable[[str], bool]) -> None:
        """Take the source's list.

        Raises:
            DeviceListError: no kubelet could take such a list.
        """
        if tuple(gpus) == self._gpus:
            return
        check_units(gpus, self._unit_mib)
        before = {gpu.uuid for gpu in self._gpus}
        cards = [
            replace(card, healthy=card.healthy and healthy(card.uuid))
            for card in cards_in_units(gpus, self._unit_mib)
        ]
        self._notices.add_models({card.uuid: card.model for card in cards})
        ledger = self._account.ledger
        sizes = {card.uuid: card.size_units for card in ledger.installed}
        held, live = ledger.allocated_units_by_pod(), ledger.live_pods_by_card()
        gone = ledger.set_cards(cards)
        self._gpus = tuple(gpus)
        came = [card.uuid for card in cards if card.uuid not in before]
        went = sorted(before - {card.uuid for card in cards})
        small = {
            card.uuid: gpu.error or f"it has {card.size_units} units"
            for card, gpu in zip(cards, gpus, strict=True)
            if card.size_units < min(sizes.get(card.uuid, 0), sum(held.get(card.uuid, {}).values()))
        }
        left = {uuid: live[uuid] for uuid in (*gone, *small)}
        log.info(
            "the cards have changed",
            came=came,
            gone=went,
            too_small=sorted(small),
            pods_on_them=sum(map(len, left.values())),
        )
        self._report_changes(came, went, left)
        for uuid, reason in small.items():
            self._notices.record_too_small(uuid, reason, left[uuid])
        self._on_change()
        self._account.notify_subscribers()

    def _report_changes(
        self, came: Sequence[str], went: Sequence[str], pods: Mapping[str, Sequence[Pod]]
    ) -> None:
        if came or went:
            self._notices.record_cards_changed(came, went)
        for uuid in went:
            if pods.get(uuid):
                self._notices.record_gone(uuid, pods[uuid])

    def _look_back(self) -> None:
        """Name the pods whose cards were lost before this daemon started."""
        ledger = self._account.ledger
        if self._looked_back or not ledger.is_complete:
            return
        self._looked_back = True
        lost: dict[str, list[Pod]] = {}
        for one in ledger.accounts.pods.values():
            for uuid in find_lost_cards(ledger.accounts, one) if one.is_live else ():
                lost.setdefault(uuid, []).append(one.pod)
        listed = {gpu.uuid: gpu for gpu in self._gpus}
        for uuid, pods in sorted(lost.items()):
            if uuid in listed:
                units = ledger.accounts.cards[uuid].size_units
                self._notices.record_too_small(uuid, listed[uuid].error or f"it has {units} units", pods)
            else:
                self._notices.record_gone(uuid, pods)


def find_lost_cards(accounts: NodeAccounts, account: PodAccount) -> set[str]:
    """Find the UUIDs of cards that the node no longer has and of which a pod still has devices."""
    ids = frozenset().union(*account.known_ids.values())
    unknown = {text.partition(SEPARATOR)[0] for text in ids.difference(accounts.card_of)}
    empty = {
        uuid for text in ids if (uuid := accounts.card_of.get(text)) and not accounts.cards[uuid].size_units
    }
    return unknown | empty
