"""Cards of claims against the extender's: `python -m benchmarks.claim_cards --traces FOLDER`.

The folder is that of `benchmarks.policies`. Every trace runs by its protocol: pods asking for 130 % of the
GPUs arrive and none ends. Three ways choose:

- `claims`: kube-scheduler ranks nodes by free cpu and memory, and takes the first card of the node's slice
  that has room, the fullest first.
- `first fit`: the extender ranks nodes, and the card is that first one.
- `extender`: it ranks nodes and chooses cards, as shipped.

Printed are GPUs allocated in percent when pods asking for 100 % and for 130 % have arrived, means over the
seeds. The last line is JSON.
"""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Final

import numpy as np

from allocator.names import DEFAULT_CARD_POLICY, DEFAULT_NODE_POLICY
from benchmarks.machine import machine
from benchmarks.policies import NODES, make_traces_parser
from scheduler_plugin.cache.arrays import ClusterView, FloatArray, RowArray
from scheduler_plugin.scheduling.policies.registry import NodePolicy, PolicyRequest
from scheduler_plugin.simulator.cluster import SimulatedCluster
from scheduler_plugin.simulator.options import parse_seeds
from scheduler_plugin.simulator.packing import run_packing
from scheduler_plugin.simulator.placer import make_simulated_policy
from scheduler_plugin.simulator.trace import CARD, draw_pods, read_nodes, read_pods

INFLATION: Final = 1.3
FULLEST_FIRST: Final = "most-used"


class LeastAllocated:
    """Ranks as kube-scheduler does by default where nobody counts GPUs: by the requested cpu and memory."""

    epoch = 0
    by_row = True
    ranks_plain_pods = True

    def score(self, view: ClusterView, ask: PolicyRequest, rows: RowArray) -> FloatArray:
        """Score rows by the mean of both fractions after placing the pod."""
        cpu = (view.cpu_used[rows] + ask.cpu_milli) / np.maximum(view.cpu_capacity[rows], 1)
        memory = (view.memory_used[rows] + ask.memory_bytes) / np.maximum(view.memory_capacity[rows], 1)
        scores: FloatArray = (cpu + memory) / 2
        return scores


def make_way(name: str) -> tuple[NodePolicy, str]:
    """Make the node policy of a way, and name its card policy."""
    if name == "claims":
        return LeastAllocated(), FULLEST_FIRST
    shipped = make_simulated_policy(DEFAULT_NODE_POLICY, {}, None)
    return shipped, FULLEST_FIRST if name == "first fit" else DEFAULT_CARD_POLICY


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    options = make_traces_parser("claim_cards", __doc__, "42-44").parse_args(arguments)
    print(machine())
    folder = Path(options.traces)
    found: dict[str, dict[str, tuple[float, float]]] = {}
    print(f"{'trace':<16}{'way':<12}{'at 100 %':>9}{'at 130 %':>9}")
    for path in sorted(folder.glob("openb_pod_list_*.csv")):
        trace = path.stem.removeprefix("openb_pod_list_")
        nodes = read_nodes(str(folder / NODES), _ignore, ())
        pods = read_pods(str(path), nodes, _ignore, timed=False, others=())
        for way in ("claims", "first fit", "extender"):
            points = []
            for seed in parse_seeds(options.seeds):
                cluster = SimulatedCluster(nodes, CARD, ())
                policy, card_policy = make_way(way)
                drawn = draw_pods(pods, cluster.gpus, INFLATION, seed)
                outcome = run_packing(cluster, policy, card_policy, drawn, time.perf_counter)
                points.append((outcome.allocated_percent["100"], outcome.allocated_percent["130"]))
            at_100, at_130 = (fmean(column) for column in zip(*points, strict=True))
            found.setdefault(trace, {})[way] = at_100, at_130
            print(f"{trace:<16}{way:<12}{at_100:>9.2f}{at_130:>9.2f}", flush=True)
    print(json.dumps(found))


def _ignore(_line: str) -> None:
    """Say nothing of odd rows: `benchmarks.policies` does."""


if __name__ == "__main__":
    main()
