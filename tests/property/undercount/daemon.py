"""The node daemon of the model: the shipped ledger, with I/O that comes late, twice or never."""

from random import Random

from allocator.cards import Card
from allocator.ledger import Ledger, Listed, Mark
from allocator.names import NODE_CARDS, NODE_HOLDS, POD_ALLOCATION
from allocator.packing import Layout, NodeWords, node_resources, read_node, width
from allocator.records import CardRecord, Holds, dump_allocation, dump_cards, dump_holds, load_holds

from .kubelet import ModelKubelet, Plugin
from .world import ModelPod, World


class ModelDaemon(Plugin):
    """One node's daemon.

    Attributes:
        away: nothing reaches the API server or comes from it.
        answer: a PodResources answer on its way.
        listed: the kubelet's list has been read since the start; the daemon registers only then.
        view: a list of pods on its way.
    """

    def __init__(
        self, node: str, world: World, random: Random, cards: tuple[Card, ...], kubelet: ModelKubelet
    ) -> None:
        self.node, self.world, self.random, self.cards, self.kubelet = node, world, random, cards, kubelet
        self.layout = Layout(width(max(card.size_units for card in cards)), len(cards), 1024)
        self.inventory = dump_cards(
            [
                CardRecord(card.uuid, card.index, card.model, card.size_units * 1024, None, healthy=True)
                for card in cards
            ]
        )
        self.away = False
        self.now = 0.0
        self.start()

    def start(self) -> None:
        """Begin with an empty memory."""
        self.ledger = Ledger(self.cards)
        self.cursor = len(self.world.pod_events)
        self.seen = 0
        self.revision = 0
        self.remembered = False
        self.synced = False
        self.listed = False
        self.answer: tuple[Mark, list[Listed]] | None = None
        self.view: tuple[Mark, list[ModelPod], int, int] | None = None
        self.published: tuple[tuple[int, ...], frozenset[str]] | None = None
        self.owed = False

    # The kubelet's calls.

    def preferred(
        self, available: frozenset[str], must_include: frozenset[str], size: int
    ) -> tuple[str, ...]:
        asked = (size, available, must_include)
        if not self.away and (not self.ledger.expects(*asked) or self.ledger.displaces(*asked)):
            if not self.synced:
                self.begin_view()
                self.end_view()
            while self.deliver():
                pass
        return self.ledger.preferred(available, must_include, size, self.now)

    def allocate(self, ids: frozenset[str]) -> None:
        self.ledger.allocate(ids, self.now)

    # The API's view.

    def deliver(self) -> bool:
        """Take one event of an own pod."""
        if self.away or not self.synced:
            return False
        while self.cursor < len(self.world.pod_events):
            event = self.world.pod_events[self.cursor]
            self.cursor += 1
            pod = event.pod
            assert pod is not None
            if pod.node != self.node:
                continue
            held = self.ledger.holds()
            if event.kind == "DELETED":
                self.ledger.pod_gone(pod.uid)
            else:
                self.ledger.pod_changed(pod.view)
            self.owed |= (event.kind == "DELETED" or pod.ended) and pod.uid not in held
            self.seen = event.version
            return True
        return False

    def begin_view(self) -> None:
        """Ask for the own Node (the first time) and for all own pods."""
        if self.away:
            return
        if not self.remembered:
            node = self.world.nodes.get(self.node)
            if node is not None:
                words = read_node(node.status.allocatable or {})
                if words is not None:
                    used = {card.uuid: n for card, n in zip(self.cards, words.used, strict=True)}
                    text = (node.metadata.annotations or {})[NODE_HOLDS]
                    self.ledger.remember(used, load_holds(text).uids)
                    self.revision = words.revision
            self.remembered = True
        mark = self.ledger.mark(self.now)
        pods = [pod for pod in self.world.pods.values() if pod.node == self.node]
        self.view = (mark, pods, self.world.version, len(self.world.pod_events))

    def end_view(self) -> None:
        """The list of pods arrives; events from before it are not delivered any more."""
        if self.view is None or self.away:
            return
        mark, pods, version, cursor = self.view
        self.view = None
        if cursor < self.cursor and self.synced:
            return
        self.ledger.pods_synced([pod.view for pod in pods], mark)
        self.owed = True
        self.cursor, self.seen, self.synced = cursor, version, True

    def bookmark(self) -> None:
        """All own events up to now are known."""
        if self.synced and not self.away:
            while self.deliver():
                pass
            self.seen = self.world.version

    # The kubelet's list and the cgroups.

    def knows_cards(self, uids: set[str]) -> bool:
        """Whether the ledger knows what every container of these pods runs with, not just how much."""
        sure = {h.slot for h in self.ledger._holdings if h.certain}
        return all(
            (tracked.pod.uid, container.name) in sure
            for tracked in self.ledger._pods.values()
            if tracked.pod.uid in uids and tracked.pod.allocation is None
            for container in tracked.pod.request.containers
        )

    def begin_list(self) -> None:
        self.answer = (self.ledger.mark(self.now), self.kubelet.list())

    def end_list(self) -> None:
        if self.answer is not None:
            mark, entries = self.answer
            self.answer = None
            self.listed = True
            self.ledger.listed(entries, mark)

    def look_at_cgroups(self) -> None:
        for uid in self.ledger.doubtful():
            if uid not in self.kubelet.running:
                self.ledger.containers_ended(uid)

    # What it says.

    def publish(self, *, force: bool = False) -> bool:
        """One PATCH with words, revision, inventory and holds."""
        if self.away or not self.ledger.complete or not self.synced or self.node not in self.world.nodes:
            return False
        used, holds = self.ledger.used(), self.ledger.holds()
        node = self.world.nodes[self.node]
        lost = read_node(node.status.allocatable or {}) is None
        if not (force or lost or self.owed or (used, holds) != self.published):
            return False
        self.revision += 1
        words = NodeWords(
            layout=self.layout,
            sizes=tuple(card.size_units for card in self.cards),
            used=used,
            revision=self.revision,
        )
        resources: dict[str, str | int] = dict(node_resources(words))
        notes = {NODE_HOLDS: dump_holds(Holds(self.seen, holds)), NODE_CARDS: self.inventory}
        self.world.put_node(self.node, resources, notes)
        self.published, self.owed = (used, holds), False
        return True

    def annotate_one(self) -> bool:
        """Write what one pod got for people to read."""
        if self.away or not self.synced:
            return False
        by_uid = {pod.uid: pod for pod in self.world.pods.values() if pod.node == self.node}
        for uid, assignment in self.ledger.allocations().items():
            pod = by_uid.get(uid)
            if pod is not None and self.world.annotate(
                pod.name, uid, POD_ALLOCATION, dump_allocation(uid, assignment)
            ):
                return True
        return False
