"""The tables of `gpupack node --check`, of what `--prove` adds, and of `gpupack verify`."""

from collections.abc import Sequence
from typing import Final

import msgspec

from deviceplugin.check import can_serve
from deviceplugin.gpus.api.check_finding import CheckFinding
from deviceplugin.proof.report import ProofReport
from gpupack.encodings import as_json
from gpupack.inventory.grid import Cell, Line, align_columns, make_titles
from gpupack.terminal import Style
from kubeapi.errors import make_printable

_GOOD: Final = Style.PLAIN
_DOUBTFUL: Final = Style.YELLOW
_WRONG: Final = Style.RED
_STYLES: Final = {
    "ok": _GOOD,
    "less": _DOUBTFUL,
    "bad": _WRONG,
    "proven": _GOOD,
    "measured": _GOOD,
    "unproven": _DOUBTFUL,
    "refuted": _WRONG,
}
_RESULTS: Final = ("proven", "measured", "unproven", "refuted")


def render(findings: Sequence[CheckFinding], output: str, *, colour: bool) -> str:
    if output == "json":
        return as_json(findings)
    verdict = (
        "A daemon can serve pods here." if can_serve(list(findings)) else "A daemon cannot serve pods here."
    )
    return "\n".join([*_found(findings, colour=colour), "", verdict])


def render_report(
    report: ProofReport, output: str, *, colour: bool, page: str = "docs/hardware/proving.md"
) -> str:
    """Write what was tried, and what to send: tables and the JSON in one line, or the JSON alone."""
    if output == "json":
        return as_json(report)
    results = [proof.result for proof in report.proofs]
    counts = ", ".join(f"{results.count(result)} {result}" for result in _RESULTS)
    ended = "Interrupted, and what had been done was undone: " if report.interrupted else ""
    known = [card.uuid for card in report.cards]
    return "\n".join(
        [
            *_found(report.findings, colour=colour),
            *(
                line
                for uuid in dict.fromkeys([*known, *(proof.card for proof in report.proofs)])
                for line in _proofs(report, uuid, colour=colour)
            ),
            "",
            f"{ended}{counts}. Please send us what follows ({page}):",
            "",
            msgspec.json.encode(report).decode(),
        ]
    )


def _found(findings: Sequence[CheckFinding], *, colour: bool) -> list[str]:
    rows = [_row(finding.what, finding.verdict, finding.found, finding.uses) for finding in findings]
    return list(align_columns([make_titles("WHAT", "", "FOUND", "USE"), *rows], colour=colour))


def _proofs(report: ProofReport, uuid: str, *, colour: bool) -> list[str]:
    models = {card.uuid: card.model for card in report.cards}
    rows = [
        _row(proof.what, proof.result, proof.found, proof.means)
        for proof in report.proofs
        if proof.card == uuid
    ]
    title = make_printable(f"{models.get(uuid, '')} {uuid}".strip())
    return (
        ["", title, *align_columns([make_titles("WHAT", "", "FOUND", "WHY"), *rows], colour=colour)]
        if rows
        else []
    )


def _row(what: str, verdict: str, *more: str) -> Line:
    texts = [make_printable(text) or "-" for text in (what, verdict, *more)]
    return Line([Cell(texts[0]), Cell(texts[1], _STYLES[verdict]), *map(Cell, texts[2:])])
