"""The verb preempt: which pods must go so that a card, and not only a sum, becomes free.

kube-scheduler's own dry run knows sums only. Of each node that it proposes we keep its victims where they
free the cards asked for, add victims where they do not, leave out those that are not needed, and drop the
node where no victims would help.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from allocator.cards import Card
from allocator.errors import RequestError
from allocator.place import place
from allocator.records import charge
from scheduler_plugin.cluster.cards import cards_of
from scheduler_plugin.cluster.pods import PodRecord
from scheduler_plugin.cluster.rules import NodeRecord
from scheduler_plugin.cluster.state import ClusterState
from scheduler_plugin.placement.query import Query


@dataclass(frozen=True, slots=True)
class Room:
    """One node as preemption sees it.

    Attributes:
        cards: Its cards now, in word order.
        open_units: By card, units that pods can have at all: 0 where it is unhealthy or cordoned.
        pods: Pods that can be named as victims, by UID.
        freed: Units that each of them would free, by card.
        cpu_short: Thousandths of a core that are missing before anybody goes.
        memory_short: Bytes that are missing before anybody goes.
    """

    cards: tuple[Card, ...]
    open_units: tuple[int, ...]
    pods: Mapping[str, PodRecord]
    freed: Mapping[str, Mapping[int, int]]
    cpu_short: int
    memory_short: int

    def after(self, victims: Iterable[str]) -> tuple[Card, ...]:
        """The cards once the victims are gone."""
        gone = [0] * len(self.cards)
        for uid in victims:
            for card, units in self.freed.get(uid, {}).items():
                gone[card] += units
        return tuple(
            replace(card, used_units=max(0, card.used_units - units)) if can_open else card
            for card, units, can_open in zip(self.cards, gone, self.open_units, strict=True)
        )

    def fits(self, query: Query, victims: Iterable[str]) -> bool:
        """Tell whether the pod has its cards once the victims are gone."""
        return place(self.after(victims), query.request, query.ask.card_policy) is not None

    def has_host(self, victims: Collection[str]) -> bool:
        """Tell whether cpu and memory suffice once the victims are gone."""
        gone = [self.pods[uid] for uid in victims if uid in self.pods]
        return (
            sum(pod.cpu_milli for pod in gone) >= self.cpu_short
            and sum(pod.memory_bytes for pod in gone) >= self.memory_short
        )


def room_on(state: ClusterState, node: str, query: Query) -> Room | None:
    """Look at a node; None where its cards cannot be used."""
    book = state.books.get(node)
    row = state.nodes.rows.get(node)
    if book is None or row is None or not state.nodes.usable[row]:
        return None
    nodes = state.nodes
    taken = (nodes.used[row] + nodes.assumed[row]).tolist()
    return Room(
        # More than a card's size may be taken; all of it must go before anything is free.
        cards=tuple(replace(card, used_units=taken[i]) for i, card in enumerate(cards_of(nodes, row))),
        open_units=tuple(nodes.evictable[row, : int(nodes.cards[row])].tolist()),
        pods=book.pods,
        freed={uid: _charges(book, pod) for uid, pod in book.pods.items()},
        cpu_short=query.ask.cpu_milli + int(nodes.cpu_used[row]) - int(nodes.cpu_capacity[row]),
        memory_short=query.ask.memory_bytes + int(nodes.memory_used[row]) - int(nodes.memory_capacity[row]),
    )


def victims_on(room: Room, query: Query, priority: int, proposed: Sequence[str]) -> list[str] | None:
    """Choose a node's victims.

    Args:
        room: The node.
        query: The pod that needs room.
        priority: Its priority; only pods of smaller ones go.
        proposed: UIDs of kube-scheduler's victims.

    Returns:
        UIDs, at least one, or None where evicting pods does not free the cards.
    """
    if room.fits(query, proposed):
        return _needed(room, query, proposed) or list(proposed) or None
    lower = sorted(
        (uid for uid, pod in room.pods.items() if pod.priority < priority),
        key=lambda uid: (room.pods[uid].priority, uid),
    )
    foreign = [uid for uid in proposed if uid not in room.pods]
    found = [
        _needed(room, query, chosen)
        for group in (*_by_card(room, lower), lower)
        for chosen in (_enough(room, query, proposed, group), _enough(room, query, foreign, group))
        if chosen is not None and (room.has_host(chosen) or chosen[: len(proposed)] == list(proposed))
    ]
    return min(found, key=lambda chosen: _cost(room, chosen), default=None)


def _charges(book: NodeRecord, pod: PodRecord) -> dict[int, int]:
    """Units a pod would free, by card; nothing where its cards are not known."""
    for cards in (pod.allocated, pod.assigned):
        if cards is not None and pod.charged is not None:
            try:
                units_of = charge(pod.charged, cards, dict(zip(book.uuids, book.sizes, strict=False)))
            except RequestError:
                continue
            return {book.uuids.index(uuid): units for uuid, units in units_of.items() if uuid in book.uuids}
    return {}


def _by_card(room: Room, uids: Sequence[str]) -> Iterable[list[str]]:
    """Group pods by the cards they are on."""
    for card in range(len(room.cards)):
        yield [uid for uid in uids if card in room.freed[uid]]


def _enough(room: Room, query: Query, first: Sequence[str], group: Sequence[str]) -> list[str] | None:
    """Add pods of a group to the first ones, smallest priority first, until the pod fits."""
    chosen = list(first)
    for uid in group:
        if uid not in chosen:
            chosen.append(uid)
            if room.fits(query, chosen):
                return chosen
    return None


def _needed(room: Room, query: Query, chosen: Sequence[str]) -> list[str]:
    """Leave out pods with cards that need not go, largest priority first; not those we know nothing of."""
    kept = list(chosen)
    for uid in sorted(chosen, key=lambda uid: (-room.pods[uid].priority if uid in room.pods else 0, uid)):
        without = [other for other in kept if other != uid]
        if uid in room.pods and room.has_host(without) and room.fits(query, without):
            kept = without
    return kept


def _cost(room: Room, chosen: Sequence[str]) -> tuple[int, int, list[str]]:
    """Order sets of victims: smallest highest priority, fewest, names."""
    known = [room.pods[uid].priority for uid in chosen if uid in room.pods]
    return max(known, default=-(1 << 31)), len(chosen), sorted(chosen)
