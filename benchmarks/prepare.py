"""What preparing a claim takes on a node, beside what Allocate takes (`python -m benchmarks.node`).

`python -m benchmarks.prepare --claims N` starts the stand-in API server and `gpupack node --serve dra` in
processes of their own. This process calls NodePrepareResources and NodeUnprepareResources for one claim after
the other, by gRPC's blocking client, and tells how long each took. The first one waits for the daemon's lists
and does not count. Preparing includes two reads of the API server, which the daemon needs and Allocate does
not, and two files. The last line is JSON.
"""

import asyncio
import json
import sys
import tempfile
import time
import uuid
from contextlib import AsyncExitStack
from pathlib import Path

import grpc

from allocator.ids import device_names
from allocator.names import DRA_API, DRA_DRIVER, DRA_MEMORY
from allocator.packing import read_node
from benchmarks.caller import first_line, process
from benchmarks.machine import at_least, free_port, machine, make_parser, percentile, resident_mib, spread
from benchmarks.node import API_SERVER, NODE, PODS_PATH, PROFILE, command, until
from deviceplugin.gpus.simulated.profile import load_profile
from deviceplugin.kubelet.wire import dra_pb2 as pb
from deviceplugin.kubelet.wire import dra_pb2_grpc as rpc
from deviceplugin.kubelet.wire import pluginregistration_pb2 as registration_pb
from deviceplugin.kubelet.wire import pluginregistration_pb2_grpc as registration_rpc
from kubeapi.client import KubeClient

CLAIMS = f"{DRA_API}/namespaces/default/resourceclaims"
GIB = 4
AT_ONCE = 50
"""Claims that are prepared before all of them are let go."""


async def make_claim(client: KubeClient, number: int, cards: list[str]) -> pb.Claim:
    """Create an allocated claim and its bound pod."""
    name = f"claim-{number}"
    found = json.loads(await client.post(CLAIMS, {"metadata": {"name": name}, "spec": {"devices": {}}}))
    container = {"name": "main", "image": "example.invalid/none", "resources": {"claims": [{"name": "c"}]}}
    spec = {"containers": [container], "resourceClaims": [{"name": "c", "resourceClaimName": name}]}
    pod = json.loads(await client.post(PODS_PATH, {"metadata": {"name": name}, "spec": spec}))
    await client.bind("default", name, pod["metadata"]["uid"], NODE, {})
    result = {
        "request": "gpu",
        "driver": DRA_DRIVER,
        "pool": NODE,
        "device": device_names(cards)[cards[number % len(cards)]],
        "shareID": str(uuid.uuid4()),
        "consumedCapacity": {DRA_MEMORY: f"{GIB}Gi"},
    }
    reserved = [{"resource": "pods", "name": name, "uid": pod["metadata"]["uid"]}]
    status = {"allocation": {"devices": {"results": [result]}}, "reservedFor": reserved}
    await client.put(f"{CLAIMS}/{name}/status", {**found, "status": status})
    return pb.Claim(namespace="default", name=name, uid=found["metadata"]["uid"])


async def until_empty(client: KubeClient) -> None:
    """Wait until the Node's words show no unit as used."""
    async for line in client.watch("/api/v1/nodes", "0"):
        node = json.loads(line)["object"]
        words = read_node(node.get("status", {}).get("allocatable", {}))
        if words is not None and not any(words.used):
            return


async def measure(count: int) -> dict[str, float]:
    """Prepare and unprepare claims; returns figures for the last line."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gp-")))
        kubeconfig, kubelet = str(folder / "kubeconfig"), folder / "kubelet"
        for name in ("device-plugins", "pod-resources", "plugins", "plugins_registry"):
            (kubelet / name).mkdir(parents=True)
        api = await process(stack, [sys.executable, "-c", API_SERVER, kubeconfig], folder / "api.log")
        await first_line(api)
        client = await stack.enter_async_context(await KubeClient.connect(kubeconfig))
        claims_options = {"serve": "dra", "cdi_dirs": folder / "cdi"}
        line = command(kubeconfig, kubelet / "device-plugins", free_port(), PROFILE, **claims_options)
        daemon = await process(stack, line, folder / "log")
        registry = kubelet / "plugins_registry" / f"{DRA_DRIVER}-reg.sock"
        await until(registry.exists, "the socket of the registration")
        with grpc.insecure_channel(f"unix:{registry}") as channel:
            stub = registration_rpc.RegistrationStub(channel)  # type: ignore[no-untyped-call]
            info = await asyncio.to_thread(stub.GetInfo, registration_pb.InfoRequest(), wait_for_ready=True)
            status = registration_pb.RegistrationStatus(plugin_registered=True)
            await asyncio.to_thread(stub.NotifyRegistrationStatus, status)
        cards = [simulated.card.uuid for simulated in load_profile(PROFILE).cards]
        prepared_ms: list[float] = []
        unprepared_ms: list[float] = []
        with grpc.insecure_channel(f"unix:{info.endpoint}") as channel:
            plugin = rpc.DRAPluginStub(channel)  # type: ignore[no-untyped-call]
            for first in range(0, count, AT_ONCE):
                numbers = range(first, min(first + AT_ONCE, count))
                claims = [await make_claim(client, number, cards) for number in numbers]
                for claim in claims:
                    request = pb.NodePrepareResourcesRequest(claims=[claim])
                    began = time.perf_counter()
                    answer = plugin.NodePrepareResources(request)
                    prepared_ms.append(1000 * (time.perf_counter() - began))
                    if answer.claims[claim.uid].error:
                        raise SystemExit(f"claim {claim.name}: {answer.claims[claim.uid].error}")
                for claim in claims:
                    began = time.perf_counter()
                    plugin.NodeUnprepareResources(pb.NodeUnprepareResourcesRequest(claims=[claim]))
                    unprepared_ms.append(1000 * (time.perf_counter() - began))
                    await client.delete(f"{PODS_PATH}/{claim.name}", {"gracePeriodSeconds": 0})
                # Else the next claims would wait for room until the daemon has seen the pods' ends.
                await until_empty(client)
        del prepared_ms[0]
        rss_mib = resident_mib(daemon.pid)
    print(f"NodePrepareResources: {len(prepared_ms)} claims, {spread(prepared_ms)} ms")
    print(f"NodeUnprepareResources: {spread(unprepared_ms)} ms; resident {rss_mib:.1f} MiB")
    return {
        "prepare_p50_ms": round(percentile(prepared_ms, 50), 3),
        "prepare_p99_ms": round(percentile(prepared_ms, 99), 3),
        "unprepare_p99_ms": round(percentile(unprepared_ms, 99), 3),
        "rss_mib": round(rss_mib, 1),
    }


def main() -> None:
    """Run the benchmark as its command line says."""
    parser = make_parser("prepare", __doc__)
    parser.add_argument("--claims", type=at_least(2), default=1000, help="claims (default 1000)")
    options = parser.parse_args()
    print(machine())
    print(json.dumps(asyncio.run(measure(options.claims))))


if __name__ == "__main__":
    main()
