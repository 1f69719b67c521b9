"""State of the limits of one pod's containers; values, which the enforcer changes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from deviceplugin.enforcement.limit_plan import Grants, WantedLimit
from deviceplugin.enforcement.limit_setter import LimitOutcome


@dataclass(slots=True, eq=False)
class ContainerLimit:
    """The limit of one container's cgroup on one card.

    Attributes:
        uid: UID of the pod, as the kubelet knows it.
        wanted: what is to stand there.
        failures: attempts since it held last.
    """

    uid: str
    container: str | None
    uuid: str
    cgroup: Path
    wanted: WantedLimit
    outcome: LimitOutcome | None = None
    failures: int = 0

    @property
    def log_fields(self) -> dict[str, str | None]:
        return {"pod": self.uid, "container": self.container, "card": self.uuid}

    @property
    def is_in_force(self) -> bool:
        """Whether what is wanted was read back."""
        reading = self.outcome.reading if self.outcome is not None and self.outcome.fault is None else None
        return reading is not None and reading.hard_mib in self.wanted.accepted


@dataclass(slots=True, eq=False)
class LimitedPod:
    """A pod that was given memory.

    Attributes:
        cgroups: IDs of its containers by their cgroups, the sandbox's too.
        container_names: names of containers by their cgroups, as far as they are known.
        status_names: container names from the pod's status when it was last read.
    """

    grants: Grants = field(default_factory=dict)
    folder: Path | None = None
    cgroups: dict[Path, str] = field(default_factory=dict)
    container_names: dict[Path, str] = field(default_factory=dict)
    status_names: Mapping[str, str] | None = None
    limits: dict[tuple[Path, str], ContainerLimit] = field(default_factory=dict)
