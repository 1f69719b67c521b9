"""A small cluster of the model: its parts, the time that passes, and what is said of it."""

from typing import Final

from allocator.cards import Card
from allocator.ids import PERCENT_IDS, device_id, percent_id
from allocator.names import NODE_HOLDS
from allocator.records import load_holds
from tests.property.kernel.history import History

from .daemon import ModelDaemon
from .extender import ModelExtender
from .kubelet import ModelKubelet
from .node import Node
from .world import World

BEHIND_S: Final = 1.0
UNSAID: Final = 1 << 60
MODELS: Final = ("A100", "L40S")
MANY_CARDS: Final = ((8, 8, 8, 8), (8, 8, 5, 5), (8, 8, 6))
SIZES: Final = ((8, 8), (8, 5), (8,), (8, 8, 6))
LARGE: Final = ((20, 20), (20, 13), (20,))


class Scene(History):
    """One or two nodes, the extender and the API server between them.

    Args:
        calm: nothing goes wrong.
        large: the cards have as many units as pods ask percent for.
    """

    def __init__(self, seed: int, *, calm: bool = False, large: bool = False) -> None:
        super().__init__(seed)
        self.calm, self.large, self.compute = calm, large, 0.0
        self.world = World()
        self.nodes = [self._node(f"n{i}") for i in range(self.random.choice((1, 1, 2)))]
        self.extender = ModelExtender(self.world, self.random)

    @property
    def now(self) -> float:
        return self.world.now

    def _node(self, name: str) -> Node:
        sizes = self.random.choice(MANY_CARDS if self.calm else LARGE if self.large else SIZES)
        cards = tuple(
            Card(i, f"GPU-{name}{i}".ljust(40, "0"), MODELS[i % 2], size, 0) for i, size in enumerate(sizes)
        )
        ids = frozenset(device_id(card.uuid, slot) for card in cards for slot in range(card.size_units))
        percent = frozenset(percent_id(card.uuid, slot) for card in cards for slot in range(PERCENT_IDS))
        sizes = {card.uuid: card.size_units for card in cards}
        kubelet = ModelKubelet(name, self.world, self.random, ids, percent, sizes)
        self.world.put_node(name, {}, {})
        return Node(name, kubelet, ModelDaemon(name, self.world, self.random, cards, kubelet))

    def _pass(self, seconds: float) -> None:
        for node in self.nodes:
            # The daemon follows the file: it is never behind it for longer than a moment.
            if node.daemon_up and self.now + seconds > node.daemon.read_at + BEHIND_S:
                node.daemon.read_at = self.now
                node.daemon.account.read_checkpoint()
                node.daemon.register()
                if node.daemon.synced and node.daemon.ledger.accounts.has_unlisted_pods:
                    node.daemon.begin_view()
                    node.daemon.end_view()
        self.world.now = self.extender.now = self.now + seconds
        for pod in self.extender.never_heard_of:
            node = next(node for node in self.nodes if node.name == pod.node)
            if pod.uid not in self._held(node):
                node.clouded = True
                node.kubelet.late.add(pod.uid)
        self.extender.never_heard_of.clear()
        for node in self.nodes:
            node.daemon.now = node.kubelet.now = self.now
            record = self.extender.state.node_records.get(node.name)
            for uid, tombstone in record.tombstones.items() if record is not None else ():
                if tombstone.until_s <= self.now and record.seen_version < tombstone.version:
                    # A node that could not write for so long: the extender gives up the pod's place.
                    node.clouded = True
                    node.kubelet.late.add(uid)

    def _start_daemon(self, node: Node) -> None:
        """A new daemon knows of lingering containers only what the words held.

        It takes longer to start than the kubelet to write.
        """
        node.kubelet.flush()
        node.daemon.start()
        node.kubelet.late |= node.kubelet.running - node.kubelet.admitted - node.ever_held

    def settle_bindings(self) -> None:
        """Let every Binding under way come to its end."""
        while self.extender.settle_binding():
            pass

    def _held(self, node: Node) -> frozenset[str]:
        """Pods that the words on the API server hold, with their cards."""
        known = self.world.nodes.get(node.name)
        text = (known.metadata.annotations or {}).get(NODE_HOLDS) if known is not None else None
        return load_holds(text).uids if text else frozenset()
