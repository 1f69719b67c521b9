"""A stand-in kubelet with one device plugin of ours on it, for tests; nothing of it patches the product."""

import asyncio
import itertools
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc

from allocator.ids import device_id, parse_device_id
from deviceplugin.errors import AllocationRefusedError
from deviceplugin.gpus.api.container_grant import ContainerGrant
from deviceplugin.kubelet.plugin_service import DevicePlugin
from deviceplugin.kubelet.registration import Registrar, RegistrationTimeouts
from deviceplugin.kubelet.wire import deviceplugin_pb2 as pb
from kubeapi.backoff import Backoff
from standins.kubelet.node import Kubelet
from tests.podresources import PodResourcesList, list_pod_resources
from tests.waiting import until

RESOURCE = "gpupack.io/gpu-memory-gib"
_uids = itertools.count(1)


class SimpleAllocator:
    """Cards of equal size; prefers the lowest slots of the emptiest offered card; remembers every call."""

    def __init__(self, cards: int = 2, units: int = 8) -> None:
        self.health = {device_id(f"GPU-{card}", slot): True for card in range(cards) for slot in range(units)}
        self.preferred_calls: list[tuple[frozenset[str], frozenset[str], int]] = []
        self.allocate_calls: list[frozenset[str]] = []
        self.refuse: AllocationRefusedError | Exception | None = None
        self.hangs = False

    def explain_unavailable(self, identifier: str) -> str:
        return "the card is unhealthy"

    def list_devices(self) -> Mapping[str, bool]:
        return self.health

    async def choose_ids(
        self, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> Collection[str]:
        self.preferred_calls.append((frozenset(available), frozenset(must_include), size))
        by_card: dict[str, list[str]] = {}
        for identifier in sorted(available):
            by_card.setdefault(parse_device_id(identifier)[0], []).append(identifier)
        wanted = {parse_device_id(identifier)[0] for identifier in must_include}
        fitting = [
            ids for card, ids in sorted(by_card.items()) if len(ids) >= size and wanted in (set(), {card})
        ]
        if not fitting:
            raise AllocationRefusedError("no-room", f"no card with {size} free units")
        best = max(fitting, key=len)
        rest = [identifier for identifier in best if identifier not in must_include]
        return [*must_include, *rest][:size]

    async def allocate(self, ids: Sequence[str]) -> ContainerGrant:
        self.allocate_calls.append(frozenset(ids))
        if self.hangs:
            await asyncio.Event().wait()
        if self.refuse is not None:
            raise self.refuse
        cards = sorted({parse_device_id(identifier)[0] for identifier in ids})
        return ContainerGrant(envs={"CARDS": ",".join(cards), "UNITS": str(len(ids))})


class ScriptedPlugin(DevicePlugin):
    """A plugin whose preferred answer can be anything, as a foreign or faulty plugin's can."""

    answer: Callable[[Sequence[str], Sequence[str], int], Sequence[str]] | None = None

    def __init__(self, allocator: SimpleAllocator) -> None:
        super().__init__(allocator)
        self.simple = allocator
        self.preferring = True
        self.pre_start = ""
        self.pre_started: list[frozenset[str]] = []

    async def GetDevicePluginOptions(  # noqa: N802 - the wire's name
        self, _request: pb.Empty, _context: Any
    ) -> pb.DevicePluginOptions:
        return pb.DevicePluginOptions(
            pre_start_required=bool(self.pre_start), get_preferred_allocation_available=self.preferring
        )

    async def PreStartContainer(  # noqa: N802 - the wire's name
        self, request: pb.PreStartContainerRequest, context: Any
    ) -> pb.PreStartContainerResponse:
        self.pre_started.append(frozenset(request.devices_ids))
        if self.pre_start == "refused":
            await context.abort(grpc.StatusCode.ABORTED, "not now")
        return pb.PreStartContainerResponse()

    async def GetPreferredAllocation(  # noqa: N802 - the wire's name
        self, request: pb.PreferredAllocationRequest, context: Any
    ) -> pb.PreferredAllocationResponse:
        if self.answer is None:
            return await super().GetPreferredAllocation(request, context)
        asked = request.container_requests[0]
        available, must_include = sorted(asked.available_deviceIDs), sorted(asked.must_include_deviceIDs)
        call = frozenset(available), frozenset(must_include), asked.allocation_size
        self.simple.preferred_calls.append(call)
        given = self.answer(available, must_include, asked.allocation_size)
        one = pb.ContainerPreferredAllocationResponse(deviceIDs=given)
        return pb.PreferredAllocationResponse(container_responses=[one])


def pod(
    name: str,
    *mains: int,
    init: Sequence[int | tuple[str, int]] = (),
    uid: str = "",
    created: str = "2026-01-01T00:00:00Z",
    node: str = "n1",
) -> dict[str, Any]:
    """Make a pod: mains m0, m1... by units; init containers i0, i1... by units, or ("sidecar", units)."""

    def container(title: str, units: int, **more: str) -> dict[str, Any]:
        limits = {RESOURCE: str(units)} if units else {}
        return {"name": title, "image": "x", "resources": {"limits": limits, "requests": limits}, **more}

    inits = []
    for index, one in enumerate(init):
        if isinstance(one, tuple):
            inits.append(container(f"i{index}", one[1], restartPolicy="Always"))
        else:
            inits.append(container(f"i{index}", one))
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": uid or f"uid-{next(_uids)}",
            "creationTimestamp": created,
        },
        "spec": {
            "nodeName": node,
            "initContainers": inits,
            "containers": [container(f"m{index}", units) for index, units in enumerate(mains)],
        },
    }


