"""Pods as the scheduler's cache has them: their requests, and what is known of their cards."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import msgspec

from allocator.errors import RequestError
from allocator.names import (
    BATCH_SCHEDULER,
    COMPUTE_RESOURCE,
    OWN_POD_ANNOTATIONS,
    OWN_PREFIX,
    PERCENT_RESOURCE,
    PLACEHOLDER_LABEL,
    PLACEHOLDER_SCHEDULER,
    POD_ALLOCATION,
    POD_ASSIGNED,
    POD_GANG_SIZE,
    POD_NODE_POLICY,
    POD_PLANNED,
    POD_REQUEUED,
    QUEUE_GATE,
)
from allocator.packing import MAX_NODE_CARDS
from allocator.quantity import recall_bytes, recall_milli
from allocator.records import Assignment, load_assigned, read_own_allocation
from allocator.request import PodRequest, parse_admitted
from kubeapi.metadata import parse_resource_version, parse_time
from kubeapi.objects import Container, Pod, ResourceList, ResourceRequirements
from scheduler_plugin.cache.amounts import Amounts, ResourceAmounts, read_amount
from scheduler_plugin.cache.gang_names import parse_gang_size, read_gang_key

STANDARD_RESOURCES: Final = frozenset({"cpu", "memory", "pods"})
"""Resources that are no further ones, beside those of `OWN_PREFIX`."""

OVERDUE_AFTER_S: Final = 60.0
"""A pod that is there so long after its grace period ended is not about to leave: its kubelet may be gone.

So is one that is not being deleted so long after its eviction was accepted.
"""

MAX_REQUESTED: Final = 1 << 53
"""More thousandths of a core, or bytes, than any machine has; the API server accepts far larger requests."""


class PodRecord(msgspec.Struct, frozen=True):
    """One pod in its newest known version.

    Attributes:
        uid: The pod's identity; names are used again.
        ended: Its phase is Succeeded or Failed.
        amounts: What it requests of a node besides the choice of cards, by Kubernetes' rule; of a pod on a
            node what it holds of cpu and memory, see `sum_held_requests`. GPU memory is that of `charged`.
        request: Its card request; None when it has none, or one that cannot be met.
        error: The reason why the request cannot be met, for people; empty if there is none.
        charged: Request to charge the pod with on a node: `request`, or if that has an error, what its
            containers ask for without the annotations. None if it does not ask.
        assigned: Cards that its Binding names; None when there are none or they cannot be read.
        allocated: Cards that the node says it got.
        nominated: The node that is being kept for it (status.nominatedNodeName), while it has none.
        grace_ends_at: When the grace period of a pod that is being deleted ends, seconds since the epoch;
            else None.
        is_placeholder: See `is_placeholder`.
        start_time: When the kubelet accepted it, as the API writes times; empty before. Read only for pods
            that ask for cards, as are the labels, `gang_size` and `is_mirror`, and for those of gangs.
        gang: Namespace and name of the gang that it starts and ends with; None for none.
        gang_size: Number of its gang's pods by its annotation, which counts also where its PodGroup lets them
            start one by one; 0 if that says none.
        is_mirror: True for a static pod of the kubelet, which no eviction ends.
        is_gated: True if it has scheduling gates, so that kube-scheduler leaves it alone, or is
            requeued.
        planned_uuids: UUIDs of the cards that the queue planned for it; preferred where they are free.
        is_requeued: True if the queue requeued it after an admission, see `is_requeued`.
        scheduling_group: Namespace and name of its PodGroup of Kubernetes, see `pod_groups.PodGroups`. The
            names of its scheduler and of its preemption policy are read only for pods of one.
    """

    uid: str
    namespace: str
    name: str
    resource_version: str
    node: str
    ended: bool
    priority: int
    amounts: Amounts
    request: PodRequest | None
    error: str
    charged: PodRequest | None
    assigned: Assignment | None
    allocated: Assignment | None
    nominated: str = ""
    grace_ends_at: float | None = None
    is_placeholder: bool = False
    start_time: str = ""
    labels: Mapping[str, str] = {}
    gang: tuple[str, str] | None = None
    gang_size: int = 0
    is_mirror: bool = False
    is_gated: bool = False
    planned_uuids: frozenset[str] = frozenset()
    is_requeued: bool = False
    scheduling_group: tuple[str, str] | None = None
    scheduler: str = ""
    preemption_policy: str = ""

    @property
    def full_name(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def version(self) -> int:
        return parse_resource_version(self.resource_version)

    @property
    def asks_for_cards(self) -> bool:
        """Whether it asks for cards at all, be it for what cannot be given."""
        return self.charged is not None or bool(self.error)

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for a node, be it behind a gate.

        It has no node, has not ended, and is neither a placeholder nor being deleted: kube-scheduler leaves
        out what is being deleted.
        """
        return not (self.node or self.ended or self.grace_ends_at is not None or self.is_placeholder)

    @property
    def is_counted_in_group(self) -> bool:
        """Whether kube-scheduler counts it for its PodGroup: it is on a node, or waits for one."""
        return (bool(self.node) and not self.ended) or self.is_waiting

    @property
    def can_be_scheduled(self) -> bool:
        """Whether its scheduler may take it now: it waits, and not behind a gate, see `is_gated`."""
        return self.is_waiting and not self.is_gated

    @property
    def started_at(self) -> float:
        """Time at which the kubelet accepted the pod, seconds since the epoch; 0 before."""
        return parse_time(self.start_time) or 0.0


