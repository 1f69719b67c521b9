"""How few nodes best-fit looks at: `python -m benchmarks.buckets [--nodes 1000,5000,15000]`.

Nodes of 8 cards of 80 units, 60 % full at random, 20 request shapes in turn, mode `pick` with default
parameters; every decision is committed, so the index changes between two of them. Printed are time a
decision, and how many cards of the index or nodes of the arrays were touched, in percent of the nodes; the
last line is JSON.
"""

import argparse
import json
import time
from collections.abc import Sequence
from statistics import median

import numpy as np

from benchmarks.burst import cluster
from scheduler_plugin.placement.policies.best_fit import BestFit, Settings
from scheduler_plugin.placement.policies.registry import Ask, CardDemand

DECISIONS = 400
CARD_UNITS = 80


def shapes() -> list[Ask]:
    """20 requests of 1 to 58 units on one card, and two of several."""
    sizes = [1 + 3 * number for number in range(18)]
    single = [Ask(1000 + 500 * (size % 7), size << 29, (CardDemand(size, 1),)) for size in sizes]
    return [*single, Ask(8000, 8 << 30, (CardDemand(20, 2),)), Ask(16_000, 16 << 30, (CardDemand(40, 4),))]


def measure(nodes: int) -> dict[str, float]:
    """Decide and commit; share of nodes touched and microseconds a decision."""
    arrays = cluster(nodes)
    policy = BestFit(Settings(mode="pick"))
    asks = shapes()
    for ask in asks:
        policy.pick(arrays, ask)
    touched, times = [], []
    for number in range(DECISIONS):
        ask = asks[number % len(asks)]
        start = time.perf_counter()
        found = policy.pick(arrays, ask)
        times.append(time.perf_counter() - start)
        touched.append(found.touched / nodes)
        if found.key is not None:
            units, count = ask.demands[0]
            taken = arrays.assumed[found.key].tolist()
            free = arrays.free[found.key]
            for card in np.argsort(np.where(free >= units, free, CARD_UNITS + 1))[:count].tolist():
                taken[card] += units
            arrays.set_assumed(found.key, taken)
    return {
        "nodes": nodes,
        "touched_percent": round(100 * sum(touched) / len(touched), 3),
        "touched_max_percent": round(100 * max(touched), 3),
        "decision_us": round(1e6 * median(times), 1),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.buckets", description=__doc__)
    parser.add_argument("--nodes", default="1000,5000,15000", help="by commas (default: %(default)s)")
    options = parser.parse_args(arguments)
    print(f"{'nodes':>8}{'touched, mean %':>17}{'most %':>9}{'decision, us':>14}")
    results = []
    for nodes in (int(part) for part in options.nodes.split(",")):
        result = measure(nodes)
        results.append(result)
        touched = f"{result['touched_percent']:>17.2f}{result['touched_max_percent']:>9.2f}"
        print(f"{nodes:>8}{touched}{result['decision_us']:>14.0f}")
    print(json.dumps(results))


if __name__ == "__main__":
    main()
