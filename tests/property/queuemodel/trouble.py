"""What troubles a history: the controller, the API server, nodes and kube-scheduler fail for a while."""

from random import Random
from typing import Any, Final

from .api import Troubles
from .cluster import Cluster
from .histories import Plan
from .process import Process
from .promises import Promises
from .world import World

WRITES: Final = {
    "lose_writes": ("lost", "unanswered"),
    "refuse_writes": ("refused",),
    "slow_writes": ("slow",),
}
"""What of `api.Troubles` each of these is."""


class Trouble:
    """Disturbs, and ends every disturbance when told.

    Args:
        plan: What there may be.
    """

    def __init__(
        self,
        plan: Plan,
        random: Random,
        world: World,
        cluster: Cluster,
        process: Process,
        promises: Promises,
    ) -> None:
        self._plan, self._random = plan, random
        self._world, self._cluster, self._process = world, cluster, process
        self._promises = promises
        self.late_s = 0.0
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
        if name in WRITES:
            for field in WRITES[name]:
                setattr(troubles, field, 0.0)
        elif name == "late_news":
            self.late_s = 0.0
        elif name == "silent_node":
            self._cluster.silent.clear()
        elif name == "slow_binding":
            self._cluster.slow_binding = 0.0
        elif name == "budget":
            world.budgets.clear()
        elif name == "reload":
            self._configure(configuration(self._plan))
        elif name == "block" and self._random.random() < 0.3:
            world.blocked.clear()

    @property
    def _troubles(self) -> Troubles:
        return self._process.api.troubles

    def _owner(self) -> str:
        return self._random.choice(self._plan.templates).owner or "nobody"

    def _restart(self) -> None:
        self._process.start()

    def _relist(self) -> None:
        self._process.relist()

    def _lose_writes(self) -> None:
        self._troubles.lost = self._random.choice((0.0, 0.3))
        self._troubles.unanswered = self._random.choice((0.2, 0.6))

    def _refuse_writes(self) -> None:
        self._troubles.refused = self._random.choice((0.2, 0.5, 1.0))

    def _slow_writes(self) -> None:
        self._troubles.slow = 0.7

    def _late_news(self) -> None:
        self.late_s = self._random.choice((0.5, 3.0))

    def _block(self) -> None:
        self._world.blocked.add(self._owner())

    def _budget(self) -> None:
        self._world.budgets.add(self._owner())

    def _evict(self) -> None:
        pods = [pod for pod in self._world.pods.values() if pod.node and not pod.ended]
        if pods:
            self._cluster.evict(self._random.choice(pods))

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
        queues[name] += self._random.choice(
            (", stop: Hold", ", strategy: StrictFIFO", ", weight: 3", ", nominalQuota: 8")
        )
        parts = dict(part.split(": ") for part in queues[name].split(", "))
        if "nominalQuota" in parts and "lendingLimit" in parts:
            parts["lendingLimit"] = str(min(int(parts["nominalQuota"]), int(parts["lendingLimit"])))
        queues[name] = ", ".join(f"{key}: {value}" for key, value in parts.items())
        self._configure(configuration(self._plan, queues))

    def _configure(self, text: str) -> None:
        self._promises.configured(text)
        self._process.configure(text)


def configuration(plan: Plan, queues: dict[str, str] | None = None) -> str:
    """Write the configuration of a history."""
    lines = [f"- {{name: {name}, {more}}}" for name, more in (queues or plan.queues).items()]
    return "queues:\n" + "\n".join(lines) + "\n" + plan.head
