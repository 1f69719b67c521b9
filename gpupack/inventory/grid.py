"""Lines of cells that are padded to common widths."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from gpupack.terminal import Style, cell_width

_GAP: Final = "  "


@dataclass(frozen=True, slots=True)
class Cell:
    """A text and how it looks on a terminal."""

    text: str
    style: Style = Style.PLAIN


@dataclass(frozen=True, slots=True)
class Line:
    """Cells that are padded to common widths, and a text after them that is not."""

    cells: Sequence[Cell]
    tail: str = ""


def make_titles(*titles: str) -> Line:
    return Line([Cell(title, Style.BOLD) for title in titles])


def align_columns(lines: Iterable[Line], *, colour: bool) -> Iterator[str]:
    kept = list(lines)
    widths: list[int] = []
    for line in kept:
        for column, cell in enumerate(line.cells):
            width = cell_width(cell.text)
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
            blanks = " " * (width - cell_width(cell.text)) + _GAP
        if line.tail:
            parts += [blanks, Style.RED.render(line.tail) if colour else line.tail]
        yield "".join(parts)
