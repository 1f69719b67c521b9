"""Slots and data in a replay through queues: which rows have an idle slot, and which are near some data."""

from collections.abc import Sequence

import numpy as np

from scheduler_plugin.cache.arrays import BoolArray
from scheduler_plugin.queue.cache.slots import ClusterSlots
from scheduler_plugin.queue.cache.waiting import SlotType
from scheduler_plugin.queue.capacity.free_capacity import NodeFacts
from scheduler_plugin.queue.capacity.locality import Locality
from scheduler_plugin.queue.config.queues import QueueConfig
from scheduler_plugin.simulator.trace import TraceNode


class SimulatedPlaces:
    """The nodes of a replay, as the queue's slots and locality see them.

    Args:
        config: The queues.
        nodes: In the order of their rows.
    """

    def __init__(self, config: QueueConfig, nodes: Sequence[TraceNode]) -> None:
        self.has_slots = config.slots is not None
        self.by_data = config.locality.enabled and any(node.data for node in nodes)
        self.names = [node.name for node in nodes]
        self._rows = {name: row for row, name in enumerate(self.names)}
        self._slots = ClusterSlots(config.slots)
        self._locality = Locality(config.locality)
        for node in nodes:
            labels = {f"{config.locality.label_prefix}{data}": "" for data in node.data}
            if node.rack:
                labels[config.locality.rack_label] = node.rack
            self._slots.set_node(node.name, NodeFacts(labels), node.cards)
            self._locality.set_node(node.name, labels)

    def occupy(self, uid: str, row: int, kind: SlotType) -> None:
        """A pod runs on a row."""
        self._slots.occupy(uid, self.names[row], kind)

    def vacate(self, uid: str) -> None:
        """A pod has ended."""
        self._slots.vacate(uid)

    def idle(self, row: int) -> list[SlotType]:
        """Types of slots of which a row has idle ones."""
        return [kind for kind in SlotType if self._slots.count_idle(self.names[row], kind)]

    def near(self, data: frozenset[str], count: int) -> BoolArray:
        """Rows that some data is near to, bool[count]."""
        rows = np.zeros(count, dtype=np.bool_)
        rows[[self._rows[name] for name in self._locality.list_near_nodes(data)]] = True
        return rows

    def is_near(self, data: frozenset[str], row: int) -> bool:
        """Whether some data is near a row."""
        return self._locality.is_near(self.names[row], data)
