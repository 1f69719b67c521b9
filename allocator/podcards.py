"""Reads how many units a bound pod has on which cards of its node: the one rule for filter, why and top.

What the node published of the pod in `holds` comes first. A pod that the node does not hold yet is where the
extender charges it: where all of `assigned` can be true, there. Else it is where its `allocation` says, else
on what is left of `assigned`. A card that the node no longer has, or that has no units any longer, drops out.
What the pod has on its other cards stays.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType

from allocator.errors import RequestError
from allocator.records import Assignment, Holds, charge, charge_assigned_compute
from allocator.request import PodRequest

ByPosition = Mapping[int, int]
"""Units by the position of a card in the words of its node."""


def read_accounted_units(holds: Holds) -> dict[str, ByPosition | None]:
    """Read the units of each accounted pod, by UID; None if the node does not say how much."""
    units = holds.units
    return {uid: _share_units(tuple(units[uid].items())) if uid in units else None for uid in holds.uids}


@lru_cache(maxsize=1024)
def _share_units(units: tuple[tuple[int, int], ...]) -> ByPosition:
    """Return one mapping for all pods that have the same units: there are tens of thousands."""
    return MappingProxyType(dict(units))


def published_units(units: ByPosition, sizes: Sequence[int]) -> dict[int, int]:
    """Read a pod's units of `holds`, for cards that the words know and that have units."""
    return {card: count for card, count in units.items() if card < len(sizes) and sizes[card]}


def assigned_units(
    request: PodRequest, assignment: Assignment, uuids: Sequence[str | None], sizes: Sequence[int]
) -> dict[int, int] | None:
    """Read a pod's units of an assignment, for those of its cards that are left.

    Args:
        assignment: Its cards, as an annotation names them.
        uuids: UUIDs of the node's cards, in the order of the words; empty if the node publishes no
            inventory.
        sizes: Units of the node's cards, in the same order.

    Returns:
        None if the assignment cannot be of such a request. Empty if none of the cards is left.
    """
    position_of = {
        uuid: card for card, (uuid, size) in enumerate(zip(uuids, sizes, strict=False)) if uuid and size
    }
    sizes_of = {uuid: sizes[card] for uuid, card in position_of.items()}
    try:
        costs = charge(request, assignment, sizes_of, partly=True)
    except RequestError:
        return None
    return {position_of[uuid]: units for uuid, units in costs.items() if uuid in position_of}


def charged_units(
    request: PodRequest, assignment: Assignment, uuids: Sequence[str | None], sizes: Sequence[int]
) -> dict[int, int] | None:
    """Charge a pod that its node does not hold yet on the cards of its Binding.

    Arguments are those of `assigned_units`.

    Returns:
        None if the node's cards or the request do not agree with the Binding.
    """
    # What a share costs depends on the cards that the node has now; what units cost does not.
    sizes_of = dict(zip(uuids, sizes, strict=False)) if request.percent else {}
    try:
        units_of = charge(request, assignment, sizes_of)  # type: ignore[arg-type]
    except RequestError:
        return None
    charges: dict[int, int] = {}
    for uuid, units in units_of.items():
        if uuid not in uuids:
            return None
        charges[uuids.index(uuid)] = units
    return charges


def charged_compute(
    request: PodRequest, assignment: Assignment, uuids: Sequence[str | None]
) -> dict[int, int]:
    """Charge a pod's percent of compute by card position, on cards that `charge` agrees with."""
    by_uuid = charge_assigned_compute(request, assignment)
    return {at: by_uuid[uuid] for at, uuid in enumerate(uuids) if uuid is not None and uuid in by_uuid}


def unheld_units(
    request: PodRequest,
    assigned: Assignment | None,
    allocated: Assignment | None,
    uuids: Sequence[str | None],
    sizes: Sequence[int],
) -> dict[int, int]:
    """Read the units of a pod that its node does not hold yet; empty if nobody says them.

    The pod's end frees units where the extender charges it, whatever `allocation` says. A node that has given
    it other cards says so in its next words.

    Args:
        assigned: The cards of its Binding, None if they are not known.
        allocated: The cards that the node wrote, None if they are not known.
    """
    due = None if assigned is None else charged_units(request, assigned, uuids, sizes)
    if due is not None:
        return published_units(due, sizes)
    return first_assigned_units(request, (allocated, assigned), uuids, sizes)


def first_assigned_units(
    request: PodRequest,
    assignments: Iterable[Assignment | None],
    uuids: Sequence[str | None],
    sizes: Sequence[int],
) -> dict[int, int]:
    """Read the first of some assignments that can be of a pod's request; empty if none can.

    Arguments are those of `assigned_units`; None stands for an annotation that is missing or unreadable.
    """
    for assignment in assignments:
        units = None if assignment is None else assigned_units(request, assignment, uuids, sizes)
        if units is not None:
            return units
    return {}


def units_of_pod(request: PodRequest, sizes: Sequence[int]) -> int:
    """Count the units of a whole pod whose cards are not known, on a node with cards of such sizes.

    Percent count as they would on the largest card.
    """
    if not request.percent:
        return request.effective_units
    largest = max(sizes, default=0)
    return sum(min(largest, demand.units_on(largest)) * demand.cards for demand in request.demands)
