"""One replica of `gpupack queue` in the model: the shipped queue, feed and writer; requests late or lost."""

import types
from collections.abc import Coroutine, Generator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import msgspec

from allocator.names import QUEUE_NAME
from kubeapi.errors import Invalid, NotFound, Unreachable
from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.cache.watcher import Watcher
from scheduler_plugin.queue.cache.queued_pods import QueuedPod, RequeueWrite
from scheduler_plugin.queue.config.queues import QueueConfig
from scheduler_plugin.queue.controller.watching import QueueFeed
from scheduler_plugin.queue.controller.writer import PodWriter, WriteOutcome, WriteResult
from scheduler_plugin.queue.scheduler.queue import Queue, QueueChargeRules
from scheduler_plugin.queue.scheduler.reclaim import Reclaimer
from scheduler_plugin.scheduling.cluster_policies import ClusterPolicies
from tests.api_requests import ApiRequests
from tests.property.kernel.api import Watch
from tests.property.undercount.world import UNIT_MIB, World

from .pods import find, take_patch

WRITE_S: Final = 5.0
"""A request without an answer takes effect within this time or never."""

NAMESPACE_QUEUE: Final = "a"
"""The queue that the label of the pods' namespace names."""


@dataclass(frozen=True)
class Request:
    """What the writer waits for: the answer to a request, or time."""

    verb: str
    path: str = ""
    body: Any = None
    until: float = 0.0


@types.coroutine
def _wait(request: Request) -> Generator[Request, Any, Any]:
    return (yield request)


@dataclass(eq=False)
class Write:
    """A writer at work; `work` is None once its process is gone: the request may still take effect."""

    work: Coroutine[Any, Any, WriteResult] | None
    uid: str
    request: Request
    releases: bool = True


