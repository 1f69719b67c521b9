"""The stand-in's container runtime: containers run on while the kubelet restarts or is away."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from standins.kubelet.pods import Kind


@dataclass(frozen=True, slots=True)
class ContainerRecord:
    """Container that was started.

    Attributes:
        kind: ordinary init containers have ended when the next one starts.
        cdi_devices: CDI names it was started with.
        devices: resource -> IDs, as the kubelet gave them at its start.
        running: False once it has ended or was killed.
    """

    namespace: str
    pod: str
    name: str
    kind: Kind
    envs: Mapping[str, str]
    cdi_devices: tuple[str, ...]
    devices: Mapping[str, frozenset[str]]
    running: bool


class Runtime:
    """Every container ever started on the machine, by pod UID and container name."""

    def __init__(self) -> None:
        self._containers: dict[tuple[str, str], ContainerRecord] = {}

    @property
    def containers(self) -> Mapping[tuple[str, str], ContainerRecord]:
        return self._containers

    def start(self, uid: str, record: ContainerRecord) -> None:
        """Start a container; an ordinary init container ends at once."""
        self._containers[uid, record.name] = replace(record, running=record.kind != "init")

    def running_pods(self) -> frozenset[str]:
        """List the UIDs of pods with a running container: those whose cgroups exist."""
        return frozenset(uid for (uid, _), record in self._containers.items() if record.running)

    def stop_pod(self, uid: str) -> None:
        for key, record in self._containers.items():
            if key[0] == uid and record.running:
                self._containers[key] = replace(record, running=False)
