"""Choosing a pod's cards on one node: by the node policy where that knows better, else by the card policy."""

from allocator.place import Placement, placed
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
    return None if chosen is None else placed(query.request, chosen)
