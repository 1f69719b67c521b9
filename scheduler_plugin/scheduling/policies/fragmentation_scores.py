"""Scores of node states against one typical workload, kept by the shape of the pod and the state."""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from allocator.place import choose_each
from allocator.policy import node_policy_chooses
from kubeapi.bounded import BoundedDict
from scheduler_plugin.cache.arrays import BoolArray, ClusterView, FloatArray, LongArray, RowArray
from scheduler_plugin.cache.cards import build_cards
from scheduler_plugin.scheduling.card_costs import CardCosts, get_array_costs
from scheduler_plugin.scheduling.policies.fragmentation_placing import RESOLUTION, StatePlacer
from scheduler_plugin.scheduling.policies.fragmentation_states import TIE_LEVELS, NodeStates
from scheduler_plugin.scheduling.policies.fragmentation_terms import FragmentationTerms
from scheduler_plugin.scheduling.policies.fragmentation_workload import TypicalWorkload
from scheduler_plugin.scheduling.policies.registry import CardDemand, PolicyRequest

PickArray = NDArray[np.int16]

_SHAPES: Final = 64
"""Shapes of pods whose scores by row are remembered."""

_ENTRIES: Final = 1 << 23
"""Scores that are remembered, over all shapes."""


class FragmentationScores:
    """Scores pods on the nodes of a view.

    Args:
        unseen: The share of pods that it does not know of, 0 to 1.
    """

    def __init__(self, workload: TypicalWorkload, unseen: float = 0.0) -> None:
        self._terms = FragmentationTerms(workload, unseen)
        self._states = NodeStates(self._terms)
        self._generation = 0
        self._known: BoundedDict[tuple[object, ...], tuple[FloatArray, PickArray]] = BoundedDict(1)
        self._by_row: BoundedDict[tuple[object, ...], tuple[LongArray, FloatArray]] = BoundedDict(_SHAPES)

    def follow(self, view: ClusterView) -> None:
        """Bring the states of rows whose version changed up to date."""
        self._states.follow(view)
        if self._states.generation != self._generation:
            self._generation = self._states.generation
            self._known.clear()
            self._by_row.clear()

    def score(self, view: ClusterView, ask: PolicyRequest, rows: RowArray) -> FloatArray:
        """Score rows: float64[m], lower is better, inf where the pod does not fit."""
        if _is_node_by_node(ask):
            return self.by_cards(view, ask, rows)
        if len(rows) == 1 and ask.admits is not None:
            # A pod that asks for percent, or cards of one model, may use those only that it would get there.
            return self._exactly(view, ask, rows, self._find(view, ask, rows)[0])
        return self.by_row(view, ask, rows) if _is_by_row(ask) else self.by_state(view, ask, rows)

    def by_state(self, view: ClusterView, ask: PolicyRequest, rows: RowArray) -> FloatArray:
        """Score rows, computing only states that no pod of this shape was scored on before."""
        of_row = self._states.of_row[rows]
        scores, picks = self._table(ask)
        state_scores: FloatArray = scores[of_row]
        missing = np.isnan(state_scores)
        if missing.any():
            fresh, at = np.unique(of_row[missing], return_index=True)
            state_scores, chosen = self._score_states(fresh, ask, None)
            scores[fresh] = self._exactly(view, ask, rows[missing][at], state_scores)
            if _one_card(ask):
                picks[fresh] = chosen[0][0]
            state_scores = scores[of_row]
        return state_scores

    def by_row(self, view: ClusterView, ask: PolicyRequest, rows: RowArray) -> FloatArray:
        """Score rows by the cards that the pod may use, where these do not follow from the state alone.

        Which they are follows from the row's version; most rows are as they were last time.
        """
        seen, scores = self._by_row.recall(
            _make_shape(ask), lambda: (np.full(len(view.names), -1), np.zeros(len(view.names)))
        )
        stale = rows[seen[rows] != view.version[rows]]
        if stale.size:
            scores[stale] = self._exactly(view, ask, stale, self._find(view, ask, stale)[0])
            seen[stale] = view.version[stale]
        result: FloatArray = scores[rows]
        return result

    def _find(self, view: ClusterView, ask: PolicyRequest, rows: RowArray) -> tuple[FloatArray, PickArray]:
        """Find the scores of rows and, of a pod with one card, its position in their states."""
        states = self._states.of_row[rows]
        state_scores, state_picks = self._table(ask)
        scores, picks = state_scores[states], state_picks[states]
        apart = _mask_apart(view, ask, rows)
        scores[apart] = np.nan
        left = np.flatnonzero(np.isnan(scores))
        if left.size:
            scores[left], picks[left] = self._score_allowed(view, ask, rows[left])
            alike = left[~apart[left]]
            state_scores[states[alike]], state_picks[states[alike]] = scores[alike], picks[alike]
        return scores, picks

    def _score_allowed(
        self, view: ClusterView, ask: PolicyRequest, rows: RowArray
    ) -> tuple[FloatArray, RowArray]:
        states = self._states.of_row[rows]
        allowed = _allowed(view, ask, rows, self._states.orders(rows))
        first = number = np.arange(len(rows))
        if len(rows) > 1:
            # Rows of one state with the same cards are alike.
            kinds = np.column_stack((states, np.packbits(allowed, axis=1)))
            keys = kinds.view(f"V{kinds[0].nbytes}").ravel()
            _, first, number = np.unique(keys, return_index=True, return_inverse=True)
        scores, chosen = self._score_states(states[first], ask, allowed[first])
        picks = chosen[0][0] if _one_card(ask) else np.zeros(len(first), dtype=np.intp)
        return scores[number], picks[number]

    def _exactly(
        self, view: ClusterView, ask: PolicyRequest, rows: RowArray, scores: FloatArray
    ) -> FloatArray:
        """Score rows again by the cards found exactly where each on the best card left a later one none."""
        left = np.flatnonzero(np.isinf(scores))
        if left.size and len(ask.demands) > 1:
            scores[left] = self.by_cards(view, ask, rows[left])
        return scores

    def by_cards(self, view: ClusterView, ask: PolicyRequest, rows: RowArray) -> FloatArray:
        """Score rows by the cards of `choose_each`, as where a card policy tells for one node only."""
        shape = (len(rows), view.size.shape[1])
        allowed: list[BoolArray] = [np.zeros(shape, dtype=np.bool_) for _ in ask.demands]
        for at, row in enumerate(rows.tolist()):
            order = self._states.order(row)
            chosen = _choose_each(view, ask, row)
            for mask, positions in zip(allowed, chosen or (), strict=False):
                mask[at, [order.index(card) for card in positions]] = True
        return self._scored(self._states.of_row[rows], ask, allowed)[0]

    def cards(self, view: ClusterView, ask: PolicyRequest, row: int) -> tuple[tuple[int, ...], ...] | None:
        """The cards that a row's score was computed with, by demand; None when the pod does not fit."""
        if _is_node_by_node(ask):
            taken = _choose_each(view, ask, row)
            return None if taken is None else tuple(taken)
        rows = np.array([row], dtype=np.intp)
        orders = self._states.orders(rows)
        order = orders[0].tolist()
        if _one_card(ask):
            (score,), (pick,) = self._find(view, ask, rows)
            return ((order[int(pick)],),) if score < np.inf else None
        allowed = _allowed(view, ask, rows, orders)
        scores, chosen = self._scored(self._states.of_row[rows], ask, allowed)
        if not scores[0] < np.inf:
            return None
        return tuple(tuple(order[int(position[0])] for position in demand) for demand in chosen)

    def value(self, rows: RowArray) -> FloatArray:
        """Fragmentation of rows as they are: float64[m], units."""
        states = self._states
        numbers = states.of_row[rows]
        unknown = np.unique(numbers[np.isnan(states.value[numbers])])
        limits = self._terms.limits(states.cpu_free[unknown], states.memory_free[unknown])
        states.value[unknown] = self._terms.evaluate(states.sums[unknown], limits, np.arange(unknown.size))
        result: FloatArray = states.value[numbers]
        return result

    def _table(self, ask: PolicyRequest) -> tuple[FloatArray, PickArray]:
        """Scores by state for pods like this one, NaN where not known, and the card of those with one."""
        capacity = self._states.capacity
        key = _make_shape(ask)
        self._known.most = max(1, _ENTRIES // capacity)
        table = self._known.recall(
            key, lambda: (np.full(capacity, np.nan, dtype=np.float64), np.zeros(capacity, dtype=np.int16))
        )
        if len(table[0]) < capacity:
            more = capacity - len(table[0])
            table = self._known[key] = (
                np.concatenate((table[0], np.full(more, np.nan))),
                np.concatenate((table[1], np.zeros(more, dtype=np.int16))),
            )
        return table

    def _score_states(
        self, numbers: RowArray, ask: PolicyRequest, allowed: BoolArray | None
    ) -> tuple[FloatArray, list[list[RowArray]]]:
        """Place a pod as `_scored` does, and where that fails again with its largest demand first."""
        scores, chosen = self._scored(numbers, ask, allowed)
        late = np.flatnonzero(np.isinf(scores)) if len(ask.demands) > 1 else numbers[:0]
        if late.size:
            mask = None if allowed is None else allowed[late]
            scores[late] = self._scored(numbers[late], ask, mask, largest_first=True)[0]
        return scores, chosen

    def _scored(
        self,
        numbers: RowArray,
        ask: PolicyRequest,
        allowed: BoolArray | Sequence[BoolArray] | None,
        *,
        largest_first: bool = False,
    ) -> tuple[FloatArray, list[list[RowArray]]]:
        """Place a pod on states, demand by demand and card by card, each on the best card left.

        Args:
            numbers: intp[n], states.
            allowed: bool[n, K], cards it may use; one for each demand: exactly those it takes; None: by the
                models that its selector admits.
            largest_first: Try the largest demand first, as the exact search begins, see `filtering`. Where
                the pod's own order leaves a demand without cards, this nearly always finds some. The cards
                are not always those that the pod would get.

        Returns:
            float64[n], scores, inf if it does not fit; for each demand and card the positions, intp[n].
        """
        states, terms = self._states, self._terms
        unknown = numbers[np.isnan(states.value[numbers])]
        # In the same evaluation as what they become, because each has a price of its own.
        asked = np.concatenate((numbers, unknown))
        cpu_free, memory_free = states.cpu_free[asked], states.memory_free[asked]
        cpu_free[: len(numbers)] -= ask.cpu_milli
        memory_free[: len(numbers)] -= ask.memory_bytes
        limits = terms.limits(np.maximum(cpu_free, 0.0), np.maximum(memory_free, 0.0))
        place = StatePlacer(terms, states.cards[numbers], states.sums[numbers], states.sums[unknown], limits)
        if allowed is None and not ask.selector.admits_all:
            models = np.array([ask.selector.admits_model(model) for model in terms.card_model])
            allowed = models[place.cards]
        each = [allowed] * len(ask.demands) if isinstance(allowed, np.ndarray | None) else allowed
        costs = None if node_policy_chooses(ask.card_policy) else get_array_costs(ask.card_policy)
        demands = sorted(ask.demands, reverse=True) if largest_first else ask.demands
        chosen: list[list[RowArray]] = []
        taken: BoolArray = np.zeros(place.cards.shape, dtype=np.bool_)
        for d, mask in zip(demands, each, strict=True):
            if ask.rules.apart:
                mask = ~taken if mask is None else mask & ~taken  # noqa: PLW2901
            chosen.append(place.demand(d.units, d.cards, mask, _fullest(d) if largest_first else costs))
            for positions in chosen[-1]:
                taken[np.arange(len(numbers)), positions] = True
        if not place.evaluated:
            place.nothing()
        states.value[unknown] = place.answers
        ranked = np.rint((place.value - states.value[numbers]) * RESOLUTION) * TIE_LEVELS**2
        return np.where(place.fits, ranked + states.tie[numbers], np.inf), chosen


def _make_shape(ask: PolicyRequest) -> tuple[object, ...]:
    """Return what of a pod its score follows from, besides the node."""
    return (ask.cpu_milli, ask.memory_bytes, ask.demands, ask.selector, ask.card_policy, ask.rules)


def _fullest(demand: CardDemand) -> CardCosts:
    """Prefer for one card the fullest that has the units, for several the emptiest."""
    sign = 1 if demand.cards == 1 else -1
    return lambda _size, free, _units: (sign * free).astype(np.float64)


def _choose_each(view: ClusterView, ask: PolicyRequest, row: int) -> list[tuple[int, ...]] | None:
    return choose_each(build_cards(view, row), ask.demands, ask.card_policy, ask.selector, ask.rules)


def _one_card(ask: PolicyRequest) -> bool:
    return len(ask.demands) == 1 and ask.demands[0].cards == 1


def _is_node_by_node(ask: PolicyRequest) -> bool:
    """Tell whether only the cards of each node say which of them the pod's card policy takes."""
    name = ask.card_policy
    return bool(ask.demands) and not node_policy_chooses(name) and get_array_costs(name) is None


def _is_by_row(ask: PolicyRequest) -> bool:
    """Tell whether nodes of one state may differ in which of their cards a pod may use."""
    return ask.admits is not None and (_names_cards(ask) or any(demand.compute for demand in ask.demands))


def _names_cards(ask: PolicyRequest) -> bool:
    return bool(ask.selector.uuids or ask.selector.excluded_uuids)


def _mask_apart(view: ClusterView, ask: PolicyRequest, rows: RowArray) -> BoolArray:
    """Tell which rows cannot have the score of their state: bool[m].

    For one demand they are those with a card that has the units and that the pod may not use. Of several
    demands each may take the compute of the next.
    """
    if ask.admits is None or len(ask.demands) > 1 or _names_cards(ask):
        return np.full(len(rows), ask.admits is not None, dtype=np.bool_)
    lacking = (view.free[rows] >= ask.demands[0].units) & ~ask.admits[rows]
    result: BoolArray = np.any(lacking, axis=1)
    return result


def _allowed(view: ClusterView, ask: PolicyRequest, rows: RowArray, orders: RowArray) -> BoolArray:
    """Cards of rows that a pod may use, in the order of the rows' states: bool[m, K]."""
    allowed: BoolArray = np.arange(orders.shape[1]) < view.cards[rows][:, None]
    if ask.admits is not None:
        allowed &= np.take_along_axis(ask.admits[rows], orders, axis=1)
    return allowed
