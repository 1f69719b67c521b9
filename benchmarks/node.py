"""Latency, memory and idle processor time of the node daemon.

`python -m benchmarks.node [--idle-s S]`: the real command `gpupack node` with eight simulated H100-80 cards
runs in a process of its own, as does the stand-in for the API server. The stand-in for the kubelet runs in
this one. Twenty pods come and go over and over through the kubelet's real gRPC calls. The kubelet restarts.
Then nothing happens for a while with twenty pods running. Measured:

- Allocate, from the kubelet's call to its answer, gRPC and the socket included; called from a process that
  does nothing else (`benchmarks.caller` says why);
- the same call of a plugin that does nothing, by turns right before or right after: what gRPC in Python takes
  here;
- how many times its p50 and p99 ours are, which says more than either on a busy machine;
- GetPreferredAllocation, which the kubelet asks before, in the same way;
- the share of all Allocates that the daemon handled within half, one and two milliseconds, by its metrics;
- from the deletion of a pod to the Node's words without it as another client sees them, the worst of all;
- the kubelet's start to its having the list of devices again, the worst of all restarts;
- resident memory of the daemon at the end, and the share of one core that it used while idle.

The last line is JSON.
"""

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from aiohttp import ClientSession
from prometheus_client.parser import text_string_to_metric_families

from allocator.names import POD_ASSIGNED, resource_name
from allocator.packing import read_node
from allocator.records import dump_assigned
from benchmarks.caller import Caller, calling, first_line, process
from benchmarks.machine import cpu_s, free_port, machine, make_parser, percentile, resident_mib, spread
from deviceplugin.gpus.simulated.profile import load_profile
from kubeapi.client import KubeClient
from standins.kubelet.node import Kubelet

NODE = "gpu-node"
PROFILE = "8xh100-80"
CARDS = 8
CARD_UNITS = 79
POD_UNITS = (4, 8, 10, 16, 20, 24)
PODS = 20
RESOURCE = resource_name(1024)
LIMIT_S = 60.0
HANDLED_S = ("0.0005", "0.001", "0.002")
LOOK_S = 0.002
PODS_PATH = "/api/v1/namespaces/default/pods"
API_SERVER = f"""
import asyncio, sys
from standins.apiserver.server import ApiServer

async def main():
    async with ApiServer(seed=1) as api:
        api.add_node({NODE!r})
        api.kubeconfig(sys.argv[1])
        print(api.url, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


def main() -> None:
    """Run the benchmark as its command line says."""
    parser = make_parser(
        "node",
        __doc__,
        idle_s=(300.0, "seconds of idling"),
        rounds=(25, "times 20 pods come and go"),
        restarts=(10, "restarts of the kubelet"),
    )
    options = parser.parse_args()
    print(machine())
    print(json.dumps(asyncio.run(measure(options.idle_s, options.rounds, options.restarts))))


class World:
    """The kubelet, its caller, a client that sees the Node's words, and the daemon's process.

    Attributes:
        used: units used on all cards, as the Node said last; -1 before it says anything.
    """

    def __init__(self, daemon: "RunningDaemon") -> None:
        self._client, self.kubelet, self.pid, self.http_port, self.caller = daemon
        self.used = -1
        self._cards = [simulated.card.uuid for simulated in load_profile(PROFILE).cards]
        self._made = 0

    async def follow(self) -> None:
        """See every change of the Node until cancelled."""
        version = "0"
        while True:
            async for line in self._client.watch("/api/v1/nodes", version):
                item = json.loads(line)["object"]
                version = item["metadata"]["resourceVersion"]
                words = read_node(item.get("status", {}).get("allocatable", {}))
                self.used = sum(words.used) if words is not None else self.used

    def running(self) -> int:
        """Pods that the kubelet has admitted and runs."""
        return len(self.kubelet.running_pods())

    async def create(self, count: int) -> dict[str, int]:
        """Bind pods to the node one by one, as the extender does, and wait until the words have them all.

        Returns:
            Units by pod name.
        """
        pods = {}
        before, running = self.used, self.running()
        for number in range(count):
            self._made += 1
            name, units = f"pod-{self._made:05d}", POD_UNITS[number % len(POD_UNITS)]
            await bind_pod(self._client, name, self._cards[number % CARDS], units)
            pods[name] = units
            await until(lambda: self.running() == running + len(pods), f"{name} runs")
        await until(lambda: self.used == before + sum(pods.values()), "the words have all pods")
        return pods

    async def delete(self, pods: dict[str, int]) -> list[float]:
        """Delete pods one by one; returns seconds from each one's deletion to the words without it."""
        took = []
        left = self.used
        for name, units in pods.items():
            left -= units
            began = time.perf_counter()
            await self._client.delete(f"{PODS_PATH}/{name}", {"gracePeriodSeconds": 0})
            await until(lambda left=left: self.used == left, f"the words lose {name}")  # type: ignore[misc]
            took.append(time.perf_counter() - began)
        return took

    async def restart_kubelet(self) -> float:
        """Kill the kubelet and start it; returns seconds from its start to its having the devices again."""
        await self.kubelet.kill()
        began = time.perf_counter()
        await self.kubelet.start()
        await until(self.has_devices, "the kubelet has the devices again")
        return time.perf_counter() - began

    def has_devices(self) -> bool:
        """Whether the kubelet knows all devices to be healthy."""
        return self.kubelet.allocatable().get(RESOURCE) == CARDS * CARD_UNITS


