"""`gpupack usage` as people call it: from Prometheus, from a running dashboard."""

import asyncio
import json
import math
import re
import time

import pytest
from aiohttp import web
from click.testing import CliRunner

from benchmarks.dashboard import fill, fill_board
from benchmarks.fleet import Fleet
from gpupack.cli.app import cli
from gpupack.dashboard.app import Dashboard, serve_cluster
from gpupack.dashboard.settings import Settings
from standins.apiserver.server import ApiServer
from tests.http_server import serving
from tests.running import served

GIB = 2**30


async def usage(*arguments):
    """Run the command beside the servers of a test; returns its exit status, stdout and stderr."""
    done = await asyncio.to_thread(CliRunner().invoke, cli, ["usage", *map(str, arguments)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
    return done.exit_code, done.stdout, done.stderr


class StandInPrometheus:
    """Answers as Prometheus does to `sum by (...) (metric)` and to a label's query, from constant gauges.

    Args:
        gauges: bytes by metric, and labels of its series.
        labels: of pods, by namespace and name.
    """

    def __init__(self, gauges, labels=()):
        self.gauges = gauges
        self.labels = dict(labels)
        self.asked = []
        self.answer = None

    async def query_range(self, request):
        form = await request.post()
        self.asked.append((request.headers.get("Authorization"), dict(form)))
        if self.answer is not None:
            return self.answer()
        start, end, step = (float(form[name]) for name in ("start", "end", "step"))
        moments = [start + step * number for number in range(int((end - start) / step + 1e-9) + 1)]
        shown, *others = [dict(self.series(name)) for name in re.findall(r"gpupack\w+", form["query"])]
        result = []
        for labels, value in shown.items():
            values = [
                [at, str(value(at))]
                for at in moments
                # `and` matches on all labels, and no comparison is true of NaN.
                if value(at) is not None
                and all(labels in other and is_number(other[labels](at)) for other in others)
                and (">=" not in form["query"] or is_number(value(at)))
            ]
            if values:
                result.append({"metric": dict(labels), "values": values})
        return web.json_response({"status": "success", "data": {"resultType": "matrix", "result": result}})

    def series(self, metric):
        """Labels, and the value at each moment: None for none."""
        for labels, value in self.gauges.get(metric, ()):
            yield frozenset(labels.items()), value if callable(value) else (lambda _, same=value: same)

    async def query(self, request):
        form = await request.post()
        self.asked.append((None, dict(form)))
        by = form["query"].partition("max by (")[2].partition(")")[0].split(", ")
        result = []
        for (namespace, pod), values in self.labels.items():
            labels = {"namespace": namespace, "pod": pod, **values}
            kept = {name: value for name, value in labels.items() if name in by}
            result.append({"metric": kept, "value": [0, "1"]})
        return web.json_response({"status": "success", "data": {"resultType": "vector", "result": result}})


def is_number(value):
    return value is not None and not math.isnan(value)


def as_of_a_daemon(namespace, pod, **labels):
    """As a scrape configuration leaves them that sets `pod` to the daemon's own."""
    own = {"namespace": "gpupack-system", "pod": "gpupack-node-1"}
    return {**own, "exported_namespace": namespace, "exported_pod": pod, **labels}


@pytest.fixture
async def prometheus():
    standin = StandInPrometheus(
        {
            "gpupack_container_promised_bytes": [
                (as_of_a_daemon("red", "a"), 8 * GIB),
                ({"namespace": "red", "pod": "b"}, 4 * GIB),
                ({"namespace": "blue", "pod": "c"}, 2 * GIB),
            ],
            "gpupack_container_used_bytes": [
                (as_of_a_daemon("red", "a"), 6 * GIB),
                ({"namespace": "red", "pod": "b"}, 1 * GIB),
            ],
        },
        {("red", "a"): {"label_team": "one"}, ("blue", "c"): {"label_team": "one"}, ("red", "b"): {}},
    )

    async def answer(request):
        return await getattr(standin, request.path.removeprefix("/api/v1/"))(request)

    async with serving(answer) as standin.url:
        yield standin


async def test_prometheus_is_asked_for_our_own_metrics(prometheus, tmp_path):
    token = tmp_path / "token"
    token.write_text("secret\n")
    options = ("--prometheus", prometheus.url, "--token-file", token, "-o", "json")
    status, out, _ = await usage(*options, "--since", "10h")
    assert status == 0
    report = json.loads(out)
    assert [(row["namespace"], round(row["promised_gib_hours"])) for row in report["rows"]] == [
        ("red", 120), ("blue", 20)
    ]  # fmt: skip
    assert round(report["rows"][0]["used_gib_hours"]) == 70
    assert round(report["rows"][0]["measured_gib_hours"]) == 120
    assert (report["rows"][1]["used_gib_hours"], report["rows"][1]["measured_gib_hours"]) == (None, 0)
    assert report["sampled_hours"] == pytest.approx(10, rel=0.01)
    assert {header for header, _ in prometheus.asked} == {"Bearer secret"}
    assert "secret" not in out


async def test_prometheus_is_asked_through_the_proxy_of_the_environment(prometheus, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", prometheus.url)
    status, _, err = await usage("--prometheus", "http://prometheus.invalid:9090")
    assert (status, err) == (0, "")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    assert (await usage("--prometheus", prometheus.url))[0] == 0, "on this machine it is asked directly"


async def test_a_proxy_that_cannot_be_used_is_said_in_a_line(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "socks5://user:secret@h:1")
    for option in ("--prometheus", "--dashboard"):
        status, out, err = await usage(option, "http://h:1")
        assert (status, out) == (2, "")
        assert err.startswith("gpupack: HTTP_PROXY '...@h:1'; allowed: http://HOST[:PORT]")


async def test_labels_come_from_kube_state_metrics(prometheus):
    status, out, _ = await usage(
        "--prometheus", prometheus.url, "--since", "1h", "--by", "label:team", "-o", "csv"
    )
    assert status == 0
    assert [line.split(",")[0] for line in out.splitlines()] == ["team", "one", "(none)"]
    assert float(out.splitlines()[1].split(",")[1]) == pytest.approx(10, rel=0.01)


def gaps(prometheus, used, promised=8 * GIB):
    """One pod with a promise all the time and a measured use that has gaps."""
    labels = {"namespace": "red", "pod": "a", "container": "main", "uuid": "u"}
    prometheus.gauges = {
        "gpupack_container_promised_bytes": [(labels, promised)],
        "gpupack_container_used_bytes": [(labels, used)],
    }


@pytest.mark.parametrize("missing", [None, math.nan], ids=["no sample", "no number"])
async def test_time_that_was_not_measured_is_no_use_of_zero(prometheus, missing):
    """Six of ten hours were measured, at 6 GiB each."""
    began = time.time() - 36000
    gaps(prometheus, lambda at: missing if 7200 < at - began <= 21600 else 6 * GIB)
    status, out, _ = await usage("--prometheus", prometheus.url, "--since", "10h", "-o", "json")
    assert status == 0
    (row,) = json.loads(out)["rows"]
    assert row["promised_gib_hours"] == pytest.approx(80, rel=0.01)
    assert row["used_gib_hours"] == pytest.approx(36, rel=0.01)
    assert row["measured_gib_hours"] == pytest.approx(48, rel=0.01)
    # What it used of what was measured: 6 of 8 GiB, whatever the gap.
    assert row["used_gib_hours"] / row["measured_gib_hours"] == pytest.approx(6 / 8)


async def test_the_share_that_was_measured_stands_beside_the_use(prometheus):
    began = time.time() - 36000
    gaps(prometheus, lambda at: None if at - began < 18000 else 6 * GIB)
    _, out, _ = await usage("--prometheus", prometheus.url, "--since", "10h")
    lines = [line.split() for line in out.splitlines()]
    assert lines[0] == ["NAMESPACE", "PROMISED", "GiB-h", "USED", "GiB-h", "MEASURED"]
    assert lines[1][0] == "red"
    assert lines[1][3] in {"49%", "50%"}


async def test_a_container_that_is_not_measured_leaves_the_others_be(prometheus):
    """On a card where two pods cannot be told apart, for instance."""
    prometheus.gauges = {
        "gpupack_container_promised_bytes": [
            (as_of_a_daemon("red", "a", container="main", uuid="u"), 8 * GIB),
            (as_of_a_daemon("red", "a", container="side", uuid="v"), 2 * GIB),
        ],
        "gpupack_container_used_bytes": [(as_of_a_daemon("red", "a", container="main", uuid="u"), 4 * GIB)],
    }
    _, out, _ = await usage("--prometheus", prometheus.url, "--since", "1h", "--by", "pod", "-o", "csv")
    head, row = (line.split(",") for line in out.splitlines())
    assert head == ["namespace", "pod", "promised_gib_hours", "used_gib_hours", "measured_gib_hours"]
    assert [round(float(amount)) for amount in row[2:]] == [10, 4, 8]


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("costCenter", "label_cost_center"),
        ("app.kubernetes.io/name", "label_app_kubernetes_io_name"),
        ("example.com/billingTeam-ID", "label_example_com_billing_team_id"),
        ("HTTPServer", "label_httpserver"),
        ("A1B", "label_a1_b"),
        ("x_Y", "label_x_y"),
    ],
)
async def test_labels_have_the_names_that_kube_state_metrics_writes(prometheus, key, name):
    prometheus.labels = {("red", "a"): {name: "one"}, ("red", "b"): {name: "two"}}
    _, out, _ = await usage(
        "--prometheus", prometheus.url, "--since", "1h", "--by", f"label:{key}", "-o", "csv"
    )
    assert [line.split(",")[0] for line in out.splitlines()] == [key, "one", "two", "(none)"]


async def test_labels_of_one_name_in_kube_state_metrics(prometheus):
    """`costCenter` and `cost-center` of one pod: numbered, and nobody says which is which."""
    both = {"label_cost_center_conflict1": "one", "label_cost_center_conflict2": "two"}
    prometheus.labels = {
        ("red", "a"): both,
        ("red", "b"): {**both, "label_cost_center_conflict2": "one"},
        ("blue", "c"): {"label_cost_center": "one"},
    }
    _, out, _ = await usage(
        "--prometheus", prometheus.url, "--since", "1h", "--by", "label:costCenter", "-o", "csv"
    )
    rows = {line.split(",")[0]: round(float(line.split(",")[1])) for line in out.splitlines()[1:]}
    assert rows == {"(ambiguous)": 8, "one": 4 + 2}


async def test_a_long_time_is_asked_in_parts_that_prometheus_answers(prometheus):
    status, out, _ = await usage("--prometheus", prometheus.url, "--since", "90d", "-o", "json")
    assert status == 0
    for _, form in prometheus.asked:
        points = (float(form["end"]) - float(form["start"])) / float(form["step"]) + 1
        assert points <= 11_000
    assert json.loads(out)["rows"][1]["promised_gib_hours"] == pytest.approx(2 * 90 * 24, rel=0.01)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda: web.Response(text="<html>login</html>"), "allowed: the API of Prometheus"),
        (lambda: web.json_response([1]), "allowed: the API of Prometheus"),
        (lambda: web.json_response({"status": "success", "data": {"result": [{"metric": 3}]}}), "allowed:"),
        (lambda: web.json_response({"status": "error", "error": "bad_data: no"}),
         "refuses the question: bad_data"),
        (lambda: web.json_response({"status": "success", "data": {"resultType": "matrix", "result": []}}),
         "has no metrics of gpupack node"),
    ],
)  # fmt: skip
async def test_what_is_no_prometheus_or_knows_nothing_is_said_in_a_line(prometheus, answer, said):
    prometheus.answer = answer
    status, out, err = await usage("--prometheus", prometheus.url)
    assert (status, out) == (2, "")
    assert said in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("text", [b"\xff\xfe\x00", b"sec\nret", "sécret".encode()])
