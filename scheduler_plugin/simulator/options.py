"""Options of `gpupack simulate`, checked as a whole."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from allocator.errors import AllocatorError
from allocator.names import DEFAULT_CARD_POLICY, DEFAULT_NODE_POLICY
from allocator.policies import CARD_POLICIES
from allocator.request import MAX_UNITS
from scheduler_plugin.errors import PolicyError, QueueConfigError, SettingsError
from scheduler_plugin.queue.config.queues import QueueConfig
from scheduler_plugin.queue.controller.config_file import ConfigFile
from scheduler_plugin.scheduling.policies import NODE_POLICIES
from scheduler_plugin.scheduling.policies.registry import get_other_resources, make_policy
from scheduler_plugin.simulator.placer import takes_workload
from scheduler_plugin.simulator.trace import CARD

MAX_SEEDS: Final = 10_000
MAX_INFLATION: Final = 100.0
MAX_CARD_UNITS: Final = 1_000_000
MAX_PODS: Final = 10_000_000

LEARNED: Final = "learned"
TRACE: Final = "trace"
WORKLOADS: Final = (LEARNED, TRACE)
"""Where `fragmentation` has its typical workload from: the pods it sees, as in the extender, or the list."""


class Variant(NamedTuple):
    """A policy and where it has its workload from (None: it knows of none), under a name of its own.

    `borrowing` tells whether queues lend, None where there are none.
    """

    policy: str
    workload: str | None
    label: str
    borrowing: bool | None = None


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """Options of a simulation.

    Attributes:
        policies: Node policies, each run with every seed.
        card_policy_parameters: Its parameters, text by name.
        inflation: GPUs to ask for, as a multiple of the cluster's.
        card_units: Units of a card; requests are rounded up to whole units. 1000: as the trace has them.
        json: File for everything, `-`: standard output.
        parameters: Parameters of node policies, text by policy and name.
        workloads: Workloads of WORKLOADS; `fragmentation` is run with each, unless it has parameters.
        replay: Pods come and end at the times of the trace, instead of all coming and none ending.
        load: In a replay, GPUs asked for at a time, as a multiple of the cluster's; None: the trace as it is.
        max_pods: In a replay, pods for which the cluster is made smaller rather than add more.
        queues: In a replay, file with queues that pods go through, with and without borrowing; or None.
    """

    nodes: str
    pods: str
    policies: tuple[str, ...] = (DEFAULT_NODE_POLICY,)
    card_policy: str = DEFAULT_CARD_POLICY
    card_policy_parameters: Mapping[str, str] = field(default_factory=dict)
    inflation: float = 1.3
    seeds: tuple[int, ...] = (42,)
    jobs: int = 1
    card_units: int = CARD
    plot: str | None = None
    json: str | None = None
    parameters: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    workloads: tuple[str, ...] = (LEARNED,)
    replay: bool = False
    load: float | None = 1.0
    max_pods: int = 20_000
    queues: str | None = None

    @property
    def other_resources(self) -> tuple[str, ...]:
        """Further resources that the policies want to see, in the order of their names."""
        made = (make_policy(policy, self.parameters_of(policy)) for policy in self.policies)
        return tuple(sorted({name for policy in made for name in get_other_resources(policy)}))

    def parameters_of(self, policy: str) -> Mapping[str, str]:
        """Find the parameters of a policy: those of the queues, but for those that the options name."""
        given = self.parameters.get(policy, {})
        return given if self.queues is None else {**_load_parameters(self.queues, policy), **given}

    def make_config(self, policy: str) -> QueueConfig:
        """Read the queues, with a node policy in place of their own."""
        if self.queues is None:
            raise SettingsError("no queues; allowed: a file")
        config = ConfigFile(self.queues).load()
        parameters = {**config.node_policy_parameters, policy: dict(self.parameters_of(policy))}
        return msgspec.structs.replace(config, node_policy=policy, node_policy_parameters=parameters)

    def list_variants(self) -> list["Variant"]:
        result = []
        for policy in self.policies:
            known = takes_workload(policy, self.parameters_of(policy))
            for workload in self.workloads if known else (None,):
                label = f"{policy}, {workload}" if known and len(self.workloads) > 1 else policy
                result.append(Variant(policy, workload, label))
        if self.queues is None:
            return result
        return [
            each._replace(label=f"{each.label}, {name}", borrowing=borrowing)
            for each in result
            for name, borrowing in (("borrowing", True), ("own quota only", False))
        ]

    def check(self) -> None:
        """Check everything.

        Raises:
            SettingsError: lists every fault, one a line.
        """
        faults = [
            *self._find_policy_faults(),
            *self._find_number_faults(),
            *self._find_queue_faults(),
            *self._find_output_faults(),
        ]
        if faults:
            raise SettingsError("\n".join(faults))

    def _find_policy_faults(self) -> list[str]:
        faults = []
        if not self.policies:
            faults.append(f"no policy; allowed: {NODE_POLICIES.allowed}")
        for policy in self.policies:
            try:
                make_policy(policy, self.parameters_of(policy))
            except PolicyError as error:
                faults.append(str(error))
        faults += [
            f"parameters for policy {policy!r}, which is not run; allowed: {', '.join(self.policies)}"
            for policy in sorted(set(self.parameters) - set(self.policies))
        ]
        try:
            CARD_POLICIES.make(self.card_policy, self.card_policy_parameters)
        except AllocatorError as error:
            faults.append(str(error))
        return faults

    def _find_number_faults(self) -> list[str]:
        faults = []
        if not 0 < self.inflation <= MAX_INFLATION:
            faults.append(f"inflation {self.inflation:g}; allowed: more than 0 up to {MAX_INFLATION:g}")
        if not 1 <= len(self.seeds) <= MAX_SEEDS:
            faults.append(f"{len(self.seeds)} seeds; allowed: 1 to {MAX_SEEDS}")
        if not self.workloads or set(self.workloads) - set(WORKLOADS):
            faults.append(f"workload {','.join(self.workloads)!r}; allowed: {', '.join(WORKLOADS)}, or both")
        if self.load is not None and not 0 < self.load <= MAX_INFLATION:
            faults.append(f"load {self.load:g}; allowed: more than 0 up to {MAX_INFLATION:g}, or trace")
        if not 1 <= self.max_pods <= MAX_PODS:
            faults.append(f"max pods {self.max_pods}; allowed: 1 to {MAX_PODS}")
        if self.queues is not None and not self.replay:
            faults.append(f"queues {self.queues!r} without a replay: allowed with --replay only")
        if self.jobs < 1:
            faults.append(f"jobs {self.jobs}; allowed: 1 or more")
        most = MAX_CARD_UNITS if self.queues is None else MAX_UNITS
        if not 1 <= self.card_units <= most:
            beside = "" if self.queues is None else " with queues"
            faults.append(f"card units {self.card_units}{beside}; allowed: 1 to {most}")
        return faults

    def _find_queue_faults(self) -> list[str]:
        if self.queues is None or not self.replay:
            return []
        try:
            ConfigFile(self.queues).load()
        except QueueConfigError as error:
            return str(error).splitlines()
        return []

    def _find_output_faults(self) -> list[str]:
        """Find outputs that cannot be written, before the runs, which may take hours."""
        faults = []
        try:
            if self.json not in {None, "-"}:
                file = Path(str(self.json))
                if file.is_dir() or not file.parent.is_dir():
                    faults.append(f"JSON file {self.json!r}; allowed: a file in a folder that exists, or -")
            if self.plot is not None:
                folder = Path(self.plot).absolute()
                there = next(path for path in (folder, *folder.parents) if path.exists())
                if not there.is_dir():
                    faults.append(f"plot {self.plot!r}: {there} is a file; allowed: a folder, made if needed")
        except OSError as error:
            faults.append(f"{error.filename}: {error.strerror}; allowed: a place that can be written")
        return faults


def choose_policies(text: str | None, queues: str | None) -> tuple[str, ...]:
    """Choose the node policies to run: those of a comma list, else that of the queues, else the default."""
    if text is not None:
        return parse_names(text)
    try:
        named = ConfigFile(queues).load().node_policy if queues is not None else None
    except QueueConfigError:
        # `SimulationOptions.check` tells, with all other faults.
        named = None
    return (named or DEFAULT_NODE_POLICY,)


def _load_parameters(queues: str, policy: str) -> Mapping[str, str]:
    """Read the parameters of a policy that a file with queues has; none where it cannot be used."""
    try:
        return ConfigFile(queues).load().node_policy_parameters.get(policy, {})
    except QueueConfigError:
        return {}


def parse_seeds(text: str) -> tuple[int, ...]:
    """Read seeds like `42`, `42-51` or `1,5,42-51`, in order, without repetitions.

    Raises:
        SettingsError: anything else.
    """
    seeds: dict[int, None] = {}
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        ends = (first, last if dash else first)
        if not all(end.isascii() and end.isdigit() for end in ends) or max(len(end) for end in ends) > 18:  # noqa: PLR2004
            raise SettingsError(f"seeds {text!r}; allowed: numbers and ranges like 42-51, by commas")
        low, high = int(ends[0]), int(ends[1])
        if high < low or high - low >= MAX_SEEDS:
            raise SettingsError(f"seeds {text!r}; allowed: growing ranges of at most {MAX_SEEDS} seeds")
        seeds.update(dict.fromkeys(range(low, high + 1)))
    return tuple(seeds)


def parse_names(text: str) -> tuple[str, ...]:
    """Read a comma list of names, in order, without repetitions."""
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def parse_load(text: str) -> float | None:
    """Read a load: a number, or `trace` (None).

    Raises:
        SettingsError: anything else.
    """
    if text.strip() == TRACE:
        return None
    try:
        return float(text)
    except ValueError as error:
        raise SettingsError(f"load {text!r}; allowed: a number like 0.9, or {TRACE}") from error


def parse_parameters(texts: Sequence[str]) -> dict[str, dict[str, str]]:
    """Read parameters like `best-fit.mode=pick`.

    Raises:
        SettingsError: anything else.
    """
    parameters: dict[str, dict[str, str]] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        policy, dot, parameter = name.partition(".")
        if not (equals and dot and policy and parameter):
            raise SettingsError(f"policy parameter {text!r}; allowed: POLICY.NAME=VALUE")
        parameters.setdefault(policy, {})[parameter] = value
    return parameters


def count_default_jobs() -> int:
    """Processes to use unless told otherwise: the cores this process may run on."""
    return max(1, len(os.sched_getaffinity(0)))