class Replica(ApiRequests):
    """A process.

    Attributes:
        leads_since: When it took the Lease, None while it does not have it.
        open: It decides: the writes of the leader before can have no effect any more and are all known.
    """

    def __init__(self, world: World, random: Random, config: QueueConfig, policy: str) -> None:
        super().__init__()
        self.world, self.random, self.config, self.policy = world, random, config, policy
        self.node_watch, self.pod_watch = Watch(world.node_events), Watch(world.pod_events)
        self.now = 0.0
        self.writes: list[Write] = []
        self.start()

    def start(self) -> None:
        """Begin with an empty memory and complete lists; requests of the one before may still land."""
        for write in self.writes:
            write.work = None
        self.leads_since: float | None = None
        self.open = False
        self.state = ClusterState(UNIT_MIB, rules=QueueChargeRules())
        self.queue = Queue(self.config, self.state, ClusterPolicies(self.policy))
        client: Any = None
        self.watcher = Watcher(client, self.state, lambda: self.now, 180.0)
        QueueFeed(self.queue, self.watcher, lambda: self.now)
        self.reclaimer = Reclaimer(self.queue)
        self.writer = PodWriter(self, lambda: self.leads_since is not None, WRITE_S, self._sleep)
        self.queue.set_namespaces({"default": {QUEUE_NAME: NAMESPACE_QUEUE}})
        self.relist_nodes()
        self.relist_pods()

    # What it hears.

    def relist_nodes(self) -> None:
        self.watcher.node_sink.replace([*self.world.nodes.values()], str(self.world.version))
        self.node_watch.skip()

    def relist_pods(self) -> None:
        pods = [pod.lite for pod in self.world.pods.values()]
        self.watcher.pod_sink.replace(pods, str(self.world.version))
        self.pod_watch.skip()

    def deliver_node(self) -> bool:
        event = self.node_watch.read()
        if event is not None:
            self.watcher.node_sink.event(event.kind, event.item, str(event.version))  # type: ignore[arg-type]
        return event is not None

    def deliver_pod(self) -> bool:
        event = self.pod_watch.read()
        if event is not None:
            self.watcher.pod_sink.event(event.kind, event.item.lite, str(event.version))  # type: ignore[arg-type]
        return event is not None

    # What it does.

    def lead(self) -> None:
        self.leads_since = self.now

    def lose(self) -> None:
        self.leads_since, self.open = None, False

    def decide(self) -> None:
        """Open the term when it is time; admit what can be admitted, and begin to write it."""
        if self.leads_since is None:
            return
        if not self.open:
            if self.now < self.leads_since + WRITE_S:
                return
            self.relist_pods()
            self.open = True
        for admitted in self.queue.admit_workloads(self.now):
            for member in admitted.members:
                pod = self.queue.queued_pods[member.uid]
                node = member.node if self.config.mode == "batch" else ""
                self._begin(
                    self.writer.admit_pod(pod, node, self.queue.list_planned_cards(member.uid)), member.uid
                )

    def tick(self) -> None:
        """Take back what is late, and evict for lenders."""
        if not self.open:
            return
        backs = self.queue.find_requeues(self.now)
        for back in backs:
            if back.write is RequeueWrite.MARK:
                self._begin(self.writer.requeue_pod(back.queued_pod), back.queued_pod.uid, releases=False)
        gone = [back.queued_pod for back in backs if back.removes]
        gone += [victim for each in self.reclaimer.find_plans(self.now) for victim in each.victims]
        for pod in gone:
            self._begin(self.writer.evict_pod(pod, lambda: True), pod.uid, releases=False)

    def _begin(self, work: Coroutine[Any, Any, WriteResult], uid: str, *, releases: bool = True) -> None:
        write = Write(work, uid, Request(""), releases)
        self.writes.append(write)
        self._go_on(write, None)

    def _go_on(self, write: Write, answer: bytes | Exception | None) -> None:
        """Let a writer go on with an answer, to its next request or its end."""
        assert write.work is not None
        try:
            if isinstance(answer, Exception):
                write.request = write.work.throw(answer)
            else:
                write.request = write.work.send(answer)
        except StopIteration as ended:
            self.writes.remove(write)
            if ended.value.written is not WriteOutcome.DONE and write.releases:
                self.queue.record_refused_admission(write.uid, self.now, ended.value.why)

    # The API server, as the writer sees it.

    async def ask(self, verb: str, path: str, body: Any, timeout_s: float) -> bytes:
        return bytes(await _wait(Request(verb, path, body, self.now + timeout_s)))

    async def _sleep(self, seconds: float) -> None:
        await _wait(Request("sleep", until=self.now + seconds))

    def settle(self, write: Write, *, surely: bool = False) -> None:
        """A request takes effect or never does; its answer arrives or does not."""
        if write not in self.writes:
            return
        lost = not surely and self.random.random() < 0.1
        heard = surely or (not lost and self.random.random() < 0.85)
        answer: bytes | Exception = b"" if lost else self._carry_out(write.request)
        if write.work is None:
            self.writes.remove(write)
        elif write.request.verb == "sleep" or heard:
            self._go_on(write, answer)
        else:
            self._go_on(write, Unreachable("no answer"))

    def settle_due(self) -> None:
        """No request outlives its time."""
        for write in [write for write in self.writes if write.request.until <= self.now + 1.0]:
            self.settle(write)

    def _carry_out(self, request: Request) -> bytes | Exception:
        if request.verb == "sleep":
            return b""
        pod = find(self.world, request.path)
        if pod is None:
            return NotFound("gone")
        match request.verb:
            case "get":
                return msgspec.json.encode(pod.lite)
            case "post":
                if request.body["deleteOptions"]["preconditions"]["uid"] == pod.uid:
                    self.world.delete(pod.name, pod.uid)
            case _:
                if not take_patch(self.world, pod, request.body):
                    return Invalid("a test failed")
        return b""


def given_back(replicas: Sequence[Replica]) -> set[str]:
    """UIDs of pods whose room was given to others."""

    def is_back(pod: QueuedPod) -> bool:
        return pod.capacity_freed

    return {uid for each in replicas for uid, pod in each.queue.queued_pods.items() if is_back(pod)}