async def test_a_token_that_no_header_can_carry_is_refused(prometheus, tmp_path, text):
    token = tmp_path / "token"
    token.write_bytes(text)
    status, out, err = await usage("--prometheus", prometheus.url, "--token-file", token)
    assert (status, out) == (2, "")
    assert err.startswith(f"gpupack: {token}: the token has a line break or another character that no header")
    assert "ret" not in err.removeprefix(f"gpupack: {token}")
    assert (len(err.splitlines()), prometheus.asked) == (1, [])


async def test_other_mistakes():
    for arguments, said in (
        (("--prometheus", "http://127.0.0.1:1"), "http://127.0.0.1:1 does not answer"),
        (("--prometheus", "localhost:9090"), "allowed: http://HOST[:PORT]"),
        (("--prometheus", "http://h:99999"), "--prometheus 'http://h:99999'; allowed: http://HOST[:PORT]"),
        (("--dashboard", "http://a b"), "--dashboard 'http://a b'; allowed: http://HOST[:PORT]"),
        (("--dashboard", "http://127.0.0.1:1"), "no dashboard answers at http://127.0.0.1:1"),
        (("--dashboard", "x", "--prometheus", "y"), "are two sources: give one of them"),
        (("--token-file", "x"), "--token-file is for --prometheus"),
    ):
        status, _, err = await usage(*arguments)
        assert status == 2, arguments
        assert said in err


