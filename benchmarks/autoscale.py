"""Processor time of one pass of `gpupack autoscale`: which nodes to ask for, and which to keep.

`python -m benchmarks.autoscale [--nodes 5000] [--pods 40000] [--waiting 1000] [--kinds 50]`: makes a cluster
up in which pods fill the cards, and pods of so many kinds that wait. The last line is JSON: seconds of
processor time, the median of the passes, and how many passes reading the cluster takes.
"""

import json
import random
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from benchmarks.ask import RESOURCE, cluster, pod
from benchmarks.machine import machine, make_parser
from gpupack.autoscale.planner import Planner, PlanRules
from gpupack.autoscale.scale_down import find_nodes_to_keep
from gpupack.whatif.cluster import Cluster

UNSCHEDULABLE: Final = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}


def main(arguments: list[str] | None = None) -> None:
    """Run the benchmark as its command line says."""
    parser = make_parser(
        "autoscale",
        __doc__,
        nodes=(5000, "nodes of eight cards"),
        pods=(40_000, "pods that run"),
        waiting=(1000, "pods that wait"),
        kinds=(50, "kinds of them"),
        passes=(5, "passes"),
    )
    options = parser.parse_args(arguments)
    print(machine())
    found = cluster(options.nodes, options.pods)
    found["items"] = [item for item in found["items"] if item["metadata"]["name"] != "waiting"]
    found["items"] += waiting_pods(options.waiting, options.kinds)
    text = json.dumps(found)
    read, world = timed(lambda: Cluster.from_json(text))
    planner = Planner(PlanRules(grace_s=0.0))
    passes = [timed(partial(planner.plan, world, float(at), 0.0)) for at in range(options.passes)]
    plan_s = statistics.median(seconds for seconds, _ in passes)
    keep_s, kept = timed(lambda: find_nodes_to_keep(world))
    plan = passes[-1][1]
    print(f"{len(plan.placeholders)} placeholders; {len(kept)} of {options.nodes} nodes kept")
    for outcome, count in sorted(plan.counts().items()):
        print(f"{count} pods {outcome.value}")
    print(
        json.dumps(
            {
                "nodes": options.nodes,
                "waiting": options.waiting,
                "pass_s": round(plan_s, 3),
                "keep_s": round(keep_s, 3),
                "read_per_pass": round(read / plan_s, 1),
            }
        )
    )


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Do something; returns the seconds of processor time that it took, and its result."""
    began = time.process_time()
    result = work()
    return time.process_time() - began, result


def waiting_pods(number: int, kinds: int, seed: int = 1) -> list[dict[str, Any]]:
    """Make pods that kube-scheduler found unschedulable: of the larger sizes, over one or more cards."""
    rng = random.Random(seed)
    shapes = [(rng.randrange(30, 79), rng.choice((1, 1, 2)), 1 + at) for at in range(kinds)]
    made = []
    for at in range(number):
        each, cards, cpu = shapes[at % kinds]
        item = pod(f"wait-{at}", each * cards)
        item["metadata"]["annotations"]["gpupack.io/cards"] = str(cards)
        amounts = {RESOURCE: str(each * cards), "cpu": f"{100 * cpu}m", "memory": "8Gi"}
        item["spec"]["containers"][0]["resources"] = {"limits": amounts, "requests": amounts}
        item["status"] = {"phase": "Pending", "conditions": [UNSCHEDULABLE]}
        made.append(item)
    return made


if __name__ == "__main__":
    main()
