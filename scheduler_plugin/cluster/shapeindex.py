"""Where pods are starting that the kubelet could mistake for another one."""

from collections.abc import Iterable

from allocator.request import PodRequest
from scheduler_plugin.cluster.pods import Shape, Size, shapes
from scheduler_plugin.cluster.rules import Claim, NodeRecord


class ShapeIndex:
    """Node names by what the claims on them ask of the kubelet."""

    def __init__(self) -> None:
        self._names: dict[Size, dict[Shape, set[str]]] = {}

    def update(self, book: NodeRecord, claims: Iterable[Claim]) -> None:
        """Take the claims on a node, which replace those of before."""
        found: set[tuple[Size, Shape]] = set()
        # Pods that ask alike share one request.
        for request in {id(claim.request): claim.request for claim in claims}.values():
            found |= shapes(request)
        if found == book.shapes:
            return
        for units, shape in book.shapes - found:
            names = self._names[units][shape]
            names.discard(book.name)
            if not names:
                del self._names[units][shape]
        for units, shape in found - book.shapes:
            self._names.setdefault(units, {}).setdefault(shape, set()).add(book.name)
        book.shapes = frozenset(found)

    def busy(self, wanted: frozenset[tuple[Size, Shape]]) -> set[str]:
        """Names of nodes where the kubelet could take one of the claims for a pod of these shapes."""
        found: set[str] = set()
        for units, shape in wanted:
            for other, names in self._names.get(units, {}).items():
                if other != shape:
                    found |= names
        return found


def mistakable(wanted: frozenset[tuple[Size, Shape]], request: PodRequest) -> bool:
    """Tell whether the kubelet could take a pod that asks for this for one of these shapes."""
    claimed = shapes(request)
    return any(units == size and shape != other for units, shape in wanted for size, other in claimed)
