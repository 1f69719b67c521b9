"""Policies where pods come and go: `python -m benchmarks.replay --traces FOLDER`.

The folder holds `openb_node_list_gpu_node.csv` and `openb_pod_list_*.csv` with times, made from
cluster-trace-gpu-v2023 of alibaba/clusterdata (Weng et al., USENIX ATC 2023). Pods come and end at the pace
of the trace, at several loads. With one seed all policies get the same pods on the same nodes. Printed are
means over the seeds: GPUs allocated, pods that had to wait, how long they waited. The last line is JSON.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks.machine import machine
from benchmarks.policies import NODES, add_run_options, make_traces_parser
from scheduler_plugin.simulator.app import simulate
from scheduler_plugin.simulator.options import WORKLOADS, SimulationOptions, parse_names, parse_seeds
from scheduler_plugin.simulator.replay_report import report_replays


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = make_traces_parser("replay", __doc__, "42-46")
    add_run_options(parser)
    parser.add_argument("--trace", default="default", help="openb_pod_list_NAME.csv (default: %(default)s)")
    parser.add_argument("--loads", default="0.7,0.8,0.9,1.0", help="loads (default: %(default)s)")
    options = parser.parse_args(arguments)
    print(machine())
    folder = Path(options.traces)
    everything = {}
    for load in parse_names(options.loads):
        told = simulate(
            SimulationOptions(
                str(folder / NODES),
                str(folder / f"openb_pod_list_{options.trace}.csv"),
                parse_names(options.policy),
                seeds=parse_seeds(options.seeds),
                jobs=options.jobs,
                workloads=WORKLOADS,
                replay=True,
                load=float(load),
            ),
            lambda _: None,
            lambda *_: None,
        )
        print(f"\nload {load}")
        for line in report_replays(told):
            print(line, flush=True)
        everything[load] = told["mean"]
    print(json.dumps(everything))


if __name__ == "__main__":
    main()
