"""Finds where moves help pods of a size to start: the pods that would have to leave a card, or a node."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import merge
from itertools import accumulate, combinations, islice
from math import ceil
from operator import attrgetter
from typing import Final

import numpy as np

from allocator.cards import CardAmounts
from gpupack.rebalance.goals import StartGoal, count_on_distinct_cards
from gpupack.rebalance.movable_pods import MovablePod, MovablePods
from gpupack.rebalance.plan_state import PlanState
from gpupack.whatif.cluster import Cluster
from scheduler_plugin.scheduling.filtering import get_usable_units
from scheduler_plugin.scheduling.request import SchedulingRequest, compute_units_by_card, with_compute

_MOST_TOGETHER: Final = 4
"""Pods that leave one node at most, where pods that ask for several cards are to start."""

_GROUPS: Final = 12

_SETS: Final = 300


@dataclass(frozen=True)
class Candidate:
    """Pods that would have to leave so that one more can start on a node."""

    node: str
    pods: tuple[MovablePod, ...]

    @cached_property
    def cost(self) -> tuple[int, int, int, str]:
        """Smaller is better: how many, the largest priority, how much, and where."""
        priority = max(movable.record.priority for movable in self.pods)
        return len(self.pods), priority, sum(movable.total_units for movable in self.pods), self.node


_cost: Final = attrgetter("cost")


class CandidateFinder:
    """The sites of a cluster, as pods move."""

    def __init__(self, goal: StartGoal, plan_state: PlanState, movable_pods: MovablePods) -> None:
        self._goal = goal
        self._plan_state = plan_state
        self._movable_pods = movable_pods
        self._movable_by_node: dict[str, list[MovablePod]] = {}
        self._known: dict[str, tuple[int, list[Candidate]]] = {}
        self._untouched: list[Candidate] | None = None

    def list_movable(self, node: str) -> list[MovablePod]:
        if node not in self._movable_by_node:
            self._movable_by_node[node] = self._movable_pods.list_on_node(node)
        return self._movable_by_node[node]

    def iterate_cheapest(self, moved: Collection[str]) -> Iterator[Candidate]:
        """Iterate candidates, the cheapest first; without pods that have moved already."""
        touched = self._plan_state.changed_nodes
        if self._untouched is None:
            self._untouched = sorted(
                (
                    candidate
                    for node in self._goal.nodes
                    if node not in touched
                    for candidate in self._find_on_node(node, moved)
                ),
                key=_cost,
            )
        self._untouched = [candidate for candidate in self._untouched if candidate.node not in touched]
        fresh = [
            candidate
            for node in self._goal.nodes
            if node in touched
            for candidate in self._find_on_node(node, moved)
        ]
        return merge(self._untouched, sorted(fresh, key=_cost), key=_cost)

    def _find_on_node(self, node: str, moved: Collection[str]) -> list[Candidate]:
        stamp = self._plan_state.get_stamp(node)
        known = self._known.get(node)
        if known is None or known[0] != stamp:
            left = [movable for movable in self.list_movable(node) if movable.uid not in moved]
            groups = (
                self._group_by_card(node, left)
                if self._goal.cards_per_pod == 1
                else self._group_by_node(node, left)
            )
            known = self._known[node] = stamp, [Candidate(node, group) for group in groups]
        return known[1]

    def _group_by_card(
        self, node: str, movable_pods: Sequence[MovablePod]
    ) -> Iterator[tuple[MovablePod, ...]]:
        """Give the groups whose end makes room for one more pod on a card."""
        if not movable_pods:
            return
        for card, shortage in enumerate(self._goal.find_shortages(node)):
            if shortage is None:
                continue
            here = sorted((m for m in movable_pods if card in m.units), key=lambda m: (-m.units[card], m.uid))
            short, _ = shortage
            least = _find_fewest(here, card, short)
            if least is None:
                continue
            groups: list[tuple[MovablePod, ...]] = []
            for number in range(least, len(here) + 1):
                groups = [
                    group for group in islice(combinations(here, number), _SETS) if _frees(group, card, short)
                ]
                if groups:
                    break
            groups.sort(key=lambda group: Candidate(node, group).cost)
            yield from groups[:_GROUPS]

    def _group_by_node(
        self, node: str, movable_pods: Sequence[MovablePod]
    ) -> Iterator[tuple[MovablePod, ...]]:
        """Give the groups whose end makes room on a node for one more pod of several cards."""
        cards = self._goal.cards_per_pod
        now = count_on_distinct_cards(self._goal.count_fits(node), cards)
        for number in range(1, min(_MOST_TOGETHER, len(movable_pods)) + 1):
            groups = [
                group
                for group in islice(combinations(movable_pods, number), _SETS)
                if count_on_distinct_cards(self._goal.count_fits(node, group), cards) > now
            ]
            if groups:
                groups.sort(key=lambda group: Candidate(node, group).cost)
                yield from groups[:_GROUPS]
                return

    def compute_least_moves(self, more: int) -> int:
        """Compute a lower bound of the moves after which a number of further pods can start.

        As if every pod that leaves found a place that costs nothing. Each card has its cheapest ways to one
        pod more, to two more and so on. The cheapest of all cards are added up. A pod on several cards helps
        them all. A pod less counts as nothing if the node's sum or its number of pods holds pods off cards
        that have room.
        """
        if more <= 0:
            return 0
        if self._goal.cards_per_pod > 1:
            return 1
        steps: list[float] = []
        widest = 1
        for node in self._goal.nodes:
            movable_pods = self.list_movable(node)
            if movable_pods:
                widest = max(widest, *(len(movable.units) for movable in movable_pods))
                steps += self._compute_steps(node, movable_pods, more)
                steps += [0.0] * min(
                    more, max(0, sum(self._goal.count_fits(node)) - self._goal.count_on_node(node))
                )
        steps.sort()
        return max(1, ceil(sum(steps[:more]) / widest - 1e-9))

    def _compute_steps(self, node: str, movable_pods: Sequence[MovablePod], most: int) -> list[float]:
        """Compute the moves for each further pod on a node's cards, averaged so that they only grow."""
        steps: list[float] = []
        for card, shortage in enumerate(self._goal.find_shortages(node)):
            if shortage is None:
                continue
            here = [movable for movable in movable_pods if card in movable.units]
            (units, compute), (units_each, compute_each) = shortage
            costs: list[int] = []
            while len(costs) < most:
                more = len(costs)
                number = _find_fewest(here, card, (units + more * units_each, compute + more * compute_each))
                if number is None:
                    break
                costs.append(number)
            steps += _convex(costs)
        return steps


