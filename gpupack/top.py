"""`gpupack top`: every card of every node, decoded from what the nodes publish.

Reading and rendering are pure; only `fetch` talks to an API server. Lines are padded here rather than in
a `rich` table, which takes 16 s for the 40 000 cards of 5 000 nodes.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import msgspec
from rich.cells import cell_len
from rich.style import Style

from allocator.cards import Card
from allocator.errors import PackingError, shown
from allocator.foreign import describe_foreign, foreign_gpus
from allocator.names import MIB_PER_GIB, NODE_CARDS, NODE_CORDON
from allocator.packing import read_node
from allocator.records import join_cards, load_cards, load_cordon
from gpupack.errors import InputError

if TYPE_CHECKING:
    from kubeapi.client import KubeClient

Output = Literal["table", "wide", "json"]

_T = TypeVar("_T")

_NODES_PATH: Final = "/api/v1/nodes"
_READS: Final = "allowed is the output of `kubectl get nodes -o json`"
_BAR_CELLS: Final = 4
_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"
_GAP: Final = "  "

_HEADER_STYLE: Final = Style(bold=True)
_PLAIN_STYLE: Final = Style()
_ERROR_STYLE: Final = Style(color="red")
_OUT_STYLE: Final = Style(color="red", dim=True)
# Style from this share of used units upwards.
_FILL_STYLES: Final = ((1.0, Style(color="red")), (0.75, Style(color="yellow")), (0.0, Style(color="green")))


@dataclass(frozen=True, slots=True)
class CardRow:
    """One card: sizes in units; UUID and model None where the node publishes no inventory."""

    index: int
    uuid: str | None
    model: str | None
    size_units: int
    used_units: int
    healthy: bool = True
    cordoned: bool = False


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One node that publishes words.

    Attributes:
        node: its name.
        cards: in the order of the words; empty when the words do not decode.
        unit_mib: MiB of one unit, None when the words do not decode.
        error: what is wrong with the words or the annotations, None when nothing is.
        foreign_gpus: GPUs that another device plugin offers there, by resource.
    """

    node: str
    cards: tuple[CardRow, ...]
    unit_mib: int | None
    error: str | None
    foreign_gpus: Mapping[str, int] = field(default_factory=dict)

    @property
    def remark(self) -> str:
        """What a person has to know besides the cards; empty where there is nothing."""
        foreign = describe_foreign(self.foreign_gpus) if self.foreign_gpus else ""
        return "; ".join(filter(None, (self.error, foreign)))


class _Metadata(msgspec.Struct):
    name: str
    annotations: dict[str, str] | None = None


class _Status(msgspec.Struct):
    capacity: dict[str, Any] | None = None
    allocatable: dict[str, Any] | None = None


class _Node(msgspec.Struct):
    metadata: _Metadata
    status: _Status = msgspec.field(default_factory=_Status)
    kind: str = "Node"


class _NodeList(msgspec.Struct):
    items: list[_Node]


def load_nodes(text: str | bytes) -> object:
    """Read the output of `kubectl get nodes -o json`, or of one node.

    Returns:
        A value for `rows`.

    Raises:
        InputError: not JSON, or not nodes; the message names the place.
    """
    if not text.strip():
        raise InputError(f"the input is empty: {_READS}")
    try:
        return _decode(text, _NodeList)
    except msgspec.ValidationError as error:
        # Not a list of nodes: `_checked` knows the other form, and what to say of the rest.
        try:
            nodes = _decode(text, object)
        except msgspec.ValidationError:  # a number that is too large for any type
            raise InputError(f"the input does not hold nodes ({error}): {_READS}") from error
        return _checked(nodes)


def rows(nodes: object) -> list[NodeRow]:
    """Decode the cards of all nodes that publish words, ordered by node name.

    Args:
        nodes: what `load_nodes` or `fetch` returned, or decoded JSON: a list with `items`, or a node.

    Raises:
        InputError: the value does not hold nodes. Bad words or annotations of a node are not an error:
            its row says so.
    """
    decoded = (_row(node) for node in _checked(nodes).items)
    return sorted((row for row in decoded if row is not None), key=lambda row: row.node)


