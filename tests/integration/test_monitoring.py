"""The alerts in a real Prometheus that scrapes as the ServiceMonitor says; skipped where there is none."""

import json
import shutil
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from tests.cluster.harness.controlplane import free_ports
from tests.cluster.harness.polling import until

MONITORING = Path(__file__).resolve().parents[2] / "manifests" / "components" / "monitoring"
PROMETHEUS = shutil.which("prometheus")

SAMPLE = """\
gpupack_container_over_use_bytes{namespace="red",pod="a",container="main",uuid="GPU-1"} 4096
gpupack_node_ready 0
"""
OWN = {"namespace": "gpupack-system", "pod": "gpupack-node-1", "container": "gpupack", "node": "n1"}
"""The labels that the Prometheus operator gives the target, and those of our relabelling."""


class Daemon(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(SAMPLE.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def daemon() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Daemon)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def prometheus(daemon: str, tmp_path: Path) -> Iterator[str]:
    assert PROMETHEUS is not None
    rules = yaml.safe_load((MONITORING / "rules.yaml").read_text())["spec"]
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule.pop("for", None)
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules))
    (endpoint, *_) = yaml.safe_load((MONITORING / "servicemonitor.yaml").read_text())["spec"]["endpoints"]
    scrape = {
        "job_name": "gpupack",
        "honor_labels": endpoint.get("honorLabels", False),
        "static_configs": [{"targets": [daemon], "labels": OWN}],
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


def alerts(url: str) -> dict[str, dict[str, str]]:
    try:
        with urllib.request.urlopen(f"{url}/api/v1/alerts", timeout=10) as answer:
            found = json.load(answer)["data"]["alerts"]
    except urllib.error.URLError:
        return {}
    return {alert["labels"]["alertname"]: {**alert["annotations"], **alert["labels"]} for alert in found}


@pytest.mark.skipif(PROMETHEUS is None, reason="needs Debian's package prometheus")
def test_an_alert_of_a_container_names_that_and_not_the_daemon(prometheus: str) -> None:
    wanted = {"GpupackContainerOverUse", "GpupackNodeNotReady"}
    until(lambda: wanted <= set(alerts(prometheus)), "both alerts fire")
    over_use = alerts(prometheus)["GpupackContainerOverUse"]
    assert (over_use["namespace"], over_use["pod"], over_use["container"]) == ("red", "a", "main")
    assert over_use["summary"].startswith("Container main of pod red/a ")
    not_ready = alerts(prometheus)["GpupackNodeNotReady"]
    assert (not_ready["namespace"], not_ready["node"]) == ("gpupack-system", "n1")
