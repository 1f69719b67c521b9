"""Feeds a live cluster from the API server's watches."""

import asyncio
import time
from collections.abc import Callable

from allocator.claims import CLAIMS_PATH, ClaimObject, make_claims_path
from gpupack.inventory.watched_kind import WatchedKind
from gpupack.whatif.live_cluster import LiveCluster
from kubeapi.client import KubeClient
from kubeapi.objects import Node, Pod
from kubeapi.paths import NODES_PATH, PODS_PATH, make_collection_path, quote_segment
from scheduler_plugin.cache.pod_groups import COSCHEDULING, KUBERNETES, list_pod_group_paths
from scheduler_plugin.cache.watcher import PodGroupWatch


class LiveFeed:
    """Keeps a live cluster up to date with the API server."""

    def __init__(
        self, client: KubeClient, live: LiveCluster, namespace: str | None, changed: Callable[[], None]
    ) -> None:
        self._live = live
        self._namespace = namespace
        self._changed = changed
        self._claims_wanted = asyncio.Event()
        within = quote_segment(namespace) if namespace else ""
        self._groups = [
            PodGroupWatch(client, groups, time.monotonic, list_pod_group_paths(apis, within))
            for groups, apis in ((live.pod_groups, KUBERNETES), (live.coscheduling_groups, COSCHEDULING))
        ]
        for watch in self._groups:
            watch.changed.connect(changed)
        pods = make_collection_path(namespace, "pods") if namespace else PODS_PATH
        claims = make_claims_path(within) if within else CLAIMS_PATH
        self._nodes = WatchedKind(
            client, NODES_PATH, Node, live.replace_nodes, live.put_node, live.drop_node, self._nodes_changed
        )
        self._pods = WatchedKind(
            client, pods, Pod, live.replace_pods, live.put_pod, live.drop_pod, self._pods_changed
        )
        self._claims = WatchedKind(
            client, claims, ClaimObject, live.replace_claims, live.put_claim, live.drop_claim, changed
        )

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._nodes.run())
            group.create_task(self._pods.run())
            group.create_task(self._follow_claims())
            for watch in self._groups:
                group.create_task(watch.run_once_wanted())

    def _nodes_changed(self) -> None:
        if self._live.serves_claims:
            self._claims_wanted.set()
        self._changed()

    def _pods_changed(self) -> None:
        for watch in self._groups:
            watch.start_if_wanted()
        self._changed()

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
        faults = self._live.coscheduling_groups.fault, self._live.pod_groups.fault
        for fault in dict.fromkeys(filter(None, faults)):
            loss = "pods whose gangs' sizes they say are asked about one by one"
            found.append(f"PodGroups{where} cannot be read, so {loss}: {fault}")
        if self._namespace:
            found.append(f"Only pods of namespace {self._namespace} are read: others on a card have no name.")
        return found