def render(rows: Sequence[NodeRow], output: Output, *, colour: bool = False) -> str:
    """Write the rows.

    Args:
        rows: from the function `rows`.
        output: `table` one line per node with a bar for each card, `wide` one line per card, or `json`.
        colour: put ANSI colours in, for terminals; without effect on JSON.

    Returns:
        Text without a final line break.
    """
    if output == "json":
        return _json(rows)
    if not rows:
        return "No node publishes GPU cards."
    lines = _wide(rows) if output == "wide" else _table(rows)
    return "\n".join(_grid(lines, colour=colour))


async def fetch(kubeconfig: str | None) -> object:
    """List the nodes of a cluster.

    Args:
        kubeconfig: path of a kubeconfig; None for the usual places.

    Returns:
        A value for `rows`.

    Raises:
        InputError: the server answers with something else than nodes.
        KubeApiError: no configuration, no server or no right to list nodes.
    """
    # Imported here: the HTTP client takes longer to load than a file takes to show.
    from kubeapi.client import KubeClient  # noqa: PLC0415
    from kubeapi.errors import Gone  # noqa: PLC0415

    async with await KubeClient.connect(kubeconfig) as client:
        try:
            return await _list(client)
        except Gone:
            # The snapshot went away between two pages; what was read of it must not be mixed with another.
            return await _list(client)


async def _list(client: "KubeClient") -> _NodeList:
    items: list[_Node] = []
    try:
        async for page in client.pages(_NODES_PATH):
            items += msgspec.json.decode(page, type=_NodeList).items
    except msgspec.ValidationError as error:
        raise InputError(f"{client.server} lists something else than nodes: {error}") from error
    return _NodeList(items)


