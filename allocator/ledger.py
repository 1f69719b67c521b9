"""The node's accounting: which units of which card are promised, to whom, and when that ends.

A pure, synchronous state machine. Everything that happens is a call with its time in seconds (any monotonic
clock); what is asked back is computed from what is known. Nothing is ever taken on the word of one source
alone: the kubelet's list forgets, the API server lags, annotations get copied.

Invariant: the units that the words show plus those that the scheduler assumes are never less than the units
the kubelet holds or will hold for pods that are bound.

The rules live in base classes, each in its own method, each also a mutant of the property test: `Owners`
(whose are the IDs), `Charges` (what counts), `Releases` (when it ends), `Choice` (what the kubelet is told).
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from allocator.cards import Card
from allocator.errors import LedgerError, shown
from allocator.ledger_book import Grant, Listed, Mark, Pod, Slot, Tracked, add
from allocator.ledger_choice import Choice
from allocator.ledger_release import Releases
from allocator.records import Assignment

__all__ = ["Grant", "Ledger", "Listed", "Mark", "Pod"]


class Ledger(Releases, Choice):
    """One node's accounts.

    Args:
        cards: every card in word order, `used_units` 0.
        policy: the cluster's card policy.
        grace_s: seconds after which an Allocate must stand in a list.
    """

    # What happens to cards.

    @property
    def installed(self) -> tuple[Card, ...]:
        """Every card in word order as it is without pods: `used_units` 0."""
        return tuple(self._cards.values())

    def cards(self) -> tuple[Card, ...]:
        """Return every card in word order, with its promised units as used ones."""
        promised = self.promised()
        return tuple(replace(card, used_units=promised[uuid]) for uuid, card in self._cards.items())

    def set_healthy(self, uuid: str, healthy: bool, now_s: float) -> None:
        """Take a card in or out; an unhealthy card counts as full.

        Raises:
            LedgerError: no such card.
        """
        card = self._cards.get(uuid)
        if card is None:
            raise LedgerError(f"card {shown(uuid)}: allowed are {', '.join(self._cards)}")
        if card.healthy != healthy:
            self._cards[uuid] = replace(card, healthy=healthy)
            self._published_at_s[uuid] = now_s

    def set_cordoned(self, uuids: Collection[str]) -> None:
        """Keep exactly these cards free of new pods; they count as full. Unknown UUIDs are ignored."""
        self._cards = {uuid: replace(card, cordoned=uuid in uuids) for uuid, card in self._cards.items()}

    def set_pressure(self, units: Mapping[str, int]) -> bool:
        """Set the units by card that are used beyond what is promised: foreign use and over-use.

        Returns:
            Whether anything changed.
        """
        pressure = {uuid: count for uuid, count in units.items() if uuid in self._cards and count}
        changed, self._pressure = pressure != self._pressure, pressure
        return changed

    # What the kubelet does; GetPreferredAllocation is in `Choice`.

    def allocate(self, ids: Collection[str], now_s: float) -> Grant:
        """Record an Allocate; see `Choice.allocate`."""
        grant = super().allocate(ids, now_s)
        self._settle()
        return grant

    def mark(self, now_s: float) -> Mark:
        """Note that a request for a list begins now; its answer comes back with the mark."""
        return Mark(self._tick(), now_s)

    def listed(self, entries: Iterable[Listed], mark: Mark) -> None:
        """Take a complete PodResources list; one older than the newest, or than the kubelet, is ignored."""
        newest = self._list_mark.order if self._list_mark is not None else 0
        if mark.order > max(newest, self._kubelet_order):
            self._tick()
            self._take_list(entries, mark)
            self._settle()

    def kubelet_restarted(self) -> None:
        """From now on only lists of pods and of devices that begin later prove that something is missing."""
        self._kubelet_order = self._tick()
        self._answers.clear()

    # What the API server shows.

    def remember(self, used: Mapping[str, int], uids: Collection[str]) -> None:
        """Take what the own Node says at start: used units by card UUID and the UIDs of `holds`.

        Must come before the first list of pods.
        """
        self._words_before = {uuid: units for uuid, units in used.items() if uuid in self._cards}
        self._remembered = set(uids)

    def pods_synced(self, pods: Iterable[Pod], mark: Mark) -> None:
        """Take all pods with our resource bound to this node, as of a list that began at `mark`.

        Known pods that it lacks are gone, except those first seen after the mark.
        """
        order = self._tick()
        present = set()
        for pod in pods:
            present.add(pod.uid)
            self._update(pod, order)
        for tracked in self._pods.values():
            if tracked.pod.uid not in present and tracked.bound_order <= mark.order:
                self._finish(tracked, order)
        if self._view_mark is None or mark.order > self._view_mark.order:
            self._view_mark = mark
        self._strangers |= self._remembered - self._pods.keys() - set(self._dead)
        self._remembered &= self._pods.keys()
        self._settle()

    def pod_changed(self, pod: Pod) -> None:
        """Take a pod that was bound, or changed; states older than the known one are ignored."""
        self._update(pod, self._tick())
        self._settle()

    def pod_gone(self, uid: str) -> None:
        """Take the deletion of a pod; an unknown UID is ignored."""
        order = self._tick()
        tracked = self._pods.get(uid)
        if tracked is not None:
            self._finish(tracked, order)
            self._settle()

    def _update(self, pod: Pod, order: int) -> None:
        tracked = self._pods.get(pod.uid)
        if pod.uid in self._dead or (tracked is not None and pod.version < tracked.pod.version):
            return
        if tracked is None:
            tracked = self._pods[pod.uid] = Tracked(pod, order, self._initial_targets(pod))
            self._rule_remembered_pods_were_admitted(tracked)
        tracked.pod = pod
        if pod.started and tracked.started_order is None:
            tracked.started_order = order
            tracked.admitted |= tracked.live and not pod.terminal
        if pod.terminal:
            self._finish(tracked, order)

    def _rule_remembered_pods_were_admitted(self, tracked: Tracked) -> None:
        """A pod that the words contained before a restart holds what it asked for, listed or not."""
        if tracked.pod.uid in self._remembered:
            tracked.admitted = tracked.held = True

    def _finish(self, tracked: Tracked, order: int) -> None:
        if tracked.gone_order is None:
            tracked.gone_order = order

    def _settle(self) -> None:
        """Draw all conclusions from the newest event."""
        self._settle_owners()
        for tracked in self._live():
            tracked.held = tracked.held or self._rule_words_contain(tracked)
        self._settle_leftover()
        self._settle_releases()

    def _rule_words_contain(self, tracked: Tracked) -> bool:
        """A pod enters `holds` when it was admitted and a list begun after that has shown what it will show.

        Normally each container as the pod's own. A container that such a list lacks will not appear any more
        (the kubelet lost its checkpoint); what it got is known by then, or is charged on every card that
        could have it, see `_rule_admitted_pods_hold_their_request`.
        """
        return tracked.admitted and all(
            container.kind == "init" or self._shown_or_lost(tracked, Slot(tracked.pod.uid, container.name))
            for container in tracked.pod.request.containers
        )

    def _shown_or_lost(self, tracked: Tracked, slot: Slot) -> bool:
        """The list has shown what the container holds, or it never will."""
        if self._certain(slot):
            return True
        mark = self._list_mark
        if mark is None or mark.order <= max(tracked.started_order or 0, self._kubelet_order):
            return False
        return all(not h.listed and mark.at_s >= h.at_s + self._grace_s for h in self._of_slot(slot))

    def _settle_leftover(self) -> None:
        """Note what remembered pods seem to have had of the words of before, also once they have ended."""
        for uid in self._remembered if self._words_before else ():
            tracked = self._pods.get(uid)
            if tracked is None or tracked.ended:
                continue
            units = self._by_card(set().union(*(h.ids for h in self._owned(uid))))
            short, vague = self._shortfall(tracked)
            if not vague:
                add(units, short)
            if units:
                self._explained[uid] = units

    # What can be asked; `promised`, `reserved` and `used` are in `Charges`, `doubtful` is in `Releases`.

    @property
    def complete(self) -> bool:
        """Pods and devices have both been listed since start: the words may be published."""
        return self._list_mark is not None and self._view_mark is not None

    def wants_list(self) -> bool:
        """Something waits for a newer PodResources list: an Allocate, a pod's start or its end."""
        mark = self._list_mark
        if mark is None or mark.order < self._kubelet_order:
            return True
        return any(h.key is None and h.order > mark.order for h in self._holdings) or any(
            (t.started_order or 0) > mark.order or (not t.ended and (t.gone_order or 0) > mark.order)
            for t in self._pods.values()
        )

    def in_flight(self) -> bool:
        """Some pod is on its way from Allocate to `holds`."""
        return any(
            not tracked.held and self._owned(tracked.pod.uid)
            for tracked in self._pods.values()
            if tracked.live
        )

    def wants_view(self) -> bool:
        """Something waits for a list of pods that begins now: a kubelet restart, or IDs nobody explains."""
        view, listed = self._view_mark, self._list_mark
        if view is None or view.order < self._kubelet_order:
            return True
        if listed is not None and self._withheld_waits_for_view(view, listed):
            return True
        return listed is not None and any(
            not h.listed
            and not h.certain
            and view.order <= max(h.order, h.listed_order)
            and (h.key is not None or listed.at_s >= h.at_s + self._grace_s)
            for h in self._holdings
        )

    def promises(self) -> dict[str, dict[str, int]]:
        """Units by card and UID that pods hold, guesses included; without those of no known pod."""
        ids: dict[str, set[str]] = {}
        for holding in self._holdings:
            if holding.slot is not None:
                ids.setdefault(holding.slot.uid, set()).update(holding.ids)
        shares: dict[str, dict[str, int]] = {uuid: {} for uuid in self._cards}
        for uid in ids.keys() | self._pods.keys():
            units = self._by_card(ids.get(uid, ()))
            tracked = self._pods.get(uid)
            if tracked is not None and tracked.admitted and not tracked.ended:
                add(units, self._shortfall(tracked)[0])
            for uuid, count in units.items():
                shares[uuid][uid] = count
        return shares

    def holds(self) -> frozenset[str]:
        """UIDs of the pods whose units `used` contains."""
        return frozenset(uid for uid, tracked in self._pods.items() if tracked.held)

    def unheld(self) -> frozenset[str]:
        """UIDs of bound, unfinished pods that `used` does not contain yet."""
        return frozenset(tracked.pod.uid for tracked in self._live() if not tracked.held)

    def allocations(self) -> dict[str, Assignment]:
        """What the containers of held, unfinished pods got, by UID; without pods whose card is unknown."""
        found = {tracked.pod.uid: self._allocation(tracked) for tracked in self._live() if tracked.held}
        return {uid: assignment for uid, assignment in found.items() if assignment is not None}

    def _allocation(self, tracked: Tracked) -> Assignment | None:
        pod = tracked.pod
        shares: dict[str, tuple[tuple[str, int], ...]] = {}
        for demand in pod.request.demands:
            counts = self._by_card(self._ids_of(tracked, demand))
            if not counts:
                return None
            if len(counts) > 1 and pod.request.shared:
                return None
            cards = [uuid for uuid in self._cards if uuid in counts]
            for container in pod.request.containers:
                if container.name in demand.containers:
                    shares[container.name] = tuple((uuid, container.units // len(cards)) for uuid in cards)
        return shares

    def explain(self) -> dict[str, Any]:
        """Everything of interest to a person, as JSON values."""
        promised, reserved, used = self.promised(), self.reserved(), self.used()
        return {
            "cards": [
                {
                    "uuid": uuid,
                    "size": card.size_units,
                    "used": units,
                    "promised": promised[uuid],
                    "reserved": reserved.get(uuid, 0),
                    "pressure": self._pressure.get(uuid, 0),
                    "withheld": self._rule_withheld_is_charged().get(uuid, 0),
                    "leftover": self._rule_leftover().get(uuid, 0),
                    "healthy": card.healthy,
                    "cordoned": card.cordoned,
                }
                for (uuid, card), units in zip(self._cards.items(), used, strict=True)
            ],
            "holdings": [
                {
                    "cards": self._by_card(holding.ids),
                    "pod": None if holding.slot is None else holding.slot.uid,
                    "container": None if holding.slot is None else holding.slot.container,
                    "certain": holding.certain,
                    "listed": holding.listed,
                    "shown_as": None if holding.key is None else "/".join(holding.key),
                }
                for holding in self._holdings
            ],
            "pods": [
                {
                    "uid": tracked.pod.uid,
                    "name": f"{tracked.pod.namespace}/{tracked.pod.name}",
                    "live": tracked.live,
                    "admitted": tracked.admitted,
                    "held": tracked.held,
                    "targets": [list(target or ()) for target in tracked.targets],
                }
                for tracked in self._pods.values()
            ],
        }
