"""Adds up GiB-hours and writes them: as a table, as CSV and as JSON."""

import csv
import io
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from allocator.errors import shown
from allocator.names import MIB_PER_GIB
from gpupack.encodings import as_json
from gpupack.errors import InputError
from gpupack.inventory.grid import Cell, Line, align_columns, make_titles
from gpupack.usage.records import Period, PodUse

Output = Literal["table", "csv", "json"]

NOBODY: Final = "(unknown)"
UNLABELLED: Final = "(none)"

_LABEL: Final = "label:"
_ALLOWED: Final = "allowed: namespace, pod and label:KEY"


@dataclass(frozen=True, slots=True)
class UsageKey:
    """The key by which a report adds up."""

    kind: Literal["namespace", "pod", "label"]
    label: str = ""

    @classmethod
    def parse(cls, text: str) -> "UsageKey":
        """Read `namespace`, `pod` or `label:KEY`."""
        if text in {"namespace", "pod"}:
            return cls("namespace" if text == "namespace" else "pod")
        if text.startswith(_LABEL) and len(text) > len(_LABEL):
            return cls("label", text.removeprefix(_LABEL))
        raise InputError(f"by {shown(text)}; {_ALLOWED}")

    def __str__(self) -> str:
        return f"{_LABEL}{self.label}" if self.kind == "label" else self.kind

    @property
    def columns(self) -> tuple[str, ...]:
        return {"namespace": ("namespace",), "pod": ("namespace", "pod")}.get(self.kind, (self.label,))

    def get_key(self, use: PodUse) -> tuple[str, ...]:
        if self.kind == "label":
            return (use.labels.get(self.label, UNLABELLED),)
        namespace = use.namespace or NOBODY
        return (namespace,) if self.kind == "namespace" else (namespace, use.name or use.uid)


class ReportRow(msgspec.Struct, frozen=True):
    """A line of the report; amounts are GiB-hours.

    Attributes:
        used: Over the measured time; None if nothing was measured.
        measured: The part of `promised` whose use was measured.
    """

    keys: tuple[str, ...]
    promised: float
    used: float | None
    measured: float


class UsageReport(msgspec.Struct, frozen=True):
    """The use of each key between two moments.

    Attributes:
        since: seconds since the epoch.
        until: seconds since the epoch.
        sampled_hours: for how many hours of that time something is known.
    """

    since: float
    until: float
    sampled_hours: float
    by: str
    rows: list[ReportRow]
    source: str


def build_report(
    periods: Iterable[Period], by: UsageKey, since: float, until: float, source: str
) -> UsageReport:
    """Add up what pods had between two moments; a period counts with the part of it that lies between."""
    sums: dict[tuple[str, ...], ReportRow] = {}
    sampled_s = 0.0
    for period in periods:
        share = _overlap(period, since, until)
        if not share:
            continue
        sampled_s += period.sampled_s * share
        for use in period.pods:
            key = by.get_key(use)
            before = sums.get(key) or ReportRow(key, 0.0, None, 0.0)
            used = before.used
            if use.used_mib_s is not None:
                used = (used or 0.0) + _gib_hours(use.used_mib_s * share)
            promised = before.promised + _gib_hours(use.promised_mib_s * share)
            sums[key] = ReportRow(
                key, promised, used, before.measured + _gib_hours(use.measured_mib_s * share)
            )
    rows = sorted(sums.values(), key=lambda row: (-row.promised, row.keys))
    return UsageReport(since, until, sampled_s / 3600, str(by), rows, source)


def _overlap(period: Period, since: float, until: float) -> float:
    """Compute which part of a period lies between two moments, 0 to 1."""
    length = period.end - period.start
    inside = min(period.end, until) - max(period.start, since)
    return max(0.0, min(1.0, inside / length)) if length > 0 else 0.0


def _gib_hours(mib_s: float) -> float:
    return mib_s / MIB_PER_GIB / 3600


def format_report(report: UsageReport, output: Output) -> str:
    columns = UsageKey.parse(report.by).columns
    if output == "json":
        return as_json(_plain(report, columns))
    if output == "csv":
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*columns, "promised_gib_hours", "used_gib_hours", "measured_gib_hours"])
        writer.writerows(
            [*row.keys, _number(row.promised), _number(row.used), _number(row.measured)]
            for row in report.rows
        )
        return text.getvalue().rstrip("\n")
    head = [*(column.upper() for column in columns), "PROMISED GiB-h", "USED GiB-h", "MEASURED"]
    total = ReportRow(
        ("TOTAL", *[""] * (len(columns) - 1)),
        sum(row.promised for row in report.rows),
        _total_used(report),
        sum(row.measured for row in report.rows),
    )
    body = [
        [*row.keys, _number(row.promised, 2), _number(row.used, 2) or "-", _percent(row)]
        for row in (*report.rows, total)
    ]
    lines = [
        make_titles(*head),
        *(Line([Cell(text) for text in line]) for line in body),
    ]
    hours = (report.until - report.since) / 3600
    known = f"{report.source}: {report.sampled_hours:.1f} of {hours:.1f} hours are known"
    return "\n".join([*(line.rstrip() for line in align_columns(lines, colour=False)), "", known])


def _plain(report: UsageReport, columns: tuple[str, ...]) -> dict[str, Any]:
    return {
        "since": report.since,
        "until": report.until,
        "sampled_hours": round(report.sampled_hours, 3),
        "source": report.source,
        "by": report.by,
        "rows": [
            {
                **dict(zip(columns, row.keys, strict=True)),
                "promised_gib_hours": round(row.promised, 6),
                "used_gib_hours": None if row.used is None else round(row.used, 6),
                "measured_gib_hours": round(row.measured, 6),
            }
            for row in report.rows
        ],
    }


def _total_used(report: UsageReport) -> float | None:
    amounts = [row.used for row in report.rows if row.used is not None]
    return sum(amounts) if amounts else None


def _percent(row: ReportRow) -> str:
    """Compute the percentage of the allocation that was measured; 100 only if all of it was."""
    share = row.measured / row.promised if row.promised else 0.0
    return f"{math.floor(100 * share + 1e-6)}%"


def _number(amount: float | None, digits: int = 6) -> str:
    return "" if amount is None else f"{amount:.{digits}f}"
