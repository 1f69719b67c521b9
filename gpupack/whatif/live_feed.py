"""Feeds a live cluster from the API server's watches."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final

from allocator.claims import CLAIMS_PATH, ClaimObject, make_claims_path
from gpupack.inventory.fetching import NODES_PATH, PODS_PATH
from gpupack.inventory.watched_kind import WatchedKind
from gpupack.whatif.live_cluster import LiveCluster
from kubeapi.client import KubeClient
from kubeapi.errors import KubeApiError
from kubeapi.objects import Node, Pod, PodGroup
from kubeapi.paths import quote_segment
from kubeapi.reflect import Kind, Sink
from scheduler_plugin.cache.pod_groups import PodGroups, list_pod_group_paths
from scheduler_plugin.cache.watcher import watch_pod_groups
from scheduler_plugin.queue.cache.pod_groups import POD_GROUPS_PATH, make_pod_groups_path

WATCH_S: Final = 120
"""A watch ends after so long, which is also when silence is noticed."""


class _GroupSink(Sink[PodGroup]):
    """Gives PodGroups of Kubernetes or of the coscheduling plugin to whoever keeps them, or their fault."""

    def __init__(self, store: LiveCluster | PodGroups, changed: Callable[[], None]) -> None:
        self._store = store
        self._changed = changed
        self.fault = ""

    def replace(self, items: Sequence[PodGroup], _resource_version: str) -> None:
        self._store.replace_groups(items)
        self._changed()

    def event(self, kind: Kind, item: PodGroup, _resource_version: str) -> None:
        if kind == "DELETED":
            self._store.delete_group(item.key)
        else:
            self._store.put_group(item)
        self._changed()

    def disconnected(self, error: KubeApiError) -> None:
        """Nothing is said: gangs keep the sizes that are known."""

    def note_fault(self, fault: str) -> None:
        self.fault = fault
        self._store.set_fault(fault)
        self._changed()


class LiveFeed:
    """Keeps a live cluster up to date with the API server.

    Args:
        namespace: whose pods to read, None for all.
        changed: called after every change, also of what cannot be read.
    """

    def __init__(
        self, client: KubeClient, live: LiveCluster, namespace: str | None, changed: Callable[[], None]
    ) -> None:
        self._client = client
        self._live = live
        self._namespace = namespace
        self._changed = changed
        self._claims_wanted = asyncio.Event()
        self._groups_wanted, self._own_groups_wanted = asyncio.Event(), asyncio.Event()
        self._groups, self._own_groups = _GroupSink(live, changed), _GroupSink(live.pod_groups, changed)
        self._groups_path = make_pod_groups_path(quote_segment(namespace)) if namespace else POD_GROUPS_PATH
        self._own_groups_paths = list_pod_group_paths(quote_segment(namespace) if namespace else "")
        pods = f"/api/v1/namespaces/{quote_segment(namespace)}/pods" if namespace else PODS_PATH
        claims = make_claims_path(quote_segment(namespace)) if namespace else CLAIMS_PATH
        self._nodes = WatchedKind(
            client,
            NODES_PATH,
            Node,
            live.replace_nodes,
            live.put_node,
            live.drop_node,
            self._nodes_changed,
            WATCH_S,
        )
        self._pods = WatchedKind(
            client, pods, Pod, live.replace_pods, live.put_pod, live.drop_pod, self._pods_changed, WATCH_S
        )
        self._claims = WatchedKind(
            client,
            claims,
            ClaimObject,
            live.replace_claims,
            live.put_claim,
            live.drop_claim,
            changed,
            WATCH_S,
        )

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._nodes.run())
            group.create_task(self._pods.run())
            group.create_task(self._follow_claims())
            group.create_task(self._follow_groups())
            group.create_task(self._follow_own_groups())

    def _nodes_changed(self) -> None:
        if self._live.serves_claims:
            self._claims_wanted.set()
        self._changed()

    def _pods_changed(self) -> None:
        if self._live.names_groups:
            self._groups_wanted.set()
        if self._live.pod_groups.is_wanted:
            self._own_groups_wanted.set()
        self._changed()

    async def _follow_groups(self) -> None:
        """Follow the coscheduling plugin's PodGroups once a pod names one."""
        await self._groups_wanted.wait()
        await watch_pod_groups(self._client, self._groups, time.monotonic, self._groups_path)

    async def _follow_own_groups(self) -> None:
        """Follow Kubernetes' own PodGroups once a pod names one."""
        await self._own_groups_wanted.wait()
        await watch_pod_groups(self._client, self._own_groups, time.monotonic, *self._own_groups_paths)

    async def _follow_claims(self) -> None:
        """Follow ResourceClaims once a node serves them; without the right to, cards look emptier."""
        await self._claims_wanted.wait()
        await self._claims.run()

    @property
    def is_synced(self) -> bool:
        """Whether the nodes are there, and the pods are or cannot be had."""
        return self._nodes.listed and (self._pods.listed or self._pods.error is not None)

    @property
    def is_failing(self) -> bool:
        return self._nodes.error is not None or self._pods.error is not None

    def list_problems(self) -> list[str]:
        """List why the page does not show the current cluster, a sentence each."""
        found = []
        where = f" in namespace {self._namespace}" if self._namespace else ""
        for sink, what, loss in (
            (self._nodes, "nodes", "there are no cards to show"),
            (self._pods, f"pods{where}", "cards are shown without their pods"),
            (self._claims, f"claims{where}", "cards are shown without those that wait for their node"),
        ):
            if sink.error is not None:
                said = "are not up to date" if sink.listed else f"cannot be read, so {loss}"
                found.append(f"{what.capitalize()} {said}: {sink.error}")
        for fault in dict.fromkeys(filter(None, (self._groups.fault, self._own_groups.fault))):
            loss = "pods whose gangs' sizes they say are asked about one by one"
            found.append(f"PodGroups{where} cannot be read, so {loss}: {fault}")
        if self._namespace:
            found.append(f"Only pods of namespace {self._namespace} are read: others on a card have no name.")
        return found
