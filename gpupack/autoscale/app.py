"""`gpupack autoscale` as a process: puts the parts together and runs them until told to stop."""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Final

import msgspec
import structlog
from aiohttp import web

from allocator.texts import count_of
from gpupack.autoscale.metrics import AutoscaleMetrics
from gpupack.autoscale.placeholders import find_changes
from gpupack.autoscale.planner import Plan, Planner, PodOutcome
from gpupack.autoscale.scale_down import KeptNode, find_node_changes, find_nodes_to_empty, find_nodes_to_keep
from gpupack.autoscale.settings import AutoscaleSettings
from gpupack.autoscale.waiting_pods import Outcome
from gpupack.autoscale.writer import Writer
from gpupack.whatif.live_cluster import LiveCluster
from gpupack.whatif.live_feed import LiveFeed
from kubeapi.client import KubeClient
from kubeapi.correlation import make_node_ref, make_pod_ref
from kubeapi.events import EventRecorder
from kubeapi.lease import LeaderStatus
from kubeapi.process import run_until
from kubeapi.serving import make_process_app, serve_shared, start_serving
from scheduler_plugin.errors import SettingsError
from scheduler_plugin.options import EVENTS, make_elector, make_leader_label

SHUTDOWN_S: Final = 2.0
GAP_S: Final = 1.0

log = structlog.get_logger(__name__)


class AutoscaleLoop:
    """Plans and writes, again and again.

    Args:
        trouble: Why nothing may be written, empty for nothing.
    """

    def __init__(
        self,
        live: LiveCluster,
        settings: AutoscaleSettings,
        writer: Writer,
        recorder: EventRecorder,
        metrics: AutoscaleMetrics,
        trouble: Callable[[], str],
    ) -> None:
        self._live = live
        self._settings = settings
        self._writer = writer
        self._recorder = recorder
        self._metrics = metrics
        self._trouble = trouble
        self._planner = Planner(settings.rules(), settings.declared())
        self._guard_at = float("-inf")
        self._sent: dict[str, str] = {}
        self._emptiable: frozenset[str] = frozenset()
        self._failure = ""
        self.plan = Plan((), {})
        self.kept: Mapping[str, KeptNode] = {}

    async def run(self) -> None:
        while True:
            if not self._trouble():
                await self._try_pass()
            await asyncio.sleep(max(GAP_S, self._settings.period_s))

    async def _try_pass(self) -> None:
        """Do a pass; whatever is wrong with one object of the cluster must not end the process."""
        try:
            await self.run_pass()
        except Exception as error:
            self._failure = f"a pass failed: {type(error).__name__}: {error}"
            log.exception("a pass failed")
        else:
            self._failure = ""

    async def run_pass(self) -> None:
        await self._ask_for_nodes()
        if time.monotonic() >= self._guard_at:
            self._guard_at = time.monotonic() + self._settings.guard_period_s
            await self._guard()

    async def _ask_for_nodes(self) -> None:
        began = time.monotonic()
        cluster = self._live.get_cluster()
        self.plan = self._planner.plan(cluster, began, time.time())
        changes = find_changes(self.plan.placeholders, cluster.pods.values(), self._settings.namespace)
        self._metrics.passes.observe(time.monotonic() - began)
        self._send_events()
        # A label goes first: without it Karpenter thinks that the placeholder fits on that node.
        await self._writer.write_labels(self.plan.unlabelled)
        await self._writer.write_placeholders(changes)

    async def _guard(self) -> None:
        cluster = self._live.get_cluster()
        if self._settings.keep_nodes:
            freed = [name for name in cluster.nodes if name not in self.kept]
            self.kept = find_nodes_to_keep(cluster, freed)
        if self._settings.consolidate:
            self._send_emptiable_events(find_nodes_to_empty(cluster, self.kept))
        changes = find_node_changes(cluster.nodes.values(), self.kept)
        await self._writer.write_nodes(changes, cluster.nodes)

    def _send_emptiable_events(self, moves: Mapping[str, int]) -> None:
        """Write on Nodes that a few moves would empty them, once for as long as that holds."""
        for name, pods in moves.items():
            if name not in self._emptiable:
                which = f"{count_of(pods, 'pod')} with cards here"
                said = f"{which} would find cards on other nodes; gpupack advise --empty {name}"
                self._recorder.event(make_node_ref(name), "Normal", "CouldBeEmptied", said)
        self._emptiable = frozenset(moves)

    def _send_events(self) -> None:
        """Say on pods what is done for them, once for each change."""
        told: dict[str, str] = {}
        for uid, said in self.plan.pods.items():
            told[uid] = said.text
            if self._settings.placeholders and self._sent.get(uid) != said.text:
                self._record(said)
        self._sent = told

    def _record(self, said: PodOutcome) -> None:
        meta = said.pod.pod.metadata
        ref = make_pod_ref(meta.namespace, meta.name, said.pod.uid)
        match said.outcome:
            case Outcome.ASKED:
                self._recorder.event(ref, "Normal", "NodeAskedFor", said.text)
            case Outcome.NO_SHAPE:
                self._recorder.event(ref, "Warning", "NoNodeWouldHelp", said.text)
            case Outcome.NO_LABEL | Outcome.LIMIT:
                self._recorder.event(ref, "Warning", "NodeNotAskedFor", said.text)

    def status(self) -> dict[str, object]:
        return {
            "autoscaler": self._settings.autoscaler,
            "asksForNodes": self._settings.placeholders,
            "placeholders": [
                {"shape": each.shape, "standsFor": list(each.stands_for)} for each in self.plan.placeholders
            ],
            "pods": [
                {
                    "namespace": said.pod.pod.metadata.namespace,
                    "name": said.pod.pod.metadata.name,
                    "outcome": said.outcome.value,
                    "message": said.text,
                }
                for said in self.plan.pods.values()
            ],
            "shapes": [
                {"name": shape.name, "declared": shape.declared, "nodes": len(shape.nodes)}
                for shape in self.plan.shapes
            ],
            "startingNodes": list(self.plan.starting),
            "keptNodes": [
                {"node": name, "reason": kept.reason.value, "pod": kept.pod}
                for name, kept in sorted(self.kept.items())
            ],
            "trouble": self._trouble() or self._failure or self._writer.trouble,
        }


