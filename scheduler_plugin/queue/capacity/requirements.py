"""Requirements of queued pods; pods with equal requirements are interchangeable. Pure."""

from dataclasses import dataclass, field
from functools import cached_property

from allocator.request import PodRequest
from kubeapi.selectors import NodeRules
from scheduler_plugin.cache.amounts import NOTHING, Amounts
from scheduler_plugin.errors import StateError


@dataclass(frozen=True)
class PodRequirements:
    """The requirements of one pod: of cards, of the node besides, and on which nodes it may run."""

    request: PodRequest
    amounts: Amounts = NOTHING
    rules: NodeRules = field(default_factory=NodeRules)

    @cached_property
    def units(self) -> int:
        """Units of GPU memory over all cards; for pods that ask for percent use `quota_usage.QuotaUsage`.

        Raises:
            StateError: it asks for percent.
        """
        if self.percent:
            raise StateError("units of a pod that asks for percent; allowed: to ask for those on a node")
        return self.request.compute_units(0)

    @cached_property
    def percent(self) -> bool:
        """Whether the pod asks for percent of cards, whose units depend on the card."""
        return self.request.percent

    @property
    def shape(self) -> "PodRequirements":
        """Key that is equal for pods that fit on the same nodes."""
        return self

    @cached_property
    def _hash(self) -> int:
        return hash((self.request, self.amounts, self.rules))

    def __hash__(self) -> int:
        """Return a hash computed once: every capacity lookup uses it."""
        return self._hash


Member = tuple[str, PodRequirements]
"""UID and requirements of one pod of a workload."""


@dataclass(frozen=True)
class GangRequirements:
    """The requirements of a gang; no two gangs are interchangeable.

    Attributes:
        members: Its pods; if all ask for units, the hardest to place first.
    """

    uid: str
    members: tuple[Member, ...]

    @cached_property
    def percent(self) -> bool:
        return any(requirements.percent for _, requirements in self.members)

    @cached_property
    def shape(self) -> tuple[PodRequirements, ...]:
        """Requirements of its pods, sorted; gangs of equal shape fit in the same places."""
        return tuple(requirements for _, requirements in self.members)

    def __hash__(self) -> int:
        """Hash the UID of the gang only, because it may have many members."""
        return hash(self.uid)


Needs = PodRequirements | GangRequirements
