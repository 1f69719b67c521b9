"""Policies where pods come and go: `python -m benchmarks.replay --traces FOLDER`.

The folder holds `openb_node_list_gpu_node.csv` and `openb_pod_list_*.csv` with times, made from
cluster-trace-gpu-v2023 of alibaba/clusterdata (Weng et al., USENIX ATC 2023). Pods come and end at the pace
of the trace, at several loads. With one seed all policies get the same pods on the same nodes. Printed are
means over the seeds: GPUs allocated, pods that had to wait, how long they waited. The last line is JSON.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.machine import machine
from scheduler_plugin.scheduling.policies import list_names
from scheduler_plugin.simulator.app import simulate
from scheduler_plugin.simulator.options import (
    WORKLOADS,
    SimulationOptions,
    count_default_jobs,
    parse_names,
    parse_seeds,
)
from scheduler_plugin.simulator.replay_report import report_replays

NODES = "openb_node_list_gpu_node.csv"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replay", description=__doc__)
    parser.add_argument("--traces", required=True, help="folder with the CSV files")
    parser.add_argument("--trace", default="default", help="openb_pod_list_NAME.csv (default: %(default)s)")
    parser.add_argument("--policy", default=",".join(list_names()), help="policies (default: all)")
    parser.add_argument("--loads", default="0.7,0.8,0.9,1.0", help="loads (default: %(default)s)")
    parser.add_argument("--seeds", default="42-46", help="seeds (default: %(default)s)")
    parser.add_argument(
        "--jobs", type=int, default=count_default_jobs(), help="processes (default: %(default)s)"
    )
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
    json.dump(everything, sys.stdout)
    print()


if __name__ == "__main__":
    main()