def make_app(
    loop: AutoscaleLoop,
    metrics: AutoscaleMetrics,
    writer: Writer,
    unready: Callable[[], str],
) -> web.Application:

    async def write_metrics() -> bytes:
        return metrics.render(loop.plan, loop.kept, writer.failed)

    async def write_status() -> bytes:
        return msgspec.json.encode(loop.status())

    return make_process_app(unready, write_metrics, serve_shared("/status", write_status))


class Leadership:
    """Whether this process may write: it leads, and what it sees is whole and fresh."""

    def __init__(self, elector: LeaderStatus, following: LiveFeed) -> None:
        self._elector = elector
        self._following = following

    def leads(self) -> bool:
        return self._elector.is_leader

    @property
    def blindness(self) -> str:
        """Why not even a leader could decide; empty if it could."""
        if problems := self._following.list_problems():
            return problems[0]
        return "" if self._following.is_synced else "waiting for the lists of nodes and pods"

    @property
    def trouble(self) -> str:
        """Why nothing is written; empty if it is."""
        return self.blindness or ("" if self.leads() else "another process is the leader")


async def run(
    settings: AutoscaleSettings, *, stop: asyncio.Event, started: Callable[[str], None] | None = None
) -> None:
    """Ask for nodes and keep nodes until `stop` is set.

    Args:
        started: Called once with the URL.

    Raises:
        SettingsError: the settings cannot work, or the address cannot be used.
        KubeApiError: no usable way to the API server.
    """
    settings.check()
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(
            await KubeClient.connect(settings.kubeconfig, user_agent="gpupack-autoscale")
        )
        live = LiveCluster(settings.unit_mib)
        following = LiveFeed(client, live, None, lambda: None)
        elector = make_elector(settings, client)
        label = make_leader_label(settings, client, elector)
        leadership = Leadership(elector, following)
        writer = Writer(client, settings.namespace, leadership.leads, settings.write_timeout_s)
        recorder = EventRecorder(client, "gpupack-autoscale", most=EVENTS)
        metrics = AutoscaleMetrics()
        loop = AutoscaleLoop(live, settings, writer, recorder, metrics, lambda: leadership.trouble)
        unready = (lambda: leadership.blindness) if label is not None else (lambda: leadership.trouble)
        app = make_app(loop, metrics, writer, unready)
        url = (await start_serving(stack, app, settings.http, SettingsError)).url
        log.info("serving", url=url, namespace=settings.namespace)
        if started is not None:
            started(url)
        await run_until(
            stop, following, recorder, loop, elector, label, drain=partial(recorder.drain, SHUTDOWN_S)
        )
