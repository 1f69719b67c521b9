"""One process of `gpupack queue` in the model: the shipped controller, queue, feed and writer."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from allocator.claims import ClaimObject
from allocator.names import BATCH_SCHEDULER
from kubeapi.objects import Node, Pod, PodGroup
from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.cache.watcher import Watcher
from scheduler_plugin.queue.config.queues import QueueConfig, parse_config
from scheduler_plugin.queue.controller.controller import Controller
from scheduler_plugin.queue.controller.watching import BatchPodSink, QueueFeed, WholePod
from scheduler_plugin.queue.controller.writer import PodWriter
from scheduler_plugin.queue.scheduler.admission import AdmittedWorkload
from scheduler_plugin.queue.scheduler.queue import Queue, QueueChargeRules
from scheduler_plugin.queue.scheduler.reclaim import ReclaimPlan
from scheduler_plugin.scheduling.cluster_policies import ClusterPolicies
from tests.property.kernel.loop import TaskSet

from .api import WRITE_S, Api
from .binding import Scheduler
from .world import NEW_YEAR, LateWatch, World


@dataclass(slots=True)
class Said:
    """One Event that the controller has recorded."""

    uid: str
    reason: str
    message: str
    at: float


@dataclass(slots=True)
class Counted:
    """How often the controller did what costs something."""

    of: Counter[str] = field(default_factory=Counter)


class Process:
    """A process: it begins with complete lists, and waits until what the one before sent is known.

    Args:
        reclaimed: Told of each round of evictions, before anything of it is done, and whether it is the
            only one.
        scheduler: Binds pods of batch mode; None: kube-scheduler binds them all.

    Attributes:
        admitted: Told of each release, and for which nodes there were others in the same round.
        began: When the process that runs now began, seconds.
        said: Events about pods, since the history began.
        counted: How often what was done, likewise.
    """

    def __init__(
        self,
        world: World,
        api: Api,
        config: str,
        policy: str,
        reclaimed: Callable[[Queue, ReclaimPlan, bool], None],
        scheduler: Scheduler | None = None,
    ) -> None:
        self.world, self.api = world, api
        self.watch = LateWatch(world.events)
        self.config: QueueConfig = parse_config("model", config)
        self.policy = policy
        self.scheduler = scheduler
        self.said: list[Said] = []
        self.counted: Counter[str] = Counter()
        self._reclaimed = reclaimed
        self.admitted: Callable[[AdmittedWorkload, Sequence[str]], None] = lambda _release, _taken: None
        self._task: asyncio.Task[None] | None = None
        self._opens: asyncio.TimerHandle | None = None
        api.die = self.start
        self.start()

    def start(self) -> None:
        """Begin anew; requests of the process before may still take effect."""
        loop = asyncio.get_running_loop()
        if self._task is not None:
            self._task.cancel()
        if self._opens is not None:
            self._opens.cancel()
        self.api.cut()
        self.began = loop.time()
        self.open = False
        self.state = ClusterState(rules=QueueChargeRules())
        self.queue = Queue(self.config, self.state, ClusterPolicies(self.policy), wall=NEW_YEAR.timestamp())
        self.queue.job_stages.set_jobs([])
        client: Any = None
        self.watcher = Watcher(client, self.state, loop.time, 180.0)
        watcher = self.watcher
        self._sinks: dict[type, Any] = {
            Node: watcher.node_sink,
            Pod: watcher.pod_sink,
            ClaimObject: watcher.claim_sink,
            PodGroup: watcher.groups,
        }
        QueueFeed(self.queue, watcher, loop.time)
        term = object()
        self._term = term
        writer = PodWriter(self.api, lambda: self._term is term, WRITE_S, uniform=self.api.random.uniform)
        self.specs = BatchPodSink(self.queue, lambda: None)
        batch = self.scheduler.connect(lambda: self._term is term) if self.scheduler is not None else None
        self.controller = Controller(self.queue, writer, self, loop.time, lambda: self.open, batch=batch)
        self.controller._writes, self.controller._doubts = TaskSet(), TaskSet()
        self.watcher.changed.connect(self.controller.record_change)
        self.relist()
        self._count()
        self._task = loop.create_task(self.controller.run())
        self._task.add_done_callback(_tell)
        wait_s = WRITE_S * (1 if self.scheduler is None else 2)
        self._opens = loop.call_later(wait_s, self._begin)

    def _begin(self) -> None:
        """What the process before had sent is known now."""
        self.relist()
        self.open = True
        self.controller.record_change()

    def relist(self) -> None:
        world = self.world
        self.watcher.node_sink.replace(list(world.node_items.values()), str(world.version))
        self.watcher.pod_sink.replace([pod.lite for pod in world.pods.values()], str(world.version))
        self.watcher.claim_sink.replace(list(world.claims.values()), str(world.version))
        self.watcher.groups.replace(list(world.groups.values()), str(world.version))
        self.specs.replace([_whole(pod.lite) for pod in world.pods.values() if pod.spec.batch], "")
        self.queue.set_namespaces({"default": world.namespace_labels})
        self.watch.skip()

    def hear(self, until: float) -> None:
        for event in self.watch.read_until(until):
            self._sinks[type(event.item)].event(event.kind, event.item, str(event.version))
            if isinstance(event.item, Pod) and event.item.spec.scheduler_name == BATCH_SCHEDULER:
                gone = event.kind == "DELETED" or event.item.spec.node_name
                self.specs.event("DELETED" if gone else "MODIFIED", _whole(event.item), "")

    @property
    def knows_all(self) -> bool:
        """Whether it decides, has heard everything, and nothing that it writes is under way."""
        return not self.watch.unread and self.knows_what_runs

    @property
    def knows_what_runs(self) -> bool:
        """Whether it decides, has heard of all but newcomers that wait, and nothing of it is under way."""
        waits = all(event.kind == "ADDED" and event.waits for event in self.watch.unread)
        still = not self.controller._doubts and (self.scheduler is None or self.scheduler.is_still)
        return self.open and waits and still and not self.api.under_way and not self.controller._writes

    def configure(self, config: str) -> None:
        self.config = parse_config("model", config)
        self.queue.configure(self.config)
        self.controller.record_change()

    def event(self, ref: Any, type_: str, reason: str, message: str) -> None:
        """Take an Event about a pod, as the recorder does."""
        del type_
        self.counted["event"] += 1
        self.said.append(Said(ref.uid, reason, message, self.world.now))

    def _count(self) -> None:
        """Count what costs something, and see each round of evictions."""
        for owner, method, counted in (
            (self.queue, "admit_workloads", "decide"),
            (self.controller.explainer, "explain_pod", "explain"),
        ):
            setattr(owner, method, self._counting(getattr(owner, method), counted))
        admit = self.queue.admit_workloads

        def admitting(now: float) -> Iterator[AdmittedWorkload]:
            taken: list[str] = []
            for release in admit(now):
                self.admitted(release, taken)
                taken += [member.node for member in release.members]
                yield release

        self.queue.admit_workloads = admitting  # type: ignore[method-assign]
        reclaimer = self.controller._reclaimer
        find = reclaimer.find_plans

        def seen(now: float) -> list[ReclaimPlan]:
            self.counted["reclaim"] += 1
            under_way = len(reclaimer._borrowed.pending)
            found = find(now)
            for each in found:
                self._reclaimed(self.queue, each, under_way + len(found) == 1)
            return found

        reclaimer.find_plans = seen  # type: ignore[method-assign]

    def _counting(self, work: Callable[..., Any], counted: str) -> Callable[..., Any]:
        def count(*args: Any, **named: Any) -> Any:
            self.counted[counted] += 1
            return work(*args, **named)

        return count


def _whole(pod: Pod) -> WholePod:
    """A pod as the watch of those that wait for batch mode brings it."""
    return WholePod(
        metadata=pod.metadata, spec={"schedulerName": BATCH_SCHEDULER, "containers": [{"name": "main"}]}
    )


def _tell(task: asyncio.Task[None]) -> None:
    """Tell the loop at once that a controller has ended by itself."""
    if not task.cancelled() and (error := task.exception()) is not None:
        task.get_loop().call_exception_handler({"message": "the controller ended", "exception": error})
