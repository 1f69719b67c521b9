"""Reads nodes and pods from CSV files, and draws the pods of one run.

A row that cannot be used is left out, with a line that names file, line and value. What makes the whole file
useless stops with such a line.
"""

import csv
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

from allocator.card_rules import CardRules
from allocator.errors import QuantityError
from allocator.exact import fit_together
from allocator.packing import MAX_COMPUTE_LIMIT
from allocator.quantity import parse_bytes
from allocator.request import MAX_UNITS, WHOLE, Demand
from scheduler_plugin.cache.amounts import ResourceAmounts
from scheduler_plugin.cache.pods import MAX_REQUESTED
from scheduler_plugin.errors import TraceError

CARD: Final = 1000
"""Thousandths of a card, the unit of `gpu_milli`."""

NODE_COLUMNS: Final = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
POD_COLUMNS: Final = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
MODELS_COLUMN: Final = "gpu_spec"
QUEUE_COLUMN: Final = "queue"
DATA_COLUMN: Final = "data"
JOB_COLUMN: Final = "job"
RACK_COLUMN: Final = "rack"
CARD_UNITS_COLUMN: Final = "card_units"
GPU_UNITS_COLUMN: Final = "gpu_units"
COMPUTE_COLUMN: Final = "gpu_compute"
COMPUTE_LIMIT_COLUMN: Final = "compute_limit"
CONTAINERS_COLUMN: Final = "containers"
CREATED_COLUMN: Final = "creation_time"
DELETED_COLUMN: Final = "deletion_time"
SCHEDULED_COLUMN: Final = "scheduled_time"

_MAX_CPU: Final = 10**8
_MAX_MEMORY: Final = 10**9
_MAX_CARDS: Final = 64
_MAX_TIME: Final = 10**12
_SHOWN: Final = 64

Warn = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class TraceNode:
    """A node: thousandths of a core, MiB of host memory, cards, their model and units (0: not said).

    With the names of the data that it has, and its rack, where there are any, what it has of further
    resources, and the percent of its compute that each card gives away.
    """

    name: str
    cpu_milli: int
    memory_mib: int
    cards: int
    model: str
    card_units: int = 0
    data: frozenset[str] = frozenset()
    rack: str = ""
    others: ResourceAmounts = ()
    compute_limit: int = WHOLE


class Times(NamedTuple):
    """Arrival of a pod in seconds of the trace, and how long it runs; None: to the end."""

    arrives_s: int
    runs_s: int | None


UNFIT: Final = "fit on no node even when it is empty; the pod is kept and will fail"


@dataclass(frozen=True, slots=True)
class TracePod:
    """A pod: thousandths of a core, MiB of host memory, cards, thousandths of each, models, times, queue.

    Where there are `gpu_units` it asks for so many units of each card, whatever that is in thousandths. With
    `percent` it asks for so many percent of each card. There is an amount for each container, and the cards
    are split evenly over them. `apart`: no card serves two of its containers. `compute` is the percent of the
    compute of each card, likewise for each container.

    The pod may have names of data that it reads, a job that it belongs to, and requests of further resources.
    """

    name: str
    cpu_milli: int
    memory_mib: int
    cards: int
    gpu_milli: int
    models: tuple[str, ...] = ()
    times: Times | None = None
    queue: str = ""
    gpu_units: tuple[int, ...] = ()
    data: frozenset[str] = frozenset()
    job: str = ""
    percent: bool = False
    others: ResourceAmounts = ()
    apart: bool = False
    compute: tuple[int, ...] = ()

    @property
    def cards_each(self) -> int:
        return self.cards // max(1, len(self.gpu_units))

    @property
    def demands(self) -> tuple[Demand, ...]:
        """Demands on cards whose units the pod names, container by container."""
        return tuple(
            Demand(
                *((), units, self.cards_each, self.percent, units if self.percent else 0),
                compute=compute,
            )
            for units, compute in zip(self.gpu_units, self.compute_of(len(self.gpu_units)), strict=True)
        )

    def compute_of(self, containers: int) -> tuple[int, ...]:
        return self.compute or (0,) * containers

    @property
    def requested_milli(self) -> int:
        return self.cards * self.gpu_milli


