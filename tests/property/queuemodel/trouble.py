"""What troubles a history: the controller, the API server, nodes and kube-scheduler fail for a while."""

from collections.abc import Callable
from random import Random
from typing import Any, Final

from allocator.names import POD_REQUEUED, QUEUE_NAME

from .api import Troubles
from .binding import Scheduler
from .cluster import Cluster
from .histories import OF_SCHEDULER, Plan
from .process import Process
from .promises import Promises
from .world import Pod, World

WRITES: Final = {
    "lose_writes": ("lost", "unanswered"),
    "refuse_writes": ("refused",),
    "slow_writes": ("slow",),
}
"""What of `api.Troubles` each of these is."""

RELOADS: Final = (
    ", stopPolicy: Hold",
    ", stopPolicy: HoldAndDrain",
    ", queueingStrategy: StrictFIFO",
    ", weight: 3",
    ", nominalQuota: 8",
    "",
)
"""What is new of a queue; empty: it is gone."""


class Trouble:
    """Disturbs, and ends every disturbance when told.

    Args:
        scheduler: Binds pods of batch mode.
    """

    def __init__(
        self,
        plan: Plan,
        random: Random,
        world: World,
        cluster: Cluster,
        process: Process,
        promises: Promises,
        scheduler: Scheduler | None = None,
    ) -> None:
        self._plan, self._random = plan, random
        self._world, self._cluster, self._process = world, cluster, process
        self._promises = promises
        self._scheduler = scheduler
        self.late_s = self.scheduler_late_s = 0.0
        self.text = configuration(plan)
        self._until: dict[str, float] = {}

    def act(self) -> str:
        """Do something, or end something; what, empty for nothing."""
        now = self._world.now
        for name in [name for name, until in self._until.items() if until <= now]:
            self._end(name)
        if not self._plan.troubles or self._random.random() > 0.15:
            return ""
        name = self._random.choice(self._plan.troubles)
        self._until[name] = now + self._random.choice((3.0, 20.0, 60.0))
        getattr(self, f"_{name}")()
        return name

    def end_all(self) -> None:
        """Nothing is disturbed any more."""
        for name in list(self._until):
            self._end(name)
        world = self._world
        world.budgets.clear()
        world.cordoned.clear()
        for name in world.nodes:
            world.publish(name)

    def _end(self, name: str) -> None:
        del self._until[name]
        world, troubles = self._world, self._process.api.troubles
        for field in WRITES.get(name, ()):
            setattr(troubles, field, 0.0)
        self._end_of_scheduler(name)
        match name:
            case "late_news":
                self.late_s = 0.0
            case "die":
                self._process.api.dies_after = 0
            case "api_clock":
                world.skew_s = 0.0
            case "silent_node":
                self._cluster.silent.clear()
            case "slow_binding":
                self._cluster.slow_binding = 0.0
            case "budget":
                world.budgets.clear()
            case "reload" | "switch_mode":
                self.configure(configuration(self._plan))
            case "block" if self._random.random() < 0.3:
                world.blocked.clear()

    def _end_of_scheduler(self, name: str) -> None:
        if name == "late_scheduler":
            self.scheduler_late_s = 0.0
        elif self._scheduler is not None and name in OF_SCHEDULER:
            self._scheduler.lost = self._scheduler.unanswered = 0.0
            self._scheduler.api.dies_after = 0

    @property
    def _troubles(self) -> Troubles:
        return self._process.api.troubles

    def _owner(self) -> str:
        return self._random.choice(self._plan.templates).owner or "nobody"

    def _restart(self) -> None:
        self._process.start()

    def _die(self) -> None:
        """End the process between two of its writes, if it makes so many."""
        self._process.api.dies_after = self._random.randint(1, 4)

    def _relist(self) -> None:
        self._process.relist()

    def _lose_writes(self) -> None:
        self._troubles.lost = self._random.choice((0.0, 0.3))
        self._troubles.unanswered = self._random.choice((0.2, 0.6))

    def _refuse_writes(self) -> None:
        self._troubles.refused = self._random.choice((0.2, 0.5, 1.0))

    def _forbid(self) -> None:
        """The API server refuses to let one pod go from now on, of a gang if there is one."""
        waits = [pod for pod in self._world.pods.values() if pod.waits]
        pods = [pod for pod in waits if pod.gang] or waits
        if pods:
            self._world.forbidden.add(self._random.choice(pods).uid)

    def _slow_writes(self) -> None:
        self._troubles.slow = 0.7

    def _late_news(self) -> None:
        self.late_s = self._random.choice((0.5, 3.0))

    def _late_scheduler(self) -> None:
        self.scheduler_late_s = self._random.choice((0.5, 3.0))

    def _restart_scheduler(self) -> None:
        if self._scheduler is not None:
            self._scheduler.start()

    def _kill_scheduler(self) -> None:
        """End the scheduler between two of its Bindings, if it makes so many."""
        if self._scheduler is not None:
            self._scheduler.api.dies_after = self._random.randint(1, 4)

    def _lose_commits(self) -> None:
        if self._scheduler is not None:
            self._scheduler.lost = self._random.choice((0.0, 0.3))
            self._scheduler.unanswered = self._random.choice((0.2, 0.6))

    def _api_clock(self) -> None:
        """The API server's clock jumps, a day ahead or back, and comes back."""
        self._world.skew_s = self._random.choice((-86_400.0, 86_400.0))

    def _block(self) -> None:
        self._world.blocked.add(self._owner())

    def _budget(self) -> None:
        self._world.budgets.add(self._owner())

    def _evict(self) -> None:
        pods = [pod for pod in self._world.pods.values() if pod.node and not pod.ended]
        if pods:
            self._cluster.evict(self._random.choice(pods))

    def _ungate(self) -> None:
        """Somebody lets a pod go by hand, past the queue."""
        pods = [pod for pod in self._world.pods.values() if pod.waits and not pod.ending]
        if pods:
            self._let_go(self._random.choice(pods))

    def _let_go(self, pod: Pod) -> None:
        pod.raw["spec"]["schedulingGates"] = []
        pod.raw["metadata"]["annotations"].pop(POD_REQUEUED, None)
        pod.loose = self._world.now
        self._world.changed(pod)

    # Tenants. They do it to pods of the queue that their namespace names: a new process knows no other one.

    def _escape(self) -> None:
        """Somebody takes a pod that waits out of its queue, and then lets it go."""
        self._take_out(lambda pod: pod.waits and not pod.ending and not pod.spec.batch, self._let_go)

    def _relabel(self) -> None:
        """Somebody takes a pod that does not wait out of its queue."""
        self._take_out(lambda pod: not pod.waits and not pod.ended, lambda _: None)

    def _take_out(self, may: Callable[[Pod], bool], then: Callable[[Pod], None]) -> None:
        own = self._plan.namespace_queue
        pods = [pod for pod in self._world.pods.values() if pod.spec.queue == own and may(pod)]
        if pods:
            pod = self._random.choice(pods)
            pod.raw["metadata"]["labels"] = self._random.choice(({}, {QUEUE_NAME: "nowhere"}))
            self._world.changed(pod)
            then(pod)

    def _mark(self) -> None:
        """Somebody marks a pod that was admitted as one that waits again."""
        pods = [
            pod
            for pod in self._world.pods.values()
            if not pod.waits and not pod.node and not pod.ending and not pod.ended and not pod.spec.claims
        ]
        if pods:
            pod = self._random.choice(pods)
            pod.raw["metadata"]["annotations"][POD_REQUEUED] = "true"
            self._world.changed(pod)

    def _silent_node(self) -> None:
        node = self._random.choice(sorted(self._world.nodes))
        self._cluster.silent[node] = self._world.now + self._random.choice((5.0, 40.0))

    def _cordon(self) -> None:
        world, node = self._world, self._random.choice(sorted(self._world.nodes))
        (world.cordoned.discard if node in world.cordoned else world.cordoned.add)(node)
        world.publish(node)

    def _slow_binding(self) -> None:
        self._cluster.slow_binding = 0.6

    def _reload(self) -> None:
        queues: dict[str, Any] = dict(self._plan.queues)
        name = self._random.choice(sorted(queues))
        change = self._random.choice(RELOADS)
        if not change:
            # Its pods wait until it is back.
            del queues[name]
            self.configure(configuration(self._plan, queues))
            return
        queues[name] += change
        parts = dict(part.split(": ") for part in queues[name].split(", "))
        if "nominalQuota" in parts and "lendingLimit" in parts:
            parts["lendingLimit"] = str(min(int(parts["nominalQuota"]), int(parts["lendingLimit"])))
        queues[name] = ", ".join(f"{key}: {value}" for key, value in parts.items())
        self.configure(configuration(self._plan, queues))

    def _switch_mode(self) -> None:
        """Batch mode is switched off, or on, while pods of both kinds wait."""
        on = "mode: batch" in self._plan.head
        before, after = ("mode: batch", "mode: gate") if on else ("mode: gate", "mode: batch")
        self.configure(configuration(self._plan).replace(before, after))

    def configure(self, text: str) -> None:
        self._promises.configured(text)
        self._process.configure(text)


def configuration(plan: Plan, queues: dict[str, str] | None = None) -> str:
    lines = [f"- {{name: {name}, {more}}}" for name, more in (queues or plan.queues).items()]
    return "queues:\n" + "\n".join(lines) + "\n" + plan.head
