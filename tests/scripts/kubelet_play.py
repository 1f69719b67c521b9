"""What the kubelet script needs to run: a driver, a device plugin that does as told, and plain relations."""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

import grpc

from deviceplugin.kubelet.checkpoint import CHECKPOINT_NAME, Checkpoint, CheckpointReader
from deviceplugin.kubelet.plugin_service import DevicePlugin
from deviceplugin.kubelet.registration import Registrar
from deviceplugin.kubelet.wire import deviceplugin_pb2 as pb
from tests.kubelet_world import ScriptedPlugin, SimpleAllocator, cards_of
from tests.podresources import PodResourcesList, list_pod_resources
from tests.waiting import until

RESOURCE = "script.gpupack.io/unit"
ENDPOINT = "script.sock"
CARDS, UNITS = 4, 8
ALL = CARDS * UNITS

Answer = dict[str, Any]


@dataclass(frozen=True)
class ScriptPod:
    """A pod of the script: units of each container; an init container given as a 1-tuple is a sidecar.

    Its main containers m0, m1... run until they are killed, or end at once where `ends` is set; its init
    containers i0, i1... end at once, sidecars do not.
    """

    name: str
    mains: tuple[int, ...]
    init: tuple[int | tuple[int], ...] = ()
    ends: bool = False


class Driver(Protocol):
    """A kubelet with an API server: the real ones, or the stand-ins.

    Attributes:
        pace: How long it is watched for a change that should not come, as a part of what a real one is.
    """

    plugin_dir: Path
    pod_resources: Path
    pace: float

    async def create(self, pod: ScriptPod) -> str:
        """Create a pod that is bound to the node already; its UID."""

    async def status(self, name: str) -> Mapping[str, Any] | None:
        """Its status; None when there is no such pod."""

    async def delete(self, name: str, *, force: bool) -> None:
        """Begin to delete a pod, with a grace of one second or by force."""

    async def node_status(self) -> Mapping[str, Any]:
        """The Node's status."""

    async def kill(self) -> None:
        """Kill the kubelet."""

    async def start(self) -> None:
        """Start the kubelet."""

    async def restart(self) -> None:
        """Kill the kubelet and start it again."""

    async def api_away(self, away: bool) -> None:
        """Take the API server away, or bring it back."""


class RecordingPlugin(ScriptedPlugin):
    """Does as told, and remembers in which order it was called."""

    def __init__(self, allocator: SimpleAllocator) -> None:
        super().__init__(allocator)
        self.calls: list[str] = []
        self.on_allocate: Callable[[], None] = lambda: None
        self.on_question: Callable[[int], Awaitable[None]] | None = None

    async def GetPreferredAllocation(  # noqa: N802
        self, request: pb.PreferredAllocationRequest, context: Any
    ) -> pb.PreferredAllocationResponse:
        if self.on_question is not None:
            await self.on_question(request.container_requests[0].allocation_size)
        return await super().GetPreferredAllocation(request, context)

    async def Allocate(self, request: pb.AllocateRequest, context: Any) -> pb.AllocateResponse:  # noqa: N802
        self.on_allocate()
        return await super().Allocate(request, context)

    async def GetDevicePluginOptions(self, request: pb.Empty, context: Any) -> pb.DevicePluginOptions:  # noqa: N802
        self.calls.append("GetDevicePluginOptions")
        return await super().GetDevicePluginOptions(request, context)

    async def ListAndWatch(self, request: pb.Empty, context: Any) -> None:  # noqa: N802
        self.calls.append("ListAndWatch")
        await super().ListAndWatch(request, context)


class Step(NamedTuple):
    """One step of the script: a name that says what is asked, and how to ask it."""

    name: str
    run: Callable[["Play"], Awaitable[Answer]]


