"""A burst of 100 pods through the two tiers: `python -m benchmarks.burst [--workers 1,2,4,100]`.

Two tables. Waiting: every pre-scheduling takes 200 ms and every commit 50 ms besides the real work, as in the
method's own example. The table has what real processes took beside what the model says. Working: nothing
waits, the nodes are many, and what is measured is this machine. The last line is JSON.
"""

import argparse
import json
import os
import time
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from allocator.names import DEFAULT_NODE_POLICY
from allocator.request import ContainerRequest, PodRequest
from benchmarks.machine import machine
from benchmarks.two_tier.workers import BatchResult, BatchSettings, Job, schedule
from scheduler_plugin.cache.amounts import NOT_COUNTED, Amounts
from scheduler_plugin.cache.node_arrays import NodeArrays

PODS = 100
PREPARE_S = 0.2
COMMIT_S = 0.05
ONE_SCHEDULER_S = PODS * PREPARE_S
"""As the source of the method counts one scheduler: without its commits."""


def commit_times(pods: int, workers: int, prepare: float, commit_one: float) -> list[float]:
    """When each pod is committed: `C_i = max(C_(i-1), ceil(i / w) * t) + r`.

    Args:
        pods: Pods that arrive at once.
        workers: w, pre-schedulers.
        prepare: t, time to pre-schedule one.
        commit_one: r, time to commit one.

    Returns:
        C_1 .. C_n, in the unit of t and r.

    Raises:
        ValueError: workers below 1.
    """
    if workers < 1:
        raise ValueError(f"{workers} workers; allowed: 1 or more")
    prepared = (-(-number // workers) * prepare for number in range(1, pods + 1))
    done = accumulate(prepared, lambda last, ready: max(last, ready) + commit_one, initial=0.0)
    return list(done)[1:]


def cluster(nodes: int) -> NodeArrays:
    """Nodes of 8 cards of 80 units, 60 % full at random."""
    rng = np.random.default_rng(1)
    arrays = NodeArrays(rows=nodes, cards=8)
    for number in range(nodes):
        row = arrays.add_node(f"node-{number:05}")
        arrays.amounts.set_capacity(row, Amounts(pods=NOT_COUNTED, cpu_milli=128_000, memory_bytes=1 << 40))
        arrays.set_cards(row, [80] * 8, rng.integers(0, 97, 8).clip(0, 80).tolist())
    return arrays


def jobs(count: int) -> list[Job]:
    """Pods of 20 shapes in turn."""
    return [
        Job(PodRequest((ContainerRequest("main", 2 + 3 * (number % 20), "main"),)), Amounts(1, 1000, 1 << 30))
        for number in range(count)
    ]


def burst(nodes: int, pods: int, workers: int, prepare_s: float, commit_s: float, policy: str) -> BatchResult:
    """Schedule one burst on a fresh cluster."""

    def bind(*_: object) -> bool:
        if commit_s:
            time.sleep(commit_s)
        return True

    settings = BatchSettings(workers=workers, node_policy=policy, prepare_wait_s=prepare_s)
    return schedule(cluster(nodes), jobs(pods), settings, bind)


def one_process(nodes: int, pods: int, policy: str) -> float:
    """Do the work by one scheduler, in this process; return seconds."""
    from benchmarks.two_tier.workers import prepare  # noqa: PLC0415
    from scheduler_plugin.scheduling.cluster_policies import ClusterPolicies  # noqa: PLC0415 - as the workers do

    arrays, batch = cluster(nodes), jobs(pods)
    policies = ClusterPolicies(policy)
    start = time.monotonic()
    for job in batch:
        best = prepare(policies, arrays, job, 1, 0)[0]
        row = arrays.rows[best.node]
        arrays.amounts.add_requested(row, job.amounts)
        units = job.request.containers[0].units
        taken = arrays.assumed[row].tolist()
        taken[int(arrays.free[row].argmax())] += units
        arrays.set_assumed(row, taken)
    return time.monotonic() - start


def main(arguments: Sequence[str] | None = None) -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", default="1,2,4,100", help="processes, by commas (default: %(default)s)")
    parser.add_argument("--nodes", default="1000,5000,15000", help="nodes of the working table")
    parser.add_argument("--pods", type=int, default=400, help="pods of the working table")
    parser.add_argument("--policy", default=DEFAULT_NODE_POLICY, help="node policy of the working table")
    options = parser.parse_args(arguments)
    workers = [int(part) for part in options.workers.split(",")]
    cores = len(os.sched_getaffinity(0))
    print(machine())
    print(f"\nwaiting: {PODS} pods, pre-scheduling {PREPARE_S:g} s, commit {COMMIT_S:g} s")
    print(f"{'workers':>8}{'model, s':>10}{'measured, s':>13}{'faster than 20 s by':>21}")
    waiting = []
    for count in workers:
        model = commit_times(PODS, count, PREPARE_S, COMMIT_S)[-1]
        measured = burst(100, PODS, count, PREPARE_S, COMMIT_S, "least-requested").wall_s
        waiting.append({"workers": count, "model_s": round(model, 3), "measured_s": round(measured, 3)})
        print(f"{count:>8}{model:>10.2f}{measured:>13.2f}{ONE_SCHEDULER_S / measured:>20.2f}x")
    print(f"\nworking: {options.pods} pods, policy {options.policy}, no waiting")
    print(f"{'nodes':>8}{'workers':>9}{'pods/s':>9}{'against one':>13}{'conflicts a list':>18}")
    working = []
    for nodes in (int(part) for part in options.nodes.split(",")):
        alone = options.pods / one_process(nodes, options.pods, options.policy)
        print(f"{nodes:>8}{'none':>9}{alone:>9.0f}{'':>13}{'':>18}")
        for count in (each for each in workers if each <= 4 * cores):
            result = burst(nodes, options.pods, count, 0.0, 0.0, options.policy)
            rate = len(result.placed) / result.wall_s
            conflicts = result.conflicts / max(1, result.lists)
            print(f"{nodes:>8}{count:>9}{rate:>9.0f}{rate / alone:>12.2f}x{conflicts:>18.1f}")
            working.append(
                {"nodes": nodes, "workers": count, "pods_per_s": round(rate), "alone": round(alone)}
            )
    print(json.dumps({"waiting": waiting, "working": working}))


if __name__ == "__main__":
    main()
