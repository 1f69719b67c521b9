"""Rows as people and scripts read them."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from allocator.quantity import format_memory
from deviceplugin.gpus.api.telemetry import IDLE, NO_TELEMETRY, CardTelemetry
from deviceplugin.gpus.foreign_resources import describe_foreign
from gpupack.inventory.as_json import format_json
from gpupack.inventory.grid import Cell, Line, align_columns, make_titles
from gpupack.inventory.records import CardRow, NodeRow, Output, PodRow
from gpupack.terminal import Style, short_age
from kubeapi.errors import make_printable

_BAR_CELLS: Final = 4
_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"

_OUT: Final = Style.DIM_RED
# Style from this share of used units upwards.
_FILLS: Final = ((1.0, Style.RED), (0.75, Style.YELLOW), (0.0, Style.GREEN))

_TELEMETRY_TITLES: Final = ("UTIL", "BW", "TEMP", "POWER", "CLOCK", "SLOWED BY")

_REASONS_NAMED: Final = 2
_REASON_WIDTH: Final = 32
"""Longest reason in a table; NVML's longest is shorter."""

_MARKS: Final = {"unhealthy": "!", "cordoned": "*"}
_NOBODY: Final = PodRow("", "", "", 0, "unknown")
_FIRST_REVISION_MS: Final = 1_500_000_000_000
"""Revisions are milliseconds since the epoch where nobody pushed them elsewhere; this was in 2017."""


@dataclass(frozen=True, slots=True)
class RenderOptions:
    """Which columns and lines of the rows are shown.

    Attributes:
        output: `table` one line per node with a bar for each card, `wide` one line per card, or `json`.
        pods: one line for each pod on each card instead; in JSON under each card.
        colour: put ANSI colours in, for terminals; without effect on JSON.
    """

    output: Output
    pods: bool = False
    colour: bool = False
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000


def render(rows: Sequence[NodeRow], output: Output, *, pods: bool = False, colour: bool = False) -> str:
    """Write the rows; see `RenderOptions`."""
    body, footer = format_lines(rows, RenderOptions(output, pods, colour))
    return "\n".join([*body, *footer])


def format_lines(rows: Sequence[NodeRow], options: RenderOptions) -> tuple[list[str], list[str]]:
    """Write the rows, and what stands below them: legend and totals."""
    if options.output == "json":
        return format_json(rows, pods=options.pods).splitlines(), []
    if not rows:
        return ["No node publishes GPU cards."], []
    if options.pods:
        laid = _by_pod(rows, options)
    else:
        laid = _by_card(rows, options) if options.output == "wide" else _by_node(rows, options)
    return list(align_columns(laid, colour=options.colour)), [*_legend(rows, options), *_sums(rows)]


def _by_node(rows: Sequence[NodeRow], options: RenderOptions) -> Iterator[Line]:
    """Lay out one line per node: name, status, unit, units in use, and a bar per card."""
    yield make_titles("NODE", "STATUS", "UNIT", "USED", "CARDS")
    for row in rows:
        used = sum(card.in_use_units for card in row.cards)
        size = sum(card.size_units for card in row.cards)
        bars = [Cell(f"{_fill(card)}{_mark(row, card)}", _style(row, card)) for card in row.cards]
        total = Cell(f"{used}/{size}" if row.cards else "-")
        yield Line([*_node_cells(row), Cell(_unit(row.unit_mib)), total, *bars], format_remark(row, options))


def _by_card(rows: Sequence[NodeRow], options: RenderOptions) -> Iterator[Line]:
    measured = any(card.telemetry is not None for row in rows for card in row.cards)
    columns = _TELEMETRY_TITLES if measured else ()
    compute = _shows_compute(rows)
    titles = (
        *("NODE", "STATUS", "CARD", "UNIT", "USED", *compute, "STATE", "MEMORY"),
        *(*columns, "MODEL", "UUID"),
    )
    yield make_titles(*titles)
    for row in rows:
        tail = format_remark(row, options)
        for card in row.cards:
            cells = [
                *_node_cells(row),
                Cell(str(card.index)),
                Cell(_unit(row.unit_mib)),
                *_card_cells(row, card, compute),
                Cell(", ".join(filter(None, (card.held, card.memory_mode))) or "-"),
                *(_telemetry_cells(card.telemetry or NO_TELEMETRY) if measured else ()),
                *_inventory_cells(card),
            ]
            why = f"cordoned: {card.cordon_reason}" if card.cordon_reason else ""
            driver = "its driver is let go" if card.detached else ""
            yield Line(cells, "; ".join(filter(None, (tail, why, driver))))
            tail = ""
        if not row.cards:
            yield Line([*_node_cells(row), *_dashes(len(titles) - 2)], tail)