@dataclass
class Admitted:
    """One pod, what was asked of the plugin for it, and what became of it."""

    pod: ScriptPod
    status: Mapping[str, Any]
    preferred: list[tuple[frozenset[str], frozenset[str], int]]
    allocated: list[frozenset[str]]
    listed: dict[str, frozenset[str]] = field(default_factory=dict)
    written: dict[str, frozenset[str]] = field(default_factory=dict)

    def facts(self, *without: str) -> Answer:
        """Everything about it that is the same in every run, but for relations left to chance."""
        answer: Answer = {
            "phase": self.status.get("phase"),
            "offered, must include, size": [
                (len(available), len(must), size) for available, must, size in self.preferred
            ],
            "allocated": [len(ids) for ids in self.allocated],
            "one card": [len(cards_of(ids)) == 1 for ids in self.allocated],
            "listed": {name: self._named(ids) for name, ids in sorted(self.listed.items())},
            "in the checkpoint": {name: self._named(ids) for name, ids in sorted(self.written.items())},
        }
        if self.status.get("reason"):
            answer |= {"reason": self.status["reason"], "message": self.status.get("message")}
        relations = {
            f"{a} {b}": relation(self.allocated[a], self.allocated[b])
            for a, b in itertools.combinations(range(len(self.allocated)), 2)
            if f"{a} {b}" not in without
        }
        musts = [relation(must, self.allocated[0]) for _, must, _ in self.preferred if must]
        return answer | ({"relations": relations} if relations else {}) | ({"must": musts} if musts else {})

    def _named(self, ids: frozenset[str]) -> str:
        for number, allocated in enumerate(self.allocated):
            if ids == allocated:
                return f"allocation {number}"
        return f"{len(ids)} others"


def relation(one: frozenset[str], other: frozenset[str]) -> str:
    """Name how two sets lie to each other."""
    if one == other:
        return "same"
    if one < other:
        return "part of"
    if one > other:
        return "contains"
    common = len(one & other)
    return f"{common} in common" if common else "apart"