def _frees(pods: Sequence[MovablePod], card: int, short: CardAmounts) -> bool:
    """Tell whether pods free so many units and so much compute of a card together."""
    units, compute = (sum(amounts) for amounts in _list_amounts(pods, card))
    return units >= short[0] and compute >= short[1]


def _find_fewest(pods: Sequence[MovablePod], card: int, short: CardAmounts) -> int | None:
    """Find how many pods must leave a card at least to free so much of each; None: all do not suffice."""
    numbers = [
        next((number for number, freed in enumerate(accumulate(largest), 1) if freed >= amount), None)
        for amounts, amount in zip(_list_amounts(pods, card), short, strict=True)
        for largest in [sorted(amounts, reverse=True)]
    ]
    return None if None in numbers else max(number for number in numbers if number is not None)


def _list_amounts(pods: Sequence[MovablePod], card: int) -> tuple[list[int], list[int]]:
    """List the units and the percent of compute that each pod has of a card."""
    return [movable.units[card] for movable in pods], [movable.compute.get(card, 0) for movable in pods]


def _convex(costs: Sequence[int]) -> list[float]:
    """Compute slopes of the largest convex function below points (1, costs[0]), ... from (0, 0)."""
    slopes: list[float] = []
    at, cost = 0, 0
    while at < len(costs):
        slope, to = min(((costs[n - 1] - cost) / (n - at), -n) for n in range(at + 1, len(costs) + 1))
        slopes += [slope] * (-to - at)
        at, cost = -to, costs[-to - 1]
    return slopes


def find_fullest_rows(cluster: Cluster, query: SchedulingRequest) -> list[int]:
    """List the rows that have the cards for a pod's largest demand, those that it fills best first."""
    nodes = cluster.state.nodes
    query = with_compute(nodes, query)
    rows = cluster.rows[nodes.usable[cluster.rows]]
    if not len(rows):
        return []
    units = compute_units_by_card(nodes, query, rows)[0]
    free = get_usable_units(nodes, query.policy_request, rows)
    left = np.where((nodes.size[rows] > 0) & (free >= units), free - units, 1 << 40)
    best = left.min(axis=1)
    order = np.lexsort((nodes.name_rank[rows], best))
    found: list[int] = rows[order[: int((best < 1 << 40).sum())]].tolist()
    return found