def requests_cards(pod: Pod, resource: str) -> bool:
    """Return True if any container names the resource, percent of cards or compute at all; cheap."""
    return not {resource, PERCENT_RESOURCE, COMPUTE_RESOURCE}.isdisjoint(pod.spec.requested_resources)


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """Everything that a pod requests; see `PodRecord` for the attributes."""

    request: PodRequest | None
    error: str
    charged: PodRequest | None
    amounts: Amounts


_MAX_PARSED: Final = 1024
_MAX_TEXT: Final = 1024
_MAX_CONTAINERS: Final = 16
_MAX_AMOUNTS: Final = 64
"""Annotations' characters, containers and amounts up to which a parsed request is remembered."""

_parsed_requests: dict[Hashable, ParsedRequest] = {}
"""Parsed requests by all that they follow from: pods of a Deployment are alike, and read often."""


def parse_pod_request(pod: Pod, resource: str) -> ParsedRequest:
    """Parse what a pod requests; a fault becomes the attribute `error`."""
    key = _make_request_key(pod, resource)
    parsed = _parsed_requests.get(key) if key is not None else None
    if parsed is None:
        parsed = _parse_pod_request(pod, resource)
        if key is not None:
            if len(_parsed_requests) >= _MAX_PARSED:
                # Emptied at once: two threads of a program that uses gpupack as a library are safe so.
                _parsed_requests.clear()
            _parsed_requests[key] = parsed
    if parsed.request is not None and _is_claimed(pod, resource):
        return replace(parsed, request=replace(parsed.request, claimed=True))
    return parsed


def _is_claimed(pod: Pod, resource: str) -> bool:
    """Tell whether a pod without a node is to get its cards by the claim that its status names."""
    made = pod.status.extended_resource_claim_status
    if made is None or pod.spec.node_name:
        return False
    return any(each.resource_name in {resource, PERCENT_RESOURCE} for each in made.request_mappings or ())


def _parse_pod_request(pod: Pod, resource: str) -> ParsedRequest:
    charged: PodRequest | None = None
    problem: RequestError | None = None
    if requests_cards(pod, resource):
        charged, problem = parse_admitted(
            pod.metadata.annotations or {},
            msgspec.to_builtins(pod.spec.init_containers or ()),
            msgspec.to_builtins(pod.spec.containers or ()),
            resource,
        )
    amounts = sum_host_amounts(pod)
    if charged is not None:
        amounts = amounts.with_sums(charged)
    if problem is None:
        return ParsedRequest(charged, "", charged, amounts)
    return ParsedRequest(None, str(problem), charged, amounts)


