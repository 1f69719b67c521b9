"""How few nodes best-fit looks at: `python -m benchmarks.buckets [--nodes 1000,5000,15000]`.

Nodes have 8 cards of 80 units, 60 % full at random. 20 request shapes come in turn, mode is `pick` with
default parameters. Every decision is committed, so the index changes between two of them. The first table
prints for each decision:

- probes, the buckets that were looked into;
- touched, the cards of the index or nodes of the arrays that were looked at;
- the time, beside that of a scan, which filters and scores all nodes (mode `candidates`);
- both times of those decisions for which more was looked at than the index gives.

The second table is the queue's, which makes its candidates itself. There is the time to place a pod on the
cluster, and how many nodes were scored or cards of the index touched. `scan` is mode `candidates`: all nodes
that fit are scored for each pod. `index` is mode `pick`. Pods are of 20
kinds in turn, or each of a kind of its own. The last line is JSON.
"""

import json
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np

from allocator.request import PodRequest
from benchmarks.burst import cluster
from benchmarks.machine import make_parser
from benchmarks.queue import add_gated_pod, add_node
from scheduler_plugin.cache.amounts import Amounts
from scheduler_plugin.cache.node_arrays import NodeArrays
from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.queue.config.queues import parse_config
from scheduler_plugin.queue.scheduler.queue import Queue, QueueChargeRules
from scheduler_plugin.scheduling.cluster_policies import ClusterPolicies
from scheduler_plugin.scheduling.policies.best_fit import MOST_ITEMS, BestFit, BestFitSettings
from scheduler_plugin.scheduling.policies.buckets import BucketSearchResult
from scheduler_plugin.scheduling.policies.registry import CardDemand, PolicyRequest
from scheduler_plugin.scheduling.ranking import rank_best
from tests.cluster_builders import node_object, pod_object
from tests.policy_view import mask_fitting

DECISIONS = 400
CARD_UNITS = 80


def shapes() -> list[PolicyRequest]:
    """20 requests of 1 to 58 units on one card, and two of several."""
    sizes = [1 + 3 * number for number in range(18)]
    single = [
        PolicyRequest(Amounts(1, 1000 + 500 * (size % 7), size << 29), (CardDemand(size, 1),))
        for size in sizes
    ]
    return [
        *single,
        PolicyRequest(Amounts(1, 8000, 8 << 30), (CardDemand(20, 2),)),
        PolicyRequest(Amounts(1, 16_000, 16 << 30), (CardDemand(40, 4),)),
    ]


def scan(policy: BestFit, arrays: NodeArrays, ask: PolicyRequest) -> int | None:
    """Find the best node as the extender does: filter all, score those that fit, take the best."""
    rows = np.flatnonzero(mask_fitting(arrays, ask))
    first = rank_best(policy.score(arrays, ask, rows), arrays.name_rank[rows], 1)
    return int(rows[first[0]]) if len(first) else None


def measure(nodes: int) -> dict[str, float]:
    """Decide and commit; what a decision looks at, and microseconds."""
    arrays = cluster(nodes)
    policy, scanning = BestFit(BestFitSettings(mode="pick")), BestFit(BestFitSettings(mode="candidates"))
    asks = shapes()
    for ask in asks:
        policy.pick(arrays, ask, mask_fitting(arrays, ask))
    probes, touched, times, scans = [], [], [], []
    for number in range(DECISIONS):
        ask = asks[number % len(asks)]
        start = time.perf_counter()
        scan(scanning, arrays, ask)
        scans.append(time.perf_counter() - start)
        fits = mask_fitting(arrays, ask)
        start = time.perf_counter()
        found = policy.pick(arrays, ask, fits)
        times.append(time.perf_counter() - start)
        probes.append(len(found.probes))
        touched.append(found.touched)
        if found.key is not None:
            units, count, _ = ask.demands[0]
            taken = arrays.assumed[found.key].tolist()
            free = arrays.free[found.key]
            for card in np.argsort(np.where(free >= units, free, CARD_UNITS + 1))[:count].tolist():
                taken[card] += units
            arrays.set_assumed(found.key, taken)
    return {
        "nodes": nodes,
        "probes": round(sum(probes) / len(probes), 2),
        "touched": median(touched),
        "touched_mean": round(sum(touched) / len(touched), 1),
        "pick_us": round(1e6 * median(times), 1),
        "scan_us": round(1e6 * median(scans), 1),
        "arrays_us": _median_us(times, touched),
        "arrays_scan_us": _median_us(scans, touched),
    }


