"""Feeds nodes and pods from the API server into the state."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from kubeapi.client import WATCH_TIMEOUT_S, KubeClient
from kubeapi.errors import KubeApiError
from kubeapi.reflect import Kind, Reflector
from scheduler_plugin.cluster.objects import NodeLite, PodLite
from scheduler_plugin.cluster.state import ClusterState
from scheduler_plugin.http.patience import News

MIN_STALE_S: Final = 10.0
"""Below this an API server that is slow for a moment, or a lost connection, would look like a stale view."""

log = structlog.get_logger(__name__)


class NodeSink:
    """Writes what the node reflector brings into the state.

    Args:
        state: The cluster.
        clock: Monotonic seconds.
        listed: Called after every complete list.
        news: Told of every change.
    """

    def __init__(
        self, state: ClusterState, clock: Callable[[], float], listed: Callable[[], None], news: News
    ) -> None:
        self._news = news
        self._state = state
        self._clock = clock
        self._listed = listed

    def replace(self, items: Sequence[NodeLite], resource_version: str) -> None:
        """Take a complete list."""
        self._state.replace_nodes(items, resource_version, self._clock())
        self._listed()
        self._news.note()

    def event(self, kind: Kind, item: NodeLite, resource_version: str) -> None:
        """Take one change."""
        if kind == "DELETED":
            self._state.delete_node(item.metadata.name, resource_version, self._clock())
        else:
            self._state.apply_node(item, self._clock())
        self._news.note()

    def bookmark(self, resource_version: str) -> None:
        """Nothing to do; the reflector notes the contact."""

    def disconnected(self, error: KubeApiError) -> None:
        """Nothing to do; the cache's age tells."""


class PodSink:
    """Writes what the pod reflector brings into the state; arguments as for NodeSink."""

    def __init__(
        self, state: ClusterState, clock: Callable[[], float], listed: Callable[[], None], news: News
    ) -> None:
        self._news = news
        self._state = state
        self._clock = clock
        self._listed = listed

    def replace(self, items: Sequence[PodLite], resource_version: str) -> None:
        """Take a complete list."""
        self._state.replace_pods(items, resource_version, self._clock())
        self._listed()
        self._news.note()

    def event(self, kind: Kind, item: PodLite, resource_version: str) -> None:
        """Take one change."""
        if kind == "DELETED":
            self._state.delete_pod(item, resource_version, self._clock())
        else:
            self._state.apply_pod(item, self._clock())
        self._news.note()

    def bookmark(self, resource_version: str) -> None:
        """Nothing to do; the reflector notes the contact."""

    def disconnected(self, error: KubeApiError) -> None:
        """Nothing to do; the cache's age tells."""


class Watcher:
    """Keeps a state up to date with the API server.

    Args:
        client: The API server.
        state: The cluster.
        clock: Monotonic seconds.
        stale_s: Age of the view from which it is not to be trusted. On a quiet cluster a view gets as old as
            a watch lasts, so watches last two thirds of it at most.
        filled: Called once, when both lists have been read.
    """

    def __init__(
        self,
        client: KubeClient,
        state: ClusterState,
        clock: Callable[[], float],
        stale_s: float,
        filled: Callable[[], None] = lambda: None,
    ) -> None:
        watch_s = int(min(WATCH_TIMEOUT_S, stale_s * 2 / 3))
        self.news = News()
        self._clock = clock
        self._stale_s = stale_s
        self._filled = filled
        self._lists = {"nodes": False, "pods": False}
        self._pods_listed = asyncio.Event()
        state.broken = _broken
        self.nodes: Reflector[NodeLite] = Reflector(
            client,
            "/api/v1/nodes",
            NodeLite,
            NodeSink(state, clock, lambda: self._listed("nodes"), self.news),
            clock=clock,
            watch_s=watch_s,
        )
        self.pods: Reflector[PodLite] = Reflector(
            client,
            "/api/v1/pods",
            PodLite,
            PodSink(state, clock, lambda: self._listed("pods"), self.news),
            clock=clock,
            watch_s=watch_s,
        )

    async def refresh(self) -> None:
        """List pods anew, from now on; return when the state has the list."""
        self._pods_listed.clear()
        self.pods.relist()
        await self._pods_listed.wait()

    def _listed(self, what: str) -> None:
        if what == "pods":
            self._pods_listed.set()
        if not self.synced:
            self._lists[what] = True
            if self.synced:
                self._filled()

    @property
    def synced(self) -> bool:
        """Both lists have been read once."""
        return all(self._lists.values())

    @property
    def age_s(self) -> float:
        """Seconds since the API server was last heard of on the quieter of the two watches."""
        contacts = [each.last_contact for each in (self.nodes, self.pods)]
        return max((self._clock() - at if at is not None else float("inf")) for at in contacts)

    @property
    def stale(self) -> str:
        """Why the view cannot be trusted, in words that do not change; empty when it can."""
        if not self.synced:
            return "the gpupack scheduler has not read nodes and pods yet"
        if self.age_s > self._stale_s:
            return f"the gpupack scheduler has not heard from the API server for {self._stale_s:g} s"
        return ""

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.nodes.run())
            group.create_task(self.pods.run())


def _broken(name: str, error: Exception) -> None:
    log.error("node out of use: what is known of it cannot be computed with", node=name, exc_info=error)
