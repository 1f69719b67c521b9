"""The search for places of pods that move, and the order in which moves can be made."""

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter

from gpupack.rebalance.movable_pods import Mover
from gpupack.rebalance.plan_state import Table, Target

Ranked = tuple[tuple[int, int], Target]
"""What a place costs, and the place."""


class Search:
    """Finds places for pods that have ended, so that a goal is reached.

    Args:
        table: Changed while searching, and left as it was where nothing is found.
        nodes: Names of the nodes that a pod may go to, best first.
        reached: Whether the goal is reached, told whether every pod has its place. While some have none it
            must not say no where it could say yes in the end.
        loss: What a place costs the goal; smaller is tried first.
        steps: Places that are tried at most, over all calls.
    """

    def __init__(
        self,
        table: Table,
        nodes: Callable[[Mover], Iterable[str]],
        reached: Callable[[bool], bool],
        loss: Callable[[Target], tuple[int, int]],
        steps: int,
    ) -> None:
        self.table = table
        self.steps = steps
        self._nodes = nodes
        self._reached = reached
        self._loss = loss
        self._known: dict[tuple[int, str], tuple[int, list[Ranked]]] = {}

    @property
    def gave_up(self) -> bool:
        """Whether the limit was met, so that finding nothing means nothing."""
        return self.steps <= 0

    def seats(self, movers: Sequence[Mover]) -> list[tuple[Mover, Target]] | None:
        """Find places for all of these pods; None: there are none, or `gave_up`.

        On success the table is left with the pods in their places.
        """
        self.steps -= 1
        for mover in movers:
            self.table.end(mover)
        ordered = sorted(movers, key=lambda mover: (-mover.total, mover.uid))
        found = self._seat(ordered, [])
        if found is None:
            for mover in movers:
                self.table.undo_end(mover)
        return found

    def _seat(
        self, movers: Sequence[Mover], chosen: list[tuple[Mover, Target]]
    ) -> list[tuple[Mover, Target]] | None:
        if not self._reached(not movers):
            return None
        if not movers:
            return list(chosen)
        mover = movers[0]
        for _, target in self._ranked(mover):
            self.steps -= 1
            if self.steps <= 0:
                return None
            self.table.start(mover, target)
            chosen.append((mover, target))
            found = self._seat(movers[1:], chosen)
            if found is not None:
                return found
            chosen.pop()
            self.table.undo_start(mover, target)
        return None

    def _ranked(self, mover: Mover) -> list[Ranked]:
        """Give all places of a pod, the cheapest first; of equal ones those of the better node."""
        table, kind = self.table, self.table.kind(mover)
        found: list[Ranked] = []
        for node in self._nodes(mover):
            if table.takes(mover, node):
                found += self._on(mover, kind, node)
        found.sort(key=itemgetter(0))
        return found

    def _on(self, mover: Mover, kind: int, node: str) -> list[Ranked]:
        """Give the places on a node with what each costs; remembered while nothing changes there."""
        stamp = self.table.stamp(node)
        known = self._known.get((kind, node))
        if node != mover.node and known is not None and known[0] == stamp:
            return known[1]
        found = [(self._loss(target), target) for target in self.table.targets(mover, node)]
        if node != mover.node:
            # Where it comes from one place is left out, that of this pod alone.
            self._known[kind, node] = stamp, found
        return found


def in_order(table: Table, seats: Sequence[tuple[Mover, Target]]) -> tuple[list[tuple[Mover, Target]], bool]:
    """Order moves so that each can be made once those before it are done.

    Args:
        table: As it is before; left as it is after.
        seats: The moves, in any order.

    Returns:
        The moves, and whether that is so: pods that trade places have to be ended together.
    """
    waiting, ordered, singly = list(seats), [], True
    while waiting:
        for number, (mover, target) in enumerate(waiting):
            table.end(mover)
            free = table.free(target.node)
            if all(free[card] >= units for card, units in target.placement.charge.items()) and table.has_host(
                mover, target.node
            ):
                table.start(mover, target)
                ordered.append(waiting.pop(number))
                break
            table.undo_end(mover)
        else:
            singly = False
            for mover, target in waiting:
                table.end(mover)
                table.start(mover, target)
            ordered += waiting
            waiting = []
    return ordered, singly
