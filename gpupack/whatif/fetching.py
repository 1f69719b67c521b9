"""Fetches the cluster that is asked about from an API server or a file."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from allocator.names import QUEUE_SERVICE, SYSTEM_NAMESPACE
from gpupack.encodings import read_input
from gpupack.errors import InputError
from gpupack.inventory.fetching import connect, list_all, list_claims
from gpupack.whatif.cluster import Cluster
from gpupack.whatif.events import PodEvent, PodEvents, format_events
from gpupack.whatif.objects import waits_in_queue
from gpupack.whatif.queue_rules import QueueRules, read_rules
from kubeapi.objects import Namespace, Node, Pod, PodDisruptionBudget, PodGroup, decode_pod
from kubeapi.paths import NAMESPACES_PATH, NODES_PATH, PODS_PATH, make_collection_path, make_service_path
from scheduler_plugin.cache.disruption_budgets import BUDGETS_PATH
from scheduler_plugin.cache.pod_groups import (
    COSCHEDULING,
    KUBERNETES,
    GroupKey,
    PodGroups,
    find_coscheduling_key,
    list_pod_group_paths,
)

if TYPE_CHECKING:
    from kubeapi.client import KubeClient
    from scheduler_plugin.queue.controller.status import WaitExplanation as QueueWhy

DEFAULT: Final = "default"
_QUEUE: Final = SYSTEM_NAMESPACE, QUEUE_SERVICE


@dataclass(frozen=True, slots=True)
class ClusterSource:
    """Where a cluster is read from.

    Attributes:
        filename: File with the output of `kubectl get nodes,pods -A -o json`, `-`: standard input; None: a
            cluster.
        unit_mib: MiB of a unit, None: what most nodes publish.
    """

    filename: str | None = None
    kubeconfig: str | None = None
    context: str | None = None
    unit_mib: int | None = None


@dataclass(frozen=True, slots=True)
class PodContext:
    """What else is known of a pod.

    Attributes:
        queued: What waits in the queue; None if nobody asked, or nobody answered.
    """

    namespace: str
    events: tuple[str, ...] = ()
    queued: "tuple[QueueWhy, ...] | None" = None


async def read_cluster(source: ClusterSource, *, moves: bool = False) -> Cluster:
    """Read all nodes and pods.

    Args:
        moves: Read what decides which pods may move, too: PodDisruptionBudgets where the source has them, and
            the queue.

    Raises:
        InputError: a file of something else.
        OSError: a file that cannot be read.
        KubeApiError: no configuration, no server, or no right to list nodes and pods.
    """
    if source.filename is not None:
        return read_input(source.filename, partial(Cluster.from_json, unit_mib=source.unit_mib))
    async with await connect(source.kubeconfig, source.context) as client:
        return await list_cluster(client, source, moves=moves)


async def read_cluster_and_pod(
    source: ClusterSource, namespace: str | None, name: str
) -> tuple[Cluster, PodContext]:
    """Read all nodes and pods, and what the API server knows of one pod besides."""
    if source.filename is not None:
        return await read_cluster(source), PodContext(namespace or DEFAULT)
    async with await connect(source.kubeconfig, source.context) as client:
        namespace = namespace or client.namespace or DEFAULT
        cluster, events = await asyncio.gather(list_cluster(client, source), _events(client, namespace, name))
        pods = [
            pod
            for pod in cluster.pods.values()
            if pod.metadata.name == name and pod.metadata.namespace == namespace
        ]
        queued = await _queued(client) if any(map(waits_in_queue, pods)) else None
        if not all(pod.spec.node_name for pod in pods):
            cluster.queue = await _read_queue(client)
        told = format_events(events, {pod.metadata.uid for pod in pods})
        return cluster, PodContext(namespace, told, queued)


async def read_waiting(source: ClusterSource) -> tuple[Cluster, PodContext]:
    """Read all nodes and pods, and who waits in the queue where pods wait for one."""
    if source.filename is not None:
        return await read_cluster(source), PodContext(DEFAULT)
    async with await connect(source.kubeconfig, source.context) as client:
        cluster = await list_cluster(client, source)
        queued = await _queued(client) if any(map(waits_in_queue, cluster.list_waiting_pods())) else None
        return cluster, PodContext(client.namespace or DEFAULT, queued=queued)


async def read_own_events(source: ClusterSource, namespace: str, name: str) -> tuple[str, ...]:
    """Read what was reported of a pod of a namespace where all pods may not be listed; none if not that."""
    from kubeapi.errors import UNREADABLE, KubeApiError  # noqa: PLC0415
    from kubeapi.paths import make_pod_path  # noqa: PLC0415

    async with await connect(source.kubeconfig, source.context) as client:
        try:
            pod = decode_pod(await client.get(make_pod_path(namespace, name)))
        except (KubeApiError, *UNREADABLE):
            return ()
        return format_events(await _events(client, namespace, name), {pod.metadata.uid})


async def list_cluster(client: "KubeClient", source: ClusterSource, *, moves: bool = False) -> Cluster:
    """Read all nodes and pods by a client; see `read_cluster`."""
    others = asyncio.gather(
        list_all(client, PODS_PATH, Pod, "pods"), _budgets(client) if moves else _nothing()
    )
    try:
        # Where both lists are refused the error names the nodes, whichever answer comes first.
        nodes = await list_all(client, NODES_PATH, Node, "nodes")
    except BaseException:
        others.cancel()
        await asyncio.gather(others, return_exceptions=True)
        raise
    pods, found = await others
    claims = await list_claims(client, nodes) or ()
    cluster = Cluster.from_objects(
        nodes,
        pods,
        unit_mib=source.unit_mib,
        budgets=found,
        source="the cluster",
        claims=claims,
        pod_groups=await _read_groups(client, (pod.scheduling_group for pod in pods), KUBERNETES),
        coscheduling_groups=await _read_groups(
            client, (find_coscheduling_key(pod.metadata) for pod in pods), COSCHEDULING
        ),
    )
    if moves:
        cluster.queue = await _read_queue(client)
    return cluster


async def _read_groups(
    client: "KubeClient", keys: Iterable[GroupKey | None], apis: Sequence[str]
) -> PodGroups[Pod]:
    from kubeapi.errors import KubeApiError, NotFound  # noqa: PLC0415
    from kubeapi.lists import read_first_served  # noqa: PLC0415

    groups: PodGroups[Pod] = PodGroups()
    if any(keys):
        read = partial(list_all, client, kind=PodGroup, what="PodGroups")
        try:
            groups.replace_groups(await read_first_served(list_pod_group_paths(apis), read))
        except NotFound:
            pass
        except (KubeApiError, InputError) as error:
            groups.set_fault(error.reason if isinstance(error, KubeApiError) else str(error))
    return groups


async def _nothing() -> None: ...


async def _budgets(client: "KubeClient") -> Sequence[PodDisruptionBudget] | None:
    """List PodDisruptionBudgets, None if they may not be listed: then the answer says so."""
    from kubeapi.errors import Forbidden, NotFound  # noqa: PLC0415

    try:
        return await list_all(client, BUDGETS_PATH, PodDisruptionBudget, "PodDisruptionBudgets")
    except (Forbidden, NotFound):
        return None


async def _events(client: "KubeClient", namespace: str, name: str) -> tuple[PodEvent, ...]:
    """List the Events of all pods of a name, none if they may not be read."""
    from kubeapi.errors import UNREADABLE, KubeApiError  # noqa: PLC0415

    try:
        raw = await client.get(
            make_collection_path(namespace, "events"),
            fieldSelector=f"involvedObject.kind=Pod,involvedObject.name={name}",
        )
        return msgspec.json.decode(raw, type=PodEvents).items
    except (KubeApiError, *UNREADABLE):
        return ()


async def _queued(client: "KubeClient") -> "tuple[QueueWhy, ...] | None":
    """Read the waiting pods from the queue's leader; None if it cannot be reached."""
    from gpupack.queuestatus import read as read_status  # noqa: PLC0415
    from kubeapi.errors import KubeApiError  # noqa: PLC0415

    try:
        raw = await client.get(make_service_path(*_QUEUE, "status"))
        return read_status(raw).pods
    except (KubeApiError, InputError):
        return None


async def _read_queue(client: "KubeClient") -> QueueRules | str:
    """Ask the queue's leader by what it decides; else say why it cannot be asked.

    It is asked also where no pod has a queue's label: a queue may select namespaces.
    """
    from kubeapi.errors import UNREADABLE, KubeApiError  # noqa: PLC0415
    from scheduler_plugin.queue.controller.settings import DecisionSettings  # noqa: PLC0415

    try:
        raw = await client.get(make_service_path(*_QUEUE, "configuration"))
        served = msgspec.json.decode(raw, type=DecisionSettings)
        found = await list_all(client, NAMESPACES_PATH, Namespace, "namespaces")
        return read_rules(served, {each.metadata.name: each.metadata.labels or {} for each in found})
    except (KubeApiError, InputError, *UNREADABLE) as error:
        return f"cannot be asked: {error}"
