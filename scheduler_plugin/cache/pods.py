"""Pods as the scheduler keeps them: what they ask for, and what is known of their cards."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from allocator.errors import QuantityError, RequestError
from allocator.names import PERCENT_RESOURCE, POD_ALLOCATION, POD_ASSIGNED, POD_PLANNED, POD_REQUEUED
from allocator.packing import MAX_CARDS
from allocator.quantity import parse_bytes, parse_milli
from allocator.records import Assignment, load_allocation, load_assigned
from allocator.request import PodRequest, parse_admitted
from kubeapi.metadata import parse_resource_version, parse_time
from kubeapi.podstate import MIRROR_ANNOTATION, is_terminal
from scheduler_plugin.cache.objects import ContainerLite, PodLite, ResourceList, Resources, container_mappings

_OURS: Final = "gpupack.io/"
_CARDS_KNOWN: Final = frozenset({POD_ASSIGNED, POD_ALLOCATION, POD_PLANNED, POD_REQUEUED})
"""Annotations that gpupack writes; a pod asks for the same with or without them."""

_milli = lru_cache(maxsize=4096)(parse_milli)
_bytes = lru_cache(maxsize=4096)(parse_bytes)


Amounts = tuple[tuple[str, int], ...]
"""Whole amounts of resources, by name, in the order of the names."""

COUNTED_APART: Final = frozenset({"cpu", "memory", "pods"})
"""Resources that are no further ones, beside those of `_OURS`."""

MOST_REQUESTED: Final = 1 << 53
"""More thousandths of a core, or bytes, than any machine has; the API server accepts far larger requests."""


@dataclass(frozen=True, slots=True)
class PodRecord:
    """One pod, as its newest known version says.

    Attributes:
        uid: The pod's identity; names are used again.
        namespace: Its namespace.
        name: Its name.
        resource_version: Of this version of the pod.
        node: The node it is bound to, empty before.
        ended: Its phase is Succeeded or Failed.
        priority: Larger ones may evict smaller ones.
        cpu_milli: Thousandths of a core that it requests, by Kubernetes' rule.
        memory_bytes: Bytes of host memory that it requests.
        other_resources: What it requests of further resources.
        request: What it asks of cards; None when it does not ask, or asks for what cannot be given.
        error: Why it cannot be given, in words, else empty.
        charged: What to account for a pod on a node: `request`, or where that is an error what its containers
            ask for without the annotations. None when it does not ask.
        assigned: Cards that its Binding names; None when there are none or they cannot be read.
        allocated: Cards that the node says it got.
        nominated: The node that is being kept for it (status.nominatedNodeName), while it has none.
        leaves_at: When the grace period of a pod that is being deleted ends, seconds since the epoch; None
            for one that is not. This and what follows is read of pods that ask for cards only.
        start_time: When the kubelet took it, as the API writes times; empty before.
        labels: Its labels.
        mirrored: It stands for a static pod of the kubelet, which no eviction ends.
        gated: It wears scheduling gates, so kube-scheduler has not begun with it, or it is `requeued`.
        planned: UUIDs of the cards that the queue had in mind for it; a wish, taken where they are free.
        requeued: The queue took its release back, see `is_requeued`.
    """

    uid: str
    namespace: str
    name: str
    resource_version: str
    node: str
    ended: bool
    priority: int
    cpu_milli: int
    memory_bytes: int
    request: PodRequest | None
    error: str
    charged: PodRequest | None
    assigned: Assignment | None
    allocated: Assignment | None
    nominated: str = ""
    leaves_at: float | None = None
    start_time: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    mirrored: bool = False
    gated: bool = False
    planned: frozenset[str] = frozenset()
    requeued: bool = False
    other_resources: Amounts = ()

    @property
    def version(self) -> int:
        """The resourceVersion as a number."""
        return parse_resource_version(self.resource_version)

    @property
    def started_at(self) -> float:
        """When the kubelet took it, seconds since the epoch; 0 before."""
        return parse_time(self.start_time) or 0.0


def asks(pod: PodLite, resource: str) -> bool:
    """Tell whether any container names the resource, or percent of cards, at all; cheap."""
    for containers in (pod.spec.containers, pod.spec.init_containers):
        for container in containers or ():
            resources = container.resources
            for amounts in (resources.limits, resources.requests) if resources else ():
                if amounts and (resource in amounts or PERCENT_RESOURCE in amounts):
                    return True
    return False


@dataclass(frozen=True, slots=True)
class Asking:
    """What a pod asks for; attributes as of `PodRecord`."""

    request: PodRequest | None
    error: str
    charged: PodRequest | None
    cpu_milli: int
    memory_bytes: int
    other_resources: Amounts = ()


_REMEMBERED: Final = 1024
_MOST_TEXT: Final = 1024
_MOST_CONTAINERS: Final = 16
_MOST_AMOUNTS: Final = 64
"""Characters of our annotations, containers, and amounts in all: what asks for more is read every time."""

_remembered: dict[Hashable, Asking] = {}
"""By everything that an `Asking` follows from: the pods of a Deployment ask alike, and each is read often."""


def read_asking(pod: PodLite, resource: str) -> Asking:
    """Read what a pod asks for; what is wrong with it becomes data."""
    key = _asking_key(pod, resource)
    found = _remembered.get(key) if key is not None else None
    if found is None:
        found = _read_asking(pod, resource)
        if key is not None:
            if len(_remembered) >= _REMEMBERED:
                # Two threads of who uses gpupack as a library would both throw the oldest out.
                _remembered.clear()
            _remembered[key] = found
    return found


def _read_asking(pod: PodLite, resource: str) -> Asking:
    charged: PodRequest | None = None
    problem: RequestError | None = None
    if asks(pod, resource):
        charged, problem = parse_admitted(
            pod.metadata.annotations or {},
            container_mappings(pod.spec.init_containers),
            container_mappings(pod.spec.containers),
            resource,
        )
    if problem is None:
        return Asking(charged, "", charged, *pod_requests(pod), other_requests(pod))
    return Asking(None, str(problem), charged, *pod_requests(pod), other_requests(pod))


def _asking_key(pod: PodLite, resource: str) -> Hashable | None:
    """Everything that the functions above look at, None where it is much."""
    spec = pod.spec
    containers = [*(spec.init_containers or ()), None, *(spec.containers or ())]
    lists = [(None, spec.overhead), _lists(spec.resources)]
    lists += [_lists(container.resources) for container in containers if container is not None]
    if (
        len(containers) > _MOST_CONTAINERS
        or sum(len(each) for pair in lists for each in pair if each) > _MOST_AMOUNTS
    ):
        return None
    ours: tuple[tuple[str, str], ...] = ()
    if pod.metadata.annotations:
        ours = tuple(
            (name, value)
            for name, value in pod.metadata.annotations.items()
            if name.startswith(_OURS) and name not in _CARDS_KNOWN
        )
    if sum(len(name) + len(value) for name, value in ours) > _MOST_TEXT:
        return None
    return (
        resource,
        ours,
        tuple(container and (container.name, container.restart_policy) for container in containers),
        tuple([tuple(each.items()) if each else None for pair in lists for each in pair]),
    )


def _lists(resources: ResourceList | None) -> tuple[Resources | None, Resources | None]:
    return (None, None) if resources is None else (resources.limits, resources.requests)


def read_pod(pod: PodLite, resource: str) -> PodRecord:
    """Turn a pod into its record; whatever is wrong with it becomes data."""
    assigned: Assignment | None = None
    allocated: Assignment | None = None
    meta = pod.metadata
    found = read_asking(pod, resource)
    if found.charged is not None:
        assigned, allocated = _cards(meta.annotations or {}, meta.uid)
    asked = found.charged is not None
    leaves = meta.deletion_timestamp if asked else None
    requeued = is_requeued(pod)
    return PodRecord(
        uid=meta.uid,
        namespace=meta.namespace,
        name=meta.name,
        resource_version=meta.resource_version,
        node=pod.spec.node_name,
        ended=is_terminal(pod.status.phase),
        priority=pod.spec.priority or 0,
        cpu_milli=found.cpu_milli,
        memory_bytes=found.memory_bytes,
        other_resources=found.other_resources,
        request=found.request,
        error=found.error,
        charged=found.charged,
        assigned=assigned,
        allocated=allocated,
        nominated=pod.status.nominated_node_name if asked and not pod.spec.node_name else "",
        leaves_at=None if leaves is None else parse_time(leaves) or 0.0,
        start_time=(pod.status.start_time or "") if asked else "",
        labels=(meta.labels or {}) if asked else {},
        mirrored=asked and MIRROR_ANNOTATION in (meta.annotations or {}),
        gated=bool(pod.spec.scheduling_gates) or requeued,
        planned=_planned(meta.annotations),
        requeued=requeued,
    )


def is_requeued(pod: PodLite) -> bool:
    """Tell whether the queue took the release of a pod back: it may be placed nowhere until it is its turn.

    A scheduling gate cannot be added to a pod again. The annotation is the gate that can.
    """
    return not pod.spec.node_name and POD_REQUEUED in (pod.metadata.annotations or ())


def pod_requests(pod: PodLite) -> tuple[int, int]:
    """Add up a pod's cpu (thousandths of a core) and memory (bytes) requests by the rule of Kubernetes.

    Main containers and sidecars add up; an ordinary init container runs beside the sidecars before it; the
    larger counts, plus the overhead. Requests of the pod as a whole go before those of its containers.
    """
    return requested(pod, "cpu", _milli), requested(pod, "memory", _bytes)


def other_requests(pod: PodLite) -> Amounts:
    """Add up what a pod requests of each further resource, as `pod_requests` does; none of which is 0."""
    spec = pod.spec
    lists = [spec.overhead, *_lists(spec.resources)]
    for container in (*(spec.containers or ()), *(spec.init_containers or ())):
        lists += _lists(container.resources)
    names = {name for amounts in lists for name in amounts or () if is_other_resource(name)}
    if not names:
        return ()
    found = ((name, requested(pod, name, _bytes)) for name in sorted(names))
    return tuple((name, amount) for name, amount in found if amount)


def is_other_resource(name: str) -> bool:
    """Tell whether a resource is a further one: not cpu, memory, the number of pods, or GPU memory."""
    return name not in COUNTED_APART and not name.startswith(_OURS)


def requested(pod: PodLite, resource: str, parse: Callable[[str | int], int]) -> int:
    """Add up a pod's requests of one resource, as `pod_requests` does; what cannot be read counts as none."""
    overhead = _amount(pod.spec.overhead, resource, parse)
    whole = _amount(_requested(pod.spec.resources), resource, parse)
    if whole:
        return whole + overhead
    sidecars = peak = 0
    for container in pod.spec.init_containers or ():
        amount = _container(container, resource, parse)
        if container.restart_policy == "Always":
            sidecars += amount
        else:
            peak = max(peak, amount + sidecars)
    mains = sum(_container(container, resource, parse) for container in pod.spec.containers or ())
    return max(peak, mains + sidecars) + overhead


