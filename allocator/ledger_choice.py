"""Which device IDs a container gets, and what is noted when the kubelet hands them out."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from allocator.errors import LedgerError, shown
from allocator.ledger_book import Grant, Holding, Mark, Slot, Tracked, demand_of
from allocator.ledger_charges import Charges
from allocator.request import ContainerRequest, Demand, PodRequest

_CUT = 4


class Choice(Charges):
    """Rules for GetPreferredAllocation and Allocate, which never say what pod they are about."""

    def expects(self, size: int, available: Collection[str], must_include: Collection[str] = ()) -> bool:
        """Tell whether a waiting pod is known that the kubelet may be asking for.

        False means that the view of pods is behind the kubelet's, or the pod is not in the API: wait a little
        for the view before answering `preferred`. A pod that was admitted before does not count: the kubelet
        asks for it again only after it has lost its checkpoint. Nor does one that may be over.
        """
        slot = self._seems_to_ask(size, available, frozenset(must_include))
        if slot is None or self._pods[slot.uid].admitted:
            return False
        return slot not in self._doubted and not self._comes_later(slot)

    def displaces(self, size: int, available: Collection[str], must_include: Collection[str] = ()) -> bool:
        """Tell whether the pod that seems to ask cannot get the cards where it is expected.

        Where it goes instead depends on all other pods: wait a little for the view of them.
        """
        slot = self._seems_to_ask(size, available, frozenset(must_include))
        if slot is None or must_include:
            return False
        target, each = self._destined(slot, size)
        return target is not None and not _has_room(self._clean(frozenset(available)), target, each)

    def _seems_to_ask(self, size: int, available: Collection[str], fixed: frozenset[str]) -> Slot | None:
        self._doubt_offered_guesses(frozenset(available) - fixed)
        return self._asking(size, fixed)

    def preferred(
        self, available: Collection[str], must_include: Collection[str], size: int, now_s: float
    ) -> tuple[str, ...]:
        """Answer GetPreferredAllocation: exactly `size` of the available IDs, `must_include` among them.

        The answer is for the oldest pod that waits for a container of that size: on its cards if there is
        room, else where the card policy says. A container that nobody knows gets one card.

        Raises:
            LedgerError: no card (or not enough cards) can take the container.
        """
        offered = frozenset(available) & self._card_of.keys()
        fixed = frozenset(must_include) & offered
        self._observe_offer(offered | fixed, now_s)
        self._doubt_offered_guesses(offered - fixed)
        slot = self._asking(size, fixed)
        cards = self._cards_for(slot, offered, fixed, size)
        answer = self._pick(cards, offered, fixed, size)
        self._answers.append((frozenset(answer), slot))
        return answer

    def allocate(self, ids: Collection[str], now_s: float) -> Grant:
        """Record an Allocate. IDs that are already in the ledger are taken: the kubelet decides.

        Raises:
            LedgerError: no ID, an unknown one, one of an unhealthy card, or more cards than were offered.
        """
        wanted = frozenset(ids)
        unknown = sorted(wanted - self._card_of.keys())
        if not wanted or unknown:
            raise LedgerError(f"Allocate of {shown(unknown[:_CUT])}: allowed are IDs of this node's cards")
        counts = self._by_card(wanted)
        sick = [uuid for uuid in counts if not self._cards[uuid].healthy]
        if sick:
            raise LedgerError(f"Allocate on {shown(sick)}: allowed are IDs of healthy cards")
        answered = self._answered(wanted)
        if len(counts) > 1 and answered is None:
            raise LedgerError(
                f"Allocate of {len(wanted)} units on {len(counts)} cards {shown(sorted(counts))}: "
                "allowed is one card, or what GetPreferredAllocation just answered"
            )
        slot = answered[0] if answered is not None else None
        if slot is None or self._of_slot(slot):
            # Nobody was known, or since the question a list has shown that pod with other IDs.
            slot = self._taking(wanted)
        self._holdings.append(Holding(wanted, self._tick(), now_s, slot))
        for text in wanted:
            self._withheld.pop(text, None)
        return Grant(tuple((uuid, counts[uuid]) for uuid in self._cards if uuid in counts))

    def _answered(self, ids: frozenset[str]) -> tuple[Slot | None] | None:
        """Find the recent answer that this Allocate follows; each serves once."""
        for position in reversed(range(len(self._answers))):
            answer, slot = self._answers[position]
            if answer == ids:
                del self._answers[position]
                return (slot,)
        return None

    def _observe_offer(self, offered: frozenset[str], now_s: float) -> None:
        """What the kubelet does not offer, it has given away, whether we know of it or not."""
        mark = Mark(self._tick(), now_s)
        known = self._known()
        for text, uuid in self._card_of.items():
            published = self._cards[uuid].healthy and now_s >= self._published_at_s[uuid] + self._grace_s
            if text in offered or not published:
                self._withheld.pop(text, None)
            elif text not in known:
                self._withheld[text] = mark

    def _doubt_offered_guesses(self, offered: frozenset[str]) -> None:
        """An Allocate whose IDs are on offer again serves nobody any more.

        Either it was another pod's, and the pod it seemed to be for still waits; or that pod is over and the
        API server does not say so yet. Both are possible, so others are served first. Unless a pod that is
        known to be over seems to have got what is not on offer: then the two were taken for each other.
        """
        for holding in self._holdings:
            slot = holding.slot or holding.maybe
            if slot is None or holding.key is not None or holding.certain or not holding.ids <= offered:
                continue
            tracked = self._pods.get(slot.uid)
            if tracked is not None and tracked.admitted:
                continue
            other = self._kept_by_the_dead(len(holding.ids), offered) if tracked and tracked.live else None
            if other is not None:
                holding.slot, other.slot = other.slot, slot
                self._doubted.discard(slot)
            elif holding.slot is not None:
                holding.slot, holding.maybe = None, slot
                self._doubted.add(slot)

    def _kept_by_the_dead(self, size: int, offered: frozenset[str]) -> Holding | None:
        """Find IDs that a pod seems to have which is gone, though the kubelet does not offer them."""
        for holding in self._holdings:
            if holding.slot is None or holding.certain or holding.key is not None or len(holding.ids) != size:
                continue
            tracked = self._pods.get(holding.slot.uid)
            if tracked is not None and not tracked.live and holding.ids.isdisjoint(offered):
                return holding
        return None

    def _asking(self, size: int, fixed: frozenset[str]) -> Slot | None:
        """Guess whose container the kubelet asks for.

        IDs that must be included were the same pod's. Else unadmitted pods with a container of that size that
        has nothing yet: first the pod that got the last IDs, for the kubelet admits one at a time, then the
        oldest. Behind them pods that are gone, of which the kubelet may not have heard, and containers whose
        turn comes later, then pods that may be over, at last those that were admitted and have lost what they
        had.
        """
        begun = self._begun()
        waiting = sorted(
            self._open_slots(size, admitted=False),
            key=lambda slot: (slot in self._doubted, self._comes_later(slot), slot.uid != begun),
        )
        if fixed:
            mine = {h.slot.uid for h in self._holdings if h.slot is not None and h.ids & fixed}
            reused = [slot for slot in waiting if slot.uid in mine]
            if reused:
                return reused[0]
        if waiting and self._comes_later(waiting[0]):
            return self._asked_by_the_dead(size) or waiting[0]
        return next(iter(waiting), None) or next(self._open_slots(size, admitted=True), None)

    def _asked_by_the_dead(self, size: int) -> Slot | None:
        """Find a pod that is gone, but perhaps not for the kubelet yet, whose turn it would be."""
        gone = [t for t in self._pods.values() if not t.live and not t.ended and not t.admitted]
        for tracked in sorted(gone, key=lambda tracked: tracked.age):
            unserved = self._unserved(tracked)
            if unserved and unserved[0].units == size:
                return Slot(tracked.pod.uid, unserved[0].name)
        return None

    def _begun(self) -> str | None:
        """UID of the pod that seems to have got the last IDs."""
        last = max(self._holdings, key=lambda holding: holding.order, default=None)
        return last.slot.uid if last is not None and last.slot is not None else None

    def _comes_later(self, slot: Slot) -> bool:
        """Whether another container of the pod is to be served before this one."""
        return self._unserved(self._pods[slot.uid])[0].name != slot.container

    def _taking(self, ids: frozenset[str]) -> Slot | None:
        """Guess who gets these IDs: of those that may be asking rather one expected on their cards."""
        guess = self._asking(len(ids), ids)
        if self._known().isdisjoint(ids):
            cards = set(self._by_card(ids))
            for slot in self._open_slots(len(ids), admitted=False):
                found = self._demand(slot)
                if found is not None and cards == set(found[0].targets[found[1]] or ()):
                    return slot
        return guess

    def _open_slots(self, size: int, *, admitted: bool) -> Iterator[Slot]:
        """Yield containers of that size that have nothing yet, of the oldest pod first."""
        for tracked in self._live():
            if tracked.admitted is admitted:
                for container in self._unserved(tracked):
                    if container.units == size:
                        yield Slot(tracked.pod.uid, container.name)

    def _unserved(self, tracked: Tracked) -> Sequence[ContainerRequest]:
        """Containers that are still to be served, in the kubelet's order.

        Those before one that has something are served, though we may not know with what.
        """
        containers = tracked.pod.request.containers
        served = 0
        for position, container in enumerate(containers, start=1):
            if self._of_slot(Slot(tracked.pod.uid, container.name)):
                served = position
        return containers[served:]

    def _cards_for(
        self, slot: Slot | None, offered: frozenset[str], fixed: frozenset[str], size: int
    ) -> tuple[str, ...]:
        """Choose the cards of one answer."""
        if fixed:
            cards = tuple(self._by_card(fixed))
            if len(cards) > 1 or self._by_card(offered)[cards[0]] < size:
                raise LedgerError(
                    f"container of {size} units that must stay on {shown(list(cards))}: "
                    f"allowed is what one card has free, {shown(self._by_card(offered))}"
                )
            return cards
        tracked = self._pods[slot.uid] if slot is not None else None
        if slot is None or tracked is None:
            return self._fallback(PodRequest(()), Demand((), size, 1), offered, size)
        demand = demand_of(tracked.pod.request, slot.container)[1]
        target, each = self._destined(slot, size)
        if target is not None and _has_room(self._clean(offered), target, each):
            return target
        return self._fallback(tracked.pod.request, demand, offered, each, slot, target)

    def _destined(self, slot: Slot, size: int) -> tuple[tuple[str, ...] | None, int]:
        """Find where a container of `size` units is to be served, and how many are to come from each card.

        That is where its demand has something already, else where it is expected; None where nobody said.
        """
        tracked = self._pods[slot.uid]
        position, demand = demand_of(tracked.pod.request, slot.container)
        got = tuple(self._by_card(self._ids_of(tracked, demand)))
        return got or tracked.targets[position], size // demand.cards

    def _clean(self, offered: frozenset[str]) -> dict[str, int]:
        """Units by card that the kubelet offers and that no unfinished pod may be using."""
        return self._offered_beyond(self.serving(), offered)

    def _spare(self, offered: frozenset[str]) -> dict[str, int]:
        """The same, but what is on offer and belongs to nobody known is thought to be over."""
        return self._offered_beyond(self.serving(over=offered), offered)

    def _offered_beyond(self, serving: Mapping[str, int], offered: frozenset[str]) -> dict[str, int]:
        free = self._by_card(offered & self._card_of.keys())
        return {
            uuid: min(free.get(uuid, 0), card.size_units - serving.get(uuid, 0))
            for uuid, card in self._cards.items()
        }

    def _fallback(
        self,
        request: PodRequest,
        demand: Demand,
        offered: frozenset[str],
        each: int,
        slot: Slot | None = None,
        target: tuple[str, ...] | None = None,
    ) -> tuple[str, ...]:
        """Choose by the card policy, in rounds that respect less and less.

        First cards where nothing is promised, with or without known IDs, others use nothing and no bound pod
        is expected; then without the others' use. Then the target, though something of nobody known may
        linger there; then cards where finished pods may have left something, then where they are known to.
        Then nobody knows better than the scheduler: the target again; then where only bound pods are
        expected, and whatever the kubelet offers. At last the same for the `each` units of this container
        alone, without those that are to share its card.
        """
        free = self._by_card(offered)
        unused = self._by_card(offered - self._known())
        promised = self.promised()
        expected = self._expected(promised, slot)
        left = {
            u: min(unused.get(u, 0), card.size_units - promised[u]) - expected.get(u, 0)
            for u, card in self._cards.items()
        }
        clean = self._clean(offered)
        spare = self._spare(offered)
        if target is not None and not _has_room(free, target, each):
            target = None
        careful = ({u: left[u] - self._pressure.get(u, 0) for u in self._cards}, left)
        lingering = (
            {u: min(unused.get(u, 0), clean[u]) - expected.get(u, 0) for u in self._cards},
            {u: spare[u] - expected.get(u, 0) for u in self._cards},
        )
        bold = (
            {u: free.get(u, 0) - expected.get(u, 0) for u in self._cards},
            {u: free.get(u, 0) for u in self._cards},
        )
        chosen = (
            self._first_fit(careful, request, demand)
            or (target if target is not None and _has_room(spare, target, each) else None)
            or self._first_fit(lingering, request, demand)
            or target
            or self._first_fit(bold, request, demand)
            or self._first_fit(careful + lingering + bold, request, replace(demand, units_per_card=each))
        )
        if chosen is None:
            raise LedgerError(
                f"no {demand.cards} card(s) with {each} free units each: the kubelet offers {shown(free)}"
            )
        return chosen

    def _first_fit(
        self, rounds: Iterable[Mapping[str, int]], request: PodRequest, demand: Demand
    ) -> tuple[str, ...] | None:
        """Choose by the card policy in the first of these maps of room by card that has enough."""
        for room in rounds:
            cards = self._filled({u: card.size_units - room[u] for u, card in self._cards.items()})
            chosen = self._choose(cards, request, demand.units_per_card, demand.cards)
            if chosen is not None:
                return chosen
        return None

    def _pick(
        self, cards: tuple[str, ...], offered: frozenset[str], fixed: frozenset[str], size: int
    ) -> tuple[str, ...]:
        """Take as many IDs on each card: those that must be in, then unused ones, in slot order."""
        known = self._known()
        each = size // len(cards)
        answer: list[str] = []
        for uuid in cards:
            mine = [text for text, card in self._card_of.items() if card == uuid and text in offered]
            mine.sort(key=lambda text: (text not in fixed, text in known))
            answer.extend(mine[:each])
        return tuple(answer)


def _has_room(room: Mapping[str, int], cards: Iterable[str], each: int) -> bool:
    return all(room.get(uuid, 0) >= each for uuid in cards)
