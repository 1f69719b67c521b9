"""Small clusters driven through random interleavings of everything that can happen, one step at a time."""

import itertools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from allocator.names import POD_ALLOCATION, POD_CARDS, POD_GPU_MODEL
from scheduler_plugin.cluster.pods import shapes
from scheduler_plugin.cluster.rules import Rules

from .deviceids import card_of
from .scene import MODELS, UNSAID, Node, Scene, shown
from .world import ModelPod

MAX_PODS: Final = 14


SHAPES: Final = (
    (("c", 3, "main"),),
    (("c", 3, "main"),),
    (("c", 5, "main"),),
    (("c", 8, "main"),),
    (("c", 4, "main"),),
    (("a", 2, "main"), ("b", 3, "main")),
    (("i", 5, "init"), ("c", 3, "main")),
    (("i", 2, "init"), ("c", 4, "main")),
    (("s", 2, "sidecar"), ("c", 3, "main")),
    (("s", 1, "sidecar"), ("i", 4, "init"), ("c", 2, "main")),
)


PERCENT_SHAPES: Final = (
    (("c", 50, "main"),),
    (("c", 50, "main"),),
    (("c", 34, "main"),),
    (("c", 20, "main"),),
    (("c", 13, "main"),),
    (("c", 100, "main"),),
    (("a", 33, "main"), ("b", 33, "main")),
    (("i", 60, "init"), ("c", 40, "main")),
    (("i", 25, "init"), ("c", 50, "main")),
    (("s", 33, "sidecar"), ("i", 33, "init"), ("c", 40, "main")),
    (("c", 100, "main"), ("d", 25, "main")),
)


