"""One random history of the queue: trouble first, then calm, then nothing happens."""

import asyncio
from dataclasses import replace

from scheduler_plugin.queue.scheduler.queue import Queue
from scheduler_plugin.queue.scheduler.reclaim import ReclaimPlan
from tests.property.kernel.history import History, ViolationError, replayable
from tests.property.kernel.loop import run_virtually

from .advice import Adviser
from .api import Api
from .binding import Scheduler
from .cluster import Cluster
from .histories import GANG_WITHIN_S, KINDS, Plan
from .process import Process
from .promises import Bounds, Promises
from .trouble import Trouble, configuration
from .world import Spec, World

CALM_STEP_S = 2.0
SETTLED_S = 40.0
"""Seconds without a change after which the work of a process is counted."""

MINUTE_S = 60.0
MOST_A_MINUTE = {"decide": 30, "reclaim": 30, "event": 10, "asked": 10}
"""What may be done in a minute in which nothing changes."""

EXPLAINED = 4
"""How often it is found out in such a minute why a pod waits."""


class Simulation(History):
    """A history.

    Args:
        kind: Name of one of `histories.KINDS`.
    """

    def __init__(self, kind: str, seed: int) -> None:
        super().__init__(f"{kind} {seed}")
        self.plan: Plan = KINDS[kind](self.random)
        self.world = World(
            self.plan.nodes,
            binds=self.plan.binds,
            labels=self.plan.labels,
            namespace_queue=self.plan.namespace_queue,
        )
        self.cluster = Cluster(self.world, self.random, self._say)
        self.cluster.wrong_clocks = set(self.plan.wrong_clocks)

    @property
    def now(self) -> float:
        return self.world.now

    def run(self) -> None:
        """Run it.

        Raises:
            ViolationError: a promise is broken.
        """
        with self.telling():
            run_virtually(self._run())

    async def _run(self) -> None:
        plan, world = self.plan, self.world
        self.loop = asyncio.get_running_loop()
        self.loop.set_exception_handler(self._failed)
        self.failure: BaseException | None = None
        text = configuration(plan)
        self.api = Api(world, self.random, self._wrote, self.cluster.evict)
        self.scheduler = self._make_scheduler() if plan.binds else None
        self.cluster.extender = self.scheduler
        self.process = Process(world, self.api, text, plan.policy, self._reclaimed, self.scheduler)
        bounds = Bounds(GANG_WITHIN_S + 15.0, self._oldest_s())
        self.promises = Promises(world, self.cluster, self.process, bounds)
        self.promises.configured(text)
        self.process.admitted = self.promises.admitted
        self.trouble = Trouble(
            plan, self.random, world, self.cluster, self.process, self.promises, self.scheduler
        )
        for _ in range(plan.steps):
            if name := self.trouble.act():
                self._say(name)
            self._create(plan.rate)
            await self._step(self.random.choice((0.0, 0.2, 1.0, 3.0)))
            self.promises.observe()
        if plan.early is not None:
            await self._lose_a_race(plan.early)
        await self._calm()
        self.promises.check_status()
        await self._rest()
        await self._finish()

    def _make_scheduler(self) -> Scheduler:
        api = Api(self.world, self.random, self._wrote, self.cluster.evict, self.cluster.run)
        api.troubles = self.api.troubles
        return Scheduler(self.world, api, self.plan.policy, self.random)

    async def _lose_a_race(self, spec: Spec) -> None:
        """A pod comes while there is room, and kube-scheduler does not find it at first."""
        self._empty()
        for _ in range(40):
            await self._step(1.0)
            self._empty()
        self.world.blocked.add(spec.owner)
        self._make(spec)
        for number in range(15):
            self._create(self.plan.rate * (number > 2))
            await self._step(1.0)
            self.promises.observe()
        self.world.blocked.clear()

    def _empty(self) -> None:
        """All pods are gone, and nobody makes them again."""
        for pod in list(self.world.pods.values()):
            self.world.delete(pod)
        self.cluster.forget()

    async def _calm(self) -> None:
        """Trouble ends; pods may still come."""
        self.trouble.end_all()
        self._say("calm")
        for spec in self.plan.late:
            self._make(spec)
            await self._step(1.0)
        self.promises.begin_calm()
        adviser = self._make_adviser() if self.plan.is_advised else None
        until = self.world.now + self.plan.calm_s
        while self.world.now < until:
            self._create(self.plan.calm_rate * CALM_STEP_S)
            await self._step(CALM_STEP_S)
            if adviser is not None:
                adviser.act()
            if self.steps % 2 == 0:
                self.promises.observe()

    def _make_adviser(self) -> Adviser:
        if self.plan.stopped:
            name = self.plan.stopped
            queues = {**self.plan.queues, name: f"{self.plan.queues[name]}, stopPolicy: Hold"}
            self.trouble.configure(configuration(self.plan, queues))
        return Adviser(
            self.world,
            self.random,
            self.process,
            self.promises,
            self.cluster.evict,
            lambda: self.process.knows_all and self.cluster.is_still,
            self._say,
        )

    async def _rest(self) -> None:
        """While nothing changes, little is done."""
        quiet_since, seen, begun = self.world.now, self.world.version, None
        before: dict[str, int] = {}
        for _ in range(150):
            await self._step(CALM_STEP_S)
            if self.world.version != seen:
                quiet_since, seen, begun = self.world.now, self.world.version, None
            elif begun is None and self.world.now - quiet_since >= SETTLED_S:
                begun, before = self.world.now, self._counted()
            elif begun is not None and self.world.now - begun >= MINUTE_S:
                self._judge(before)
                return

    def _counted(self) -> dict[str, int]:
        bindings = self.scheduler.api.sent if self.scheduler is not None else 0
        return {**self.process.counted, "asked": self.api.sent + bindings}

    def _judge(self, before: dict[str, int]) -> None:
        did = {name: count - before.get(name, 0) for name, count in self._counted().items()}
        waits = sum(pod.waits for pod in self.world.pods.values())
        most = {**MOST_A_MINUTE, "explain": EXPLAINED * waits}
        much = {name: count for name, count in did.items() if count > most[name]}
        if much:
            self._fail(f"in a minute in which nothing changed, with {waits} waiting pods: {much}")

    async def _finish(self) -> None:
        """All pods go; nothing is left of them."""
        world, queue = self.world, self.process.queue
        for _ in range(60):
            self._empty()
            await self._step(1.0)
        for name in world.nodes:
            world.publish(name)
        await self._step(5.0)
        left = {
            "pods": sorted(queue.queued_pods),
            "units": {
                queue_state.name: queue_state.units for queue_state in queue.queues if queue_state.units
            },
            "kept": queue.capacity.reservations.workload_uids,
            "quota kept": dict(queue.queues.reserved_quota),
            "unplaced": sorted(queue.charges.unplaced),
            "takes": [
                name for name, node in queue.state.node_records.items() if node.assumed or node.tombstones
            ],
            "assumed": sorted(self.scheduler.assumed) if self.scheduler is not None else [],
            "specs": sorted(queue.batch._unsupported),
            "unknown queues": [queue_state.name for queue_state in queue.queues if queue_state.form is None],
            "waiting": [queue_state.name for queue_state in queue.queues if len(queue_state.waiting)],
            "claims": [*queue.claimed._charged, *queue.claimed._by_source, *queue.claimed.pod_uids],
            "told": sorted(self.process.controller.explainer._reported),
        }
        if any(left.values()):
            self._fail(f"all pods are gone, and of them is left {left}")

    # Steps.

    async def _step(self, seconds: float) -> None:
        """Let some time pass, and everybody act."""
        self.steps += 1
        await asyncio.sleep(seconds)
        self.world.now = self.loop.time()
        self.cluster.act()
        self.process.hear(self.world.now - self.trouble.late_s)
        if self.scheduler is not None:
            self.scheduler.hear(self.world.now - self.trouble.scheduler_late_s)
        if self.failure is not None:
            raise self.failure

    def _create(self, rate: float) -> None:
        """Let pods come, if not too many wait."""
        while rate > 0 and self.random.random() < rate:
            rate -= 1
            if sum(pod.waits for pod in self.world.pods.values()) < self.plan.most:
                self._make(self.random.choice(self.plan.templates))

    def _make(self, spec: Spec) -> None:
        gang = f"{spec.gang}{self.world.born}" if spec.gang else ""
        if spec.firsts:
            pod = self.world.create_job(spec)
        else:
            for number in range(spec.size or 1):
                other = spec.halves and number % 2 == 1
                pod = self.world.create(replace(spec, batch=not spec.batch) if other else spec, gang)
        what = ", ".join(filter(None, (spec.queue, f"{spec.units} units", gang, pod.job)))
        self._say(f"{pod.name} comes ({what})")

    def _oldest_s(self) -> float:
        """How long the oldest pod of a queue waits at most that its own quota covers."""
        runs_s = self.plan.runs_s
        if runs_s > 1e9 or self.plan.kind != "load":
            return float("inf")
        queues = len(self.plan.queues)
        return max(30.0, runs_s) + (1 + queues) * 2 * runs_s + 60.0

    def _wrote(self, verb: str, pod: object) -> None:
        self.world.now = self.loop.time()
        self.promises.wrote(verb, pod)  # type: ignore[arg-type]

    def _reclaimed(self, queue: Queue, reclaim: ReclaimPlan, alone: bool) -> None:
        self.world.now = self.loop.time()
        self._say(f"evict {[victim.uid for victim in reclaim.victims]} for {reclaim.uid}")
        self.promises.reclaimed(queue, reclaim, alone=alone)

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        found = context.get("exception")
        if not isinstance(found, ViolationError):
            found, cause = ViolationError(f"{context.get('message')}: {found!r}"), found
            found.__cause__ = cause if isinstance(cause, BaseException) else None
        self.failure = self.failure or found


@replayable
def run(kind: str, seed: int) -> int:
    """Run one history; the number of its steps.

    Raises:
        ViolationError: a promise is broken.
    """
    simulation = Simulation(kind, seed)
    simulation.run()
    return simulation.steps
