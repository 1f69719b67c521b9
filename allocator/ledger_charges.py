"""What every card is charged with."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from allocator.cards import Card
from allocator.ledger_book import Holding, Slot, Tracked, add
from allocator.ledger_owners import Owners
from allocator.policy import choose
from allocator.request import Demand, PodRequest


class Charges(Owners):
    """Rules that turn holdings and pods into units by card. Each may only add."""

    def promised(self) -> dict[str, int]:
        """Units by card that containers hold: IDs, each once, and what is held although no ID is known."""
        total = dict.fromkeys(self._cards, 0)
        add(total, self._by_card(self._known()))
        add(total, self._rule_ids_given_out_twice())
        nameless = self._rule_admitted_pods_hold_their_request()
        withheld = self._rule_withheld_is_charged()
        for uuid in total:
            total[uuid] += max(nameless.get(uuid, 0), withheld.get(uuid, 0))
        add(total, self._rule_leftover())
        return {uuid: min(units, self._cards[uuid].size_units) for uuid, units in total.items()}

    def serving(self, over: Collection[str] = ()) -> dict[str, int]:
        """Units by card that unfinished pods hold: `promised` without what finished pods leave behind.

        The kubelet may offer even these, once it has lost its checkpoint.

        Args:
            over: IDs that are thought to be left behind too where nobody is known to have them.
        """
        live: set[str] = set()
        for holding in self._holdings:
            tracked = self._pods.get(holding.slot.uid) if holding.slot is not None else None
            if holding.slot is None:
                live |= holding.ids.difference(over)
            elif tracked is not None and tracked.live:
                live |= holding.ids
        total = self._by_card(live)
        for tracked in self._live():
            if tracked.admitted:
                add(total, self._shortfall(tracked)[0])
        return total

    def reserved(self) -> dict[str, int]:
        """Units by card that bound pods will take where the scheduler does not expect them.

        The scheduler counts a bound pod at its `assigned` cards until the words hold it. When another pod got
        those cards, the words must say where this one goes instead, or its place would be given away.
        """
        return self._rule_reserve(self.promised())

    def _rule_reserve(self, promised: Mapping[str, int]) -> dict[str, int]:
        expected = self._expected(promised)
        assumed = self._assumed()
        return {
            uuid: max(0, min(units - assumed.get(uuid, 0), self._cards[uuid].size_units - promised[uuid]))
            for uuid, units in expected.items()
        }

    def used(self) -> tuple[int, ...]:
        """Units of each card in word order as published: never more than its size."""
        promised = self.promised()
        reserved = self._rule_reserve(promised)
        return tuple(
            card.size_units
            if not card.healthy or card.cordoned
            else min(
                card.size_units,
                promised[uuid] + reserved.get(uuid, 0) + self._pressure.get(uuid, 0),
            )
            for uuid, card in self._cards.items()
        )

    def _rule_admitted_pods_hold_their_request(self) -> dict[str, int]:
        """A pod that was admitted holds what it asked for until it has ended, whether IDs are known or not.

        Hidden so are the larger part of ordinary init containers, everything after the kubelet lost its
        checkpoint, and what this daemon forgot when it was restarted.
        """
        total: dict[str, int] = {}
        for tracked in self._pods.values():
            if tracked.admitted and not tracked.ended:
                add(total, self._shortfall(tracked)[0])
        return total

    def _rule_ids_given_out_twice(self) -> dict[str, int]:
        """IDs proven to belong to several living pods count for each.

        A kubelet that lost its checkpoint hands out again what containers run with.
        """
        proven = []
        for holding in self._holdings:
            if holding.certain and holding.slot is not None:
                tracked = self._pods.get(holding.slot.uid)
                if tracked is not None and tracked.live:
                    proven.append((holding.slot.uid, holding.ids))
        if sum(len(ids) for _, ids in proven) == len(set().union(*(ids for _, ids in proven))):
            return {}
        owners: dict[str, set[str]] = {}
        for uid, ids in proven:
            for text in ids:
                owners.setdefault(text, set()).add(uid)
        total: dict[str, int] = {}
        for text, uids in owners.items():
            if len(uids) > 1:
                add(total, {self._card_of[text]: len(uids) - 1})
        return total

    def _rule_withheld_is_charged(self) -> dict[str, int]:
        """IDs that the kubelet did not offer are in use, known or not."""
        return self._by_card(self._withheld.keys() - self._known())

    def _rule_leftover(self) -> dict[str, int]:
        """What the words contained before the restart for pods that the API server has no more.

        That is all but what remembered pods seem to have had: a pod that may be on any card explains nothing.
        """
        if not self._strangers:
            return {}
        explained: dict[str, int] = {}
        for units in self._explained.values():
            add(explained, units)
        return {uuid: max(0, units - explained.get(uuid, 0)) for uuid, units in self._words_before.items()}

    def _shortfall(self, tracked: Tracked) -> tuple[dict[str, int], bool]:
        """Units by card that an admitted pod must hold beyond its known IDs, and whether the card is unknown.

        With an unknown card they count on every card that could have it. Only IDs that the pod really runs
        with are set against its request, see `_runs_with`.
        """
        pod = tracked.pod
        known_from_record = self._here(pod.allocation_costs)
        units: dict[str, int] = {}
        vague = False
        if pod.request.shared:
            effective = pod.request.effective_units
            mine = [h for h in self._owned(pod.uid) if self._runs_with(tracked, h, known_from_record)]
            got = self._by_card(set().union(*(h.ids for h in mine)))
            cards = list(got) or list(known_from_record or {})
            vague = not cards
            for uuid in cards or self._eligible(pod.request, effective):
                units[uuid] = max(0, effective - sum(got.values()))
            return units, vague
        for demand in pod.request.demands:
            name = demand.containers[0]
            if any(
                self._runs_with(tracked, h, known_from_record) for h in self._of_slot(Slot(pod.uid, name))
            ):
                continue
            if known_from_record is not None and pod.allocation is not None:
                add(units, dict(pod.allocation[name]))
                continue
            vague = True
            everywhere = self._eligible(pod.request, demand.units_per_card)
            add(units, dict.fromkeys(everywhere, demand.units_per_card))
        return units, vague

    def _runs_with(self, tracked: Tracked, holding: Holding, record: Mapping[str, int] | None) -> bool:
        """Whether an admitted pod runs with these IDs: by proof, or by a guess that nothing contradicts.

        What was allocated after the pod was seen started, or on other cards than the node wrote down for it,
        belongs to another pod as long as the list does not prove the contrary.
        """
        if holding.certain:
            return True
        before = tracked.started_order is not None and holding.order < tracked.started_order
        return before and (record is None or self._by_card(holding.ids).keys() <= record.keys())

    def _assumed(self) -> dict[str, int]:
        """What the scheduler adds to the words by card: bound pods that they do not hold."""
        total: dict[str, int] = {}
        for tracked in self._live():
            if tracked.held:
                continue
            request = tracked.pod.request
            costs = self._here(tracked.pod.assigned_costs)
            if costs is not None:
                add(total, costs)
                continue
            for demand in request.demands:
                eligible = self._eligible(request, demand.units_per_card)
                add(total, dict.fromkeys(eligible, demand.units_per_card))
        return total

    def _expected(self, promised: Mapping[str, int], without: Slot | None = None) -> dict[str, int]:
        """Units by card that waiting pods will take, each where it is going to be served."""
        total: dict[str, int] = {}
        for tracked, demand, cards, units in self._destinations(promised):
            if (
                without is None
                or tracked.pod.uid != without.uid
                or without.container not in demand.containers
            ):
                add(total, dict.fromkeys(cards, units))
        return total

    def _destinations(
        self, promised: Mapping[str, int]
    ) -> Iterator[tuple[Tracked, Demand, tuple[str, ...], int]]:
        """Yield what is not served yet: its cards and the units still to come on each, oldest pod first.

        A target that has no room any more is replaced by what the card policy makes of the room left.
        Without any, the demand counts on every card that could take it.
        """
        taken = dict(promised)
        stranded = []
        for tracked, position, demand in self._waiting_demands():
            got = self._by_card(self._ids_of(tracked, demand))
            if got and not tracked.pod.request.shared:
                continue
            units = demand.units_per_card - sum(got.values())
            target = tuple(got) or tracked.targets[position]
            if units <= 0:
                continue
            if target is not None and all(self._has_room(uuid, taken, units) for uuid in target):
                add(taken, dict.fromkeys(target, units))
                yield tracked, demand, target, units
            else:
                stranded.append((tracked, demand, units))
        for tracked, demand, units in stranded:
            cards = self._detour(tracked.pod.request, demand, units, taken)
            add(taken, dict.fromkeys(cards or (), units))
            everywhere = tuple(self._eligible(tracked.pod.request, demand.units_per_card))
            yield tracked, demand, cards or everywhere, units

    def _waiting_demands(self) -> Iterator[tuple[Tracked, int, Demand]]:
        """Demands of living pods that were not seen admitted, oldest pod first."""
        for tracked in self._live():
            if not tracked.admitted:
                for position, demand in enumerate(tracked.pod.request.demands):
                    yield tracked, position, demand

    def _has_room(self, uuid: str, taken: Mapping[str, int], units: int) -> bool:
        card = self._cards[uuid]
        return card.healthy and taken.get(uuid, 0) + units <= card.size_units

    def _detour(
        self, request: PodRequest, demand: Demand, units: int, taken: Mapping[str, int]
    ) -> tuple[str, ...] | None:
        """Choose other cards by the policy that the scheduler uses."""
        cards = self._filled({uuid: taken.get(uuid, 0) for uuid in self._cards})
        return self._choose(cards, request, units, demand.cards)

    def _filled(self, used: Mapping[str, int]) -> list[Card]:
        """The cards with these units used on each."""
        return [replace(card, used_units=max(0, used[uuid])) for uuid, card in self._cards.items()]

    def _choose(
        self, cards: list[Card], request: PodRequest, units: int, count: int
    ) -> tuple[str, ...] | None:
        chosen = choose(cards, units, count, request.card_policy or self._policy, request.selector)
        return None if chosen is None else tuple(cards[position].uuid for position in chosen)
