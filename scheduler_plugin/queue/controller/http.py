"""Health, metrics and status of the queue over HTTP."""

from collections.abc import Callable

import msgspec
from aiohttp import web

from kubeapi.serving import make_process_app, serve_shared
from scheduler_plugin.queue.controller.controller import Controller
from scheduler_plugin.queue.controller.metrics import QueueMetrics
from scheduler_plugin.queue.controller.settings import DecisionSettings
from scheduler_plugin.queue.controller.status import explain_waiting, report_queues

STATUS = "/status"


def make_app(
    controller: Controller,
    metrics: QueueMetrics,
    unready: Callable[[], str],
    trouble: Callable[[], str],
    fault: Callable[[], str],
    decides_by: Callable[[], DecisionSettings],
    clock: Callable[[], float],
) -> web.Application:
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

    more = serve_shared(STATUS, write_status), web.get("/configuration", configuration)
    return make_process_app(unready, write_metrics, *more)
