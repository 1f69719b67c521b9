"""Process of the queue: puts the parts together and runs them until told to stop."""

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial

import msgspec
import structlog
from aiohttp import web

from kubeapi.client import KubeClient
from kubeapi.events import EventRecorder
from kubeapi.lease import LeaseElector, SoleProcess
from kubeapi.lease_follower import LeaseFollower
from kubeapi.posting import make_post_client
from kubeapi.process import run_until
from kubeapi.serving import make_process_app, serve_shared, start_serving
from scheduler_plugin.cache.pod_groups import COSCHEDULING, list_pod_group_paths
from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.cache.watcher import PodGroupWatch, Watcher
from scheduler_plugin.errors import SettingsError
from scheduler_plugin.garbage_collection import collect_rarely, freeze_caches, trim_memory
from scheduler_plugin.options import EVENTS, make_elector, make_follower, make_leader_label
from scheduler_plugin.queue.controller.batch_client import open_committer_client
from scheduler_plugin.queue.controller.batch_conditions import BatchConditions
from scheduler_plugin.queue.controller.config_file import ConfigFile
from scheduler_plugin.queue.controller.controller import Controller
from scheduler_plugin.queue.controller.metrics import QueueMetrics
from scheduler_plugin.queue.controller.settings import DecisionSettings, QueueSettings
from scheduler_plugin.queue.controller.status import explain_waiting, report_queues
from scheduler_plugin.queue.controller.watching import (
    BatchPodSink,
    JobSink,
    NamespaceSink,
    QueueFeed,
    watch_batch_pods,
    watch_jobs,
    watch_namespaces,
)
from scheduler_plugin.queue.controller.writer import PodWriter
from scheduler_plugin.queue.scheduler.queue import Queue, QueueChargeRules

SHUTDOWN_S = 2.0

log = structlog.get_logger(__name__)


async def run(
    settings: QueueSettings,
    *,
    stop: asyncio.Event,
    started: Callable[[str, Queue], None] | None = None,
) -> None:
    """Admit pods until `stop` is set.

    Args:
        started: Called once with the URL and the queue.

    Raises:
        SettingsError: the settings cannot work, or the address cannot be used.
        QueueConfigError: the configuration has faults.
        KubeApiError: no usable way to the API server.
    """
    settings.check()
    file = ConfigFile(settings.config, settings.find_policy_faults)
    config = file.load()
    clock = time.monotonic
    async with AsyncExitStack() as stack:
        stack.callback(collect_rarely())
        client = await stack.enter_async_context(
            await KubeClient.connect(settings.kubeconfig, user_agent="gpupack-queue", posts=make_post_client)
        )
        state = ClusterState(settings.unit_mib, rules=QueueChargeRules())
        policies = settings.make_policies()
        policies.slow_policy_found.connect(lambda line: log.warning("slow card policy", what=line))
        queue = Queue(config, state, policies, wall=time.time() - clock())
        watcher = Watcher(client, state, clock, settings.stale_s)
        watcher.filled.connect(freeze_caches)
        watcher.call_after_each_list(trim_memory)
        feed = QueueFeed(queue, watcher, clock)
        follower = make_follower(settings.follow_lease, client)
        elector = make_elector(settings, client, follower, since=clock())
        label = make_leader_label(settings, client, elector)
        term = LeadershipTerm(
            elector, watcher, clock, settings.longest_write_s, lambda: sink.synced, follower
        )
        writer = PodWriter(client, term.can_write, settings.write_timeout_s)
        recorder = EventRecorder(client, "gpupack-queue", busy=lambda: controller.is_busy, most=EVENTS)
        metrics = QueueMetrics()
        metrics.leader.set_function(term.can_write)
        committer = await stack.enter_async_context(open_committer_client(settings, term.can_write))
        controller = Controller(
            queue, writer, recorder, clock, term.is_open, metrics.decisions.observe, committer
        )
        conditions = BatchConditions(
            client, term.can_write, lambda: controller.is_busy, settings.write_timeout_s
        )
        controller.explainer.reported.connect(conditions.record_reason)
        sink = NamespaceSink(queue, controller.record_change)
        groups = PodGroupWatch(client, queue.coscheduling_groups, clock, list_pod_group_paths(COSCHEDULING))
        groups.updated.connect(feed.apply_members)
        for watch in (watcher, groups):
            watch.changed.connect(controller.record_change)

        unready = (lambda: term.stale_view_reason) if label is not None else (lambda: term.pause_reason)
        app = make_app(
            controller,
            metrics,
            unready,
            trouble=lambda: term.pause_reason,
            fault=lambda: file.fault,
            decides_by=lambda: settings.describe_decisions(file.text),
            clock=clock,
        )
        url = (await start_serving(stack, app, settings.http, SettingsError)).url
        log.info("serving", url=url, queues=len(config.queues), mode=config.mode)
        if started is not None:
            started(url, queue)
        await run_until(
            stop,
            watcher,
            watch_namespaces(client, sink, clock),
            watch_jobs(client, JobSink(queue, controller.record_change), clock),
            groups,
            watch_batch_pods(client, BatchPodSink(queue, controller.record_change), clock),
            conditions,
            term.run(controller.begin_term),
            recorder,
            file.follow_changes(controller.configure),
            controller,
            follower,
            elector,
            label,
            drain=partial(recorder.drain, SHUTDOWN_S),
        )


