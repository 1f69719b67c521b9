"""Writes the Grafana dashboard, manifests/components/monitoring/gpupack.json: `make reference`."""

import json
from pathlib import Path
from typing import Any, Final

FILE: Final = Path(__file__).resolve().parents[2] / "manifests/components/monitoring/gpupack.json"
SOURCE: Final = {"type": "prometheus", "uid": "${source}"}
COLUMNS: Final = 24
NODES: Final = '{node=~"$node"}'

# Title, unit, expressions with their legends, and what a reader is told. A figure stands in a quarter of the
# width, a graph in a half.
Row = tuple[str, str, dict[str, str], str]

FIGURES: Final[list[Row]] = [
    (
        "Promised",
        "percentunit",
        {"": "sum(gpupack_card_promised_bytes) / sum(gpupack_card_size_bytes)"},
        "Share of all cards' memory that containers hold.",
    ),
    (
        "Measured",
        "percentunit",
        {
            "": "sum(gpupack_card_measured_bytes)"
            " / sum(gpupack_card_size_bytes and gpupack_card_measured_bytes)"
        },
        "Share of all cards' memory that is in use by the driver's count.",
    ),
    (
        "Whole free cards",
        "none",
        {"": "max(gpupack_scheduler_whole_free_cards)"},
        "Cards with nothing on them.",
    ),
    (
        "Largest free card",
        "bytes",
        {"": "max(gpupack_scheduler_largest_free_card_bytes)"},
        "A container that asks for more waits.",
    ),
    (
        "Pods that wait",
        "none",
        {"": "sum(max by (reason) (gpupack_scheduler_waiting_pods))"},
        "Pods that wait for a node and ask for cards.",
    ),
    ("Unhealthy cards", "none", {"": "count(gpupack_card_healthy == 0) or vector(0)"}, "They take no pods."),
    ("Cordoned cards", "none", {"": "sum(gpupack_card_cordoned)"}, "Cards that people keep free."),
    (
        "Nodes not ready",
        "none",
        {"": "count(gpupack_node_ready == 0) or vector(0)"},
        "Nodes whose daemon says that it is not ready.",
    ),
]
GRAPHS: Final[dict[str, list[Row]]] = {
    "Memory": [
        (
            "Memory of all cards",
            "bytes",
            {
                "size": "sum(gpupack_card_size_bytes)",
                "promised": "sum(gpupack_card_promised_bytes)",
                "measured": "sum(gpupack_card_measured_bytes)",
                "beyond promise": "sum(gpupack_card_beyond_bytes)",
            },
            "Promised is what pods asked for, measured what they use.",
        ),
        (
            "Promised by node",
            "percentunit",
            {
                "{{node}}": f"sum by (node) (gpupack_card_promised_bytes{NODES})"
                f" / sum by (node) (gpupack_card_size_bytes{NODES})",
            },
            "Of the chosen nodes.",
        ),
        (
            "Measured by card",
            "bytes",
            {"{{node}} {{uuid}}": f"gpupack_card_measured_bytes{NODES}"},
            "Of the chosen nodes.",
        ),
        (
            "Used beyond promise by card",
            "bytes",
            {"{{node}} {{uuid}}": f"gpupack_card_beyond_bytes{NODES} > 0"},
            "By processes outside of gpupack's pods, or beyond their requests.",
        ),
    ],
    "What cards do": [
        (
            "Utilization by card",
            "percentunit",
            {"{{node}} {{uuid}}": f"gpupack_card_utilization_ratio{NODES}"},
            "Part of the last moments in which a kernel ran. A card in MIG mode tells none.",
        ),
        (
            "Use of the memory's bandwidth by card",
            "percentunit",
            {"{{node}} {{uuid}}": f"gpupack_card_memory_utilization_ratio{NODES}"},
            "Part of the last moments in which the card's memory was read or written.",
        ),
        (
            "Power by card",
            "watt",
            {"{{node}} {{uuid}}": f"gpupack_card_power_watts{NODES}"},
            "Of the chosen nodes.",
        ),
        (
            "Temperature by card",
            "celsius",
            {"{{node}} {{uuid}}": f"gpupack_card_temperature_celsius{NODES}"},
            "Of the chosen nodes.",
        ),
        (
            "Clock of the multiprocessors by card",
            "hertz",
            {"{{node}} {{uuid}}": f"gpupack_card_sm_clock_hertz{NODES}"},
            "Of the chosen nodes.",
        ),
        (
            "Cards that are slowed down, by reason",
            "none",
            {
                "{{reason}}": "sum by (reason) (gpupack_card_clocks_event_reason"
                '{node=~"$node", reason=~".*(slowdown|cap)"})',
            },
            "Cards whose power or temperature limits the clocks.",
        ),
    ],
    "Scheduling": [
        (
            "Pods that wait, by reason",
            "none",
            {"{{reason}}": "max by (reason) (gpupack_scheduler_waiting_pods)"},
            "By the nodes that come closest.",
        ),
        (
            "Calls of kube-scheduler",
            "reqps",
            {"{{verb}}": "sum by (verb) (rate(gpupack_extender_request_duration_seconds_count[5m]))"},
            "",
        ),
        (
            "Time of a call, 99th percentile",
            "s",
            {
                "{{verb}}": "histogram_quantile(0.99, sum by (verb, le)"
                " (rate(gpupack_extender_request_duration_seconds_bucket[5m])))"
            },
            "",
        ),
        (
            "Preemption",
            "none",
            {
                "victims": "sum(increase(gpupack_preemption_victims_total[5m]))",
                "{{result}}": "sum by (result) (increase(gpupack_preemption_attempts_total[5m]))",
            },
            "Pods evicted for pods of higher priority.",
        ),
    ],
    "Nodes": [
        (
            "XID errors",
            "none",
            {"{{node}} {{uuid}} {{code}}": f"increase(gpupack_card_xid_errors_total{NODES}[10m]) > 0"},
            "Of the driver, by code.",
        ),
        (
            "Allocate, 99th percentile",
            "s",
            {
                "{{node}}": "histogram_quantile(0.99, sum by (node, le) ("
                'rate(gpupack_node_kubelet_request_duration_seconds_bucket{method="Allocate",node=~"$node"}'
                "[10m])))"
            },
            "What the kubelet waits for when a container starts.",
        ),
    ],
    "Queue": [
        ("Pods by queue", "none", {"{{queue}} {{state}}": "max by (queue, state) (gpupack_queue_pods)"}, ""),
        ("Oldest wait", "s", {"{{queue}}": "max by (queue) (gpupack_queue_oldest_wait_seconds)"}, ""),
        (
            "Memory by queue",
            "none",
            {"{{queue}} {{kind}}": "max by (queue, kind) (gpupack_queue_units)"},
            "In units.",
        ),
        (
            "Admitted",
            "none",
            {"{{queue}}": "sum by (queue) (increase(gpupack_queue_admitted_total[5m]))"},
            "",
        ),
    ],
}


