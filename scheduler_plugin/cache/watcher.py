"""The watches that bring nodes, pods, claims and PodGroups from the API server into the cache."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, TypeVar

import structlog

from allocator.claims import CLAIMS_PATH, ClaimObject
from kubeapi.client import WATCH_TIMEOUT_S, KubeClient
from kubeapi.errors import KubeApiError, NotFound
from kubeapi.lists import read_first_served
from kubeapi.objects import Node, Pod, PodGroup
from kubeapi.paths import NODES_PATH, PODS_PATH
from kubeapi.reflect import Kind, Reflector, Sink, has_gone_back
from scheduler_plugin.cache.pod_groups import KUBERNETES, GroupKey, PodGroups, list_pod_group_paths
from scheduler_plugin.cache.signals import Signal
from scheduler_plugin.cache.state import ClusterState

T = TypeVar("T")

LOOK_S: Final = 60.0
"""How often it is checked whether the API server has PodGroups."""

log = structlog.get_logger(__name__)


class _CacheSink(Sink[T]):
    """What the sinks of nodes, pods and claims have in common: resourceVersions, and whom they tell.

    Attributes:
        listed: Signals that the state has a complete list, and whether the list belongs to another history.
        changed: Signals every list and every change.
        replaced: Signals the objects of a complete list, once the state has them.
        applied: Signals one change, once the state has it.
    """

    def __init__(self, state: ClusterState, clock: Callable[[], float]) -> None:
        self.listed: Signal[[bool]] = Signal()
        self.changed: Signal[[]] = Signal()
        self.replaced: Signal[[Sequence[T]]] = Signal()
        self.applied: Signal[[Kind, T]] = Signal()
        self._state = state
        self._clock = clock
        self._seen = ""
        self._distrusts_next_list = False

    def distrust_next_list(self) -> None:
        """Treat the next list as belonging to another history, because the list of another kind does."""
        self._distrusts_next_list = True

    def replace(self, items: Sequence[T], resource_version: str) -> None:
        told, self._distrusts_next_list = self._distrusts_next_list, False
        restored = told or has_gone_back(self._seen, resource_version)
        self._seen = resource_version
        contradicted = self._apply_list(items, resource_version, restored)
        self.replaced(items)
        self.listed(contradicted and not told)
        self.changed()

    def event(self, kind: Kind, item: T, resource_version: str) -> None:
        self._seen = resource_version
        self._apply_change(kind, item, resource_version)
        self.applied(kind, item)
        self.changed()

    def bookmark(self, resource_version: str) -> None:
        self._seen = resource_version

    def _apply_list(self, items: Sequence[T], resource_version: str, restored: bool) -> bool:
        raise NotImplementedError

    def _apply_change(self, kind: Kind, item: T, resource_version: str) -> None:
        raise NotImplementedError


class NodeSink(_CacheSink[Node]):
    """Applies what the node reflector brings to the state."""

    def _apply_list(self, items: Sequence[Node], resource_version: str, restored: bool) -> bool:
        return self._state.replace_nodes(items, resource_version, self._clock(), restored=restored)

    def _apply_change(self, kind: Kind, item: Node, resource_version: str) -> None:
        if kind == "DELETED":
            self._state.delete_node(item.metadata.name, resource_version, self._clock())
        else:
            self._state.apply_node(item, self._clock())


class PodSink(_CacheSink[Pod]):
    """Applies what the pod reflector brings to the state."""

    def _apply_list(self, items: Sequence[Pod], resource_version: str, restored: bool) -> bool:
        return self._state.replace_pods(items, resource_version, self._clock(), restored=restored)

    def _apply_change(self, kind: Kind, item: Pod, resource_version: str) -> None:
        if kind == "DELETED":
            self._state.delete_pod(item, resource_version, self._clock())
        else:
            self._state.apply_pod(item, self._clock())


class ClaimSink(_CacheSink[ClaimObject]):
    """Applies what the claim reflector brings to the state.

    Attributes:
        tried: Signals that a list was read, or could not be.
    """

    def __init__(self, state: ClusterState, clock: Callable[[], float]) -> None:
        super().__init__(state, clock)
        self.tried: Signal[[]] = Signal()

    def disconnected(self, error: KubeApiError) -> None:
        """Note that no events arrive for now; claims keep counting as they were."""
        del error
        self.tried()

    def _apply_list(self, items: Sequence[ClaimObject], resource_version: str, restored: bool) -> bool:
        found = self._state.claims.replace(items, resource_version, self._clock(), restored=restored)
        self.tried()
        return found

    def _apply_change(self, kind: Kind, item: ClaimObject, resource_version: str) -> None:
        if kind == "DELETED":
            self._state.claims.delete(item, resource_version, self._clock())
        else:
            self._state.claims.apply(item, self._clock())


class PodGroupWatch(Sink[PodGroup]):
    """Keeps an index of PodGroups up to date with the API server.

    Attributes:
        updated: Signals each PodGroup of which something else is known now, once the index has it.
    """

    def __init__(
        self, client: KubeClient, groups: PodGroups[Any], clock: Callable[[], float], paths: Sequence[str]
    ) -> None:
        self.updated: Signal[[GroupKey]] = Signal()
        self.changed: Signal[[]] = Signal()
        self._client = client
        self._groups = groups
        self._clock = clock
        self._paths = paths
        self._wanted = asyncio.Event()

    def replace(self, items: Sequence[PodGroup], _resource_version: str) -> None:
        self._report(self._groups.replace_groups(items))

    def event(self, kind: Kind, item: PodGroup, _resource_version: str) -> None:
        groups = self._groups
        self._report(groups.delete_group(item.key) if kind == "DELETED" else groups.put_group(item))

    def set_fault(self, fault: str) -> None:
        """Set why PodGroups cannot be read; empty if they can, or if the cluster has no such API."""
        self._report(self._groups.set_fault(fault))

    def _report(self, keys: Collection[GroupKey]) -> None:
        for key in keys:
            self.updated(key)
        self.changed()

    def start_if_wanted(self) -> None:
        """Let `run_once_wanted` begin if a pod has named a PodGroup."""
        if self._groups.is_wanted:
            self._wanted.set()

    async def run_once_wanted(self) -> None:
        await self._wanted.wait()
        await self.run()

    async def run(self) -> None:
        """Watch once the API server serves one of the paths, which is checked once a minute."""
        fault, path = "", None
        while path is None:
            before = fault
            try:
                path, fault = await read_first_served(self._paths, self._try_path), ""
            except KubeApiError as error:
                fault = "" if isinstance(error, NotFound) else error.reason
                if fault and not before:
                    log.warning("PodGroups cannot be read", path=self._paths[0], error=str(error))
            if fault != before:
                self.set_fault(fault)
            if path is None:
                await asyncio.sleep(LOOK_S)
        await Reflector(self._client, path, PodGroup, self, clock=self._clock).run()

    async def _try_path(self, path: str) -> str:
        await self._client.get(path, limit=1)
        return path


class Watcher:
    """Keeps a state up to date with the API server.

    Claims are watched once a node serves them. A process that may not list them goes on without: then only
    the nodes know about claims that others allocated, and let pods wait. PodGroups are watched once a pod
    names one.

    Args:
        stale_s: Age from which the view is stale. On a quiet cluster a view gets as old as a watch lasts, so
            watches last two thirds of this at most.

    Attributes:
        filled: Signals, once, that both lists have been read.
        restored: Signals that a list belongs to another history: etcd was restored from an older state. The
            lists of the other kinds have then been requested.
    """

    def __init__(
        self,
        client: KubeClient,
        state: ClusterState,
        clock: Callable[[], float],
        stale_s: float,
    ) -> None:
        watch_s = int(min(WATCH_TIMEOUT_S, stale_s * 2 / 3))
        self.changed: Signal[[]] = Signal()
        self.filled: Signal[[]] = Signal()
        self.restored: Signal[[]] = Signal()
        self._client = client
        self._clock = clock
        self._stale_s = stale_s
        self._lists = {"nodes": False, "pods": False}
        self._pods_listed, self._nodes_listed = asyncio.Event(), asyncio.Event()
        state.node_failed.connect(_log_node_failure)
        self.node_sink, self.pod_sink = NodeSink(state, clock), PodSink(state, clock)
        self.nodes = Reflector(client, NODES_PATH, Node, self.node_sink, clock=clock, watch_s=watch_s)
        self.pods = Reflector(client, PODS_PATH, Pod, self.pod_sink, clock=clock, watch_s=watch_s)
        self.claim_sink = ClaimSink(state, clock)
        self.claims = Reflector(
            client, CLAIMS_PATH, ClaimObject, self.claim_sink, clock=clock, watch_s=watch_s
        )
        self._state = state
        self._claims_wanted, self._claims_tried = asyncio.Event(), asyncio.Event()
        self.node_sink.changed.connect(self._look_for_claims)
        self.claim_sink.tried.connect(self._claims_tried.set)
        self.groups = PodGroupWatch(client, state.pod_groups, clock, list_pod_group_paths(KUBERNETES))
        self.pod_sink.changed.connect(self.groups.start_if_wanted)
        self.node_sink.listed.connect(self._record_node_list)
        self.pod_sink.listed.connect(self._record_pod_list)
        for sink in (self.node_sink, self.pod_sink, self.claim_sink, self.groups):
            sink.changed.connect(self.changed)

    async def refresh(self) -> None:
        """List pods anew, from now on, then nodes; return when the state has both.

        A pod that was deleted before this list and never known here is counted only by the words of its node.
        So the words must not be older than the list of pods.
        """
        for reflector, listed in ((self.pods, self._pods_listed), (self.nodes, self._nodes_listed)):
            listed.clear()
            reflector.relist()
            await listed.wait()
        if self._state.claims.is_wanted:
            self._claims_tried.clear()
            self.claims.relist()
            await self._claims_tried.wait()

    def _look_for_claims(self) -> None:
        if self._state.claims.is_wanted:
            self._claims_wanted.set()

    async def _watch_claims(self) -> None:
        await self._claims_wanted.wait()
        await self.claims.run()

    def call_after_each_list(self, act: Callable[[], None]) -> None:
        """Call `act` after each complete list, once the memory of the list itself has been freed."""

        def soon(_restored: bool) -> None:
            # The reflector still has the list in its hands.
            asyncio.get_running_loop().call_soon(act)

        for sink in (self.node_sink, self.pod_sink):
            sink.listed.connect(soon)

    def _record_node_list(self, restored: bool) -> None:
        self._nodes_listed.set()
        self._record_list("nodes")
        if restored:
            self._relist_other_kind(self.pod_sink, self.pods)

    def _record_pod_list(self, restored: bool) -> None:
        self._pods_listed.set()
        self._record_list("pods")
        if restored:
            self._relist_other_kind(self.node_sink, self.nodes)

    def _record_list(self, what: str) -> None:
        if not self.synced:
            self._lists[what] = True
            if self.synced:
                self.filled()

    def _relist_other_kind(self, other: _CacheSink[Any], reflector: Reflector[Any]) -> None:
        """List the other kind anew too, because its reflector may not have noticed the restore."""
        log.warning("etcd was restored from an older state, reading everything again")
        other.distrust_next_list()
        reflector.relist()
        self.claim_sink.distrust_next_list()
        self.claims.relist()
        self.restored()

    @property
    def synced(self) -> bool:
        return all(self._lists.values())

    @property
    def age_s(self) -> float:
        """Seconds since the API server was last heard of on the quieter of the two watches."""
        contacts = [each.last_contact for each in (self.nodes, self.pods)]
        return max((self._clock() - at if at is not None else float("inf")) for at in contacts)

    @property
    def skipped(self) -> Mapping[str, int]:
        """Objects in lists that could not be read, since the start, by resource."""
        return {
            "nodes": self.nodes.skipped,
            "pods": self.pods.skipped,
            "resourceclaims": self.claims.skipped,
        }

    @property
    def stale(self) -> str:
        """Why the view is stale, in words without changing numbers; empty if it is fresh."""
        if not self.synced:
            return "the gpupack scheduler has not read nodes and pods yet"
        if self.age_s > self._stale_s:
            return f"the gpupack scheduler has not heard from the API server for {self._stale_s:g} s"
        return ""

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.nodes.run())
            group.create_task(self.pods.run())
            group.create_task(self._watch_claims())
            group.create_task(self.groups.run_once_wanted())


def _log_node_failure(name: str, error: Exception) -> None:
    log.error("node out of use: what is known of it cannot be computed with", node=name, exc_info=error)
