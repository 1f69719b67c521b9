"""Locality of data: on a node itself, or on another node of its rack. Pure."""

from collections import Counter
from collections.abc import Mapping

from scheduler_plugin.queue.config.queues import LocalityForm


class Locality:
    """Labels of nodes that name data and racks, indexed.

    Attributes:
        version: Grows whenever the set of near nodes may have changed.
    """

    def __init__(self, form: LocalityForm) -> None:
        self.form = form
        self.version = 0
        self._data: dict[str, frozenset[str]] = {}
        self._racks: dict[str, str] = {}
        self._in_rack: dict[str, Counter[str]] = {}
        self._near: dict[frozenset[str], frozenset[str]] = {}

    def set_node(self, name: str, labels: Mapping[str, str] | None) -> None:
        prefix = self.form.label_prefix
        data = frozenset(key[len(prefix) :] for key in labels or () if key.startswith(prefix))
        rack = (labels or {}).get(self.form.rack_label, "")
        if labels is not None and (self._data.get(name), self._racks.get(name)) == (data, rack):
            # Nodes change with every pod; their data seldom does.
            return
        self._near.clear()
        self.version += 1
        old_rack = self._racks.pop(name, "")
        old = self._data.pop(name, frozenset())
        if old and old_rack:
            left = self._in_rack[old_rack] - Counter(old)
            if left:
                self._in_rack[old_rack] = left
            else:
                del self._in_rack[old_rack]
        if labels is None:
            return
        self._data[name], self._racks[name] = data, rack
        if data and rack:
            self._in_rack.setdefault(rack, Counter()).update(data)

    def is_near(self, node: str, data: frozenset[str]) -> bool:
        """Return True if all named data is on the node or in its rack; always true for no data."""
        if not data or data <= self._data.get(node, frozenset()):
            return True
        rack = self._in_rack.get(self._racks.get(node, ""))
        return rack is not None and all(name in self._data[node] or name in rack for name in data)

    def list_near_nodes(self, data: frozenset[str]) -> frozenset[str]:
        found = self._near.get(data)
        if found is None:
            found = self._near[data] = frozenset(name for name in self._data if self.is_near(name, data))
        return found
