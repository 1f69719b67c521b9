"""The five methods and the figure that each is known by: `python -m benchmarks.methods [NAME ...]`.

Names are packed, buckets, balance, tiers and slots; without any all five are printed. Every figure comes from
the code that the scheduler and the queue run, on the example of the method. `--measured` also runs the burst
of two tiers with real processes, which takes six seconds. The last line is JSON. docs/methods.md leads from
here to options and further figures.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from allocator.packing import NodeWords, node_resources, read_node
from allocator.request import ContainerRequest, PodRequest
from benchmarks.burst import COMMIT_S, ONE_SCHEDULER_S, PODS, PREPARE_S, burst, commit_times
from benchmarks.machine import make_parser
from benchmarks.slots import find_busy_percent, rounds
from scheduler_plugin.cache.amounts import NOTHING, Amounts
from scheduler_plugin.cache.node_arrays import NodeArrays
from scheduler_plugin.scheduling.cluster_policies import ClusterPolicies
from scheduler_plugin.scheduling.filtering import filter_nodes
from scheduler_plugin.scheduling.placing import place_by_policy
from scheduler_plugin.scheduling.policies import make_policy
from scheduler_plugin.scheduling.policies.registry import AttemptCounter, CardDemand, Learner, PolicyRequest

CARD: Final = 16
GIB: Final = 1 << 30
WORKERS: Final = 4

Figures = dict[str, Any]


def packed() -> Figures:
    """Several pods a card: a node's integers tell each card's truth, where a sum is wrong."""
    arrays = NodeArrays(1, 4)
    row = arrays.add_node("n1")
    arrays.amounts.set_capacity(row, Amounts(110, 64_000, 256 * GIB))
    policies, rows = ClusterPolicies(), np.array([row])
    used = [0] * 4
    arrays.set_cards(row, [CARD] * 4, used)
    placed = []
    for units in (4, 4, 6, 10, 10, 10, 6):
        query = policies.make_request(
            arrays, PodRequest((ContainerRequest("main", units, "main"),)), Amounts(1, 1000, GIB)
        )
        fits = filter_nodes(arrays, query, rows)[0]
        placement = place_by_policy(policies.get_policy(query.request), arrays, row, query) if fits else None
        for card, taken in {} if placement is None else placement.charge.items():
            used[card] += taken
            placed.append([units, card])
        arrays.set_cards(row, [CARD] * 4, used)
    resources = node_resources(NodeWords.of(1024, [CARD] * 4, used, 1))
    words = read_node(resources)
    free = [] if words is None else [size - use for size, use in zip(words.sizes, words.used, strict=True)]
    asked = max(free) + 1
    query = policies.make_request(
        arrays, PodRequest((ContainerRequest("main", asked, "main"),)), Amounts(1, 1000, GIB)
    )
    print("packed: pods of GiB and the card that each got:", ", ".join(f"{u} -> {c}" for u, c in placed))
    print(
        "  the node publishes",
        ", ".join(f"{name.split('/')[1]}={value}" for name, value in resources.items()),
    )
    said = "yes" if filter_nodes(arrays, query, rows)[0] else "no"
    print(f"  decoded, free by card: {free}, together {sum(free)}; does one more pod of {asked} fit? {said}")
    return {"placed": placed, "used_word": resources["gpupack.io/packed-used-0"], "free": free, "fits": said}


def buckets() -> Figures:
    """Best fit keeps the large rest for the large pod."""
    figures: Figures = {}
    for name in ("best fit", "first fit", "worst fit"):
        arrays = NodeArrays(2, 1)
        for node, free in (("a", 16), ("b", 10)):
            row = arrays.add_node(node)
            arrays.set_cards(row, [CARD], [CARD - free])
        policy = make_policy("best-fit", {"mode": "pick"})
        chosen: list[str | None] = []
        for units in (8, 16):
            rows = np.flatnonzero(arrays.usable & (arrays.free_order[0] >= units))
            scores = rows.astype(float) if name == "first fit" else -arrays.free_order[0][rows].astype(float)
            if name == "best fit":
                scores = policy.score(arrays, PolicyRequest(NOTHING, (CardDemand(units, 1),)), rows)
            order = np.lexsort((arrays.name_rank[rows], scores))
            row = int(rows[order[0]]) if rows.size else -1
            chosen.append(arrays.names[row] if rows.size else None)
            if rows.size:
                arrays.set_assumed(row, [int(arrays.assumed[row, 0]) + units])
        figures[name] = chosen
    print("buckets: nodes with 16 and 10 free, pods of 8 and then 16:", end=" ")
    print(
        "; ".join(
            f"{name} [{', '.join(node or 'none' for node in found)}]" for name, found in figures.items()
        )
    )
    return figures


JOBS: Final = {
    5: (20, 500, 4),
    2: (30, 400, 2),
    1: (40, 200, 2),
    4: (40, 300, 4),
    3: (30, 300, 1),
    6: (30, 200, 1),
}
"""Cpu, memory and GPU of the method's jobs, in the order in which they come."""


