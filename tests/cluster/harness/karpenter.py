"""The real Karpenter with its kwok provider, which makes Nodes without a kubelet.

What a kubelet and the node daemon would write is written here: Ready at once, cards a while later.
"""

import json
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allocator.names import STARTUP_TAINT
from tests.cluster.harness.autoscaler import TICK_S, TYPE, publish_cards
from tests.cluster.harness.binaries import KARPENTER
from tests.cluster.harness.cluster import NODES, write_status
from tests.cluster.harness.manifests import define_kinds
from tests.cluster.harness.processes import Program
from tests.cluster.harness.rest import Api, ApiError
from tests.yaml_text import read_yaml

KWOK_NODE = "kwok.x-k8s.io/node"
NODE_POOLS = "/apis/karpenter.sh/v1/nodepools"
NODE_CLASSES = "/apis/karpenter.kwok.sh/v1alpha1/kwoknodeclasses"
NODE_CLAIMS = "/apis/karpenter.sh/v1/nodeclaims"
NODE_OVERLAYS = "/apis/karpenter.sh/v1alpha1/nodeoverlays"


@dataclass(frozen=True)
class MachineType:
    """Machines that Karpenter can add.

    Attributes:
        sizes: GiB of each card.
        price: Of an hour: Karpenter takes the cheapest that would do.
    """

    name: str
    sizes: tuple[int, ...] = (80, 80)
    cpu: int = 64
    price: float = 1.0

    def entry(self) -> dict[str, Any]:
        own = {"karpenter.sh/capacity-type": "on-demand", "topology.kubernetes.io/zone": "test-zone-a"}
        needs = [{"key": key, "operator": "In", "values": [value]} for key, value in own.items()]
        return {
            "name": self.name,
            "offerings": [{"Price": self.price, "Available": True, "Requirements": needs}],
            "architecture": "amd64",
            "operatingSystems": ["linux"],
            "resources": {"cpu": str(self.cpu), "memory": "256Gi", "pods": "110"},
        }


def install(api: Api) -> None:
    define_kinds(api, [read_yaml(crd.read_text()) for crd in sorted(KARPENTER.folder.glob("*.yaml"))])


def make_pool(api: Api, types: Iterable[str]) -> None:
    """Make one NodePool of some machine types; empty nodes of it are given back after five seconds."""
    api.post(NODE_CLASSES, {"apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": "KWOKNodeClass"} | meta("c"))
    template = {
        "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "c"},
        "requirements": [{"key": TYPE, "operator": "In", "values": [*types]}],
        "expireAfter": "Never",
        "startupTaints": [{"key": STARTUP_TAINT, "effect": "NoSchedule"}],
    }
    disruption = {"consolidationPolicy": "WhenEmptyOrUnderutilized", "consolidateAfter": "5s"}
    spec = {"template": {"spec": template}, "disruption": disruption}
    api.post(NODE_POOLS, {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "spec": spec} | meta("gpu"))


def meta(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name}}


class Karpenter(Program):
    """The program, and a kubelet and a node daemon for each of its nodes.

    Attributes:
        words: Seconds from the Node to its cards.
        born: Seconds of a clock when each Node was first seen.
    """

    def __init__(
        self, api: Api, kubeconfig: Path, types: Sequence[MachineType], log_dir: Path, ports: Sequence[int]
    ) -> None:
        self.api = api
        self.types = {each.name: each for each in types}
        self.words = 2.0
        self.born: dict[str, float] = {}
        self._usable: set[str] = set()
        file = log_dir / "instance-types.json"
        file.write_text(json.dumps([each.entry() for each in types]))
        flags = {
            "disable-leader-election": "true",
            "metrics-port": ports[0],
            "health-probe-port": ports[1],
            "feature-gates": "NodeOverlay=true",
            "instance-types-file-path": file,
            "batch-max-duration": "3s",
            "log-level": "debug",
        }
        environment = {"KUBECONFIG": str(kubeconfig), "SYSTEM_NAMESPACE": "default"}
        super().__init__("karpenter", KARPENTER.folder, flags, log_dir, environment)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self.kill()
        self._stop.set()
        self._thread.join()

    def nodes(self) -> list[Any]:
        found: list[Any] = self.api.get(NODES, labelSelector=KWOK_NODE)["items"]
        return found

    def usable(self) -> set[str]:
        return set(self._usable)

    def _run(self) -> None:
        while not self._stop.wait(TICK_S):
            try:
                for node in self.nodes():
                    self._grow(node, node["metadata"]["name"])
            except (ApiError, OSError):
                continue

    def _grow(self, node: Any, name: str) -> None:
        now = time.monotonic()
        machine = self.types[node["metadata"]["labels"][TYPE]]
        if name not in self.born:
            self.born[name] = now
            # The provider writes what was asked for; a kubelet would not have it yet.
            absent = {key: None for key in node["status"].get("capacity", {}) if "gpupack" in key}
            write_status(
                self.api, name, {"cpu": str(machine.cpu), "memory": "256Gi", "pods": "110", **absent}
            )
        elif name not in self._usable and now >= self.born[name] + self.words:
            publish_cards(self.api, name, machine.sizes, machine.cpu)
            left = [taint for taint in node["spec"].get("taints", []) if taint["key"] != STARTUP_TAINT]
            if any(taint["key"].startswith("karpenter.sh/unregistered") for taint in left):
                return
            self.api.merge(f"{NODES}/{name}", {"spec": {"taints": left or None}})
            self._usable.add(name)
