"""What the stand-in kubelet reads of a pod: its containers, in admission order, and what they ask for."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from allocator.quantity import parse_integer
from kubeapi.objects import TERMINAL_PHASES, is_extended_resource

Kind = Literal["init", "sidecar", "main"]


@dataclass(frozen=True, slots=True)
class Container:
    """Container of a pod.

    Attributes:
        kind: `sidecar` is an init container with restartPolicy Always.
        limits: extended resource -> amount. The kubelet looks at limits only: requests must equal them.
    """

    name: str
    kind: Kind
    limits: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod as the API server has it.

    Attributes:
        created: creationTimestamp; batches are admitted oldest first.
        containers: init containers and sidecars in spec order, then the others: the order of admission.
        started: status.startTime, empty until a kubelet has admitted or refused the pod.
    """

    uid: str
    namespace: str
    name: str
    created: str
    containers: tuple[Container, ...]
    phase: str
    deleting: bool
    started: str

    @property
    def key(self) -> tuple[str, str]:
        return self.namespace, self.name

    @property
    def terminal(self) -> bool:
        return self.phase in TERMINAL_PHASES


def read_pod(manifest: Mapping[str, Any]) -> Pod:
    """Read a pod object.

    Raises:
        QuantityError: an extended resource is not a whole number.
        KeyError: a pod without metadata.name or metadata.uid.
    """
    metadata, spec, status = manifest["metadata"], manifest.get("spec") or {}, manifest.get("status") or {}
    return Pod(
        uid=metadata["uid"],
        namespace=metadata.get("namespace") or "default",
        name=metadata["name"],
        created=metadata.get("creationTimestamp") or "",
        containers=(
            *_containers(spec.get("initContainers") or (), init=True),
            *_containers(spec.get("containers") or (), init=False),
        ),
        phase=status.get("phase") or "Pending",
        deleting=bool(metadata.get("deletionTimestamp")),
        started=status.get("startTime") or "",
    )


def _containers(specs: Iterable[Mapping[str, Any]], *, init: bool) -> Iterable[Container]:
    for spec in specs:
        restarts = spec.get("restartPolicy") == "Always"
        kind: Kind = "main" if not init else "sidecar" if restarts else "init"
        limits = (spec.get("resources") or {}).get("limits") or {}
        yield Container(
            name=spec["name"],
            kind=kind,
            limits={
                resource: parse_integer(amount)
                for resource, amount in limits.items()
                if is_extended_resource(resource)
            },
        )


def effective_request(pod: Pod, resource: str) -> int:
    """Compute what the pod counts for by the Kubernetes rule.

    The larger of the sum over main containers and sidecars, and the largest ordinary init container
    together with the sidecars before it.
    """
    sidecars = peak = mains = 0
    for container in pod.containers:
        amount = container.limits.get(resource, 0)
        if container.kind == "init":
            peak = max(peak, sidecars + amount)
        elif container.kind == "sidecar":
            sidecars += amount
        else:
            mains += amount
    return max(peak, sidecars + mains)
