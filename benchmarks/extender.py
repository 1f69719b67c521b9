"""Latency and memory of the extender, served over HTTP.

`python -m benchmarks.extender --nodes N [--policy NAME]`: the shipped server runs in a process of its own.
The server reads N nodes of eight 80 GiB cards, 60 % full, and two pods a node from a small API server in this
one. Then 20 request shapes are asked in turn, filter and prioritize each with the names of all nodes. Between
two calls one node's words change through the watch.

Each shape is asked without and with a percent of the cards' compute. Figures that begin with `compute_` are
medians of the second's time over the first's.

Two times are taken of each call. The server says what it spent, from the body read to the answer made (header
Server-Timing). This client measures what it waited, HTTP and the loopback included. The last line is JSON
with the server's own times. `list_s` has the seconds from its first question for a list to being ready, and
`list_cpu_s` those of processor time among them.

kube-scheduler's order of names is not the same twice when it filters in parallel. `--shuffle` sends the names
in a new order with every call, so that nothing about the list can be remembered.
"""

import asyncio
import contextlib
import json
import os
import random
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL, Process
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from allocator.names import (
    COMPUTE_RESOURCE,
    DEFAULT_NODE_POLICY,
    NODE_CARDS,
    NODE_HOLDS,
    POD_ASSIGNED,
    resource_name,
)
from allocator.packing import NodeWords, node_resources
from allocator.records import CardRecord, Holds, dump_assigned, dump_cards, dump_holds
from benchmarks.machine import cpu_s, free_port, machine, make_parser, percentile, resident_mib, spread
from tests.http_server import serving

CARDS = 8
CARD_UNITS = 79
FULL = 0.6
COMPUTE_LIMIT = 100
ASKED_COMPUTE = 20
PODS_A_NODE = 2
RESOURCE = resource_name(1024)
START_LIMIT_S = 120


def main() -> None:
    """Run the benchmark as its command line says."""
    numbers = {"nodes": (5000, "fake nodes"), "calls": (1000, "pairs of calls measured")}
    parser = make_parser("extender", __doc__, **numbers)
    parser.add_argument("--policy", default=DEFAULT_NODE_POLICY, help="node policy (default: %(default)s)")
    parser.add_argument("--shuffle", action="store_true", help="send the names in a new order every time")
    options = parser.parse_args()
    print(machine())
    asyncio.run(measure(options.nodes, options.policy, options.calls, shuffle=options.shuffle))


