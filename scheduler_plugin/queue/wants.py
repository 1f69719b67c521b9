"""What a pod of the queue needs of a node, equal where pods are interchangeable. Pure."""

from dataclasses import dataclass, field
from functools import cached_property

from allocator.names import PERCENT_RESOURCE
from allocator.request import PodRequest
from scheduler_plugin.queue.labels import NodeRules


@dataclass(frozen=True)
class Wants:
    """The needs of one pod.

    Attributes:
        request: What it asks of cards.
        cpu_milli: Thousandths of a core.
        memory_bytes: Bytes of host memory.
        rules: Nodes that it may run on.
    """

    request: PodRequest
    cpu_milli: int = 0
    memory_bytes: int = 0
    rules: NodeRules = field(default_factory=NodeRules)

    @cached_property
    def units(self) -> int:
        """Units of GPU memory over all its cards, as quotas count them.

        Percent of a pod that asks for those: none is admitted, but one may come without asking.
        """
        return sum(demand.per_card * demand.cards for demand in self.request.demands)

    @property
    def fault(self) -> str:
        """What keeps the queue from admitting it, empty: nothing."""
        if not self.request.percent:
            return ""
        return f"{PERCENT_RESOURCE} in a queue: allowed are GiB, which its quota counts"

    @cached_property
    def _hash(self) -> int:
        return hash((self.request, self.cpu_milli, self.memory_bytes, self.rules))

    def __hash__(self) -> int:
        """Computed once: every question about room asks for it."""
        return self._hash


@dataclass(frozen=True)
class GangWants:
    """The needs of a gang: no two gangs are interchangeable.

    Attributes:
        uid: Of the gang.
        members: UID and needs of each of its pods, the hardest to place first.
    """

    uid: str
    members: tuple[tuple[str, Wants], ...]

    @cached_property
    def units(self) -> int:
        """Units of GPU memory of all members."""
        return sum(wants.units for _, wants in self.members)

    def __hash__(self) -> int:
        """By the gang: its members are many."""
        return hash(self.uid)


Needs = Wants | GangWants
