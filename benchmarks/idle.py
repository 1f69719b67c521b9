"""Measure what the queue costs while nothing happens: `python -m benchmarks.idle [--waiting W] [--nodes N]`.

W gated pods of 20 shapes and T queues wait for N full nodes, and have for an hour. The controller runs as
shipped, without an API server. For `--seconds` nothing changes. Then something changes ten times a second for
as long, and nobody can be admitted by it. Printed are, in this process:

- the share of one core that the controller takes in either half;
- the same as a ratio: how many times a second it could have found out why every pod waits, a full pass.

The last line is JSON.
"""

import asyncio
import json
import logging
import time
from collections.abc import Sequence
from typing import Any

import structlog

from benchmarks.machine import machine, make_parser
from benchmarks.queue import CARD_UNITS, CARDS, SHAPES, add_gated_pod, add_node
from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.queue.config.queues import parse_config
from scheduler_plugin.queue.controller.controller import Controller
from scheduler_plugin.queue.controller.status import explain_waiting
from scheduler_plugin.queue.controller.writer import PodWriter
from scheduler_plugin.queue.scheduler.queue import Queue, QueueChargeRules
from scheduler_plugin.scheduling.cluster_policies import ClusterPolicies
from tests.cluster_builders import node_object, pod_object

WAITED_S = 3600.0
SETTLE_S = 15.0
CHANGE_S = 0.1


class Silent:
    """Takes Events, and drops them."""

    def event(self, *_: object) -> None:
        """Drop one."""


def full_queue(queues: int, waiting_pods: int, nodes: int) -> Queue:
    """A queue on full nodes."""
    names = [f"t{number:03}" for number in range(queues)]
    config = parse_config("bench", json.dumps({"queues": [{"name": name} for name in names]}))
    queue = Queue(config, ClusterState(rules=QueueChargeRules()), ClusterPolicies("fragmentation"))
    queue.job_stages.set_jobs([])
    full = (CARD_UNITS,) * CARDS
    for number in range(nodes):
        raw = node_object(f"n{number:05}", full, full, version=number + 1, cpu="512", memory="4000Gi")
        add_node(queue, raw)
    for number in range(waiting_pods):
        units, name = SHAPES[number % len(SHAPES)], names[number % queues]
        raw = pod_object(f"p{number}", units, version=nodes + number + 1, namespace=name)
        add_gated_pod(queue, raw, name)
    return queue


async def shares(queue: Queue, seconds: float) -> tuple[float, float]:
    """Shares of a core that the controller takes while nothing changes, and while something always does."""
    nothing: Any = None
    began = time.monotonic() - WAITED_S
    writer = PodWriter(nothing, lambda: True, 1.0)
    controller = Controller(queue, writer, Silent(), lambda: time.monotonic() - began, lambda: True)
    task = asyncio.create_task(controller.run())
    controller.record_change()
    await asyncio.sleep(SETTLE_S)
    found = []
    for changes in (False, True):
        used, at = time.process_time(), time.monotonic()
        while time.monotonic() - at < seconds:
            await asyncio.sleep(CHANGE_S)
            if changes:
                controller.record_change()
        found.append((time.process_time() - used) / (time.monotonic() - at))
    task.cancel()
    return found[0], found[1]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the figures."""
    parser = make_parser(
        "idle",
        __doc__,
        queues=(100, "queues"),
        waiting=(10_000, "pods that wait"),
        nodes=(1000, "full nodes"),
        seconds=(60.0, "seconds of each half"),
    )
    options = parser.parse_args(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    print(machine())
    queue = full_queue(options.queues, options.waiting, options.nodes)
    list(queue.admit_workloads(0.0))
    explain_waiting(queue, 0.0)
    used = time.process_time()
    explain_waiting(queue, 0.0)
    full_pass_s = time.process_time() - used
    idle, busy = asyncio.run(shares(queue, options.seconds))
    print(f"why all {options.waiting} pods wait takes {1e3 * full_pass_s:.0f} ms")
    for name, share in (("nothing changes", idle), ("something always changes", busy)):
        print(f"{name}: {100 * share:.1f} % of a core, a full pass {share / full_pass_s:.3f} times a second")
    print(
        json.dumps(
            {
                "waiting": options.waiting,
                "full_pass_ms": round(1e3 * full_pass_s, 1),
                "idle_share": round(idle, 4),
                "idle_passes_per_s": round(idle / full_pass_s, 4),
                "busy_share": round(busy, 4),
                "busy_passes_per_s": round(busy / full_pass_s, 4),
            }
        )
    )


if __name__ == "__main__":
    main()
