"""Clusters of the model behind the queue: gated pods, admissions, take-backs, restarts, a lost Lease."""

from collections import Counter
from types import MappingProxyType
from typing import Any, Final

from allocator.names import POD_GANG, POD_GANG_SIZE
from allocator.place import place
from scheduler_plugin.cache.cards import build_cards
from scheduler_plugin.queue.cache.queued_pods import Phase, QueuedPod
from scheduler_plugin.queue.config.queues import parse_config
from scheduler_plugin.queue.controller import status
from scheduler_plugin.queue.controller.status import WaitReason
from tests.property.kernel.history import replayable
from tests.property.undercount.extender import ModelExtender
from tests.property.undercount.simulation import Simulation
from tests.property.undercount.world import ModelPod

from .pods import GatedPod, gate
from .replica import NAMESPACE_QUEUE, Replica, given_back

CONFIG: Final = """
queues:
  - {{name: a{a}}}
  - {{name: b{b}}}
mode: {mode}
reclaim: {reclaim}
bindWithin: {within}s
gangWithin: {within}s
keepRoomAfter: 720h
"""
ROUNDS: Final = 60
LARGEST: Final = 8
"""Units of the largest card in the model: a pod that asks for percent is held for so much of it."""


class QueuedExtender(ModelExtender):
    """kube-scheduler and the extender: a node that the queue named is the only one for a pod."""

    def candidates(self, pod: ModelPod) -> list[str]:
        assert isinstance(pod, GatedPod)
        names = super().candidates(pod)
        return [name for name in names if name == pod.only_node] if pod.only_node else names


