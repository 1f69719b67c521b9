"""Reads which cards a user means, and which pods are on them."""

from gpupack.errors import InputError
from gpupack.rebalance.movable_pods import MovablePod, MovablePods
from gpupack.rebalance.plan_state import Card
from gpupack.whatif.cluster import Cluster
from gpupack.whatif.what_if import PodCardUsage


def find_cards(cluster: Cluster, what: str) -> frozenset[Card]:
    """Find a node's cards by its name, or one card by NODE/NUMBER or its UUID.

    Raises:
        InputError: there is no such node or card.
    """
    node, slash, number = what.partition("/")
    for name, node_record in cluster.state.node_records.items():
        if name == what and node_record.sizes:
            return frozenset((name, card) for card in range(len(node_record.sizes)))
        if what in node_record.uuids:
            return frozenset({(name, node_record.uuids.index(what))})
        if slash and name == node:
            known = [str(index) for index in node_record.indexes or range(len(node_record.sizes))]
            if number in known:
                return frozenset({(name, known.index(number))})
            raise InputError(f"node {node} has no card {number}; allowed: {', '.join(known) or 'none'}")
    if what in cluster.nodes:
        raise InputError(f"node {what} has no cards that gpupack knows")
    raise InputError(f"{what} is no node and no card; allowed: a node, NODE/NUMBER, or a card's UUID")


def list_pods_on_cards(
    cluster: Cluster, usage: PodCardUsage, movable_pods: MovablePods, cards: frozenset[Card]
) -> tuple[list[MovablePod], list[tuple[str, str]]]:
    """The pods on cards that may move, and of the others the name and why they stay."""
    moving: list[MovablePod] = []
    staying: list[tuple[str, str]] = []
    for node in sorted({name for name, _ in cards}):
        here = {card for name, card in cards if name == node}
        able = {movable.uid: movable for movable in movable_pods.list_on_node(node)}
        node_record = cluster.state.node_records[node]
        for uid, record in sorted(
            node_record.pods.items(), key=lambda item: (item[1].namespace, item[1].name)
        ):
            units = usage.get_units(record)
            if not units:
                staying.append((f"{record.namespace}/{record.name}", "nobody says on which card it is"))
            elif here.isdisjoint(units):
                continue
            elif uid in able:
                moving.append(able[uid])
            else:
                pod = cluster.pods[uid]
                why = movable_pods.explain_why_fixed(pod, record) or "filter refuses it elsewhere"
                staying.append((f"{record.namespace}/{record.name}", why))
    return moving, staying


def count_unowned_units(cluster: Cluster, usage: PodCardUsage, cards: frozenset[Card]) -> int:
    """Units that are taken on cards and that no pod has, as far as anybody says."""
    nodes = cluster.state.nodes
    total = 0
    for node, card in cards:
        row = nodes.rows[node]
        if nodes.evictable[row, card]:
            pods = sum(usage.get_units(record).get(card, 0) for record in usage.list_pods(node))
            total += max(0, int(nodes.occupied[row, card]) - pods)
    return total
