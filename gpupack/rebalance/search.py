"""Searches for places of pods that move, and for the order in which moves can be made."""

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter

from gpupack.rebalance.movable_pods import MovablePod
from gpupack.rebalance.plan_state import Destination, PlanState

Ranked = tuple[tuple[int, int], Destination]
"""What a place costs, and the place."""


class DestinationSearch:
    """Finds places for pods that have ended, so that a goal is reached.

    Args:
        nodes: Names of the nodes that a pod may go to, best first.
        reached: Whether the goal is reached, told whether every pod has its place. While some have none it
            must not say no where it could say yes in the end.
        loss: What a place costs the goal; smaller is tried first.
        steps: Places that are tried at most, over all calls.
    """

    def __init__(
        self,
        plan_state: PlanState,
        nodes: Callable[[MovablePod], Iterable[str]],
        reached: Callable[[bool], bool],
        loss: Callable[[Destination], tuple[int, int]],
        steps: int,
    ) -> None:
        self.plan_state = plan_state
        self.steps = steps
        self._nodes = nodes
        self._reached = reached
        self._loss = loss
        self._costs: dict[tuple[int, str], tuple[int, list[Ranked]]] = {}

    @property
    def gave_up(self) -> bool:
        """Whether the limit was met, so that finding nothing means nothing."""
        return self.steps <= 0

    def find_destinations(
        self, movable_pods: Sequence[MovablePod]
    ) -> list[tuple[MovablePod, Destination]] | None:
        """Find places for all of these pods; None if there are none, or if `gave_up`.

        On success the plan state is left with the pods in their places.
        """
        self.steps -= 1
        before = self.plan_state.changes
        for movable in movable_pods:
            self.plan_state.remove_pod(movable)
        ordered = sorted(movable_pods, key=lambda movable: (-movable.total_units, movable.uid))
        found = self._place_next(ordered, [])
        if found is None:
            self.plan_state.undo_to(before)
        return found

    def _place_next(
        self, movable_pods: Sequence[MovablePod], chosen: list[tuple[MovablePod, Destination]]
    ) -> list[tuple[MovablePod, Destination]] | None:
        if not self._reached(not movable_pods):
            return None
        if not movable_pods:
            return list(chosen)
        movable = movable_pods[0]
        for _, destination in self._rank_destinations(movable):
            self.steps -= 1
            if self.steps <= 0:
                return None
            before = self.plan_state.changes
            self.plan_state.place_pod(movable, destination)
            chosen.append((movable, destination))
            found = self._place_next(movable_pods[1:], chosen)
            if found is not None:
                return found
            chosen.pop()
            self.plan_state.undo_to(before)
        return None

    def _rank_destinations(self, movable: MovablePod) -> list[Ranked]:
        """Give all places of a pod, the cheapest first; of equal ones those of the better node."""
        kind = self.plan_state.get_kind(movable)
        found: list[Ranked] = []
        for node in self._nodes(movable):
            if self.plan_state.can_take(movable, node):
                found += self._cost_destinations(movable, kind, node)
        found.sort(key=itemgetter(0))
        return found

    def _cost_destinations(self, movable: MovablePod, kind: int, node: str) -> list[Ranked]:
        """Give the places on a node with what each costs; remembered while nothing changes there."""
        stamp = self.plan_state.get_stamp(node)
        known = self._costs.get((kind, node))
        if node != movable.node and known is not None and known[0] == stamp:
            return known[1]
        found = [
            (self._loss(destination), destination)
            for destination in self.plan_state.list_destinations(movable, node)
        ]
        if node != movable.node:
            # Where it comes from one place is left out, that of this pod alone.
            self._costs[kind, node] = stamp, found
        return found


def order_moves(
    plan_state: PlanState, planned_moves: Sequence[tuple[MovablePod, Destination]]
) -> tuple[list[tuple[MovablePod, Destination]], bool]:
    """Order moves so that each can be made after those before it; return False too if pods trade places."""
    waiting, ordered, singly = list(planned_moves), [], True
    while waiting:
        for number, (movable, destination) in enumerate(waiting):
            before = plan_state.changes
            plan_state.remove_pod(movable)
            if plan_state.has_cards(destination) and plan_state.has_host_capacity(movable, destination.node):
                plan_state.place_pod(movable, destination)
                ordered.append(waiting.pop(number))
                break
            plan_state.undo_to(before)
        else:
            singly = False
            for movable, destination in waiting:
                plan_state.remove_pod(movable)
                plan_state.place_pod(movable, destination)
            ordered += waiting
            waiting = []
    return ordered, singly
