"""Released pods whose room others have: kube-scheduler chose other cards than the queue had in mind. Pure."""

from scheduler_plugin.cache.charges import NodeRecord, Rules
from scheduler_plugin.cache.state import ClusterState


def displaced(book: NodeRecord, rules: Rules) -> list[str]:
    """Find takes whose cards have no room for them any more, the newest first to go.

    Such a take would count on every card of the node, for it is not known where its pod is served; and it
    would keep others away from room that its pod cannot have.

    Args:
        book: A node.
        rules: The accounting.

    Returns:
        UIDs, the oldest take first.
    """
    units = list(book.used)
    for claim in (*rules.bound(book), *rules.vanished(book)):
        for card, charged in (rules.assigned_cards(book, claim) or {}).items():
            units[card] += charged
    found = []
    for claim in rules.taken(book):
        charges = rules.assigned_cards(book, claim)
        if charges is None:
            continue
        if any(units[card] + charged > book.sizes[card] for card, charged in charges.items()):
            found.append(claim.uid)
            continue
        for card, charged in charges.items():
            units[card] += charged
    return found


def displaced_on(state: ClusterState, node: str) -> list[str]:
    """Find them on a node of a cluster; on most nodes nothing can be over, and that is seen at once."""
    book, nodes = state.books.get(node), state.nodes
    row = nodes.rows.get(node)
    if book is None or row is None or not book.takes or not book.sizes:
        return []
    if not (nodes.used[row] + nodes.assumed[row] > nodes.size[row]).any():
        return []
    return displaced(book, state.rules)
