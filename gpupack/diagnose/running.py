"""Explains a running pod: its cards, the other pods on them, and what it was allocated."""

from collections.abc import Sequence
from typing import Final

from allocator.errors import AllocatorError
from allocator.names import POD_ALLOCATION
from allocator.quantity import format_memory
from allocator.records import MemoryRecord, load_allocation
from gpupack.inventory.objects import NodesAndPods as TopCluster
from gpupack.inventory.records import CardRow
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
    memory_of = _memory(pod)
    pod_cards = tuple(
        _use(card, uid, cluster.unit_mib, memory_of.get(card.uuid or "", []))
        for card in row.cards
        if any(each.uid == uid for each in card.pods)
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
    numbers = list_card_numbers(cluster, name, claimed)
    cards = f"{'card' if len(numbers) == 1 else 'cards'} {', '.join(map(str, numbers))}"
    return f"{cards} by its ResourceClaims: not prepared yet, or another pod that shares them has the units"


def _memory(pod: Pod) -> dict[str, list[MemoryRecord]]:
    """Read the memory that the node wrote into a pod, by the card's UUID."""
    text = pod.metadata.get_annotation(POD_ALLOCATION)
    try:
        allocation = load_allocation(text) if text is not None else None
    except AllocatorError:
        return {}
    found: dict[str, list[MemoryRecord]] = {}
    if allocation is not None and allocation.uid == pod.metadata.uid:
        for by_card in allocation.memory.values():
            for uuid, record in by_card.items():
                found.setdefault(uuid, []).append(record)
    return found


def _use(card: CardRow, uid: str, unit_mib: int, memory_of: Sequence[MemoryRecord]) -> PodCard:
    own = [pod for pod in card.pods if pod.uid == uid]
    promised = sum(pod.units for pod in own)
    used = [record.used for record in memory_of if record.used is not None]
    held_by = {record.held for record in memory_of}
    compute_by = {record.compute_held for record in memory_of if record.compute_held}
    return PodCard(
        card=card.index,
        uuid=card.uuid,
        model=card.model,
        size_units=card.size_units,
        used_units=card.used_units,
        free_units=card.free_units,
        promised_units=promised,
        used_mib=sum(used) if used and len(used) == len(memory_of) else None,
        limit_mib=promised * unit_mib if held_by and held_by <= LIMITED else None,
        held=held_by.pop() if len(held_by) == 1 else "",
        share=own[0].share,
        compute=sum(pod.compute for pod in own),
        compute_in_use=card.compute_in_use,
        compute_held=compute_by.pop() if len(compute_by) == 1 else "",
        neighbours=tuple(
            PodUnits(pod.namespace, pod.name or pod.uid, pod.units, (card.index,))
            for pod in card.pods
            if pod.uid != uid
        ),
    )
