"""Time from a command's start to its answer: why, fit, top and advise on a cluster that is made up.

`python -m benchmarks.ask [--nodes 5000] [--pods 20000]` writes the cluster as `kubectl get nodes,pods -A
-o json` prints it, with the fields that a kubelet and an API server fill in. Each command then runs on
the file in a process of its own, as a person would run it. The last line is JSON: seconds, the median of the
runs, by command.
"""

import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from allocator.names import NODE_CARDS, NODE_HOLDS, NODE_LABEL, POD_ALLOCATION, POD_ASSIGNED, resource_name
from allocator.packing import NodeWords, node_resources
from allocator.records import (
    CardRecord,
    Holds,
    dump_allocation,
    dump_assigned,
    dump_cards,
    dump_holds,
)
from benchmarks.machine import children_cpu_s, machine, make_parser

CARDS: Final = 8
MODELS: Final = (("NVIDIA H100 80GB HBM3", 79), ("NVIDIA A100-SXM4-40GB", 39), ("NVIDIA L40S", 44))
SIZES: Final = (4, 8, 8, 10, 16, 20, 24, 39)
RESOURCE: Final = resource_name(1024)
WAITING: Final = "waiting"
FOREIGN: Final = 20


def main() -> None:
    """Run the benchmark as its command line says."""
    numbers = {"nodes": (5000, "nodes of eight cards"), "pods": (20_000, "pods")}
    options = make_parser("ask", __doc__, **numbers, runs=(5, "runs of each command")).parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cluster.json"
        path.write_text(json.dumps(cluster(options.nodes, options.pods)), encoding="utf-8")
        print(f"{options.nodes} nodes, {options.pods} pods, {path.stat().st_size / 2**20:.0f} MiB of JSON")
        figures: dict[str, float] = {}
        processor: dict[str, float] = {}
        for name, command in COMMANDS.items():
            times = [seconds([*command, "-f", str(path)]) for _ in range(options.runs)]
            figures[name] = round(statistics.median(wall for wall, _ in times), 2)
            processor[name] = round(statistics.median(cpu for _, cpu in times), 2)
            worst = f"worst {max(wall for wall, _ in times):.2f} s, processor {processor[name]:.2f} s"
            print(f"{name:10} median {figures[name]:.2f} s, {worst}: gpupack {' '.join(command)}")
    sizes = {"nodes": options.nodes, "pods": options.pods}
    print(json.dumps({**sizes, "seconds": figures, "processor_s": processor}))


COMMANDS: Final = {
    "why": ("why", WAITING, "-n", "team-0"),
    "fit": ("fit", "16", "--cards", "2"),
    "advise": ("advise", "--for", "78x4"),
    "advise-400": ("advise", "--for", "78x400"),
    "top": ("top", "--pods", "-o", "json"),
}


