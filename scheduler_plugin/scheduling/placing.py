"""Scores of nodes, and the cards of a pod on one node, as the policies give them.

Cards are chosen by the node policy if it chooses cards and finds some, else by the card policy.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from allocator.card_rules import NO_RULES
from allocator.cards import Card
from allocator.errors import CardPolicyError, shown
from allocator.place import Placement, place, placed
from allocator.policy import node_policy_chooses
from allocator.registry import one_line
from allocator.topology import rearranged
from scheduler_plugin.cache.arrays import ClusterView, FloatArray, RowArray
from scheduler_plugin.cache.cards import build_cards
from scheduler_plugin.cache.node_arrays import NodeArrays
from scheduler_plugin.errors import PolicyError
from scheduler_plugin.scheduling.policies.registry import (
    CardChooser,
    CardDemand,
    NodePolicy,
    PolicyRequest,
    chooses_cards,
)
from scheduler_plugin.scheduling.request import (
    SchedulingRequest,
    split_rows,
    with_compute,
)

POLICY_FAULTS: Final = (PolicyError, CardPolicyError)
"""Errors of a plugin's policy that returns something else than scores, cards or costs."""


def place_by_policy(
    policy: NodePolicy,
    nodes: NodeArrays,
    row: int,
    query: SchedulingRequest,
    preferred_uuids: Collection[str] = (),
) -> Placement | None:
    """Choose cards for every demand of a pod on one node; None if the pod does not fit.

    Args:
        preferred_uuids: UUIDs of cards that the pod gets if they are free. Pods that were planned together
            fit on the cards that were planned for them; chosen anew in another order they might not.

    Raises:
        PolicyError: a policy returns invalid cards, or (allocator's error) invalid costs.
    """
    if not nodes.mask_offering(query.request)[row]:
        return None
    cards, card_policy = build_cards(nodes, row), query.policy_request.card_policy
    if preferred_uuids:
        left = [card if card.uuid in preferred_uuids else card.with_free_units(0) for card in cards]
        placement = place(left, query.request, card_policy)
        if placement is not None:
            return placement
    if chooses_cards(policy) and node_policy_chooses(card_policy):
        chosen = _choose_by_node_policy(policy, nodes, row, with_compute(nodes, query), cards)
        if chosen is not None:
            return placed(query.request, chosen, [card.size_units for card in cards])
    return place(cards, query.request, card_policy)


def _choose_by_node_policy(
    policy: CardChooser, nodes: NodeArrays, row: int, query: SchedulingRequest, cards: Sequence[Card]
) -> Sequence[Sequence[int]] | None:
    """Choose cards by the node policy, near each other among those that it finds equal; None if it cannot."""
    by_size, others = split_rows(nodes, query, np.array([row]))
    if others.size:
        return None  # node policies weigh cards, not sets of them
    ask = by_size[0][0].policy_request
    chosen = _choose_cards(policy, nodes, ask, row)
    if chosen is None or not (ask.rules.allows(cards, chosen) and _has_compute(cards, query, chosen)):
        # It takes one card after the other, which may leave a later container none. One of a plug-in may not
        # know the rules.
        return None
    several = len(chosen) > 1 or any(len(each) > 1 for each in chosen)
    if not several or not any(card.links or card.numa is not None for card in cards):
        return chosen
    admitted = range(len(cards)) if ask.admits is None else np.flatnonzero(ask.admits[row]).tolist()
    return rearranged(cards, ask.demands, chosen, admitted)


def _has_compute(cards: Sequence[Card], query: SchedulingRequest, chosen: Sequence[Sequence[int]]) -> bool:
    """Tell whether the cards chosen for each demand have the compute of all of them."""
    charge = query.request.charge_compute(chosen)
    return all(cards[at].compute_free >= percent for at, percent in charge.items())


def score_nodes(
    policy: NodePolicy, nodes: NodeArrays, query: SchedulingRequest, rows: RowArray
) -> FloatArray:
    """Score nodes that fit a pod: float64[m], lower is better, as `NodePolicy.score`.

    Raises:
        PolicyError: the policy returns invalid scores.
    """
    query = with_compute(nodes, query)
    by_size, others = split_rows(nodes, query, rows)
    scores: FloatArray = np.full(len(rows), np.inf, dtype=np.float64)
    for in_units, at in by_size:
        scores[at] = compute_scores(policy, nodes, in_units.policy_request, rows[at])
    for at in others.tolist():
        ask = _make_request_for_cards(nodes, query, int(rows[at]))
        if ask is not None:
            scores[at] = compute_scores(policy, nodes, ask, rows[at : at + 1])[0]
    return scores


def compute_scores(policy: NodePolicy, view: ClusterView, ask: PolicyRequest, rows: RowArray) -> FloatArray:
    """Ask a policy for scores in units, and check that there is one number for each row.

    Raises:
        PolicyError: they are not.
    """
    try:
        scores: FloatArray = np.asarray(policy.score(view, ask, rows), dtype=np.float64)
    except Exception as error:
        raise _make_error(policy, f"scores cannot be had: {one_line(error)}") from error
    if scores.shape != rows.shape:
        raise _make_error(policy, f"scores of shape {scores.shape} for {len(rows)} nodes")
    # The smallest of numbers with a nan is nan.
    if len(scores) and np.isnan(scores.min()):
        raise _make_error(policy, f"score of a node is nan, of {len(rows)} nodes")
    return scores


def _choose_cards(
    policy: CardChooser, nodes: NodeArrays, ask: PolicyRequest, row: int
) -> Sequence[Sequence[int]] | None:
    """Ask a policy for a pod's cards, and check that each demand got its number of different, free cards.

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
        raise _make_error(policy, f"cards cannot be had: {one_line(error)}") from error
    if not fits or min(free, default=0) < 0:
        asked = [tuple(demand) for demand in ask.demands]
        raise _make_error(policy, f"cards {shown(chosen)} do not have the units of {shown(asked)} free")
    return chosen


def _make_error(policy: object, what: str) -> PolicyError:
    return PolicyError(f"node policy {type(policy).__name__} of {type(policy).__module__}: {what}")


def _make_request_for_cards(nodes: NodeArrays, query: SchedulingRequest, row: int) -> PolicyRequest | None:
    """Make the request for a node whose cards differ, with the units on each card that the pod would get.

    Demands are ordered largest first and restricted to these cards, so that a policy that places them one
    after the other finds room for all.
    """
    placement = place(build_cards(nodes, row), query.request, query.policy_request.card_policy)
    if placement is None:
        return None
    admits = np.zeros(nodes.size.shape, dtype=np.bool_)
    admits[row, list(placement.charge)] = True
    taken = [(units, placement.compute.get(at, 0)) for at, units in placement.charge.items()]
    demands = tuple(CardDemand(units, 1, compute) for units, compute in sorted(taken, reverse=True))
    return replace(query.policy_request, demands=demands, admits=admits, rules=NO_RULES)