def _container(container: ContainerLite, resource: str, parse: Callable[[str | int], int]) -> int:
    return _amount(_requested(container.resources), resource, parse)


def _requested(resources: ResourceList | None) -> dict[str, str | int] | None:
    if resources is None:
        return None
    if resources.limits and resources.requests:
        return {**resources.limits, **resources.requests}
    return resources.requests or resources.limits


def _amount(amounts: dict[str, str | int] | None, resource: str, parse: Callable[[str | int], int]) -> int:
    value = amounts.get(resource) if amounts else None
    if value is None:
        return 0
    try:
        return min(max(0, parse(value)), MOST_REQUESTED)
    except QuantityError:
        return 0


def _cards(annotations: dict[str, str], uid: str) -> tuple[Assignment | None, Assignment | None]:
    """Read the cards that scheduler and node have written; rubbish counts as nothing."""
    assigned: Assignment | None = None
    allocated: Assignment | None = None
    text = annotations.get(POD_ASSIGNED)
    if text is not None:
        try:
            assigned = load_assigned(text)
        except RequestError:
            assigned = None
    text = annotations.get(POD_ALLOCATION)
    if text is not None:
        try:
            allocation = load_allocation(text)
        except RequestError:
            allocation = None
        if allocation is not None and allocation.uid == uid:
            allocated = allocation.containers
    return assigned, allocated


def _planned(annotations: dict[str, str] | None) -> frozenset[str]:
    text = annotations.get(POD_PLANNED) if annotations else None
    return frozenset(text.split(",", MAX_CARDS)) if text else frozenset()
