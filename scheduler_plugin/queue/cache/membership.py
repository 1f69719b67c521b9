"""Which queue a pod belongs to. Pure."""

from collections.abc import Mapping

from allocator.names import QUEUE_NAME
from scheduler_plugin.queue.cache.refusals import admits_namespace
from scheduler_plugin.queue.config.queues import QueueConfig


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

    def get_labels(self, namespace: str) -> Mapping[str, str] | None:
        """Labels of a namespace, None while they are not known."""
        return self._labels.get(namespace)

    def admits(self, queue: str, namespace: str) -> bool:
        form = self._config.queues.get(queue)
        return form is not None and admits_namespace(form, self._labels.get(namespace))

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
