"""Measure what the queue costs while nothing happens: `python -m benchmarks.idle [--waiting W] [--nodes N]`.

W gated pods of 20 shapes and T queues wait for N full nodes, and have for an hour. The controller runs as
shipped, without an API server. For `--seconds` nothing changes. Then something changes ten times a second for
as long, and nobody can be admitted by it. Printed are, in this process:

- the share of one core that the controller takes in either half;
- the same as a ratio: how many times a second it could have found out why every pod waits, a full pass.

The last line is JSON.
"""

import argparse
import asyncio
import json
import logging
import time
from collections.abc import Sequence
from typing import Any

import msgspec
import structlog

from allocator.names import QUEUE_GATE, QUEUE_NAME
from benchmarks.machine import machine
from kubeapi.objects import Node, Pod
from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.queue.config.queues import parse_config
from scheduler_plugin.queue.controller.controller import Controller
from scheduler_plugin.queue.controller.status import explain_waiting
from scheduler_plugin.queue.controller.writer import PodWriter
from scheduler_plugin.queue.scheduler.queue import Queue, QueueChargeRules
from scheduler_plugin.scheduling.cluster_policies import ClusterPolicies
from tests.cluster_builders import node_object, pod_object

CARDS = 8
CARD_UNITS = 79
SHAPES = tuple(range(4, 80, 4))[:20]
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
    state = ClusterState(rules=QueueChargeRules())
    queue = Queue(config, state, ClusterPolicies("fragmentation"))
    queue.job_stages.set_jobs([])
    full = (CARD_UNITS,) * CARDS
    for number in range(nodes):
        raw: Any = node_object(f"n{number:05}", full, full, version=number + 1, cpu="512", memory="4000Gi")
        node = msgspec.convert(raw, Node)
        state.apply_node(node, 0.0)
        queue.set_node(node.metadata.name, node.traits)
    for number in range(waiting_pods):
        units = SHAPES[number % len(SHAPES)]
        raw = pod_object(f"p{number}", units, version=nodes + number + 1, namespace=names[number % queues])
        raw["metadata"]["labels"] = {QUEUE_NAME: names[number % queues]}
        raw["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
        raw["spec"]["schedulingGates"] = [{"name": QUEUE_GATE}]
        pod = msgspec.convert(raw, Pod)
        state.apply_pod(pod, 0.0)
        queue.apply_pod(pod, 0.0)
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
    parser = argparse.ArgumentParser(prog="python -m benchmarks.idle", description=__doc__)
    parser.add_argument("--queues", type=int, default=100)
    parser.add_argument("--waiting", type=int, default=10_000)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args(arguments)
    for name in ("queues", "waiting", "nodes", "seconds"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} {getattr(options, name)}; allowed: 1 or more")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    print(f"machine: {machine()}")
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
