"""Searches for a short list of moves: one is built, then shorter ones are tried, as far as the limits go."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from math import comb
from typing import Final

from gpupack.rebalance.candidates import CandidateFinder, find_fullest_rows
from gpupack.rebalance.goals import Goal, StartGoal
from gpupack.rebalance.movable_pods import CRITICAL, MovablePod, MovablePods
from gpupack.rebalance.plan_state import Destination, PlanState
from gpupack.rebalance.search import DestinationSearch, order_moves
from gpupack.whatif.cluster import Cluster
from scheduler_plugin.cache.disruption_budgets import keeps_budgets

STEPS: Final = 60_000
"""Places that are tried at most; that takes seconds."""

MOST_SETS: Final = 20_000
"""Sets of pods of one size that are examined: where there are more the search ends."""

MOST_MOVERS: Final = 200
"""Movable pods up to which shorter lists than the one that was built are tried."""

MOST_MOVES: Final = 200
"""Longest list that is built: nobody makes more moves at once."""

MOST_SITES: Final = 200

NEAR_NODES: Final = 48
"""Nodes that a pod is tried on, best first."""

TOGETHER: Final = "some of these pods trade places: end them together, not one by one"

Moves = list[tuple[MovablePod, Destination]]


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """Which pods may move, by the highest priority, and how many places a search tries."""

    max_priority: int = CRITICAL - 1
    steps: int = STEPS


@dataclass
class MovePlan:
    """The moves that were found.

    Attributes:
        at_least: Lower bound of the number of moves of any list that achieves as much.
    """

    moves: Moves
    at_least: int
    notes: list[str]


class MovePlanner:
    """Looks for a short list: first by building one, then by trying shorter ones."""

    def __init__(
        self,
        cluster: Cluster,
        plan_state: PlanState,
        goal: Goal,
        movable_pods: MovablePods,
        limits: SearchLimits,
    ) -> None:
        self._cluster = cluster
        self._plan_state = plan_state
        self._goal = goal
        self._movable_pods = movable_pods
        self._search = DestinationSearch(
            plan_state, self._iterate_nodes, goal.is_reached, goal.compute_loss, limits.steps
        )
        names = [name for name, row in cluster.state.nodes.rows.items() if cluster.state.nodes.usable[row]]
        self._names = sorted(names)
        self._nearest: dict[int, list[int]] = {}
        self._all = plan_state.all_choices = len(names) <= NEAR_NODES

    def plan_start(self, wanted: int, now: int) -> MovePlan:
        """Plan moves so that pods start; fewer than wanted if no more can."""
        goal = self._goal
        assert isinstance(goal, StartGoal)  # noqa: S101
        places = CandidateFinder(goal, self._plan_state, self._movable_pods)
        everyone = [movable for name in self._names for movable in places.list_movable(name)]
        if len(everyone) > MOST_MOVERS:
            built, reached = self._build_list(goal, places, now, wanted)
            self._plan_state.undo_to(0)
            least = self._compute_least(places, reached - now)
            return self._make_plan(built, least)
        for destination in range(min(wanted, self._compute_most(goal, everyone)), now, -1):
            goal.wanted = destination
            least = self._compute_least(places, destination - now)
            built, reached = self._build_list(goal, places, now, destination)
            self._plan_state.undo_to(0)
            most = len(everyone)
            if reached >= destination:
                most = len(built) - 1
            found = self._find_shortest((), everyone, max(1, least), most)
            if found is not None or reached >= destination:
                return self._make_plan(built if found is None else found, least)
        return MovePlan([], 0, [])

    def _compute_least(self, places: CandidateFinder, more: int) -> int:
        """Lower bound of the number of moves; it ignores that some pods may not move everywhere."""
        return min(more, 1) if self._movable_pods.refused else places.compute_least_moves(more)

    def _compute_most(self, goal: StartGoal, everyone: Sequence[MovablePod]) -> int:
        """Count the pods that could start if all movable pods were gone."""
        for movable in everyone:
            self._plan_state.remove_pod(movable)
        most = goal.count_total(final=False)
        self._plan_state.undo_to(0)
        return most

    def plan_empty(self, there: Sequence[MovablePod]) -> MovePlan:
        """Move these pods, and others only to make room for them."""
        others = [
            movable
            for name in self._names
            for movable in self._movable_pods.list_on_node(name)
            if movable.uid not in {each.uid for each in there}
        ]
        found = self._find_shortest(there, others, 0, len(others))
        return MovePlan([], len(there), []) if found is None else self._make_plan(found, least=len(there))

    def _find_shortest(
        self, there: Sequence[MovablePod], others: Sequence[MovablePod], least: int, most: int
    ) -> Moves | None:
        """Try lists of pods and so many others, the shortest first; None: none, or a limit was met."""
        for number in range(least, most + 1):
            if comb(len(others), number) > MOST_SETS:
                return None
            for more in combinations(others, number):
                group = [*there, *more]
                if not self._keeps_budgets(group):
                    continue
                found = self._search.find_destinations(group)
                if found is not None:
                    self._plan_state.undo_to(0)
                    return found
                if self._search.gave_up:
                    return None
        return None

    def _build_list(
        self, goal: StartGoal, places: CandidateFinder, now: int, wanted: int
    ) -> tuple[Moves, int]:
        """Build a list, site after site, not always the shortest; return it and how many pods fit then."""
        moves: Moves = []
        reached = now
        moved: set[str] = set()
        while reached < wanted and len(moves) < MOST_MOVES:
            goal.wanted = reached + 1
            found = self._free_next(places, moves, moved)
            if found is None:
                break
            moves += found
            moved |= {movable.uid for movable, _ in found}
            reached = goal.count_total()
        goal.wanted = wanted
        return moves, reached

    def _free_next(self, places: CandidateFinder, moves: Moves, moved: set[str]) -> Moves | None:
        for candidate in islice(places.iterate_cheapest(moved), MOST_SITES):
            if self._keeps_budgets([*(movable for movable, _ in moves), *candidate.pods]):
                found = self._search.find_destinations(candidate.pods)
                if found is not None or self._search.gave_up:
                    return found
        return None

    def _keeps_budgets(self, movable_pods: Iterable[MovablePod]) -> bool:
        budgets = self._cluster.budgets
        return budgets is None or keeps_budgets(budgets, [movable.record for movable in movable_pods])

    def _make_plan(self, moves: Moves, least: int) -> MovePlan:
        ordered, singly = order_moves(self._plan_state, moves)
        self._plan_state.undo_to(0)
        return MovePlan(ordered, least, [] if singly else [TOGETHER])

    def _iterate_nodes(self, movable: MovablePod) -> Iterator[str]:
        """Give the nodes to try for a pod: all of a small cluster, else the tightest that have room."""
        if self._all:
            yield from self._names
            return
        given = 0
        nodes = self._cluster.state.nodes
        touched = sorted(self._plan_state.changed_nodes)
        yield from touched
        kind = self._plan_state.get_kind(movable)
        if kind not in self._nearest:
            self._nearest[kind] = find_fullest_rows(self._cluster, self._plan_state.get_query(movable))
        for row in self._nearest[kind]:
            name = nodes.names[row]
            if name in self._plan_state.changed_nodes or not self._plan_state.is_offered(movable, name):
                continue
            yield name
            given += 1
            if given >= NEAR_NODES:
                return
