"""Published results against ours: `python -m benchmarks.policies --traces FOLDER`.

The folder holds `openb_node_list_gpu_node.csv`, `openb_pod_list_*.csv` and `published.csv`, made from
cluster-trace-gpu-v2023 of alibaba/clusterdata (Weng et al., USENIX ATC 2023). Every policy runs every trace
with every seed by the published protocol. Printed are GPUs allocated in percent, mean over the seeds and
standard deviation. Both count when pods asking for 100 % and for 130 % of the GPUs have arrived. The last
line is JSON.

`fragmentation, trace` knows beforehand what the whole pod list asks for, as the published FGD does.
`fragmentation, learned` is what the extender ships: it learns that from the pods as they arrive.
"""

import argparse
import csv
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from allocator.names import DEFAULT_CARD_POLICY
from benchmarks.machine import machine, make_parser
from scheduler_plugin.scheduling.policies import list_names
from scheduler_plugin.simulator.app import simulate
from scheduler_plugin.simulator.options import (
    LEARNED,
    TRACE,
    SimulationOptions,
    count_default_jobs,
    parse_names,
    parse_seeds,
)

NODES = "openb_node_list_gpu_node.csv"
KNOWING = "fragmentation, trace"
LEARNING = "fragmentation, learned"


def published(folder: Path) -> dict[str, dict[str, tuple[float, float]]]:
    """Read the published results: trace -> policy -> percent at 100 and at 130."""
    result: dict[str, dict[str, tuple[float, float]]] = {}
    with (folder / "published.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            cells = (float(row["allocated_pct_at_100"]), float(row["allocated_pct_at_130"]))
            result.setdefault(row["trace"], {})[row["policy"]] = cells
    return result


def ours(folder: Path, trace: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run one trace; mean by policy."""
    run = SimulationOptions(
        str(folder / NODES),
        str(folder / f"{trace}.csv"),
        parse_names(options.policy),
        card_policy=options.card_policy,
        seeds=parse_seeds(options.seeds),
        jobs=options.jobs,
        workloads=(TRACE, LEARNED),
    )
    means: dict[str, Any] = simulate(run)["mean"]
    return means


def make_traces_parser(name: str, about: str | None, seeds: str) -> argparse.ArgumentParser:
    """Make the command line of a benchmark on the traces."""
    parser = make_parser(name, about)
    parser.add_argument("--traces", required=True, help="folder with the CSV files")
    parser.add_argument("--seeds", default=seeds, help="seeds (default: %(default)s)")
    return parser


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add which policies run, and in how many processes."""
    parser.add_argument("--policy", default=",".join(list_names()), help="policies (default: all)")
    jobs = count_default_jobs()
    parser.add_argument("--jobs", type=int, default=jobs, help="processes (default: %(default)s)")


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = make_traces_parser("policies", __doc__, "42-51")
    add_run_options(parser)
    parser.add_argument("--card-policy", default=DEFAULT_CARD_POLICY, help="default: %(default)s")
    options = parser.parse_args(arguments)
    print(machine())
    folder = Path(options.traces)
    table = published(folder)
    everything: dict[str, dict[str, Any]] = {}
    print(f"{'trace':<24}{'policy':<25}{'at 100 %':>9}{'at 130 %':>9}{'+-':>6}{'at most':>9}{'s/run':>7}")
    for trace, rows in table.items():
        short = trace.removeprefix("openb_pod_list_")
        for policy, (at_100, at_130) in rows.items():
            print(f"{short:<24}{policy + ' (publ.)':<25}{at_100:>9.2f}{at_130:>9.2f}")
        everything[short] = ours(folder, trace, options)
        for policy, mean in everything[short].items():
            allocated, spread = mean["allocated_percent"], mean["spread"]["130"]
            cells = f"{allocated['100']:>9.2f}{allocated['130']:>9.2f}{spread:>6.2f}"
            bound = 100 - mean["unavoidable_percent"]
            print(f"{short:<24}{policy:<25}{cells}{bound:>9.2f}{mean['wall_s']:>7.2f}", flush=True)
    gains: dict[str, dict[str, float]] = {}
    for policy in (KNOWING, LEARNING):
        for trace, rows in table.items():
            short = trace.removeprefix("openb_pod_list_")
            if policy in everything[short]:
                gain = everything[short][policy]["allocated_percent"]["130"] - rows["FGD"][1]
                gains.setdefault(policy, {})[short] = round(gain, 3)
    for policy, mine in gains.items():
        each = ", ".join(f"{trace} {gain:+.2f}" for trace, gain in mine.items())
        print(f"{policy} against the published FGD at 130 %: {each}; mean {fmean(mine.values()):+.2f}")
    last_line = {
        "gain_over_fgd": gains.get(KNOWING, {}),
        "gain_over_fgd_learning": gains.get(LEARNING, {}),
        "learned_minus_given": {
            trace: round(learned - gains[KNOWING][trace], 3)
            for trace, learned in gains.get(LEARNING, {}).items()
            if trace in gains.get(KNOWING, {})
        },
        "allocated_percent_at_130": {
            trace: {policy: round(mean["allocated_percent"]["130"], 3) for policy, mean in means.items()}
            for trace, means in everything.items()
        },
    }
    print(json.dumps(last_line))


if __name__ == "__main__":
    main()