class Simulation(Scene):
    """One random history.

    Args:
        seed: of everything random.
        rules: the extender's rules, or a mutant of them.
        density: how much more often trouble comes than it usually does. With 0 nothing goes wrong, and pods
            must get the very cards that were chosen for them or for their like.
        more: how much more often things of these names happen, besides.
        percent: how many of the pods ask for percent of cards.
    """

    def __init__(
        self,
        seed: int,
        rules: type[Rules] = Rules,
        density: float = 1.0,
        more: Mapping[str, float] = MappingProxyType({}),
        percent: float = 0.0,
    ) -> None:
        super().__init__(seed, rules, calm=density == 0)
        self.percent = percent
        self.names = itertools.count()
        self.shapes = self.random.sample(SHAPES, self.random.choice((1, 2, 3, len(SHAPES))))
        self.picky = self.random.choice((0.0, 0.15))
        work = (
            (24, self._create),
            (24, self._schedule),
            (20, self._settle_binding),
            (40, self._extender_hears),
            (30, self._daemon_hears),
            (40, self._kubelet_hears),
            (50, self._admit),
            (14, self._start),
            (20, self._reap),
            (14, self._run),
            (14, self._read_book),
            (40, self._publish),
            (4, self._annotate),
            (4, self._cgroups),
            (2, self._bookmark),
            (30, self._finish),
            (8, self._view),
            (24, self._recover),
        )
        trouble = (
            (6, self._force_delete),
            (2, self._restart_kubelet),
            (2, self._stop_daemon),
            (1, self._restart_extender),
            (2, self._relist),
            (1, self._delete_node),
            (2, self._away),
            (3, self._foreign),
            (0.5, self._fall_sick),
            (1, self._cordon),
            (1, self._pressure),
            (1, self._tear),
            (3, self._sleep),
        )
        if self.calm or self.random.random() < 0.4:
            # A rush: many pods of one or two shapes are on their way at once, and little goes wrong.
            self.shapes = self.random.sample(SHAPES, self.random.choice((1, 2)))
            density *= 0.3
            hurry = {self._create: 2, self._schedule: 3, self._settle_binding: 3, self._extender_hears: 3}
            slow = {self._admit: 0.4, self._publish: 0.5}
            work = tuple((weight * {**hurry, **slow}.get(action, 1), action) for weight, action in work)
        self.actions = [(weight * self._pace(), action) for weight, action in work]
        self.actions += [(density * weight * self._pace(), action) for weight, action in trouble]
        self.weights = [weight * more.get(action.__name__[1:], 1) for weight, action in self.actions]
        for node in self.nodes:
            self._settle_node(node)

    def _pace(self) -> float:
        """No two histories have the same pace: whoever is slow in one is quick in another."""
        return self.random.choice((0.1, 0.4, 1, 1, 2))

    # One step.

    def step(self) -> None:
        """Let one thing happen and look at the invariant."""
        self.steps += 1
        self._pass(self.random.uniform(0.01, 0.4))
        (_, action) = self.random.choices(self.actions, self.weights)[0]
        self.extender.settle_due()
        self._excuse()
        action()
        self._excuse()
        self.check()

    def _any(self) -> Node:
        return self.random.choice(self.nodes)

    def _create(self) -> None:
        if len(self.world.pods) >= MAX_PODS:
            return
        name = f"p{self.random.randrange(MAX_PODS)}"
        if name in self.world.pods:
            return
        shape = self.random.choice(self.shapes)
        percent = self.percent > 0 and self.random.random() < self.percent
        if percent:
            shape = self.random.choice(PERCENT_SHAPES)
        notes: dict[str, str] = {}
        if shape == (("c", 4, "main"),) and self.random.random() < 0.5:
            notes[POD_CARDS] = "2"
        if percent and all(kind != "init" and each in {50, 100} for _, each, kind in shape):
            notes |= self.random.choice(({}, {POD_CARDS: "2"}))
        if self.random.random() < self.picky:
            notes[POD_GPU_MODEL] = self.random.choice(MODELS)
        if self.random.random() < 0.2 and self.world.pods:
            other = dict(self.random.choice(list(self.world.pods.values())).annotations)
            notes |= {key: other[key] for key in (POD_ALLOCATION,) if key in other}
        number = next(self.names)
        self._say(f"create {name} u{number} {shape} {notes}")
        self.world.create(
            ModelPod(
                uid=f"u{number}",
                name=name,
                version=0,
                containers=shape,
                annotations=tuple(notes.items()),
                created=f"{number:08}",
                percent=percent,
            )
        )

    def _schedule(self) -> None:
        known = self.extender.state.pods
        waiting = [pod for pod in self.world.pods.values() if not pod.node and pod.uid in known]
        if waiting:
            pod = self.random.choice(waiting)
            if self.extender.schedule(pod):
                commitment = self.extender.bindings[-1].commitment
                self._say(f"commit {pod.name} {pod.uid} to {commitment.node} {commitment.assigned}")

    def _settle_binding(self) -> None:
        self.extender.settle_binding()

    def _excuse(self) -> None:
        """Nobody can know of a card that fell sick after a pod was bound there, or just before."""
        for node in self.nodes:
            book = self.extender.state.books.get(node.name)
            if node.sick_until is None:
                continue
            if book is not None and book.revision >= node.sick_until:
                node.sick_until = None
                continue
            node.excused |= {pod.uid for pod in self.world.pods.values() if pod.node == node.name} | {
                binding.commitment.pod.uid
                for binding in self.extender.bindings
                if binding.commitment.node == node.name
            }

    def _extender_hears(self) -> None:
        deliver = self.random.choice((self.extender.deliver_node, self.extender.deliver_pod))
        for _ in range(self.random.choice((1, 4, 8))):
            deliver()

    def _daemon_hears(self) -> None:
        node = self._any()
        for _ in range(self.random.choice((1, 1, 4)) if node.daemon_up else 0):
            node.daemon.deliver()

    def _kubelet_hears(self) -> None:
        node = self._any()
        if node.daemon.away:
            return
        if self.random.random() < (0.7 if self.calm else 0.3):
            node.kubelet.relist()
        else:
            node.kubelet.deliver()

    def _admit(self) -> None:
        node = self._any()
        # A daemon that starts while the API server is away, or knows less of it than the kubelet does, cannot
        # know whom the scheduler promised what. It serves the kubelet all the same, but its blind choices
        # are outside the invariant.
        blind = node.daemon.away and (not node.daemon.synced or node.daemon.cursor < node.kubelet.cursor)
        if node.daemon_up and node.daemon.book_read and not blind:
            facts = node.daemon.ledger.facts
            before, admitted = node.kubelet.admitting, set(node.kubelet.admitted)
            node.kubelet.admit(node.daemon)
            if before is not None or node.kubelet.admitting is not None:
                self._say(f"{node.name} admits, devices {shown(node.kubelet)}")
            for uid in node.kubelet.admitted - admitted:
                self._check_selector(node, uid)
            if self.calm and not node.clouded and all(one.bound for one in facts.pods.values()):
                for uid in node.kubelet.admitted - admitted:
                    self._check_target(node, uid)

    def _start(self) -> None:
        node = self._any()
        if not node.daemon.away:
            node.kubelet.start_one()

    def _reap(self) -> None:
        self._any().kubelet.reap_one()

    def _run(self) -> None:
        self._any().kubelet.run_one()

    def _read_book(self) -> None:
        node = self._any()
        if self.random.random() < 0.5:
            node.kubelet.flush()
        if node.daemon_up:
            node.daemon.refresh()

    def _tear(self) -> None:
        self._any().kubelet.torn = True

    def _fall_sick(self) -> None:
        node = self._any()
        card = self.random.choice(node.daemon.cards)
        self._say(f"card {card.index} of {node.name} is sick")
        node.daemon.sick.add(card.index)
        node.sick_until = UNSAID
        self._excuse()
        self._set_health(node)

    def _set_health(self, node: Node) -> None:
        sick = {card.uuid for card in node.daemon.cards if card.index in node.daemon.sick}
        for card in node.daemon.cards:
            node.daemon.ledger.set_healthy(card.uuid, healthy=card.uuid not in sick)
        node.kubelet.sick = frozenset(
            text for text in node.kubelet.ids | node.kubelet.percent if card_of(text) in sick
        )

    def _recover(self) -> None:
        """One thing that went wrong on a node is well again."""
        node = self._any()
        ways = {
            self._sync_kubelet: not node.kubelet.synced and not node.daemon.away and node.daemon_up,
            self._start_stopped_daemon: not node.daemon_up,
            self._come_back: node.daemon.away,
            self._create_node: node.name not in self.world.nodes,
            self._get_well: bool(node.daemon.sick) and self.random.random() < 0.2,
        }
        open_ways = [way for way, needed in ways.items() if needed]
        if open_ways:
            self.random.choice(open_ways)(node)

    def _get_well(self, node: Node) -> None:
        self._say(f"all cards of {node.name} are well")
        node.daemon.sick.clear()
        self._set_health(node)

    def _cordon(self) -> None:
        node = self._any()
        chosen = tuple(card.uuid for card in node.daemon.cards if self.random.random() < 0.3)
        self.world.cordon(node.name, chosen)

    def _pressure(self) -> None:
        node = self._any()
        card = self.random.choice(node.daemon.cards)
        if node.daemon_up:
            node.daemon.ledger.set_pressure({card.uuid: self.random.randrange(card.size_units)})

    def _publish(self) -> None:
        node = self._any()
        if node.daemon_up and node.daemon.publish():
            assert node.daemon.published is not None
            # What the kubelet is to admit anew may come elsewhere: these words say where it was.
            node.ever_held |= node.daemon.published[1] & (node.kubelet.admitted | node.kubelet.running)
            if node.sick_until is UNSAID:
                node.sick_until = node.daemon.revision
            self._say(f"{node.name} publishes {node.daemon.published} seen {node.daemon.pods.seen}")

    def _annotate(self) -> None:
        node = self._any()
        if node.daemon_up:
            node.daemon.annotate_one()

    def _cgroups(self) -> None:
        node = self._any()
        if node.daemon_up:
            node.daemon.look_at_cgroups()

    def _bookmark(self) -> None:
        node = self._any()
        if node.daemon_up:
            node.daemon.bookmark()

    def _force_delete(self) -> None:
        if self.world.pods:
            bound = [pod for pod in self.world.pods.values() if pod.node]
            pod = self.random.choice(bound or list(self.world.pods.values()))
            self._say(f"force-delete {pod.name} {pod.uid} on {pod.node!r}")
            self.world.delete(pod.name, pod.uid)

    def _finish(self) -> None:
        node = self._any()
        if node.kubelet.running and not node.daemon.away:
            uid = self.random.choice(sorted(node.kubelet.running))
            self._say(f"{uid} ends on {node.name}")
            node.kubelet.finish(uid, deleted=self.random.random() < 0.5)

    def _restart_kubelet(self) -> None:
        node = self._any()
        # What the kubelet forgets before anybody has read it, nobody can know.
        published = node.kubelet.admitted <= self._held(node)
        known = node.kubelet.admitted <= node.daemon.ledger.holds().keys() if node.daemon_up else published
        lost = self.random.random() < 0.25 and known and node.kubelet.unwritten is None
        if lost or node.kubelet.torn:
            if not known:
                return
            node.amnesia |= node.kubelet.admitted
        file = node.kubelet.file.entries if node.kubelet.file is not None else ()
        written = {(line.uid, line.container) for line in file}
        held = {(uid, name) for uid, mine in node.kubelet.devices.items() for name in mine}
        forgotten = {uid for uid, _ in held - written}
        node.amnesia |= forgotten & node.kubelet.admitted
        node.kubelet.late |= forgotten - node.kubelet.admitted
        if lost or node.kubelet.torn:
            # What does not run yet is admitted anew, maybe elsewhere: the words have it where it was.
            node.ever_held &= node.kubelet.running
        self._say(f"kubelet of {node.name} restarts, book lost {lost}, torn {node.kubelet.torn}")
        node.kubelet.restart(book_lost=lost)

    def _sync_kubelet(self, node: Node) -> None:
        self._say(f"kubelet of {node.name} lists its pods")
        self._sync(node)

    def _stop_daemon(self) -> None:
        node = self._any()
        # What kubelet and daemon both forget before it was written down, nobody can know.
        if node.daemon_up and node.amnesia & node.kubelet.admitted <= self._held(node):
            self._say(f"daemon of {node.name} stops")
            node.daemon_up = False

    def _start_stopped_daemon(self, node: Node) -> None:
        self._say(f"daemon of {node.name} starts")
        node.daemon_up = True
        self._start_daemon(node)

    def _view(self) -> None:
        node = self._any()
        if not node.daemon_up:
            return
        if node.daemon.view is not None:
            node.daemon.end_view()
        elif not node.daemon.synced or node.daemon.ledger.wants_view() or self.random.random() < 0.1:
            node.daemon.begin_view()

    def _restart_extender(self) -> None:
        if any(self._unwritten(node) or self._unheard(node) or self._unsaid(node) for node in self.nodes):
            return  # what the words and the API server lack, a new extender cannot know
        self._say("extender restarts")
        self.extender.start()

    def _relist(self) -> None:
        if self.random.random() < 0.5:
            self.extender.relist_nodes()
        else:
            self.extender.relist_pods()

    def _delete_node(self) -> None:
        node = self._any()
        # What kubelet, daemon and Node all forget, nobody can know.
        knows = node.daemon_up and node.daemon.own.first.is_set()
        kept = knows or not node.amnesia & node.kubelet.admitted
        if node.name in self.world.nodes and kept:
            self._say(f"Node {node.name} deleted")
            self.world.delete_node(node.name)
            # A daemon that restarts now has nothing to remember.
            node.kubelet.late |= node.kubelet.running - node.kubelet.admitted

    def _create_node(self, node: Node) -> None:
        self._say(f"Node {node.name} created again")
        self.world.put_node(node.name, {}, {})

    def _away(self) -> None:
        node = self._any()
        if not node.daemon.away:
            self._say(f"API server away for {node.name}")
            node.daemon.away = True
            node.daemon.disconnect(lost=self.random.random() < 0.3)

    def _come_back(self, node: Node) -> None:
        self._say(f"API server back for {node.name}")
        node.daemon.away = False

    def _foreign(self) -> None:
        """Another scheduler binds a pod that fits, when nothing of ours is on its way."""
        node = self._any()
        if self.extender.bindings or node.name not in self.world.nodes:
            return
        while self.extender.deliver_node() or self.extender.deliver_pod():
            pass
        waiting = [
            pod
            for pod in self.world.pods.values()
            if not pod.node and not pod.ended and POD_GPU_MODEL not in dict(pod.annotations)
        ]
        row = self.extender.state.nodes.rows.get(node.name)
        if not waiting or row is None or self.extender.state.books[node.name].takes:
            return
        pod = self.random.choice(waiting)
        free = [int(units) for units in self.extender.state.nodes.free[row]]
        demands = pod.request.demands
        if self.extender.state.busy_nodes(shapes(pod.request)):
            return
        sizes = [card.size_units for card in node.daemon.cards]
        fits = any(left >= demands[0].units_on(size) for left, size in zip(free, sizes, strict=False))
        if len(demands) == 1 and demands[0].cards == 1 and fits:
            self._say(f"foreign scheduler binds {pod.name} {pod.uid} to {node.name}")
            self.world.bind(pod.name, pod.uid, pod.version, node.name, None, ours=False)
            while self.extender.deliver_pod():
                pass

    def _sleep(self) -> None:
        self.settle_bindings()
        self._pass(self.random.choice((2.0, 12.0, 35.0)))


def run(
    seed: int,
    steps: int,
    rules: type[Rules] = Rules,
    density: float = 1.0,
    more: Mapping[str, float] = MappingProxyType({}),
    percent: float = 0.0,
) -> int:
    """Run one history; returns the steps done.

    Args:
        seed: of everything random.
        steps: how many.
        rules: the extender's.
        density: see `Simulation`.
        more: likewise.
        percent: likewise.

    Raises:
        ViolationError: the invariant broke.
    """
    simulation = Simulation(seed, rules, density, more, percent)
    for number in range(1, steps + 1):
        simulation.step()
        if number % 250 == 0:
            simulation.quiesce()
            if simulation.random.random() < 0.3:
                simulation.end_all()
    simulation.end_all()
    return steps
