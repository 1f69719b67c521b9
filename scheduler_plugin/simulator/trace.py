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

from allocator.errors import QuantityError
from allocator.exact import fit_together
from allocator.packing import MAX_COMPUTE_LIMIT, MAX_NODE_CARDS
from allocator.quantity import parse_bytes
from allocator.request import MAX_POD_CARDS, MAX_UNITS, WHOLE, ContainerPlaces, ContainerRequest, PodRequest
from allocator.selector import Selector
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
    def shape(self) -> "TracePod":
        """What it asks for, without what tells it from other pods that ask for the same."""
        return replace(self, name="", times=None, queue="", data=frozenset(), job="")

    @property
    def selector(self) -> Selector:
        return _select_models(self.models)

    def make_request(self, amounts: Sequence[int]) -> PodRequest:
        """Make its request for cards, where each container asks for an amount of each of its cards."""
        compute = self.compute or (0,) * len(amounts)
        containers = tuple(
            ContainerRequest(f"c{number}", amount * self.cards_each, "main", percent)
            for number, (amount, percent) in enumerate(zip(amounts, compute, strict=True))
        )
        places: ContainerPlaces = "apart" if self.apart else ""
        return PodRequest(containers, self.cards_each, self.selector, percent=self.percent, places=places)

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
    for row in _read_rows(path, (*NODE_COLUMNS, *others)):
        try:
            node = _read_node(row, nodes, others)
        except _RowError as error:
            warn(f"{error}; the node is left out")
        else:
            nodes[node.name] = node
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
    for row in _read_rows(path, (*columns, *others)):
        try:
            pod = _read_pod(row, others)
            if timed:
                pod = replace(pod, times=_read_times(row))
        except _RowError as error:
            warn(f"{error}; the pod is left out")
            continue
        pods.append(pod)
        for model in pod.models:
            if not any(map(_select_models((model,)).admits_model, known)):
                what = f"{row.where}: {MODELS_COLUMN} names {_quote_text(model)}"
                warn(f"{what}, a model that no node has; the pod is kept")
        shape = pod.shape
        if shape not in possible:
            possible[shape] = any(_can_ever_run(pod, node) for node in nodes)
        if not possible[shape]:
            requested = [f"{amount} {name}" for name, amount in pod.others]
            what = f"{pod.cpu_milli} cpu_milli, {pod.memory_mib} memory_mib, {pod.cards} num_gpu"
            what = ", ".join([what, *requested])
            warn(f"{row.where}: {what} {UNFIT}")
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


def _select_models(models: Sequence[str]) -> Selector:
    return Selector(models=tuple(model.lower() for model in models))


class _RowError(Exception):
    """Says why a row cannot be used: file, line, value, and what is allowed."""


class _Row(NamedTuple):
    """A row of a file: where that is, in file and line, and its texts by column."""

    where: str
    texts: Mapping[str, str | None]

    def read_text(self, column: str) -> str:
        return (self.texts.get(column) or "").strip()

    def read_names(self, column: str) -> frozenset[str]:
        return frozenset(name.strip() for name in self.read_text(column).split("|") if name.strip())

    def read_number(self, column: str, most: int, default: int | None = None) -> int:
        """Read a number from 0; an empty field is the default, if there is one."""
        text = self.read_text(column)
        if not text and default is not None:
            return default
        number = _parse_number(text, most)
        if number is None:
            raise self.refuse(column, text, f"a whole number from 0 to {most}")
        return number

    def read_other_amounts(self, names: Sequence[str]) -> ResourceAmounts:
        """Read amounts of further resources; an empty field is none."""
        amounts = []
        for name in names:
            text = self.read_text(name) or "0"
            try:
                amount = parse_bytes(text)
            except QuantityError:
                amount = -1
            if not 0 <= amount <= MAX_REQUESTED:
                raise self.refuse(name, text, "a quantity from 0 like 8 or 100Gi")
            amounts.append((name, amount))
        return tuple(amounts)

    def refuse(self, column: str, text: str, allowed: str) -> _RowError:
        return _RowError(f"{self.where}: {column} is {_quote_text(text)}; allowed: {allowed}")


