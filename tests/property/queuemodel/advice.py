"""`gpupack advise --apply`, one step at a time: who is moved runs again soon, and gangs stay whole."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

from gpupack.rebalance.advise import advise_empty, advise_start
from gpupack.rebalance.planning import SearchLimits
from gpupack.whatif.cluster import Cluster
from gpupack.whatif.fit import FitQuestion
from gpupack.whatif.queue_rules import QueueRules
from scheduler_plugin.queue.controller.settings import QueueSettings
from tests.property.kernel.history import ViolationError

from .process import Process
from .promises import Promises
from .truth import alike
from .world import NEW_YEAR, Pod, World

RUNS_AGAIN_S: Final = 40.0
"""A pod ends within 5 s, is made again within 2 s, and is admitted and bound within seconds."""


LIMITS: Final = SearchLimits(steps=500)
"""Places that are tried for one advice: the first that are found are as good as any here."""


@dataclass(frozen=True, slots=True)
class Step:
    """A pod that was evicted on advice.

    Attributes:
        pod: It.
        at: When, seconds.
    """

    pod: Pod
    at: float


class Adviser:
    """Somebody who asks for advice while all is calm, and makes the first move of it.

    Args:
        promises: They say whom kube-scheduler has refused.
        is_still: Whether nobody else does anything.

    Attributes:
        steps: Moves that were made.
    """

    def __init__(
        self,
        world: World,
        random: Random,
        process: Process,
        promises: Promises,
        evict: Callable[[Pod], None],
        is_still: Callable[[], bool],
        say: Callable[[str], None],
    ) -> None:
        self._world, self._random = world, random
        self._process, self._promises = process, promises
        self._evict, self._is_still, self._say = evict, is_still, say
        self._under_way: Step | None = None
        self.steps = 0

    def act(self) -> None:
        """Make a step, or wait for the end of one."""
        if self._under_way is not None:
            self._wait(self._under_way)
        elif self._is_still() and self._random.random() < 0.1:
            self._make_step()

    def _wait(self, step: Step) -> None:
        owner, now = step.pod.spec.owner, self._world.now
        successors = [
            pod for pod in self._world.pods.values() if pod.spec.owner == owner and pod.created > step.at
        ]
        if any(pod.node for pod in successors):
            self._close(set())
            self._under_way = None
        elif now - step.at > RUNS_AGAIN_S:
            waits = ", ".join(pod.name for pod in successors) or "nobody"
            raise ViolationError(
                f"{step.pod.name} was moved on advice, and {waits} waits {now - step.at:.0f} s later; "
                + self._promises._why(step.pod.uid)
            )

    def _make_step(self) -> None:
        cluster = self._read()
        if self._random.random() < 0.5:
            used = sorted({(pod.node, pod.card) for pod in self._world.pods.values() if pod.node}) or [
                ("n0", 0)
            ]
            node, card = self._random.choice(used)
            advice = advise_empty(cluster, f"{node}/{card}", LIMITS)
        else:
            advice = advise_start(cluster, FitQuestion(self._random.randint(4, 16)), limits=LIMITS)
        if not advice.moves:
            return
        sources = {(move.source.node, card) for move in advice.moves for card in move.source.cards}
        targets = {(move.target.node, card) for move in advice.moves for card in move.target.cards}
        pod = self._world.pods[advice.moves[0].pod]
        if pod.gang:
            raise ViolationError(f"advice moves {pod.name} of gang {pod.gang} alone")
        if alike(pod) in self._promises._refused:
            return  # the pause after a refusal is not known to whoever gives advice
        self._say(f"advice: {advice.moves[0].text}")
        self._close(sources - targets)
        self._evict(pod)
        self._under_way = Step(pod, self._world.now)
        self.steps += 1

    def _close(self, cards: set[tuple[str, int]]) -> None:
        """Cordon these cards, and no others."""
        changed = {node for node, _ in cards ^ self._world.closed}
        self._world.closed = cards
        for node in sorted(changed):
            self._world.publish(node)

    def _read(self) -> Cluster:
        items = [{**raw, "kind": "Node"} for raw in self._world.raw_nodes.values()]
        items += [{**pod.raw, "kind": "Pod"} for pod in self._world.pods.values()]
        cluster = Cluster.from_json(json.dumps({"kind": "List", "items": items}))
        now_s = NEW_YEAR.timestamp() + self._world.now
        settings = QueueSettings(config="", node_policy=self._process.policy)
        cluster.queue = QueueRules(self._process.config, settings, {}, now_s)
        return cluster
