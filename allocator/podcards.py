"""The cards of a pod that has a node, by position in the node's words. One rule for everybody who asks.

What the node published of the pod in `holds` comes first. A pod that the node does not hold yet is where its
`allocation` says, else where `assigned` says. Cards that the node has no more, or that have no units any
more, are nobody's: what the pod has on its other cards stays.
"""

from collections.abc import Iterable, Mapping, Sequence

from allocator.errors import RequestError
from allocator.records import Assignment, charge
from allocator.request import PodRequest

ByPosition = Mapping[int, int]
"""Units by the position of a card in the words of its node."""


def published_units(units: ByPosition, sizes: Sequence[int]) -> dict[int, int]:
    """Read a pod's units of `holds`, for cards that the words know and that have units."""
    return {card: count for card, count in units.items() if card < len(sizes) and sizes[card]}


def assigned_units(
    request: PodRequest, assignment: Assignment, uuids: Sequence[str | None], sizes: Sequence[int]
) -> dict[int, int] | None:
    """Read a pod's units of an assignment, for those of its cards that are left.

    Args:
        request: What the pod asks for.
        assignment: Its cards, as an annotation names them.
        uuids: Of the node's cards, in the order of the words; empty where the node publishes no inventory.
        sizes: Units of the node's cards, in the same order.

    Returns:
        None where the assignment cannot be of such a request. Empty where none of the cards is left.
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


def first_assigned_units(
    request: PodRequest,
    assignments: Iterable[Assignment | None],
    uuids: Sequence[str | None],
    sizes: Sequence[int],
) -> dict[int, int]:
    """Read the first of some assignments that can be of a pod's request; empty where none can.

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