async def measure(idle_s: float, rounds: int, restarts: int) -> dict[str, float]:
    """Run everything and print figures for people."""
    async with start() as world:
        print(f"{PROFILE}, started: resident {resident_mib(world.pid):.1f} MiB", flush=True)
        await world.delete(await world.create(PODS))
        caller = world.caller
        caller.forget()
        deleted_s: list[float] = []
        for _ in range(rounds):
            deleted_s += await world.delete(await world.create(PODS))
        print(f"Allocate: {len(caller.allocate_ms)} calls, {spread(caller.allocate_ms)} ms", flush=True)
        print(f"handled in the daemon: {await handled(world.http_port)}", flush=True)
        print(f"of an empty plugin: {spread(caller.empty_ms)} ms", flush=True)
        p50, p99 = (times_empty(caller.allocate_ms, caller.empty_ms, share) for share in (50, 99))
        print(f"times the empty plugin's: p50 {p50:.2f} p99 {p99:.2f}", flush=True)
        print(f"GetPreferredAllocation: {spread(caller.preferred_ms)} ms", flush=True)
        allocated_ms, empty_ms = list(caller.allocate_ms), list(caller.empty_ms)
        print(f"deleted to words published: {len(deleted_s)} pods, {spread(deleted_s)} s", flush=True)
        await world.create(PODS)
        registered_s = [await world.restart_kubelet() for _ in range(restarts)]
        print(f"kubelet back to registered: {restarts} restarts, {spread(registered_s)} s", flush=True)
        await world.kubelet.synced()
        await until(lambda: world.running() == PODS, "all pods run")
        await asyncio.sleep(min(30.0, idle_s))
        began, used_s = time.perf_counter(), cpu_s(world.pid)
        await asyncio.sleep(idle_s)
        idle_percent = 100 * (cpu_s(world.pid) - used_s) / (time.perf_counter() - began)
        rss_mib = resident_mib(world.pid)
        print(f"idle for {idle_s:g} s with {PODS} pods: {idle_percent:.2f} % of a core, {rss_mib:.1f} MiB")
    return figures(allocated_ms, empty_ms, registered_s, deleted_s, rss_mib, idle_percent)


def figures(
    allocated_ms: Sequence[float],
    empty_ms: Sequence[float],
    registered_s: Sequence[float],
    deleted_s: Sequence[float],
    rss_mib: float,
    idle_percent: float,
) -> dict[str, float]:
    """What the last line says; people script against its keys."""
    return {
        "allocate_p99_ms": round(percentile(allocated_ms, 99), 3),
        "empty_plugin_p99_ms": round(percentile(empty_ms, 99), 3),
        "times_empty_p50": times_empty(allocated_ms, empty_ms, 50),
        "times_empty_p99": times_empty(allocated_ms, empty_ms, 99),
        "registered_again_s": round(max(registered_s), 3),
        "delete_to_published_s": round(max(deleted_s), 3),
        "rss_mib": round(rss_mib, 1),
        "idle_cpu_percent": round(idle_percent, 3),
    }


