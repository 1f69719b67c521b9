"""Policies on the live cluster: as it is, with other nodes, with units of another size."""

import json
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from allocator.names import MIB
from allocator.quantity import format_memory
from gpupack.whatif.changes import apply_changes
from gpupack.whatif.cluster import Cluster
from gpupack.whatif.fit import require_cards
from gpupack.whatif.snapshot import FILES, Snapshot, make_snapshot
from scheduler_plugin.cache.pods import sum_host_requests
from scheduler_plugin.errors import TraceError
from scheduler_plugin.queue.controller.config_file import ConfigFile
from scheduler_plugin.scheduling.reasons import format_demands
from scheduler_plugin.simulator.app import run, simulate, write_json
from scheduler_plugin.simulator.options import SimulationOptions
from scheduler_plugin.simulator.queued_replay import check_trace
from scheduler_plugin.simulator.trace import UNFIT, read_pods

NOW: Final = "as it is"

_NONE: Final = 1e-6
"""An inflation that adds no pods."""

_FIRST: Final = 2
"""Line of the first pod in a file."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A cluster to simulate, what is different about it, and the MiB of the units to count in."""

    label: str
    cluster: Cluster
    unit_mib: int


def make_scenarios(
    cluster: Cluster, without: Sequence[str], add: Sequence[str], unit_mib: int | None
) -> list[Scenario]:
    """Make the clusters to simulate: as it is, then one for each kind of change.

    Raises:
        InputError: a node or profile that there is not, or no node with cards.
    """
    require_cards(cluster)
    found = [Scenario(NOW, cluster, cluster.unit_mib)]
    changed, _ = apply_changes(cluster, without, add)
    if changed is not None:
        parts = [f"with {text}" for text in add] + [f"without {name}" for name in without]
        found.append(Scenario(", ".join(parts), changed, cluster.unit_mib))
    if unit_mib is not None and unit_mib != cluster.unit_mib:
        found.append(Scenario(f"with units of {format_memory(1, unit_mib)}", cluster, unit_mib))
    return found


def make_trace(cluster: Cluster, unit_mib: int | None = None, others: Sequence[str] = ()) -> Snapshot:
    """Write a cluster down as a trace that can be simulated, with what counts of further resources.

    Raises:
        TraceError: no pod asks for GPU memory, or no card has a unit of it.
    """
    taken = make_snapshot(cluster, unit_mib=unit_mib, others=others)
    if not taken.nodes:
        largest = format_memory(int(cluster.state.nodes.size.max(initial=0)), cluster.unit_mib)
        unit = format_memory(1, unit_mib or cluster.unit_mib)
        raise TraceError(f"no card has a unit of {unit}: the largest has {largest}")
    if not taken.pods:
        raise TraceError(
            f"no pod of {cluster.source} asks for GPU memory that can be given: there is nothing to simulate"
        )
    return taken


def simulate_all(
    scenarios: Sequence[Scenario],
    options: SimulationOptions,
    out: Callable[[str], None],
    warn: Callable[[str], None],
) -> None:
    """Run the policies on each cluster, and write what was asked for.

    Args:
        warn: Takes a line for every pod that is left out or fits nowhere.

    Raises:
        SettingsError: wrong options, a queue that is not configured, or a file that cannot be written.
        TraceError: a cluster without pods that ask for GPU memory, or without a card that has a unit of it.
    """
    options.check()
    others = options.other_resources
    traces = [make_trace(scenario.cluster, scenario.unit_mib, others) for scenario in scenarios]
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="gpupack-") as folder:
        places = [Path(folder) / str(number) for number in range(len(scenarios))]
        for here, taken in zip(places, traces, strict=True):
            taken.write(here)
            _check_queues(options, str(here / FILES[1]))
        for number, (scenario, taken, here) in enumerate(zip(scenarios, traces, places, strict=True)):
            out(f"{'' if not number else chr(10)}Your pods, cluster {scenario.label}:")
            for note in taken.notes:
                out(f"  {note}")
            plot = options.plot
            if plot is not None and len(scenarios) > 1:
                plot = str(Path(plot) / scenario.label.replace(" ", "-").replace(",", ""))
            result = here / "result.json"
            nodes, pods = (str(here / name) for name in FILES)
            asked = replace(options, nodes=nodes, pods=pods, plot=plot, json=str(result))
            alone = {}
            if not options.replay:
                alone = _alone(asked)
                for label, (started, of) in alone.items():
                    out(f"  {label}: {started:g} of your {of:g} pods start on empty cards")
                out(f"With more pods like yours, up to {100 * options.inflation:g} % of the cards:")
            run(asked, out, warn=_Warnings(scenario, taken, pods, warn))
            found_here = json.loads(result.read_text(encoding="utf-8"))
            results[scenario.label] = {**found_here, "yours": {k: list(v) for k, v in alone.items()}}
    if options.json is not None:
        write_json(options.json, json.dumps(results, indent=1))


def _check_queues(options: SimulationOptions, pods: str) -> None:
    """Check, before anything is printed, that the pods' queues are in the configuration."""
    if options.queues is not None:
        check_trace(ConfigFile(options.queues).load(), read_pods(pods, (), lambda _line: None, timed=True))


@dataclass(frozen=True, slots=True)
class _Warnings:
    """What is odd about a row of a trace, said of the pod that the row was made of."""

    scenario: Scenario
    taken: Snapshot
    file: str
    out: Callable[[str], None]

    def __call__(self, line: str) -> None:
        match = re.fullmatch(rf"{re.escape(self.file)}:(\d+): (.*)", line, re.DOTALL)
        if match is None:
            self.out(line.replace(self.file, "the pods"))
            return
        name = str(self.taken.pods[int(match[1]) - _FIRST][0])
        self.out(f"pod {name}{self._unfit(name) if match[2].endswith(UNFIT) else f': {match[2]}'}")

    def _unfit(self, name: str) -> str:
        cluster, unit_mib = self.scenario.cluster, self.scenario.unit_mib
        pod = next(pod for pod in cluster.pods.values() if pod.full_name == name)
        request = cluster.read_request(pod)
        asked = "the shares of its claims"
        if request is not None:
            asked = f"{format_demands(request.demands, cluster.unit_mib)} of GPU memory"
        cpu_milli, memory_bytes = sum_host_requests(pod)
        besides = f"{cpu_milli / 1000:g} CPU and {format_memory(-(-memory_bytes // MIB), 1)} of memory"
        unit = "" if unit_mib == cluster.unit_mib else f", in units of {format_memory(1, unit_mib)},"
        return (
            f" asks for {asked}, {besides}: that{unit} fits on no node even when it is empty; "
            "the pod is kept and will fail"
        )


def _alone(options: SimulationOptions) -> dict[str, tuple[float, float]]:
    """Run the pods that are there, and no others: how many start, of how many, by label."""
    few = replace(options, inflation=_NONE, plot=None, json=None)
    mean = simulate(few)["mean"]  # the run that follows gives the warnings
    return {
        label: (each["pods"] - sum(each["failed"].values()), each["pods"]) for label, each in mean.items()
    }
