"""Requirements of queued pods; pods with equal requirements are interchangeable. Pure."""

from dataclasses import dataclass, field
from functools import cached_property

from allocator.request import PodRequest
from kubeapi.selectors import NodeRules
from scheduler_plugin.cache.host_resources import HostRequest
from scheduler_plugin.cache.pods import ResourceAmounts
from scheduler_plugin.errors import StateError
from scheduler_plugin.queue.capacity.dominant_share import QueueResources


@dataclass(frozen=True)
class PodRequirements:
    """The requirements of one pod.

    Attributes:
        request: What it asks of cards.
        cpu_milli: Thousandths of a core.
        memory_bytes: Bytes of host memory.
        rules: Nodes that it may run on.
        others: Amounts of further resources.
    """

    request: PodRequest
    cpu_milli: int = 0
    memory_bytes: int = 0
    rules: NodeRules = field(default_factory=NodeRules)
    others: ResourceAmounts = ()

    @cached_property
    def host(self) -> HostRequest:
        """Requests beside cards."""
        return HostRequest(self.cpu_milli, self.memory_bytes, self.others)

    @cached_property
    def units(self) -> int:
        """Units of GPU memory over all cards; for pods that ask for percent use `quota_usage.QuotaUsage`.

        Raises:
            StateError: it asks for percent.
        """
        if self.percent:
            raise StateError("units of a pod that asks for percent; allowed: to ask for those on a node")
        return self.compute_units(0)

    @cached_property
    def percent(self) -> bool:
        """Whether the pod asks for percent of cards, whose units depend on the card."""
        return self.request.percent

    @property
    def shape(self) -> "PodRequirements":
        """Key that is equal for pods that fit on the same nodes."""
        return self

    def compute_units(self, size: int) -> int:
        """Compute the units of GPU memory over all its cards, each of which has `size` units."""
        return sum(demand.units_on(size) * demand.cards for demand in self.request.demands)

    def make_resources(self, units: int) -> QueueResources:
        """Make the resources that the pod counts for, with so many units of GPU memory."""
        return QueueResources(units, self.cpu_milli, self.memory_bytes)

    def compute_hardness(self, size: int) -> int:
        """Compute the units on one card of `size` units; pods with more are harder to place."""
        return max(demand.units_on(size) for demand in self.request.demands)

    @cached_property
    def _hash(self) -> int:
        return hash((self.request, self.cpu_milli, self.memory_bytes, self.rules, self.others))

    def __hash__(self) -> int:
        """Return a hash computed once: every capacity lookup uses it."""
        return self._hash


@dataclass(frozen=True)
class GangRequirements:
    """The requirements of a gang; no two gangs are interchangeable.

    Attributes:
        members: UID and requirements of each of its pods; if all ask for units, the hardest to place first.
    """

    uid: str
    members: tuple[tuple[str, PodRequirements], ...]

    @cached_property
    def percent(self) -> bool:
        """Whether some of its pods ask for percent of cards."""
        return any(requirements.percent for _, requirements in self.members)

    @cached_property
    def shape(self) -> tuple[PodRequirements, ...]:
        """Requirements of its pods, sorted; gangs of equal shape fit in the same places."""
        return tuple(requirements for _, requirements in self.members)

    def __hash__(self) -> int:
        """Hash the UID of the gang only, because it may have many members."""
        return hash(self.uid)


Needs = PodRequirements | GangRequirements
