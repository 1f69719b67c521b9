"""A cluster as kubectl prints it, and what `gpupack top -o json` says of it."""

import pytest

from allocator.records import CardRecord, dump_cards
from tests.integration.cli_world import in_process
from tests.kubectl_nodes import CARDS, node

INVENTORY = dump_cards([CardRecord("GPU-a", 0, "NVIDIA L40S", 45459, 0, True)])


CLUSTER = {
    "kind": "List",
    "items": [
        node("gpu-1", [44], [8], {CARDS: INVENTORY}),
        node("gpu-0", [14, 14], [14, 0], {}),
        node("cpu-0", annotations={}),
        node("odd", [14], [1], {CARDS: "soup"}),
    ],
}


def card(used, size=14, uuid=None, model=None):
    return {
        "index": 0,
        "uuid": uuid,
        "model": model,
        "size_units": size,
        "used_units": used,
        "assumed_units": 0,
        "in_use_units": used,
        "held_units": None,
        "compute_limit": None,
        "compute_in_use": None,
        "healthy": True,
        "cordoned": False,
        "cordon_reason": None,
        "held": None,
        "memory_mode": None,
        "driver_detached": False,
    }


def record(name, *cards, error=None):
    return {
        "node": name,
        "cards": list(cards),
        "unit_mib": 1024,
        "error": error,
        "ready": True,
        "unschedulable": False,
        "daemon": True,
        "takes_pods": error is None,
        "revision": 1_763_000_000_000,
        "foreign_gpus": {},
    }


RECORDS = [
    record("gpu-0", card(14), {**card(0), "index": 1}),
    record("gpu-1", card(8, 44, "GPU-a", "NVIDIA L40S")),
    {**record("odd", card(1), error='annotation gpupack.io/cards is "soup": not JSON'), "takes_pods": False},
]


CONFIG = """
apiVersion: v1
kind: Config
current-context: {current}
clusters: [{{name: {name}, cluster: {{server: "{server}"}}}}]
users: []
contexts: [{{name: {name}, context: {{cluster: {name}}}}}]
"""


@pytest.fixture
def run(monkeypatch, capsys):
    """Run `gpupack top` in this process; returns its exit status, stdout and stderr."""
    return in_process(monkeypatch, capsys, "top")
