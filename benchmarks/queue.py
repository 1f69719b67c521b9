"""Admission decisions of the queue: `python -m benchmarks.queue [--queues T] [--waiting W] [--nodes N]`.

N nodes of 8 cards of 79 units are full of pods of T queues. W gated pods of 20 shapes wait, evenly by queue,
a third of them in jobs of two stages. Then pods end one after the other, and after each the queue decides
until nobody can be admitted. Measured, all in this process and without an API server:

- the time of one decision: finding the pod to admit, or that there is none;
- the time from the end of a pod to the admission of the next one, the most and the median;
- resident memory after all of it.

With `--slots` every card has a local and a free slot, so that all cases of lending slots are asked.
The last line is JSON.
"""

import gc
import json
import os
import random
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from allocator.names import POD_DATA, POD_JOB, QUEUE_GATE, QUEUE_NAME
from benchmarks.machine import at_least, machine, make_parser, percentile, resident_mib
from kubeapi.objects import Node, Pod
from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.queue.config.queues import parse_config
from scheduler_plugin.queue.scheduler.queue import Queue, QueueChargeRules
from scheduler_plugin.scheduling.cluster_policies import ClusterPolicies
from tests.cluster_builders import node_object, pod_object

CARDS = 8
CARD_UNITS = 79
SHAPES = tuple(range(4, 80, 4))[:20]
ENDED = 300


def add_node(queue: Queue, raw: Any) -> None:
    """Tell a queue of a node."""
    node = msgspec.convert(raw, Node)
    queue.state.apply_node(node, 0.0)
    queue.set_node(node.metadata.name, node.traits)


def add_gated_pod(queue: Queue, raw: Any, name: str) -> str:
    """Let a pod wait in the queue of this name; returns its UID."""
    raw["metadata"] |= {"labels": {QUEUE_NAME: name}, "creationTimestamp": "2026-01-01T00:00:00Z"}
    raw["spec"]["schedulingGates"] = [{"name": QUEUE_GATE}]
    pod = msgspec.convert(raw, Pod)
    queue.state.apply_pod(pod, 0.0)
    queue.apply_pod(pod, 0.0)
    return pod.metadata.uid


class Bench:
    """A queue on a full cluster.

    Args:
        queue_names: How many.
        nodes: How many.
        seed: Seed of everything random.
        slots: Every card has slots.
    """

    def __init__(self, queue_names: int, nodes: int, seed: int, *, slots: bool) -> None:
        self.random = random.Random(seed)
        self.queue_names = [f"t{number:03}" for number in range(queue_names)]
        queues = [{"name": name, "weight": 1 + at % 4} for at, name in enumerate(self.queue_names)]
        slots_of_cards = {"per": "card", "local": {"count": 2}, "free": {"count": 2}}
        text = json.dumps({"queues": queues, "slots": slots_of_cards} if slots else {"queues": queues})
        self.state = ClusterState(rules=QueueChargeRules())
        config = parse_config("bench", text)
        self.queue = Queue(config, self.state, ClusterPolicies("fragmentation"))
        self.queue.job_stages.set_jobs([])
        self.version = 1
        self.running: list[dict[str, Any]] = []
        for number in range(nodes):
            self._node(f"n{number:05}")

    def _node(self, name: str) -> None:
        self.version += 1
        raw: Any = node_object(name, (CARD_UNITS,) * CARDS, version=self.version, cpu="512", memory="4000Gi")
        raw["metadata"]["labels"] = {"data.gpupack.io/d0": ""} if self.random.random() < 0.2 else {}
        add_node(self.queue, raw)

    def pod(self, number: int) -> None:
        """Let one more pod wait."""
        queue = self.queue_names[number % len(self.queue_names)]
        job = f"j{number // 6 // len(self.queue_names)}" if number % 3 == 0 else ""
        notes = {POD_JOB: job} if job else {}
        if job and self.random.random() < 0.5:
            notes[POD_DATA] = "d0"
        self.version += 1
        units, version = self.random.choice(SHAPES), self.version
        raw = pod_object(f"p{number}", units, version=version, annotations=notes, namespace=queue)
        add_gated_pod(self.queue, raw, queue)

    def decide(self, most: int | None = None) -> list[float]:
        """Decide until nobody can be admitted, or so many are; seconds of each decision."""
        took, began = [], time.perf_counter()
        for admitted in self.queue.admit_workloads(0.0):
            took.append(time.perf_counter() - began)
            self.running += [{"uid": member.uid, "node": member.node} for member in admitted.members]
            if len(took) == most:
                return took
            began = time.perf_counter()
        return [*took, time.perf_counter() - began]

    def end_one(self) -> None:
        """End a admitted pod, whose room is free at once."""
        at = self.random.randrange(len(self.running))
        self.running[at], self.running[-1] = self.running[-1], self.running[at]
        uid = self.running.pop()["uid"]
        assumed = self.state.get_assumed(uid)
        if assumed is not None:
            self.state.forget(assumed, 0.0)
        self.queue.delete_pod(uid, 0.0)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the figures."""
    parser = make_parser("queue", __doc__, queues=(100, "queues"), nodes=(1000, "nodes"))
    parser.add_argument("--waiting", type=at_least(ENDED), default=10_000, help="pods that wait (10000)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--slots", action="store_true")
    options = parser.parse_args(arguments)
    print(machine())
    bench = Bench(options.queues, options.nodes, options.seed, slots=options.slots)
    number = 0
    while True:
        for _ in range(min(1000, options.waiting)):
            bench.pod(number)
            number += 1
        bench.decide()
        if sum(len(queue.waiting) for queue in bench.queue.queues) > min(500, options.waiting // 2):
            break
    print(f"full: {len(bench.running)} pods run on {options.nodes} nodes")
    while sum(len(queue.waiting) for queue in bench.queue.queues) < options.waiting:
        bench.pod(number)
        number += 1
    bench.decide()
    gc.collect()
    gc.freeze()
    decisions: list[float] = []
    given_on: list[float] = []
    for _ in range(ENDED):
        bench.end_one()
        took = bench.decide()
        decisions += took
        given_on.append(took[0])
    rss = resident_mib(os.getpid())
    p50, p99 = (1e3 * percentile(decisions, percent) for percent in (50, 99))
    print(f"{len(decisions)} decisions: p50 {p50:.2f} p99 {p99:.2f} worst {1e3 * max(decisions):.2f} ms")
    print(f"from the end of a pod to the next release: worst {1e3 * max(given_on):.2f} ms")
    print(
        json.dumps(
            {
                "queues": options.queues,
                "waiting": options.waiting,
                "decision_p50_ms": round(p50, 3),
                "decision_p99_ms": round(p99, 3),
                "given_on_worst_ms": round(1e3 * max(given_on), 3),
                "rss_mib": round(rss, 1),
            }
        )
    )


if __name__ == "__main__":
    main()
