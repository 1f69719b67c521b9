"""Slots of two types on every node, and which of them are idle. Pure.

Which slot a pod occupies is stored nowhere: it follows from the number of pods of each class on a node. Pods
occupy slots of their own type first, and the remaining ones occupy slots of the other type. So a restart
loses nothing, and a lent slot returns to its own type as soon as enough slots of the borrower's type are
free.
"""

from dataclasses import dataclass, field

from kubeapi.selectors import NodeTraits
from scheduler_plugin.queue.cache.waiting import SlotType
from scheduler_plugin.queue.config.queues import SlotForm, SlotsForm


@dataclass(slots=True)
class NodeSlots:
    """The slots of one node by type, and the UIDs of the admitted pods there by class."""

    total: dict[SlotType, int] = field(default_factory=lambda: dict.fromkeys(SlotType, 0))
    running: dict[SlotType, set[str]] = field(default_factory=lambda: {kind: set() for kind in SlotType})

    def count_idle(self, kind: SlotType) -> int:
        lent = max(0, len(self.running[kind.other_type]) - self.total[kind.other_type])
        return max(0, self.total[kind] - len(self.running[kind]) - lent)


class ClusterSlots:
    """The slots of all nodes.

    Args:
        form: How many there are; None: no limit, every node has idle slots.

    Attributes:
        changed: Nodes whose slots or pods changed; the consumer removes the names it has handled.
    """

    def __init__(self, form: SlotsForm | None) -> None:
        self.form = form
        self.nodes: dict[str, NodeSlots] = {}
        self.changed: set[str] = set()
        self._where: dict[str, tuple[str, SlotType]] = {}

    def set_node(self, name: str, facts: NodeTraits | None, cards: int) -> None:
        """Set the slots of a node from its labels and its number of cards; None: the node is deleted."""
        self.changed.add(name)
        node = self.nodes.setdefault(name, NodeSlots())
        for kind in SlotType:
            node.total[kind] = (
                0 if facts is None or self.form is None else _count_slots(self.form, kind, facts, cards)
            )
        self._forget_empty(name, node)

    def occupy(self, uid: str, node: str, kind: SlotType) -> None:
        self.vacate(uid)
        self.changed.add(node)
        self.nodes.setdefault(node, NodeSlots()).running[kind].add(uid)
        self._where[uid] = (node, kind)

    def vacate(self, uid: str) -> None:
        node, kind = self._where.pop(uid, ("", SlotType.FREE))
        if node:
            self.changed.add(node)
            self.nodes[node].running[kind].discard(uid)
            self._forget_empty(node, self.nodes[node])

    def _forget_empty(self, name: str, node: NodeSlots) -> None:
        """Forget a node without slots and pods; it may have been deleted."""
        if not (any(node.total.values()) or any(node.running.values())):
            del self.nodes[name]

    def count_total(self, node: str) -> int:
        known = self.nodes.get(node)
        return 0 if known is None else sum(known.total.values())

    def count_left(self, node: str) -> int:
        """Count the free slots of a node; below 0 if the node has lost slots that are in use."""
        known = self.nodes.get(node, NodeSlots())
        return sum(known.total.values()) - sum(map(len, known.running.values()))

    def count_idle(self, node: str, kind: SlotType) -> int:
        known = self.nodes.get(node)
        return known.count_idle(kind) if known is not None else 0


def _count_slots(form: SlotsForm, kind: SlotType, facts: NodeTraits, cards: int) -> int:
    slot: SlotForm = form.local if kind is SlotType.LOCAL else form.free
    if slot.node_selector is not None and not slot.node_selector.matches(facts.labels):
        return 0
    if form.per == "node":
        return slot.count
    return slot.count * (-(-cards * slot.share_of_cards // 100))
