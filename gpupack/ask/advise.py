"""The shortest list of moves that lets pods start, or empties cards. Nothing is done, only said."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from math import comb
from typing import Final

from allocator.request import PodRequest
from gpupack.ask.answers import Advice, Move, Pods, Seat
from gpupack.ask.cluster import Cluster
from gpupack.ask.emptying import cards_named, on_cards, others_on
from gpupack.ask.fit import FitAsk, count, need_words, request_of
from gpupack.ask.goals import Empty, Goal, Start
from gpupack.ask.hosts import Wish, any_pod
from gpupack.ask.moved import after, objections
from gpupack.ask.movers import CRITICAL, Mover, Movers
from gpupack.ask.sites import Sites, nearest
from gpupack.ask.table import Search, Table, Target, in_order
from gpupack.ask.tries import Held, numbers
from gpupack.errors import InputError
from scheduler_plugin.cluster.budgets import within
from scheduler_plugin.placement.reasons import memory

STEPS: Final = 60_000
"""Places that are tried at most: seconds."""

MOST_SETS: Final = 20_000
"""Sets of pods of one size that are looked at: for more the search is not complete."""

MOST_MOVERS: Final = 200
"""Pods that may be moved at most, for all lists of them to be tried."""

MOST_SITES: Final = 200
"""Sites that are tried at most for one more pod."""

NEAR_NODES: Final = 48
"""Nodes that a pod is tried on, best first; a cluster with more is not searched completely."""

_TRIES: Final = 5

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


def advise_start(cluster: Cluster, ask: FitAsk, pods: int = 1, limits: Limits | None = None) -> Advice:
    """Find the shortest list of moves with which so many pods of a size start.

    Args:
        cluster: The cluster.
        ask: The size.
        pods: How many are to start.
        limits: Of the search.

    Raises:
        InputError: something is wrong with the question.
    """
    if pods < 1:
        raise InputError(f"{pods} pods: allowed is 1 or more")
    need_words(cluster)
    limits = limits or Limits()
    request = request_of(ask, cluster.state.resource)
    now = count(cluster, request)
    if now.pods >= pods:
        text = f"{_pods(now.pods)} now: no move is needed"
        return Advice(
            0, (), Pods(now.pods), Pods(now.pods), optimal=True, text=text, unit_mib=cluster.unit_mib
        )
    movers = Movers(cluster, Held(cluster), limits.max_priority)
    before = {node.node: node.pods for node in now.nodes}
    found = plan_start(cluster, request, any_pod(), before, pods, movers, limits)
    if found is None:
        return _nothing(cluster, now.pods)
    plan, changed = found
    then = count(changed, request).pods if plan.moves else now.pods
    text = _told_start(now.pods, then, pods, len(plan.moves))
    return _advice(cluster, plan, then - now.pods, now.pods, then, text)


def plan_start(
    cluster: Cluster,
    request: PodRequest,
    wish: Wish,
    before: Mapping[str, int],
    pods: int,
    movers: Movers,
    limits: Limits,
) -> "tuple[Plan, Cluster] | None":
    """Look for moves with which so many pods start.

    Args:
        cluster: The cluster.
        request: What such a pod asks for, of one demand.
        wish: What it asks for besides.
        before: Such pods that fit now, by node.
        pods: How many are to start.
        movers: Who may move; those that turn out not to be are noted there.
        limits: Of the search.

    Returns:
        The moves and the cluster after them, as filter sees it; None: none was found.
    """
    for _ in range(_TRIES):
        table = Table(cluster)
        goal = Start(table, request, wish, before)
        plan = _Planner(cluster, table, goal, movers, limits).start(pods, sum(before.values()))
        found = _checked(cluster, plan, movers)
        if found is not None:
            return plan, found
    return None


def _nothing(cluster: Cluster, pods: int) -> Advice:
    text = "No list of moves was found that filter admits"
    return Advice(0, (), Pods(pods), Pods(pods), optimal=False, text=text, unit_mib=cluster.unit_mib)


def advise_empty(cluster: Cluster, what: str, limits: Limits | None = None) -> Advice:
    """Find the shortest list of moves that empties a card (NODE/NUMBER, or a UUID) or a node.

    Raises:
        InputError: there is no such card or node.
    """
    limits = limits or Limits()
    cards = cards_named(cluster, what)
    held = Held(cluster)
    movers = Movers(cluster, held, limits.max_priority)
    there, stuck = on_cards(cluster, held, movers, cards)
    notes = [f"{name} stays: {reason}" for name, reason in stuck]
    others = others_on(cluster, held, cards)
    if others:
        notes.append(f"{memory(others, cluster.unit_mib)} on these cards are no pod's whose card is known")
    if stuck or not there:
        text = "Not every pod can be moved from" if there or stuck else "No pod is on"
        number = len(there) + len(stuck)
        return Advice(
            0,
            (),
            Pods(number),
            Pods(number),
            optimal=True,
            text=f"{text} {what}",
            notes=tuple(notes),
            unit_mib=cluster.unit_mib,
        )
    for _ in range(_TRIES):
        table = Table(cluster, cards)
        goal = Empty(table, cards)
        plan = _Planner(cluster, table, goal, movers, limits).empty(there)
        if _checked(cluster, plan, movers) is None:
            continue
        left = 0 if plan.moves else len(there)
        if plan.moves:
            text = f"No pod is left on {what} after {_moves(len(plan.moves))}"
            notes.append("keep new pods off it first: gpupack cordon, see docs/ask.md")
        else:
            text = f"Not every pod on {what} finds another place"
        plan.notes += notes
        return _advice(cluster, plan, len(cards) if plan.moves else 0, len(there), left, text)
    return _nothing(cluster, len(there))


def _moves(number: int) -> str:
    return "1 move" if number == 1 else f"{number} moves"


def _pods(number: int) -> str:
    return f"{number or 'No'} such {'pods fit' if number > 1 else 'pod fits'}"


def _told_start(now: int, then: int, wanted: int, moves: int) -> str:
    if not moves:
        return f"{_pods(now)} now, and no list of moves lets another one start"
    said = f"{_pods(now)} now, {then} after {_moves(moves)}"
    return said if then >= wanted else f"{said}: fewer than the {wanted} asked for"


@dataclass
class Plan:
    """What was found."""

    moves: Moves
    optimal: bool
    at_least: int
    notes: list[str]


class _Planner:
    """Looks for the shortest list: first by building one, then by trying all shorter ones."""

    def __init__(self, cluster: Cluster, table: Table, goal: Goal, movers: Movers, limits: Limits) -> None:
        self._cluster = cluster
        self._table = table
        self._goal = goal
        self._movers = movers
        self._search = Search(table, self._near, goal.reached, goal.loss, limits.steps)
        names = [name for name, row in cluster.state.nodes.rows.items() if cluster.state.nodes.usable[row]]
        self._names = sorted(names)
        self._all = len(names) <= NEAR_NODES

    def start(self, wanted: int, now: int) -> Plan:
        """Let pods start; fewer than wanted, where no more can."""
        goal = self._goal
        assert isinstance(goal, Start)  # noqa: S101
        places = Sites(goal, self._movers)
        everyone = [mover for name in self._names for mover in places.on(name)]
        if len(everyone) > MOST_MOVERS:
            built, reached = self._build(goal, places, now, wanted)
            self._undo(built)
            least = places.least_moves(reached - now)
            return self._plan(built, optimal=reached >= wanted and len(built) <= least, least=least)
        complete = True
        for target in range(min(wanted, self._most(goal, everyone)), now, -1):
            goal.wanted = target
            least = places.least_moves(target - now)
            built, reached = self._build(goal, places, now, target)
            self._undo(built)
            most = len(everyone)
            if reached >= target:
                if len(built) <= least:
                    return self._plan(built, optimal=complete, least=least)
                most = len(built) - 1
            found, tried = self._shortest(everyone, least, most)
            complete &= tried
            if found is not None or reached >= target:
                best = built if found is None else found
                return self._plan(best, optimal=complete, least=len(best) if tried else least)
        return Plan([], complete, 0, [])

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
                    return self._plan(found, optimal=complete and self._all, least=len(there))
                if self._search.gave_up:
                    return Plan([], False, len(there) + helpers, [])
            complete &= self._all
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
                    return found, self._all
                if self._search.gave_up:
                    return None, False
        return None, self._all

    def _build(self, goal: Start, places: Sites, now: int, wanted: int) -> tuple[Moves, int]:
        """Build a list, one site after the other: not always the shortest. Left done in the table.

        Returns:
            The list, and how many pods fit then: as many as wanted, or as far as it came.
        """
        moves: Moves = []
        reached = now
        moved: set[str] = set()
        while reached < wanted:
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

    def _plan(self, moves: Moves, *, optimal: bool, least: int) -> Plan:
        ordered, singly = in_order(self._table, moves)
        self._undo(ordered)
        notes = [] if singly else ["some of these pods trade places: end them together, not one by one"]
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
        for row in nearest(self._cluster, self._table.query(mover)):
            name = nodes.names[row]
            if name in self._table.touched or not self._table.offered(mover, name):
                continue
            yield name
            given += 1
            if given >= NEAR_NODES:
                return


def _checked(cluster: Cluster, plan: Plan, movers: Movers) -> Cluster | None:
    """Ask filter and kube-scheduler's rules whether the moves can be; None: look for others."""
    if not plan.moves:
        return cluster
    then = after(cluster, plan.moves)
    refused = objections(cluster, then, plan.moves)
    movers.refused.update(refused)
    return None if refused else then


