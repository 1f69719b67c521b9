"""Feeds pods, nodes and namespaces from the API server into the queue, after the cluster state."""

from collections.abc import Callable, Sequence
from typing import Any

from kubeapi.client import KubeClient
from kubeapi.errors import KubeApiError
from kubeapi.reflect import Kind, Reflector
from scheduler_plugin.cache.watcher import Watcher
from scheduler_plugin.queue.cache.jobs import QueueJob, read_job
from scheduler_plugin.queue.cache.pods import NamespaceLite, read_node_facts
from scheduler_plugin.queue.scheduler.queue import Queue


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
            self._queue.delete_pod(pod.metadata.uid, self._clock())
        else:
            self._queue.apply_pod(pod, self._clock(), live=kind == "ADDED")

    def _replace_pods(self, pods: Sequence[Any]) -> None:
        listed = {pod.metadata.uid for pod in pods}
        for uid in [uid for uid in self._queue.known_uids if uid not in listed]:
            self._queue.delete_pod(uid, self._clock())
        known = set(self._queue.known_uids)
        for pod in sorted(pods, key=lambda pod: pod.metadata.creation_timestamp):
            # What is not in the first list, and in a later one, was created in between.
            live = self._listed and pod.metadata.uid not in known
            self._queue.apply_pod(pod, self._clock(), live=live)
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


def watch_jobs(client: KubeClient, sink: JobSink, clock: Callable[[], float]) -> Reflector[QueueJob]:
    """Watch Jobs: they say how many pods a first stage will have had."""
    return Reflector(client, "/apis/batch/v1/jobs", QueueJob, sink, clock=clock)


def watch_namespaces(
    client: KubeClient, sink: NamespaceSink, clock: Callable[[], float]
) -> Reflector[NamespaceLite]:
    """Watch namespaces."""
    return Reflector(client, "/api/v1/namespaces", NamespaceLite, sink, clock=clock)
