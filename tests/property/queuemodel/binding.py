"""The scheduler's process of the model, as far as batch mode goes: the shipped committer and checks."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from random import Random
from typing import Any, Final

import numpy as np

from kubeapi import objects
from kubeapi.lease import SOLE_PROCESS, SoleProcess
from kubeapi.objects import Node
from scheduler_plugin.app import connect_checks
from scheduler_plugin.binding.batch_committer import BatchCommitter
from scheduler_plugin.binding.batch_protocol import (
    CommitCall,
    CommitReply,
    PodResult,
    decode_commit_call,
    decode_commit_reply,
    encode,
)
from scheduler_plugin.binding.binder import Binder
from scheduler_plugin.binding.claim_writer import ClaimWriter
from scheduler_plugin.binding.committer import Committer
from scheduler_plugin.binding.shared_nodes import SharedNodes
from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.cache.watcher import Watcher
from scheduler_plugin.queue.controller.batch_client import SLACK_S, CommitFailedError
from scheduler_plugin.scheduling.cluster_policies import ClusterPolicies
from scheduler_plugin.scheduling.filtering import filter_nodes
from tests.property.kernel.loop import TaskSet

from .api import WRITE_S, Api
from .world import LateWatch, Pod, World

ANSWER_S: Final = 3 * WRITE_S + SLACK_S
"""The client waits so long for an answer."""

LIST_S: Final = 0.2
"""A list of all pods takes so long."""


class Scheduler:
    """A process that binds: it begins with complete lists.

    Attributes:
        lost: Share of calls that do not reach it.
        unanswered: Share of calls whose answer is lost.
    """

    def __init__(self, world: World, api: Api, policy: str, random: Random) -> None:
        self.world, self.api = world, api
        self._watch = LateWatch(world.events)
        self.lost = self.unanswered = 0.0
        self._policy, self._random = policy, random
        self._calls, self._resolving = TaskSet(), TaskSet()
        self._binder: Binder | None = None
        api.die = self.start
        self.start()

    def start(self) -> None:
        """Begin anew; Bindings of the process before may still take effect."""
        loop = asyncio.get_running_loop()
        self._calls.kill()
        self._calls = TaskSet()
        self._resolving.kill()
        self._resolving = TaskSet()
        self.api.cut()
        self.state = ClusterState()
        client: Any = None
        self._watcher = Watcher(client, self.state, loop.time, 180.0)
        shared = SharedNodes()
        checks = connect_checks(self._watcher, self.state, loop.time, shared)
        self._binder = Binder(
            Committer(self.state, ClusterPolicies(self._policy)),
            self.api,
            loop.time,
            WRITE_S,
            SoleProcess(loop.time()),
            refresh=self._refresh,
            claims=ClaimWriter(client, WRITE_S, self.state.is_pending),
        )
        self._binder._resolving = self._resolving
        self._committer = BatchCommitter(self._binder, checks, lambda: "", SOLE_PROCESS, shared)
        self._relist()

    def _relist(self) -> None:
        world = self.world
        self._watcher.node_sink.replace(list(world.host_nodes.values()), str(world.version))
        newest: dict[str, Any] = {}
        for event in world.events:
            if isinstance(event.host, objects.Pod):
                newest[event.host.metadata.uid] = None if event.kind == "DELETED" else event.host
        pods = [pod for pod in newest.values() if pod is not None]
        self._watcher.pod_sink.replace(pods, str(world.version))
        self._watch.skip()

    async def _refresh(self) -> None:
        watcher = self._watcher
        await asyncio.sleep(LIST_S)
        if watcher is self._watcher:
            self._relist()

    def hear(self, until: float) -> None:
        for event in self._watch.read_until(until):
            is_node = isinstance(event.host, Node)
            sink: Any = self._watcher.node_sink if is_node else self._watcher.pod_sink
            sink.event(event.kind, event.host, str(event.version))

    @property
    def is_still(self) -> bool:
        """Whether nothing that it does is under way."""
        return not (self._calls or self._resolving or self.api.under_way)

    @property
    def assumed(self) -> list[str]:
        """Nodes on which something is taken for pods that are not there."""
        records = self.state.node_records.items()
        return [name for name, record in records if record.assumed or record.tombstones]

    def connect(self, may: Callable[[], bool]) -> "Connection":
        return Connection(self, may, self._random)

    # What kube-scheduler asks.

    def list_fitting(self, pod: Pod, names: Sequence[str]) -> list[str]:
        """Nodes that filter offers for a pod; none where this process does not know the pod yet."""
        nodes, record = self.state.nodes, self.state.pods.get(pod.uid)
        found = [name for name in names if name in nodes.rows]
        if record is None or record.request is None or not found or self._binder is None:
            return []
        rows = np.array([nodes.rows[name] for name in found], dtype=np.intp)
        policies = self._binder.committer.policies
        query = policies.make_request(nodes, record.request, record.amounts)
        fits = filter_nodes(nodes, query, rows)
        return [name for name, fit in zip(found, fits.tolist(), strict=True) if fit]

    def bind(self, pod: Pod, node: str) -> "asyncio.Task[bytes]":
        """Bind one of kube-scheduler's pods; the answer is empty where it is bound."""

        async def work() -> bytes:
            assert self._binder is not None
            return (await self._binder.bind("default", pod.name, pod.uid, node)).encode()

        return self._begin(work())

    # What the queue asks.

    def begin(self, body: bytes) -> "asyncio.Task[bytes]":
        """Take a call; it goes on whatever becomes of the caller."""
        return self._begin(self._answer(body))

    def _begin(self, work: Coroutine[Any, Any, bytes]) -> "asyncio.Task[bytes]":
        task = asyncio.create_task(work)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        return task

    async def _answer(self, body: bytes) -> bytes:
        results = await self._committer.commit(decode_commit_call(body))
        return encode(CommitReply(tuple(results)))


class Connection:
    """What the queue takes for the committer: calls over a network.

    Args:
        may: Whether the queue may hand pods over.
    """

    def __init__(self, scheduler: Scheduler, may: Callable[[], bool], random: Random) -> None:
        self._scheduler, self._may, self._random = scheduler, may, random

    async def commit(self, call: CommitCall) -> Sequence[PodResult]:
        scheduler, chance = self._scheduler, self._random.random()
        if not self._may():
            raise CommitFailedError("this queue is not the leader", sent=False)
        if chance < scheduler.lost:
            raise CommitFailedError("not reached", sent=False)
        work = scheduler.begin(encode(call))
        await asyncio.wait([work], timeout=ANSWER_S)
        lost = chance < scheduler.lost + scheduler.unanswered
        if lost or not work.done() or work.cancelled():
            raise CommitFailedError("no answer", sent=True)
        return decode_commit_reply(work.result()).results
