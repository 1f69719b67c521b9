"""The extender as a process: puts the parts together and runs them until told to stop."""

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Final

import structlog

from allocator.names import SCHEDULER_NAME
from kubeapi.client import KubeClient
from kubeapi.events import EventRecorder
from kubeapi.lease import SOLE_PROCESS
from kubeapi.lease_follower import LeaseFollower
from kubeapi.objects import Node, Pod, PodDisruptionBudget
from kubeapi.posting import make_post_client
from kubeapi.process import run_until
from kubeapi.reflect import Kind, Reflector
from kubeapi.serving import make_process_app, start_serving
from kubeapi.tls import ServerTls, open_tls
from scheduler_plugin.binding.batch_committer import BatchCommitter
from scheduler_plugin.binding.binder import Binder
from scheduler_plugin.binding.claim_writer import ClaimWriter
from scheduler_plugin.binding.committer import Committer
from scheduler_plugin.binding.shared_nodes import SharedNodes
from scheduler_plugin.cache.disruption_budgets import BUDGETS_PATH, DisruptionBudgets
from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.cache.watcher import Watcher
from scheduler_plugin.errors import SettingsError
from scheduler_plugin.extender.fast_server import FastServer
from scheduler_plugin.extender.metrics import ClusterMetrics, Metrics
from scheduler_plugin.extender.pod_events import PodReporter
from scheduler_plugin.extender.retry import RefusedPodRetrier
from scheduler_plugin.extender.server import MAX_BODY, ExtenderService, make_app
from scheduler_plugin.extender.stale_refusals import StaleRefusalWait, WatchActivity
from scheduler_plugin.extender.verbs import Extender
from scheduler_plugin.garbage_collection import collect_rarely, freeze_caches, trim_memory
from scheduler_plugin.options import EVENTS, make_elector, make_follower, make_leader_label
from scheduler_plugin.preemption.service import PreemptionService
from scheduler_plugin.scheduling.cluster_policies import ClusterPolicies
from scheduler_plugin.scheduling.kubernetes_checks import KubernetesChecks
from scheduler_plugin.settings import Settings

SHUTDOWN_S: Final = 5.0
"""Seconds that calls under way have to end after SIGTERM, and again once those without their whole body are
given up. Kubernetes kills after 30 s."""

MOST_CALLS: Final = 4096
"""Connections of the extender at most. kube-scheduler makes one for each Binding that is under way, without a
bound of its own, and while the API server is slow these add up."""

log = structlog.get_logger(__name__)


async def run(
    settings: Settings,
    *,
    stop: asyncio.Event,
    started: Callable[[str, ClusterState], None] | None = None,
    after_another: bool = True,
) -> None:
    """Serve until `stop` is set.

    Args:
        started: Called once with the server's URL and the live state.
        after_another: Whether another extender may have served this cluster; the first Binding then waits for
            the outcome of its Bindings.

    Raises:
        SettingsError: the settings cannot work, or the address or the TLS files cannot be used.
        KubeApiError: no usable way to the API server.
    """
    settings.check()
    clock = time.monotonic
    collect_as_before = collect_rarely()
    async with await KubeClient.connect(
        settings.kubeconfig, user_agent="gpupack-scheduler", posts=make_post_client
    ) as client:
        state = ClusterState(settings.unit_mib)
        policies = ClusterPolicies(
            settings.node_policy, settings.card_policy, settings.node_policy_parameters
        )
        watcher = Watcher(client, state, clock, settings.stale_s)
        _connect_signals(watcher, policies)
        activity = WatchActivity()
        watcher.changed.connect(activity.record_event)
        elector = make_elector(settings, client, since=clock() if after_another else float("-inf"))
        label = make_leader_label(settings, client, elector)
        follower = make_follower(settings.follow_lease, client)
        binder = Binder(
            Committer(state, policies),
            client,
            clock,
            settings.bind_timeout_s,
            elector,
            refresh=watcher.refresh,
            claims=ClaimWriter(client, settings.bind_timeout_s, state.is_pending),
        )
        watcher.restored.connect(binder.restart_fence)
        events = EventRecorder(client, SCHEDULER_NAME, busy=lambda: binder.is_busy, most=EVENTS, clock=clock)
        reporter = PodReporter(state, clock, events, elector)
        budgets = DisruptionBudgets()
        budget_reflector = Reflector(client, BUDGETS_PATH, PodDisruptionBudget, budgets, clock=clock)
        extender = Extender(
            state, policies, settings.shortlist, budgets, rank_all_pods=settings.rank_all_pods
        )
        watcher.pod_sink.applied.connect(
            lambda kind, pod: None if kind == "DELETED" else reporter.report_unasked(extender, pod)
        )
        metrics = Metrics(ClusterMetrics(state, watcher, reporter.unschedulable_pods, events, elector))
        looks = RefusedPodRetrier(extender, client, clock, lambda: watcher.stale, elector)
        metrics.follow_retrier(looks)
        preemption = None
        if settings.preemption:
            preemption = PreemptionService(
                state, policies, budgets, client, clock, events, lambda: watcher.stale, elector
            )
            existing = preemption.preemptor.existing
            watcher.pod_sink.applied.connect(existing.apply_change)
            watcher.pod_sink.replaced.connect(existing.replace_pods)
            extender.left_to_kube_scheduler.connect(preemption.preemptor.leave_to_kube_scheduler)
            metrics.follow_preemptor(preemption.preemptor)
        service = ExtenderService(
            extender=extender,
            binder=binder,
            watcher=watcher,
            metrics=metrics,
            clock=clock,
            stale_refusal_wait=StaleRefusalWait(activity, clock),
            reporter=reporter,
            leadership=elector,
            preemptor=preemption.preemptor if preemption is not None else None,
            retrier=looks,
            batch=_make_batch_committer(settings, binder, watcher, follower, metrics),
            standby_is_ready=label is not None,
        )
        async with AsyncExitStack() as stack:
            stack.callback(collect_as_before)
            stack.push_async_callback(binder.close)
            tls = open_tls(settings.tls_cert, settings.tls_key, settings.tls_client_ca, SettingsError)
            url = await _listen(stack, service, settings, tls)
            log.info("serving", url=url, node_policy=settings.node_policy, card_policy=settings.card_policy)
            if settings.metrics_http is not None:
                address = await start_serving(
                    stack,
                    make_process_app(service.explain_not_ready, service.render_metrics),
                    settings.metrics_http,
                    SettingsError,
                    option="--metrics-http",
                )
                log.info("serving metrics", host=address.host, port=address.port)
            if started is not None:
                started(url, state)
            works = (watcher, events, looks, budget_reflector, elector, follower, label, tls, preemption)
            # Without an election ahead of the first bind call, which would have to wait for it.
            fence = binder.wait_for_fence() if elector.is_leader else None

            async def stop_binding() -> None:
                binder.stop_binding()

            await run_until(stop, *works, fence, drain=stop_binding)