def read_nodes(path: str, warn: Warn, others: Sequence[str] = ()) -> list[TraceNode]:
    """Read the node list, sorted by name.

    Args:
        path: CSV file with the columns of `NODE_COLUMNS`; `card_units` where cards differ in size,
            `compute_limit` where cards do not give away 100 % of their compute, `data` (names, `A|B`) and
            `rack` where they are.
        warn: Called with a line for each row that is left out.
        others: Further resources, each with a column of its name; quantities as Kubernetes writes them.

    Raises:
        TraceError: the file cannot be read, lacks a column, or has no usable row.
    """
    nodes: dict[str, TraceNode] = {}
    for where, row in _read_rows(path, (*NODE_COLUMNS, *others)):
        name = row["sn"] or ""
        fault = _find_name_fault(where, "sn", name, nodes)
        numbers = {}
        for column, most in (("cpu_milli", _MAX_CPU), ("memory_mib", _MAX_MEMORY), ("gpu", _MAX_CARDS)):
            numbers[column], wrong = _read_number(where, column, row, most)
            fault = fault or wrong
        units, wrong = _read_number_or(0, where, CARD_UNITS_COLUMN, row, MAX_UNITS)
        fault = fault or wrong
        limit, wrong = _read_number_or(WHOLE, where, COMPUTE_LIMIT_COLUMN, row, MAX_COMPUTE_LIMIT)
        fault = fault or wrong
        amounts, wrong = _read_other_amounts(where, others, row)
        fault = fault or wrong
        if fault:
            warn(f"{fault}; the node is left out")
            continue
        nodes[name] = TraceNode(
            name,
            numbers["cpu_milli"],
            numbers["memory_mib"],
            numbers["gpu"],
            (row["model"] or "").strip(),
            units,
            _read_names(row.get(DATA_COLUMN)),
            (row.get(RACK_COLUMN) or "").strip(),
            amounts,
            limit,
        )
    if not any(node.cards for node in nodes.values()):
        raise TraceError(f"{path}: no usable node with a GPU in it; allowed: one or more")
    return [nodes[name] for name in sorted(nodes)]


def read_pods(
    path: str,
    nodes: Sequence[TraceNode],
    warn: Warn,
    *,
    timed: bool = False,
    others: Sequence[str] = (),
) -> list[TracePod]:
    """Read the pod list, in the file's order.

    Args:
        path: CSV file with the columns of `POD_COLUMNS`. The file may have `gpu_spec` (models, `A|B`),
            `queue`, `gpu_units` (in place of `gpu_milli` units of each card, or percent, `40%`; for several
            containers `2|2|4`) and `gpu_compute` (percent of each card's compute, likewise). There may be
            `containers` (`apart` or empty), `data` (names, `A|B`), `job`.
        nodes: The nodes it will run on, to tell pods that can never run.
        warn: Called with a line for each row that is left out or can never run.
        timed: Read when pods came and ended, too, in whole seconds. The columns are `creation_time`,
            `deletion_time` (empty: never) and, where it exists, `scheduled_time`, from which a pod ran.
        others: Further resources, as of `read_nodes`.

    Raises:
        TraceError: the file cannot be read, lacks a column, or has no usable row.
    """
    known = {node.model for node in nodes}
    possible: dict[TracePod, bool] = {}
    pods = []
    columns = (*POD_COLUMNS, CREATED_COLUMN, DELETED_COLUMN) if timed else POD_COLUMNS
    for where, row in _read_rows(path, (*columns, *others)):
        pod, fault = _read_pod(where, row, others)
        if pod is not None and timed:
            times, fault = _read_times(where, row)
            pod = None if times is None else replace(pod, times=times)
        if pod is None:
            warn(f"{fault}; the pod is left out")
            continue
        pods.append(pod)
        for model in pod.models:
            if model not in known:
                what = f"{where}: {MODELS_COLUMN} names {_quote_text(model)}"
                warn(f"{what}, a model that no node has; the pod is kept")
        shape = replace(pod, name="", gpu_milli=0, times=None, queue="", data=frozenset(), job="")
        if shape not in possible:
            possible[shape] = any(_can_ever_run(pod, node) for node in nodes)
        if not possible[shape]:
            requested = [f"{amount} {name}" for name, amount in pod.others]
            what = f"{pod.cpu_milli} cpu_milli, {pod.memory_mib} memory_mib, {pod.cards} num_gpu"
            what = ", ".join([what, *requested])
            warn(f"{where}: {what} {UNFIT}")
    if not pods:
        raise TraceError(f"{path}: no usable pod in it; allowed: one or more")
    return pods