def times_empty(allocated_ms: Sequence[float], empty_ms: Sequence[float], share: int) -> float:
    """Compute how many times a percentile of the empty plugin ours is."""
    return round(percentile(allocated_ms, share) / percentile(empty_ms, share), 2)


async def bind_pod(client: KubeClient, name: str, card: str, units: int) -> str:
    """Create a pod, and bind it to units of a card as the extender does; returns its UID."""
    limits = {RESOURCE: str(units)}
    container = {"name": "main", "image": "example.invalid/none", "resources": {"limits": limits}}
    pod = {"metadata": {"name": name}, "spec": {"containers": [container]}}
    uid = str(json.loads(await client.post(PODS_PATH, pod))["metadata"]["uid"])
    assigned = dump_assigned({"main": ((card, units),)})
    await client.bind("default", name, uid, NODE, {POD_ASSIGNED: assigned})
    return uid


class RunningDaemon(NamedTuple):
    """The daemon's process and what it serves; `caller` calls it from a process that does nothing else."""

    client: KubeClient
    kubelet: Kubelet
    pid: int
    port: int
    caller: Caller


@asynccontextmanager
async def run_daemon(profile: str | Path) -> AsyncIterator[RunningDaemon]:
    """Run the stand-ins and the daemon with a profile; where anything fails, print its last words."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gp-")))
        kubeconfig = str(folder / "kubeconfig")
        log = folder / "log"
        caller = await stack.enter_async_context(calling(folder))
        api = await process(stack, [sys.executable, "-c", API_SERVER, kubeconfig], folder / "api.log")
        kubelet = Kubelet(folder, NODE, await first_line(api), seed=1)
        await kubelet.start()
        stack.push_async_callback(kubelet.stop)
        client = await stack.enter_async_context(await KubeClient.connect(kubeconfig))
        port = free_port()
        daemon = await process(stack, command(kubeconfig, kubelet.device_plugin_dir, port, profile), log)
        try:
            yield RunningDaemon(client, kubelet, daemon.pid, port, caller)
        except BaseException:
            print("the daemon's last words:", *log.read_text().splitlines()[-20:], sep="\n")
            raise


@asynccontextmanager
async def start() -> AsyncIterator[World]:
    """Start everything, and wait until the daemon serves the kubelet."""
    async with run_daemon(PROFILE) as daemon:
        world = World(daemon)
        following = asyncio.create_task(world.follow())
        try:
            await until(lambda: world.has_devices() and world.used == 0, "the daemon registers")
            yield world
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


def command(kubeconfig: str, plugins: Path, port: int, profile: str | Path, **more: Any) -> list[str]:
    """Write the command line of the daemon.

    Args:
        plugins: The folder of device plugins in the kubelet's.
        more: Further options.
    """
    options: dict[str, Any] = {
        "node-name": NODE,
        "gpus": "simulated",
        "profile": profile,
        "kubeconfig": kubeconfig,
        "device-plugin-dir": plugins,
        "kubelet-dir": plugins.parent,
        "http": f"127.0.0.1:{port}",
        **{name.replace("_", "-"): value for name, value in more.items()},
    }
    return [sys.executable, "-m", "gpupack", "node", *(f"--{key}={value}" for key, value in options.items())]


async def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition, looking every 2 ms."""
    limit = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > limit:
            raise SystemExit(f"{what}: not within {LIMIT_S:g} s")
        await asyncio.sleep(LOOK_S)


async def handled(port: int) -> str:
    """Write how many of all Allocates the daemon handled how fast, as its metrics say."""
    async with ClientSession() as session, session.get(f"http://127.0.0.1:{port}/metrics") as answer:
        samples = [
            sample
            for family in text_string_to_metric_families(await answer.text())
            for sample in family.samples
            if family.name == "gpupack_node_kubelet_request_duration_seconds"
            and sample.labels["method"] == "Allocate"
        ]
    within = {sample.labels["le"]: sample.value for sample in samples if "le" in sample.labels}
    return ", ".join(f"{100 * within[le] / within['+Inf']:.1f} % in {le} s" for le in HANDLED_S)


if __name__ == "__main__":
    main()