class Play:
    """One run of the script."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.allocator = SimpleAllocator(CARDS, UNITS)
        self.plugin = RecordingPlugin(self.allocator)
        self.checkpoint = CheckpointReader(driver.plugin_dir)
        self.registrar = self._new_registrar()
        self._task: asyncio.Task[None] | None = None
        self._names: set[str] = set()
        self._uids: dict[str, str] = {}

    @property
    def socket(self) -> Path:
        return self.driver.plugin_dir / ENDPOINT

    async def __aenter__(self) -> Self:
        self.start_plugin()
        await self.registered()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop_plugin()

    # The plugin

    def _new_registrar(self) -> Registrar:
        return Registrar(
            self.plugin,
            self.driver.plugin_dir,
            ENDPOINT,
            RESOURCE,
            on_registered=lambda: None,
            on_kubelet_restart=lambda: None,
        )

    def start_plugin(self) -> None:
        self.registrar = self._new_registrar()
        self._task = asyncio.create_task(self.registrar.run())

    async def stop_plugin(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def registered(self, allocatable: int = ALL) -> None:
        """Wait until the plugin is registered and the Node says so."""

        async def done() -> bool:
            return self.registrar.is_registered and await self.amounts() == (ALL, allocatable)

        await until(done, f"allocatable {allocatable}")

    def new_plugin(self) -> DevicePlugin:
        """Make a second plugin with the same devices, for somebody to register by hand."""
        return DevicePlugin(self.allocator)

    # The node

    async def amounts(self) -> tuple[int, int]:
        """Capacity and allocatable of the script's resource on the Node."""
        status = await self.driver.node_status()
        return tuple(int((status.get(which) or {}).get(RESOURCE, 0)) for which in ("capacity", "allocatable"))  # type: ignore[return-value]

    async def becomes(self, capacity: int, allocatable: int) -> tuple[int, int]:
        """Wait until the Node says so, and return what it says."""

        async def same() -> bool:
            return await self.amounts() == (capacity, allocatable)

        await until(same, f"capacity {capacity}, allocatable {allocatable}")
        return await self.amounts()

    async def stays(self, capacity: int, allocatable: int, for_s: float = 1.5) -> bool:
        """Tell whether the Node says so all the while, `for_s` seconds of a real kubelet."""
        end = time.monotonic() + for_s * self.driver.pace
        while time.monotonic() < end:
            if await self.amounts() != (capacity, allocatable):
                return False
            await asyncio.sleep(0.1)
        return True

    async def list(self) -> PodResourcesList | None:
        """Ask PodResources; None while nobody answers.

        A kubelet refuses more than a hundred questions a second, and whoever polls may have used these up.
        """
        while True:
            try:
                return await list_pod_resources(self.driver.pod_resources)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                    return None
                await asyncio.sleep(0.05)

    # The checkpoint

    @property
    def checkpoint_path(self) -> Path:
        return self.driver.plugin_dir / CHECKPOINT_NAME

    def written(self, name: str, checkpoint: Checkpoint | None = None) -> dict[str, frozenset[str]]:
        """What a checkpoint, that of now if none is given, says of one pod's containers; with ended pods."""
        checkpoint = checkpoint or self.checkpoint.read()
        return {
            entry.container: entry.ids
            for entry in (checkpoint.entries if checkpoint is not None else ())
            if entry.uid == self._uids[name] and entry.resource == RESOURCE
        }

    async def another_list(self) -> Checkpoint:
        """Send the list of devices once more, and return the checkpoint that the kubelet wrote upon it."""
        before = self.checkpoint.read()

        async def new() -> Checkpoint | None:
            checkpoint = self.checkpoint.read()
            return (
                checkpoint
                if before is None or checkpoint is None or checkpoint.file_version != before.file_version
                else None
            )

        self.plugin.send_devices()
        found: Checkpoint = await until(new, "the kubelet writes its checkpoint")
        return found

    # Pods

    async def create(self, pod: ScriptPod) -> None:
        """Create a pod; what becomes of it is left to the caller."""
        self._names.add(pod.name)
        self._uids[pod.name] = await self.driver.create(pod)

    async def admit(self, pod: ScriptPod) -> Admitted:
        """Create a pod, wait until the kubelet has decided, and collect what it asked and says."""
        preferred, allocated = len(self.allocator.preferred_calls), len(self.allocator.allocate_calls)
        await self.create(pod)
        wanted = {"Succeeded", "Failed"} if pod.ends else {"Running", "Failed"}
        status = await self.phase(pod.name, wanted)
        listed = await self.list()
        assert listed is not None
        return Admitted(
            pod,
            status,
            self.allocator.preferred_calls[preferred:],
            self.allocator.allocate_calls[allocated:],
            self.listed(listed, pod.name),
            self.written(pod.name),
        )

    async def phase(self, name: str, wanted: set[str]) -> Mapping[str, Any]:
        """Wait for one of these phases, and return the status."""

        async def there() -> Mapping[str, Any] | None:
            status = await self.driver.status(name)
            return status if status is not None and status.get("phase") in wanted else None

        found: Mapping[str, Any] = await until(there, f"{name} {wanted}")
        return found

    def listed(self, answer: PodResourcesList, name: str) -> dict[str, frozenset[str]]:
        """What PodResources says of one pod's containers."""
        return {
            container: frozenset(devices.get(RESOURCE, ()))
            for (_, pod, container), devices in answer.entries.items()
            if pod == name
        }

    async def listed_again(self, before: PodResourcesList) -> bool:
        """Wait until PodResources lists this step's pods as before; tell whether it was empty meanwhile.

        The kubelet may have listed pods of an earlier step before, which it has let go since.
        """
        empty = False

        def of_pods_there(answer: PodResourcesList) -> dict[tuple[str, str, str], object]:
            return {key: devices for key, devices in answer.entries.items() if key[1] in self._names}

        async def same() -> bool:
            nonlocal empty
            answer = await self.list()
            if answer is None or answer.kubelet == before.kubelet:
                return False
            empty = empty or not answer.pods
            return of_pods_there(answer) == of_pods_there(before)

        await until(same, "listed again")
        return empty

    async def delete(self, name: str, *, force: bool) -> None:
        """Delete a pod and wait until the API server has forgotten it."""
        await self.driver.delete(name, force=force)

        async def gone() -> bool:
            return await self.driver.status(name) is None

        await until(gone, f"{name} gone")
        self._names.discard(name)

    async def left_the_list(self, name: str) -> None:
        """Wait until PodResources does not list a pod: the kubelet counts it as ended."""

        async def gone() -> bool:
            answer = await self.list()
            return answer is not None and ("default", name) not in answer.pods

        await until(gone, f"{name} not listed")

    async def remove(self, name: str, *, force: bool = True) -> None:
        """Delete a pod and wait until the API server and PodResources have forgotten it."""
        await self.delete(name, force=force)
        await self.left_the_list(name)

    async def clean(self) -> None:
        """Leave nothing behind."""
        for name in tuple(self._names):
            await self.remove(name)
        self.plugin.answer = None
        self.plugin.on_allocate = lambda: None
        self.plugin.on_question = None
        self.allocator.refuse = None
        self.allocator.health = dict.fromkeys(self.allocator.health, True)
        self.plugin.send_devices()
        if self._task is None:
            self.start_plugin()
        await self.registered()
