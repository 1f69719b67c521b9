"""Nodes as `kubectl get nodes -o json` prints them, for tests of `gpupack top`."""

from allocator.names import resource_name
from allocator.packing import NodeWords, node_resources
from allocator.quantity import canonical
from allocator.records import CardRecord, dump_cards

CARDS = "gpupack.io/cards"
REVISION = 1_763_000_000_000
INVENTORY = dump_cards(
    [CardRecord("GPU-a", 4, "NVIDIA L40S", 45459, 0, True), CardRecord("GPU-b", 5, "", 45459, None, False)]
)


def node(name, sizes=None, used=None, annotations=None, unit_mib=1024, revision=REVISION, **resources):
    """Make a node as kubectl prints it: canonical quantities, and much that we do not read."""
    if sizes is not None:
        words = NodeWords.of(unit_mib, sizes, used, revision)
        resources |= {name: canonical(value) for name, value in node_resources(words).items()}
        resources.setdefault(resource_name(unit_mib), str(sum(sizes)))
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "annotations": annotations, "labels": {"a": "b"}},
        "status": {
            "capacity": {"cpu": "8", **resources},
            "allocatable": {"cpu": "8", **resources},
            "conditions": [
                {"type": "MemoryPressure", "status": "False"},
                {"type": "Ready", "status": "True"},
            ],
        },
    }


def listed(*nodes):
    return {"apiVersion": "v1", "kind": "List", "items": list(nodes), "metadata": {"resourceVersion": ""}}
