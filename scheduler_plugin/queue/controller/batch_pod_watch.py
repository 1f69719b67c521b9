"""Watch of the pods that wait for batch mode, with their whole spec."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from allocator.names import BATCH_SCHEDULER
from kubeapi.client import KubeClient
from kubeapi.errors import KubeApiError
from kubeapi.reflect import Kind, Reflector
from scheduler_plugin.cache.objects import KubeStruct, LiteMetadata
from scheduler_plugin.queue.scheduler.queue import Queue

SELECTED: Final = f"spec.schedulerName={BATCH_SCHEDULER},spec.nodeName="
"""The API server selects them, so that nobody reads the whole spec of every other pod."""


class WholePod(KubeStruct):
    """A pod with everything in its spec, also what we have no name for."""

    metadata: LiteMetadata
    spec: dict[str, Any]


class BatchPodSink:
    """Writes specs into the queue.

    Args:
        queue: Takes them.
        changed: Called after each change.
    """

    def __init__(self, queue: Queue, changed: Callable[[], None]) -> None:
        self._queue = queue
        self._changed = changed

    def replace(self, items: Sequence[WholePod], resource_version: str) -> None:
        """Take a complete list."""
        del resource_version
        self._queue.batch.forget_others([item.metadata.uid for item in items])
        for item in items:
            self._queue.set_batch_spec(item.metadata.uid, item.spec)
        self._changed()

    def event(self, kind: Kind, item: WholePod, resource_version: str) -> None:
        """Take one change."""
        del resource_version
        if kind == "DELETED":
            # Bound, as a rule: then it is selected no more.
            self._queue.batch.forget_pod(item.metadata.uid)
            return
        self._queue.set_batch_spec(item.metadata.uid, item.spec)
        self._changed()

    def bookmark(self, resource_version: str) -> None:
        """Nothing changed up to this version."""

    def disconnected(self, error: KubeApiError) -> None:
        """Do nothing: while a pod waits its spec changes in nothing that an admission needs."""


def watch_batch_pods(
    client: KubeClient, sink: BatchPodSink, clock: Callable[[], float]
) -> Reflector[WholePod]:
    """Watch them."""
    return Reflector(client, "/api/v1/pods", WholePod, sink, params={"fieldSelector": SELECTED}, clock=clock)
