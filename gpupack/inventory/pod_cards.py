"""Finds which pods sit on which card: from the node's holds, else from the pods' annotations."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from allocator.claims import ClaimObject
from allocator.names import COMPUTE_RESOURCE, POD_ALLOCATION
from allocator.podcards import (
    ByPosition,
    assigned_units,
    first_assigned_units,
    published_units,
    read_accounted_units,
    unheld_units,
    units_of_pod,
)
from allocator.records import Holds, MemoryRecord, read_own_allocation
from allocator.request import PodRequest
from deviceplugin.gpus.api.memory_limits import Enforcement
from gpupack.inventory.records import CardRow, PodRow, Share
from kubeapi.errors import make_printable
from kubeapi.objects import Pod
from scheduler_plugin.cache.charges import ChargeRules, NodeRecord
from scheduler_plugin.cache.claim_charges import AllocatedClaim, read_claim, sum_shares
from scheduler_plugin.cache.pod_cards import find_compute
from scheduler_plugin.cache.pods import PodRecord, read_pod

_RULES: Final = ChargeRules()


@dataclass(frozen=True, slots=True)
class PodsByNode:
    """Pods and claims by the name of their node."""

    by_node: Mapping[str, Sequence[Pod]]
    claims: Mapping[str, Sequence[ClaimObject]] = field(default_factory=dict)

    @classmethod
    def from_pods(cls, pods: Iterable[Pod], claims: Sequence[ClaimObject] = ()) -> "PodsByNode":
        """Sort pods by node; those that wait for one are left out."""
        by_node: dict[str, list[Pod]] = {}
        for pod in pods:
            if pod.spec.node_name:
                by_node.setdefault(pod.spec.node_name, []).append(pod)
        claims_by_node: dict[str, list[ClaimObject]] = {}
        for claim in claims:
            for node in {result.pool for result in claim.results or ()}:
                claims_by_node.setdefault(node, []).append(claim)
        return cls(by_node, claims_by_node)

    def get_pods(self, node: str) -> Sequence[Pod]:
        return self.by_node.get(node, ())

    def get_claims(self, node: str, unit_mib: int) -> Sequence[AllocatedClaim]:
        found = (read_claim(claim, unit_mib).get(node) for claim in self.claims.get(node, ()))
        return [claim for claim in found if claim is not None]


def join_pods(
    cards: Sequence[CardRow],
    holds: Holds | None,
    pods: Iterable[Pod],
    resource: str,
    claims: Iterable[AllocatedClaim],
) -> tuple[tuple[CardRow, ...], tuple[PodRow, ...]]:
    """Put the pods of a node on its cards, and charge those that its words do not hold yet.

    What the node holds comes first, for it is exact. `allocator.podcards` says where another pod is, and
    `ChargeRules` what it is charged, as in the extender. Pods on no known card are returned separately.
    """
    held = dict(holds.units) if holds is not None else {}
    node = NodeRecord(
        "",
        holds={} if holds is None else read_accounted_units(holds),
        sizes=tuple(card.size_units for card in cards),
        uuids=tuple(card.uuid for card in cards if card.uuid is not None),
        claims={claim.uid: claim for claim in claims},
        held_claims={} if holds is None else holds.claims,
    )
    by_claims = _sum_claims_by_pod(node)
    on_card: dict[int, list[PodRow]] = {}
    nowhere: list[PodRow] = []
    for pod in pods:
        meta = pod.metadata
        namespace, name = make_printable(meta.namespace), make_printable(meta.name)
        published = held.pop(meta.uid, None)
        share: Share = "ending" if pod.has_ended else "allocated"
        units: ByPosition = published_units(published or {}, node.sizes)
        if not units and not pod.has_ended:
            # The node says where the others are, and reading a pod takes long.
            record = read_pod(pod, resource)
            if record.charged is not None:
                node.pods[meta.uid] = record
                if published is None:
                    share, units = _cards_of(record, record.charged, node)
                if not units:
                    whole = 0 if published is not None else units_of_pod(record.charged, node.sizes)
                    nowhere.append(PodRow(namespace, name, meta.uid, whole, "unknown"))
        use = _read_use(pod)
        compute = by_claims.pop(meta.uid, Counter())
        # Reading the whole request of a pod takes longer.
        asks_compute = COMPUTE_RESOURCE in pod.spec.requested_resources
        compute.update(_compute_of(pod, node, resource, units) if asks_compute else {})
        for position, count in units.items():
            used_mib, by, busy, compute_by = use.get(cards[position].uuid or "", _NO_USE)
            percent = compute[position]
            row = PodRow(namespace, name, meta.uid, count, share, used_mib, by, percent, busy, compute_by)
            on_card.setdefault(position, []).append(row)
    for uid, units in held.items():
        for position, count in published_units(units, node.sizes).items():
            on_card.setdefault(position, []).append(PodRow("", "", make_printable(uid), count, "ending"))
    charges = _RULES.list_charges(node)
    assumed, assumed_compute = _RULES.sum_by_card(node, charges)
    with_pods = tuple(
        replace(
            card,
            pods=tuple(sorted(on_card.get(position, ()), key=_order)),
            assumed_units=assumed[position],
            assumed_compute=assumed_compute[position],
        )
        if position in on_card or assumed[position] or assumed_compute[position]
        else card
        for position, card in enumerate(cards)
    )
    return with_pods, tuple(sorted(nowhere, key=_order))


_Use = tuple[int | None, str, int | None, str]
_NO_USE: Final[_Use] = (None, "", None, "")


def _order(pod: PodRow) -> tuple[str, str, str]:
    return pod.namespace, pod.name, pod.uid


def _read_use(pod: Pod) -> dict[str, _Use]:
    """Read from `allocation`, by card, what a pod uses.

    Returns:
        MiB, None if they lack one container; what limits it; percent of compute, of the containers that ask
        for some, None if there are none; what limits that.
    """
    allocation = read_own_allocation(pod.metadata.get_annotation(POD_ALLOCATION), pod.metadata.uid)
    by_card: dict[str, list[MemoryRecord]] = {}
    for cards in () if allocation is None else allocation.memory.values():
        for uuid, record in cards.items():
            by_card.setdefault(uuid, []).append(record)
    return {uuid: _sum_use(records) for uuid, records in by_card.items()}


def _sum_use(records: Sequence[MemoryRecord]) -> _Use:
    """Add up what the containers of a pod use of a card."""
    used_mib = [record.used for record in records if record.used is not None]
    percent = [record.compute for record in records if record.compute is not None]
    return (
        sum(used_mib) if len(used_mib) == len(records) else None,
        _join_holders({record.held for record in records}),
        sum(percent) if percent else None,
        _join_holders({record.compute_held for record in records} - {""}),
    )


def _join_holders(holders: Collection[str]) -> str:
    """Say what limits a pod, by what limits its containers: nothing, if nothing limits one of them."""
    if len(holders) == 1:
        return make_printable(*holders)
    return Enforcement.ACCOUNTED.value if Enforcement.ACCOUNTED.value in holders else ""


def _sum_claims_by_pod(node: NodeRecord) -> dict[str, Counter[int]]:
    """Add up the percent of compute of claims by card position, by UID of the pod that has their units."""
    compute: dict[str, Counter[int]] = {}
    for claim in node.claims.values():
        user = next((uid for uid in claim.pods if uid in node.holds), "")
        cards = sum_shares(claim.shares, node.uuids, node.sizes)
        compute.setdefault(user, Counter()).update({card: percent for card, (_, percent) in cards.items()})
    return compute


def _compute_of(pod: Pod, node: NodeRecord, resource: str, units: ByPosition) -> Mapping[int, int]:
    """Find the percent of compute that a pod asks for by its limits, on the cards where it has units."""
    record = read_pod(pod, resource)
    return {} if record.charged is None else find_compute(node, record, record.charged, units)


def _cards_of(record: PodRecord, request: PodRequest, node: NodeRecord) -> tuple[Share, Mapping[int, int]]:
    """Find the cards of a pod whose units the node does not say, and who says so."""
    cards = node.uuids, node.sizes
    if record.uid in node.holds:
        units = first_assigned_units(request, (record.allocated, record.assigned), *cards)
    else:
        units = unheld_units(request, record.assigned, record.allocated, *cards)
    got = record.allocated
    is_given = got is not None and assigned_units(request, got, *cards) == units
    return ("unknown" if not units else "allocated" if is_given else "assigned"), units