def _make_request_key(pod: Pod, resource: str) -> Hashable | None:
    """Build a key of everything that the functions above read; None if it would be too large."""
    spec = pod.spec
    containers = [*(spec.init_containers or ()), None, *(spec.containers or ())]
    lists = [spec.overhead, *_list_amounts(spec.resources)]
    for container in containers:
        if container is not None:
            lists += _list_amounts(container.resources)
    amounts = [tuple(each.items()) if each else () for each in lists]
    if len(containers) > _MAX_CONTAINERS or sum(map(len, amounts)) > _MAX_AMOUNTS:
        return None
    ours: tuple[tuple[str, str], ...] = ()
    if pod.metadata.annotations:
        ours = tuple(
            [
                (name, value)
                for name, value in pod.metadata.annotations.items()
                if name not in OWN_POD_ANNOTATIONS and name.startswith(OWN_PREFIX)
            ]
        )
    if ours and sum(len(name) + len(value) for name, value in ours) > _MAX_TEXT:
        return None
    return (
        resource,
        ours,
        tuple([container and (container.name, container.restart_policy) for container in containers]),
        tuple(amounts),
    )


def _list_amounts(resources: ResourceRequirements | None) -> tuple[ResourceList | None, ResourceList | None]:
    return (None, None) if resources is None else (resources.limits, resources.requests)


def read_pod(pod: Pod, resource: str) -> PodRecord:
    """Make the record of a pod; a fault in the request becomes the attribute `error`."""
    assigned: Assignment | None = None
    allocated: Assignment | None = None
    meta = pod.metadata
    parsed = parse_pod_request(pod, resource)
    if parsed.charged is not None:
        assigned, allocated = _read_cards(meta.annotations or {}, meta.uid)
    asked = parsed.charged is not None
    leaves, group = meta.deletion_timestamp, pod.scheduling_group
    requeued, gang = is_requeued(pod), read_gang_key(pod)
    amounts = parsed.amounts
    if pod.spec.node_name and is_resized(pod):
        cpu_milli, memory_bytes = sum_held_requests(pod)
        amounts = amounts._replace(cpu_milli=cpu_milli, memory_bytes=memory_bytes)
    return PodRecord(
        uid=meta.uid,
        namespace=meta.namespace,
        name=meta.name,
        resource_version=meta.resource_version,
        node=pod.spec.node_name,
        ended=pod.has_ended,
        priority=pod.priority,
        amounts=amounts,
        request=parsed.request,
        error=parsed.error,
        charged=parsed.charged,
        assigned=assigned,
        allocated=allocated,
        nominated=pod.status.nominated_node_name if asked and not pod.spec.node_name else "",
        grace_ends_at=None if leaves is None else parse_time(leaves) or 0.0,
        is_placeholder=is_placeholder(pod),
        start_time=(pod.status.start_time or "") if asked or gang is not None else "",
        labels=(meta.labels or {}) if asked else {},
        gang=gang,
        gang_size=parse_gang_size((meta.annotations or {}).get(POD_GANG_SIZE)) if asked else 0,
        scheduling_group=group,
        scheduler=pod.spec.scheduler_name if group is not None else "",
        preemption_policy=pod.spec.preemption_policy if group is not None else "",
        is_mirror=asked and pod.is_mirror,
        is_gated=pod.is_gated or requeued,
        planned_uuids=read_planned_uuids(meta.annotations),
        is_requeued=requeued,
    )


def ranks_nodes_itself(pod: Pod) -> bool:
    """Return True if the pod states preferences and names no policy, so its preferences rank the nodes."""
    return pod.spec.has_preferences and POD_NODE_POLICY not in (pod.metadata.annotations or {})


def is_requeued(pod: Pod) -> bool:
    """Return True if the queue requeued a pod after an admission: no node may take it until its turn comes.

    A scheduling gate cannot be added to a pod again. The annotation is the gate that can.
    """
    return not pod.spec.node_name and POD_REQUEUED in (pod.metadata.annotations or ())