def uid_of(manifest: Mapping[str, Any]) -> str:
    return str(manifest["metadata"]["uid"])


def cards_of(ids: Collection[str]) -> set[str]:
    return {parse_device_id(identifier)[0] for identifier in ids}


@asynccontextmanager
async def short_folder() -> AsyncIterator[Path]:
    """Make a folder whose path leaves room for a socket's name."""
    folder = Path(tempfile.mkdtemp(prefix="gpk-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class World:
    """The kubelet, the plugin, who decides in it, and what its registrar said."""

    def __init__(self, kubelet: Kubelet, allocator: SimpleAllocator) -> None:
        self.kubelet = kubelet
        self.allocator = allocator
        self.plugin = ScriptedPlugin(allocator)
        self.events: list[str] = []
        self.registrar = self.new_registrar()
        self._task: asyncio.Task[None] | None = None

    @property
    def socket(self) -> Path:
        return self.kubelet.device_plugin_dir / "gpupack.sock"

    def new_registrar(self, backoff: Backoff | None = None) -> Registrar:
        return Registrar(
            self.plugin,
            self.kubelet.device_plugin_dir,
            "gpupack.sock",
            RESOURCE,
            on_registered=lambda: self.events.append("registered"),
            on_kubelet_restart=lambda: self.events.append("restarted"),
            backoff=backoff or Backoff(0.02, 0.2),
            timing=RegistrationTimeouts(settle_s=0.1, lasting_s=0.2, grace_s=0.2),
        )

    def run_registrar(self) -> None:
        self._task = asyncio.create_task(self.registrar.run())

    async def stop_registrar(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def registered(self) -> None:
        """Wait until the kubelet has all our healthy devices."""
        healthy = sum(self.allocator.health.values())
        await until(
            lambda: self.registrar.is_registered and self.kubelet.allocatable().get(RESOURCE) == healthy
        )

    async def restart(self, *, lose_checkpoint: bool = False) -> None:
        """Restart the kubelet; it learns of its pods once the plugin is back, else it would fail some."""
        self.kubelet.api_away = True
        await self.kubelet.restart(lose_checkpoint=lose_checkpoint)
        await self.registered()
        self.kubelet.api_away = False
        await self.kubelet.synced()

    async def listed(self) -> PodResourcesList:
        return await list_pod_resources(self.kubelet.pod_resources_socket)

    def ids(self, manifest: Mapping[str, Any], container: str) -> frozenset[str]:
        """What the kubelet's device manager says that a container holds."""
        return self.kubelet.held(uid_of(manifest), container).get(RESOURCE, frozenset())


@asynccontextmanager
async def world(
    cards: int = 2, units: int = 8, *, registrar: bool = True, **settings: Any
) -> AsyncIterator[World]:
    """Start a kubelet and, unless told not to, the plugin, registered."""
    async with short_folder() as folder:
        kubelet = Kubelet(folder, "n1", sync_delay_s=settings.pop("sync_delay_s", 0.05), **settings)
        await kubelet.start()
        here = World(kubelet, SimpleAllocator(cards, units))
        try:
            if registrar:
                here.run_registrar()
                await here.registered()
            yield here
        finally:
            await here.stop_registrar()
            await kubelet.stop()