class FakeCluster:
    """Nodes and pods as an API server lists and watches them, made once as bytes."""

    def __init__(self, nodes: int, seed: int = 42) -> None:
        self.random = random.Random(seed)
        self.version = 10
        self.names = [f"gpu-node-{index:05d}" for index in range(nodes)]
        self.used = [[self._some_units() for _ in range(CARDS)] for _ in self.names]
        self.compute = [[self._some_units(COMPUTE_LIMIT) for _ in range(CARDS)] for _ in self.names]
        self.cpu = [self.random.randrange(16, 97, 8) for _ in self.names]
        self.pods = [self._pod(node, slot) for node in range(nodes) for slot in range(PODS_A_NODE)]
        self.listed = {
            "nodes": [json.dumps(self.node(index)) for index in range(nodes)],
            "pods": [json.dumps(pod) for pod in self.pods],
        }
        self.asked_first = 0.0
        self.server_pid = 0
        self.cpu_before_s = 0.0
        self.watchers: list[asyncio.Queue[bytes]] = []

    def _some_units(self, most: int = CARD_UNITS) -> int:
        return min(most, max(0, round(self.random.gauss(FULL, 0.3) * most)))

    def _pod(self, node: int, slot: int) -> dict[str, Any]:
        pod = pod_object(f"running-{node}-{slot}", 8, cpu="2", memory="8Gi")
        assigned = dump_assigned({"main": ((self.uuid(node, slot), 8),)})
        pod["metadata"]["annotations"] = {POD_ASSIGNED: assigned}
        pod["spec"]["nodeName"] = self.names[node]
        pod["status"] = {"phase": "Running"}
        return pod

    def uuid(self, node: int, card: int) -> str:
        """Name a card the way the driver does."""
        return f"GPU-{node:08x}-0000-4000-8000-{card:012x}"

    def node(self, index: int) -> dict[str, Any]:
        """Make a Node with the fields a kubelet fills in."""
        words = NodeWords.of(
            1024, [CARD_UNITS] * CARDS, self.used[index], self.version, COMPUTE_LIMIT, self.compute[index]
        )
        inventory = [
            CardRecord(self.uuid(index, card), card, "NVIDIA H100 80GB HBM3", 81079, card // 4, healthy=True)
            for card in range(CARDS)
        ]
        held = frozenset(f"uid-running-{index}-{slot}" for slot in range(PODS_A_NODE))
        amounts = {
            "cpu": str(self.cpu[index]),
            "memory": f"{self.cpu[index] * 8}Gi",
            "pods": "110",
            "ephemeral-storage": "500Gi",
            RESOURCE: str(CARD_UNITS * CARDS),
            **{name: str(value) for name, value in node_resources(words).items()},
        }
        return {
            "metadata": {
                "name": self.names[index],
                "resourceVersion": str(self.version),
                "labels": {"kubernetes.io/hostname": self.names[index], "pool": "gpu"},
                "annotations": {
                    NODE_HOLDS: dump_holds(Holds(self.version, held)),
                    NODE_CARDS: dump_cards(inventory),
                },
            },
            "spec": {"podCIDR": "10.0.0.0/24"},
            "status": {
                "capacity": amounts,
                "allocatable": amounts,
                "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}] * 4,
                "images": [
                    {"names": [f"registry.example/{n}@sha256:{n:064d}"], "sizeBytes": n} for n in range(30)
                ],
                "nodeInfo": {"kernelVersion": "6.1.0", "kubeletVersion": "v1.36.3"},
            },
        }

    def change_one_node(self) -> None:
        """Change one card of one node and tell the watchers."""
        index = self.random.randrange(len(self.names))
        self.used[index][self.random.randrange(CARDS)] = self._some_units()
        self.version += 1
        node = json.dumps(self.node(index))
        self.listed["nodes"][index] = node
        line = f'{{"type":"MODIFIED","object":{node}}}\n'.encode()
        for queue in self.watchers:
            queue.put_nowait(line)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Serve lists in pages, and watches; only nodes change."""
        what = request.path.removeprefix("/api/v1/")
        if what not in self.listed:
            return web.Response(status=404)
        if "watch" in request.query:
            return await self._watch(request, hears=what == "nodes")
        return self._page(request, self.listed[what])

    def _page(self, request: web.Request, items: Sequence[str]) -> web.Response:
        if not self.asked_first:
            self.asked_first, self.cpu_before_s = time.perf_counter(), cpu_s(self.server_pid)
        count = len(items)
        first = int(request.query.get("continue", 0))
        last = min(count, first + int(request.query.get("limit", count)))
        meta = json.dumps(
            {"resourceVersion": str(self.version), "continue": str(last) if last < count else ""}
        )
        body = f'{{"metadata":{meta},"items":[{",".join(items[first:last])}]}}'
        return web.Response(text=body, content_type="application/json")

    async def _watch(self, request: web.Request, *, hears: bool) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        if hears:
            self.watchers.append(queue)
        with contextlib.suppress(ConnectionResetError):  # the extender has ended
            while True:
                await response.write(await queue.get())
        return response


def pod_object(name: str, units: int, *, cpu: str = "4", memory: str = "16Gi") -> dict[str, Any]:
    """Make a Pod about as long as real ones are."""
    amounts = {RESOURCE: str(units), "cpu": cpu, "memory": memory}
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-{name}",
            "resourceVersion": "5",
            "labels": {"app": "inference", "pod-template-hash": "5d9c7f"},
            "annotations": {},
            "managedFields": [{"manager": "kubectl", "fieldsV1": {f"f:field-{n}": {} for n in range(30)}}],
        },
        "spec": {
            "schedulerName": "gpupack-scheduler",
            "containers": [
                {
                    "name": "main",
                    "image": "registry.example/inference:1.2.3",
                    "env": [{"name": f"VARIABLE_{n}", "value": "value"} for n in range(20)],
                    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                    "resources": {"limits": amounts, "requests": amounts},
                }
            ],
            "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists"}] * 2,
            "priority": 0,
        },
        "status": {"phase": "Pending"},
    }


def shapes() -> list[dict[str, Any]]:
    """Twenty requests: one card, several cards, several containers, an init container, selectors."""
    pods = [pod_object(f"one-{units}", units) for units in (1, 2, 4, 8, 10, 16, 20, 24, 40, 60, 79)]
    for units, cards in ((16, 2), (40, 2), (32, 4), (80, 8), (640, 8)):
        pod = pod_object(f"{cards}-cards-{units}", units)
        pod["metadata"]["annotations"]["gpupack.io/cards"] = str(cards)
        pods.append(pod)
    two = pod_object("two-containers", 20)
    two["spec"]["containers"].append({**two["spec"]["containers"][0], "name": "second"})
    init = pod_object("init-container", 8)
    init["spec"]["initContainers"] = [{**pod_object("x", 16)["spec"]["containers"][0], "name": "prepare"}]
    model = pod_object("model", 10)
    model["metadata"]["annotations"]["gpupack.io/gpu-model"] = "*H100*,!*PCIe*"
    other = pod_object("other-policy", 12)
    other["metadata"]["annotations"]["gpupack.io/card-policy"] = "most-used"
    return [*pods, two, init, model, other]


async def measure(nodes: int, policy: str, calls: int, *, shuffle: bool) -> None:
    """Start the server, ask, print."""
    cluster = FakeCluster(nodes)
    async with AsyncExitStack() as stack:
        kubeconfig = await stack.enter_async_context(serving_cluster(cluster.answer))
        address = f"127.0.0.1:{free_port()}"
        began = time.perf_counter()
        options = [f"--kubeconfig={kubeconfig}", f"--http={address}", f"--node-policy={policy}"]
        command = [sys.executable, "-m", "gpupack", "scheduler", *options]
        server = await stack.enter_async_context(running(command))
        cluster.server_pid = server.pid
        session = await stack.enter_async_context(aiohttp.ClientSession(f"http://{address}"))
        await ready(session, server)
        now = time.perf_counter()
        list_s = now - cluster.asked_first
        list_cpu_s = cpu_s(server.pid) - cluster.cpu_before_s
        print(
            f"ready {now - began:.2f} s after its start, {list_s:.2f} s of them for the lists of "
            f"{nodes} nodes and {len(cluster.pods)} pods, {list_cpu_s:.2f} s of those processor time"
        )
        handled, waited = await ask(session, cluster, calls, shuffle=shuffle)
        rss_mib = resident_mib(server.pid)
    figures: dict[str, float] = {"nodes": nodes}
    for what in ("filter", "both"):
        for percent in (50, 99):
            figures[f"{what}_p{percent}_ms"] = round(percentile(handled[what], percent), 3)
        ratios = [asks / none for asks, none in zip(handled[f"compute_{what}"], handled[what], strict=True)]
        figures[f"compute_{what}_ratio"] = round(percentile(ratios, 50), 2)
        for kind in ("", "compute_"):
            name = f"{kind}{what}"
            print(f"{name:14} handled {spread(handled[name])} ms; client waited {spread(waited[name])} ms")
    order = "new" if shuffle else "same"
    print(f"resident {rss_mib:.1f} MiB; policy {policy}, {calls} pairs of calls, {order} order of names each")
    figures |= {"rss_mib": round(rss_mib, 1), "list_s": round(list_s, 3), "list_cpu_s": round(list_cpu_s, 2)}
    print(json.dumps(figures))


@asynccontextmanager
async def serving_cluster(
    answer: Callable[[web.Request], Awaitable[web.StreamResponse]],
) -> AsyncIterator[Path]:
    """Serve an API server on loopback; gives the path of a kubeconfig for it."""
    async with serving(answer) as url:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "kubeconfig"
            path.write_text(kubeconfig_of(url))
            yield path


@asynccontextmanager
async def running(
    command: Sequence[str], environment: Mapping[str, str] | None = None
) -> AsyncIterator[Process]:
    """Run a server in silence, and end it: by force when it takes ten seconds."""
    server = await asyncio.create_subprocess_exec(
        *command, env={**os.environ, **(environment or {})}, stdout=DEVNULL, stderr=DEVNULL
    )
    try:
        yield server
    finally:
        if server.returncode is None:
            server.terminate()
        try:
            async with asyncio.timeout(10):
                await server.wait()
        except TimeoutError:
            server.kill()
            await server.wait()


async def ready(session: aiohttp.ClientSession, server: Process) -> None:
    """Wait until the server has read its lists."""
    limit = time.monotonic() + START_LIMIT_S
    while time.monotonic() < limit and server.returncode is None:
        try:
            async with session.get("/readyz") as response:
                if response.status == 200:
                    return
        except aiohttp.ClientConnectionError:
            pass
        await asyncio.sleep(0.02)
    raise SystemExit(f"the server ended, or was not ready within {START_LIMIT_S} s")


async def ask(
    session: aiohttp.ClientSession, cluster: FakeCluster, calls: int, *, shuffle: bool
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Ask filter and prioritize; the first round of shapes is not counted."""
    kinds = {"": shapes(), "compute_": [with_compute(pod, ASKED_COMPUTE) for pod in shapes()]}
    names = list(cluster.names)
    tail = names_tail(names)
    handled: dict[str, list[float]] = defaultdict(list)
    waited: dict[str, list[float]] = defaultdict(list)
    for call in range(-len(kinds[""]), calls):
        if shuffle:
            cluster.random.shuffle(names)
            tail = names_tail(names)
        for kind, pods in kinds.items():
            pod = {"Pod": pods[call % len(pods)]}
            cluster.change_one_node()
            body = json.dumps(pod, separators=(",", ":")).encode()[:-1] + tail
            first = await post(session, "/filter", body)
            second = await post(session, "/prioritize", body)
            if call >= 0:
                for sink, index in ((handled, 0), (waited, 1)):
                    sink[f"{kind}filter"].append(first[index])
                    sink[f"{kind}both"].append(first[index] + second[index])
    return handled, waited


def with_compute(pod: dict[str, Any], percent: int) -> dict[str, Any]:
    """Copy a pod, with a percent of the cards' compute in each container."""
    copy: dict[str, Any] = json.loads(json.dumps(pod))
    for container in (*copy["spec"]["containers"], *copy["spec"].get("initContainers", ())):
        for amounts in container["resources"].values():
            amounts[COMPUTE_RESOURCE] = str(percent)
    return copy


def names_tail(names: Sequence[str]) -> bytes:
    """Write the end of a call, in the form of Go's encoder."""
    return b',"Nodes":null,"NodeNames":' + json.dumps(names, separators=(",", ":")).encode() + b"}"


async def post(session: aiohttp.ClientSession, path: str, body: bytes) -> tuple[float, float]:
    """Call a verb: milliseconds the server spent, milliseconds until the answer was read."""
    began = time.perf_counter()
    async with session.post(path, data=body, headers={"Content-Type": "application/json"}) as response:
        answer = await response.read()
        if response.status != 200:
            raise SystemExit(f"{path}: status {response.status}: {answer[:256]!r}")
        spent = float(response.headers["Server-Timing"].partition("dur=")[2])
    return spent, (time.perf_counter() - began) * 1000


def kubeconfig_of(server: str) -> str:
    """Write a kubeconfig for a server without credentials."""
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "benchmark",
            "clusters": [{"name": "benchmark", "cluster": {"server": server}}],
            "users": [{"name": "nobody", "user": {"token": "unused"}}],
            "contexts": [{"name": "benchmark", "context": {"cluster": "benchmark", "user": "nobody"}}],
        }
    )


if __name__ == "__main__":
    main()
