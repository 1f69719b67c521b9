"""The simulated cluster: the extender's own node arrays, filled from a trace."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from allocator.names import MIB
from allocator.policy import choose, node_policy_chooses
from allocator.selector import Selector
from scheduler_plugin.cache.amounts import CPU, FIXED, MEMORY, NOT_COUNTED, Amounts
from scheduler_plugin.cache.arrays import BoolArray, RowArray
from scheduler_plugin.cache.cards import build_cards
from scheduler_plugin.cache.node_arrays import NodeArrays
from scheduler_plugin.scheduling.filtering import filter_nodes
from scheduler_plugin.scheduling.placing import place_by_policy
from scheduler_plugin.scheduling.policies.registry import NodePolicy, PolicyRequest, chooses_cards
from scheduler_plugin.scheduling.request import (
    SchedulingRequest,
    make_policy_request,
    with_units_for,
    without_compute,
)
from scheduler_plugin.simulator.trace import CARD, TraceNode, TracePod

if TYPE_CHECKING:
    from allocator.cards import Card

NO_CHARGE: Final[Mapping[int, int]] = MappingProxyType({})
_COLUMN_NAMES: Final = ("pods", "cpu", "host memory", "GPU memory", "percent of cards")


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedPodKind:
    """Kind of pods with the same request; one object for each request.

    Attributes:
        request: As policies see it; percent as units of the size of card that there is most.
        nodes: bool[R], nodes whose model the pod accepts; None: all.
        requested_milli: Thousandths of a card over all cards, as the trace counts them.
        query: What is asked of cards; None: it asks for none.
    """

    request: PolicyRequest
    nodes: BoolArray | None
    requested_milli: int
    query: SchedulingRequest | None

    @property
    def is_plain(self) -> bool:
        """Whether it asks for units alone, with one container, as most do: that is found faster."""
        if self.query is None:
            return True
        request = self.query.request
        return len(self.request.demands) == 1 and not (request.percent or request.asks_compute)


class ChosenCards(NamedTuple):
    """Cards of a pod: units and percent of compute, by position; without compute where it asks for none."""

    units: Mapping[int, int] = NO_CHARGE
    compute: Mapping[int, int] = NO_CHARGE


class SimulatedCluster:
    """Nodes of a trace, and pods on them.

    Args:
        nodes: Sorted by name, so that the first of equal rows has the smallest name.
        card_units: Units a card has whose node does not say; requests are rounded up to whole units.
        arrays: Where these nodes stand already, in their order; None: they are put into new ones.

    Attributes:
        units: Units of all cards together.
        resources: Resources of all nodes together.
        even: All cards have one size.
    """

    def __init__(
        self,
        nodes: Sequence[TraceNode],
        card_units: int = CARD,
        others: Sequence[str] = (),
        arrays: NodeArrays | None = None,
    ) -> None:
        self.card_units = card_units
        self.arrays = self._fill_arrays(nodes, others) if arrays is None else arrays
        self._all_rows = np.arange(self.arrays.row_count)
        self._cards: dict[int, list[Card]] = {}
        self._kinds: dict[tuple[TracePod, str], SimulatedPodKind] = {}
        self.gpus = sum(node.cards for node in nodes)
        self.units = int(self.arrays.size.sum())
        cpu, memory = (int(self.arrays.amounts.capacity[column].sum()) for column in (CPU, MEMORY))
        self.resources = Amounts(units=self.units, cpu_milli=cpu, memory_bytes=memory)
        sizes = Counter[int]()
        for node in nodes:
            if node.cards:
                sizes[node.card_units or card_units] += node.cards
        self.even = len(sizes) <= 1
        self._usual = max(sizes, key=lambda size: (sizes[size], size), default=card_units)
        if self.even:
            self.card_units = self._usual
        self._model_of_row = np.array(
            [
                self.arrays.model[row, 0] if self.arrays.cards[row] else -1
                for row in range(self.arrays.row_count)
            ],
            dtype=np.int64,
        )

    def _fill_arrays(self, nodes: Sequence[TraceNode], others: Sequence[str]) -> NodeArrays:
        arrays = NodeArrays(rows=max(1, len(nodes)), cards=max(1, *(node.cards for node in nodes)))
        arrays.amounts.set_other_resources(others)
        for node in nodes:
            row = arrays.add_node(node.name)
            arrays.amounts.set_capacity(
                row,
                Amounts(
                    pods=NOT_COUNTED,
                    cpu_milli=node.cpu_milli,
                    memory_bytes=node.memory_mib * MIB,
                    others=node.others,
                ),
            )
            cards = [node.card_units or self.card_units] * node.cards
            models = [node.model] * node.cards
            arrays.set_cards(row, cards, [0] * node.cards, models=models, compute_limit=node.compute_limit)
        return arrays

    def get_kind(self, pod: TracePod, card_policy: str) -> SimulatedPodKind:
        """Make a pod's request ready; the same object for equal requests."""
        key = pod.shape, card_policy
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = self._make_kind(pod, card_policy)
        return kind

    def _make_kind(self, pod: TracePod, card_policy: str) -> SimulatedPodKind:
        amounts = pod.gpu_units or ((-(-pod.gpu_milli * self.card_units // CARD),) if pod.cards else ())
        request = pod.make_request(amounts)
        nodes: BoolArray | None = None
        admits: BoolArray | None = None
        if pod.models:
            nodes = self.mask_admitted(request.selector)
            admits = np.broadcast_to(nodes[:, None], self.arrays.size.shape)
        others = Amounts(1, pod.cpu_milli, pod.memory_mib * MIB, others=pod.others)
        ask = make_policy_request(request, others, card_policy, admits=admits)
        query = with_units_for(SchedulingRequest(request, ask), self._usual)
        return SimulatedPodKind(query.policy_request, nodes, pod.requested_milli, query if amounts else None)

    def mask_admitted(self, selector: Selector) -> BoolArray:
        """Find the nodes whose model a selector admits; all cards of a node are of one."""
        names = self.arrays.model_names
        admitted_models = [at for at, name in enumerate(names) if selector.admits_model(name)]
        result: BoolArray = np.isin(self._model_of_row, admitted_models)
        return result

    def filter_rows(self, kind: SimulatedPodKind) -> RowArray:
        """Find the rows that can take a pod now, in the order of their names."""
        arrays = self.arrays
        fits = arrays.amounts.mask_fits(kind.request.amounts, self._all_rows)
        if kind.is_plain:
            cards = self._mask_with_cards(kind)
            return np.flatnonzero(fits if cards is None else fits & cards)
        rows = np.flatnonzero(fits)
        return rows[self._mask_fitting(kind, rows)]

    def compute_whole_percent(self) -> float:
        """Compute the cards that are free as a whole, in percent of all."""
        arrays = self.arrays
        whole = np.count_nonzero((arrays.free == arrays.size) & (arrays.size > 0))
        return 100.0 * float(whole) / self.gpus

    def can_place(self, kind: SimulatedPodKind, row: int) -> bool:
        arrays, policy_request = self.arrays, kind.request
        if kind.nodes is not None and not kind.nodes[row]:
            return False
        if not arrays.amounts.fits(policy_request.amounts, row):
            return False
        if not kind.is_plain:
            return bool(self._mask_fitting(kind, np.array([row], dtype=np.intp))[0])
        return all(
            demand.cards <= len(arrays.free_order)
            and arrays.free_order[demand.cards - 1, row] >= demand.units
            for demand in policy_request.demands
        )

    def explain_misfit(self, kind: SimulatedPodKind) -> str:
        """Say what a pod that fits nowhere is short of, by the first class that rules out all nodes left."""
        arrays, policy_request = self.arrays, kind.request
        if kind.nodes is not None and not kind.nodes.any():
            return "no node of that model"
        there = self._mask_with_cards(kind)
        if there is not None and not there.any():
            if kind.query is not None and kind.query.request.asks_compute:
                memory = filter_nodes(arrays, without_compute(kind.query), self._all_rows)
                if memory.any():
                    return "not enough compute beside the memory of cards"
            alone = len(policy_request.demands) == policy_request.demands[0].cards == 1
            return "no card with enough free" if alone else "not enough cards free"
        rows = np.flatnonzero(arrays.usable if there is None else there)
        for column, asked in arrays.amounts.list_asked(policy_request.amounts):
            rows = rows[arrays.amounts.compute_left(column, rows) >= asked]
            if rows.size:
                continue
            if column == CPU:
                return "not enough cpu beside the cards" if policy_request.demands else "not enough cpu"
            name = _COLUMN_NAMES[column] if column < FIXED else arrays.other_resources[column - FIXED]
            return f"not enough {name} beside the rest"
        # Each of its containers would find its cards, but for the others.
        return "not enough cards free"

    def choose_cards(self, kind: SimulatedPodKind, row: int, policy: NodePolicy) -> ChosenCards:
        """Choose cards as bind does on one of `filter_rows`'s rows.

        Raises:
            PolicyError: what a policy gives is no cards, or no costs.
        """
        if kind.query is None:
            return ChosenCards()
        by_node = chooses_cards(policy) and node_policy_chooses(kind.request.card_policy)
        if by_node or not kind.is_plain:
            placement = place_by_policy(policy, self.arrays, row, kind.query)
            return ChosenCards() if placement is None else ChosenCards(placement.charge, placement.compute)
        units, count, _ = kind.request.demands[0]
        cards = self._cards.get(row)
        if cards is None:
            cards = self._cards[row] = list(build_cards(self.arrays, row))
        return ChosenCards(dict.fromkeys(choose(cards, units, count, kind.request.card_policy) or (), units))

    def add_pod(self, kind: SimulatedPodKind, row: int, chosen: ChosenCards) -> None:
        self._add_charge(kind, row, chosen, 1)

    def remove_pod(self, kind: SimulatedPodKind, row: int, chosen: ChosenCards) -> None:
        self._add_charge(kind, row, chosen, -1)

    def _add_charge(self, kind: SimulatedPodKind, row: int, chosen: ChosenCards, times: int) -> None:
        arrays = self.arrays
        if chosen.units:
            allocated = arrays.assumed[row, : arrays.cards[row]].tolist()
            compute = arrays.compute.assumed[row, : arrays.cards[row]].tolist()
            for card, percent in chosen.compute.items():
                compute[card] += times * percent
            known = self._cards.get(row)
            for card, units in chosen.units.items():
                allocated[card] += times * units
                if known is not None:
                    known[card] = replace(known[card], used_units=allocated[card], compute_used=compute[card])
            arrays.set_assumed(row, allocated, compute)
        arrays.amounts.add_requested(row, kind.request.amounts, times)

    def _mask_fitting(self, kind: SimulatedPodKind, rows: RowArray) -> BoolArray:
        if kind.query is None:
            return np.ones(len(rows), dtype=np.bool_)
        return filter_nodes(self.arrays, kind.query, rows)

    def _mask_with_cards(self, kind: SimulatedPodKind) -> BoolArray | None:
        """Find the nodes that have the cards; all cards of a node are of one model."""
        if not kind.request.demands:
            return None
        if not kind.is_plain:
            return self._mask_fitting(kind, np.arange(self.arrays.row_count))
        units, count, _ = kind.request.demands[0]
        if count > self.arrays.free_order.shape[0]:
            none: BoolArray = np.zeros(self.arrays.row_count, dtype=np.bool_)
            return none
        result: BoolArray = self.arrays.free_order[count - 1] >= units
        if kind.nodes is not None:
            result &= kind.nodes
        return result
