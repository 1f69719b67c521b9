"""Explains a running pod: its cards, the other pods on them, and what it was allocated."""

from typing import Final

from allocator.quantity import format_memory
from allocator.texts import name_cards
from gpupack.inventory.objects import NodesAndPods as TopCluster
from gpupack.inventory.records import CardRow, PodRow
from gpupack.inventory.rows import build_rows
from gpupack.whatif.answers import PodCard, PodUnits
from gpupack.whatif.cluster import Cluster
from gpupack.whatif.what_if import PodCardUsage, list_card_numbers
from kubeapi.objects import Pod

LIMITED: Final = frozenset({"driver", "mps"})
"""What refuses memory beyond the promise, see docs/limits.md."""


def list_pod_cards(cluster: Cluster, pod: Pod) -> tuple[tuple[PodCard, ...], tuple[str, ...]]:
    """List the cards of a pod that has a node, and what else to say of them."""
    name = pod.spec.node_name
    node = cluster.nodes.get(name)
    if node is None:
        return (), (f"{cluster.source} has no node {name}",)
    seated = [each for each in cluster.pods.values() if each.spec.node_name == name]
    row = build_rows(TopCluster([node], seated, list(cluster.claims.values())), [name])[0]
    uid = pod.metadata.uid
    pod_cards = tuple(
        _make_pod_card(card, own, cluster.unit_mib)
        for card in row.cards
        for own in card.pods
        if own.uid == uid
    )
    notes = [f"node {name}: {row.error}"] if row.error else []
    if not pod_cards:
        notes.append(_explain_no_card(cluster, pod))
    for card in pod_cards:
        promised = card.promised_units + sum(each.units for each in card.neighbours)
        if promised < card.used_units < card.size_units:
            beyond = format_memory(card.used_units - promised, cluster.unit_mib)
            notes.append(
                f"card {card.card}: {beyond} are in use beyond what pods were promised, by processes of "
                "others or by pods that use more than they asked for"
            )
    return pod_cards, tuple(notes)


def _explain_no_card(cluster: Cluster, pod: Pod) -> str:
    name = pod.spec.node_name
    claimed = next((units for each, units in PodCardUsage(cluster).list_claim_pods(name) if each is pod), {})
    if not claimed:
        return "nobody says on which card it is: the node has not published it yet"
    cards = name_cards(list_card_numbers(cluster, name, claimed))
    return f"{cards} by its ResourceClaims: not prepared yet, or another pod that shares them has the units"


def _make_pod_card(card: CardRow, own: PodRow, unit_mib: int) -> PodCard:
    return PodCard(
        card=card.index,
        uuid=card.uuid,
        model=card.model,
        size_units=card.size_units,
        used_units=card.used_units,
        free_units=card.free_units,
        promised_units=own.units,
        used_mib=own.used_mib,
        limit_mib=own.units * unit_mib if own.held in LIMITED else None,
        held=own.held,
        share=own.share,
        compute=own.compute,
        compute_in_use=card.compute_in_use,
        compute_held=own.compute_held,
        neighbours=tuple(
            PodUnits(pod.namespace, pod.name or pod.uid, pod.units, (card.index,))
            for pod in card.pods
            if pod is not own
        ),
    )
