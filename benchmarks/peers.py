"""Filter calls of gpupack, HAMi and gpushare, on the same nodes.

`python -m benchmarks.peers --nodes N [--hami PROGRAM] [--gpushare PROGRAM]`: a small API server in this
process lists N empty nodes of eight 80 GiB cards, each with what the three schedulers read. Each scheduler is
started against it, one after the other, as users run it. Filter is asked with the names of all nodes for a
pod of 8 GiB. What this client waited is printed, HTTP and the loopback included. The last line is JSON.

The two programs are built from their sources, `go build ./cmd/scheduler` of Project-HAMi/HAMi and
`go build ./cmd` of AliyunContainerService/gpushare-scheduler-extender. Without them gpupack is measured
alone. Nothing is bound: binding waits for nodes that are not there.
"""

import asyncio
import json
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
from aiohttp import web

from allocator.names import NODE_CARDS, NODE_HOLDS
from allocator.packing import NodeWords, node_resources
from allocator.records import CardRecord, Holds, dump_cards, dump_holds
from benchmarks.extender import CARD_UNITS, CARDS, RESOURCE, pod_object, running, serving_cluster
from benchmarks.machine import free_port, machine, make_parser, percentile, resident_mib

MIB: Final = 81_559
START_LIMIT_S: Final = 300
NOT_ASKED: Final = "Requesting_2099-01-01 00:00:00"
"""HAMi asks each node for a sign of life, with two calls a node and vendor; here it has just done so."""
HAMI_VENDORS: Final = (
    "node-handshake",
    "node-handshake-ascend",
    "node-handshake-biren",
    "node-handshake-dcu",
    "node-handshake-va",
    "node-handshake-xpu",
)
HAMI_CONFIG: Final = """
nvidia:
  resourceCountName: nvidia.com/gpu
  resourceMemoryName: nvidia.com/gpumem
  resourceMemoryPercentageName: nvidia.com/gpumem-percentage
  resourceCoreName: nvidia.com/gpucores
  resourcePriorityName: nvidia.com/priority
  overwriteEnv: false
  defaultMemory: 0
  defaultCores: 0
  defaultGPUNum: 1
"""


@dataclass(frozen=True)
class Peer:
    """Peer is a scheduler that answers filter calls.

    Attributes:
        name: as it is printed.
        command: its program with arguments; `{port}`, `{kubeconfig}` and `{folder}` are filled in.
        path: path of its filter verb.
        limits: what the pod asks for.
    """

    name: str
    command: tuple[str, ...]
    path: str
    limits: dict[str, str]


def main() -> None:
    parser = make_parser("peers", __doc__, nodes=(1000, "fake nodes"), calls=(50, "calls measured"))
    parser.add_argument("--hami", help="HAMi's scheduler program")
    parser.add_argument("--gpushare", help="gpushare's extender program")
    options = parser.parse_args()
    gpupack = (sys.executable, "-m", "gpupack", "scheduler", "--kubeconfig={kubeconfig}")
    peers = [Peer("gpupack", (*gpupack, "--http=127.0.0.1:{port}"), "/filter", {RESOURCE: "8"})]
    if options.gpushare:
        peers.append(
            Peer("gpushare", (options.gpushare,), "/gpushare-scheduler/filter", {"aliyun.com/gpu-mem": "8"})
        )
    if options.hami:
        command = (
            options.hami,
            "--http_bind=127.0.0.1:{port}",
            "--metrics-bind-address=127.0.0.1:0",
            "--device-config-file={folder}/hami.yaml",
        )
        limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "8192"}
        peers.append(Peer("HAMi", command, "/filter", limits))
    print(machine())
    asyncio.run(measure(peers, options.nodes, options.calls))


