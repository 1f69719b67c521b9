"""Alerts and dashboard in a real Prometheus, which scrapes as the ServiceMonitor says; else skipped."""

import json
import re
import shutil
import subprocess
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.harness.controlplane import free_ports
from tests.cluster.harness.polling import until
from tests.scripts import grafana, reference
from tests.yaml_text import read_yaml

MONITORING = Path(__file__).resolve().parents[2] / "manifests" / "components" / "monitoring"
PROMETHEUS = shutil.which("prometheus")

ALERTING = """\
gpupack_container_over_use_bytes{namespace="red",pod="a",container="main",uuid="GPU-1"} 4096
gpupack_node_ready 0
"""
OWN = {"namespace": "gpupack-system", "pod": "gpupack-node-1", "container": "gpupack"}
"""The labels that the Prometheus operator gives a target; our relabelling adds the node's."""
LABELS = {"le": ("0.1", "+Inf"), "method": ("Allocate",), "reason": ("sw_power_cap",)}
NODES = ("n1", "n2")


def sample(scrapes: int) -> str:
    """One time series of each kind that the processes serve, whose value is the number of scrapes."""
    lines = [ALERTING]
    for name, labels in reference.served_series().items():
        if name in ALERTING:
            continue
        for bucket in LABELS["le"] if "le" in labels else ("",):
            values = {label: bucket if label == "le" else LABELS.get(label, ("x",))[0] for label in labels}
            shown = ",".join(f'{label}="{value}"' for label, value in values.items())
            lines.append(f"{name}{{{shown}}} {scrapes}\n")
    return "".join(lines)


class Daemon(BaseHTTPRequestHandler):
    scrapes = 0

    def do_GET(self) -> None:
        type(self).scrapes += 1
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(sample(self.scrapes).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def daemon() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Daemon)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def prometheus(daemon: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if PROMETHEUS is None:
        pytest.skip("needs Debian's package prometheus")
    tmp_path = tmp_path_factory.mktemp("prometheus")
    rules = read_yaml((MONITORING / "rules.yaml").read_text())["spec"]
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule.pop("for", None)
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules))
    (endpoint, *_) = read_yaml((MONITORING / "servicemonitor.yaml").read_text())["spec"]["endpoints"]
    scrape = {
        "job_name": "gpupack",
        "honor_labels": endpoint.get("honorLabels", False),
        "static_configs": [
            # A path of its own makes one server two targets.
            {"targets": [daemon], "labels": {**OWN, "node": node, "__metrics_path__": f"/{node}"}}
            for node in NODES
        ],
    }
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(tmp_path / "rules.yaml")],
        "scrape_configs": [scrape],
    }
    (tmp_path / "prometheus.yaml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_ports(1)[0]}"
    flags = {
        "config.file": tmp_path / "prometheus.yaml",
        "storage.tsdb.path": tmp_path / "data",
        "web.listen-address": address,
    }
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [PROMETHEUS, *(f"--{name}={value}" for name, value in flags.items())], stdout=log, stderr=log
        )
    yield f"http://{address}"
    process.terminate()
    process.wait(timeout=60)


def ask(url: str, **parameters: str) -> Any:
    with urllib.request.urlopen(f"{url}?{urllib.parse.urlencode(parameters)}", timeout=10) as answer:
        return json.load(answer)["data"]


def alerts(url: str) -> dict[str, dict[str, str]]:
    found = ask(f"{url}/api/v1/alerts")["alerts"]
    return {alert["labels"]["alertname"]: {**alert["annotations"], **alert["labels"]} for alert in found}


def test_an_alert_of_a_container_names_that_and_not_the_daemon(prometheus: str) -> None:
    wanted = {"GpupackContainerOverUse", "GpupackNodeNotReady"}
    until(lambda: wanted <= set(alerts(prometheus)), "both alerts fire")
    over_use = alerts(prometheus)["GpupackContainerOverUse"]
    assert (over_use["namespace"], over_use["pod"], over_use["container"]) == ("red", "a", "main")
    assert over_use["summary"].startswith("Container main of pod red/a ")
    not_ready = alerts(prometheus)["GpupackNodeNotReady"]
    assert (not_ready["namespace"], not_ready["node"] in NODES) == ("gpupack-system", True)


@pytest.mark.parametrize("expression", grafana.expressions())
def test_every_panel_shows_something(prometheus: str, expression: str) -> None:
    """What its legend names is there, and what it shows by node it shows of both nodes."""
    named = set(re.findall(r"{{(\w+)}}", grafana.expressions()[expression]))

    def shown() -> list[dict[str, str]] | None:
        found = ask(f"{prometheus}/api/v1/query", query=expression)["result"]
        series = [one["metric"] for one in found if one["value"][1] != "NaN"]
        nodes = {labels["node"] for labels in series} if "node" in named else set(NODES)
        return series if series and nodes == set(NODES) else None

    assert all(named <= labels.keys() for labels in until(shown, expression))
    if "node" in named:
        until(
            lambda: (
                {
                    one["metric"]["node"]
                    for one in ask(f"{prometheus}/api/v1/query", query=expression)["result"]
                }
                == set(NODES)
            ),
            f"both nodes in {expression}",
        )