def _by_pod(rows: Sequence[NodeRow], options: RenderOptions) -> Iterator[Line]:
    """Lay out one line for each pod on each card; a card without pods has a line too."""
    inventory = ("MODEL", "UUID") if options.output == "wide" else ()
    compute = _shows_compute(rows)
    titles = (
        "NODE",
        "CARD",
        *("USED", *compute, "STATE"),
        "NAMESPACE",
        "POD",
        *("UNITS", *compute),
        "SHARE",
        "USED MIB",
        "MEMORY",
        *inventory,
    )
    yield make_titles(*titles)
    for row in rows:
        tail = format_remark(row, options)
        for card in row.cards:
            for pod in card.pods or (_NOBODY,):
                cells = [Cell(row.node), Cell(str(card.index)), *_card_cells(row, card, compute)]
                cells += _pod_cells(pod, compute)
                yield Line([*cells, *(_inventory_cells(card) if inventory else ())], tail)
                tail = ""
        for pod in row.pods:
            on_no_card = _dashes(3 + len(compute))
            yield Line(
                [Cell(row.node), *on_no_card, *_pod_cells(pod, compute), *_dashes(len(inventory))], tail
            )
            tail = ""
        if not row.cards and not row.pods:
            yield Line([Cell(row.node), *_dashes(len(titles) - 1)], tail)


def _dashes(count: int) -> list[Cell]:
    return [Cell("-")] * count


def _node_cells(row: NodeRow) -> list[Cell]:
    return [Cell(row.node), Cell(format_status(row), Style.PLAIN if row.takes_pods else _OUT)]


def _shows_compute(rows: Sequence[NodeRow]) -> tuple[str, ...]:
    """Give the title of the column of compute, where any pod asks for some."""
    asked = any(
        card.compute_in_use or any(pod.compute for pod in card.pods) for row in rows for card in row.cards
    )
    return ("COMPUTE",) if asked else ()


def _card_cells(row: NodeRow, card: CardRow, compute: Sequence[str]) -> list[Cell]:
    state = "-" if row.without_daemon else card.state
    given = "-" if card.compute_in_use is None else f"{card.compute_in_use}/{card.compute_limit}%"
    return [
        Cell(_fill(card), _style(row, card)),
        *(Cell(given) for _ in compute),
        Cell(state, Style.PLAIN if state == "ok" else _OUT),
    ]


def _inventory_cells(card: CardRow) -> list[Cell]:
    return [Cell(card.model or "-"), Cell(card.uuid or "-")]


def _telemetry_cells(told: CardTelemetry) -> list[Cell]:
    """Format the telemetry of a card; `-` for missing values."""
    limit = "" if told.power_limit_w is None else f"/{told.power_limit_w:.0f}"
    return [
        Cell(_measure(told.utilization_percent, "%")),
        Cell(_measure(told.memory_utilization_percent, "%")),
        Cell(_measure(told.temperature_c, "C")),
        Cell(_measure(told.power_w, f"{limit}W")),
        Cell(_measure(told.sm_clock_mhz, "MHz")),
        Cell(_format_slowed(told.throttle_reasons)),
    ]


def _format_slowed(reasons: Sequence[str] | None) -> str:
    """Format why a card's clocks are low: two reasons, the hardware's own first, and the number of others."""
    if reasons is None:
        return "-"
    slowed = sorted((each for each in reasons if each != IDLE), key=lambda each: not each.startswith("hw_"))
    named = ",".join(make_printable(each)[:_REASON_WIDTH] for each in slowed[:_REASONS_NAMED])
    more = len(slowed) - _REASONS_NAMED
    return (f"{named} +{more}" if more > 0 else named) or "none"


