"""Asking the policies: scores of nodes, and a pod's cards on one node.

Cards are chosen by the node policy where that knows better and finds any, else by the card policy.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from allocator.errors import PolicyError as CardPolicyError
from allocator.errors import shown
from allocator.place import Placement, placed
from allocator.policy import node_policy_chooses
from allocator.registry import one_line
from allocator.topology import rearranged
from scheduler_plugin.cache.arrays import ClusterView, FloatArray, RowArray
from scheduler_plugin.cache.cards import build_cards
from scheduler_plugin.cache.node_arrays import NodeArrays
from scheduler_plugin.errors import PolicyError
from scheduler_plugin.scheduling.filtering import place_on
from scheduler_plugin.scheduling.policies.registry import Ask, CardChooser, CardDemand, NodePolicy
from scheduler_plugin.scheduling.request import Query, by_size, in_units, usual_size

POLICY_FAULTS: Final = (PolicyError, CardPolicyError)
"""Raised where a policy of a plug-in gives something else than scores, cards or costs."""


def place_with(policy: NodePolicy, nodes: NodeArrays, row: int, query: Query) -> Placement | None:
    """Choose cards for every demand of a pod on one node.

    Args:
        policy: That ranked the node.
        nodes: The arrays.
        row: The node.
        query: The pod.

    Returns:
        The placement, None where the pod does not fit.

    Raises:
        PolicyError: what a policy gives is no cards, or no costs (that of allocator).
    """
    if not isinstance(policy, CardChooser) or not node_policy_chooses(query.ask.card_policy):
        return place_on(nodes, row, query)
    if not nodes.usable[row] or (query.request.percent and not nodes.percent[row]):
        return None
    sizes = nodes.size[row, : int(nodes.cards[row])].tolist()
    if query.request.percent and len(set(sizes)) > 1:
        return place_on(nodes, row, query)
    ask = in_units(query, max(sizes, default=0)).ask
    chosen = _cards_of(policy, nodes, ask, row)
    if chosen is None:
        # It takes one card after the other, which may leave a later container none.
        return place_on(nodes, row, query)
    return placed(query.request, _near(nodes, row, ask, chosen), sizes)


def _near(nodes: NodeArrays, row: int, ask: Ask, chosen: Sequence[Sequence[int]]) -> Sequence[Sequence[int]]:
    """Prefer cards that lie near each other, of those that are the same to the node policy."""
    count = int(nodes.cards[row])
    several = len(chosen) > 1 or any(len(cards) > 1 for cards in chosen)
    if not several or not (nodes.links[row] or (nodes.numa[row, :count] >= 0).any()):
        return chosen
    admitted = range(count) if ask.admits is None else np.flatnonzero(ask.admits[row]).tolist()
    demands = [(demand.units, demand.cards) for demand in ask.demands]
    return rearranged(build_cards(nodes, row), demands, chosen, admitted)


def score(policy: NodePolicy, nodes: NodeArrays, query: Query, rows: RowArray) -> FloatArray:
    """Score nodes that fit a pod: float64[m], lower is better, as `NodePolicy.score`.

    Args:
        policy: That ranks nodes for the pod.
        nodes: The arrays.
        query: The pod.
        rows: intp[m], rows that fit.

    Raises:
        PolicyError: what the policy gives is no scores.
    """
    if not query.request.percent:
        return scores_of(policy, nodes, query.ask, rows)
    scores: FloatArray = np.full(len(rows), np.inf, dtype=np.float64)
    sizes = by_size(nodes, rows)
    for size, at in sizes.even:
        scores[at] = scores_of(policy, nodes, in_units(query, size).ask, rows[at])
    for at in sizes.mixed.tolist():
        ask = _on_its_cards(nodes, query, int(rows[at]))
        if ask is not None:
            scores[at] = scores_of(policy, nodes, ask, rows[at : at + 1])[0]
    return scores


def scores_of(policy: NodePolicy, view: ClusterView, ask: Ask, rows: RowArray) -> FloatArray:
    """Ask a policy for scores in units, and check that they are one number a row.

    Raises:
        PolicyError: they are not.
    """
    try:
        scores: FloatArray = np.asarray(policy.score(view, ask, rows), dtype=np.float64)
    except Exception as error:
        raise _wrong(policy, f"scores cannot be had: {one_line(error)}") from error
    if scores.shape != rows.shape:
        raise _wrong(policy, f"scores of shape {scores.shape} for {len(rows)} nodes")
    if np.isnan(scores).any():
        raise _wrong(policy, f"score of a node is nan, of {len(rows)} nodes")
    return scores


def _cards_of(policy: CardChooser, nodes: NodeArrays, ask: Ask, row: int) -> Sequence[Sequence[int]] | None:
    """Ask a policy for a pod's cards, and check that each demand has so many different ones with room.

    Raises:
        PolicyError: they have not.
    """
    try:
        chosen = policy.choose_cards(nodes, ask, row)
        if chosen is None:
            return None
        free = nodes.free[row, : int(nodes.cards[row])].tolist()
        fits = len(chosen) == len(ask.demands)
        for positions, demand in zip(chosen, ask.demands, strict=False):
            fits = fits and len(set(positions)) == len(positions) == demand.cards and min(positions) >= 0
            for at in positions:
                free[at] -= demand.units
    except Exception as error:
        raise _wrong(policy, f"cards cannot be had: {one_line(error)}") from error
    if not fits or min(free, default=0) < 0:
        asked = [tuple(demand) for demand in ask.demands]
        raise _wrong(policy, f"cards {shown(chosen)} do not have the units of {shown(asked)} free")
    return chosen


def _wrong(policy: object, what: str) -> PolicyError:
    return PolicyError(f"node policy {type(policy).__name__} of {type(policy).__module__}: {what}")


def lesson(nodes: NodeArrays, query: Query, rows: RowArray) -> Ask:
    """What policies learn of a pod: its request in units of the cards that most of the rows have."""
    if not query.request.percent:
        return query.ask
    size = usual_size(nodes, rows) or usual_size(nodes, np.arange(nodes.row_count))
    return in_units(query, size).ask


def _on_its_cards(nodes: NodeArrays, query: Query, row: int) -> Ask | None:
    """What a pod asks for on a node whose cards differ: the units on each of the cards that it would get.

    Largest first, and on no other cards: so a policy that places one after the other finds room for all.
    """
    placement = place_on(nodes, row, query)
    if placement is None:
        return None
    admits = np.zeros(nodes.size.shape, dtype=np.bool_)
    admits[row, list(placement.charge)] = True
    demands = tuple(CardDemand(units, 1) for units in sorted(placement.charge.values(), reverse=True))
    return replace(query.ask, demands=demands, admits=admits)