class QueuedSimulation(Simulation):
    """One random history.

    Args:
        mode: `gate` or `batch`; empty: either.
        gangs: Share of the pods that belong to a gang of two.
        bare: No controller makes its pods again.
        tenants: Members of the namespace take admitted pods out of its queue.

    Attributes:
        served: Gangs of which both pods were bound at once.
    """

    rests_after = 200

    def __init__(
        self,
        seed: int,
        *,
        density: float = 1.0,
        percent: float = 0.0,
        mode: str = "",
        gangs: float = 0.0,
        bare: bool = False,
        tenants: bool = False,
    ) -> None:
        self.replicas: list[Replica] = []
        self.gangs = gangs
        self.bare = bare
        self.served: set[str] = set()
        self.given: set[str] = set()
        # Nobody else binds gated pods. At times all are slow, and much is admitted, not bound and not known.
        haste, quickness = (0.05, 0.15) if seed % 2 else (1.0, 1.0)
        more = MappingProxyType({"foreign": 0.0, "schedule": haste, "create": 2.0})
        super().__init__(seed, density=density, percent=percent, more=more)
        if seed % 3 == 0:
            self.shapes = [(("c", 8, "main"),), (("c", 5, "main"),)]
        self.extender = QueuedExtender(self.world, self.random)
        self.total = sum(card.size_units for node in self.nodes for card in node.daemon.cards)
        share = self.random.randint(self.total // 3, self.total - self.total // 3)
        limit = self.random.choice((self.total - share, 2))
        self.most = {"a": self.total, "b": self.total}
        quotas = {"a": "", "b": ""}
        if self.random.random() < 0.5:
            self.most["a"] = share + limit
            quotas["a"] = f", cohort: all, nominalQuota: {share}, borrowingLimit: {limit}"
            quotas["b"] = f", cohort: all, nominalQuota: {self.total - share}"
        text = CONFIG.format(
            **quotas,
            mode=mode or self.random.choice(("gate", "batch")),
            reclaim=self.random.choice(("wait", "evict")),
            within=self.random.choice((5, 20, 60)),
        )
        policy = self.random.choice(("fragmentation", "least-requested", "best-fit"))
        self.config = parse_config("model", text)
        for _ in range(2):
            self.replicas.append(Replica(self.world, self.random, self.config, policy))
        self.leader: Replica | None = None
        trouble = density * self.random.choice((1, 4, 10))
        own: tuple[tuple[float, Any], ...] = (
            (40 * quickness, self._queue_hears),
            (20, self._queue_decides),
            (24 * quickness, self._settle_write),
            (6, self._queue_ticks),
            (20, self._take_lease),
            (trouble, self._lose_lease),
            (trouble, self._restart_queue),
            (trouble, self._queue_relists),
        )
        own += ((trouble * 4, self._relabel),) if tenants else ()
        self.actions += own
        self.weights += [weight * self._pace() for weight, _ in own]

    # What happens.

    def _pass(self, seconds: float) -> None:
        super()._pass(seconds)
        for each in self.replicas:
            each.now = self.now
            each.settle_due()

    def _create(self) -> None:
        before = self.world.version
        super()._create()
        if self.world.version != before:
            pod = self.world.pod_events[-1].item
            queue, notes = self.random.choice("ab"), {}
            if self.gangs and self.random.random() < self.gangs:
                notes = {POD_GANG: self._some_gang(queue), POD_GANG_SIZE: "2"}
            gate(self.world, pod, queue, notes, owned=not self.bare)

    def _some_gang(self, queue: str) -> str:
        """A gang that lacks a pod as a rule, at times one that has all of its own."""
        pods = Counter(
            pod.gang for pod in self._gated_pods() if pod.queue == queue and pod.gang and not pod.ended
        )
        rare = self.random.random() < 0.05
        found = sorted(gang for gang, count in pods.items() if count < 2 or rare)
        return self.random.choice(found) if found else f"{queue}{self.world.version}"

    def _schedule(self) -> None:
        # kube-scheduler tries requeued pods too: the extender refuses them.
        ready = [pod for pod in self._gated_pods() if not (pod.gated or pod.node or pod.ended)]
        if not ready:
            return
        pod = self.random.choice(ready)
        known = self.extender.state.pods.get(pod.uid)
        if known is None or (known.is_gated and not known.is_requeued):
            return
        if self.extender.schedule(pod):
            self._say(f"commit {pod.name} {pod.uid} to {self.extender.bindings[-1].commitment.node}")
        elif self.random.random() < 0.3 and self.extender.closed_until is None:
            self._say(f"no node for {pod.name} {pod.uid}")
            self.world.change(pod.name, pod.uid, unschedulable=True)

    def _queue_hears(self) -> None:
        each = self.random.choice(self.replicas)
        deliver = self.random.choice((each.deliver_node, each.deliver_pod))
        for _ in range(self.random.choice((1, 4, 8))):
            deliver()

    def _queue_decides(self) -> None:
        for each in self.replicas:
            before = len(each.writes)
            each.decide()
            if each.open:
                self.given |= each.queue.charges.unplaced
            for write in each.writes[before:]:
                self._say(f"queue {self.replicas.index(each)} releases {write.uid}")

    def _queue_ticks(self) -> None:
        for each in self.replicas:
            each.tick()

    def _settle_write(self) -> None:
        writes = [(each, write) for each in self.replicas for write in each.writes]
        if writes:
            each, write = self.random.choice(writes)
            self._say(f"{write.request.verb} for {write.uid}")
            each.settle(write)

    def _take_lease(self) -> None:
        if self.leader is None:
            self.leader = self.random.choice(self.replicas)
            self._say(f"queue {self.replicas.index(self.leader)} leads")
            self.leader.lead()

    def _lose_lease(self) -> None:
        if self.leader is not None:
            self._say("the leader loses the Lease")
            self.leader.lose()
            self.leader = None

    def _restart_queue(self) -> None:
        each = self.random.choice(self.replicas)
        self._say(f"queue {self.replicas.index(each)} restarts")
        each.start()
        if each is self.leader:
            self.leader = None

    def _queue_relists(self) -> None:
        each = self.random.choice(self.replicas)
        self.random.choice((each.relist_nodes, each.relist_pods))()

    def _relabel(self) -> None:
        """Somebody takes a pod that was admitted out of the queue of its namespace."""
        pods = [
            pod
            for pod in self._gated_pods()
            if pod.queue == NAMESPACE_QUEUE and not pod.waits and not pod.ended
        ]
        if pods:
            pod = self.random.choice(pods)
            self._say(f"{pod.name} {pod.uid} loses its label")
            self.world.change(pod.name, pod.uid, label=self.random.choice(("", "nowhere")))

    # What must hold.

    def check(self) -> None:
        """As ever; and no more is admitted than the quotas and the cluster have.

        Without pods whose room was given to others, or taken by others where kube-scheduler chose the node.
        """
        super().check()
        self.given |= given_back(self.replicas)
        self.given -= {pod.uid for pod in self._gated_pods() if pod.waits}
        if not self.replicas or self.percent or any(node.clouded or node.amnesia for node in self.nodes):
            return
        used = dict.fromkeys(self.most, 0)
        for pod in self.world.pods.values():
            if isinstance(pod, GatedPod) and not pod.waits and not pod.ended and pod.uid not in self.given:
                used[pod.queue] += pod.units(LARGEST)
        if sum(used.values()) > self.total or used["a"] > self.most["a"]:
            self._fail(f"admitted are {used} units; allowed: {self.most} and {self.total} together")

    # Peace.

    def settle(self) -> None:
        """All hear everything, somebody leads, and everything that can be admitted is, and is bound."""
        for _ in range(ROUNDS):
            before = self.world.version
            self._take_lease()
            self._hear_all()
            for each in self.replicas:
                for write in list(each.writes):
                    each.settle(write, surely=True)
            self._queue_decides()
            self._queue_ticks()
            while self.extender.deliver_node() or self.extender.deliver_pod():
                pass
            for pod in self._unbound():
                known = self.extender.state.pods.get(pod.uid)
                if known is not None and not known.is_gated:
                    self.extender.schedule(pod)
            self.settle_bindings()
            writes = any(each.writes for each in self.replicas)
            opened = self.leader is not None and self.leader.open
            if opened and not writes and self.world.version == before:
                return
            self._pass(1.0)

    def rest(self) -> None:
        self.quiesce()

    def quiesce(self) -> None:
        """Nobody waits who could be admitted, and nobody was admitted who cannot be bound in the end."""
        for _ in range(ROUNDS if self.replicas else 0):
            self.settle()
            super().quiesce()
            self._hear_all()
            self._queue_decides()
            idle = self.leader is not None and self.leader.open and not self.leader.writes
            if idle and self._pauses():
                self._pass(30.0)
            elif idle and not any(self._has_room(pod) for pod in self._unbound()):
                bound = Counter(pod.gang for pod in self._gated_pods() if pod.node and not pod.ended)
                self.served |= {gang for gang, count in bound.items() if gang and count == 2}
                self._check_waiting()
                return
        super().quiesce()
        if self.replicas:
            self._fail(f"{[pod.uid for pod in self._unbound()]} were admitted and are not bound, with room")

    def _unbound(self) -> list[GatedPod]:
        """Pods that were admitted and have no node."""
        return [pod for pod in self._gated_pods() if not pod.waits and not pod.node and not pod.ended]

    def _gated_pods(self) -> list[GatedPod]:
        return [pod for pod in self.world.pods.values() if isinstance(pod, GatedPod)]

    def _pauses(self) -> bool:
        """Whether a pod waits only because it, or one like it, was refused a moment ago."""
        assert self.leader is not None
        gated = [pod for pod in self.leader.queue.queued_pods.values() if pod.phase is Phase.GATED]
        reasons = {status.explain_pod(self.leader.queue, pod, self.now).reason for pod in gated}
        return not reasons.isdisjoint({WaitReason.HELD, WaitReason.REFUSED})

    def _hear_all(self) -> None:
        for each in self.replicas:
            while each.deliver_node() or each.deliver_pod():
                pass

    def _check_waiting(self) -> None:
        assert self.leader is not None
        queue = self.leader.queue
        waiting = {
            pod.uid: pod for pod in self.world.pods.values() if isinstance(pod, GatedPod) and pod.waits
        }
        known = {
            queued_pod.uid: queued_pod
            for queued_pod in queue.queued_pods.values()
            if queued_pod.uid in waiting
        }
        if known.keys() != waiting.keys():
            self._fail(f"{sorted(waiting)} wait, the queue knows {sorted(known)}")
        for uid, queued_pod in known.items():
            why = status.explain_pod(queue, queued_pod, self.now)
            if why.reason is WaitReason.QUOTA:
                continue
            if why.reason is WaitReason.NEVER and self._exceeds_its_quota(queued_pod):
                continue
            if queued_pod.gang and why.reason in {WaitReason.GANG, WaitReason.ROOM, WaitReason.NEVER}:
                # Its others are missing, or have no room.
                continue
            if why.reason not in {WaitReason.ROOM, WaitReason.NEVER} or self._has_room(waiting[uid]):
                self._fail(f"{uid} {waiting[uid].containers} waits, {why.reason}: {why.message}")

    def _exceeds_its_quota(self, pod: QueuedPod) -> bool:
        """Whether a pod alone is more than its queue can ever have."""
        assert self.leader is not None
        assert pod.requirements is not None
        return (
            self.leader.queue.quota_usage.compute_least_units(pod.requirements)
            > self.most[pod.queue_info.queue]
        )

    def _has_room(self, pod: GatedPod) -> bool:
        nodes = self.extender.state.nodes
        return any(
            place(build_cards(nodes, row), pod.request, "least-used") is not None
            for name, row in nodes.rows.items()
            if pod.only_node in {"", name}
        )

    def end(self) -> None:
        self.serve_all()
        super().end()

    def serve_all(self) -> None:
        """Pods end until nobody waits but those that fit on no card at all."""
        for _ in range(2 * len(self.world.pods) + 2):
            self.quiesce()
            bound = [pod for pod in self.world.pods.values() if pod.node or pod.ended]
            for pod in bound:
                self.world.delete(pod.name, pod.uid)
            if not bound:
                break
        self.quiesce()
        for pod in self.world.pods.values():
            if not isinstance(pod, GatedPod) or not self._has_room(pod) or pod.gang:
                continue
            if pod.units(LARGEST) <= self.most[pod.queue]:
                self._fail(f"{pod.uid} was never served")


@replayable
def run(seed: int, steps: int, **options: Any) -> QueuedSimulation:
    """Run one history.

    Raises:
        ViolationError: something does not hold.
    """
    simulation = QueuedSimulation(seed, **options)
    simulation.play(steps)
    return simulation
