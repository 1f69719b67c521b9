"""The node's accounts: takes what happens, keeps the facts, answers by the functions on them.

Invariant: the units that the words show plus those that the scheduler assumes are never less than the units
that the kubelet holds or will hold for pods that are bound.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Literal, get_args

from allocator.cards import Card
from allocator.errors import LedgerError, shown
from allocator.ledger import charges, release
from allocator.ledger.choice import Ask
from allocator.ledger.facts import Facts
from allocator.ledger.pods import BookEntry, Pod, PodFacts, Units
from allocator.names import DEFAULT_CARD_POLICY
from allocator.request import PodRequest

Why = Literal["sick", "withheld", "cordoned", "closed", "detached"]
"""Why a card is out of use: its health, what was not promised for it, people's wish, all that it can take, a
driver that was let go."""

_SHOWN_IDS: Final = 4


class Ledger:
    """One node's accounts. Pure and synchronous: everything that happens is a call with its time in seconds.

    Args:
        cards: every card in word order, `used_units` 0.
        policy: the cluster's card policy.
    """

    def __init__(self, cards: Sequence[Card], *, policy: str = DEFAULT_CARD_POLICY) -> None:
        self._facts = Facts(policy)
        self._out: dict[Why, frozenset[str]] = dict.fromkeys(get_args(Why), frozenset())
        self.set_cards(cards)

    @property
    def facts(self) -> Facts:
        """What is known; to be read only."""
        return self._facts

    # Cards.

    @property
    def installed(self) -> tuple[Card, ...]:
        """Every card in word order as it is without pods: `used_units` 0."""
        return tuple(self._facts.cards.values())

    def cards(self) -> tuple[Card, ...]:
        """Return every card in word order, with its charged units as used ones."""
        promised = self.promised()
        return tuple(replace(card, used_units=promised[uuid]) for uuid, card in self._facts.cards.items())

    def set_cards(self, cards: Sequence[Card]) -> dict[str, Units]:
        """Take another list of cards while pods run; see `Facts.install`.

        Returns:
            Units by UID that pods had on each card that is gone.

        Raises:
            LedgerError: a UUID twice.
        """
        before = self.promises()
        self._facts.install(cards)
        self.keep_out("sick", (card.uuid for card in cards if not card.healthy))
        return {uuid: pods for uuid, pods in before.items() if uuid not in self._facts.cards}

    def set_healthy(self, uuid: str, healthy: bool) -> None:
        """Take a card in or out; an unhealthy card counts as full."""
        self.keep_out("sick", self._out["sick"] - {uuid} if healthy else self._out["sick"] | {uuid})

    def keep_out(self, why: Why, uuids: Iterable[str]) -> bool:
        """Have exactly these cards out of use for one reason; they count as full.

        To the kubelet those are unhealthy that are `sick` or `withheld`; the others are only kept free of new
        pods. UUIDs that are no card of this node count once they are.

        Returns:
            Whether these are others than before.
        """
        out = self._out
        before, out[why] = out[why], frozenset(uuids)
        for uuid, card in self._facts.cards.items():
            healthy = uuid not in out["sick"] and uuid not in out["withheld"]
            cordoned = any(uuid in out[other] for other in ("cordoned", "closed", "detached"))
            if (card.healthy, card.cordoned) != (healthy, cordoned):
                self._facts.cards[uuid] = replace(card, healthy=healthy, cordoned=cordoned)
        return out[why] != before

    def is_kept_out(self, why: Why) -> bool:
        """Whether every card that has units is out of use for this reason."""
        with_units = {uuid for uuid, card in self._facts.cards.items() if card.size_units}
        return bool(self._out[why]) and with_units <= self._out[why]

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
        facts = self._facts
        book: dict[str, dict[str, frozenset[str]]] = {}
        for entry in entries:
            mine = book.setdefault(entry.uid, {})
            other = mine.get(entry.container)
            mine[entry.container] = entry.ids if other is None else entry.ids | other
        facts.read = now_s
        shown: dict[frozenset[str], tuple[str, str]] = {}
        for uid in facts.pods.keys() | book.keys():
            one, mine = self._known(uid), book.get(uid, {})
            if one.book != mine:
                shown |= {ids: (uid, c) for c, ids in mine.items() if one.book.get(c) != ids}
                over = one.over if mine or one.over is None else now_s
                facts.put(replace(one, book=mine, ids=one.ids | mine, over=over))
        for uid, one in [(uid, one) for uid, one in facts.pods.items() if one.given]:
            # What another container turns out to have was not this one's.
            given = {c: ids for c, ids in one.given.items() if shown.get(ids, (uid, c)) == (uid, c)}
            facts.put(replace(one, given=given))
            if not one.bound and not given:
                facts.drop(uid)

    def _known(self, uid: str) -> PodFacts:
        """Return what is known of a pod by the kubelet's UID: at least, now, that there is one."""
        one = self._facts.pods.get(uid)
        return one if one is not None else PodFacts(Pod(uid, "", "", PodRequest(())))

    def ask(
        self,
        available: Collection[str],
        must_include: Collection[str],
        size: int,
        taken_up: Collection[tuple[str, str]] | None = None,
    ) -> Ask:
        """Read what the kubelet asks for: exactly `size` of the available IDs, `must_include` among them.

        They are all of units or all of percent: the kubelet asks for each of its resources by itself. IDs of
        cards that this node has no more are not offered. `taken_up` are namespace and name of the pods that
        the kubelet had taken up when it asked.

        Raises:
            LedgerError: an ID that must be included is not available.
        """
        offered, fixed = frozenset(available) & self._facts.card_of.keys(), frozenset(must_include)
        if not fixed <= offered:
            raise LedgerError(
                f"must_include has {shown(min(fixed - offered))}: allowed are available IDs of this node"
            )
        percent = not self._facts.shares.isdisjoint(offered)
        return Ask(self._facts, offered, fixed, size, percent, taken_up)

    def allocate(
        self, wanted: Collection[str], now_s: float, taken_up: Collection[tuple[str, str]] | None = None
    ) -> Units:
        """Record an Allocate of IDs that a container was told to prefer.

        Where it is not known whose it is it counts as of a pod of its own, until the book shows its IDs.

        Returns:
            Units by card, in word order.

        Raises:
            LedgerError: none, or unknown ones.
        """
        facts, wanted = self._facts, frozenset(wanted)
        unknown = sorted(wanted.difference(facts.card_of))
        if not wanted or unknown:
            raise LedgerError(
                f"Allocate of {shown(unknown[:_SHOWN_IDS])}: allowed are IDs of this node's cards"
            )
        found = None if taken_up is None else self.ask(wanted, (), len(wanted), taken_up).whose()
        nobody = self._known(f"allocate {now_s} {min(wanted)}")
        one, name = (found[0], found[1].name) if found else (nobody, "")
        # What the container had before counts no more: the kubelet had lost it, and it does not run. Nor does
        # what another one had before, if this one is given of it: that one asks too, or runs beside this one.
        kept = {other: had for other, had in one.ids.items() if other in one.has or had.isdisjoint(wanted)}
        ids = {other: had for other, had in kept.items() if other != name}
        facts.put(replace(one, ids=ids, given=one.given | {name: wanted}))
        return facts.by_card(wanted)

    def kubelet_restarted(self) -> None:
        """What the kubelet had not written down it has forgotten; containers may run with it."""
        for one in [one for one in self._facts.pods.values() if one.given]:
            self._facts.put(replace(one, given={}, ids=one.ids | one.given))

    def wants_write(self) -> bool:
        """The kubelet should be made to clean its book and to write it: it has entries of pods that ended."""
        return any(release.is_stale(one) for one in self._facts.pods.values())

    # The API server.

    def remember(self, holds: Mapping[str, Units | None]) -> None:
        """Take the own Node's `holds` of before this daemon; must come before the first list of pods.

        Where they do not say on which cards a pod is, it counts on all of them.
        """
        sizes = {uuid: card.size_units for uuid, card in self._facts.cards.items()}
        for uid, units in holds.items():
            one, said = self._known(uid), sizes if units is None else units
            self._facts.put(replace(one, remembered={uuid: count for uuid, count in said.items() if count}))

    def pods_synced(self, pods: Iterable[Pod], began_s: float, now_s: float) -> None:
        """Take all pods with our resource bound to this node, by a list that was asked for at `began_s`.

        Known pods that it lacks are gone. It is believed also with lower versions than those known: then etcd
        was restored from an older copy.
        """
        facts = self._facts
        present = set()
        for pod in pods:
            present.add(pod.key)
            self._update(pod, now_s)
        for uid, one in list(facts.pods.items()):
            # A list that is older than the book says nothing of pods that only the book has shown.
            if uid not in present and (one.bound or facts.read is None or facts.read <= began_s):
                facts.put(replace(one, over=now_s if one.over is None else one.over))
        facts.view = began_s
        facts.lists += 1

    def pod_changed(self, pod: Pod, now_s: float) -> None:
        """Take a pod that was bound, or changed."""
        self._update(pod, now_s)

    def pod_gone(self, uid: str, now_s: float) -> None:
        """Take the deletion of a pod; an unknown UID is ignored."""
        for one in [one for one in self._facts.pods.values() if one.bound and one.pod.uid == uid]:
            self._facts.put(replace(one, over=now_s))

    def _update(self, pod: Pod, now_s: float) -> None:
        facts = self._facts
        words = facts.drop(pod.uid) if pod.key != pod.uid else None
        if pod.terminal and words is None and pod.key not in facts.pods:
            return  # its charge has ended
        one = self._known(pod.key)
        if words is not None:
            one = replace(one, remembered=words.remembered)
        if not one.bound or one.pod.uid != pod.uid:
            one = replace(one, bound=True, over=None, ids=one.ids | one.given, given={})
        one = replace(
            one,
            pod=facts.sized(pod),
            ran=one.ran or pod.ran,
            admitted=one.admitted or pod.admitted or one.remembered is not None,
            over=(now_s if one.over is None else one.over) if pod.terminal else None,
        )
        facts.put(one)

    # The cgroups.

    def doubtful(self) -> frozenset[str]:
        """UIDs whose cgroups are to be looked for: of pods that are over, and of those not seen to run."""
        pods = self._facts.pods.items()
        return frozenset(uid for uid, one in pods if one.over is not None or (one.bound and not one.ran))

    def looked(self, uids: Collection[str], alive: Collection[str], began_s: float) -> None:
        """Take a look at the cgroups of `uids` that began at `began_s` and found `alive`."""
        for uid in self._facts.pods.keys() & frozenset(uids):
            one = self._facts.pods[uid]
            runs = uid in alive
            self._facts.put(replace(one, ran=one.ran or runs, death=None if runs else began_s))
            if release.is_over(self._facts.pods[uid]):
                self._facts.drop(uid)

    # What can be asked.

    @property
    def complete(self) -> bool:
        """The book has been read and pods have been listed since start: the words may be published."""
        return self._facts.read is not None and self._facts.view is not None

    @property
    def is_empty(self) -> bool:
        """Whether it is certain that no pod has, or is about to get, anything of any card."""
        on_their_way = self.in_flight() or self.unheld()
        return self.complete and not on_their_way and not any(charges.charged(self._facts).values())

    def in_flight(self) -> bool:
        """Some pod is on its way from Allocate to `holds`."""
        return any(one.units and not one.complete for one in self._facts.pods.values())

    def promised(self) -> Units:
        """Units by card that containers hold, never more than the card has."""
        charged = charges.charged(self._facts)
        return {uuid: min(units, self._facts.cards[uuid].size_units) for uuid, units in charged.items()}

    def used(self) -> tuple[int, ...]:
        """Units of each card in word order as published."""
        return charges.used(self._facts)

    def promises(self) -> dict[str, Units]:
        """Units by card and UID that pods hold."""
        shares: dict[str, Units] = {uuid: {} for uuid in self._facts.cards}
        for uid, one in self._facts.pods.items():
            for uuid, count in charges.of_pod(self._facts, one).items():
                shares[uuid][uid] = count
        return shares

    def published_holds(self) -> dict[str, dict[int, int]]:
        """Units of the pods that `used` contains, by UID of the API and the card's position in the words."""
        position = {uuid: number for number, uuid in enumerate(self._facts.cards)}
        return {
            uid: {position[uuid]: count for uuid, count in units.items()}
            for uid, units in charges.holds(self._facts).items()
        }

    def unsettled(self) -> bool:
        """Something changes without any event: a pod is over or unknown."""
        return any(not one.live for one in self._facts.pods.values())

    def unheld(self) -> frozenset[str]:
        """UIDs of bound, unfinished pods that `used` does not contain yet."""
        pods = self._facts.pods.values()
        return frozenset(one.pod.uid for one in pods if one.live and not one.complete)
