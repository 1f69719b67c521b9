"""`gpupack uninstall`: takes what gpupack wrote off the Nodes, and says which pods still need it.

What is found and what is kept back is decided on plain values; only `Uninstaller` talks to the API server.
Each Node is read and patched by itself, with its resourceVersion. So what was decided is true when it is
written, and the command can be stopped and started again at any Node.
"""

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from allocator.claims import CLAIMS_PATH, ClaimObject
from allocator.names import (
    COMPUTE_RESOURCE,
    DEVICE_CLASS,
    GPU_PREFIX,
    NODE_KEPT,
    NODE_SERVES,
    OWN_PREFIX,
    POD_REQUEUED,
    QUEUE_GATE,
    STARTUP_TAINT,
)
from allocator.texts import count_of, list_some
from gpupack.errors import InputError
from gpupack.inventory.fetching import list_all
from gpupack.inventory.telemetry import is_node_daemon
from gpupack.node_changes import change_node, decode_writable_node
from kubeapi.client import KubeClient
from kubeapi.errors import Conflict, Forbidden, NotFound
from kubeapi.eviction import make_immediate_deletion
from kubeapi.objects import Pod, WritableNode
from kubeapi.paths import NODES_PATH, PODS_PATH, make_node_path, make_pod_path
from scheduler_plugin.cache.pods import is_held_by_queue, is_own_placeholder, is_placeholder

_NAMED: Final = 10

CLAIMS_HIDDEN: Final = "its pods may hold GPU memory by claims, and there is no right to list resourceclaims"


class InstalledPod(Pod):
    """A pod, and whether a claim of it has or wants our cards."""

    has_claim: bool = False

    @property
    def claims(self) -> set[str]:
        named = (*(self.spec.resource_claims or ()), *(self.status.resource_claim_statuses or ()))
        return {each.resource_claim_name for each in named if each.resource_claim_name}

    @property
    def asks_for_memory(self) -> bool:
        """Whether a container asks for GPU memory, or has or wants it by a claim."""
        return self.has_claim or any(name.startswith(GPU_PREFIX) for name in self.spec.requested_resources)


@dataclass(frozen=True, slots=True)
class Traces:
    """What gpupack and its users wrote on a Node.

    Attributes:
        resources: names in capacity or allocatable.
        offered: resources that the kubelet still says it has; it writes them again while it knows the plugin.
        taints: keys of taints under our prefix, and the startup taint if it is still there.
    """

    resources: tuple[str, ...]
    annotations: tuple[str, ...]
    labels: tuple[str, ...]
    offered: tuple[str, ...]
    taints: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.resources or self.annotations or self.labels or self.taints)

    @property
    def text(self) -> str:
        return "; ".join(
            f"{what} {', '.join(found)}"
            for what, found in (
                ("resources", self.resources), ("annotations", self.annotations), ("labels", self.labels),
                ("taints", self.taints),
            )
            if found
        )  # fmt: skip

    def patch(self, resource_version: str) -> dict[str, Any]:
        """Write the merge patch of nodes/status that removes all of it."""
        gone = dict.fromkeys(self.resources)
        return {
            "metadata": {
                "resourceVersion": resource_version,
                "annotations": dict.fromkeys(self.annotations),
                "labels": dict.fromkeys(self.labels),
            },
            "status": {"capacity": gone, "allocatable": gone},
        }


def find_traces(node: WritableNode) -> Traces:
    capacity, allocatable = node.status.capacity or {}, node.status.allocatable or {}
    annotations = node.metadata.annotations or {}
    return Traces(
        resources=_ours({**capacity, **allocatable}),
        annotations=tuple(dict.fromkeys((*_ours(annotations), *find_kept_marks(annotations)))),
        labels=_ours(node.metadata.labels or {}),
        offered=tuple(
            key
            for key in _ours(capacity)
            if key.startswith(GPU_PREFIX) and key != COMPUTE_RESOURCE and str(capacity[key]) != "0"
        ),
        taints=tuple(
            dict.fromkeys(
                key
                for key in (taint.get("key", "") for taint in node.spec.taints or ())
                if key == STARTUP_TAINT or key.startswith(OWN_PREFIX)
            )
        ),
    )


