"""The search for the shortest list of moves: one is built, then all shorter ones are tried."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from math import comb
from typing import Final

from gpupack.rebalance.candidates import Sites, nearest
from gpupack.rebalance.goals import Goal, Start
from gpupack.rebalance.movable_pods import CRITICAL, Mover, Movers
from gpupack.rebalance.plan_state import Table, Target
from gpupack.rebalance.search import Search, in_order
from gpupack.whatif.cluster import Cluster
from scheduler_plugin.cache.budgets import within

STEPS: Final = 60_000
"""Places that are tried at most: seconds."""

MOST_SETS: Final = 20_000
"""Sets of pods of one size that are looked at: for more the search is not complete."""

MOST_MOVERS: Final = 200
"""Pods that may be moved at most, for all lists of them to be tried."""

MOST_MOVES: Final = 200
"""Moves of a list that is built: nobody makes more at once."""

MOST_SITES: Final = 200
"""Sites that are tried at most for one more pod."""

NEAR_NODES: Final = 48
"""Nodes that a pod is tried on, best first; a cluster with more is not searched completely."""

TOGETHER: Final = "some of these pods trade places: end them together, not one by one"

Moves = list[tuple[Mover, Target]]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a search may do.

    Attributes:
        max_priority: Pods of a higher priority stay.
        steps: Places that are tried at most.
    """

    max_priority: int = CRITICAL - 1
    steps: int = STEPS


@dataclass
class Plan:
    """What was found."""

    moves: Moves
    optimal: bool
    at_least: int
    notes: list[str]