def is_held_by_queue(pod: Pod) -> bool:
    """Return True if no scheduler may take a pod before the queue lets it go: by its gate, or requeued."""
    return QUEUE_GATE in pod.gates or is_requeued(pod)


def is_of_batch_mode(pod: Pod) -> bool:
    """Return True if batch mode binds a pod when its turn has come, also one that is requeued."""
    return pod.spec.scheduler_name == BATCH_SCHEDULER and not pod.gates


def is_placeholder(pod: Pod) -> bool:
    """Return True if a pod asks a cluster autoscaler for a node, and never runs: no scheduler takes it.

    Its label does not count. Whoever may patch pods can remove that, and the queue would then count the pod,
    which has no gate, as admitted.
    """
    return pod.spec.scheduler_name == PLACEHOLDER_SCHEDULER and not pod.spec.node_name


def is_own_placeholder(pod: Pod) -> bool:
    """Return True if gpupack made a placeholder, and so may delete it."""
    return is_placeholder(pod) and pod.metadata.get_label(PLACEHOLDER_LABEL) is not None


def sum_host_amounts(pod: Pod) -> Amounts:
    """Add up everything that a pod requests of a node besides cards and their sums."""
    return Amounts(1, *sum_host_requests(pod), others=sum_other_requests(pod))


def sum_host_requests(pod: Pod) -> tuple[int, int]:
    """Add up a pod's cpu (thousandths of a core) and memory (bytes) requests by the rule of Kubernetes.

    Main containers and sidecars add up; an ordinary init container adds to the sidecars started before it.
    The larger sum counts, plus the overhead. Pod-level requests take precedence over those of the containers.
    """
    return sum_requests(pod, "cpu", recall_milli), sum_requests(pod, "memory", recall_bytes)


def sum_other_requests(pod: Pod) -> ResourceAmounts:
    """Add up what a pod requests of each further resource, as `sum_host_requests` does. No amount is 0."""
    spec = pod.spec
    lists = [spec.overhead, *_list_amounts(spec.resources)]
    for container in spec.all_containers:
        lists += _list_amounts(container.resources)
    names = {name for amounts in lists for name in amounts or () if is_other_resource(name)}
    if not names:
        return ()
    found = ((name, sum_requests(pod, name, recall_bytes)) for name in sorted(names))
    return tuple((name, amount) for name, amount in found if amount)


@lru_cache(maxsize=1024)
def is_other_resource(name: str) -> bool:
    """Return True for a further resource: not cpu, memory, the number of pods, or GPU memory."""
    return name not in STANDARD_RESOURCES and not name.startswith(OWN_PREFIX)


def sum_requests(pod: Pod, resource: str, parse: Callable[[str | int], int]) -> int:
    """Add up a pod's requests of one resource, as `sum_host_requests` does; unreadable is 0."""
    overhead = _read_amount(pod.spec.overhead, resource, parse)
    whole = _read_amount(_merge_requests(pod.spec.resources), resource, parse)
    if whole:
        return whole + overhead
    return _sum_containers(pod, lambda container: _read_container(container, resource, parse)) + overhead


def _sum_containers(pod: Pod, read: Callable[[Container], int]) -> int:
    """Add up the amounts of containers: those that run beside each other; an init container by itself."""
    sidecars = peak = 0
    for container in pod.spec.init_containers or ():
        amount = read(container)
        if container.is_sidecar:
            sidecars += amount
        else:
            peak = max(peak, amount + sidecars)
    return max(peak, sum(map(read, pod.spec.containers or ())) + sidecars)


def is_resized(pod: Pod) -> bool:
    """Tell whether the kubelet says other amounts of a pod than its spec; then `sum_held_requests` counts."""
    status = pod.status
    if status.allocated_resources is not None or status.resources is not None:
        return True
    told = [*(status.container_statuses or ()), *(status.init_container_statuses or ())]
    if not told:
        return False
    if _is_resize_infeasible(pod):
        return True
    asked = {
        container.name: (container.resources.requests if container.resources is not None else None) or {}
        for container in pod.spec.all_containers
    }
    return any(
        amounts is not None and amounts != asked.get(each.name)
        for each in told
        for amounts in (each.allocated_resources, each.resources.requests if each.resources else None)
    )


