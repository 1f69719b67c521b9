"""Goals of a list of moves: that pods of a size start, or that cards are empty."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol

import numpy as np

from allocator.cards import CardAmounts
from allocator.request import PodRequest
from gpupack.rebalance.movable_pods import MovablePod
from gpupack.rebalance.plan_state import Destination, PlanState
from gpupack.whatif.fit import count_fit_on_cards
from gpupack.whatif.kube_checks import HostRequirements, count_alike
from scheduler_plugin.cache.cards import build_cards
from scheduler_plugin.scheduling.fit_counts import count_card_groups
from scheduler_plugin.scheduling.node_fit import SHORTAGES

_REMEMBERED: Final = 1 << 16


class Goal(Protocol):
    """The state that moves of pods are to reach."""

    def is_reached(self, final: bool) -> bool:
        """Whether it is, or while pods are still without a place: whether it could be."""
        ...

    def compute_loss(self, destination: Destination) -> tuple[int, int]:
        """Compute what a place costs the goal, and how much it leaves on its cards; smaller is better."""
        ...


class StartGoal:
    """Pods of a size are to start.

    Args:
        request: What such a pod asks for; it has one demand.
        before: Pods that fit now, by node.

    Attributes:
        nodes: Names of the nodes that can take any.
    """

    def __init__(
        self,
        plan_state: PlanState,
        request: PodRequest,
        requirements: HostRequirements,
        before: Mapping[str, int],
    ) -> None:
        self.wanted = 0
        self._plan_state = plan_state
        self._cluster = plan_state.cluster
        self._request = request
        self._requirements = requirements
        self._demand = request.demands[0]
        self._before = before
        self._total = sum(before.values())
        self._known: dict[tuple[object, ...], int] = {}
        rejections = self._cluster.kube_checks.find_rejections(requirements)
        arrays = self._cluster.state.nodes
        offering = arrays.mask_offering(request)
        # A node that has too little of something left may take one once others have gone.
        self.nodes = [
            name
            for name, row in arrays.rows.items()
            if offering[row] and (name not in rejections or rejections[name].reason in SHORTAGES)
        ]
        self._open = frozenset(self.nodes)
        self._gains: tuple[dict[str, tuple[int, int]], dict[str, tuple[int, int]]] = {}, {}
        self._units: dict[str, list[int]] = {}

    def count_total(self, *, final: bool = True) -> int:
        """Count the pods that fit now; with `final` false at least as many as could in the end."""
        gains, total = self._gains[final], self._total
        for node, stamp in self._plan_state.stamps.items():
            if node in self._open:
                known = gains.get(node)
                if known is None or known[0] != stamp:
                    gain = self.count_on_node(node, final=final) - self._before.get(node, 0)
                    known = gains[node] = stamp, gain
                total += known[1]
        return total

    def is_reached(self, final: bool) -> bool:
        return self.count_total(final=final) >= self.wanted

    def compute_loss(self, destination: Destination) -> tuple[int, int]:
        """Compute how many pods fewer fit once the place is taken, and what it leaves on its cards."""
        node, placement = destination.node, destination.placement
        left = _add(self._plan_state.get_free_units(node), placement.charge, -1)
        lost = 0
        if node in self._open:
            compute = _add(self._plan_state.get_free_compute(node), placement.compute, -1)
            lost = sum(self.count_fits(node)) - sum(self._count_fits(node, left, compute))
        return lost, sum(left[card] for card in placement.charge)

    def count_on_node(self, node: str, *, final: bool = True) -> int:
        free = self._plan_state.get_free_units(node)
        left = self._plan_state.get_left(node)
        most = count_alike(self._requirements, self._request, left, self._cluster.nodes[node])
        compute = self._plan_state.get_free_compute(node) if self._demand.compute else ()
        key = (node, free, compute, most, final)
        found = self._known.get(key)
        if found is None:
            if len(self._known) > _REMEMBERED:
                self._known.clear()
            found = self._known[key] = self._count(node, free, most, final=final)
        return found

    def _count(self, node: str, free: tuple[int, ...], most: int, *, final: bool) -> int:
        fits = self.count_fits(node)
        cards = self._demand.cards
        if cards == 1:
            return min(most, sum(fits))
        if not final:
            return min(most, count_on_distinct_cards(fits, cards))
        arrays = self._cluster.state.nodes
        policy = self._request.card_policy or self._cluster.policies.card_policy
        row = arrays.rows[node]
        compute = self._plan_state.get_free_compute(node)
        now = [
            replace(card.with_free_units(free[at]), compute_used=card.compute_limit - compute[at])
            for at, card in enumerate(build_cards(arrays, row))
        ]
        return count_fit_on_cards(now, self._request, policy, most)

    def _count_fits(self, node: str, free: Sequence[int], compute_free: Sequence[int]) -> list[int]:
        """Compute how many times the demand of one card fits on each card."""
        units = self._units.get(node)
        if units is None:
            arrays = self._cluster.state.nodes
            row = arrays.rows[node]
            sizes = arrays.size[row, : arrays.cards[row]].tolist()
            units = self._units[node] = [
                self._demand.units_on(size) if can and size else 0
                for size, can in zip(sizes, self._list_admitted(node, len(sizes)), strict=True)
            ]
        fits = [room // needed if needed else 0 for room, needed in zip(free, units, strict=True)]
        if not self._demand.compute:
            return fits
        compute = (max(0, left) // self._demand.compute for left in compute_free)
        return [min(counts) for counts in zip(fits, compute, strict=True)]

    def _list_admitted(self, node: str, count: int) -> list[bool]:
        selector, arrays = self._request.selector, self._cluster.state.nodes
        if selector.admits_all:
            return [True] * count
        return [selector.admits(card) for card in build_cards(arrays, arrays.rows[node])]

    def count_fits(self, node: str, without: Iterable[MovablePod] = ()) -> list[int]:
        """Return how many times the demand of one card fits on each card of a node now.

        Args:
            without: Pods that leave the node before.
        """
        free, compute = self._plan_state.get_free_units(node), self._plan_state.get_free_compute(node)
        for movable in without:
            free, compute = _add(free, movable.units), _add(compute, movable.compute)
        return self._count_fits(node, free, compute)

    def find_shortages(self, node: str) -> list[tuple[CardAmounts, CardAmounts] | None]:
        """Find what each card of a node lacks for one pod more, and what each further one takes there.

        Returns:
            What is not short is 0 or less; None for a card that pods of this size cannot have.
        """
        free, compute = self._plan_state.get_free_units(node), self._plan_state.get_free_compute(node)
        cards = zip(self._list_needs(node), self.count_fits(node), free, compute, strict=True)
        each = self._demand.compute
        return [
            (((fit + 1) * units - units_free, (fit + 1) * each - percent_free), (units, each))
            if units
            else None
            for units, fit, units_free, percent_free in cards
        ]

    def _list_needs(self, node: str) -> list[int]:
        """List the units that the demand takes of each card of a node; 0 if the card is not for it."""
        arrays = self._cluster.state.nodes
        row = arrays.rows[node]
        count = int(arrays.cards[row])
        open_units = arrays.evictable[row, :count].tolist()
        return [
            self._demand.units_on(size) if can and size >= self._demand.units_on(size) else 0
            for size, can in zip(open_units, self._list_admitted(node, count), strict=True)
        ]

    @property
    def cards_per_pod(self) -> int:
        return self._demand.cards


class EmptyGoal:
    """The goal of emptying cards: every pod on them gets a place on a card that is not to be emptied."""

    def __init__(self, plan_state: PlanState) -> None:
        self._plan_state = plan_state

    def is_reached(self, final: bool) -> bool:  # noqa: ARG002 - the search moves every pod, or finds nothing
        """Return True: the pods of these cards are what is moved, and no place is on one of them."""
        return True

    def compute_loss(self, destination: Destination) -> tuple[int, int]:
        """Prefer tight places: whole cards stay whole."""
        free = self._plan_state.get_free_units(destination.node)
        nodes = self._plan_state.cluster.state.nodes
        sizes = nodes.size[nodes.rows[destination.node]]
        opened = sum(int(sizes[card]) == free[card] for card in destination.placement.charge)
        return opened, sum(free[card] - units for card, units in destination.placement.charge.items())


def _add(free: Sequence[int], amounts: Mapping[int, int], times: int = 1) -> tuple[int, ...]:
    """Add amounts by card position to what is free of each card."""
    return tuple([left + times * amounts.get(card, 0) for card, left in enumerate(free)])


def count_on_distinct_cards(fits: list[int], cards: int) -> int:
    """Compute the most pods that can each get a number of different cards, with the best choices."""
    return int(count_card_groups(np.array([fits], dtype=np.int64), cards)[0])
