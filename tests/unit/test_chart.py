"""The chart's files fit the code: its schema, its values, its folders, and the metrics that alerts name."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import gpupack
from tests.scripts import chart, grafana, reference
from tests.yaml_text import read_yaml

ROOT = Path(__file__).resolve().parents[2]
MONITORING = ROOT / "manifests" / "components" / "monitoring"
RULES = read_yaml((MONITORING / "rules.yaml").read_text())["spec"]["groups"]


def test_the_schema_is_that_of_the_code() -> None:
    assert chart.SCHEMA.read_text() == chart.text(), "run: make reference"


def test_a_misspelt_choice_is_refused_by_helm() -> None:
    """Else the release is installed, and its pods end with an error again and again."""
    arguments = chart.schema()["properties"]["node"]["properties"]["args"]["properties"]
    assert arguments["memory-limits"]["enum"] == ["auto", "off", "require", None]
    assert arguments["log-format"]["enum"] == ["text", "json", None]
    assert "enum" not in arguments["profile"]  # NAME|FILE


def test_every_value_is_in_the_schema() -> None:
    def check(values: Any, schema: Any, path: str) -> None:
        for key, value in values.items():
            assert key in schema["properties"], f"{path}{key}"
            if isinstance(value, dict) and "properties" in schema["properties"][key]:
                check(value, schema["properties"][key], f"{path}{key}.")

    check(read_yaml((chart.CHART / "values.yaml").read_text()), chart.schema(), "")


def test_the_charts_version_is_the_products() -> None:
    said = read_yaml((chart.CHART / "Chart.yaml").read_text())
    assert (said["version"], said["appVersion"]) == (gpupack.__version__, gpupack.__version__)
    assert f"gpupack:{gpupack.__version__}" in said["annotations"]["artifacthub.io/images"]


def test_the_chart_has_no_copy_of_the_manifests() -> None:
    links = {path.name: path.resolve() for path in (chart.CHART / "files").iterdir()}
    assert all(path.is_symlink() for path in (chart.CHART / "files").iterdir())
    manifests = ROOT / "manifests"
    assert links == {
        name: (
            manifests / "components" / name
            if (manifests / "components" / name).is_dir()
            else manifests / name
        )
        for name in links
    }


def test_the_dashboard_is_that_of_its_script() -> None:
    assert grafana.FILE.read_text() == grafana.text(), "run: make reference"
    panels = json.loads(grafana.text())["panels"]
    places = [panel["gridPos"] for panel in panels]
    cells = [
        (x, y)
        for place in places
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < grafana.COLUMNS


EXPRESSIONS = [
    *grafana.expressions(),
    *(rule["expr"] for group in RULES for rule in group["rules"]),
]
TARGET_LABELS = {"node", "instance", "pod", "job", "namespace"}


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_alerts_and_dashboard_ask_for_metrics_that_are_served(expression: str) -> None:
    there = reference.served_series()
    asked = set(re.findall(r"\bgpupack_\w+", expression))
    assert asked, expression
    assert asked <= there.keys()
    labels = set().union(*(there[name] for name in asked)) | TARGET_LABELS
    for names in re.findall(r"\b(?:by|without|on) ?\(([^)]*)\)", expression):
        assert {name.strip() for name in names.split(",")} <= labels, expression
    for matchers in re.findall(r"\{([^}]*)\}", expression):
        assert set(re.findall(r"(\w+)\s*[=!]~?", matchers)) <= labels, expression


def test_every_alert_says_what_it_means_with_labels_that_it_has() -> None:
    there = reference.served_series()
    for rule in (rule for group in RULES for rule in group["rules"] if "alert" in rule):
        texts = rule["annotations"]
        assert set(texts) == {"summary", "description"}
        assert rule["labels"]["severity"] in {"info", "warning", "critical"}
        used = set(re.findall(r"\$labels\.(\w+)", texts["summary"] + texts["description"]))
        asked = re.findall(r"\bgpupack_\w+", rule["expr"])
        assert used <= set().union(*(there[name] for name in asked)) | TARGET_LABELS, rule["alert"]


def test_samples_keep_their_own_labels() -> None:
    """With a real Prometheus: tests/integration/test_monitoring.py."""
    monitor = read_yaml((MONITORING / "servicemonitor.yaml").read_text())
    assert all(endpoint["honorLabels"] for endpoint in monitor["spec"]["endpoints"])
    assert "honor_labels: true" in (ROOT / "docs" / "observability.md").read_text()