def _decode(text: str | bytes, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InputError(f"the input is not JSON ({error}): {_READS}") from error


def _checked(nodes: object) -> _NodeList:
    if not isinstance(nodes, _NodeList):
        if isinstance(nodes, dict) and "items" not in nodes and "metadata" in nodes:
            nodes = {"items": [nodes]}
        try:
            nodes = msgspec.convert(nodes, _NodeList)
        except msgspec.ValidationError as error:
            raise InputError(f"the input does not hold nodes ({error}): {_READS}") from error
    for node in nodes.items:
        if node.kind != "Node":
            raise InputError(f"the input holds a {shown(node.kind)}, {shown(node.metadata.name)}: {_READS}")
    return nodes


def _row(node: _Node) -> NodeRow | None:
    """Decode one node, None when it publishes no words."""
    name = _printable(node.metadata.name)
    foreign = foreign_gpus(node.status.capacity, node.status.allocatable)
    try:
        words = read_node(node.status.allocatable or {}) or read_node(node.status.capacity or {})
    except PackingError as error:
        return NodeRow(name, (), None, str(error), foreign)
    if words is None:
        return None
    annotations = node.metadata.annotations or {}
    problems = []
    cordoned: frozenset[str] = frozenset()
    try:
        cordoned = load_cordon(annotations.get(NODE_CORDON, ""))
    except PackingError as error:
        problems.append(str(error))
    cards = tuple(
        CardRow(position, None, None, size, used)
        for position, (size, used) in enumerate(zip(words.sizes, words.used, strict=True))
    )
    if NODE_CARDS in annotations:
        try:
            joined = join_cards(words, load_cards(annotations[NODE_CARDS]), cordoned)
        except PackingError as error:
            problems.append(str(error))
        else:
            cards = tuple(_card(card) for card in joined)
    return NodeRow(name, cards, words.layout.unit_mib, "; ".join(problems) or None, foreign)


def _card(card: Card) -> CardRow:
    return CardRow(
        index=card.index,
        uuid=card.uuid,
        model=_printable(card.model) or None,
        size_units=card.size_units,
        used_units=card.used_units,
        healthy=card.healthy,
        cordoned=card.cordoned,
    )


def _printable(text: str) -> str:
    """Keep other people's control sequences off the terminal."""
    return "".join(character if character.isprintable() else "?" for character in text)


def _json(rows: Sequence[NodeRow]) -> str:
    records = [
        {
            "node": row.node,
            "cards": [
                {
                    "index": card.index,
                    "uuid": card.uuid,
                    "model": card.model,
                    "size_units": card.size_units,
                    "used_units": card.used_units,
                    "healthy": card.healthy,
                }
                for card in row.cards
            ],
            "unit_mib": row.unit_mib,
            "error": row.error,
            "foreign_gpus": row.foreign_gpus,
        }
        for row in rows
    ]
    return msgspec.json.format(msgspec.json.encode(records), indent=2).decode()


@dataclass(frozen=True, slots=True)
class _Cell:
    text: str
    style: Style = _PLAIN_STYLE


@dataclass(frozen=True, slots=True)
class _Line:
    """Cells that are padded to common widths, and a text after them that is not."""

    cells: Sequence[_Cell]
    tail: str = ""


def _table(rows: Sequence[NodeRow]) -> Iterator[_Line]:
    """Lay out one line per node: name, unit, units in use, and a bar per card."""
    yield _Line([_Cell(title, _HEADER_STYLE) for title in ("NODE", "UNIT", "USED", "CARDS")])
    for row in rows:
        used = sum(card.used_units for card in row.cards)
        size = sum(card.size_units for card in row.cards)
        bars = [
            _Cell(f"{_bar(card)} {card.used_units}/{card.size_units}{_mark(card)}", _style(card))
            for card in row.cards
        ]
        yield _Line(
            [
                _Cell(row.node),
                _Cell(_unit(row.unit_mib)),
                _Cell(f"{used}/{size}" if row.cards else "-"),
                *bars,
            ],
            row.remark,
        )
    if any(_mark(card) for row in rows for card in row.cards):
        yield _Line([], "! unhealthy or cordoned")


def _wide(rows: Sequence[NodeRow]) -> Iterator[_Line]:
    """Lay out one line per card."""
    titles = ("NODE", "CARD", "UNIT", "USED", "STATE", "MODEL", "UUID")
    yield _Line([_Cell(title, _HEADER_STYLE) for title in titles])
    for row in rows:
        unit = _unit(row.unit_mib)
        tail = row.remark
        for card in row.cards:
            cells = [
                _Cell(row.node),
                _Cell(str(card.index)),
                _Cell(unit),
                _Cell(f"{_bar(card)} {card.used_units}/{card.size_units}", _style(card)),
                _Cell(_state(card), _PLAIN_STYLE if _state(card) == "ok" else _OUT_STYLE),
                _Cell(card.model or "-"),
                _Cell(card.uuid or "-"),
            ]
            yield _Line(cells, tail)
            tail = ""
        if not row.cards:
            yield _Line([_Cell(row.node), *[_Cell("-")] * (len(titles) - 1)], tail)


def _grid(lines: Iterable[_Line], *, colour: bool) -> Iterator[str]:
    """Pad the cells of all lines to the widths of their columns."""
    kept = list(lines)
    widths: list[int] = []
    for line in kept:
        for column, cell in enumerate(line.cells):
            width = cell_len(cell.text)
            if column == len(widths):
                widths.append(width)
            elif width > widths[column]:
                widths[column] = width
    for line in kept:
        parts = []
        # The blanks before a cell are written with it, so that no line ends in blanks.
        blanks = ""
        for cell, width in zip(line.cells, widths, strict=False):
            parts += [blanks, cell.style.render(cell.text) if colour else cell.text]
            blanks = " " * (width - cell_len(cell.text)) + _GAP
        if line.tail:
            parts += [blanks, _ERROR_STYLE.render(line.tail) if colour else line.tail]
        yield "".join(parts)


def _bar(card: CardRow) -> str:
    """Draw the used share in `_BAR_CELLS` characters, in eighths of a character."""
    eighths = 8 * _BAR_CELLS * card.used_units // card.size_units if card.size_units else 8 * _BAR_CELLS
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + (_EIGHTHS[rest] if rest else "")).ljust(_BAR_CELLS, "░")


def _style(card: CardRow) -> Style:
    if _mark(card):
        return _OUT_STYLE
    share = card.used_units / card.size_units if card.size_units else 1.0
    return next(style for least, style in _FILL_STYLES if share >= least)


def _mark(card: CardRow) -> str:
    return "" if _state(card) == "ok" else "!"


def _state(card: CardRow) -> str:
    if not card.healthy:
        return "unhealthy"
    return "cordoned" if card.cordoned else "ok"


def _unit(unit_mib: int | None) -> str:
    if unit_mib is None:
        return "-"
    return f"{unit_mib // MIB_PER_GIB} GiB" if unit_mib % MIB_PER_GIB == 0 else f"{unit_mib} MiB"
