"""The node daemon of the model: shipped ledger, views and publishing, with I/O late, twice or never."""

from random import Random
from typing import Any

from allocator.cards import Card
from allocator.ledger import Ledger, Listed, Mark
from allocator.names import POD_ALLOCATION
from allocator.records import CardRecord, dump_allocation
from deviceplugin.node.account import Account
from deviceplugin.node.objects import Metadata, NodeObject, NodeStatus, PodObject
from deviceplugin.node.views import NodeView, PodView
from deviceplugin.node.words import Wanted, next_revision, patch, urgency
from kubeapi.errors import Unreachable

from .kubelet import ModelKubelet, Plugin
from .world import RESOURCE, UNIT_MIB, World


class ModelDaemon(Plugin):
    """One node's daemon.

    Attributes:
        away: nothing reaches the API server or comes from it.
        lost: the watch's place is too old for the API server: only a list tells what happened.
        answer: a PodResources answer on its way.
        listed: the kubelet's list has been read since the start; the daemon registers only then.
        view: a list of pods on its way.
        synced: a list of pods has arrived since the start.
    """

    def __init__(
        self, node: str, world: World, random: Random, cards: tuple[Card, ...], kubelet: ModelKubelet
    ) -> None:
        self.node, self.world, self.random, self.cards, self.kubelet = node, world, random, cards, kubelet
        self.inventory = tuple(
            CardRecord(card.uuid, card.index, card.model, card.size_units * UNIT_MIB, None, healthy=True)
            for card in cards
        )
        self.away = False
        self.now = 0.0
        self.start()

    def start(self) -> None:
        """Begin with an empty memory."""
        self.ledger = Ledger(self.cards)
        account = Account(self.ledger, UNIT_MIB, clock=lambda: self.now)
        self.pods = PodView(account, RESOURCE, POD_ALLOCATION)
        self.pods.on_relist(self._ask_for_pods)
        self.own = NodeView(account, self.node)
        self.cursor = len(self.world.pod_events)
        self.revision = 0
        self.lost = self.synced = self.listed = False
        self.answer: tuple[Mark, list[Listed]] | None = None
        self.view: tuple[list[PodObject], int, int] | None = None
        self.published: tuple[tuple[int, ...], frozenset[str]] | None = None

    # The kubelet's calls.

    def preferred(
        self, available: frozenset[str], must_include: frozenset[str], size: int
    ) -> tuple[str, ...]:
        asked = (size, available, must_include)
        if not self.away and (not self.ledger.expects(*asked) or self.ledger.displaces(*asked)):
            if not self.synced or self.lost:
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
        if self.away or self.lost or not self.synced:
            return False
        while self.cursor < len(self.world.pod_events):
            event = self.world.pod_events[self.cursor]
            self.cursor += 1
            pod = event.pod
            assert pod is not None
            if pod.node != self.node:
                continue
            for _ in range(2 if self.random.random() < 0.02 else 1):
                self.pods.event(event.kind, pod.object, str(event.version))
            return True
        return False

    def disconnect(self, *, lost: bool) -> None:
        """The watch breaks, and a list under way with it."""
        self.view = None
        self.lost = self.lost or lost
        self.pods.disconnected(Unreachable("away"))

    def begin_view(self) -> None:
        """Ask for the own Node (the first time) and for all own pods."""
        if self.away:
            return
        if not self.own.first.is_set():
            self.own.replace([self._node()] if self.node in self.world.nodes else [], "")
        if self.synced:
            self.pods.want_list()
        else:
            self._ask_for_pods()

    def _ask_for_pods(self) -> None:
        pods = [pod.object for pod in self.world.pods.values() if pod.node == self.node]
        self.view = (pods, self.world.version, len(self.world.pod_events))

    def end_view(self) -> None:
        """The list of pods arrives, made when it was asked for or, if the watch is further, just now."""
        if self.view is None or self.away:
            return
        if self.view[2] < self.cursor:
            self._ask_for_pods()
        pods, version, cursor = self.view
        self.view = None
        self.pods.replace(pods, str(version))
        self.cursor, self.lost, self.synced = cursor, False, True

    def bookmark(self) -> None:
        """All own events up to now are known."""
        if self.synced and not self.lost and not self.away:
            while self.deliver():
                pass
            self.pods.bookmark(str(self.world.version))

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

    def publish(self) -> bool:
        """One PATCH with words, revision, inventory and holds, if the Node does not say it all."""
        if self.away or not self.ledger.complete or not self.synced:
            return False
        if self.node not in self.world.nodes:
            self.own.node = None
            return False
        self.own.replace([self._node()], "")
        node = self.own.node
        assert node is not None
        used, holds = self.ledger.used(), self.ledger.holds()
        sizes = tuple(card.size_units for card in self.ledger.installed)
        wanted = Wanted(UNIT_MIB, sizes, used, holds, self.inventory, self.pods.seen)
        if urgency(wanted, node, self.pods.owed) is None:
            return False
        self.revision = next_revision(self.revision, node, 0)
        self._send(patch(wanted, node, self.revision))
        self.published = (used, holds)
        return True

    def _node(self) -> NodeObject:
        """The own Node as the API server has it."""
        node = self.world.nodes[self.node]
        metadata = Metadata(
            name=self.node,
            resource_version=node.metadata.resource_version,
            annotations=node.metadata.annotations,
        )
        return NodeObject(metadata, NodeStatus(node.status.allocatable, node.status.allocatable))

    def _send(self, body: dict[str, Any]) -> None:
        resources = {
            name: value for name, value in body["status"]["allocatable"].items() if value is not None
        }
        self.world.put_node(self.node, resources, body["metadata"]["annotations"])

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
