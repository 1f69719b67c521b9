"""The node's accounts: takes what happens, keeps the facts, answers by the functions on them.

Invariant: the units that the words show plus those that the scheduler assumes are never less than the units
that the kubelet holds or will hold for pods that are bound.
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from allocator.cards import Card
from allocator.errors import LedgerError, shown
from allocator.ledger import charges, choice, explain, places, release
from allocator.ledger.facts import BookEntry, BoundPod, Facts, Grant, Held, Mark, Pod, Slot, Units
from allocator.names import DEFAULT_CARD_POLICY
from allocator.records import Assignment

_ANSWERS: Final = 8
_SHOWN_IDS: Final = 4


class Ledger:
    """One node's accounts. Pure and synchronous: everything that happens is a call with its time in seconds.

    Args:
        cards: every card in word order, `used_units` 0.
        policy: the cluster's card policy.
    """

    def __init__(self, cards: Sequence[Card], *, policy: str = DEFAULT_CARD_POLICY) -> None:
        self._facts = Facts.of(cards, policy)
        self._order = 0
        self._sick = {card.uuid for card in cards if not card.healthy}
        self._withheld: frozenset[str] = frozenset()
        self._book_read = False
        self._answers: deque[frozenset[str]] = deque(maxlen=_ANSWERS)
        self._expired: deque[str] = deque(maxlen=4096)

    @property
    def facts(self) -> Facts:
        """What is known; to be read only."""
        return self._facts

    def mark(self, now_s: float) -> Mark:
        """Number this moment; whatever takes time is marked when it begins."""
        self._order += 1
        return Mark(self._order, now_s)

    # Cards.

    @property
    def installed(self) -> tuple[Card, ...]:
        """Every card in word order as it is without pods: `used_units` 0."""
        return tuple(self._facts.cards.values())

    def cards(self) -> tuple[Card, ...]:
        """Return every card in word order, with its charged units as used ones."""
        promised = self.promised()
        return tuple(replace(card, used_units=promised[uuid]) for uuid, card in self._facts.cards.items())

    def set_healthy(self, uuid: str, healthy: bool) -> None:
        """Take a card in or out; an unhealthy card counts as full.

        Raises:
            LedgerError: no such card.
        """
        card = self._facts.cards.get(uuid)
        if card is None:
            raise LedgerError(f"card {shown(uuid)}: allowed are {', '.join(self._facts.cards)}")
        (self._sick.discard if healthy else self._sick.add)(uuid)
        self._rate()

    def set_withheld(self, uuids: Collection[str]) -> None:
        """Keep exactly these cards from all containers, as if unhealthy. Unknown UUIDs are ignored."""
        self._withheld = frozenset(uuids)
        self._rate()

    def _rate(self) -> None:
        for uuid, card in self._facts.cards.items():
            healthy = uuid not in self._sick and uuid not in self._withheld
            if card.healthy is not healthy:
                self._facts.cards[uuid] = replace(card, healthy=healthy)

    def set_cordoned(self, uuids: Collection[str]) -> None:
        """Keep exactly these cards free of new pods; they count as full. Unknown UUIDs are ignored."""
        for uuid, card in self._facts.cards.items():
            self._facts.cards[uuid] = replace(card, cordoned=uuid in uuids)

    def set_pressure(self, units: Mapping[str, int]) -> bool:
        """Set the units by card that are used beyond what is promised: foreign use and over-use.

        Returns:
            Whether anything changed.
        """
        pressure = {uuid: count for uuid, count in units.items() if uuid in self._facts.cards and count}
        changed, self._facts.pressure = pressure != self._facts.pressure, pressure
        return changed

    # The kubelet.

    def read_book(self, entries: Iterable[BookEntry], now_s: float) -> None:
        """Take what the kubelet's book says now, after it was written anew.

        What it showed of a pod stays until the pod's charge ends. IDs of cards that this node has no more
        count for nobody.
        """
        facts, at = self._facts, self.mark(now_s)
        before = {slot.uid for slot in facts.book}
        facts.book = {}
        for entry in entries:
            slot, ids = Slot(entry.uid, entry.container), facts.known(entry.ids)
            facts.book[slot] = facts.book.get(slot, frozenset()) | ids
        self._book_read = True
        for uid in before - {slot.uid for slot in facts.book}:
            facts.unlisted[uid] = at
        for slot, ids in facts.book.items():
            held = facts.held.setdefault(slot.uid, Held({}, at))
            if held.ids.get(slot.container) != ids:
                held.ids[slot.container] = ids
                held.units = facts.of_containers(held.ids.values())
        self._settle_grants()
        self.settle(now_s)

    def _settle_grants(self) -> None:
        """An Allocate ends when the book shows it, or was written so often without it."""
        facts = self._facts
        by_ids: dict[frozenset[str], set[Slot]] = {}
        for slot, ids in facts.book.items():
            by_ids.setdefault(ids, set()).add(slot)
        for grant in facts.grants:
            grant.writes += 1
            grant.before &= by_ids.get(grant.ids, set())
        facts.grants = [g for g in facts.grants if not by_ids.get(g.ids, set()) - g.before]

    def expects(
        self, size: int, must_include: Collection[str], now_s: float, *, percent: bool = False
    ) -> bool:
        """Tell whether a living pod is known that the kubelet may be asking for.

        False means that the view of pods is behind the kubelet's, or the pod is not in the API: wait a little
        for the view before answering `preferred`.
        """
        return choice.is_expected(self._facts, size, frozenset(must_include), now_s, percent=percent)

    def displaces(
        self, size: int, must_include: Collection[str], now_s: float, *, percent: bool = False
    ) -> bool:
        """Tell whether the pod that seems to ask cannot be served where the scheduler said.

        Where it goes instead depends on all other pods: wait a little for a fresh list of them.
        """
        return choice.is_displaced(self._facts, size, frozenset(must_include), now_s, percent=percent)

    def expects_assigned(
        self, size: int, must_include: Collection[str], now_s: float, *, percent: bool = False
    ) -> bool:
        """Tell whether the pod that the kubelet seems to ask for was bound with cards chosen for it."""
        slot = choice.asking(self._facts, size, frozenset(must_include), now_s, percent=percent)
        return slot is not None and self._facts.pods[slot.uid].pod.assigned is not None

    def preferred(
        self, available: Collection[str], must_include: Collection[str], size: int, now_s: float
    ) -> tuple[str, ...]:
        """Answer GetPreferredAllocation: exactly `size` of the available IDs, `must_include` among them.

        They are all of units or all of percent: the kubelet asks for each of its resources by itself.

        Raises:
            LedgerError: no card (or not enough cards) can take the container.
        """
        offered = self._facts.known(available)
        fixed = frozenset(must_include)
        if not fixed <= offered:
            raise LedgerError(
                f"must_include has {shown(min(fixed - offered))}: allowed are available IDs of this node"
            )
        answer = choice.prefer(self._facts, offered, fixed, size, now_s)
        self._answers.append(frozenset(answer))
        return answer

    def allocate(self, ids: Collection[str], now_s: float) -> Grant:
        """Record an Allocate. IDs that are charged already are taken: the kubelet decides.

        Raises:
            LedgerError: no ID, an unknown one, one of an unhealthy card, or more cards than were offered; a
                share of less than one unit; more than the card has, with what was given out as the other
                resource.
        """
        facts, wanted = self._facts, frozenset(ids)
        unknown = sorted(wanted - facts.known(wanted))
        if not wanted or unknown:
            raise LedgerError(
                f"Allocate of {shown(unknown[:_SHOWN_IDS])}: allowed are IDs of this node's cards"
            )
        counts = facts.by_card(wanted)
        sick = [uuid for uuid in counts if not facts.cards[uuid].healthy]
        if sick:
            raise LedgerError(f"Allocate on {shown(sick)}: allowed are IDs of healthy cards")
        if len(counts) > 1 and wanted not in self._answers:
            raise LedgerError(
                f"Allocate of {len(wanted)} units on {len(counts)} cards {shown(sorted(counts))}: "
                "allowed is one card, or what GetPreferredAllocation just answered"
            )
        charges.check_room(facts, wanted)
        if wanted in self._answers:
            self._answers.remove(wanted)
        shares = tuple((uuid, counts[uuid]) for uuid in facts.cards if uuid in counts)
        before = frozenset(slot for slot, held in facts.book.items() if held == wanted)
        grant = Grant(wanted, shares, self.mark(now_s), before)
        facts.grants.append(grant)
        return grant

    def kubelet_restarted(self) -> None:
        """The kubelet takes up all pods that it finds in one batch, the oldest first."""
        self._order += 1
        self._facts.restarted = self._order
        for bound in self._facts.pods.values():
            bound.turn = (0, 0, bound.pod.created, bound.pod.uid)

    def wants_write(self, now_s: float) -> bool:
        """The kubelet should be made to clean its book and to write it: it has entries of pods that ended."""
        return release.stale(self._facts, now_s)

    # The API server.

    def remember(self, holds: Mapping[str, Units | None]) -> None:
        """Take the own Node's `holds` of before this daemon; must come before the first list of pods."""
        self._facts.remembered = dict(holds)

    def pods_synced(self, pods: Iterable[Pod], mark: Mark) -> None:
        """Take all pods with our resource bound to this node, as of a list that began at `mark`.

        Known pods that it lacks are gone, except those first seen after the mark. It is believed also with
        lower versions than those known: then etcd was restored from an older copy.
        """
        facts, at = self._facts, self.mark(mark.at_s)
        first = facts.view is None
        present = set()
        for pod in pods:
            present.add(pod.uid)
            self._update(pod, at, first=first, listed=True)
        for bound in facts.pods.values():
            if bound.pod.uid not in present and bound.seen.order <= mark.order:
                bound.gone = bound.gone or at
        if facts.view is None or mark.order > facts.view.order:
            facts.view = mark
        for uid in facts.held.keys() | facts.remembered.keys():
            held = facts.held.get(uid)
            if uid not in facts.pods and (held is None or held.since.order < mark.order):
                facts.gone.setdefault(uid, at)
        self.settle(mark.at_s)

    def pod_changed(self, pod: Pod, now_s: float) -> None:
        """Take a pod that was bound, or changed; states older than the known one are ignored."""
        self._update(pod, self.mark(now_s), first=False, listed=False)
        self.settle(now_s)

    def pod_gone(self, uid: str, now_s: float) -> None:
        """Take the deletion of a pod; an unknown UID is ignored."""
        bound = next((bound for bound in self._facts.pods.values() if bound.pod.uid == uid), None)
        if bound is not None and bound.gone is None:
            bound.gone = self.mark(now_s)
        self.settle(now_s)

    def _update(self, pod: Pod, at: Mark, *, first: bool, listed: bool) -> None:
        facts, key = self._facts, pod.key
        bound = facts.pods.get(key)
        late = bound is not None and pod.version < bound.pod.version and not listed
        if late or (pod.uid in self._expired and not listed):
            return
        if pod.terminal and bound is None and key not in facts.held and pod.uid not in facts.remembered:
            return  # its charge has ended
        if pod.request.percent:
            pod = replace(pod, sizes={uuid: card.size_units for uuid, card in facts.cards.items()})
        facts.gone.pop(key, None)
        if bound is None or bound.pod.uid != pod.uid:
            # Before the kubelet heard of us it took its pods by age; later ones as they are bound.
            turn = (0, 0, pod.created, pod.uid) if first else (1, pod.version, pod.created, pod.uid)
            bound = facts.pods[key] = BoundPod(pod, at, turn)
        bound.pod = pod
        if pod.uid in facts.remembered and key != pod.uid:
            facts.remembered[key] = facts.remembered.pop(pod.uid)
        if pod.ran:
            facts.lived.add(key)
        bound.admitted |= pod.admitted or key in facts.remembered
        if pod.terminal and bound.gone is None:
            bound.gone = at

    # The cgroups.

    def doubtful(self) -> frozenset[str]:
        """UIDs whose cgroups are to be looked for: of pods that are over, and of those not seen to run."""
        facts = self._facts
        over = {uid for uid in charges.charged_uids(facts) if release.over_since(facts, uid) is not None}
        return frozenset(over | {uid for uid, bound in facts.pods.items() if uid not in facts.lived})

    def looked(self, uids: Collection[str], alive: Collection[str], mark: Mark) -> None:
        """Take a look at the cgroups of `uids` that began at `mark` and found `alive`."""
        facts = self._facts
        for uid in uids:
            if uid not in alive:
                facts.deaths[uid] = mark
                continue
            facts.deaths.pop(uid, None)
            facts.lived.add(uid)
            if uid in facts.pods:
                facts.pods[uid].admitted = True
        self.settle(mark.at_s)

    def settle(self, now_s: float) -> None:
        """End every charge that ends by now, and forget pods of which nothing can come any more."""
        facts = self._facts
        for uid in release.releasable(facts):
            facts.held.pop(uid, None)
            facts.remembered.pop(uid, None)
            self._forget(uid)
        charged = charges.charged_uids(facts)
        for uid in [uid for uid, bound in facts.pods.items() if not bound.live and uid not in charged]:
            if not release.waits_its_turn(facts, uid, now_s):
                self._forget(uid)
        kept = charged | facts.pods.keys()
        facts.gone = {uid: since for uid, since in facts.gone.items() if uid in charged}
        facts.lived &= kept
        facts.unlisted = {uid: since for uid, since in facts.unlisted.items() if uid in charged}
        facts.deaths = {uid: death for uid, death in facts.deaths.items() if uid in kept}
        facts.grants = [
            grant
            for grant in facts.grants
            if grant.writes < release.WRITES or now_s < grant.at.at_s + release.LOST_GRANT_S
        ]

    def _forget(self, uid: str) -> None:
        bound = self._facts.pods.pop(uid, None)
        if bound is not None:
            self._expired.append(bound.pod.uid)

    # What can be asked.

    @property
    def complete(self) -> bool:
        """The book has been read and pods have been listed since start: the words may be published."""
        return self._book_read and self._facts.view is not None

    def wants_view(self) -> bool:
        """Something waits for a list of pods that begins now: the book shows a pod that nobody knows."""
        return choice.is_behind(self._facts)

    def in_flight(self) -> bool:
        """Some pod is on its way from Allocate to `holds`."""
        facts = self._facts
        return bool(facts.grants) or any(
            bound.live and uid in facts.held and not charges.complete(facts, bound)
            for uid, bound in facts.pods.items()
        )

    def promised(self) -> Units:
        """Units by card that containers hold, never more than the card has."""
        charged = charges.charged(self._facts)
        return {uuid: min(units, self._facts.cards[uuid].size_units) for uuid, units in charged.items()}

    def reserved(self) -> Units:
        """Units by card that bound pods will take where the scheduler does not count them."""
        return places.reserved(self._facts)

    def used(self) -> tuple[int, ...]:
        """Units of each card in word order as published."""
        return charges.used(self._facts, self.reserved())

    def promises(self) -> dict[str, Units]:
        """Units by card and UID that pods hold."""
        shares: dict[str, Units] = {uuid: {} for uuid in self._facts.cards}
        for uid in charges.charged_uids(self._facts):
            for uuid, count in charges.of_pod(self._facts, uid).items():
                shares[uuid][uid] = count
        return shares

    def holds(self) -> dict[str, Units]:
        """Units by card of the pods whose units `used` contains, by UID of the API."""
        return charges.holds(self._facts)

    def published_holds(self) -> dict[str, dict[int, int]]:
        """The same by the card's position in the words."""
        position = {uuid: number for number, uuid in enumerate(self._facts.cards)}
        return {
            uid: {position[uuid]: count for uuid, count in units.items() if count}
            for uid, units in self.holds().items()
        }

    def unsettled(self) -> bool:
        """Something ends without any event: a pod that is over is charged, or an Allocate not in the book."""
        return release.unsettled(self._facts)

    def unheld(self) -> frozenset[str]:
        """UIDs of bound, unfinished pods that `used` does not contain yet."""
        return frozenset(
            bound.pod.uid
            for bound in self._facts.pods.values()
            if bound.live and not charges.complete(self._facts, bound)
        )

    def allocations(self) -> dict[str, Assignment]:
        """What the containers of held, unfinished pods got, by UID; without pods whose cards are unknown."""
        found = {
            bound.pod.uid: explain.allocation(self._facts, bound)
            for bound in self._facts.pods.values()
            if bound.live and not self._facts.missing(bound)
        }
        return {uid: assignment for uid, assignment in found.items() if assignment is not None}

    def explain(self) -> dict[str, Any]:
        """Everything of interest to a person, as JSON values."""
        return explain.explain(self._facts)