async def test_a_running_dashboard_tells_what_it_has_sampled(tmp_path):
    fleet = Fleet(2, uniform=True)
    async with ApiServer() as api:
        fill(api, fleet)
        settings = Settings(kubeconfig=api.kubeconfig(tmp_path / "config"), http="127.0.0.1:0")
        arguments = ("--since", "1h", "--by", "pod", "-o", "json")
        async with served(serve_cluster, settings) as (url,):
            status, out, _ = await usage("--dashboard", url, *arguments)
        assert status == 0
        # The dashboard's own log lines may stand before it: it runs in this process.
        assert json.loads(out[out.index("{\n") :])["source"] == "sampled by gpupack dashboard"


def test_a_dashboard_samples_what_pods_have_on_cards():
    clock = [1000.0]
    fleet = Fleet(2, uniform=True)
    dashboard = Dashboard("x", now_s=lambda: clock[0])
    fill_board(dashboard.board, fleet)
    dashboard.flush_changes()
    for _ in range(6):
        clock[0] += 10
        dashboard._take_sample()
    query = {"since": "1h", "by": "pod"}
    rows = {row["keys"][1]: row["promised"] for row in json.loads(dashboard.report_usage(query))["rows"]}
    promised = {name: sum(on.values()) for node in fleet.nodes for name, on in node.pods.items()}
    assert rows == pytest.approx({name: units / 60 for name, units in promised.items()}, rel=1e-3)
    with pytest.raises(ValueError, match="allowed: namespace, pod and label:KEY"):
        dashboard.report_usage({"by": "x"})
    for wrong in ({"since": "nan"}, {"until": "inf"}, {"since": "1h", "until": "2h"}):
        with pytest.raises(ValueError, match="allowed"):
            dashboard.report_usage(wrong)
