"""Whose are the device IDs: what Allocate does not say and the kubelet's list says by name only."""

from collections.abc import Iterable

from allocator.ledger_book import Book, Holding, Listed, Mark, Slot, Tracked, demand_of, shape
from allocator.request import ContainerRequest, Demand


class Owners(Book):
    """Rules that tie holdings to containers of pods.

    A guess is enough to choose a card, since pods of one shape are interchangeable; only proof lets a pod
    into `holds`. When a guess turns out wrong, the two pods exchange what is expected of them.
    """

    def _take_list(self, entries: Iterable[Listed], mark: Mark) -> None:
        """Note what the kubelet's list shows, and that it shows nothing else."""
        self._list_mark = mark
        for holding in self._holdings:
            holding.listed = False
        for entry in entries:
            ids = entry.ids & self._card_of.keys()
            if ids:
                self._take_entry((entry.namespace, entry.name, entry.container), ids, mark)

    def _take_entry(self, key: tuple[str, str, str], ids: frozenset[str], mark: Mark) -> None:
        holding = self._match(key, ids, mark)
        if holding is None:
            holding = Holding(ids, order=0, at_s=mark.at_s)
            self._holdings.append(holding)
        holding.key = key
        holding.listed = True
        holding.listed_order = mark.order

    def _match(self, key: tuple[str, str, str], ids: frozenset[str], mark: Mark) -> Holding | None:
        """Find the Allocate that an entry shows: the same IDs, the same name before, the newest."""
        same = [h for h in self._holdings if h.ids == ids and h.key in (None, key)]

        def fit(holding: Holding) -> tuple[bool, bool, bool, int]:
            slot = holding.slot
            tracked = self._pods.get(slot.uid) if slot is not None else None
            named = tracked is not None and (tracked.pod.namespace, tracked.pod.name) == key[:2]
            return (holding.key == key, named, holding.order <= mark.order, holding.order)

        return max(same, key=fit, default=None)

    def _settle_owners(self) -> None:
        """Draw every conclusion about owners that the newest event allows."""
        for holding in self._holdings:
            if not holding.certain and holding.key is not None:
                self._rule_name_contradicts(holding, holding.key)
                self._rule_name_suggests(holding, holding.key)
                self._rule_started_proves(holding, holding.key)
        for holding in self._holdings:
            if not holding.certain and holding.key is None:
                self._rule_reuse_proves(holding)
        for tracked in self._pods.values():
            self._rule_started_needs_a_holding(tracked)
        self._rule_exchange_targets()

    def _rule_name_contradicts(self, holding: Holding, key: tuple[str, str, str]) -> None:
        """A guess that the list shows under another name was wrong."""
        slot = holding.slot
        if slot is not None and not any(
            slot == Slot(tracked.pod.uid, key[2]) for tracked in self._named(key)
        ):
            holding.slot, holding.mistaken = None, slot

    def _rule_name_suggests(self, holding: Holding, key: tuple[str, str, str]) -> None:
        """A name suggests the living pod that has it, unless it was bound only after the Allocate.

        Even then, where no other pod of that name is known: the kubelet saw it before we did. Of an Allocate
        from before this ledger nobody knows: that pod may be served already, so others are served before it.
        """
        if holding.slot is not None:
            return
        named = self._named(key)
        for tracked in named:
            if not tracked.live:
                continue
            slot = Slot(tracked.pod.uid, key[2])
            ahead = holding.order > 0 and len(named) == 1
            if holding.order > tracked.bound_order or tracked.admitted or ahead:
                self._attach(holding, slot)
            elif holding.order == 0:
                holding.maybe = slot
                self._doubted.add(slot)

    def _rule_started_proves(self, holding: Holding, key: tuple[str, str, str]) -> None:
        """A listed name belongs to a UID once a list began after that UID was seen with a startTime.

        The list has no UIDs, and a pod of the same name may have been there before. The kubelet sets
        startTime after it has admitted this very UID, and by then it lists no older pod of the name.
        """
        for tracked in self._named(key):
            started, gone = tracked.started_order, tracked.gone_order
            if gone is not None and holding.order > gone:
                continue
            if started is not None and holding.listed_order > started:
                slot = Slot(tracked.pod.uid, key[2])
                if holding.slot != slot:
                    self._attach(holding, slot)
                holding.certain = True

    def _rule_reuse_proves(self, holding: Holding) -> None:
        """An init container's IDs belong to the pod when a proven container of the pod uses some of them.

        The kubelet hands the IDs of init containers on within a pod only. A guess that said otherwise is
        mended: nothing else could, for the list never shows these IDs. A listed name makes a better guess.
        """
        for other in self._holdings:
            if other.slot is None or not (other.certain or other.key) or not self._precedes(holding, other):
                continue
            tracked = self._pods.get(other.slot.uid)
            for container in tracked.pod.request.containers if tracked is not None else ():
                slot = Slot(other.slot.uid, container.name)
                if container.kind != "init" or container.units != len(holding.ids) or self._certain(slot):
                    continue
                rivals = [h for h in self._holdings if h.key is None and len(h.ids) == len(holding.ids)]
                newest = max((h.order for h in rivals if self._precedes(h, other)), default=0)
                if holding.order == newest:
                    if other.certain:
                        holding.slot, holding.certain = slot, True
                    elif holding.slot != slot:
                        self._attach(holding, slot)
                    return

    @staticmethod
    def _precedes(init: Holding, main: Holding) -> bool:
        """Whether `main` may have got IDs of `init` by the kubelet's reuse."""
        return init.order < main.order and not init.ids.isdisjoint(main.ids)

    def _rule_started_needs_a_holding(self, tracked: Tracked) -> None:
        """An admitted pod without anything takes over what an equal, unadmitted pod seemed to get.

        Of init containers the list never shows these IDs, so this is all there is to correct such a guess; of
        others it does so later, and the next question may come before.
        """
        if not tracked.admitted or not tracked.live or self._owned(tracked.pod.uid):
            return
        for container in tracked.pod.request.containers:
            holding = self._seemingly_anothers(container, tracked.started_order or 0)
            if holding is not None:
                self._attach(holding, Slot(tracked.pod.uid, container.name))

    def _seemingly_anothers(self, wanted: ContainerRequest, before: int) -> Holding | None:
        """Find an earlier Allocate that an unadmitted pod seems to have got for such a container."""
        for holding in self._holdings:
            tracked = self._pods.get(holding.slot.uid) if holding.slot is not None else None
            if holding.slot is None or tracked is None or tracked.admitted:
                continue
            if holding.certain or holding.key is not None or holding.order > before:
                continue
            for container in tracked.pod.request.containers:
                alike = (container.kind == "init") is (wanted.kind == "init")
                if container.name == holding.slot.container and alike and container.units == wanted.units:
                    return holding
        return None

    def _attach(self, holding: Holding, slot: Slot) -> None:
        """Give a holding to the container `slot`; what seemed to be that container's is then another's.

        Most likely the two were taken for each other.
        """
        former = holding.slot or holding.mistaken
        holding.slot, holding.mistaken = slot, None
        for other in self._holdings:
            if other is not holding and other.slot == slot and other.key is None and not other.certain:
                exchanged = former is not None and not self._of_slot(former)
                other.slot = former if exchanged and len(other.ids) == len(holding.ids) else None

    def _rule_exchange_targets(self) -> None:
        """Who got another's cards leaves it his own: the other pod will be served there.

        Otherwise the places of bound pods would no longer add up to what the scheduler counts for them.
        """
        for holding in sorted(self._holdings, key=lambda holding: holding.key is None):
            mine = self._demand(holding.slot or holding.maybe)
            if mine is None:
                continue
            tracked, position, demand = mine
            cards, target = tuple(self._by_card(holding.ids)), tracked.targets[position]
            if target is not None and set(target) == set(cards):
                continue
            # A mere guess moves nobody else: the pod may have been placed there for want of room.
            proven = holding.key is not None or tracked.admitted
            partner = self._misplaced(demand, set(cards), tracked) if proven else None
            if holding.slot is None and partner is None:
                continue
            tracked.targets[position] = cards
            if partner is not None:
                partner[0].targets[partner[1]] = target

    def _misplaced(self, demand: Demand, cards: set[str], but: Tracked) -> tuple[Tracked, int] | None:
        """Find an interchangeable demand that is expected on these cards and has nothing there.

        Rather one that has got other cards than one that still waits.
        """
        waiting = None
        for tracked in sorted(self._pods.values(), key=lambda t: t.age):
            for position, other in enumerate(tracked.pod.request.demands):
                if tracked is but or shape(other) != shape(demand):
                    continue
                if set(tracked.targets[position] or ()) != cards:
                    continue
                got = self._by_card(self._ids_of(tracked, other))
                if got and not cards & got.keys():
                    return tracked, position
                if not got and tracked.live and not tracked.admitted:
                    waiting = waiting or (tracked, position)
        return waiting

    def _ids_of(self, tracked: Tracked, demand: Demand) -> set[str]:
        """IDs that the demand's containers have got, certain or not."""
        slots = [Slot(tracked.pod.uid, name) for name in demand.containers]
        return set().union(*(h.ids for h in self._holdings if h.slot in slots))

    def _demand(self, slot: Slot | None) -> tuple[Tracked, int, Demand] | None:
        tracked = self._pods.get(slot.uid) if slot is not None else None
        if slot is None or tracked is None:
            return None
        return (tracked, *demand_of(tracked.pod.request, slot.container))
