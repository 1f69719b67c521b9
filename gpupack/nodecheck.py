"""The table of `gpupack node --check`."""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
from rich.style import Style

from deviceplugin.check import Finding, served
from gpupack.inventory.grid import HEADER, PLAIN, Cell, Line, grid
from kubeapi.errors import printable

_STYLES: Final = {"ok": PLAIN, "less": Style(color="yellow"), "bad": Style(color="red")}


def render(findings: Sequence[Finding], output: str, *, colour: bool) -> str:
    """Write the findings.

    Args:
        findings: what was found.
        output: `table` or `json`.
        colour: for a terminal; without effect on JSON.

    Returns:
        Text without a final line break.
    """
    if output == "json":
        return msgspec.json.format(msgspec.json.encode(findings), indent=1).decode()
    verdict = (
        "A daemon can serve pods here." if served(list(findings)) else "A daemon cannot serve pods here."
    )
    return "\n".join([*grid(_lines(findings), colour=colour), "", verdict])


def _lines(findings: Sequence[Finding]) -> Iterator[Line]:
    yield Line([Cell(title, HEADER) for title in ("WHAT", "", "FOUND", "USE")])
    for finding in findings:
        cells = [finding.what, finding.verdict, finding.found, finding.uses]
        style = _STYLES[finding.verdict]
        yield Line(
            [Cell(printable(text) or "-", style if at == 1 else PLAIN) for at, text in enumerate(cells)]
        )
