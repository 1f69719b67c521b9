"""A life of the stand-in kubelet: from its start, which wipes every socket, to its end.

Everything here is lost when the kubelet restarts; what stays is the container runtime, the checkpoint and
whatever its source of pods says.
"""

import asyncio
import random
import stat
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc

from deviceplugin.kubelet.wire import deviceplugin_pb2_grpc as plugin_rpc
from deviceplugin.kubelet.wire import podresources_pb2_grpc as resources_rpc
from kubeapi.objects import TERMINAL_PHASES
from standins.kubelet import checkpoint
from standins.kubelet.devices import AdmissionError, DeviceManager
from standins.kubelet.plugins import PluginRegistry
from standins.kubelet.podresources import PodResourcesServer
from standins.kubelet.pods import Container, Pod, effective_request
from standins.kubelet.runtime import ContainerRecord, Runtime

UNEXPECTED: Final = "UnexpectedAdmissionError"
_START_AGAIN_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class PodStatus:
    """What the kubelet says of a pod.

    Attributes:
        reason: why the pod was refused; empty otherwise.
        gone: the containers are stopped and the pod may leave the API server.
    """

    phase: str
    reason: str = ""
    message: str = ""
    gone: bool = False


@dataclass(frozen=True, slots=True)
class Sockets:
    """Where a kubelet serves: its device plugin folder and its PodResources socket."""

    plugins: Path
    pod_resources: Path

    @property
    def registration(self) -> Path:
        return self.plugins / "kubelet.sock"


@dataclass(frozen=True, slots=True)
class Delays:
    """How long the machine takes, in seconds.

    Attributes:
        stop_s: from a graceful deletion until the containers have stopped.
        kill_s: from a force deletion, which PodResources shows at once, until they have (0.7 measured).
    """

    stop_s: float = 0.0
    kill_s: float = 0.0