def sum_held_requests(pod: Pod) -> tuple[int, int]:
    """Add up what a pod on a node holds of cpu (thousandths of a core) and memory (bytes).

    While a pod is being resized kube-scheduler counts the largest of three sums: what its spec asks for, what
    the kubelet has allocated, and what its containers have. A resize that the kubelet calls infeasible will
    not happen: the spec does not count then.
    """
    return _sum_held(pod, "cpu", recall_milli), _sum_held(pod, "memory", recall_bytes)


def _sum_held(pod: Pod, resource: str, parse: Callable[[str | int], int]) -> int:
    status, is_infeasible = pod.status, _is_resize_infeasible(pod)
    spec = _merge_requests(pod.spec.resources)
    actual = status.resources.requests if status.resources is not None else None
    if spec:
        whole = [None if is_infeasible and status.resources is not None else spec]
        whole += [] if status.resources is None else [actual, status.allocated_resources]
        sums = [_read_amount(each, resource, parse) for each in whole if each and resource in each]
    else:
        sums = []
    if not sums:
        sums = [
            0 if is_infeasible else _sum_containers(pod, lambda each: _read_container(each, resource, parse))
        ]
        if actual is not None and status.allocated_resources is not None:
            sums += [_read_amount(each, resource, parse) for each in (actual, status.allocated_resources)]
        else:
            sums += _sum_told(pod, resource, parse, is_infeasible=is_infeasible)
    return max(sums) + _read_amount(pod.spec.overhead, resource, parse)


def _sum_told(
    pod: Pod, resource: str, parse: Callable[[str | int], int], *, is_infeasible: bool
) -> tuple[int, int]:
    """Add up what the kubelet has allocated to containers, and what they have; else their spec."""
    told = {each.name: each for each in pod.status.init_container_statuses or ()}
    told |= {each.name: each for each in pod.status.container_statuses or ()}

    def read_allocated(container: Container) -> int:
        each = told.get(container.name)
        if each is not None and each.allocated_resources is not None:
            return _read_amount(each.allocated_resources, resource, parse)
        return 0 if is_infeasible else _read_container(container, resource, parse)

    def read_actual(container: Container) -> int:
        each = told.get(container.name)
        if each is None or each.resources is None or each.resources.requests is None:
            return read_allocated(container)
        return _read_amount(each.resources.requests, resource, parse)

    return _sum_containers(pod, read_allocated), _sum_containers(pod, read_actual)


def _is_resize_infeasible(pod: Pod) -> bool:
    pending = pod.status.get_condition("PodResizePending")
    return pending is not None and pending.reason == "Infeasible"


def _read_container(container: Container, resource: str, parse: Callable[[str | int], int]) -> int:
    return _read_amount(_merge_requests(container.resources), resource, parse)


def _merge_requests(resources: ResourceRequirements | None) -> dict[str, str | int] | None:
    if resources is None:
        return None
    if resources.limits and resources.requests:
        return {**resources.limits, **resources.requests}
    return resources.requests or resources.limits


def _read_amount(
    amounts: dict[str, str | int] | None, resource: str, parse: Callable[[str | int], int]
) -> int:
    return min(read_amount(amounts.get(resource) if amounts else None, parse), MAX_REQUESTED)


def _read_cards(annotations: dict[str, str], uid: str) -> tuple[Assignment | None, Assignment | None]:
    """Read the cards that scheduler and node have written; an unreadable annotation counts as none."""
    assigned: Assignment | None = None
    text = annotations.get(POD_ASSIGNED)
    if text is not None:
        try:
            assigned = load_assigned(text)
        except RequestError:
            assigned = None
    allocation = read_own_allocation(annotations.get(POD_ALLOCATION), uid)
    return assigned, None if allocation is None else allocation.containers


def read_planned_uuids(annotations: dict[str, str] | None) -> frozenset[str]:
    text = annotations.get(POD_PLANNED) if annotations else None
    return frozenset(text.split(",", MAX_NODE_CARDS)) if text else frozenset()
