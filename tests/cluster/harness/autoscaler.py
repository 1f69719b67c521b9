"""The real Cluster Autoscaler, and a cloud of ours behind its externalgrpc provider.

The cloud's nodes are Nodes of the API server without a kubelet: pods are bound there, and never run. What it
answers follows the comments of `externalgrpc.proto`; calls that are optional there it leaves out.
"""

import importlib
import sys
import threading
import time
from concurrent import futures
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc_tools
from grpc_tools import protoc

from allocator.names import STARTUP_TAINT
from tests.cluster.harness.binaries import autoscaler
from tests.cluster.harness.cluster import NODES, write_status
from tests.cluster.harness.processes import Program
from tests.cluster.harness.rest import Api
from tests.cluster_builders import node_object

TYPE = "node.kubernetes.io/instance-type"
TICK_S = 0.2
LOOP_S = 2
"""Seconds between two loops of Cluster Autoscaler; by default they are ten."""
TAGS = "k8s.io/cluster-autoscaler/node-template/"
FLAGS = {
    "leader-elect": "false",
    "scan-interval": f"{LOOP_S}s",
    "new-pod-scale-up-delay": "0s",
    "scale-down-delay-after-add": "3s",
    "scale-down-unneeded-time": "6s",
    "unremovable-node-recheck-timeout": "3s",
    "v": "4",
    "address": "127.0.0.1:0",
    "namespace": "default",
}


@dataclass
class Group:
    """Machines of one type.

    Attributes:
        sizes: GiB of each card.
        first: Seconds from the order to the Node.
        words: Seconds from the Node, which is Ready at once, to its cards.
        tainted: Nodes are born with the startup taint.
        tags: What is said of a group without a node, as `gpupack autoscale shapes --format aws` prints it.
            None: all that a node offers.
    """

    name: str
    sizes: tuple[int, ...] = (80, 80)
    cpu: int = 64
    most: int = 20
    first: float = 1.0
    words: float = 2.0
    tainted: bool = True
    tags: str | None = None
    machines: dict[str, float] = field(default_factory=dict)

    def labels(self, name: str) -> dict[str, str]:
        return {"kubernetes.io/hostname": name, TYPE: self.name}