def make_app(
    controller: Controller,
    metrics: QueueMetrics,
    unready: Callable[[], str],
    trouble: Callable[[], str],
    fault: Callable[[], str],
    decides_by: Callable[[], DecisionSettings],
    clock: Callable[[], float],
) -> web.Application:
    """Make what serves health, metrics and status of the queue."""

    async def write_metrics() -> bytes:
        return metrics.render_metrics(controller, clock())

    async def write_status() -> bytes:
        queue, now = controller.queue, clock()
        body = {
            "mode": queue.config.mode,
            "nodePolicy": queue.capacity.policies.node_policy,
            "queues": report_queues(queue, now),
            "pods": explain_waiting(queue, now),
            "trouble": trouble(),
            "fault": fault(),
            "warning": controller.warning,
        }
        return msgspec.json.encode(body)

    async def configuration(_request: web.Request) -> web.Response:
        if why := trouble():
            return web.Response(text=f"{why}\n", status=503)
        return web.Response(body=msgspec.json.encode(decides_by()), content_type="application/json")

    more = serve_shared("/status", write_status), web.get("/configuration", configuration)
    return make_process_app(unready, write_metrics, *more)


class LeadershipTerm:
    """Decides when this process may act: it leads, its view is fresh, and its predecessor's writes are over.

    A write that an earlier leader or process has sent may still take effect within the time-out of a write. A
    list of pods made after that shows every one that did.
    """

    def __init__(
        self,
        elector: LeaseElector | SoleProcess,
        watcher: Watcher,
        clock: Callable[[], float],
        write_s: float,
        namespaces: Callable[[], bool],
        follower: LeaseFollower | None,
    ) -> None:
        self._namespaces = namespaces
        self._write_s = write_s
        self._elector = elector
        self._follower = follower
        self._watcher = watcher
        self._clock = clock
        self._opened: float | None = None

    @property
    def pause_reason(self) -> str:
        """Reason why nothing is admitted, empty for none."""
        if not self._elector.is_leader:
            return self.rival or "another process is the leader"
        if blindness := self.stale_view_reason:
            return blindness
        is_opened = self._opened == self._elector.since
        return "" if is_opened else "waiting for what the process before may have sent"

    @property
    def rival(self) -> str:
        """Which queue admits pods though this process leads with its kube-scheduler, empty for none.

        Its Lease is this one's, whatever its Deployment is called, so only one of them admits.
        """
        if self._follower is None or not self._follower.is_leader:
            return ""
        holder = self._elector.holder
        if holder in {"", self._elector.identity}:
            return ""
        return f"another queue runs, {holder}; allowed: one, here the one beside kube-scheduler"

    @property
    def stale_view_reason(self) -> str:
        """Why not even a leader could admit pods: the view is incomplete or stale; empty if it is neither."""
        return self._watcher.stale or ("" if self._namespaces() else "waiting for the list of namespaces")

    def is_open(self) -> bool:
        return not self.pause_reason

    def can_write(self) -> bool:
        return self._elector.is_leader

    async def run(self, opened: Callable[[], None]) -> None:
        """Open each term, until cancelled."""
        reported = ""
        while True:
            if self.rival != reported:
                reported = self.rival
                if reported:
                    log.warning("nothing is admitted here", why=reported)
            begun = self._elector.since
            if begun is None or begun == self._opened or not self._watcher.synced:
                await asyncio.sleep(0.05)
                continue
            await asyncio.sleep(max(0.0, begun + self._write_s - self._clock()))
            await self._watcher.refresh()
            if self._elector.since == begun:
                self._opened = begun
                opened()
