"""Which queue a pod belongs to, and why it can be in none. Pure."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from allocator.errors import shown
from allocator.names import QUEUE_NAME
from allocator.texts import list_some
from scheduler_plugin.queue.cache.pods import PodQueueInfo
from scheduler_plugin.queue.cache.queued_pods import QueuedPod
from scheduler_plugin.queue.config.queues import QueueConfig

NAMES_SHOWN: Final = 10


class QueueMembership:
    """Decides which queue a pod belongs to, not by its label alone: whoever may patch pods can change it.

    A namespace has queues of its own if its label `gpupack.io/queue-name` names one, or if the
    `namespaceSelector` of a queue selects it. A pod that asks for cards there always belongs to a queue.
    """

    def __init__(self, config: QueueConfig) -> None:
        self._labels: dict[str, Mapping[str, str]] = {}
        self._defaults: dict[str, str] = {}
        self.configure(config)

    def configure(self, config: QueueConfig) -> None:
        self._config = config
        self._defaults.clear()
        # By one label that each asks for: 10 000 selectors are not tried on each of 10 000 namespaces.
        self._selecting: dict[tuple[str, str] | None, list[tuple[int, str]]] = {}
        for place, form in enumerate(config.queues.values()):
            if form.namespace_selector is not None:
                labels = form.namespace_selector.match_labels or {}
                self._selecting.setdefault(next(iter(labels.items()), None), []).append((place, form.name))

    def set_namespace(self, name: str, labels: Mapping[str, str] | None) -> bool:
        """Set a namespace's labels, None once it is deleted; return True if they have changed."""
        if self._labels.get(name) == labels:
            return False
        self._labels.pop(name, None)
        self._defaults.pop(name, None)
        if labels is not None:
            self._labels[name] = dict(labels)
        return True

    def admits(self, queue: str, namespace: str) -> bool:
        """Return True if a queue admits pods of a namespace; no selector matches unknown labels."""
        form = self._config.queues.get(queue)
        if form is None or form.namespace_selector is None:
            return form is not None
        labels = self._labels.get(namespace)
        return labels is not None and form.namespace_selector.matches(labels)

    def may_charge(self, queue: str, namespace: str) -> bool:
        """Return True if a queue counts what a namespace has: it admits it, or is not configured."""
        return queue not in self._config.queues or self.admits(queue, namespace)

    def find_queue(self, namespace: str, named: str, last: str = "") -> str:
        """Find the queue that a pod belongs to, empty for none; docs/queue/rules.md says by which rule.

        If no queue admits the namespace, a pod keeps the queue that its label names: that queue may be
        configured later.

        Args:
            named: What its label names, empty for none.
            last: The queue to which it belonged last; empty if unknown.
        """
        if self.admits(named, namespace):
            return named
        label = (self._labels.get(namespace) or {}).get(QUEUE_NAME, "")
        return last or self._find_default(namespace, label) or named or label

    def find_pod_queue(self, known: QueuedPod | None, namespace: str, queue_info: PodQueueInfo) -> str:
        """Find the queue of a pod's newest version, empty for none.

        An admitted pod stays with its queue until it ends. A pod that waits for its first admission goes to
        the queue that its label names, or gets a reason why it cannot.
        """
        admitted = known is not None and not known.waits_again(queue_info)
        if known is not None and admitted and known.charged_queue in self._config.queues:
            # Its gate may still be shown: the write that removes it is under way.
            return known.charged_queue
        return self._find_waiting_queue(namespace, queue_info, "" if known is None else known.last_queue)

    def has_left_queue(self, pod: QueuedPod) -> bool:
        """Return True if an admitted pod that is still gated names another queue than admitted it."""
        queue = self._find_waiting_queue(pod.record.namespace, pod.queue_info, pod.last_queue)
        return pod.queue_info.gated and queue != pod.charged_queue

    def _find_waiting_queue(self, namespace: str, queue_info: PodQueueInfo, last: str) -> str:
        if queue_info.label and queue_info.gated and not queue_info.requeued:
            return queue_info.label
        return self.find_queue(namespace, queue_info.label, last)

    def update_queue(self, pod: QueuedPod) -> None:
        """Determine the queue of a pod again; it stays where it was if no queue admits it any more."""
        queue = self.find_pod_queue(pod, pod.record.namespace, pod.queue_info) or pod.queue_info.queue
        if queue != pod.queue_info.queue:
            pod.queue_info = replace(pod.queue_info, queue=queue)
        self.remember_queue(pod)

    def remember_queue(self, pod: QueuedPod) -> None:
        """Remember the queue of a pod that is allowed there: it stays there if its label is removed."""
        if self.admits(pod.queue_info.queue, pod.record.namespace):
            pod.last_queue = pod.queue_info.queue

    def explain_wrong_queue(self, pod: QueuedPod) -> str:
        """Say why a pod cannot be in the queue that it belongs to; empty if it can."""
        name, namespace = pod.queue_info.queue, pod.record.namespace
        if not name:
            return f"label {QUEUE_NAME} is missing; allowed: {self._format_names()}"
        if name not in self._config.queues:
            return f"queue {shown(name)} does not exist; allowed: {self._format_names()}"
        if self.admits(name, namespace):
            return ""
        if namespace not in self._labels:
            unknown = f"the labels of namespace {shown(namespace)} are not known yet"
            return f"{unknown}, and queue {shown(name)} asks for some"
        return f"queue {shown(name)} is not for namespace {shown(namespace)}"

    def _format_names(self) -> str:
        return list_some(sorted(self._config.queues), NAMES_SHOWN)

    def _find_default(self, namespace: str, label: str) -> str:
        """Find the queue of pods that name none; empty if the namespace has no queue of its own."""
        found = self._defaults.get(namespace)
        if found is None:
            keys = (None, *(self._labels.get(namespace) or {}).items())
            selecting = sorted(each for key in keys for each in self._selecting.get(key, ()))
            names = (label, *(name for _, name in selecting))
            found = next((name for name in names if self.admits(name, namespace)), "")
            self._defaults[namespace] = found
        return found