class Process:
    """Process of a kubelet.

    Args:
        chance: decides where the kubelet's choice is arbitrary.
        on_change: called after anything that may change capacity.
        list_terminal: List shows ended pods too, as kubelets before 1.36 do.
        by_resource: a plugin is known by its resource alone, as by kubelets before 1.37.
    """

    def __init__(
        self,
        sockets: Sockets,
        runtime: Runtime,
        chance: random.Random,
        *,
        report: Callable[[Pod, PodStatus], None],
        on_change: Callable[[], None],
        delays: Delays,
        list_terminal: bool = False,
        by_resource: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.devices = DeviceManager(
            chance,
            clock,
            checkpoint.read(sockets.plugins),
            lambda now: checkpoint.write(sockets.plugins, now),
        )
        self.registry = PluginRegistry(sockets.plugins, self.devices, on_change, by_resource=by_resource)
        self.synced = asyncio.Event()
        self._sockets = sockets
        self._runtime = runtime
        self._report = report
        self._on_change = on_change
        self._delays = delays
        self._list_terminal = list_terminal
        self._clock = clock
        self._pods: dict[str, Pod] = {}
        self._statuses: dict[str, PodStatus] = {}
        self._admitting = asyncio.Lock()
        self._stopping: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers: list[Any] = []
        # Known once, at the start: containers that start later do not count as "already running".
        self._ran_before = {key for key, record in runtime.containers.items() if record.running}

    # --- life -----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Wipe every socket in the plugin folder, plugins' own included, and serve."""
        self._sockets.plugins.mkdir(parents=True, exist_ok=True)
        self._sockets.pod_resources.parent.mkdir(parents=True, exist_ok=True)
        self._sockets.pod_resources.unlink(missing_ok=True)
        service = PodResourcesServer(
            self.devices,
            listed=lambda: tuple(self._pods.values()) if self._list_terminal else self.active_pods(),
            known=lambda: tuple(self._pods.values()),
            refresh=self._free_inactive,
            clock=self._clock,
        )
        resources = grpc.aio.server()
        resources_rpc.add_PodResourcesListerServicer_to_server(service, resources)  # type: ignore[no-untyped-call]
        await self._serve(resources, self._sockets.pod_resources)
        for path in self._sockets.plugins.iterdir():
            if stat.S_ISSOCK(path.lstat().st_mode):
                path.unlink()
        registration = grpc.aio.server()
        plugin_rpc.add_RegistrationServicer_to_server(self.registry, registration)  # type: ignore[no-untyped-call]
        await self._serve(registration, self._sockets.registration)

    async def _serve(self, server: Any, path: Path) -> None:
        server.add_insecure_port(f"unix:{path}")
        await server.start()
        self._servers.append(server)

    async def end(self, *, leave_sockets: bool) -> None:
        """End as a process does: connections break, nothing is said to anybody.

        Args:
            leave_sockets: the socket files stay, without a listener, as after a kill.
        """
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.registry.close()
        for path in (self._sockets.registration, self._sockets.pod_resources):
            # gRPC removes the file of a server that stops; a second link to it survives that.
            if leave_sockets and path.is_socket():
                path.with_suffix(".left").hardlink_to(path)
        for server in self._servers:
            await server.stop(None)
        for path in (self._sockets.registration, self._sockets.pod_resources):
            if leave_sockets and path.with_suffix(".left").exists():
                path.with_suffix(".left").rename(path)

    # --- pods ------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether the source of pods has spoken since the start; before that nothing is ever freed."""
        return self.synced.is_set()

    def active_pods(self) -> tuple[Pod, ...]:
        """Return the pods that have not ended, for the API server or for this kubelet."""
        return tuple(pod for pod in self._pods.values() if not self._ended(pod))

    def pod(self, uid: str) -> Pod | None:
        return self._pods.get(uid)

    def status(self, uid: str) -> PodStatus | None:
        return self._statuses.get(uid)

    async def sync(self, pods: Iterable[Pod]) -> None:
        """Take in a complete list: what is new is admitted, what is missing is removed."""
        wanted = {pod.uid: pod for pod in pods}
        for uid in [uid for uid in self._pods if uid not in wanted]:
            self.remove(uid)
        for pod in wanted.values():
            if pod.uid in self._pods:
                self.update(pod)
        await self.add([pod for pod in wanted.values() if pod.uid not in self._pods])
        if not self.ready:
            self.synced.set()
            for uid in self._runtime.running_pods() - wanted.keys():
                self._runtime.stop_pod(uid)

    async def add(self, pods: Sequence[Pod]) -> None:
        """Admit a batch, oldest first, one at a time; what is refused has failed for good."""
        async with self._admitting:
            for pod in sorted(pods, key=lambda pod: (pod.created, pod.namespace, pod.name)):
                self._pods[pod.uid] = pod
                if not pod.terminal:
                    await self._admit(pod)
                if pod.deleting:
                    self._terminate(pod)

    def update(self, pod: Pod) -> None:
        """Take in a change of a known pod; a deletion that has begun stops its containers."""
        self._pods[pod.uid] = pod
        if pod.deleting:
            self._terminate(pod)
        elif pod.terminal:
            self._runtime.stop_pod(pod.uid)

    def remove(self, uid: str) -> None:
        """Forget a pod that left its source; its containers are killed a little later."""
        if self._pods.pop(uid, None) is None:
            return
        self._statuses.pop(uid, None)
        self._spawn(self._kill(uid))

    def finish(self, uid: str, phase: str) -> None:
        """End a pod's containers by themselves: the pod becomes Succeeded or Failed."""
        pod = self._pods[uid]
        self._runtime.stop_pod(uid)
        self._say(pod, PodStatus(phase))

    # --- inside ---------------------------------------------------------------------------------------

    def _ended(self, pod: Pod) -> bool:
        status = self._statuses.get(pod.uid)
        if status is not None and (status.gone or status.phase in TERMINAL_PHASES):
            return True
        # A pod in a terminal phase that this kubelet is still stopping counts as active.
        return pod.terminal and not (pod.deleting and pod.uid in self._runtime.running_pods())

    def _free_inactive(self) -> None:
        if self.ready:
            self.devices.free_inactive({pod.uid for pod in self.active_pods()})
            self._on_change()

    async def _admit(self, pod: Pod) -> None:
        try:
            for container in pod.containers:
                await self.devices.allocate(
                    pod.uid,
                    container,
                    lambda: {other.uid for other in self.active_pods()} if self.ready else None,
                    running=(pod.uid, container.name) in self._ran_before,
                )
            self._check_sum(pod)
        except AdmissionError as error:
            reason, message = refusal(error)
            self._runtime.stop_pod(pod.uid)
            self._say(pod, PodStatus("Failed", reason, message))
        else:
            if not await self._start_containers(pod):
                self._say(pod, PodStatus("Pending"))
                self._spawn(self._keep_starting(pod))
        self._on_change()

    def _check_sum(self, pod: Pod) -> None:
        """Compare sums with allocatable, as the kubelet does after devices were given.

        Resources that the node does not have at all are passed over: such a pod runs without devices.
        """
        if not self.ready:
            return
        _, allocatable, _ = self.devices.capacity()
        for resource in {name for container in pod.containers for name in container.limits}:
            if resource not in allocatable:
                continue
            asked = effective_request(pod, resource)
            used = sum(
                effective_request(other, resource) for other in self.active_pods() if other.uid != pod.uid
            )
            held = any(resource in self.devices.held(pod.uid, each.name) for each in pod.containers)
            room = max(allocatable[resource], len(self.devices.in_use(resource)) if held else 0)
            if asked and used + asked > room:
                raise OutOfError(resource, asked, used, room)

    async def _start_containers(self, pod: Pod) -> bool:
        """Start what has not been started; False when a plugin does not let a container start yet."""
        for container in pod.containers:
            if (pod.uid, container.name) not in self._runtime.containers:
                try:
                    await self.devices.pre_start(pod.uid, container)
                except AdmissionError:
                    return False
                self._runtime.start(pod.uid, self._record(pod, container))
        self._say(pod, PodStatus("Running"))
        return True

    async def _keep_starting(self, pod: Pod) -> None:
        while True:
            await asyncio.sleep(_START_AGAIN_S)
            if pod.uid not in self._pods or await self._start_containers(pod):
                return

    def _record(self, pod: Pod, container: Container) -> ContainerRecord:
        held = self.devices.held(pod.uid, container.name)
        envs: dict[str, str] = {}
        for one in held.values():
            envs = {**one.response.envs, **envs}
        return ContainerRecord(
            namespace=pod.namespace,
            pod=pod.name,
            name=container.name,
            kind=container.kind,
            envs=envs,
            cdi_devices=tuple(device.name for one in held.values() for device in one.response.cdi_devices),
            devices={resource: one.ids for resource, one in held.items()},
            running=True,
        )

    def _terminate(self, pod: Pod) -> None:
        status = self._statuses.get(pod.uid)
        if pod.uid not in self._stopping and (status is None or not status.gone):
            self._stopping.add(pod.uid)
            self._spawn(self._stop(pod))

    async def _stop(self, pod: Pod) -> None:
        await asyncio.sleep(self._delays.stop_s)
        self._stopping.discard(pod.uid)
        self._runtime.stop_pod(pod.uid)
        before = self._statuses.get(pod.uid)
        phase = before.phase if before is not None and before.phase in TERMINAL_PHASES else "Succeeded"
        if self._pods.get(pod.uid) is not None:
            self._say(pod, PodStatus(phase, gone=True))

    async def _kill(self, uid: str) -> None:
        await asyncio.sleep(self._delays.kill_s)
        self._runtime.stop_pod(uid)

    def _say(self, pod: Pod, status: PodStatus) -> None:
        self._statuses[pod.uid] = status
        self._report(pod, status)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class OutOfError(AdmissionError):
    """The sum of what the node's pods ask for is above what it has."""

    def __init__(self, resource: str, asked: int, used: int, room: int) -> None:
        self.resource = resource
        super().__init__(
            f"Node didn't have enough resource: {resource}, "
            f"requested: {asked}, used: {used}, capacity: {room}"
        )


def refusal(error: AdmissionError) -> tuple[str, str]:
    """Word a refusal as the kubelet does: the pod status' reason and message."""
    if isinstance(error, OutOfError):
        return f"OutOf{error.resource}", f"Pod was rejected: {error}"
    return UNEXPECTED, f"Pod was rejected: Allocate failed due to {error}, which is unexpected"