class Nodes:
    """Nodes is an API server with nodes only; other objects are empty lists, and writes are taken."""

    def __init__(self, count: int) -> None:
        self.names = [f"gpu-node-{index:05d}" for index in range(count)]
        self.items = {name: self._node(index, name) for index, name in enumerate(self.names)}

    def _node(self, index: int, name: str) -> dict[str, Any]:
        uuids = [f"GPU-{index:08x}-0000-4000-8000-{card:012x}" for card in range(CARDS)]
        words = NodeWords.of(1024, [CARD_UNITS] * CARDS, [0] * CARDS, 10)
        cards = [
            CardRecord(uuid, card, "NVIDIA H100 80GB HBM3", MIB, card // 4, healthy=True)
            for card, uuid in enumerate(uuids)
        ]
        registered = [
            {
                "id": uuid,
                "index": card,
                "count": 10,
                "devmem": MIB,
                "devcore": 100,
                "type": "NVIDIA-NVIDIA H100 80GB HBM3",
                "numa": card // 4,
                "mode": "hami-core",
                "health": True,
            }
            for card, uuid in enumerate(uuids)
        ]
        amounts = {
            "cpu": "96",
            "memory": "768Gi",
            "pods": "110",
            RESOURCE: str(CARD_UNITS * CARDS),
            **{key: str(value) for key, value in node_resources(words).items()},
            "aliyun.com/gpu-mem": str(CARD_UNITS * CARDS),
            "aliyun.com/gpu-count": str(CARDS),
            "nvidia.com/gpu": str(10 * CARDS),
        }
        annotations = {
            NODE_HOLDS: dump_holds(Holds(10, frozenset())),
            NODE_CARDS: dump_cards(cards),
            "hami.io/node-nvidia-register": json.dumps(registered),
            **{f"hami.io/{vendor}": NOT_ASKED for vendor in HAMI_VENDORS},
        }
        return {
            "kind": "Node",
            "apiVersion": "v1",
            "metadata": {
                "name": name,
                "uid": f"uid-{name}",
                "resourceVersion": "10",
                "labels": {"kubernetes.io/hostname": name, "gpu": "on"},
                "annotations": annotations,
            },
            "status": {
                "capacity": amounts,
                "allocatable": amounts,
                "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
            },
        }

    async def answer(self, request: web.Request) -> web.StreamResponse:
        query, parts = request.query, request.path.strip("/").split("/")
        if "sendInitialEvents" in query:  # clients fall back to a list and a watch
            return web.json_response({"kind": "Status", "status": "Failure", "code": 400}, status=400)
        if "watch" in query:
            response = web.StreamResponse(headers={"Content-Type": "application/json"})
            await response.prepare(request)
            await asyncio.sleep(START_LIMIT_S * 10)
            return response
        if request.method != "GET":
            body = await request.json()
            return web.json_response(
                body | {"metadata": {"resourceVersion": "11"} | body.get("metadata", {})}
            )
        if len(parts) > 3 and parts[-2] == "nodes":
            return web.json_response(self.items[parts[-1]])
        items = [*self.items.values()] if parts[-1] == "nodes" else []
        first = int(query.get("continue") or 0)
        last = min(len(items), first + int(query.get("limit") or len(items)))
        meta = {"resourceVersion": "10", "continue": str(last) if last < len(items) else ""}
        return web.json_response({"metadata": meta, "items": items[first:last]})


async def measure(peers: Sequence[Peer], nodes: int, calls: int) -> None:
    """Start one scheduler after the other, ask, print."""
    cluster = Nodes(nodes)
    figures: dict[str, float] = {"nodes": nodes}
    async with serving_cluster(cluster.answer) as kubeconfig:
        kubeconfig.with_name("hami.yaml").write_text(HAMI_CONFIG)
        for peer in peers:
            figures |= await _measure_one(peer, cluster, kubeconfig, calls)
    print(json.dumps(figures))


async def _measure_one(peer: Peer, cluster: Nodes, kubeconfig: Path, calls: int) -> dict[str, float]:
    port = free_port()
    places = {"port": port, "kubeconfig": kubeconfig, "folder": kubeconfig.parent}
    command = [word.format(**places) for word in peer.command]
    environment = {"KUBECONFIG": str(kubeconfig), "PORT": str(port), "LOG_LEVEL": "error"}
    async with (
        running(command, environment) as server,
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session,
    ):
        await _wait_until_all_fit(session, peer, cluster, server)
        waited = [(await _ask(session, peer, cluster, call))[0] for call in range(calls)]
        resident = resident_mib(server.pid)
    p50, p99 = percentile(waited, 50), percentile(waited, 99)
    print(
        f"{peer.name}: filter of {len(cluster.names)} nodes waited for p50 {p50:.2f} p99 {p99:.2f} ms, "
        f"resident {resident:.0f} MiB"
    )
    return {f"{peer.name}_p50_ms": round(p50, 2), f"{peer.name}_p99_ms": round(p99, 2)}


async def _wait_until_all_fit(
    session: aiohttp.ClientSession, peer: Peer, cluster: Nodes, server: Process
) -> None:
    """Wait until the scheduler offers a node for a pod, so that it has read them.

    Raises:
        SystemExit: the scheduler ended, or offered none in time.
    """
    limit, why = time.monotonic() + START_LIMIT_S, "no answer"
    while time.monotonic() < limit and server.returncode is None:
        try:
            _, answer = await _ask(session, peer, cluster, -1)
            failed = len(answer.get("FailedNodes") or answer.get("failedNodes") or {})
            if (answer.get("NodeNames") or answer.get("nodenames") or answer.get("nodeNames")) and not failed:
                return
            why = json.dumps(answer)[:256]
        except (aiohttp.ClientConnectionError, aiohttp.ContentTypeError) as error:
            why = str(error)
        await asyncio.sleep(0.5)
    raise SystemExit(f"{peer.name} ended, or offered no node within {START_LIMIT_S} s: {why}")


async def _ask(
    session: aiohttp.ClientSession, peer: Peer, cluster: Nodes, call: int
) -> tuple[float, dict[str, Any]]:
    """Ask for a pod that was never asked for; return the milliseconds waited, and the answer."""
    pod = pod_object(f"peer{call}", 8)
    amounts = {"cpu": "4", "memory": "16Gi", **peer.limits}
    pod["spec"]["containers"][0]["resources"] = {"limits": amounts, "requests": amounts}
    body = json.dumps({"Pod": pod, "Nodes": None, "NodeNames": cluster.names}).encode()
    began = time.perf_counter()
    async with session.post(peer.path, data=body, headers={"Content-Type": "application/json"}) as response:
        raw = await response.read()
        waited = (time.perf_counter() - began) * 1000
        if response.status != 200:
            return waited, {}
    return waited, json.loads(raw)


if __name__ == "__main__":
    main()
