"""Feeds pods, nodes, claims and namespaces from the API server into the queue, after the cluster state."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from allocator.names import BATCH_SCHEDULER
from kubeapi.client import KubeClient
from kubeapi.objects import Job, KubeObject, Namespace, Node, Pod
from kubeapi.paths import NAMESPACES_PATH, PODS_PATH
from kubeapi.reflect import Kind, Reflector, Sink
from scheduler_plugin.cache.pod_groups import GroupKey, find_coscheduling_key
from scheduler_plugin.cache.watcher import Watcher
from scheduler_plugin.queue.cache.jobs import read_job
from scheduler_plugin.queue.scheduler.queue import Queue

BATCH_PODS: Final = f"spec.schedulerName={BATCH_SCHEDULER},spec.nodeName="
"""The API server selects them, so that nobody reads the whole spec of every other pod."""


class QueueFeed:
    """Connects a queue with a watcher of nodes, pods and claims."""

    def __init__(self, queue: Queue, watcher: Watcher, clock: Callable[[], float]) -> None:
        self._queue = queue
        self._clock = clock
        self._listed = False
        self._groups = queue.coscheduling_groups
        watcher.node_sink.applied.connect(self._set_node)
        watcher.node_sink.replaced.connect(self._replace_nodes)
        watcher.pod_sink.applied.connect(self._set_pod)
        watcher.pod_sink.replaced.connect(self._replace_pods)
        watcher.claim_sink.applied.connect(lambda _, claim: queue.claimed.update_claim(claim.metadata.uid))
        watcher.claim_sink.replaced.connect(lambda _: queue.claimed.update_all())
        watcher.groups.updated.connect(queue.gangs.update_group)

    def _set_node(self, kind: Kind, node: Node) -> None:
        self._queue.set_node(node.metadata.name, None if kind == "DELETED" else node.traits)

    def _replace_nodes(self, nodes: Sequence[Node]) -> None:
        listed = {node.metadata.name for node in nodes}
        for name in [name for name in self._queue.capacity.facts if name not in listed]:
            self._queue.set_node(name, None)
        for node in nodes:
            self._set_node("MODIFIED", node)

    def _set_pod(self, kind: Kind, pod: Pod) -> None:
        if kind == "DELETED":
            self._groups.remove_member(pod.metadata.uid)
            self._queue.delete_pod(pod.metadata.uid, self._clock())
        else:
            self._apply_pod(pod, live=kind == "ADDED")

    def _apply_pod(self, pod: Pod, *, live: bool) -> None:
        self._groups.put_member(find_coscheduling_key(pod.metadata), pod.metadata.uid, pod)
        self._queue.apply_pod(pod, self._clock(), live=live)

    def apply_members(self, key: GroupKey) -> None:
        """Process the pods of a PodGroup of the coscheduling plugin again, because that has changed."""
        for pod in list(self._groups.get_members(key).values()):
            self._apply_pod(pod, live=False)

    def _replace_pods(self, pods: Sequence[Pod]) -> None:
        listed = {pod.metadata.uid for pod in pods}
        self._groups.remove_other_members(listed)
        for uid in [uid for uid in self._queue.known_uids if uid not in listed]:
            self._queue.delete_pod(uid, self._clock())
        known = set(self._queue.known_uids)
        for pod in sorted(pods, key=lambda pod: pod.metadata.created_at):
            # What is not in the first list, and in a later one, was created in between.
            live = self._listed and pod.metadata.uid not in known
            self._apply_pod(pod, live=live)
        self._listed = True


class NamespaceSink(Sink[Namespace]):
    """Writes namespaces into the queue.

    Attributes:
        synced: Whether a complete list has been read.
    """

    def __init__(self, queue: Queue, changed: Callable[[], None]) -> None:
        self.synced = False
        self._queue = queue
        self._changed = changed
        self._known: set[str] = set()

    def replace(self, items: Sequence[Namespace], resource_version: str) -> None:
        del resource_version
        names = {item.metadata.name for item in items}
        self._queue.set_namespaces(
            {
                **dict.fromkeys(self._known - names),
                **{item.metadata.name: item.metadata.labels or {} for item in items},
            }
        )
        self._known = names
        self.synced = True
        self._changed()

    def event(self, kind: Kind, item: Namespace, resource_version: str) -> None:
        del resource_version
        gone = kind == "DELETED"
        self._queue.set_namespaces({item.metadata.name: None if gone else item.metadata.labels or {}})
        (self._known.discard if gone else self._known.add)(item.metadata.name)
        self._changed()


class JobSink(Sink[Job]):
    """Writes Jobs into the stages of a queue."""

    def __init__(self, queue: Queue, changed: Callable[[], None]) -> None:
        self._job_stages = queue.job_stages
        self._changed = changed

    def replace(self, items: Sequence[Job], resource_version: str) -> None:
        del resource_version
        self._job_stages.set_jobs(read_job(item) for item in items)
        self._changed()

    def event(self, kind: Kind, item: Job, resource_version: str) -> None:
        del resource_version
        gone = kind == "DELETED"
        if (
            self._job_stages.remove_job(item.metadata.uid)
            if gone
            else self._job_stages.set_job(read_job(item))
        ):
            self._changed()


def watch_jobs(client: KubeClient, sink: JobSink, clock: Callable[[], float]) -> Reflector[Job]:
    """Watch Jobs, which say how many pods a first stage has in the end."""
    return Reflector(client, "/apis/batch/v1/jobs", Job, sink, clock=clock)


def watch_namespaces(
    client: KubeClient, sink: NamespaceSink, clock: Callable[[], float]
) -> Reflector[Namespace]:
    return Reflector(client, NAMESPACES_PATH, Namespace, sink, clock=clock)


class WholePod(KubeObject):
    """A pod with its whole spec, also fields that are unknown to gpupack."""

    spec: dict[str, Any] = msgspec.field(default_factory=dict)


class BatchPodSink(Sink[WholePod]):
    """Writes the whole specs of pods that wait for batch mode into the queue."""

    def __init__(self, queue: Queue, changed: Callable[[], None]) -> None:
        self._queue = queue
        self._changed = changed

    def replace(self, items: Sequence[WholePod], resource_version: str) -> None:
        del resource_version
        self._queue.batch.forget_others([item.metadata.uid for item in items])
        for item in items:
            self._queue.set_batch_spec(item.metadata.uid, item.spec)
        self._changed()

    def event(self, kind: Kind, item: WholePod, resource_version: str) -> None:
        del resource_version
        if kind == "DELETED":
            # Bound, as a rule: then it is selected no more.
            self._queue.batch.forget_pod(item.metadata.uid)
            return
        self._queue.set_batch_spec(item.metadata.uid, item.spec)
        self._changed()


def watch_batch_pods(
    client: KubeClient, sink: BatchPodSink, clock: Callable[[], float]
) -> Reflector[WholePod]:
    """Watch the pods that wait for batch mode, with their whole spec."""
    return Reflector(client, PODS_PATH, WholePod, sink, params={"fieldSelector": BATCH_PODS}, clock=clock)