def seconds(arguments: list[str]) -> tuple[float, float]:
    """Run a command: seconds from its start to its end, and those of processor time.

    Raises:
        CalledProcessError: it failed.
    """
    before, began = children_cpu_s(), time.perf_counter()
    subprocess.run([sys.executable, "-m", "gpupack", *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began, children_cpu_s() - before


def cluster(nodes: int, pods: int, seed: int = 42) -> dict[str, Any]:
    """Make a cluster in which pods of several sizes fill the cards, and one pod waits."""
    rng = random.Random(seed)
    free: list[list[int]] = []
    held: list[dict[str, dict[int, int]]] = []
    for node in range(nodes):
        free.append([MODELS[node % len(MODELS)][1]] * CARDS)
        held.append({})
    made = []
    for number in range(pods - 1):
        units, node = rng.choice(SIZES), rng.randrange(nodes)
        fitting = [card for card in range(CARDS) if free[node][card] >= units]
        if not fitting:
            made.append(pod(f"pod-{number}", units))
            continue
        card = rng.choice(fitting)
        free[node][card] -= units
        held[node][f"uid-pod-{number}"] = {card: units}
        made.append(pod(f"pod-{number}", units, node, card))
    # No card is empty, so that a pod that wants a whole one waits.
    made.append(pod(WAITING, 79))
    made[-1]["metadata"]["namespace"] = "team-0"
    words = [node_object(at, free[at], held[at]) for at in range(nodes)]
    return {"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": [*words, *made]}


def card_uuid(node: int, card: int) -> str:
    """Name a card the way the driver does."""
    return f"GPU-{node:08x}-0000-4000-8000-{card:012x}"


def node_object(at: int, free: list[int], held: dict[str, dict[int, int]]) -> dict[str, Any]:
    """Make a Node with the fields that a kubelet fills in."""
    model, size = MODELS[at % len(MODELS)]
    name = f"gpu-node-{at:05d}"
    # Processes of nobody's use 20 units of every card without pods: whole cards are to be had by moves only.
    used = [size - units or FOREIGN for units in free]
    words = NodeWords.of(1024, [size] * CARDS, used, 1_763_000_000_000)
    inventory = [
        CardRecord(card_uuid(at, card), card, model, size * 1024 + 100, card // 4, healthy=True)
        for card in range(CARDS)
    ]
    amounts = {
        "cpu": "128",
        "ephemeral-storage": "500Gi",
        "hugepages-1Gi": "0",
        "memory": "1056752640Ki",
        "pods": "110",
        RESOURCE: str(size * CARDS),
        **{key: str(value) for key, value in node_resources(words).items()},
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "resourceVersion": "1000000",
            "labels": {NODE_LABEL: "true", "kubernetes.io/hostname": name, "kubernetes.io/os": "linux"},
            "annotations": {
                NODE_HOLDS: dump_holds(Holds(1_000_000, frozenset(held), held)),
                NODE_CARDS: dump_cards(inventory),
            },
        },
        "spec": {"podCIDR": "10.0.0.0/24", "providerID": f"metal://{name}"},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [
                {
                    "type": kind,
                    "status": "True" if kind == "Ready" else "False",
                    "lastHeartbeatTime": "2026-11-01T00:00:00Z",
                    "lastTransitionTime": "2026-11-01T00:00:00Z",
                    "reason": f"Kubelet{kind}",
                    "message": "kubelet is posting its status",
                }
                for kind in ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
            ],
            "nodeInfo": {
                "kubeletVersion": "v1.37.1",
                "osImage": "Debian GNU/Linux 13",
                "architecture": "amd64",
            },
            "images": [{"names": [f"registry.example/image-{i}:v1"], "sizeBytes": 10**8} for i in range(20)],
        },
    }


def pod(name: str, units: int, node: int | None = None, card: int = 0) -> dict[str, Any]:
    """Make a Pod with the fields that an API server and a kubelet fill in."""
    uid = f"uid-{name}"
    amounts = {RESOURCE: str(units), "cpu": "2", "memory": "8Gi"}
    annotations = {}
    if node is not None:
        shares = {"main": ((card_uuid(node, card), units),)}
        annotations = {POD_ASSIGNED: dump_assigned(shares), POD_ALLOCATION: dump_allocation(uid, shares)}
    namespace = f"team-{sum(map(ord, name)) % 20}"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": uid,
            "resourceVersion": "900000",
            "creationTimestamp": "2026-11-01T00:00:00Z",
            "labels": {"app": name.rsplit("-", 1)[0], "pod-template-hash": "5d9c7b8f6"},
            "annotations": annotations,
            "ownerReferences": [
                {
                    "apiVersion": "apps/v1",
                    "kind": "ReplicaSet",
                    "name": "app",
                    "uid": "rs",
                    "controller": True,
                }
            ],
        },
        "spec": {
            **({"nodeName": f"gpu-node-{node:05d}"} if node is not None else {}),
            "schedulerName": "gpupack-scheduler",
            "serviceAccountName": "default",
            "priority": 0,
            "containers": [
                {
                    "name": "main",
                    "image": "registry.example/inference:v1",
                    "resources": {"limits": amounts, "requests": amounts},
                    "env": [{"name": f"SETTING_{i}", "value": "value"} for i in range(8)],
                    "volumeMounts": [{"name": "token", "mountPath": "/var/run/secrets", "readOnly": True}],
                }
            ],
            "tolerations": [
                {
                    "key": f"node.kubernetes.io/{key}",
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": 300,
                }
                for key in ("not-ready", "unreachable")
            ],
            "volumes": [{"name": "token", "projected": {"sources": [{"configMap": {"name": "ca"}}]}}],
        },
        "status": {
            "phase": "Pending" if node is None else "Running",
            "startTime": "2026-11-01T00:00:00Z",
            "conditions": [
                {"type": "PodScheduled", "status": "False" if node is None else "True", "reason": ""}
            ],
        },
    }


if __name__ == "__main__":
    main()