def _make_batch_committer(
    settings: Settings,
    binder: Binder,
    watcher: Watcher,
    follower: LeaseFollower | None,
    metrics: Metrics,
) -> BatchCommitter | None:
    if not settings.commit:
        return None
    shared = SharedNodes()
    metrics.follow_shared_nodes(shared, binder.clock)
    shared.lost.connect(lambda why: log.warning("batch mode pauses on a shared node", why=why))
    checks = connect_checks(watcher, binder.committer.state, binder.clock, shared)
    return BatchCommitter(binder, checks, lambda: watcher.stale, follower or SOLE_PROCESS, shared)


def connect_checks(
    watcher: Watcher, state: ClusterState, clock: Callable[[], float], shared: SharedNodes
) -> KubernetesChecks:
    """Keep kube-scheduler's checks, and what is known of shared nodes, up to date."""
    checks = KubernetesChecks(state)
    for part in (checks, shared):
        _follow_cluster(part, watcher, clock)
    return checks


def _follow_cluster(
    part: KubernetesChecks | SharedNodes, watcher: Watcher, clock: Callable[[], float]
) -> None:
    def take_node(kind: Kind, node: Node) -> None:
        if kind == "DELETED":
            part.delete_node(node.name)
        else:
            part.apply_node(node)

    def take_pod(kind: Kind, pod: Pod) -> None:
        if kind == "DELETED":
            part.delete_pod(pod.metadata.uid)
        else:
            part.apply_pod(pod, clock())

    watcher.node_sink.applied.connect(take_node)
    watcher.node_sink.replaced.connect(part.replace_nodes)
    watcher.pod_sink.applied.connect(take_pod)
    watcher.pod_sink.replaced.connect(lambda pods: part.replace_pods(pods, clock()))


def _connect_signals(watcher: Watcher, policies: ClusterPolicies) -> None:
    watcher.filled.connect(freeze_caches)
    watcher.call_after_each_list(trim_memory)
    policies.slow_policy_found.connect(lambda line: log.warning("slow card policy", what=line))


async def _listen(
    stack: AsyncExitStack, service: ExtenderService, settings: Settings, tls: ServerTls | None
) -> str:
    """Serve on the address of the settings; return the URL."""
    only_known_clients = settings.tls_client_ca is not None
    address = await start_serving(
        stack,
        make_app(service, only_known_clients=only_known_clients),
        settings.http,
        SettingsError,
        tls=tls.context if tls is not None else None,
        grace_s=SHUTDOWN_S,
        front=FastServer(
            service.answer, service.record_cut_off, MAX_BODY, only_known_clients=only_known_clients
        ),
        most_connections=MOST_CALLS,
    )
    return address.url
