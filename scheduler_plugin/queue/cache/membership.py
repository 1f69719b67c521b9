"""Which queue a pod belongs to. Pure."""

from collections.abc import Mapping

from allocator.names import QUEUE_NAME
from scheduler_plugin.queue.cache.refusals import admits_namespace
from scheduler_plugin.queue.config.queues import QueueConfig


class QueueMembership:
    """Says which queue a pod belongs to: more than its label, which whoever may patch pods can change.

    A namespace has queues of its own where its label `gpupack.io/queue-name` names one, and where the
    `namespaceSelector` of one selects it. A pod with cards there always belongs to a queue.
    """

    def __init__(self, config: QueueConfig) -> None:
        self._config = config
        self._labels: dict[str, Mapping[str, str]] = {}
        self._defaults: dict[str, str] = {}

    def configure(self, config: QueueConfig) -> None:
        self._config = config
        self._defaults.clear()

    def set_namespace(self, name: str, labels: Mapping[str, str] | None) -> bool:
        """Take a namespace's labels, None when it is gone; tell whether they have changed."""
        if self._labels.get(name) == labels:
            return False
        self._labels.pop(name, None)
        self._defaults.pop(name, None)
        if labels is not None:
            self._labels[name] = dict(labels)
        return True

    def get_labels(self, namespace: str) -> Mapping[str, str] | None:
        """Labels of a namespace, None while they are not known."""
        return self._labels.get(namespace)

    def admits(self, queue: str, namespace: str) -> bool:
        """Tell whether the configuration has a queue, and that is for a namespace."""
        form = self._config.queues.get(queue)
        return form is not None and admits_namespace(form, self._labels.get(namespace))

    def find_queue(self, namespace: str, named: str, last: str = "") -> str:
        """Find the queue that a pod belongs to, empty for none; docs/queue.md says by which rule.

        Where no queue is for the namespace, a pod keeps what its label names: that queue may come.

        Args:
            named: What its label names, empty for none.
            last: The queue to which it belonged last, empty where that is not known.
        """
        if self.admits(named, namespace):
            return named
        label = (self._labels.get(namespace) or {}).get(QUEUE_NAME, "")
        return last or self._find_default(namespace, label) or named or label

    def _find_default(self, namespace: str, label: str) -> str:
        """Find the queue of pods that name none; empty where the namespace has no queue of its own."""
        found = self._defaults.get(namespace)
        if found is None:
            forms = self._config.queues.values()
            selecting = (form.name for form in forms if form.namespace_selector is not None)
            names = (label, *selecting)
            found = next((name for name in names if self.admits(name, namespace)), "")
            self._defaults[namespace] = found
        return found
