"""The node daemon of the model: shipped ledger, views and publishing, with I/O late, twice or never."""

from dataclasses import replace
from random import Random
from typing import Any

from allocator.cards import Card
from allocator.ledger import AllocationRequest, Ledger, PodAccount, charges
from allocator.names import POD_ALLOCATION
from allocator.packing import NodeWords
from allocator.records import CardRecord, dump_allocation
from allocator.request import WHOLE
from deviceplugin.allocation.ledger_service import LedgerService
from deviceplugin.allocation.objects import NodeObject, PodObject
from deviceplugin.allocation.own_node import OwnNode
from deviceplugin.allocation.own_pods import OwnPods
from deviceplugin.errors import TornCheckpointError
from deviceplugin.publishing.annotator import list_allocations
from deviceplugin.publishing.explain import explain_node
from deviceplugin.publishing.node_publication import (
    NodePublication,
    make_status_patch,
    next_revision,
    publish_reason,
)
from kubeapi.errors import Unreachable
from kubeapi.objects import NodeStatus, ObjectMeta
from tests.property.kernel.api import Watch

from .kubelet import ModelKubelet
from .plugin import Checkpoint, Plugin
from .world import RESOURCE, UNIT_MIB, World


class ModelDaemon(Plugin):
    """One node's daemon.

    Attributes:
        every: its cards when all are there; in `cards` some may be missing, or have no units.
        said: its cards when it published words last.
        listed: its cards when it sent the kubelet a list of devices last.
        away: nothing reaches the API server or comes from it.
        lost: the watch's place is too old for the API server: only a list tells what happened.
        registered: the kubelet that runs has its list of devices, which it answers by writing its checkpoint.
        view: a list of pods on its way.
        synced: a list of pods has arrived since the start.
        compute_limit: its option at the next start.
        older: it publishes no compute from the next start on, as a daemon of before.
        confused: it was asked for one of several pods, and could not know which.
        mistaken: pods for which it was, and that may have another one's cards.
        saw_running: pods of which it has found containers since its start.
    """

    def __init__(
        self, node: str, world: World, random: Random, cards: tuple[Card, ...], kubelet: ModelKubelet
    ) -> None:
        self.node, self.world, self.random, self.kubelet = node, world, random, kubelet
        self.every = self.cards = self.said = self.listed = cards
        self.away = self.confused = self.older = False
        self.compute_limit = WHOLE
        self.mistaken: set[str] = set()
        self.now = self.read_at = 0.0
        self.sick: set[int] = set()
        self.start()

    # The kubelet's checkpoint.

    def read(self) -> Checkpoint | None:
        """What `LedgerService` reads."""
        if self.kubelet.torn:
            raise TornCheckpointError("torn")
        return self.kubelet.file

    @property
    def inventory(self) -> tuple[CardRecord, ...]:
        return tuple(
            CardRecord(card.uuid, card.index, card.model, card.size_units * UNIT_MIB, None, card.healthy)
            for card in self.ledger.installed
        )

    @property
    def holds(self) -> dict[str, dict[str, int]]:
        return charges.charge_published_pods(self.ledger.accounts)

    def explain(self) -> dict[str, Any]:
        return explain_node(self.ledger.accounts)

    def refresh(self) -> None:
        """Read the checkpoint, and make the kubelet write it where that is wanted."""
        self.account.read_checkpoint()
        if self.ledger.needs_checkpoint_purge() and not self.kubelet.mute:
            self.kubelet.clean()
            self.account.read_checkpoint()

    def register(self) -> bool:
        """Send the kubelet a list of devices, which mends a torn checkpoint; tells whether it may ask."""
        torn = self.account.is_checkpoint_torn
        legible = self.account.checkpoint_problem is None or torn or self.ledger.is_complete
        if legible and not self.registered and self.kubelet.synced:
            self.registered = True
            self.send_list()
            self.kubelet.take_list()
            if torn:
                self.account.read_checkpoint()
        return legible and self.ledger.accounts.checkpoint_read_at_s is not None

    def send_list(self) -> None:
        """Send the kubelet the devices of the cards that are there and well."""
        self.listed = self.cards
        there = {card.uuid for card in self.cards if card.size_units and card.index not in self.sick}
        self.kubelet.gone = {card.uuid for card in self.every} - there

    def set_health(self) -> None:
        """Find that just these cards are sick now."""
        for card in self.cards:
            self.ledger.set_healthy(card.uuid, healthy=card.healthy and card.index not in self.sick)
        self.listed = ()

    def set_cards(self, cards: tuple[Card, ...]) -> None:
        self.cards = cards
        self.ledger.set_cards([replace(c, healthy=c.healthy and c.index not in self.sick) for c in cards])

    def size(self, uuid: str) -> int | None:
        """Units of a card, None where it is not there."""
        return next((card.size_units or None for card in self.cards if card.uuid == uuid), None)

    def start(self) -> None:
        """Begin with an empty memory."""
        self.registered = False
        self.answered: frozenset[str] = frozenset()
        self.look: tuple[frozenset[str], frozenset[str], float] | None = None
        self.ledger = Ledger(self.cards, compute_limit=self.compute_limit)
        self.account = LedgerService(self.ledger, self.read, RESOURCE, clock=lambda: self.now)
        self.own = OwnNode(self.account, self.node, UNIT_MIB)
        self.pods = OwnPods(self.account, RESOURCE, self._ask_for_pods, holds_pod=self.own.holds_pod)
        for index in self.sick:
            self.ledger.set_healthy(self.every[index].uuid, healthy=False)
        self.watch = Watch(self.world.pod_events)
        self.revision = 0
        self.seen: set[str] = set()
        self.saw_running: set[str] = set()
        self.lost = self.synced = False
        self.view: tuple[list[PodObject], int, int] | None = None
        self.published: tuple[tuple[int, ...], frozenset[str]] | None = None

    def has_seen(self, uid: str) -> bool:
        """Whether it knew the pod since its start, and hears of the API server."""
        return self.synced and not self.away and uid in self.seen

    # The kubelet's calls.

    def preferred(
        self, available: frozenset[str], must_include: frozenset[str], size: int
    ) -> tuple[str, ...]:
        self.account.read_checkpoint()
        ask = self.ledger.read_request(available, must_include, size, self.taken_up())
        for _ in range(2):  # a list that was on its way is followed by another
            if not self.away and not ask.is_unambiguous():
                self._catch_up(relist=True)
        if (
            ask.has_ended_pods() and not ask.has_room()
        ):  # it waits, looks at the cgroups and has the checkpoint cleaned
            self.look_at_cgroups()
            self.refresh()
            self.look_at_cgroups()
        if any(self._may_mistake(one, ask) for one in self.ledger.accounts.pods.values()):
            self.confused = True
            self.mistaken |= {self.kubelet.admitting.pod.uid} if self.kubelet.admitting else set()
        answer = ask.choose_ids()
        self.answered = frozenset(answer)
        return answer

    def _may_mistake(self, one: PodAccount, ask: AllocationRequest) -> bool:
        """Whether another pod than the one that asks may pass for it.

        It may ask for as much, and the kubelet does not say who asks; or it runs, the kubelet forgot what it
        has, and who asks was deleted before the first list.
        """
        admission, key = self.kubelet.admitting, one.pod.key
        if admission is None or admission.pod.uid == key or one.pod.request.percent != ask.percent:
            return False
        asking = self.ledger.accounts.pods.get(admission.pod.uid)
        if not self.kubelet.mute and (not one.has_run or (asking is not None and asking.bound)):
            return False
        had = self.kubelet.devices.get(key, {})
        return any(c.units == ask.size and c.name not in had for c in one.pod.request.containers)

    def taken_up(self) -> frozenset[tuple[str, str]] | None:
        """What PodResources lists: pods from the moment before they are admitted until they have ended."""
        kubelet = self.kubelet
        if kubelet.mute:
            return None
        return frozenset(
            ("default", pod.name) for uid, pod in kubelet.known.items() if uid not in kubelet.queue
        )

    def _catch_up(self, *, relist: bool) -> None:
        if relist:
            self.begin_view()
            while self.view is not None:
                self.end_view()
        while self.deliver():
            pass

    def allocate(self, ids: frozenset[str]) -> None:
        self.account.read_checkpoint()
        if ids != self.answered:
            self.preferred(ids, frozenset(), len(ids))
        self.answered = frozenset()
        self.ledger.allocate(ids, self.now, self.taken_up())

    # The API's view.

    def deliver(self) -> bool:
        if self.away or self.lost or not self.synced:
            return False
        while (event := self.watch.read()) is not None:
            pod = event.item
            if pod.node != self.node:
                continue
            for _ in range(2 if self.random.random() < 0.02 else 1):
                self.pods.event(event.kind, pod.object, str(event.version))
            self.seen.add(pod.uid)
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
        if not self.own.listed.is_set():
            self.own.replace([self._node()] if self.node in self.world.nodes else [], "")
        if self.synced:
            self.pods.request_list()
        else:
            self._ask_for_pods()

    def _ask_for_pods(self) -> None:
        pods = [pod.object for pod in self.world.pods.values() if pod.node == self.node]
        self.view = (pods, self.world.version, len(self.world.pod_events))

    def end_view(self) -> None:
        """The list of pods arrives, made when it was asked for or, if the watch is further, just now."""
        if self.view is None or self.away:
            return
        if self.view[2] < self.watch.cursor:
            self._ask_for_pods()
        pods, version, cursor = self.view
        self.view = None
        self.pods.replace(pods, str(version))
        self.seen |= {pod.metadata.uid for pod in pods}
        if not self.synced:
            self.look_at_cgroups()
        self.watch.cursor, self.lost, self.synced = cursor, False, True

    def bookmark(self) -> None:
        if self.synced and not self.lost and not self.away:
            while self.deliver():
                pass
            self.pods.bookmark(str(self.world.version))

    # The cgroups.

    def begin_look(self) -> None:
        """Look for containers: what was found arrives later."""
        uids = self.ledger.pods_to_probe()
        self.look = (uids, uids & self.kubelet.running, self.now)

    def end_look(self) -> None:
        self.account.read_checkpoint()
        if self.look is not None:
            uids, alive, began_s = self.look
            self.ledger.record_cgroup_probe(
                uids if self.account.checkpoint_problem is None else alive, alive, began_s
            )
            self.saw_running |= alive
        self.look = None

    def look_at_cgroups(self) -> None:
        self.end_look()
        self.begin_look()
        self.end_look()

    # What it says.

    def publish(self) -> bool:
        """One PATCH with words, revision, inventory and holds, if the Node does not say it all."""
        self.refresh()
        if self.away or not self.ledger.is_complete or not self.synced:
            return False
        if self.listed is not self.cards:
            self.send_list()
        if self.node not in self.world.nodes:
            self.own.node = None
            return False
        self.own.replace([self._node()], "")
        node = self.own.node
        assert node is not None
        words, holds = self.ledger.make_words(UNIT_MIB), self.ledger.published_holds()
        if self.older:
            words = NodeWords.of(UNIT_MIB, words.sizes, words.used, 0)
        wanted = NodePublication(words, holds, self.inventory, self.pods.seen_version)
        if publish_reason(wanted, node, self.pods.owed_version) is None:
            return False
        self.revision = next_revision(self.revision, node, 0)
        self._send(make_status_patch(wanted, node, self.revision))
        self.published, self.said = (words.used, frozenset(holds)), self.cards
        return True

    def _node(self) -> NodeObject:
        node = self.world.nodes[self.node]
        metadata = ObjectMeta(
            name=self.node,
            resource_version=node.metadata.resource_version,
            annotations=node.metadata.annotations,
        )
        return NodeObject(
            metadata=metadata,
            status=NodeStatus(capacity=node.status.allocatable, allocatable=node.status.allocatable),
        )

    def _send(self, body: dict[str, Any]) -> None:
        resources = {
            name: value for name, value in body["status"]["allocatable"].items() if value is not None
        }
        notes = self.world.nodes[self.node].metadata.annotations or {}
        self.world.put_node(self.node, resources, {**notes, **body["metadata"]["annotations"]})

    def annotate_one(self) -> bool:
        """Write what one pod got for people to read."""
        if self.away or not self.synced:
            return False
        by_uid = {pod.uid: pod for pod in self.world.pods.values() if pod.node == self.node}
        for uid, assignment in list_allocations(self.ledger.accounts).items():
            pod = by_uid.get(uid)
            if pod is not None and self.world.annotate(
                pod.name, uid, POD_ALLOCATION, dump_allocation(uid, assignment)
            ):
                return True
        return False