def draw_pods(pods: Sequence[TracePod], gpus: int, inflation: float, seed: int) -> list[TracePod]:
    """Make the pods of one run: append random ones until enough is asked for, and shuffle all.

    Args:
        inflation: Cards to ask for, as a multiple of the cluster's.

    Returns:
        The pods in the order in which they arrive. A list that asks for more, or for no GPU at all, is
        shuffled as it is.
    """
    rng = random.Random(seed)  # noqa: S311 - a simulation, no secret
    drawn = list(pods)
    requested = sum(pod.requested_milli for pod in pods)
    while 0 < requested < inflation * gpus * CARD:
        pod = rng.choice(pods)
        drawn.append(pod)
        requested += pod.requested_milli
    rng.shuffle(drawn)
    return drawn


def _read_rows(path: str, columns: Sequence[str]) -> Iterator[tuple[str, dict[str, str | None]]]:
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            present = reader.fieldnames or ()
            if not present:
                raise TraceError(f"{path} is empty: needed are the columns {', '.join(columns)}")
            missing = [column for column in columns if column not in present]
            if missing:
                names = ", ".join(columns)
                raise TraceError(f"{path}:1: no column {', '.join(missing)}; needed are {names}")
            for row in reader:
                yield f"{path}:{reader.line_num}", row
    except (OSError, UnicodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise TraceError(f"{path}: cannot be read: {reason}") from error


def _read_pod(
    where: str, row: Mapping[str, str | None], others: Sequence[str]
) -> tuple[TracePod | None, str]:
    cpu, fault = _read_number(where, "cpu_milli", row, _MAX_CPU)
    memory, wrong = _read_number(where, "memory_mib", row, _MAX_MEMORY)
    fault = fault or wrong
    cards, wrong = _read_number(where, "num_gpu", row, _MAX_CARDS)
    fault = fault or wrong
    milli, wrong = _read_number(where, "gpu_milli", row, CARD)
    fault = fault or wrong
    if not fault and cards and not milli:
        fault = f"{where}: gpu_milli is 0 with num_gpu {cards}; allowed: 1 to {CARD}"
    if fault:
        return None, fault
    models = tuple(sorted(_read_names(row.get(MODELS_COLUMN))))
    pod = TracePod(row["name"] or "", cpu, memory, cards, milli if cards else 0, models if cards else ())
    units, percent, fault = _read_amounts(where, row, cards)
    compute, wrong = _read_compute(where, row, max(1, len(units))) if cards else ((), "")
    fault = fault or wrong
    amounts, wrong = _read_other_amounts(where, others, row)
    if fault or wrong:
        return None, fault or wrong
    queue, job = ((row.get(column) or "").strip() for column in (QUEUE_COLUMN, JOB_COLUMN))
    data = _read_names(row.get(DATA_COLUMN))
    containers = (row.get(CONTAINERS_COLUMN) or "").strip()
    if containers not in {"", "apart"}:
        return None, f"{where}: {CONTAINERS_COLUMN} is {_quote_text(containers)}; allowed: apart, or empty"
    pod = replace(
        pod,
        apart=containers == "apart",
        queue=queue,
        job=job,
        data=data,
        gpu_units=units,
        percent=percent,
        others=amounts,
        compute=compute,
    )
    return pod, ""


def _read_compute(where: str, row: Mapping[str, str | None], containers: int) -> tuple[tuple[int, ...], str]:
    """Read the percent of compute of each container; none if the row does not say, or says 0 of all."""
    text = (row.get(COMPUTE_COLUMN) or "").strip()
    parts = text.split("|") if text else []
    # Containers that share cards are one: together they may ask for more than a card's whole compute.
    most = MAX_COMPUTE_LIMIT
    numbers = [_parse_number(where, COMPUTE_COLUMN, part.strip().removesuffix("%"), most) for part in parts]
    if any(fault for _, fault in numbers) or len(parts) not in {0, containers}:
        allowed = f"a whole number from 0 to {most}" + (
            f" for each of {containers}" if containers > 1 else ""
        )
        return (), f"{where}: {COMPUTE_COLUMN} is {_quote_text(text)}; allowed: {allowed}"
    compute = tuple(number for number, _ in numbers)
    return (compute if any(compute) else ()), ""


def _read_amounts(where: str, row: Mapping[str, str | None], cards: int) -> tuple[tuple[int, ...], bool, str]:
    """Read the units or percent of each container's cards; none if the row does not say."""
    text = (row.get(GPU_UNITS_COLUMN) or "").strip()
    if not text or not cards:
        return (), False, ""
    parts = [part.strip() for part in text.split("|")]
    percent = all(part.endswith("%") for part in parts)
    most = WHOLE if percent else MAX_UNITS
    numbers = []
    for part in parts:
        number, fault = _parse_number(
            where, GPU_UNITS_COLUMN, part.removesuffix("%") if percent else part, most
        )
        if fault or (not number and len(parts) > 1):
            amounts = f"whole numbers from 1 to {MAX_UNITS}, or all of them percent from 1% to {WHOLE}%"
            return (), False, f"{where}: {GPU_UNITS_COLUMN} is {_quote_text(text)}; allowed: {amounts}"
        numbers.append(number)
    if cards % len(numbers):
        what = f"num_gpu {cards} for {len(numbers)} containers of {GPU_UNITS_COLUMN} {_quote_text(text)}"
        return (), False, f"{where}: {what}; allowed: as many cards for each"
    return (tuple(numbers), percent, "") if any(numbers) else ((), False, "")


def _read_names(text: str | None) -> frozenset[str]:
    return frozenset(name.strip() for name in (text or "").split("|") if name.strip())


def _read_times(where: str, row: Mapping[str, str | None]) -> tuple[Times | None, str]:
    """Read when a pod came and how long it ran: since it was scheduled, or if it never was since it came."""
    created, fault = _read_number(where, CREATED_COLUMN, row, _MAX_TIME)
    if fault:
        return None, fault
    if not (row[DELETED_COLUMN] or "").strip():
        return Times(created, None), ""
    deleted, fault = _read_number(where, DELETED_COLUMN, row, _MAX_TIME)
    began = created
    if not fault and (row.get(SCHEDULED_COLUMN) or "").strip():
        began, fault = _read_number(where, SCHEDULED_COLUMN, row, _MAX_TIME)
    if not fault and not created <= began <= deleted:
        fault = f"{where}: created {created}, scheduled {began}, deleted {deleted}; allowed: growing times"
    return (None, fault) if fault else (Times(created, deleted - began), "")


def _can_ever_run(pod: TracePod, node: TraceNode) -> bool:
    if (
        pod.cpu_milli > node.cpu_milli
        or pod.memory_mib > node.memory_mib
        or pod.cards_each > node.cards
        or (pod.models and node.model not in pod.models)
        or any(amount > dict(node.others).get(name, 0) for name, amount in pod.others)
        or any(percent > node.compute_limit for percent in pod.compute)
    ):
        return False
    if not node.card_units or not pod.gpu_units:
        return True
    cards = [(node.card_units, node.card_units, node.compute_limit)] * node.cards
    requested = [demand.need for demand in pod.demands]
    return fit_together(cards, requested, rules=CardRules(apart=pod.apart)).picks is not None


def _find_name_fault(where: str, column: str, name: str, taken: Mapping[str, object]) -> str:
    if not name:
        return f"{where}: {column} is empty; allowed: a name"
    if name in taken:
        return f"{where}: {column} {_quote_text(name)} is there twice; allowed: a name of its own"
    return ""


def _read_number(where: str, column: str, row: Mapping[str, str | None], most: int) -> tuple[int, str]:
    return _parse_number(where, column, (row[column] or "").strip(), most)


def _parse_number(where: str, column: str, text: str, most: int) -> tuple[int, str]:
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdigit() and len(text) <= _SHOWN and 0 <= int(text) <= most:
        return int(text), ""
    return 0, f"{where}: {column} is {_quote_text(text)}; allowed: a whole number from 0 to {most}"


def _read_number_or(
    default: int, where: str, column: str, row: Mapping[str, str | None], most: int
) -> tuple[int, str]:
    return _read_number(where, column, row, most) if (row.get(column) or "").strip() else (default, "")


def _read_other_amounts(
    where: str, names: Sequence[str], row: Mapping[str, str | None]
) -> tuple[ResourceAmounts, str]:
    """Read amounts of further resources; an empty field is none."""
    amounts = []
    for name in names:
        text = (row[name] or "").strip() or "0"
        try:
            amount = parse_bytes(text)
        except QuantityError:
            amount = -1
        if not 0 <= amount <= MAX_REQUESTED:
            return (), f"{where}: {name} is {_quote_text(text)}; allowed: a quantity from 0 like 8 or 100Gi"
        amounts.append((name, amount))
    return tuple(amounts), ""


def _quote_text(text: str) -> str:
    return ascii(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")
