"""A small cluster of the model, what must hold of it at every moment, and how it comes to peace."""

from random import Random
from typing import Final

from allocator.cards import Card
from allocator.ids import PERCENT_IDS, device_id, percent_id
from allocator.ledger import charges
from allocator.names import NODE_HOLDS
from allocator.records import load_holds

from .daemon import ModelDaemon
from .deviceids import units_of
from .extender import ModelExtender
from .kubelet import ModelKubelet
from .node import Node
from .room import fit
from .world import ModelPod, World

BEHIND_S: Final = 1.0
UNSAID: Final = 1 << 60
MODELS: Final = ("A100", "L40S")
MANY_CARDS: Final = ((8, 8, 8, 8), (8, 8, 5, 5), (8, 8, 6))
SIZES: Final = ((8, 8), (8, 5), (8,), (8, 8, 6))
LARGE: Final = ((20, 20), (20, 13), (20,))


class ViolationError(AssertionError):
    """The invariant does not hold; the message tells what was seen, the trace how it came about."""


class Scene:
    """One or two nodes, the extender and the API server between them.

    Args:
        seed: of everything random.
        calm: nothing goes wrong.
        large: the cards have as many units as pods ask percent for.
    """

    def __init__(self, seed: int, *, calm: bool = False, large: bool = False) -> None:
        self.random = Random(seed)
        self.calm, self.large = calm, large
        self.world = World()
        self.now = 0.0
        self.steps = 0
        self.trace: list[str] = []
        self.nodes = [self._node(f"n{i}") for i in range(self.random.choice((1, 1, 2)))]
        self.extender = ModelExtender(self.world, self.random)

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
                node.daemon.account.refresh()
                node.daemon.register()
                if node.daemon.synced and node.daemon.ledger.facts.behind:
                    node.daemon.begin_view()
                    node.daemon.end_view()
        self.now += seconds
        self.world.now = self.extender.now = self.now
        for pod in self.extender.never_heard_of:
            node = next(node for node in self.nodes if node.name == pod.node)
            if pod.uid not in self._held(node):
                node.clouded = True
                node.kubelet.late.add(pod.uid)
        self.extender.never_heard_of.clear()
        for node in self.nodes:
            node.daemon.now = node.kubelet.now = self.now
            book = self.extender.state.books.get(node.name)
            for uid, tombstone in book.tombstones.items() if book is not None else ():
                if tombstone.until <= self.now and book.seen < tombstone.version:
                    # A node that could not write for so long: the extender gives up the pod's place.
                    node.clouded = True
                    node.kubelet.late.add(uid)

    def _say(self, text: str) -> None:
        self.trace.append(f"{self.steps:6} {self.now:8.2f} {text}")
        if len(self.trace) > 400:
            del self.trace[:200]

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

    # The invariant.

    def check(self) -> None:
        """No pod that the extender bound was refused or will be, and no card serves more than it has."""
        for node in self.nodes:
            if not node.daemon_up or not node.daemon.synced:
                # Nor will the next daemon know of them.
                lost = self._unwritten(node)
                node.clouded |= bool(lost)
                node.kubelet.late |= lost
                node.ever_held -= lost
            # The pod's place was given away long ago, or it got another one's.
            node.clouded |= node.kubelet.overdue or node.daemon.confused
            gave, node.kubelet.gave = node.kubelet.gave, set()
            if not node.daemon.confused:
                self._check_known(node, gave)
            node.kubelet.overdue = node.daemon.confused = False
            for pod, reason in node.kubelet.refused:
                now = self.world.pods.get(pod.name)
                excused = node.clouded or pod.uid in node.excused or self._beside_late(node, pod)
                if pod.ours and now is not None and now.uid == pod.uid and not excused:
                    self._fail(f"{pod.name} {pod.uid} {pod.containers} refused by {node.name}: {reason}")
            node.kubelet.refused.clear()
            for uuid, units in node.kubelet.occupied(node.excused).items():
                size = node.daemon.size(uuid)
                if size is not None and units > size:
                    self._fail(
                        f"{node.name}: {units} units of {uuid} in use, it has {size}; "
                        f"{units_of(node.kubelet.devices)} admitted {sorted(node.kubelet.admitted)}, "
                        f"{node.daemon.explain()}"
                    )

            self._check_words(node)
            self._check_promises(node)

    def _unwritten(self, node: Node) -> set[str]:
        """Pods with containers whose objects are deleted and that the words never held."""
        file = node.kubelet.file
        book = {line.uid for line in file.entries} if file is not None and not node.kubelet.torn else set()
        # With the Node object all is gone that its words said.
        written = self._held(node) | (node.ever_held if self.world.words(node.name) else set())
        return node.kubelet.truth.keys() - written - book - {pod.uid for pod in self.world.pods.values()}

    def _held(self, node: Node) -> frozenset[str]:
        """Pods that the words on the API server hold, with their cards."""
        known = self.world.nodes.get(node.name)
        text = (known.metadata.annotations or {}).get(NODE_HOLDS) if known is not None else None
        return load_holds(text).uids if text else frozenset()

    def _unheard(self, node: Node) -> bool:
        """Whether the kubelet may still admit a pod whose object is deleted."""
        events = self.world.pod_events[node.kubelet.cursor :]
        return any(e.kind == "DELETED" and e.pod is not None and e.pod.node == node.name for e in events)

    def _unsaid(self, node: Node) -> bool:
        """Whether the ledger counts more than the words say, or nothing yet: it has not read the book."""
        words, ledger = self.world.words(node.name), node.daemon.ledger
        if ledger.facts.read is None or node.daemon.said != node.daemon.cards:
            return True
        said = words.used if words is not None else (0,) * len(node.daemon.cards)
        return any(used > shown for used, shown in zip(ledger.used(), said, strict=True))

    def _check_words(self, node: Node) -> None:
        """What words once held they hold until it ends; who failed without devices has none."""
        words = self.world.words(node.name)
        running = node.kubelet.units((node.ever_held & node.kubelet.running) - node.kubelet.late)
        for card, used in zip(node.daemon.said, words.used if words else (), strict=False):
            if used < min(card.size_units, running.get(card.uuid, 0)):
                self._fail(
                    f"{node.name}: words show {used} units of {card.uuid}, containers they once held run "
                    f"with {running[card.uuid]}, {node.daemon.explain()}"
                )

        facts = node.daemon.ledger.facts
        for one in facts.pods.values():
            served = one.admitted or one.ids or one.given
            if one.pod.terminal and not served and charges.of_pod(facts, one):
                self._fail(f"{node.name}: {one.pod.uid} failed without devices, {node.daemon.explain()}")

    def _check_promises(self, node: Node) -> None:
        """What the extender bound there and the kubelet has not admitted yet fits beside what is in use."""
        if node.clouded or node.kubelet.admitting is not None:
            return
        waiting = [
            pod
            for pod in self.world.pods.values()
            if pod.ours
            and pod.node == node.name
            and pod.uid not in node.excused
            and not pod.ended
            and pod.uid not in node.kubelet.admitted | node.kubelet.finished
        ]
        if not self._fit(node, waiting):
            self._fail(
                f"{node.name}: {[(pod.name, pod.uid, pod.containers) for pod in waiting]} are bound and not "
                f"admitted, the cards have {self._free(node)} free; {units_of(node.kubelet.devices)}, "
                f"{node.daemon.explain()}"
            )

    def _free(self, node: Node) -> tuple[int, ...]:
        """Units that are free on each card, as far as somebody can know."""
        occupied = node.kubelet.occupied()
        return tuple(
            0 if card.index in node.daemon.sick else card.size_units - occupied.get(card.uuid, 0)
            for card in node.daemon.cards
        )

    def _fit(self, node: Node, pods: list[ModelPod]) -> bool:
        """Whether there is a way to serve all of the pods from what is free."""
        demands = [
            (tuple(d.units_on(card.size_units) for card in node.daemon.cards), d.cards)
            for pod in pods
            for d in pod.request.demands
        ]
        return fit(self._free(node), tuple(sorted(demands, reverse=True)))

    def _beside_late(self, node: Node, pod: ModelPod) -> bool:
        """Whether a pod has no room only because of one that nobody could wait for.

        The scheduler counts such a one where it bound it, and the daemon, which never heard of it, may have
        served it elsewhere. What its containers may run on with is not given out again.
        """
        pods = node.daemon.ledger.facts.pods
        return any(uid in pods and not pods[uid].live for uid in node.kubelet.late) and self._fit(node, [pod])

    def _check_known(self, node: Node, gave: set[str]) -> None:
        """Whatever else went wrong, nothing is given out that the node knows to be in use."""
        kubelet = node.kubelet
        sick = {card.uuid for card in node.daemon.cards if card.index in node.daemon.sick}
        if gave & sick:
            self._fail(f"{node.name}: {gave & sick} are known to be sick, and were given to a container")
        known = kubelet.devices.keys() | (node.daemon.saw_running & kubelet.running)
        for uuid, units in kubelet.units(known).items() if gave else ():
            size = node.daemon.size(uuid)
            if uuid in gave and size is not None and units > size:
                self._fail(
                    f"{node.name}: {units} units of {uuid} are known to be in use, it has {size}; "
                    f"{units_of(kubelet.devices)}, {node.daemon.explain()}"
                )

    def _check_selector(self, node: Node, uid: str) -> None:
        """A pod that the daemon knew gets cards that it accepts."""
        pod = next((pod for pod in self.world.pods.values() if pod.uid == uid), None)
        clouded = node.clouded or node.daemon.confused
        if pod is None or not pod.ours or clouded or not node.daemon.has_seen(uid):
            return
        names = [container.name for container in pod.request.containers]
        for card in node.daemon.cards:
            if card.uuid in node.kubelet.cards(uid, names) and not pod.request.selector.admits(card):
                self._fail(
                    f"{node.name}: {uid} got {card.uuid}, a {card.model}, which it does not accept; "
                    f"{units_of(node.kubelet.devices)}, {node.daemon.explain()}"
                )

    def _check_target(self, node: Node, uid: str) -> None:
        """A pod gets the cards that the scheduler chose for it."""
        facts = node.daemon.ledger.facts
        if uid not in facts.pods:
            self._fail(f"{node.name}: {uid} was served unknown, {node.daemon.explain()}")
        pod = facts.pods[uid].pod
        for demand in pod.request.demands:
            chosen, got = facts.target(pod, demand), node.kubelet.cards(uid, demand.containers)
            if got != chosen:
                self._fail(
                    f"{node.name}: {uid} got {got} for {demand}, the scheduler chose {chosen}; "
                    f"{units_of(node.kubelet.devices)}, {node.daemon.explain()}"
                )

    def _fail(self, text: str) -> None:
        raise ViolationError("\n".join([*self.trace[-60:], text, f"now {self.now:.2f}, step {self.steps}"]))

    # Peace.

    def heal(self, node: Node) -> None:
        """All cards that are there are well, in use and free of others, and at times all are there."""
        if node.daemon.cards != node.daemon.every and self.random.random() < 0.5:
            node.daemon.set_cards(node.daemon.every)
            node.daemon.send_list()
        node.daemon.ledger.set_pressure({})
        if node.daemon.sick:
            node.daemon.sick.clear()
            node.daemon.set_health()
            node.daemon.send_list()
        self.world.cordon(node.name, ())

    def _settle_node(self, node: Node) -> None:
        """Everything on its way to or from a node arrives."""
        node.daemon.away = False
        if node.name not in self.world.nodes:
            self.world.put_node(node.name, {}, {})
        if not node.daemon_up:
            node.daemon_up = True
            self._start_daemon(node)
        if not node.kubelet.synced:
            self._sync(node)
        node.kubelet.torn = node.kubelet.mute = False
        node.daemon.refresh()
        node.daemon.register()
        if not node.daemon.synced:  # the kubelet's first question waits for a pod that may be asking
            self._look_at_pods(node)
        moved = True
        while moved:
            moved = node.kubelet.deliver() or node.kubelet.admit(node.daemon)
            moved = node.kubelet.run_one() or node.kubelet.start_one() or node.kubelet.reap_one() or moved
            self._say(f"{node.name} settles, devices {units_of(node.kubelet.devices)}")
            self.check()
        node.kubelet.flush()
        node.daemon.refresh()
        self._look_at_pods(node)
        node.daemon.look_at_cgroups()
        node.daemon.refresh()

    def _sync(self, node: Node) -> None:
        node.kubelet.sync()
        if node.daemon_up:
            node.daemon.ledger.kubelet_restarted()
            node.daemon.registered = False
            node.daemon.register()
            node.daemon.look_at_cgroups()

    def _look_at_pods(self, node: Node) -> None:
        node.daemon.disconnect(lost=False)
        node.daemon.begin_view()
        node.daemon.end_view()
        node.daemon.bookmark()

    def quiesce(self) -> None:
        """Deliver everything, give time to everything, and compare all views."""
        self.settle_bindings()
        for node in self.nodes:
            self.heal(node)
        for _ in range(4):
            for node in self.nodes:
                self._settle_node(node)
            self._pass(11.0)
            for node in self.nodes:
                self._settle_node(node)
                node.daemon.publish()
            while self.extender.deliver_node() or self.extender.deliver_pod():
                pass
        self._pass(31.0)
        self.extender.settle_due()
        self.extender.state.expire(self.now)
        self.compare()
        for node in self.nodes:
            node.clouded = self._unknowable(node)
            node.kubelet.late |= node.amnesia & node.kubelet.admitted if node.clouded else set()
            node.sick_until = None
            node.rivals.clear()
            node.racing.clear()
            node.served.clear()
            node.excused &= node.kubelet.truth.keys()

    @staticmethod
    def _unknowable(node: Node) -> bool:
        """Who has what was mistaken, and the book that said so is gone."""
        return node.clouded and bool(node.kubelet.overwritten or node.amnesia & node.kubelet.admitted)

    def compare(self) -> None:
        """Kubelet, ledger, words and extender say the same."""
        for node in self.nodes:
            if self._unknowable(node):
                continue
            truth = {card.uuid: 0 for card in node.daemon.cards}
            # An excused pod may share a card with one whose devices the kubelet forgot.
            for uuid, units in node.kubelet.units(node.kubelet.admitted).items():
                if size := node.daemon.size(uuid):
                    truth[uuid] = min(units, size)
            ledger = {**dict.fromkeys(truth, 0), **node.daemon.ledger.promised()}
            words = self.world.words(node.name)
            row = self.extender.state.nodes.rows[node.name]
            count = len(node.daemon.cards)
            views = {
                "kubelet": tuple(truth.values()),
                "ledger": tuple(ledger[uuid] for uuid in truth),
                "words": words.used if words else None,
                "extender": tuple(int(n) for n in self.extender.state.nodes.used[row][:count]),
                "assumed and used": tuple(
                    int(n)
                    for n in (self.extender.state.nodes.used[row] + self.extender.state.nodes.assumed[row])[
                        :count
                    ]
                ),
            }
            if node.amnesia & node.kubelet.admitted or node.kubelet.overwritten:
                # After the daemon forgot these too, or with an older copy of the book, nobody knows: fuller
                # is allowed, emptier is not.
                full = views["ledger"]
                if all(units <= more for units, more in zip(truth.values(), full, strict=True)):
                    views["kubelet"] = full
            if len(set(views.values())) != 1:
                self._fail(f"{node.name}: views differ {views}\n{node.daemon.explain()}")
            if node.daemon.holds.keys() != node.kubelet.admitted:
                self._fail(f"{node.name}: holds {node.daemon.holds}, admitted {node.kubelet.admitted}")

    def end_all(self) -> None:
        """Every pod ends; so does every charge."""
        for pod in list(self.world.pods.values()):
            self.world.delete(pod.name, pod.uid)
        self.quiesce()
        for node in self.nodes:
            if any(node.daemon.ledger.used()):
                self._fail(f"{node.name}: charges without pods {node.daemon.explain()}")
