"""Health, metrics and status of the queue over HTTP."""

from collections.abc import Callable

import msgspec
from aiohttp import web

from scheduler_plugin.queue.controller.controller import Controller
from scheduler_plugin.queue.controller.metrics import QueueMetrics
from scheduler_plugin.queue.controller.status import explain_waiting, report_queues

STATUS = "/status"


def make_app(
    controller: Controller,
    metrics: QueueMetrics,
    unready: Callable[[], str],
    trouble: Callable[[], str],
    fault: Callable[[], str],
    clock: Callable[[], float],
) -> web.Application:
    """Make the application.

    Args:
        controller: Controller of the queue.
        metrics: For Prometheus.
        unready: Why this process is not ready, empty if it is.
        trouble: Why nothing is admitted, empty for nothing.
        fault: Why the newest configuration is not in force, empty for nothing.
        clock: Monotonic seconds.
    """

    async def healthz(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_request: web.Request) -> web.Response:
        why = unready()
        return web.Response(text=f"{why or 'ok'}\n", status=503 if why else 200)

    async def metrics_page(_request: web.Request) -> web.Response:
        return web.Response(
            body=metrics.render_metrics(controller, clock()),
            headers={"Content-Type": "text/plain; version=0.0.4"},
        )

    async def status(_request: web.Request) -> web.Response:
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
        return web.Response(body=msgspec.json.encode(body), content_type="application/json")

    app = web.Application()
    app.add_routes(
        [
            web.get("/healthz", healthz),
            web.get("/readyz", readyz),
            web.get("/metrics", metrics_page),
            web.get(STATUS, status),
        ]
    )
    return app
