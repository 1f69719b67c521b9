"""The dashboard as a process: puts the parts together and runs them until told to stop."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Final

import aiohttp
import msgspec
import structlog

from gpupack import __version__, queuestatus
from gpupack.dashboard import advice, queues
from gpupack.dashboard.board import ClusterBoard
from gpupack.dashboard.handlers import BoardAnswers, DashboardHandlers
from gpupack.dashboard.member import MemberClient, MemberDashboard, MemberPages
from gpupack.dashboard.page_hub import PageHub
from gpupack.dashboard.settings import Settings
from gpupack.dashboard.telemetry import NodeCourse, TelemetrySource, explain_no_telemetry, read_own_namespace
from gpupack.dashboard.trend import EVERY_S, Trend, make_trend_point
from gpupack.errors import InputError
from gpupack.inventory.fetching import connect
from gpupack.inventory.objects import CLAIMS_NOT_READ
from gpupack.teams.handlers import MemberHandlers
from gpupack.teams.reviews import MemberReviewer
from gpupack.usage.report import UsageKey, build_report
from gpupack.usage.sampling import SampledPeriods, UsageSampler
from gpupack.usage.times import parse_span
from gpupack.whatif.fetching import DEFAULT
from gpupack.whatif.live_feed import LiveFeed
from gpupack.whatif.objects import KubeObjects
from gpupack.whatif.questions import Questions
from kubeapi.client import KubeClient
from kubeapi.errors import Forbidden, KubeApiError
from kubeapi.paths import NODES_PATH
from kubeapi.process import run_until
from kubeapi.serving import start_serving
from kubeapi.tls import ServerTls, open_tls
from scheduler_plugin.queue.controller.status import WaitExplanation as QueueWhy

SHUTDOWN_S: Final = 1.0
PROBE_S: Final = 3.0
"""Time-out of the request that finds out whether nodes may be listed."""
GAP_S: Final = 0.1
"""Shortest time between two refreshes of what changed."""
LOOK_S: Final = 1.0
"""How often it is retried while something cannot be read."""
ADVICE_S: Final = 1.0
"""Shortest time between two computations of what waits and what fits."""
PATIENCE: Final = 8
"""Answers about waiting pods take at most one part in so many of the time."""

log = structlog.get_logger(__name__)


class Dashboard:
    """Keeps up to date what the page shows."""

    def __init__(self, source: str, *, live: bool = True, now_s: Callable[[], float] = time.time) -> None:
        self._now_s = now_s
        self._is_live = live
        self.board = ClusterBoard()
        self.questions = Questions(self.board.prepare_cluster)
        self._periods = SampledPeriods()
        self._sampler = UsageSampler(now_s())
        self.hub = PageHub(
            self.board,
            Trend(),
            {
                "about": {"source": source, "version": __version__, "live": live},
                "problems": [],
                "pending": {"pods": [], "more": 0},
                "fits": [],
                "queues": queues.explain_no_queues("The queue has not been asked yet."),
            },
        )
        self._changed = asyncio.Event()
        self.hub.opened = self._changed.set
        self._pending = 0
        self.feed: LiveFeed | None = None

    def make_handlers(
        self, telemetry: Callable[[str], Awaitable[NodeCourse]], allowed_hosts: tuple[str, ...]
    ) -> DashboardHandlers:
        """Make what answers browsers; the arguments are those of `DashboardHandlers`."""
        return DashboardHandlers(
            BoardAnswers(self.board, self.questions),
            self.hub,
            self.refresh_advice,
            self._is_synced,
            self.report_usage if self._is_live else None,
            telemetry,
            allowed_hosts,
        )

    def _is_synced(self) -> bool:
        return self.feed is None or self.feed.is_synced

    def wake(self) -> None:
        self._changed.set()

    def flush_changes(self) -> None:
        self.hub.flush_nodes()
        if self.feed is None:
            return
        self.hub.set_part("problems", self.feed.list_problems())
        if self.feed.is_failing:  # a connection that is back need not bring news
            asyncio.get_running_loop().call_later(LOOK_S, self._changed.set)

    def set_queued_pods(self, pods: Sequence[QueueWhy] | None) -> None:
        if self.board.set_queued(pods):
            self._changed.set()

    async def refresh_advice(self) -> None:
        """Show what waits and what fits; others may ask between two pods."""
        ask = partial(self.questions.ask, is_bounded=False)
        pods = await ask(advice.list_waiting_pods)
        self._pending = len(pods)
        if not self.hub.is_watched:
            return
        find = self.board.find_queued
        waits = [
            (await ask(partial(advice.explain_pods, pods=[pod], queued=find)))[0]
            for pod in pods[: advice.EXPLAINED]
        ]
        waits += map(advice.name_pod, pods[advice.EXPLAINED : advice.SHOWN])
        self.hub.set_part("pending", {"pods": waits, "more": len(pods) - len(waits)})
        self.hub.set_part("fits", await ask(lambda cluster: list(advice.count_fit_of_sizes(cluster))))

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._refresh_forever())
            group.create_task(self._sample_forever())

    async def _refresh_forever(self) -> None:
        loop = asyncio.get_running_loop()
        again = float("-inf")
        while True:
            await self._changed.wait()
            self._changed.clear()
            self.flush_changes()
            began = loop.time()
            if began >= again and self.board.nodes is not None:
                await self.refresh_advice()
                again = loop.time() + max(ADVICE_S, PATIENCE * (loop.time() - began))
            elif began < again:
                loop.call_at(again, self._changed.set)
            await asyncio.sleep(GAP_S)

    async def _sample_forever(self) -> None:
        """Record the sums, and what pods have, at regular moments."""
        while True:
            if self._is_synced():
                self._take_sample()
                if self._sampler.is_due(self._now_s()):
                    now_s = self._now_s()
                    self._periods.add(self._sampler.end_period(now_s, self.board.get_labels()))
            await asyncio.sleep(EVERY_S)

    def _take_sample(self) -> None:
        now_s = self._now_s()
        self._sampler.sample(now_s, (pod for pods in self.board.pod_memory.values() for pod in pods))
        self.hub.trend.add(make_trend_point(now_s, self.board.sum_cards(), self._pending))
        self.hub.announce_point()

    def report_usage(self, query: Mapping[str, str]) -> bytes:
        """Answer `/api/usage`.

        Raises:
            ValueError: says what is wrong with the query.
        """
        now_s = self._now_s()
        try:
            since, until = parse_span(query.get("since", "24h"), query.get("until", "now"), now_s)
            by = UsageKey.parse(query.get("by", "namespace"))
        except InputError as error:
            raise ValueError(str(error)) from error
        periods = [
            *self._periods.list_periods(),
            self._sampler.peek_period(now_s, self.board.get_labels()),
        ]
        return msgspec.json.encode(build_report(periods, by, since, until, "sampled by gpupack dashboard"))


async def serve_cluster(settings: Settings, *, stop: asyncio.Event, started: Callable[[str], None]) -> None:
    """Serve the page of a cluster until `stop` is set.

    Args:
        started: called once with the URL.

    Raises:
        InputError: the settings cannot work, or the address cannot be used.
        KubeApiError: no usable way to the API server.
    """
    settings.check()
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(await connect(settings.kubeconfig, settings.context))
        member = None if settings.teams_http is not None else await _find_member(client, settings.namespace)
        if member is not None:
            await _serve_member(settings, client.server, member, stack, stop, started)
            return
        dashboard = Dashboard(client.server)
        stack.callback(dashboard.questions.close)
        following = LiveFeed(client, dashboard.board, settings.namespace, dashboard.wake)
        dashboard.feed = following
        if settings.queue_url is None:
            ask = queues.ask_through_api(client, settings.queue_namespace, settings.queue_service)
        else:
            ask = partial(queuestatus.fetch_from, settings.queue_url)
        if settings.daemon_port is None:
            telemetry = TelemetrySource(client, namespace=settings.queue_namespace)
        else:
            pods = await stack.enter_async_context(aiohttp.ClientSession())
            namespace = read_own_namespace() or settings.queue_namespace
            telemetry = TelemetrySource(client, pods, settings.daemon_port, namespace)
        pages = dashboard.make_handlers(telemetry.fetch, settings.allowed_hosts)
        tls = await _answer_members(client, dashboard, following, settings, stack)
        started(await start_listening(pages, settings, stack))
        show_queues = partial(dashboard.hub.set_part, "queues")
        poll = queues.poll_queue(ask, show_queues, dashboard.set_queued_pods)
        await run_until(stop, tls, following, dashboard, poll)


async def _find_member(client: KubeClient, namespace: str | None) -> MemberClient | None:
    """Find out whether the user may not list nodes, and is a member of a namespace instead."""
    namespace = namespace or client.namespace or DEFAULT
    member = MemberClient(client, namespace)
    try:
        await client.get(NODES_PATH, timeout_s=PROBE_S, limit=1)
    except Forbidden:
        with suppress(KubeApiError, InputError):
            await member.renew_token()
            return member
    except KubeApiError:  # the page says so
        pass
    return None


async def _serve_member(
    settings: Settings,
    source: str,
    member: MemberClient,
    stack: AsyncExitStack,
    stop: asyncio.Event,
    started: Callable[[str], None],
) -> None:
    dashboard = MemberDashboard(source, member.namespace, member.ask)

    async def advise() -> None:
        """Do nothing: what waits and what fits comes with the page."""

    pages = DashboardHandlers(
        dashboard,
        dashboard.hub,
        advise,
        lambda: dashboard.is_ready,
        None,
        explain_no_telemetry("it is told to those who may list nodes"),
        settings.allowed_hosts,
    )
    started(await start_listening(pages, settings, stack))
    await run_until(stop, dashboard)


async def _answer_members(
    client: KubeClient, dashboard: Dashboard, feed: LiveFeed, settings: Settings, stack: AsyncExitStack
) -> ServerTls | None:
    """Answer members of namespaces if the settings ask for that; return the TLS side, if any.

    Raises:
        InputError: the TLS files or the address cannot be used.
    """
    if settings.teams_http is None:
        return None
    tls = open_tls(settings.teams_tls_cert, settings.teams_tls_key, None, InputError)
    pages = MemberPages(dashboard.board)
    members = MemberHandlers(
        MemberReviewer(client, time.monotonic),
        dashboard.questions,
        lambda: feed.is_synced and not feed.is_failing,
        dashboard.board.find_queued,
        {"page": pages.answer_page, "node": pages.answer_node},
    )
    context = tls.context if tls is not None else None
    address = await start_serving(
        stack, members.make_app(), settings.teams_http, InputError, option="--teams-http", tls=context
    )
    log.info("answering members", address=address[:2], tls=tls is not None)
    return tls


async def serve_file(
    settings: Settings,
    found: KubeObjects,
    name: str,
    *,
    stop: asyncio.Event,
    started: Callable[[str], None],
) -> None:
    """Serve the page of objects that were read from a file, until `stop` is set.

    Args:
        started: called once with the URL.

    Raises:
        InputError: the settings cannot work, or the address cannot be used.
    """
    settings.check()
    async with AsyncExitStack() as stack:
        dashboard = Dashboard(name, live=False)
        stack.callback(dashboard.questions.close)
        dashboard.board.replace_nodes(found.nodes)
        dashboard.board.replace_pods(found.pods)
        dashboard.board.replace_claims(found.claims)
        dashboard.flush_changes()
        if dashboard.board.get_cluster().lacks_claims:
            dashboard.hub.set_part("problems", [CLAIMS_NOT_READ])
        with dashboard.hub.open_page():  # somebody will look
            await dashboard.refresh_advice()
        dashboard.hub.set_part(
            "queues", queues.explain_no_queues("A file does not say what queues there are.")
        )
        pages = dashboard.make_handlers(explain_no_telemetry("the page shows a file"), settings.allowed_hosts)
        started(await start_listening(pages, settings, stack))
        await stop.wait()


async def start_listening(pages: DashboardHandlers, settings: Settings, stack: AsyncExitStack) -> str:
    """Serve; return the URL.

    Raises:
        InputError: the address cannot be used.
    """
    address = await start_serving(
        stack, pages.make_app(), settings.http, InputError, grace_s=SHUTDOWN_S, handler_cancellation=True
    )
    stack.callback(pages.end_streams)
    is_any = address.host in {"0.0.0.0", "[::]"}  # noqa: S104 - a browser cannot name these
    return f"{address._replace(host='127.0.0.1').url if is_any else address.url}/"