def _median_us(times: Sequence[float], touched: Sequence[int]) -> float:
    """Microseconds of those decisions for which all nodes were looked at; 0: of none."""
    given_up = [took for took, count in zip(times, touched, strict=True) if count > MOST_ITEMS]
    return round(1e6 * median(given_up), 1) if given_up else 0.0


class QueueBench:
    """Places pods as the queue does, and counts the nodes that the policy looks at.

    Args:
        nodes: How many, filled as in `burst.cluster`.
        mode: Mode of the policy.
    """

    def __init__(self, nodes: int, mode: str) -> None:
        self.queue = Queue(
            parse_config("bench", "queues: [{name: a}]"),
            ClusterState(rules=QueueChargeRules()),
            ClusterPolicies("best-fit", parameters={"mode": mode}),
        )
        self.touched = self._pods = 0
        rng = np.random.default_rng(1)
        for number in range(nodes):
            used = rng.integers(0, 97, 8).clip(0, 80).tolist()
            raw = node_object(f"n{number:05}", (80,) * 8, used, version=1, cpu="128", memory="1024Gi")
            add_node(self.queue, raw)
        policy: Any = self.queue.capacity.policies.get_policy(PodRequest(()))
        self._pick, self._score = policy.pick, policy.score
        policy.pick, policy.score = self.pick, self.score

    def pick(self, *arguments: Any) -> BucketSearchResult:
        """Count what a search touches."""
        found: BucketSearchResult = self._pick(*arguments)
        self.touched += found.touched
        return found

    def score(self, view: Any, ask: Any, rows: Any) -> Any:
        """Count the nodes that are scored."""
        self.touched += len(rows)
        return self._score(view, ask, rows)

    def place(self, kind: int) -> float:
        """Place a pod; seconds."""
        self._pods += 1
        units, cpu = 1 + 3 * (kind % 18), f"{100 + kind}m"
        raw = pod_object(f"p{self._pods}", units, cpu=cpu, version=self._pods + 1)
        uid = add_gated_pod(self.queue, raw, "a")
        wants = self.queue.queued_pods[uid].requirements
        assert wants is not None
        # Asked before: the queue knows where each kind that waits would fit.
        self.queue.capacity.mask_fits(wants)
        start = time.perf_counter()
        fits = self.queue.capacity.mask_fits(wants)
        node = self.queue.admission.placer.place_pod(uid, wants, fits, 0.0)
        took = time.perf_counter() - start
        assert node
        return took


def measure_queue(nodes: int) -> list[dict[str, float | str]]:
    """Place pods of few and of many kinds; microseconds and nodes touched for a pod."""
    found: list[dict[str, float | str]] = []
    for mode, way in (("candidates", "scan"), ("pick", "index")):
        bench = QueueBench(nodes, mode)
        for first, kinds in ((0, 20), (1000, DECISIONS)):
            for kind in range(20):
                bench.place(first - 20 + kind if first else kind)
            bench.touched = 0
            times = [bench.place(first + at % kinds) for at in range(DECISIONS)]
            mean_us = round(1e6 * sum(times) / DECISIONS, 1)
            touched = round(bench.touched / DECISIONS, 1)
            found.append(
                {"nodes": nodes, "way": way, "kinds": kinds, "place_us": mean_us, "touched": touched}
            )
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = make_parser("buckets", __doc__)
    parser.add_argument("--nodes", default="1000,5000,15000", help="by commas (default: %(default)s)")
    options = parser.parse_args(arguments)
    heads = ("probes", "touched", "touched_mean", "pick_us", "scan_us", "arrays_us", "arrays_scan_us")
    print(f"{'nodes':>8}" + "".join(f"{head.replace('_', ', '):>17}" for head in heads))
    results = []
    for nodes in (int(part) for part in options.nodes.split(",")):
        result = measure(nodes)
        results.append(result)
        print(f"{nodes:>8}" + "".join(f"{result[head]:>17g}" for head in heads))
    print(f"\n{'nodes':>8}{'way':>8}{'kinds':>8}{'touched a pod':>16}{'place, us':>12}")
    placed = [each for nodes in options.nodes.split(",") for each in measure_queue(int(nodes))]
    for each in placed:
        figures = f"{each['touched']:>16}{each['place_us']:>12}"
        print(f"{each['nodes']:>8}{each['way']:>8}{each['kinds']:>8}{figures}")
    print(json.dumps({"pick": results, "queue": placed}))


if __name__ == "__main__":
    main()
