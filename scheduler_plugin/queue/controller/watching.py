"""Feeds pods, nodes and namespaces from the API server into the queue, after the cluster state."""

import asyncio
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, Final

import structlog

from kubeapi.client import KubeClient
from kubeapi.errors import KubeApiError, NotFound
from kubeapi.reflect import Kind, Reflector
from scheduler_plugin.cache.watcher import Watcher
from scheduler_plugin.queue.cache.jobs import QueueJob, read_job
from scheduler_plugin.queue.cache.pod_groups import (
    POD_GROUPS_PATH,
    GroupedPods,
    PodGroup,
    PodGroupSizes,
    needs_group,
)
from scheduler_plugin.queue.cache.pods import NamespaceLite, read_node_facts
from scheduler_plugin.queue.scheduler.queue import Queue

log = structlog.get_logger(__name__)

LOOK_S: Final = 60.0
"""Between two questions whether the API server has PodGroups."""


class QueueFeed:
    """Connects a queue with a watcher of nodes and pods.

    Args:
        queue: Takes what comes.
        watcher: Made with `node=QueueNode` and `pod=QueuePod`, for the state of the queue.
        clock: Monotonic seconds.
    """

    def __init__(self, queue: Queue, watcher: Watcher, clock: Callable[[], float]) -> None:
        self._queue = queue
        self._clock = clock
        self._listed = False
        self._group_sizes = PodGroupSizes()
        self._grouped = GroupedPods()
        watcher.node_sink.applied.connect(self._set_node)
        watcher.node_sink.replaced.connect(self._replace_nodes)
        watcher.pod_sink.applied.connect(self._set_pod)
        watcher.pod_sink.replaced.connect(self._replace_pods)

    def _set_node(self, kind: Kind, node: Any) -> None:
        self._queue.set_node(node.metadata.name, None if kind == "DELETED" else read_node_facts(node))

    def _replace_nodes(self, nodes: Sequence[Any]) -> None:
        listed = {node.metadata.name for node in nodes}
        for name in [name for name in self._queue.capacity.facts if name not in listed]:
            self._queue.set_node(name, None)
        for node in nodes:
            self._set_node("MODIFIED", node)

    def _set_pod(self, kind: Kind, pod: Any) -> None:
        if kind == "DELETED":
            self._ungroup(pod.metadata.uid)
            self._queue.delete_pod(pod.metadata.uid, self._clock())
        else:
            self._apply_pod(pod, live=kind == "ADDED")

    def _apply_pod(self, pod: Any, *, live: bool) -> None:
        if needs_group(pod.metadata):
            self._regroup(pod)
            pod = copy(pod)
            pod.metadata = copy(pod.metadata)
            self._group_sizes.complete(pod.metadata)
        else:
            self._ungroup(pod.metadata.uid)
        self._queue.apply_pod(pod, self._clock(), live=live)

    def _regroup(self, pod: Any) -> None:
        if (left := self._grouped.put(pod)) is not None:
            self._group_sizes.forget_deleted(left)

    def _ungroup(self, uid: str) -> None:
        if (left := self._grouped.remove(uid)) is not None:
            self._group_sizes.forget_deleted(left)

    def put_group(self, group: PodGroup) -> None:
        """Take a PodGroup; where its size is another one, its pods are looked at again."""
        if self._group_sizes.put(group):
            for pod in self._grouped.find((group.metadata.namespace, group.metadata.name)):
                self._apply_pod(pod, live=False)

    def set_groups_fault(self, fault: str) -> None:
        """Take why PodGroups cannot be read, empty where they can be: pods that wait for one say so."""
        if fault != self._group_sizes.fault:
            self._group_sizes.fault = fault
            for pod in self._grouped.list_all():
                self._apply_pod(pod, live=False)

    def delete_group(self, key: tuple[str, str]) -> None:
        """Take the end of a PodGroup; its size goes with the last pod that names it.

        Args:
            key: Its namespace and name.
        """
        self._group_sizes.delete(key)
        if not self._grouped.find(key):
            self._group_sizes.forget_deleted(key)

    def replace_groups(self, groups: Sequence[PodGroup]) -> None:
        """Take all PodGroups; those that are not among them were deleted."""
        listed = {(group.metadata.namespace, group.metadata.name) for group in groups}
        for key in self._group_sizes.existing - listed:
            self.delete_group(key)
        for group in groups:
            self.put_group(group)

    def _replace_pods(self, pods: Sequence[Any]) -> None:
        listed = {pod.metadata.uid for pod in pods}
        for uid in self._grouped.uids - listed:
            self._ungroup(uid)
        for uid in [uid for uid in self._queue.known_uids if uid not in listed]:
            self._queue.delete_pod(uid, self._clock())
        known = set(self._queue.known_uids)
        for pod in sorted(pods, key=lambda pod: pod.metadata.creation_timestamp):
            # What is not in the first list, and in a later one, was created in between.
            live = self._listed and pod.metadata.uid not in known
            self._apply_pod(pod, live=live)
        self._listed = True


