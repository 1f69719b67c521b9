"""Everybody else in the model: kube-scheduler and the extender, the nodes, and controllers that make pods."""

from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Final, Protocol

from allocator.names import POD_ASSIGNED, POD_PLANNED
from allocator.records import dump_assigned
from scheduler_plugin.scheduling.reasons import REQUEUED
from tests.property.kernel.api import named_node

from .world import Pod, Spec, World, card_uuid

if TYPE_CHECKING:
    import asyncio

GRACE_S: Final = 5
"""Seconds that an evicted pod takes to end at most."""

BLOCKED: Final = "0/1 nodes are available: 1 node(s) didn't match pod anti-affinity rules."
FULL: Final = "0/1 nodes are available: no card is free."


class Extender(Protocol):
    """What kube-scheduler needs of the scheduler's process; `binding.Scheduler` has it."""

    def list_fitting(self, pod: Pod, names: Sequence[str]) -> list[str]: ...
    def bind(self, pod: Pod, node: str) -> "asyncio.Task[bytes]": ...


class Cluster:
    """They do their work when `act` is called.

    Attributes:
        wrong_clocks: Nodes whose clock is wrong.
        silent: Until when a node writes nothing, by node, seconds.
        spread: Share of pods that go where most is free, unless the queue has named a card.
        slow_binding: Share of Bindings that come seconds after they were decided.
        extender: Filters and binds for kube-scheduler; None: it knows the cards itself.
    """

    def __init__(self, world: World, random: Random, say: Callable[[str], None]) -> None:
        self._world, self._random, self._say = world, random, say
        self.wrong_clocks: set[str] = set()
        self.silent: dict[str, float] = {}
        self.slow_binding = 0.0
        self.spread = random.choice((0.0, 0.2, 1.0))
        self.extender: Extender | None = None
        self._asked: dict[str, asyncio.Task[bytes]] = {}
        self._paused: dict[str, float] = {}
        self._publish: dict[str, float] = {}
        self._bindings: list[tuple[float, str, str, int, str]] = []
        self._remakes: list[tuple[float, Spec, str]] = []
        self._dies: dict[str, float] = {}
        self._deallocations: dict[str, float] = {}

    def act(self) -> None:
        now = self._world.now
        for pod in list(self._world.pods.values()):
            if self._dies.get(pod.name, now + 1) <= now:
                self._end(pod)
            elif pod.ends <= now and not pod.ended:
                self._say(f"{pod.name} succeeds")
                pod.raw["status"]["phase"] = "Succeeded"
                if pod.spec.data and pod.job in self._world.stages:
                    self._world.stages[pod.job].succeeded += 1
                self._world.changed(pod)
                self._changes(pod.node)
                self._let_go(pod)
                self._dies[pod.name] = now + self._random.choice((0.0, 20.0))
        for due in [each for each in self._bindings if each[0] <= now]:
            self._bindings.remove(due)
            self._bind(*due[1:])
        for remake in [each for each in self._remakes if each[0] <= now]:
            self._remakes.remove(remake)
            self._world.create(remake[1], remake[2])
        for uid in [uid for uid, at in self._deallocations.items() if at <= now]:
            del self._deallocations[uid]
            self._world.deallocate(uid)
        self._schedule()
        for node in sorted(self._publish):
            if self._publish[node] <= now and self.silent.get(node, 0.0) <= now:
                del self._publish[node]
                self._world.publish(node)

    @property
    def is_still(self) -> bool:
        """Whether nothing is under way here."""
        ends = self._dies or self._deallocations
        return not (self._bindings or self._asked or self._remakes or self._publish or ends)

    def forget(self) -> None:
        """Make nothing again, and end nothing any more: all pods are gone."""
        self._remakes.clear()
        self._dies.clear()
        self._bindings.clear()
        for uid in self._world.claims:
            self._deallocations.setdefault(uid, self._world.now)
        for node in self._world.nodes:
            self._changes(node)

    def evict(self, pod: Pod) -> None:
        """End a pod as the eviction API does: one without a node at once, others within their grace."""
        if pod.ending:
            return
        self._say(f"{pod.name} is evicted")
        if not pod.node or pod.ended:
            self._end(pod)
            return
        pod.raw["metadata"]["deletionTimestamp"] = self._world.stamp(GRACE_S)
        pod.raw["metadata"]["deletionGracePeriodSeconds"] = GRACE_S
        self._dies[pod.name] = self._world.now + self._random.uniform(0, GRACE_S)
        self._world.changed(pod)

    def _end(self, pod: Pod) -> None:
        """A pod is gone; whoever made it makes it again, if it had not succeeded."""
        self._dies.pop(pod.name, None)
        self._world.delete(pod)
        self._changes(pod.node)
        self._let_go(pod)
        if pod.spec.owner and not pod.ended:
            again = self._world.now + self._random.uniform(0, 2)
            self._remakes.append((again, pod.spec, pod.gang))

    def _let_go(self, pod: Pod) -> None:
        """The claim of a pod that has ended is deleted soon."""
        if pod.claim in self._world.claims:
            self._deallocations.setdefault(pod.claim, self._world.now + self._random.uniform(0, 2))

    def _changes(self, node: str) -> None:
        if node:
            self._publish.setdefault(node, self._world.now + self._random.uniform(0, 1))

    # kube-scheduler and the extender.

    def _schedule(self) -> None:
        """Look at every pod that has no gate and no node."""
        world = self._world
        self._hear_extender()
        under_way = {name for _, name, *_ in self._bindings} | self._asked.keys() | self._paused.keys()
        for pod in sorted(world.pods.values(), key=lambda pod: pod.created):
            if pod.gated or pod.node or pod.ended or pod.ending or pod.name in under_way or pod.spec.batch:
                continue
            if pod.spec.grouped and not self._can_try_group(pod.gang):
                continue
            if pod.requeued:
                self._refuse(pod, REQUEUED)
            elif pod.spec.owner and pod.spec.owner in world.blocked:
                self._refuse(pod, BLOCKED)
            else:
                self._place(pod)

    def _can_try_group(self, name: str) -> bool:
        """Tell whether kube-scheduler tries a PodGroup: enough pods are there, and none has a gate."""
        pods = [pod for pod in self._world.pods.values() if pod.gang == name and not pod.ended]
        return len(pods) >= pods[0].spec.size and not any(pod.gated for pod in pods)

    def _hear_extender(self) -> None:
        """Take the extender's answers: a pod that it has not bound is tried again after a pause."""
        now = self._world.now
        for name in [name for name, task in self._asked.items() if task.done()]:
            task = self._asked.pop(name)
            if task.cancelled() or task.result():
                self._paused[name] = now + self._random.uniform(1, 5)
        for name in [name for name, until in self._paused.items() if until <= now]:
            del self._paused[name]

    def _ask_extender(self, pod: Pod, extender: Extender) -> None:
        """Bind a pod through the extender, which chooses the cards."""
        only = named_node(pod.raw)
        names = [only] if only else sorted(self._world.nodes)
        fits = extender.list_fitting(pod, [name for name in names if self._admits(name, pod)])
        if fits:
            self._asked[pod.name] = extender.bind(pod, self._random.choice(fits))
        else:
            self._refuse(pod, FULL)

    def _place(self, pod: Pod) -> None:
        """Choose a card, that which the queue named if it is free; bind now, or soon."""
        if self.extender is not None:
            self._ask_extender(pod, self.extender)
            return
        free = self.free()
        only = named_node(pod.raw)
        names = [only] if only else sorted(free)
        fits = [
            (name, card)
            for name in names
            if name in free and self._admits(name, pod)
            for card, units in enumerate(free[name])
            if units >= pod.spec.units
        ]
        if not fits:
            self._refuse(pod, FULL)
            return
        planned = pod.raw["metadata"]["annotations"].get(POD_PLANNED, "")
        wished = [each for each in fits if card_uuid(*each) == planned]
        spread = self._random.random() < self.spread
        best = sorted(fits, key=lambda each: (free[each[0]][each[1]] * (-1 if spread else 1), each))
        node, card = (wished or ([best[0]] if self._random.random() < 0.8 else [self._random.choice(fits)]))[
            0
        ]
        version = pod.raw["metadata"]["resourceVersion"]
        if self._random.random() < self.slow_binding:
            later = self._world.now + self._random.uniform(0.5, 3)
            self._bindings.append((later, pod.name, node, card, version))
        else:
            self._bind(pod.name, node, card, version)

    def _admits(self, node: str, pod: Pod) -> bool:
        return (
            node in self._world.nodes
            and node not in self._world.cordoned
            and (not pod.spec.model or pod.spec.model in self._world.models[node])
        )

    def free(self) -> dict[str, list[int]]:
        """Units free on each card, beside what is being bound."""
        free = {name: self._world.free(name) for name in self._world.nodes}
        for _, name, node, card, _ in self._bindings:
            if name in self._world.pods:
                free[node][card] -= self._world.pods[name].spec.units
        return free

    def _bind(self, name: str, node: str, card: int, version: str) -> None:
        """Send a Binding; it fails where the pod is not as it was."""
        world = self._world
        pod = world.pods.get(name)
        if pod is None or pod.raw["metadata"]["resourceVersion"] != version:
            return
        cards = ((card_uuid(node, card), pod.spec.units),)
        if pod.spec.claims:
            world.allocate(pod, node, card)
            pod.loose = world.now
        else:
            pod.raw["metadata"]["annotations"][POD_ASSIGNED] = dump_assigned({"main": cards})
        self.run(pod, node, card)

    def run(self, pod: Pod, node: str, card: int) -> None:
        world, raw = self._world, pod.raw
        what = f"{pod.name} ({pod.spec.queue}, {pod.spec.units} units)"
        self._say(f"{what} is bound to {node}, card {card}")
        raw["spec"]["nodeName"] = node
        started = "1970-01-02T00:00:00Z" if node in self.wrong_clocks else world.stamp()
        raw["status"] = {
            "phase": "Running",
            "startTime": started,
            "conditions": [_scheduled("True", "", "", world.stamp())],
        }
        pod.card, pod.bound = card, world.now
        pod.ends = world.now + pod.spec.runs_s * self._random.uniform(0.3, 1.0)
        world.changed(pod)
        self._changes(node)

    def _refuse(self, pod: Pod, message: str) -> None:
        """Say that no node was found, where that was not said before in the same words."""
        said = next(iter(pod.raw["status"].get("conditions", ())), {})
        if said.get("message") == message:
            return
        since = said.get("lastTransitionTime") or self._world.stamp()
        pod.raw["status"]["conditions"] = [_scheduled("False", "Unschedulable", message, since)]
        self._say(f"no node for {pod.name} ({pod.spec.queue}, {pod.spec.units} units): {message[:40]}")
        self._world.changed(pod)


def _scheduled(status: str, reason: str, message: str, since: str) -> dict[str, str]:
    return {
        "type": "PodScheduled",
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": since,
    }