def expressions() -> dict[str, str]:
    """Every PromQL expression of the dashboard, with the variables filled in, and its legend."""
    rows = [*FIGURES, *(row for rows in GRAPHS.values() for row in rows)]
    return {query.replace("$node", ".+"): legend for row in rows for legend, query in row[2].items()}


def dashboard() -> dict[str, Any]:
    panels: list[dict[str, Any]] = []
    width, height = COLUMNS // 8, 4
    for at, row in enumerate(FIGURES):
        panels.append(_panel("stat", row, (at * width, 0, width, height), len(panels)))
    top = height
    for title, rows in GRAPHS.items():
        place = {"x": 0, "y": top, "w": COLUMNS, "h": 1}
        panels.append({"type": "row", "title": title, "id": len(panels) + 1, "gridPos": place, "panels": []})
        top += 1
        for at, row in enumerate(rows):
            where = (at % 2 * COLUMNS // 2, top + at // 2 * 8, COLUMNS // 2, 8)
            panels.append(_panel("timeseries", row, where, len(panels)))
        top += -(-len(rows) // 2) * 8
    nodes = "label_values(gpupack_node_ready, node)"
    variables = [
        {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
        {
            "name": "node",
            "type": "query",
            "datasource": SOURCE,
            "query": nodes,
            "definition": nodes,
            "refresh": 2,
            "multi": True,
            "includeAll": True,
            "allValue": ".+",
            "current": {"text": "All", "value": "$__all"},
        },
    ]
    return {
        "uid": "gpupack",
        "title": "gpupack",
        "tags": ["gpupack", "gpu"],
        "schemaVersion": 41,
        "version": 1,
        "timezone": "browser",
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "editable": True,
        "graphTooltip": 1,
        "templating": {"list": variables},
        "annotations": {"list": []},
        "panels": panels,
    }


def _panel(kind: str, row: Row, place: tuple[int, int, int, int], number: int) -> dict[str, Any]:
    title, unit, queries, description = row
    x, y, w, h = place
    targets = [
        {"refId": chr(ord("A") + at), "expr": query, "legendFormat": legend or "__auto", "datasource": SOURCE}
        for at, (legend, query) in enumerate(queries.items())
    ]
    return {
        "type": kind,
        "title": title,
        "description": description,
        "id": number + 1,
        "datasource": SOURCE,
        "gridPos": {"x": x, "y": y, "w": w, "h": h},
        "targets": targets,
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
    }


def text() -> str:
    """The file's text."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