class NamespaceSink:
    """Writes namespaces into the queue.

    Args:
        queue: Takes them.
        changed: Called after each change.

    Attributes:
        synced: A complete list was there.
    """

    def __init__(self, queue: Queue, changed: Callable[[], None]) -> None:
        self.synced = False
        self._queue = queue
        self._changed = changed
        self._known: set[str] = set()

    def replace(self, items: Sequence[NamespaceLite], resource_version: str) -> None:
        """Take a complete list."""
        del resource_version
        names = {item.metadata.name for item in items}
        for name in self._known - names:
            self._queue.set_namespace(name, None)
        for item in items:
            self._queue.set_namespace(item.metadata.name, item.metadata.labels or {})
        self._known = names
        self.synced = True
        self._changed()

    def event(self, kind: Kind, item: NamespaceLite, resource_version: str) -> None:
        """Take one change."""
        del resource_version
        gone = kind == "DELETED"
        self._queue.set_namespace(item.metadata.name, None if gone else item.metadata.labels or {})
        (self._known.discard if gone else self._known.add)(item.metadata.name)
        self._changed()

    def bookmark(self, resource_version: str) -> None:
        """Nothing changed up to this version."""

    def disconnected(self, error: KubeApiError) -> None:
        """Nothing to do: the namespaces known are used until others come."""


class JobSink:
    """Writes Jobs into the stages of a queue.

    Args:
        queue: Takes them.
        changed: Called after each change that a stage depends on.
    """

    def __init__(self, queue: Queue, changed: Callable[[], None]) -> None:
        self._job_stages = queue.job_stages
        self._changed = changed

    def replace(self, items: Sequence[QueueJob], resource_version: str) -> None:
        """Take a complete list."""
        del resource_version
        self._job_stages.set_jobs(read_job(item) for item in items)
        self._changed()

    def event(self, kind: Kind, item: QueueJob, resource_version: str) -> None:
        """Take one change."""
        del resource_version
        gone = kind == "DELETED"
        if (
            self._job_stages.remove_job(item.metadata.uid)
            if gone
            else self._job_stages.set_job(read_job(item))
        ):
            self._changed()

    def bookmark(self, resource_version: str) -> None:
        """Nothing changed up to this version."""

    def disconnected(self, error: KubeApiError) -> None:
        """Nothing to do: the Jobs known are used until others come."""


class PodGroupSink:
    """Writes PodGroups into a feed.

    Args:
        feed: Takes what they say.
        changed: Called after each change.
    """

    def __init__(self, feed: QueueFeed, changed: Callable[[], None]) -> None:
        self._feed = feed
        self._changed = changed

    def replace(self, items: Sequence[PodGroup], resource_version: str) -> None:
        """Take a complete list."""
        del resource_version
        self._feed.replace_groups(items)
        self._changed()

    def event(self, kind: Kind, item: PodGroup, resource_version: str) -> None:
        """Take one change."""
        del resource_version
        if kind == "DELETED":
            self._feed.delete_group((item.metadata.namespace, item.metadata.name))
        else:
            self._feed.put_group(item)
            self._changed()

    def bookmark(self, resource_version: str) -> None:
        """Nothing changed up to this version."""

    def disconnected(self, error: KubeApiError) -> None:
        """Nothing to do: the sizes known are used until others come."""

    def note_fault(self, fault: str) -> None:
        """Take why PodGroups cannot be read; empty where they can be, or the cluster has none."""
        self._feed.set_groups_fault(fault)
        self._changed()


async def watch_pod_groups(client: KubeClient, sink: PodGroupSink, clock: Callable[[], float]) -> None:
    """Watch PodGroups once the API server has them; what says so costs a question a minute."""
    fault = ""
    while (error := await _find_pod_groups_error(client)) is not None:
        before, fault = fault, "" if isinstance(error, NotFound) else error.reason
        if fault and not before:
            log.warning("PodGroups cannot be read", path=POD_GROUPS_PATH, error=str(error))
        if fault != before:
            sink.note_fault(fault)
        await asyncio.sleep(LOOK_S)
    if fault:
        sink.note_fault("")
    await Reflector(client, POD_GROUPS_PATH, PodGroup, sink, clock=clock).run()


async def _find_pod_groups_error(client: KubeClient) -> KubeApiError | None:
    try:
        await client.get(POD_GROUPS_PATH, limit=1)
    except KubeApiError as error:
        return error
    return None


def watch_jobs(client: KubeClient, sink: JobSink, clock: Callable[[], float]) -> Reflector[QueueJob]:
    """Watch Jobs: they say how many pods a first stage will have had."""
    return Reflector(client, "/apis/batch/v1/jobs", QueueJob, sink, clock=clock)


def watch_namespaces(
    client: KubeClient, sink: NamespaceSink, clock: Callable[[], float]
) -> Reflector[NamespaceLite]:
    """Watch namespaces."""
    return Reflector(client, "/api/v1/namespaces", NamespaceLite, sink, clock=clock)