class Cloud:
    """Groups of machines, and what Cluster Autoscaler asked for.

    Attributes:
        calls: What was asked for, in words.
    """

    def __init__(self, api: Api, groups: list[Group], folder: Path, port: int) -> None:
        self.api = api
        self.groups = {group.name: group for group in groups}
        self.calls: list[str] = []
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._born: dict[str, float] = {}
        self._usable: set[str] = set()
        self._serial = 0
        messages, services = _generated(folder)
        self._server = grpc.server(futures.ThreadPoolExecutor(8))
        services.add_CloudProviderServicer_to_server(_servicer(messages, services, self), self._server)
        self._server.add_insecure_port(f"127.0.0.1:{port}")
        self._server.start()
        self.config = folder / "cloud.yaml"
        self.config.write_text(f'address: "127.0.0.1:{port}"\n')
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End it, and its machines with it."""
        self.remove([name for group in self.groups.values() for name in list(group.machines)])
        self._stop.set()
        self._thread.join()
        self._server.stop(0)

    def add(self, name: str, number: int = 1) -> None:
        with self._lock:
            for _ in range(number):
                self._serial += 1
                self.groups[name].machines[f"{name}-{self._serial}"] = time.monotonic()

    def remove(self, names: list[str]) -> None:
        with self._lock:
            for group in self.groups.values():
                for name in names:
                    if group.machines.pop(name, None) is not None and name in self._born:
                        self.api.delete(f"{NODES}/{name}")

    def bought(self) -> int:
        """How many machines Cluster Autoscaler ordered."""
        return sum(int(call.split()[2]) for call in self.calls if call.startswith("increase"))

    def usable(self) -> set[str]:
        return set(self._usable)

    def starting(self) -> set[str]:
        """Machines that have a Node, and no cards yet."""
        there = {name for group in self.groups.values() for name in group.machines}
        return there & set(self._born) - self._usable

    def _run(self) -> None:
        while not self._stop.wait(TICK_S):
            with self._lock:
                for group in self.groups.values():
                    for name, ordered in group.machines.items():
                        self._grow(group, name, ordered)

    def _grow(self, group: Group, name: str, ordered: float) -> None:
        now = time.monotonic()
        if name not in self._born and now >= ordered + group.first:
            self._create(group, name)
            self._born[name] = now
        elif name in self._born and name not in self._usable and now >= self._born[name] + group.words:
            self._publish(group, name)
            self._usable.add(name)

    def _create(self, group: Group, name: str) -> None:
        taints = [{"key": STARTUP_TAINT, "effect": "NoSchedule"}] if group.tainted else []
        self.api.post(
            NODES,
            {
                "metadata": {"name": name, "labels": group.labels(name)},
                "spec": {"providerID": f"gpupack://{name}", "taints": taints},
            },
        )
        write_status(self.api, name, {"cpu": str(group.cpu), "memory": "256Gi", "pods": "110"})

    def _publish(self, group: Group, name: str) -> None:
        publish_cards(self.api, name, group.sizes, group.cpu)
        self.api.merge(f"{NODES}/{name}", {"spec": {"taints": None}})


def publish_cards(api: Api, name: str, sizes: tuple[int, ...], cpu: int) -> None:
    """Do what the node daemon and the kubelet do once the daemon has come up."""
    made: Any = node_object(name, sizes, cpu=str(cpu), memory="256Gi", allocatable_units=sum(sizes))
    made["metadata"]["annotations"]["gpupack.io/holds"] = '{"seen": "0", "uids": [], "units": []}'
    api.merge(f"{NODES}/{name}", {"metadata": {"annotations": made["metadata"]["annotations"]}})
    write_status(api, name, made["status"]["allocatable"])


def _generated(folder: Path) -> tuple[Any, Any]:
    """Make Python of the proto that was built with the program; once in a process."""
    if "externalgrpc_pb2" not in sys.modules:
        include = Path(grpc_tools.__file__).parent / "_proto"
        built = autoscaler()
        assert built is not None
        arguments = [
            "",
            f"-I{built}",
            f"-I{include}",
            f"--python_out={folder}",
            f"--grpc_python_out={folder}",
        ]
        assert protoc.main([*arguments, "externalgrpc.proto"]) == 0
        sys.path.insert(0, str(folder))
    return importlib.import_module("externalgrpc_pb2"), importlib.import_module("externalgrpc_pb2_grpc")


def _servicer(pb: Any, services: Any, cloud: Cloud) -> Any:  # noqa: C901 - a class of short answers
    class Servicer(services.CloudProviderServicer):  # type: ignore[misc,name-defined]
        def NodeGroups(self, _request: Any, _context: Any) -> Any:  # noqa: N802
            groups = [
                pb.NodeGroup(id=g.name, minSize=0, maxSize=g.most, debug=g.name)
                for g in cloud.groups.values()
            ]
            return pb.NodeGroupsResponse(nodeGroups=groups)

        def NodeGroupForNode(self, request: Any, _context: Any) -> Any:  # noqa: N802
            name = request.node.name
            for group in cloud.groups.values():
                if name in group.machines:
                    own = pb.NodeGroup(id=group.name, minSize=0, maxSize=group.most, debug=group.name)
                    return pb.NodeGroupForNodeResponse(nodeGroup=own)
            return pb.NodeGroupForNodeResponse(nodeGroup=pb.NodeGroup(id=""))

        def GPULabel(self, _request: Any, _context: Any) -> Any:  # noqa: N802
            return pb.GPULabelResponse(label="cloud/gpu")

        def GetAvailableGPUTypes(self, _request: Any, _context: Any) -> Any:  # noqa: N802
            return pb.GetAvailableGPUTypesResponse()

        def Refresh(self, _request: Any, _context: Any) -> Any:  # noqa: N802
            return pb.RefreshResponse()

        def Cleanup(self, _request: Any, _context: Any) -> Any:  # noqa: N802
            return pb.CleanupResponse()

        def NodeGroupTargetSize(self, request: Any, _context: Any) -> Any:  # noqa: N802
            return pb.NodeGroupTargetSizeResponse(targetSize=len(cloud.groups[request.id].machines))

        def NodeGroupIncreaseSize(self, request: Any, _context: Any) -> Any:  # noqa: N802
            cloud.calls.append(f"increase {request.id} {request.delta}")
            cloud.add(request.id, request.delta)
            return pb.NodeGroupIncreaseSizeResponse()

        def NodeGroupDeleteNodes(self, request: Any, _context: Any) -> Any:  # noqa: N802
            names = [node.name for node in request.nodes]
            cloud.calls.append(f"delete {request.id} {' '.join(names)}")
            cloud.remove(names)
            return pb.NodeGroupDeleteNodesResponse()

        def NodeGroupDecreaseTargetSize(self, request: Any, _context: Any) -> Any:  # noqa: N802
            cloud.calls.append(f"decrease {request.id} {request.delta}")
            return pb.NodeGroupDecreaseTargetSizeResponse()

        def NodeGroupNodes(self, request: Any, _context: Any) -> Any:  # noqa: N802
            running = pb.InstanceStatus(instanceState=1)
            names = list(cloud.groups[request.id].machines)
            return pb.NodeGroupNodesResponse(
                instances=[pb.Instance(id=f"gpupack://{name}", status=running) for name in names]
            )

        def NodeGroupTemplateNodeInfo(self, request: Any, _context: Any) -> Any:  # noqa: N802
            group = cloud.groups[request.id]
            return pb.NodeGroupTemplateNodeInfoResponse(nodeBytes=template_of(group))

    return Servicer()


def template_of(group: Group) -> bytes:
    """Write what a node of a group will be like as a Node of Kubernetes in its own protobuf."""
    made: Any = node_object(
        "template", group.sizes, cpu=str(group.cpu), memory="256Gi", allocatable_units=sum(group.sizes)
    )
    amounts = {
        key: value
        for key, value in made["status"]["allocatable"].items()
        if not key.startswith("gpupack.io/packed-")
    }
    taints: list[str] = []
    if group.tags is not None:
        said = [line.removeprefix(TAGS).split(": ", 1) for line in group.tags.splitlines()]
        amounts = {key: amounts[key] for key in ("cpu", "memory", "pods")}
        amounts |= {key.removeprefix("resources/"): value for key, value in said if "resources/" in key}
        taints = [f"{key.removeprefix('taint/')}:{value}" for key, value in said if key.startswith("taint/")]
    labels = b"".join(
        _message(11, _text(1, key) + _text(2, value)) for key, value in group.labels("template").items()
    )
    spec = b"".join(_message(5, _taint(*taint.split(":"))) for taint in taints)
    listed = [
        b"".join(
            _message(number, _text(1, key) + _message(2, _text(1, value))) for key, value in amounts.items()
        )
        for number in (1, 2)
    ]
    ready = _text(1, "Ready") + _text(2, "True")
    return (
        _message(1, _text(1, f"template-{group.name}") + labels)
        + _message(2, spec)
        + _message(3, b"".join(listed) + _message(4, ready))
    )


def _taint(key: str, value: str, effect: str) -> bytes:
    return _text(1, key) + _text(2, value) + _text(3, effect)


def _text(number: int, value: str) -> bytes:
    return _message(number, value.encode())


def _message(number: int, body: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(body)) + body


def _varint(value: int) -> bytes:
    found = b""
    while value > 127:
        found += bytes([value & 127 | 128])
        value >>= 7
    return found + bytes([value])


class ClusterAutoscaler(Program):
    """The program, on a cloud of ours."""

    def __init__(self, kubeconfig: Path, cloud: Cloud, log_dir: Path, **more: str) -> None:
        built = autoscaler()
        assert built is not None
        flags = {
            "cloud-provider": "externalgrpc",
            "cloud-config": cloud.config,
            "kubeconfig": kubeconfig,
            **FLAGS,
            **{name.replace("_", "-"): value for name, value in more.items()},
        }
        super().__init__("cluster-autoscaler", built, flags, log_dir)
