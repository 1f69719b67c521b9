"""GiB-hours: sampled from moment to moment, kept in bounds, added up by key."""

import csv
import io
import json

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gpupack.errors import InputError
from gpupack.usage.records import Period, PodUse
from gpupack.usage.report import UsageKey, build_report, format_report
from gpupack.usage.sampling import GAP_S, PERIOD_S, PodMemory, SampledPeriods, UsageSampler
from gpupack.usage.sources import report_from_dashboard
from gpupack.usage.times import parse_moment, parse_span

HOUR = 3600.0
GIB = 1024


def seat(name, gib, used=None, namespace="team"):
    return PodMemory(namespace, name, f"uid-{name}", gib * GIB, None if used is None else used * GIB)


def use(name, gib_hours, used=None, namespace="team", **labels):
    scale = GIB * HOUR
    used_mib_s, measured = (None, 0.0) if used is None else (used * scale, gib_hours * scale)
    return PodUse(namespace, name, f"uid-{name}", labels, gib_hours * scale, used_mib_s, measured)


def test_what_is_there_at_a_moment_was_there_since_the_last_one():
    sampler = UsageSampler(1000.0)
    sampler.sample(1010.0, [seat("a", 8), seat("b", 4, used=2)])
    sampler.sample(1030.0, [seat("a", 8), seat("a", 2)])  # one pod on two cards
    period = sampler.end_period(1030.0, {"uid-a": {"team": "x", "pod-template-hash": "1"}})
    assert (period.start, period.end, period.sampled_s) == (1000.0, 1030.0, 30.0)
    found = {each.name: each for each in period.pods}
    assert found["a"].promised_mib_s == (8 * 10 + 10 * 20) * GIB
    assert (found["a"].used_mib_s, found["a"].measured_mib_s) == (None, 0)
    assert found["a"].labels == {"team": "x"}
    assert (found["b"].promised_mib_s, found["b"].used_mib_s) == (4 * 10 * GIB, 2 * 10 * GIB)
    assert found["b"].measured_mib_s == 4 * 10 * GIB
    assert sampler.end_period(1040.0, {}).pods == []


def test_a_moment_without_a_measure_is_left_out_of_the_use():
    sampler = UsageSampler(1000.0)
    for at, used in ((1010.0, 6), (1020.0, None), (1030.0, 4)):
        sampler.sample(at, [seat("a", 8, used=used)])
    (found,) = sampler.end_period(1030.0, {}).pods
    assert (found.promised_mib_s, found.used_mib_s) == (8 * 30 * GIB, (6 + 4) * 10 * GIB)
    assert found.measured_mib_s == 8 * 20 * GIB


@pytest.mark.parametrize("next_s", [1000.0 + GAP_S + 1, 900.0], ids=["it slept", "the clock went back"])
def test_time_that_nobody_saw_is_not_counted(next_s):
    sampler = UsageSampler(1000.0)
    sampler.sample(next_s, [seat("a", 8)])
    sampler.sample(next_s + 10, [seat("a", 8)])
    period = sampler.end_period(next_s + 10, {})
    assert period.sampled_s == 10.0
    assert [each.promised_mib_s for each in period.pods] == [80 * GIB]


def test_a_period_is_due_after_its_time_and_when_the_clock_goes_back():
    sampler = UsageSampler(1000.0)
    assert not sampler.is_due(1000.0 + PERIOD_S - 1)
    assert sampler.is_due(1000.0 + PERIOD_S)
    assert sampler.is_due(10.0)


PERIODS = [
    Period(0.0, HOUR, HOUR, [use("a", 8, 6, team="red"), use("b", 4, namespace="other")]),
    Period(HOUR, 2 * HOUR, HOUR / 2, [use("a", 2, 1, team="red"), use("c", 1, 1, team="blue")]),
]


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("namespace", {("team",): (11, 8, 11), ("other",): (4, None, 0)}),
        ("pod", {("team", "a"): (10, 7, 10), ("team", "c"): (1, 1, 1), ("other", "b"): (4, None, 0)}),
        ("label:team", {("red",): (10, 7, 10), ("blue",): (1, 1, 1), ("(none)",): (4, None, 0)}),
    ],
)
def test_periods_are_added_up_by_key(by, expected):
    found = build_report(PERIODS, UsageKey.parse(by), 0.0, 2 * HOUR, "here")
    assert {row.keys: (row.promised, row.used, row.measured) for row in found.rows} == expected
    assert [row.promised for row in found.rows] == sorted((one[0] for one in expected.values()), reverse=True)
    assert found.sampled_hours == 1.5


def test_a_period_counts_with_the_part_that_lies_in_the_time():
    found = build_report(PERIODS, UsageKey.parse("namespace"), HOUR / 2, 1.25 * HOUR, "here")
    assert {row.keys[0]: row.promised for row in found.rows} == {"team": 4 + 0.75, "other": 2}
    assert build_report(PERIODS, UsageKey.parse("pod"), 5 * HOUR, 6 * HOUR, "here").rows == []