class Planner:
    """Looks for the shortest list: first by building one, then by trying all shorter ones."""

    def __init__(self, cluster: Cluster, table: Table, goal: Goal, movers: Movers, limits: Limits) -> None:
        self._cluster = cluster
        self._table = table
        self._goal = goal
        self._movers = movers
        self._search = Search(table, self._near, goal.reached, goal.loss, limits.steps)
        names = [name for name, row in cluster.state.nodes.rows.items() if cluster.state.nodes.usable[row]]
        self._names = sorted(names)
        self._nearest: dict[int, list[int]] = {}
        self._all = table.all_choices = len(names) <= NEAR_NODES

    def start(self, wanted: int, now: int) -> Plan:
        """Let pods start; fewer than wanted, where no more can."""
        goal = self._goal
        assert isinstance(goal, Start)  # noqa: S101
        places = Sites(goal, self._movers)
        everyone = [mover for name in self._names for mover in places.on(name)]
        if len(everyone) > MOST_MOVERS:
            built, reached = self._build(goal, places, now, wanted)
            self._undo(built)
            least = self._least(places, reached - now)
            return self._plan(built, optimal=False, least=least, most=reached >= wanted)
        self._table.movable = frozenset(mover.uid for mover in everyone)
        complete = not self._movers.refused
        for target in range(min(wanted, self._most(goal, everyone)), now, -1):
            goal.wanted = target
            least = self._least(places, target - now)
            built, reached = self._build(goal, places, now, target)
            self._undo(built)
            most = len(everyone)
            if reached >= target:
                if len(built) <= least:
                    return self._plan(built, optimal=True, least=least, most=complete)
                most = len(built) - 1
            found, tried = self._shortest(everyone, least, most)
            if found is not None or reached >= target:
                best = built if found is None else found
                least = len(best) if tried else least
                return self._plan(best, optimal=tried, least=least, most=complete)
            complete &= tried
        return Plan([], complete, 0, [])

    @property
    def _complete(self) -> bool:
        """Whether nothing was left out of the search so far, so that what it did not find is not there."""
        return self._all and not self._table.cut and not self._movers.refused

    def _least(self, places: Sites, more: int) -> int:
        """Moves that any list needs at least; pods that may not move where they would might elsewhere."""
        return min(more, 1) if self._movers.refused else places.least_moves(more)

    def _most(self, goal: Start, everyone: Sequence[Mover]) -> int:
        """Pods that could start if nobody who may move were there."""
        for mover in everyone:
            self._table.end(mover)
        most = goal.total(final=False)
        for mover in everyone:
            self._table.undo_end(mover)
        return most

    def empty(self, there: Sequence[Mover]) -> Plan:
        """Move these pods, and others only to make room for them."""
        others = [
            mover
            for name in self._names
            for mover in self._movers.on(name)
            if mover.uid not in {each.uid for each in there}
        ]
        self._table.movable = frozenset(mover.uid for mover in [*there, *others])
        complete = True
        for helpers in range(len(others) + 1):
            if comb(len(others), helpers) > MOST_SETS:
                return Plan([], False, len(there) + helpers, [])
            for more in combinations(others, helpers):
                if not self._kept([*there, *more]):
                    continue
                found = self._search.seats([*there, *more])
                if found is not None:
                    self._undo(found)
                    return self._plan(found, optimal=complete and self._complete, least=len(there))
                if self._search.gave_up:
                    return Plan([], False, len(there) + helpers, [])
            complete &= self._complete
        return Plan([], complete, len(there), [])

    def _shortest(self, everyone: Sequence[Mover], least: int, most: int) -> tuple[Moves | None, bool]:
        """Try all lists from the shortest possible; also tells whether none was left out."""
        for number in range(max(1, least), most + 1):
            if comb(len(everyone), number) > MOST_SETS:
                return None, False
            for group in combinations(everyone, number):
                if not self._kept(group):
                    continue
                found = self._search.seats(group)
                if found is not None:
                    self._undo(found)
                    return found, self._complete
                if self._search.gave_up:
                    return None, False
        return None, self._complete

    def _build(self, goal: Start, places: Sites, now: int, wanted: int) -> tuple[Moves, int]:
        """Build a list, one site after the other: not always the shortest. Left done in the table.

        Returns:
            The list, and how many pods fit then: as many as wanted, or as far as it came.
        """
        moves: Moves = []
        reached = now
        moved: set[str] = set()
        while reached < wanted and len(moves) < MOST_MOVES:
            goal.wanted = reached + 1
            found = self._next(places, moves, moved)
            if found is None:
                break
            moves += found
            moved |= {mover.uid for mover, _ in found}
            reached = goal.total()
        goal.wanted = wanted
        return moves, reached

    def _next(self, places: Sites, moves: Moves, moved: set[str]) -> Moves | None:
        """Free the cheapest site that can be."""
        for site in islice(places.best(moved), MOST_SITES):
            if self._kept([*(mover for mover, _ in moves), *site.movers]):
                found = self._search.seats(site.movers)
                if found is not None or self._search.gave_up:
                    return found
        return None

    def _kept(self, movers: Iterable[Mover]) -> bool:
        """Whether moving these pods keeps every budget."""
        budgets = self._cluster.budgets
        return budgets is None or within(budgets, [mover.record for mover in movers])

    def _undo(self, moves: Moves | None) -> None:
        for mover, target in reversed(moves or []):
            self._table.undo_start(mover, target)
        for mover, _ in moves or []:
            self._table.undo_end(mover)

    def _plan(self, moves: Moves, *, optimal: bool, least: int, most: bool = True) -> Plan:
        """Order a list; one as short as any has to be is optimal, whatever else was not tried.

        Args:
            moves: The list.
            optimal: All shorter ones were tried.
            least: Moves that any needs at least.
            most: No list reaches more of what is asked for.
        """
        optimal = optimal or 0 < len(moves) <= least
        ordered, singly = in_order(self._table, moves)
        self._undo(ordered)
        notes = [] if singly else [TOGETHER]
        if moves and not most:
            notes.append("a list with which more of them start may exist: not all were tried")
        return Plan(ordered, optimal, least, notes)

    def _near(self, mover: Mover) -> Iterator[str]:
        """Nodes to try for a pod: all of a small cluster, else the tightest that have room."""
        if self._all:
            yield from self._names
            return
        given = 0
        nodes = self._cluster.state.nodes
        touched = sorted(self._table.touched)
        yield from touched
        kind = self._table.kind(mover)
        if kind not in self._nearest:
            self._nearest[kind] = nearest(self._cluster, self._table.query(mover))
        for row in self._nearest[kind]:
            name = nodes.names[row]
            if name in self._table.touched or not self._table.offered(mover, name):
                continue
            yield name
            given += 1
            if given >= NEAR_NODES:
                return
