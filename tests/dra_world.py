"""A node that serves claims, for tests: the kubelet's side of DRA as a few calls, and claims to prepare."""

import json
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import msgspec

from allocator.claims import AllocatedDevice
from allocator.ids import device_names
from allocator.names import CLAIM_LABEL
from deviceplugin.kubelet.wire import dra_pb2 as pb
from deviceplugin.kubelet.wire import dra_pb2_grpc as rpc
from deviceplugin.kubelet.wire import pluginregistration_pb2 as registration_pb
from deviceplugin.kubelet.wire import pluginregistration_pb2_grpc as registration_rpc
from tests.integration.node_world import NODE, NodeWorld, card, running
from tests.waiting import until

DRIVER = "gpu.gpupack.io"
API = "/apis/resource.k8s.io/v1"
CLAIMS = f"{API}/namespaces/default/resourceclaims"


class DraWorld(NodeWorld):
    """One node with `--serve dra`; the test is the kubelet."""

    async def start(self) -> None:
        await self.api.start()
        self.api.add_node(NODE)
        self.kubelet_dir = self.folder / "kubelet"
        for name in ("device-plugins", "pod-resources"):
            (self.kubelet_dir / name).mkdir(parents=True)
        self.cdi = self.folder / "cdi"
        self.kubelet = _NoKubelet(self.kubelet_dir)  # type: ignore[assignment]
        await self.start_daemon()

    async def start_daemon(self, *, slices: bool = True, **changes: Any) -> None:
        """Start it, and wait until it has published its cards unless `slices` says that it will not."""
        running = self.spawn_daemon(**{"serve": "dra", "cdi_dirs": (self.cdi,), **changes})
        await until(lambda: self.registry.exists() or running.done(), "our socket in plugins_registry")
        if running.done():
            running.result()
        self.info = await self.register()
        await until(lambda: self.daemon.ready.is_set() and (self.slices() or not slices), "slices")

    async def end(self) -> None:
        if self.running is not None and not self.running.done():
            await self.stop_daemon()
        await self.api.stop()

    # The kubelet.

    @property
    def registry(self) -> Path:
        return self.kubelet_dir / "plugins_registry" / f"{DRIVER}-reg.sock"

    async def register(self, error: str = "") -> registration_pb.PluginInfo:
        """Find out what the plugin is, and tell it that it is registered."""
        async with grpc.aio.insecure_channel(f"unix:{self.registry}") as channel:
            stub = registration_rpc.RegistrationStub(channel)  # type: ignore[no-untyped-call]
            info = await stub.GetInfo(registration_pb.InfoRequest(), wait_for_ready=True)
            status = registration_pb.RegistrationStatus(plugin_registered=not error, error=error)
            await stub.NotifyRegistrationStatus(status)
        return info  # type: ignore[no-any-return]

    async def prepare(self, *names: str) -> dict[str, pb.NodePrepareResourceResponse]:
        claims = [self.wire_claim(name) for name in names]
        async with grpc.aio.insecure_channel(f"unix:{self.info.endpoint}") as channel:
            stub = rpc.DRAPluginStub(channel)  # type: ignore[no-untyped-call]
            answer = await stub.NodePrepareResources(pb.NodePrepareResourcesRequest(claims=claims))
        return {claim.name: answer.claims[claim.uid] for claim in claims}

    async def unprepare(self, *names: str) -> dict[str, str]:
        """Have claims unprepared; returns what was wrong with each."""
        claims = [self.wire_claim(name) for name in names]
        async with grpc.aio.insecure_channel(f"unix:{self.info.endpoint}") as channel:
            stub = rpc.DRAPluginStub(channel)  # type: ignore[no-untyped-call]
            answer = await stub.NodeUnprepareResources(pb.NodeUnprepareResourcesRequest(claims=claims))
        return {claim.name: answer.claims[claim.uid].error for claim in claims}

    def wire_claim(self, name: str) -> pb.Claim:
        return pb.Claim(namespace="default", name=name, uid=self.uids[name])

    # Claims and their pods.

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        url = self.api.url + path
        async with aiohttp.ClientSession() as session, session.request(method, url, json=body) as answer:
            found = await answer.json()
            assert answer.status < 300, found
            return found

    def slices(self) -> list[Any]:
        return self.api.objects("resourceslices")

    async def claim(
        self,
        name: str,
        *shares: tuple[int, int],
        pod: str | None = None,
        containers: Sequence[Mapping[str, Any]] | None = None,
        pool: str = NODE,
        label: bool = False,
        uuids: Sequence[str] | None = None,
        compute: int = 0,
    ) -> str:
        """Create a claim with shares (card, GiB), a request for each, and a bound pod that has it.

        Each share has `compute` percent of its card's compute; kube-scheduler writes 0 where none is asked.
        With `label` it is as those that the extender writes. `uuids` are the cards by number, where
        they are not those of a test's own.

        Returns:
            The pod's UID.
        """
        metadata: dict[str, Any] = {"name": name}
        if label:
            owner = {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": "u"}
            metadata |= {"labels": {CLAIM_LABEL: "true"}, "ownerReferences": [owner]}
        found = await self.call("POST", CLAIMS, {"metadata": metadata, "spec": {"devices": {}}})
        self.uids[name] = found["metadata"]["uid"]
        cards = uuids or [card(number) for number in range(9)]
        names = device_names(cards)
        results = [
            {
                "request": f"r{at}",
                "driver": DRIVER,
                "pool": pool,
                "device": names[cards[number]],
                "shareID": str(uuid.uuid4()),
                "consumedCapacity": {"memory": f"{gib}Gi", "compute": str(compute)},
            }
            for at, (number, gib) in enumerate(shares)
        ]
        for result in results if label else ():
            result["shareID"] = msgspec.convert(result, AllocatedDevice).make_share_id("u")
        use = {"name": "main", "image": "x", "resources": {"claims": [{"name": "c"}]}}
        spec = {
            "resourceClaims": [{"name": "c", "resourceClaimName": name}],
            "containers": list(containers or [use]),
        }
        pod = pod or f"pod-{name}"
        made = self.api.add_pod({"metadata": {"name": pod, "namespace": "default"}, "spec": spec})
        self.api.bind_pod("default", pod, NODE, {})
        uid = str(made["metadata"]["uid"])
        found["status"] = {
            "allocation": {"devices": {"results": results}},
            "reservedFor": [{"resource": "pods", "name": pod, "uid": uid}],
        }
        await self.call("PUT", f"{CLAIMS}/{name}/status", found)
        self.kubelet.run(uid)  # type: ignore[attr-defined]
        return uid

    async def prepared(self, name: str, *shares: tuple[int, int], **options: Any) -> str:
        """Create a claim, as `claim` does, and have it prepared; returns the UID of its pod."""
        uid = await self.claim(name, *shares, **options)
        answer = await self.prepare(name)
        assert not answer[name].error
        return uid

    async def share(self, name: str, pod: str) -> str:
        """Create another bound pod that has a claim; returns its UID."""
        use = {"name": "main", "image": "x", "resources": {"claims": [{"name": "c"}]}}
        spec = {"resourceClaims": [{"name": "c", "resourceClaimName": name}], "containers": [use]}
        made = self.api.add_pod({"metadata": {"name": pod, "namespace": "default"}, "spec": spec})
        self.api.bind_pod("default", pod, NODE, {})
        uid = str(made["metadata"]["uid"])
        found = await self.call("GET", f"{CLAIMS}/{name}")
        found["status"]["reservedFor"].append({"resource": "pods", "name": pod, "uid": uid})
        await self.call("PUT", f"{CLAIMS}/{name}/status", found)
        self.kubelet.run(uid)  # type: ignore[attr-defined]
        return uid

    async def reserve(self, name: str, pod: str) -> None:
        """Reserve a claim for another pod, and for no other one."""
        found = await self.call("GET", f"{CLAIMS}/{name}")
        uid = str(self.api.pod("default", pod)["metadata"]["uid"])
        found["status"]["reservedFor"] = [{"resource": "pods", "name": pod, "uid": uid}]
        await self.call("PUT", f"{CLAIMS}/{name}/status", found)

    def end_pod(self, name: str) -> None:
        """Delete a pod whose containers are gone."""
        uid = self.api.pod("default", name)["metadata"]["uid"]
        self.kubelet.run(uid, runs=False)  # type: ignore[attr-defined]
        self.api.delete_pod("default", name, 0)

    @property
    def uids(self) -> dict[str, str]:
        return self.__dict__.setdefault("_uids", {})

    def cdi_specs(self) -> list[Any]:
        return [json.loads(path.read_text()) for path in sorted(self.cdi.glob("*.json"))]


@asynccontextmanager
async def dra_world(
    *sizes_gib: int, source: Any = None, start: bool = True, **changes: Any
) -> AsyncIterator[DraWorld]:
    """A node that runs, unless `start` says no, torn down afterwards; with simulated cards by default.

    `changes` are settings of its daemons.
    """

    def make(folder: Path) -> DraWorld:
        world = DraWorld(folder, sizes_gib or (8, 8))
        world.source = source or world.source
        world.changes = changes
        return world

    async with running(make, start=start) as world:
        yield world


class _NoKubelet:
    """Folders of a kubelet, and which pods have containers."""

    def __init__(self, folder: Path) -> None:
        self.device_plugin_dir = folder / "device-plugins"
        self.pod_resources_socket = folder / "pod-resources" / "kubelet.sock"
        self._running: set[str] = set()

    def run(self, uid: str, *, runs: bool = True) -> None:
        (self._running.add if runs else self._running.discard)(uid)

    def running_pods(self) -> frozenset[str]:
        return frozenset(self._running)
