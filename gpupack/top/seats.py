"""Which pods sit on which card: from the node's holds, else from the pods' annotations."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from allocator.errors import AllocatorError
from allocator.names import POD_ALLOCATION, POD_ASSIGNED
from allocator.records import Assignment, Holds, charge, load_allocation, load_assigned
from allocator.request import PodRequest, parse_admitted
from gpupack.top.records import CardRow, PodRow, Share, printable
from scheduler_plugin.cluster.objects import PodLite, container_mappings

_OVER: Final = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class Seats:
    """Pods by the name of their node."""

    by_node: Mapping[str, Sequence[PodLite]]

    @classmethod
    def of(cls, pods: Iterable[PodLite]) -> "Seats":
        """Sort pods by node; those that wait for one are left out."""
        by_node: dict[str, list[PodLite]] = {}
        for pod in pods:
            if pod.spec.node_name:
                by_node.setdefault(pod.spec.node_name, []).append(pod)
        return cls(by_node)

    def on(self, node: str) -> Sequence[PodLite]:
        """The pods of one node."""
        return self.by_node.get(node, ())


def join_pods(
    cards: Sequence[CardRow], holds: Holds | None, pods: Iterable[PodLite], resource: str
) -> tuple[tuple[CardRow, ...], tuple[PodRow, ...]]:
    """Put the pods of a node on its cards.

    What the node holds comes first, for it is exact, also about init containers, whose units the others
    reuse; a pod that it does not hold yet is where `allocation` or `assigned` says.

    Args:
        cards: of the node, in the order of the words.
        holds: what its words hold.
        pods: on the node.
        resource: the extended resource.

    Returns:
        The cards with their pods, and the pods on no card that is known.
    """
    held = dict(holds.units) if holds is not None else {}
    position_of = {card.uuid: position for position, card in enumerate(cards) if card.uuid is not None}
    on_card: dict[int, list[PodRow]] = {}
    nowhere: list[PodRow] = []
    for pod in pods:
        meta = pod.metadata
        row = PodRow(printable(meta.namespace), printable(meta.name), meta.uid, 0, "unknown")
        share: Share = "ending" if pod.status.phase in _OVER else "allocated"
        units: Mapping[int, int] = held.pop(meta.uid, {})
        if not units:
            if pod.status.phase in _OVER:
                continue
            request = _request(pod, resource)
            if request is None:
                continue
            share, units = _by_annotations(pod, request, position_of)
            if not units:
                nowhere.append(replace(row, units=request.effective_units))
        memory = _memory(pod)
        for position, count in units.items():
            used_mib, by = memory.get(cards[position].uuid or "", (None, ""))
            row = replace(row, used_mib=used_mib, held=by)
            on_card.setdefault(position, []).append(replace(row, units=count, share=share))
    for uid, units in held.items():
        for position, count in units.items():
            on_card.setdefault(position, []).append(PodRow("", "", printable(uid), count, "ending"))
    with_pods = tuple(
        replace(card, pods=tuple(sorted(on_card[position], key=_order))) if position in on_card else card
        for position, card in enumerate(cards)
    )
    return with_pods, tuple(sorted(nowhere, key=_order))


def _order(pod: PodRow) -> tuple[str, str, str]:
    return pod.namespace, pod.name, pod.uid


def _request(pod: PodLite, resource: str) -> PodRequest | None:
    request, _ = parse_admitted(
        pod.metadata.annotations or {},
        container_mappings(pod.spec.init_containers),
        container_mappings(pod.spec.containers),
        resource,
    )
    return request


def _memory(pod: PodLite) -> dict[str, tuple[int | None, str]]:
    """MiB used and what holds it, by card, as `allocation` tells; None where it does not of one container."""
    found: dict[str, tuple[int | None, str]] = {}
    with suppress(AllocatorError):
        allocation = load_allocation((pod.metadata.annotations or {}).get(POD_ALLOCATION, ""))
        cards = allocation.memory.values() if allocation.uid == pod.metadata.uid else ()
        for uuid, record in (pair for card in cards for pair in card.items()):
            before_mib, _ = found.get(uuid, (0, ""))
            known = before_mib is not None and record.used is not None
            used_mib = (before_mib or 0) + (record.used or 0) if known else None
            found[uuid] = used_mib, printable(record.held)
    return found


def _by_annotations(
    pod: PodLite, request: PodRequest, position_of: Mapping[str, int]
) -> tuple[Share, dict[int, int]]:
    """Read where the kubelet put a pod, else where the scheduler wants it; annotations get copied."""
    annotations = pod.metadata.annotations or {}
    found: list[tuple[Share, Assignment]] = []
    with suppress(AllocatorError):
        allocation = load_allocation(annotations.get(POD_ALLOCATION, ""))
        if allocation.uid == pod.metadata.uid:
            found.append(("allocated", allocation.containers))
    with suppress(AllocatorError):
        found.append(("assigned", load_assigned(annotations.get(POD_ASSIGNED, ""))))
    for share, assignment in found:
        try:
            costs = charge(request, assignment)
        except AllocatorError:
            continue
        if costs.keys() <= position_of.keys():
            return share, {position_of[uuid]: units for uuid, units in costs.items()}
    return "unknown", {}