def test_use_is_of_the_part_that_was_measured():
    periods = [
        Period(0.0, HOUR, HOUR, [use("a", 8, 6), use("b", 4)]),
        Period(HOUR, 2 * HOUR, HOUR, [use("a", 8), use("c", 1)]),
    ]
    found = build_report(periods, UsageKey.parse("pod"), 0.0, 2 * HOUR, "here")
    table = [line.split() for line in format_report(found, "table").splitlines()]
    assert table[0] == ["NAMESPACE", "POD", "PROMISED", "GiB-h", "USED", "GiB-h", "MEASURED"]
    assert table[1:5] == [
        ["team", "a", "16.00", "6.00", "50%"],
        ["team", "b", "4.00", "-", "0%"],
        ["team", "c", "1.00", "-", "0%"],
        ["TOTAL", "21.00", "6.00", "38%"],
    ]


def test_all_is_said_of_all_only():
    periods = [Period(0.0, HOUR, HOUR, [use("a", 9999, 1), use("b", 1)])]
    assert "  99%" in format_report(
        build_report(periods, UsageKey.parse("namespace"), 0.0, HOUR, "here"), "table"
    )
    assert "TOTAL" in format_report(build_report([], UsageKey.parse("namespace"), 0.0, HOUR, "here"), "table")


def test_the_same_figures_as_table_csv_and_json():
    found = build_report(PERIODS, UsageKey.parse("pod"), 0.0, 2 * HOUR, "here")
    rows = list(csv.DictReader(io.StringIO(format_report(found, "csv"))))
    assert rows[0] == {
        "namespace": "team", "pod": "a", "promised_gib_hours": "10.000000", "used_gib_hours": "7.000000",
        "measured_gib_hours": "10.000000",
    }  # fmt: skip
    assert rows[1]["used_gib_hours"] == ""
    plain = json.loads(format_report(found, "json"))
    assert plain["rows"][1] == {
        "namespace": "other", "pod": "b", "promised_gib_hours": 4.0, "used_gib_hours": None,
        "measured_gib_hours": 0.0,
    }  # fmt: skip
    assert (plain["by"], plain["sampled_hours"]) == ("pod", 1.5)
    table = format_report(found, "table").splitlines()
    assert table[0].split() == ["NAMESPACE", "POD", "PROMISED", "GiB-h", "USED", "GiB-h", "MEASURED"]
    assert table[4].split() == ["TOTAL", "15.00", "8.00", "73%"]
    assert table[-1] == "here: 1.5 of 2.0 hours are known"


@pytest.mark.parametrize("text", ["", "node", "label:", "Pod"])
def test_what_cannot_be_added_up_by_is_named(text):
    with pytest.raises(InputError, match="allowed: namespace, pod and label:KEY"):
        UsageKey.parse(text)


def test_memory_is_bounded_and_the_oldest_go_first():
    memory = SampledPeriods(max_pod_uses=10)
    for number in range(20):
        memory.add(Period(number, number + 1, 1.0, [use("a", 1), use("b", 1)]))
    assert [period.start for period in memory.list_periods()] == [17, 18, 19]


NOW = 1_700_000_000.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("now", NOW), ("30m", NOW - 1800), ("24h", NOW - 86400), ("1.5d", NOW - 129600),
        ("2w", NOW - 1209600),
        ("2023-11-01", 1_698_796_800.0), ("2023-11-01T08:00:00Z", 1_698_825_600.0),
        ("2023-11-01T08:00:00+02:00", 1_698_818_400.0),
    ],
)  # fmt: skip
def test_moments(text, expected):
    assert parse_moment(text, NOW) == expected


@pytest.mark.parametrize("text", ["", "yesterday", "5", "-1h", "2023-13-01"])
def test_other_moments_are_named(text):
    with pytest.raises(InputError, match="allowed: 30m, 24h, 7d"):
        parse_moment(text, NOW)


def test_a_time_begins_before_it_ends():
    assert parse_span("1h", "now", NOW) == (NOW - 3600, NOW)
    with pytest.raises(InputError, match="a time that begins before it ends"):
        parse_span("1h", "2h", NOW)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            {"error": "use is not recorded: the page shows a file"},
            "use is not recorded: the page shows a file",
        ),
        ({"error": "red\x1b[2J\nalert"}, "red?[2J alert"),
    ],
)
async def test_a_dashboard_without_a_report_says_why_in_its_own_words(body, said):
    async def refuse(_request):
        return web.json_response(body, status=404)

    app = web.Application()
    app.router.add_get("/api/usage", refuse)
    async with TestServer(app) as server:
        url = str(server.make_url("/"))
        with pytest.raises(InputError) as caught:
            await report_from_dashboard(url, UsageKey.parse("pod"), 0.0, HOUR)
    assert str(caught.value) == f"{url}: {said}"
