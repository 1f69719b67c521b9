"""Room for all pods of a gang at once: which of them fit now, and who must go for the others. Pure."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from allocator.place import place
from scheduler_plugin.placement.preemption import Room as NodeRoom
from scheduler_plugin.placement.preemption import room_on
from scheduler_plugin.queue.entering.entries import Entry
from scheduler_plugin.queue.places.kept import Kept
from scheduler_plugin.queue.places.room import Room
from scheduler_plugin.queue.places.wants import Wants

Pod = tuple[str, Wants]
"""UID and needs of one pod of the gang."""

Pods = Mapping[str, Sequence[Pod]]
"""Pods of the gang by the node where they are to go."""


class GangRoom:
    """Looks for the room of one gang; nothing is taken.

    Args:
        room: The cluster.
        task: UID of the gang.
        pods: Its pods, the hardest to place first.
    """

    def __init__(self, room: Room, task: str, pods: Iterable[Pod]) -> None:
        self._room = room
        self._task = task
        self._views: dict[str, NodeRoom | None] = {}
        self._placed: dict[str, list[Pod]] = {}
        self._nodes: list[str] = []
        self.rest = self._place_now(pods)
        """Pods that find no room beside the others now."""

    def _place_now(self, pods: Iterable[Pod]) -> list[Pod]:
        """Place what fits without anybody going; the rest."""
        names, rank = self._room.state.nodes.names, self._room.state.nodes.name_rank
        nodes: dict[Wants, list[str]] = {}
        rest = []
        for pod in pods:
            if pod[1] not in nodes:
                rows = np.flatnonzero(self._room.fits(pod[1], holder=self._task))
                nodes[pod[1]] = [names[row] for row in rows[np.argsort(-rank[rows])].tolist()]
            left = nodes[pod[1]]
            # Who finds no room beside those placed so far never will.
            while left and self._cards(left[-1], (), [*self._placed.get(left[-1], ()), pod]) is None:
                left.pop()
            if left:
                self._placed.setdefault(left[-1], []).append(pod)
            else:
                rest.append(pod)
        return rest

    def victims(self, borrowed: Mapping[str, Sequence[Entry]]) -> list[Entry] | None:
        """Find who must go so that the rest fits: for one pod after the other the fewest of one node.

        Args:
            borrowed: Who may go, by node, those that must go first first.

        Returns:
            None where that would be in vain.
        """
        gone: dict[str, list[Entry]] = {}
        placed = {node: list(pods) for node, pods in self._placed.items()}
        known: dict[tuple[str, Wants], list[Entry] | None] = {}
        for pod in self.rest:
            best: tuple[int, str, list[Entry]] | None = None
            for node, candidates in borrowed.items():
                key = (node, pod[1])
                if key not in known:
                    pods = [*placed.get(node, ()), pod]
                    known[key] = self._more(node, pods, gone.get(node, []), candidates)
                more = known[key]
                if more is not None and (best is None or (len(more), node) < best[:2]):
                    best = (len(more), node, more)
            if best is None:
                return None
            _, node, more = best
            gone.setdefault(node, []).extend(more)
            placed.setdefault(node, []).append(pod)
            known = {key: found for key, found in known.items() if key[0] != node}
        self._nodes = [node for node in placed if node in borrowed]
        return [entry for entries in gone.values() for entry in entries]

    def needed(self, victims: Sequence[Entry], enough: Callable[[Collection[Entry]], bool]) -> list[Entry]:
        """Leave out victims without whom all pods fit too, those that should go last first.

        Args:
            victims: Such that all pods fit without them.
            enough: Tells whether some of them free the quota that is needed.
        """
        kept = list(victims)
        for victim in reversed(victims):
            fewer = [other for other in kept if other is not victim]
            if enough(fewer) and self._again(fewer) is not None:
                kept = fewer
        return kept

    def spots(self, victims: Sequence[Entry]) -> dict[str, Kept]:
        """Where each pod goes once the victims are gone, by UID; empty where not all of them fit."""
        placed = self._again(victims)
        found: dict[str, Kept] = {}
        for node, pods in (placed or {}).items():
            cards = self._cards(node, _on(node, victims), pods) or {}
            for uid, wants in pods:
                if uid in cards:
                    found[uid] = Kept(self._task, node, cards[uid], wants.cpu_milli, wants.memory_bytes)
        return found

    def _again(self, victims: Collection[Entry]) -> Pods | None:
        """Place the rest where `victims` found room for it; None where not all of it fits."""
        placed = {node: list(pods) for node, pods in self._placed.items()}
        for pod in self.rest:
            for node in self._nodes:
                pods = [*placed.get(node, ()), pod]
                if self._cards(node, _on(node, victims), pods) is not None:
                    placed[node] = pods
                    break
            else:
                return None
        return placed

    def _more(
        self, node: str, pods: Sequence[Pod], gone: Sequence[Entry], candidates: Iterable[Entry]
    ) -> list[Entry] | None:
        """The fewest more that must go from a node for these pods to fit there; None: in vain."""
        more: list[Entry] = []
        left = [entry for entry in candidates if entry not in gone]
        while self._cards(node, [*gone, *more], pods) is None:
            if len(more) == len(left):
                return None
            more.append(left[len(more)])
        for entry in list(more):
            fewer = [other for other in more if other is not entry]
            if self._cards(node, [*gone, *fewer], pods) is not None:
                more = fewer
        return more

    def _cards(
        self, node: str, gone: Iterable[Entry], pods: Sequence[Pod]
    ) -> dict[str, tuple[int, ...]] | None:
        """Place pods on one node, some other ones gone: cards by UID; None where not all of them fit."""
        room, nodes = self._room, self._room.state.nodes
        if node not in self._views:
            self._views[node] = room_on(room.state, node, room.query(pods[0][1]))
        view = self._views[node]
        if view is None:
            return None
        row, uids = nodes.rows[node], [entry.uid for entry in gone]
        left = [view.pods[uid] for uid in uids if uid in view.pods]
        cpu = int(nodes.cpu_capacity[row] - nodes.cpu_used[row]) + sum(pod.cpu_milli for pod in left)
        memory = int(nodes.memory_capacity[row] - nodes.memory_used[row])
        memory += sum(pod.memory_bytes for pod in left)
        kept = room.kept.from_others(self._task, node)
        cpu, memory = cpu - kept.cpu_milli, memory - kept.memory_bytes
        cards = [
            replace(card, used_units=card.size_units) if at in kept.cards else card
            for at, card in enumerate(view.after(uids))
        ]
        found: dict[str, tuple[int, ...]] = {}
        for uid, wants in pods:
            cpu, memory = cpu - wants.cpu_milli, memory - wants.memory_bytes
            if cpu < 0 or memory < 0 or not room.allowed(wants, node):
                return None
            query = room.query(wants)
            placement = place(cards, query.request, query.ask.card_policy)
            if placement is None:
                return None
            for at, units in placement.charge.items():
                cards[at] = replace(cards[at], used_units=cards[at].used_units + units)
            found[uid] = tuple(sorted(placement.charge))
        return found


def _on(node: str, victims: Iterable[Entry]) -> list[Entry]:
    return [victim for victim in victims if victim.record.node == node]
