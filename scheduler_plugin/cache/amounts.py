"""What a pod asks of a node besides the choice of cards, and what a node has of it. Pure."""

from collections.abc import Callable, Iterable
from functools import reduce
from typing import Final, NamedTuple

from allocator.errors import QuantityError
from allocator.names import PERCENT_RESOURCE
from allocator.request import PodRequest

ResourceAmounts = tuple[tuple[str, int], ...]
"""Whole amounts of resources, by name, in the order of the names; none is 0."""


class Amounts(NamedTuple):
    """One whole number for each resource that kube-scheduler adds up for a node.

    A pod has what it asks for, a node what it offers or what its pods ask for. Like Kueue's `Requests`, they
    are added and subtracted resource by resource.

    Attributes:
        memory_bytes: Bytes of host memory.
        units: Units of GPU memory, over all cards together.
        percent: Percent of cards, over all cards together.
        others: Resources that only some nodes have.
    """

    pods: int = 0
    cpu_milli: int = 0
    memory_bytes: int = 0
    units: int = 0
    percent: int = 0
    others: ResourceAmounts = ()

    def add(self, other: "Amounts", times: int = 1) -> "Amounts":
        """Add `times` times other amounts; -1 subtracts them."""
        pods, cpu, memory, units, percent, others = self
        more_pods, more_cpu, more_memory, more_units, more_percent, more_others = other
        if more_others:
            sums = dict(others)
            for name, amount in more_others:
                sums[name] = sums.get(name, 0) + times * amount
            others = tuple(sorted(item for item in sums.items() if item[1]))
        return Amounts(
            pods + times * more_pods,
            cpu + times * more_cpu,
            memory + times * more_memory,
            units + times * more_units,
            percent + times * more_percent,
            others,
        )

    def subtract(self, other: "Amounts") -> "Amounts":
        return self.add(other, -1)

    def without_sums(self) -> "Amounts":
        """Leave out GPU memory, for where only the cards themselves are looked at."""
        return self._replace(units=0, percent=0)

    def with_sums(self, request: PodRequest) -> "Amounts":
        """Count the GPU memory of a request."""
        asked = request.effective_units
        return self._replace(percent=asked) if request.percent else self._replace(units=asked)

    def list_asked(self) -> list[tuple[int | str, int]]:
        """List what is asked for: positions, and names of further resources, with the amounts.

        As for kube-scheduler, nothing need be left of the other resources.
        """
        asked: list[tuple[int | str, int]] = [
            (position, amount) for position, amount in enumerate(self[:FIXED]) if amount > 0
        ]
        return [*asked, *self.others] if self.others else asked

    def list_short(self, left: "Amounts") -> list[int | str]:
        """List the resources of which less is left than is asked for, see `list_asked`.

        `AmountColumns.mask_fits` says the same of many nodes at once.
        """
        return [resource for resource, amount in self.list_asked() if amount > left.get(resource)]

    def fits_in(self, left: "Amounts") -> bool:
        return not self.list_short(left)

    def count_in(self, left: "Amounts") -> int:
        """Count how often this fits into what is left, for pods that ask for the same."""
        counts = (left.get(resource) // amount for resource, amount in self.list_asked())
        return max(0, min(counts, default=NOT_COUNTED))

    def get(self, resource: int | str) -> int:
        """Return the amount at a position, or of a further resource by its name."""
        if isinstance(resource, str):
            return dict(self.others).get(resource, 0)
        return self[:FIXED][resource]


NOTHING: Final = Amounts()
ONE_POD: Final = Amounts(pods=1)

PODS, CPU, MEMORY, UNITS, PERCENT = range(5)
"""Positions of amounts, and of their columns in arrays; further resources follow."""

FIXED: Final = 5
"""Number of these positions."""

RESOURCES: Final = ("pods", "cpu", "memory", "gpu-memory", PERCENT_RESOURCE)
"""Names of what these positions count; that of GPU memory depends on the cluster's unit."""

NOT_COUNTED: Final = 1 << 60
"""What a node has of a resource that kube-scheduler does not count there; adding to it stays within int64."""


def sum_amounts(amounts: Iterable[Amounts], start: Amounts = NOTHING) -> Amounts:
    return reduce(Amounts.add, amounts, start)


def read_amount(value: str | int | None, parse: Callable[[str | int], int]) -> int:
    """Read an amount; what cannot be read, or is not there, counts as 0."""
    try:
        return 0 if value is None else max(0, parse(value))
    except QuantityError:
        return 0