def find_kept_marks(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """Find what `gpupack autoscale` set for autoscalers, if it is unchanged, and its note of that."""
    written = [key for key in annotations.get(NODE_KEPT, "").split(",") if annotations.get(key) == "true"]
    return (NODE_KEPT, *written) if NODE_KEPT in annotations else ()


def explain_kept_node(pods: Collection[InstalledPod], *, force: bool) -> str:
    """Say why a Node must not be cleaned; empty if it may be."""
    here = [pod for pod in pods if not pod.has_ended]
    daemons = [pod.full_name for pod in here if is_node_daemon(pod)]
    if daemons:
        return f"its daemon runs and would write again: pod {daemons[0]}"
    return "" if force else describe_holders(here, "there")


def describe_holders(pods: Collection[InstalledPod], where: str = "") -> str:
    """Name the pods that have a node and hold GPU memory; empty if there are none."""
    holding = sorted(
        pod.full_name for pod in pods if pod.asks_for_memory and pod.spec.node_name and not pod.has_ended
    )
    if not holding:
        return ""
    return f"{_pods_that(holding, 'hold', where)} GPU memory: {list_some(holding, _NAMED)}"


def list_warnings(pods: Collection[InstalledPod]) -> list[str]:
    """Say which pods still need gpupack, whatever becomes of the Nodes."""
    living = [pod for pod in pods if not (pod.has_ended or is_placeholder(pod))]
    gated = sorted(pod.full_name for pod in living if is_held_by_queue(pod))
    waiting = sorted(
        pod.full_name
        for pod in living
        if pod.asks_for_memory and not pod.spec.node_name and not is_held_by_queue(pod)
    )
    holding = describe_holders(living)
    warnings = [holding] if holding else []
    if waiting:
        warnings.append(
            f"{_pods_that(waiting, 'wait')} for GPU memory and will not start without gpupack: "
            f"{list_some(waiting, _NAMED)}"
        )
    if gated:
        warnings.append(
            f"{_pods_that(gated, 'wait')} behind the gate {QUEUE_GATE} or the annotation {POD_REQUEUED},"
            " which only gpupack queue and gpupack uninstall --component queue take away: "
            f"{list_some(gated, _NAMED)}"
        )
    return warnings


@dataclass(frozen=True, slots=True)
class CleanOutcome:
    """The result for one object.

    Attributes:
        removed: what was removed from it, or "it"; in a dry run, what would be.
        why: why it stays as it is; empty if it does not.
        comes_again: the kubelet may write its resources again.
    """

    what: str
    removed: str = ""
    why: str = ""
    comes_again: bool = False


class Uninstaller:
    """Cleans the Nodes of one cluster.

    Args:
        client: may list nodes and pods, get nodes and patch nodes/status. Where there are placeholders, it
            may delete pods; where there are taints, patch nodes; where nodes serve claims, list
            resourceclaims.

    Attributes:
        claims_hidden: there is no right to list claims, so it is not known which pods have cards by them.
    """

    def __init__(
        self,
        client: KubeClient,
        *,
        dry_run: bool,
        force: bool = False,
        find: Callable[[WritableNode], Traces] = find_traces,
    ) -> None:
        self._client = client
        self._dry_run = dry_run
        self._force = force
        self._find = find
        self.claims_hidden = False

    async def list_pods(self) -> list[InstalledPod]:
        claims = await self._list_claims()
        users = {uid for claim in claims for uid in claim.pods}
        names = {(claim.metadata.namespace, claim.metadata.name) for claim in claims}
        pods = await list_all(self._client, PODS_PATH, InstalledPod, "pods")
        for pod in pods:
            named = {(pod.metadata.namespace, name) for name in pod.claims}
            pod.has_claim = pod.metadata.uid in users or not named.isdisjoint(names)
        return pods

    async def _list_claims(self) -> "list[_Claim]":
        """List the claims that have our cards or ask for them; empty if claims cannot be listed."""
        try:
            claims = await list_all(self._client, CLAIMS_PATH, _Claim, "ResourceClaims")
        except NotFound:
            return []
        except Forbidden:
            self.claims_hidden = True
            return []
        return [claim for claim in claims if claim.results or claim.names_class]

    async def list_nodes(self, names: Sequence[str] = ()) -> list[str]:
        """Name the Nodes that have anything of ours, in order.

        Raises:
            InputError: a name that no Node has.
        """
        nodes = await list_all(self._client, NODES_PATH, WritableNode, "nodes")
        found = {node.metadata.name: self._find(node) for node in nodes}
        unknown = sorted(set(names) - set(found))
        if unknown:
            raise InputError(f"no Node is named {', '.join(unknown)}; allowed: names of the cluster's nodes")
        return [name for name in sorted(found) if found[name] and (not names or name in names)]

    async def remove_placeholders(self, pods: Collection[InstalledPod]) -> list[CleanOutcome]:
        """Delete the pods that ask a cluster autoscaler for nodes.

        Raises:
            KubeApiError: the API server refused.
        """
        placeholders = [pod for pod in pods if is_own_placeholder(pod)]
        for pod in [] if self._dry_run else placeholders:
            path = make_pod_path(pod.metadata.namespace, pod.metadata.name)
            with suppress(NotFound, Conflict):
                await self._client.delete(path, make_immediate_deletion(pod.metadata.uid))
        names = sorted(pod.full_name for pod in placeholders)
        return [CleanOutcome(f"pod {name}", "it, a placeholder") for name in names]

    async def clean_nodes(
        self, names: Sequence[str], pods: Collection[InstalledPod]
    ) -> AsyncIterator[CleanOutcome]:
        """Clean one Node after the other; those without anything of ours are passed over.

        Raises:
            KubeApiError: the API server refused; Nodes before that one are clean.
        """
        there: dict[str, list[InstalledPod]] = {}
        for pod in pods:
            there.setdefault(pod.spec.node_name, []).append(pod)
        for name in names:
            outcome = await self._clean_node(name, explain_kept_node(there.get(name, ()), force=self._force))
            if outcome is not None:
                yield outcome

    async def _clean_node(self, name: str, why: str) -> CleanOutcome | None:
        try:
            return await change_node(self._client, name, lambda node: self._clean(node, why))
        except NotFound:
            return None

    async def _clean(self, node: WritableNode, why: str) -> CleanOutcome | None:
        traces = self._find(node)
        if not traces:
            return None
        if self.claims_hidden and not self._force and NODE_SERVES in (node.metadata.annotations or {}):
            why = why or CLAIMS_HIDDEN
        if not (why or self._dry_run):
            await self._remove_traces(node, traces)
        return CleanOutcome(f"node {node.metadata.name}", traces.text, why, bool(traces.offered))

    async def _remove_traces(self, node: WritableNode, traces: Traces) -> None:
        """Remove what was found, the taint before all else."""
        name, version = node.metadata.name, node.metadata.resource_version
        if traces.taints:
            answer = await self._client.patch(make_node_path(name), node.make_taint_removal(traces.taints))
            version = decode_writable_node(answer).metadata.resource_version
        if traces.resources or traces.annotations or traces.labels:
            await self._client.patch_node_status(name, traces.patch(version))


class _ClassName(msgspec.Struct):
    deviceClassName: str = ""  # noqa: N815 (as Kubernetes writes it)


class _DeviceRequest(msgspec.Struct):
    exactly: _ClassName | None = None
    firstAvailable: list[_ClassName] | None = None  # noqa: N815 (as Kubernetes writes it)


class _DeviceRequests(msgspec.Struct):
    requests: list[_DeviceRequest] | None = None


class _ClaimSpec(msgspec.Struct):
    devices: _DeviceRequests = msgspec.field(default_factory=_DeviceRequests)


class _Claim(ClaimObject):
    spec: _ClaimSpec = msgspec.field(default_factory=_ClaimSpec)

    @property
    def names_class(self) -> bool:
        """Whether the claim asks for devices of the class `gpupack`."""
        return any(
            each is not None and each.deviceClassName == DEVICE_CLASS
            for request in self.spec.devices.requests or ()
            for each in (request.exactly, *(request.firstAvailable or ()))
        )


def _ours(keys: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(sorted(key for key in keys if key.startswith(OWN_PREFIX)))


def _pods_that(names: Sequence[str], verb: str, where: str = "") -> str:
    subject = f"{count_of(len(names), 'pod')} {where}".rstrip()
    return f"{subject} {verb}{'s' if len(names) == 1 else ''}"