def _read_rows(path: str, columns: Sequence[str]) -> Iterator[_Row]:
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
                yield _Row(f"{path}:{reader.line_num}", row)
    except (OSError, UnicodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise TraceError(f"{path}: cannot be read: {reason}") from error


def _read_node(row: _Row, known: Mapping[str, TraceNode], others: Sequence[str]) -> TraceNode:
    name = row.texts["sn"] or ""
    if not name:
        raise _RowError(f"{row.where}: sn is empty; allowed: a name")
    if name in known:
        raise _RowError(f"{row.where}: sn {_quote_text(name)} is there twice; allowed: a name of its own")
    return TraceNode(
        name,
        row.read_number("cpu_milli", _MAX_CPU),
        row.read_number("memory_mib", _MAX_MEMORY),
        row.read_number("gpu", MAX_NODE_CARDS),
        row.read_text("model"),
        card_units=row.read_number(CARD_UNITS_COLUMN, MAX_UNITS, default=0),
        data=row.read_names(DATA_COLUMN),
        rack=row.read_text(RACK_COLUMN),
        compute_limit=row.read_number(COMPUTE_LIMIT_COLUMN, MAX_COMPUTE_LIMIT, default=WHOLE),
        others=row.read_other_amounts(others),
    )


def _read_pod(row: _Row, others: Sequence[str]) -> TracePod:
    cpu, memory = row.read_number("cpu_milli", _MAX_CPU), row.read_number("memory_mib", _MAX_MEMORY)
    containers = row.read_text(GPU_UNITS_COLUMN).count("|") + 1
    cards, milli = row.read_number("num_gpu", MAX_POD_CARDS * containers), row.read_number("gpu_milli", CARD)
    if cards and not milli:
        raise _RowError(f"{row.where}: gpu_milli is 0 with num_gpu {cards}; allowed: 1 to {CARD}")
    units, percent = _read_amounts(row, cards) if cards else ((), False)
    compute = _read_compute(row, max(1, len(units))) if cards else ()
    amounts = row.read_other_amounts(others)
    places = row.read_text(CONTAINERS_COLUMN)
    if places not in {"", "apart"}:
        raise row.refuse(CONTAINERS_COLUMN, places, "apart, or empty")
    return TracePod(
        row.texts["name"] or "",
        cpu,
        memory,
        cards,
        milli if cards else 0,
        tuple(sorted(row.read_names(MODELS_COLUMN))) if cards else (),
        queue=row.read_text(QUEUE_COLUMN),
        gpu_units=units,
        data=row.read_names(DATA_COLUMN),
        job=row.read_text(JOB_COLUMN),
        percent=percent,
        others=amounts,
        apart=places == "apart",
        compute=compute,
    )


def _read_compute(row: _Row, containers: int) -> tuple[int, ...]:
    """Read the percent of compute of each container; none if the row does not say, or says 0 of all."""
    text = row.read_text(COMPUTE_COLUMN)
    parts = text.split("|") if text else []
    # Containers that share cards are one: together they may ask for more than a card's whole compute.
    most = MAX_COMPUTE_LIMIT
    numbers = [_parse_number(part.strip().removesuffix("%"), most) for part in parts]
    compute = tuple(number for number in numbers if number is not None)
    if len(compute) < len(parts) or len(parts) not in {0, containers}:
        each = f" for each of {containers}" if containers > 1 else ""
        raise row.refuse(COMPUTE_COLUMN, text, f"a whole number from 0 to {most}{each}")
    return compute if any(compute) else ()


def _read_amounts(row: _Row, cards: int) -> tuple[tuple[int, ...], bool]:
    """Read the units, or with True the percent, of each container's cards; none if the row does not say."""
    text = row.read_text(GPU_UNITS_COLUMN)
    parts = [part.strip() for part in text.split("|")] if text else []
    percent = bool(parts) and all(part.endswith("%") for part in parts)
    most = WHOLE if percent else MAX_UNITS
    numbers = []
    for part in parts:
        number = _parse_number(part.removesuffix("%") if percent else part, most)
        if number is None or (not number and len(parts) > 1):
            amounts = f"whole numbers from 1 to {MAX_UNITS}, or all of them percent from 1% to {WHOLE}%"
            raise row.refuse(GPU_UNITS_COLUMN, text, amounts)
        numbers.append(number)
    if numbers and cards % len(numbers):
        what = f"num_gpu {cards} for {len(numbers)} containers of {GPU_UNITS_COLUMN} {_quote_text(text)}"
        raise _RowError(f"{row.where}: {what}; allowed: as many cards for each")
    return (tuple(numbers), percent) if any(numbers) else ((), False)


def _read_times(row: _Row) -> Times:
    """Read when a pod came and how long it ran: since it was scheduled, or if it never was since it came."""
    created = row.read_number(CREATED_COLUMN, _MAX_TIME)
    if not row.read_text(DELETED_COLUMN):
        return Times(created, None)
    deleted = row.read_number(DELETED_COLUMN, _MAX_TIME)
    began = row.read_number(SCHEDULED_COLUMN, _MAX_TIME, default=created)
    if not created <= began <= deleted:
        raise _RowError(
            f"{row.where}: created {created}, scheduled {began}, deleted {deleted}; allowed: growing times"
        )
    return Times(created, deleted - began)


def _parse_number(text: str, most: int) -> int | None:
    """Read a whole number from 0 to `most`; None: it is none."""
    digits = text.removeprefix("-")
    is_number = digits.isascii() and digits.isdigit() and len(text) <= _SHOWN
    return int(text) if is_number and 0 <= int(text) <= most else None


def _can_ever_run(pod: TracePod, node: TraceNode) -> bool:
    if (
        pod.cpu_milli > node.cpu_milli
        or pod.memory_mib > node.memory_mib
        or pod.cards_each > node.cards
        or not pod.selector.admits_model(node.model)
        or any(amount > dict(node.others).get(name, 0) for name, amount in pod.others)
        or any(percent > node.compute_limit for percent in pod.compute)
    ):
        return False
    if not node.card_units or not pod.gpu_units:
        return True
    cards = [(node.card_units, node.card_units, node.compute_limit)] * node.cards
    request = pod.make_request(pod.gpu_units)
    requested = [demand.need for demand in request.demands]
    return fit_together(cards, requested, rules=request.rules).picks is not None


def _quote_text(text: str) -> str:
    return ascii(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")
