"""Choosing a pod's cards on one node: by the node policy where that knows better, else by the card policy."""

from allocator.place import CardShares, Placement
from scheduler_plugin.cluster.nodes import NodeArrays
from scheduler_plugin.placement.filtering import Query, place_on
from scheduler_plugin.placement.policies.registry import CardChooser, NodePolicy

CHOSEN_BY_NODE_POLICY = "fragmentation"
"""Card policy under which a node policy that is a `CardChooser` names the cards that it scored."""


def place_with(policy: NodePolicy, nodes: NodeArrays, row: int, query: Query) -> Placement | None:
    """Choose cards for every demand of a pod on one node.

    Args:
        policy: That ranked the node.
        nodes: The arrays.
        row: The node.
        query: The pod.

    Returns:
        The placement, None where the pod does not fit.
    """
    if query.ask.card_policy != CHOSEN_BY_NODE_POLICY or not isinstance(policy, CardChooser):
        return place_on(nodes, row, query)
    if not nodes.usable[row]:
        return None
    chosen = policy.choose_cards(nodes, query.ask, row)
    if chosen is None:
        return None
    own_units = {container.name: container.units for container in query.request.containers}
    charge: dict[int, int] = {}
    shares: dict[str, CardShares] = {}
    for demand, cards in zip(query.request.demands, chosen, strict=True):
        for card in cards:
            charge[card] = charge.get(card, 0) + demand.units_per_card
        for name in demand.containers:
            shares[name] = tuple((card, own_units[name] // demand.cards) for card in cards)
    containers = tuple((each.name, shares[each.name]) for each in query.request.containers)
    return Placement(containers, charge)
