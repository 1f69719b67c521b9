"""Small clusters driven through random interleavings of everything that can happen, one step at a time."""

import itertools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from allocator.names import POD_ALLOCATION, POD_CARDS, POD_GPU_MODEL
from tests.property.kernel.history import replayable

from .deviceids import units_of
from .scene import MODELS, UNSAID
from .trouble import Trouble
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


LARGE_SHAPES: Final = ((("c", 13, "main"),), (("c", 20, "main"),), (("i", 13, "init"), ("c", 7, "main")))

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


class Simulation(Trouble):
    """One random history.

    Args:
        density: how much more often trouble comes than it usually does. With 0 nothing goes wrong, and pods
            must get the very cards that were chosen for them or for their like.
        more: how much more often things of these names happen, besides.
        percent: how many of the pods ask for percent of cards.
        large: cards are larger, and pods ask for as many units of them as percent.
        compute: how many of the pods ask for compute.
    """

    def __init__(
        self,
        seed: int,
        density: float = 1.0,
        more: Mapping[str, float] = MappingProxyType({}),
        percent: float = 0.0,
        large: bool = False,
        compute: float = 0.0,
    ) -> None:
        super().__init__(seed, calm=density == 0, large=large)
        self.percent, self.compute = percent, compute
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
            (14, self._read_checkpoint),
            (40, self._publish),
            (4, self._annotate),
            (6, self._cgroups),
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
            (0.3, self._hush),
            (3, self._sleep),
        )
        if self.calm or self.random.random() < 0.4:
            # A rush: many pods of one or two shapes are on their way at once, and little goes wrong.
            self.shapes = self.random.sample(SHAPES, self.random.choice((1, 2)))
            density *= 0.3
            hurry = {self._create: 2, self._schedule: 3, self._settle_binding: 3, self._extender_hears: 3}
            slow = {self._admit: 0.4, self._publish: 0.5}
            work = tuple((weight * {**hurry, **slow}.get(action, 1), action) for weight, action in work)
        if self.large:
            self.shapes = LARGE_SHAPES
        self.actions = [(weight * self._pace(), action) for weight, action in work]
        self.actions += [(density * weight * self._pace(), action) for weight, action in trouble]
        self.weights = [weight * more.get(action.__name__[1:], 1) for weight, action in self.actions]
        # Only where they are asked for.
        self.actions += [(0, self._crash), (0, self._force_delete), (0, self._change_cards)]
        self.weights += [more.get("crash", 0), more.get("force_delete", 0) if self.calm else 0]
        self.actions += [(0, self._fall_sick_unheard), (0, self._roll_out)]
        self.weights += [more.get(name, 0) for name in ("change_cards", "fall_sick_unheard", "roll_out")]
        for node in self.nodes:
            self._settle_node(node)

    def _pace(self) -> float:
        """No two histories have the same pace: whoever is slow in one is quick in another."""
        return self.random.choice((0.1, 0.4, 1, 1, 2))

    # One step.

    def _do(self, action: Callable[[], object]) -> None:
        self.extender.settle_due()
        self._excuse()
        action()
        self._excuse()

    def rest(self) -> None:
        self.quiesce()
        if self.random.random() < 0.3:
            self.end()

    def _create(self) -> None:
        if len(self.world.pods) >= MAX_PODS:
            return
        name = f"p{self.random.randrange(MAX_PODS)}"
        if self.world.gone and self.random.random() < 0.2:
            name = self.world.gone  # a StatefulSet makes it again at once
        if name in self.world.pods:
            return
        shape = self.random.choice(self.shapes)
        percent = self.percent > 0 and self.random.random() < self.percent
        if percent:
            shape = self.random.choice(self.shapes if self.large else PERCENT_SHAPES)
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
        asks = self.compute > 0 and self.random.random() < self.compute
        compute = self.random.choice((10, 30, 60, 90)) if asks else 0
        number = next(self.names)
        self._say(f"create {name} u{number} {shape} {notes}" + (f" compute {compute}" if compute else ""))
        self.world.create(
            ModelPod(
                uid=f"u{number}",
                name=name,
                version=0,
                containers=shape,
                annotations=tuple(notes.items()),
                created=f"{number:08}",
                percent=percent,
                compute=compute,
            )
        )

    def _schedule(self) -> None:
        known = self.extender.state.pods
        waiting = [pod for pod in self.world.pods.values() if not pod.node and pod.uid in known]
        if waiting:
            pod = self.random.choice(waiting)
            if self.extender.schedule(pod):
                commitment = self.extender.bindings[-1].commitment
                self._race(commitment)
                self._say(f"commit {pod.name} {pod.uid} to {commitment.node} {commitment.assigned}")

    def _settle_binding(self) -> None:
        self.extender.settle_binding()

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
        if node.daemon_up and node.daemon.register() and not self._blind(node):
            facts = node.daemon.ledger.accounts
            before, admitted = node.kubelet.admitting, set(node.kubelet.admitted)
            node.kubelet.admit(node.daemon)
            if before is not None or node.kubelet.admitting is not None:
                self._say(f"{node.name} admits, devices {units_of(node.kubelet.devices)}")
            for uid in node.kubelet.admitted - admitted:
                self._check_selector(node, uid)
            if self.calm and not node.clouded and all(one.bound for one in facts.pods.values()):
                for uid in node.kubelet.admitted - admitted - self.world.deleted_at.keys():
                    self._check_target(node, uid)

    def _start(self) -> None:
        node = self._any()
        if not node.daemon.away:
            node.kubelet.start_one()

    def _reap(self) -> None:
        self._any().kubelet.reap_one()

    def _run(self) -> None:
        self._any().kubelet.run_one()

    def _read_checkpoint(self) -> None:
        node = self._any()
        if self.random.random() < 0.5:
            node.kubelet.flush()
        if node.daemon_up:
            node.daemon.refresh()

    def _publish(self) -> None:
        node = self._any()
        if node.daemon_up and node.daemon.publish():
            assert node.daemon.published is not None
            # What the kubelet is to admit anew may come elsewhere: these words say where it was.
            node.ever_held |= node.daemon.published[1] & (node.kubelet.admitted | node.kubelet.running)
            if node.sick_until is UNSAID:
                node.sick_until = self.world.version
            self._say(f"{node.name} publishes {node.daemon.published} seen {node.daemon.pods.seen_version}")

    def _annotate(self) -> None:
        node = self._any()
        if node.daemon_up:
            node.daemon.annotate_one()

    def _cgroups(self) -> None:
        node = self._any()
        if node.daemon_up:
            begun = node.daemon.look is not None
            (node.daemon.end_look if begun else node.daemon.begin_look)()

    def _bookmark(self) -> None:
        node = self._any()
        if node.daemon_up:
            node.daemon.bookmark()

    def _finish(self) -> None:
        node = self._any()
        if node.kubelet.running and not node.daemon.away:
            uid = self.random.choice(sorted(node.kubelet.running))
            self._say(f"{uid} ends on {node.name}")
            node.kubelet.finish(uid, deleted=self.random.random() < 0.5)

    def _view(self) -> None:
        node = self._any()
        if not node.daemon_up:
            return
        if node.daemon.view is not None:
            node.daemon.end_view()
        elif (
            not node.daemon.synced
            or node.daemon.ledger.accounts.has_unlisted_pods
            or self.random.random() < 0.1
        ):
            node.daemon.begin_view()


@replayable
def run(seed: int, steps: int, density: float = 1.0, **options: Any) -> int:
    """Run one history, with the options of `Simulation`; returns the steps done.

    Raises:
        ViolationError: the invariant broke.
    """
    Simulation(seed, density, **options).play(steps)
    return steps
