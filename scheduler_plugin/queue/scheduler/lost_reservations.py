"""Find admitted pods that lost their planned cards: kube-scheduler bound other pods to those first. Pure."""

from scheduler_plugin.cache.charges import ChargeRules, NodeRecord
from scheduler_plugin.cache.state import ClusterState


def find_displaced(record: NodeRecord, rules: ChargeRules) -> list[str]:
    """Find assumed pods whose cards have no room for them any more: those assumed last are the first to go.

    Such a pod would count on every card of the node, because it is not known where it is served. So it would
    keep others away from room that it cannot have.

    Args:
        record: A node.
        rules: The accounting.

    Returns:
        UIDs, the pod assumed first comes first.
    """
    units = list(record.used)
    for charge in (*rules.charges_of_bound(record), *rules.charges_of_vanished(record)):
        for card, charged in (rules.charge_assigned_cards(record, charge) or {}).items():
            units[card] += charged
    displaced = []
    for charge in rules.charges_of_assumed(record):
        charges = rules.charge_assigned_cards(record, charge)
        if charges is None:
            continue
        if any(units[card] + charged > record.sizes[card] for card, charged in charges.items()):
            displaced.append(charge.uid)
            continue
        for card, charged in charges.items():
            units[card] += charged
    return displaced


def find_displaced_on_node(state: ClusterState, node: str) -> list[str]:
    """Find displaced pods on a node of a cluster. On most nodes that is none, as is seen at once."""
    record, nodes = state.node_records.get(node), state.nodes
    row = nodes.rows.get(node)
    if record is None or row is None or not record.assumed or not record.sizes:
        return []
    if not (nodes.used[row] + nodes.assumed[row] > nodes.size[row]).any():
        return []
    return find_displaced(record, state.rules)