def _advice(cluster: Cluster, plan: Plan, gained: int, before: int, then: int, text: str) -> Advice:
    notes = list(plan.notes)
    if plan.moves and not plan.optimal:
        notes.append(f"a list of fewer moves may exist: at least {_moves(plan.at_least)} are needed")
    if plan.moves and cluster.budgets is None:
        notes.append("PodDisruptionBudgets were not read: the API server may refuse an eviction")
    return Advice(
        gained=gained,
        moves=tuple(move_of(cluster, mover, target) for mover, target in plan.moves),
        before=Pods(before),
        after=Pods(then),
        optimal=plan.optimal,
        at_least=plan.at_least,
        text=text,
        notes=tuple(notes),
        unit_mib=cluster.unit_mib,
    )


def move_of(cluster: Cluster, mover: Mover, target: Target) -> Move:
    """Write a move for people and scripts."""
    source = Seat(mover.node, numbers(cluster, mover.node, mover.units.keys()))
    goes = Seat(target.node, numbers(cluster, target.node, target.placement.charge.keys()))
    meta = mover.pod.metadata
    priority = f", priority {mover.record.priority}" if mover.record.priority else ""
    since = f", running since {mover.record.start_time}" if mover.record.start_time else ""
    text = (
        f"{meta.namespace}/{meta.name} ({memory(mover.total, cluster.unit_mib)}) from {_seat(source)} to "
        f"{_seat(goes)}: it ends, and {mover.owner.kind} {mover.owner.name} starts it again{priority}{since}"
    )
    units = sum(target.placement.charge.values())
    return Move(meta.namespace, meta.name, units, source, goes, text)


def _seat(seat: Seat) -> str:
    cards = "card" if len(seat.cards) == 1 else "cards"
    return f"node {seat.node} {cards} {', '.join(map(str, seat.cards))}"