def run_jobs(parameters: Mapping[str, str]) -> tuple[list[int], list[int]]:
    """Run jobs on one node of 100 cores, 1000 GiB and 10 units of GPU: those that run, and what is left."""
    arrays = NodeArrays(1, 1)
    row = arrays.add_node("n")
    arrays.amounts.set_capacity(row, Amounts(110, 100_000, 1000 * GIB))
    arrays.set_cards(row, [10], [0])
    policy, rows, ran = make_policy("weighted-balance", parameters), np.array([row]), []
    for number, (cpu, memory, gpu) in JOBS.items():
        amounts = Amounts(1, cpu * 1000, memory * GIB)
        ask = PolicyRequest(amounts, (CardDemand(gpu, 1),), pod=str(number))
        if not arrays.amounts.fits(amounts, row) or gpu > arrays.free[row, 0]:
            assert isinstance(policy, Learner)
            policy.pending(str(number), arrays, ask, rows)
            continue
        goes = bool(policy.score(arrays, ask, rows)[0] < np.inf)
        assert isinstance(policy, AttemptCounter)
        policy.record_attempt(arrays, str(number), row if goes else None)
        if goes:
            ran.append(number)
            arrays.set_assumed(row, [int(arrays.assumed[row, 0]) + gpu])
            arrays.amounts.add_requested(row, amounts)
    left = [
        int(arrays.cpu_capacity[row] - arrays.cpu_used[row]) // 1000,
        int(arrays.memory_capacity[row] - arrays.memory_used[row]) // GIB,
        int(arrays.free[row, 0]),
    ]
    return ran, left


def balance() -> Figures:
    """Holding back the job that would tilt the node leaves nothing unused."""
    hold = {"on-no-improvement": "hold", "threshold": "1"}
    ran, left = run_jobs({})
    held, held_left = run_jobs(hold)
    print("balance: one node of 100 cores, 1000 GiB and 10 units of GPU, six jobs:")
    print(f"  first come runs jobs {ran}, left {tuple(left)}, which fits none of the others")
    print(f"  weighted-balance with hold runs jobs {held}, left {tuple(held_left)}")
    return {"first come": {"ran": ran, "left": left}, "hold": {"ran": held, "left": held_left}}


def tiers(*, measured: bool = False) -> Figures:
    """Many look, one commits: the burst of 100 pods."""
    end = commit_times(PODS, WORKERS, PREPARE_S, COMMIT_S)[-1]
    figures: Figures = {"one scheduler_s": ONE_SCHEDULER_S, "two tiers_s": round(end, 3)}
    print(
        f"tiers: {PODS} pods, {PREPARE_S * 1000:.0f} ms to look and {COMMIT_S * 1000:.0f} ms to commit:",
        end=" ",
    )
    print(f"one scheduler {ONE_SCHEDULER_S:g} s, two tiers with {WORKERS} workers {end:g} s", end="")
    print(f" ({ONE_SCHEDULER_S / end:.3f}x)")
    if measured:
        result = burst(1000, PODS, WORKERS, PREPARE_S, COMMIT_S, "least-requested")
        figures["measured_s"] = round(result.wall_s, 3)
        print(f"  measured with {WORKERS} processes: {result.wall_s:.2f} s")
    return figures


def slots() -> Figures:
    """Lent slots: half of the rounds."""
    figures: Figures = {}
    for name, borrowing in (("without borrowing", False), ("with borrowing", True)):
        sat = rounds(borrowing=borrowing)
        figures[name] = {"rounds": len(sat[0]), "busy_percent": round(find_busy_percent(sat), 1)}
    both = "; ".join(
        f"{name} {f['rounds']} rounds, {f['busy_percent']:g} % busy" for name, f in figures.items()
    )
    print(f"slots: 2 local and 2 free slots, 8 local tasks and then 4 free ones: {both}")
    return figures


METHODS: Final[Mapping[str, Callable[[], Figures]]] = {
    "packed": packed,
    "buckets": buckets,
    "balance": balance,
    "tiers": tiers,
    "slots": slots,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the figures."""
    parser = make_parser("methods", __doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(METHODS)} (default: all)")
    parser.add_argument("--measured", action="store_true", help="run the burst of two tiers, too: 6 s")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in METHODS]
    if unknown:
        parser.error(f"method {unknown[0]!r}; allowed: {', '.join(METHODS)}")
    figures = {}
    for name in options.names or METHODS:
        figures[name] = tiers(measured=options.measured) if name == "tiers" else METHODS[name]()
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