def _measure(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{value:.0f}{unit}"


def _pod_cells(pod: PodRow, compute: Sequence[str]) -> list[Cell]:
    if not pod.uid:
        return _dashes(6 + len(compute))
    name = pod.name or f"UID {pod.uid}"
    used = "-" if pod.used_mib is None else str(pod.used_mib)
    busy = "" if pod.used_compute is None else f"{pod.used_compute}/"
    return [
        Cell(pod.namespace or "-"),
        Cell(name),
        Cell(str(pod.units)),
        *(Cell(f"{busy}{pod.compute}%" if pod.compute else "-") for _ in compute),
        Cell(pod.share),
        Cell(used),
        Cell(", ".join(filter(None, (pod.held, pod.compute_held and f"compute {pod.compute_held}"))) or "-"),
    ]


def format_status(row: NodeRow) -> str:
    """Write a node's status as kubectl does, with our own word for a node that no daemon serves."""
    words = ["Unknown" if row.ready is None else "Ready" if row.ready else "NotReady"]
    if row.unschedulable:
        words.append("SchedulingDisabled")
    if row.without_daemon:
        words.append("NoPlugin")
    return ",".join(words)


def format_remark(row: NodeRow, options: RenderOptions) -> str:
    """Write the remarks that belong below the table; empty if there are none."""
    remarks = [row.error or ""]
    if row.without_daemon:
        remarks.append(f"no gpupack node daemon: the kubelet offers 0 {row.resource}{_age(row, options)}")
    elif row.cards and not any(card.healthy for card in row.cards):
        remarks.append(f"no card is healthy, or the node daemon has stopped{_age(row, options)}")
    if row.foreign_gpus:
        remarks.append(describe_foreign(row.foreign_gpus))
    return "; ".join(filter(None, remarks))


def _age(row: NodeRow, options: RenderOptions) -> str:
    now_ms = options.now_ms()
    if row.revision is None or not _FIRST_REVISION_MS <= row.revision <= now_ms:
        return ""
    return f", its last words are {short_age((now_ms - row.revision) / 1000)} old"


def _legend(rows: Sequence[NodeRow], options: RenderOptions) -> list[str]:
    if options.pods or options.output == "wide":
        return []
    states = {card.state for row in rows if not row.without_daemon for card in row.cards}
    said = [f"{mark} {state}" for state, mark in _MARKS.items() if state in states]
    return ["  ".join(said)] if said else []


def _sums(rows: Sequence[NodeRow]) -> list[str]:
    return [
        f"{each.resource}: {each.in_use_units}/{each.size_units} in use, "
        f"whole cards free: {each.whole_cards_free}, largest free card: {each.largest_free_card}"
        for each in sum_totals(rows)
    ]


def _fill(card: CardRow) -> str:
    """Draw the share in use in `_BAR_CELLS` characters, in eighths of a character, and write it."""
    cells = 8 * _BAR_CELLS
    eighths = cells * card.in_use_units // card.size_units if card.size_units else cells
    whole, rest = divmod(eighths, 8)
    bar = ("█" * whole + (_EIGHTHS[rest] if rest else "")).ljust(_BAR_CELLS, "░")
    return f"{bar} {card.in_use_units}/{card.size_units}"


def _style(row: NodeRow, card: CardRow) -> Style:
    if card.state != "ok" or not row.takes_pods:
        return _OUT
    share = card.used_units / card.size_units if card.size_units else 1.0
    return next(style for least, style in _FILLS if share >= least)


def _mark(row: NodeRow, card: CardRow) -> str:
    """Mark a card that is out of use; a daemon that stops calls all of them unhealthy, which says nothing."""
    return "" if row.without_daemon else _MARKS.get(card.state, "")


def _unit(unit_mib: int | None) -> str:
    if unit_mib is None:
        return "-"
    return format_memory(1, unit_mib)


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over the cards that count, for one resource, that is for one unit."""

    resource: str
    in_use_units: int
    size_units: int
    whole_cards_free: int
    largest_free_card: int


def sum_totals(rows: Sequence[NodeRow]) -> list[Totals]:
    """Add up, ordered by resource.

    Only cards that serve pods count: they are healthy and not cordoned, and their node is Ready, not
    cordoned and served by a daemon.
    """
    return [
        _sum_rows([row for row in rows if row.resource == resource], resource)
        for resource in sorted({row.resource for row in rows if row.resource is not None})
    ]


def _sum_rows(rows: Sequence[NodeRow], resource: str) -> Totals:
    cards = [card for row in rows if row.takes_pods for card in row.cards if card.state == "ok"]
    return Totals(
        resource,
        in_use_units=sum(card.in_use_units for card in cards),
        size_units=sum(card.size_units for card in cards),
        whole_cards_free=sum(card.free_units == card.size_units > 0 for card in cards),
        largest_free_card=max((card.free_units for card in cards), default=0),
    )
