"""A kubelet to run gpupack against, without a machine to spare: real gRPC on real unix sockets.

The stand-in behaves as kubelet 1.37 (containerd, Topology Manager policy `none`) as far as a device plugin
can tell. That was measured on a real one, and the tests compare both by the same script of calls. Other
things that a kubelet does are not here: no images, no probes, no restarts of containers, no eviction. Each
rule stands where it is kept:

- how device IDs are chosen, reused and freed, and when that is written down: `devices`;
- the checkpoint, the file in which it is written down: `checkpoint`;
- registration, dial-back, streams and the double registration that ends in 0: `plugins`;
- what PodResources shows, and what it hides: `podresources`;
- start, admission one pod at a time, refusal, termination: `process`;
- pods, statuses and Node against an API server: `api`.

Nothing in it knows of gpupack; any device plugin can be tested with it.
"""

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from standins.kubelet import checkpoint
from standins.kubelet.api import ApiLink, status_fields
from standins.kubelet.pods import Pod, read_pod
from standins.kubelet.process import Delays, PodStatus, Process, Sockets
from standins.kubelet.runtime import ContainerRecord, Runtime


@dataclass(frozen=True, slots=True)
class Admission:
    """What became of a pod.

    Attributes:
        reason: the status' reason when it was refused: `UnexpectedAdmissionError`, `OutOf<resource>`.
        message: the status' message, with the device plugin's own words in it.
    """

    uid: str
    admitted: bool
    reason: str = ""
    message: str = ""


class Kubelet:
    """Machine with a kubelet that can be killed and started again, and containers that run on meanwhile.

    With `api_url` its pods come from that API server, as does every deletion, and statuses and capacity go
    there. Without, pods are given directly (`admit`, `delete`, `remove`), and this object plays the API
    server's part. `api_away` then keeps a restarted kubelet from learning of its pods.

    Args:
        folder: everything is below it: `device-plugins/kubelet.sock`, `pod-resources/kubelet.sock`. Keep its
            path short, a socket's path has at most 107 bytes.
        sync_delay_s: from a restart until the kubelet knows its pods; PodResources is empty until then (about
            a second on a real one).
        list_terminal: PodResources lists ended pods too, as before 1.36.
        by_resource: a plugin is known by its resource alone, as before 1.37.
    """

    def __init__(
        self,
        folder: Path,
        node_name: str,
        api_url: str | None = None,
        *,
        seed: int = 0,
        sync_delay_s: float = 1.0,
        delays: Delays | None = None,
        list_terminal: bool = False,
        by_resource: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.node_name = node_name
        self._sockets = Sockets(folder / "device-plugins", folder / "pod-resources" / "kubelet.sock")
        self._api_url = api_url
        self._chance = random.Random(seed)  # noqa: S311 - chance, not secrecy
        self._sync_delay_s = sync_delay_s
        self._delays = delays or Delays()
        self._list_terminal = list_terminal
        self._by_resource = by_resource
        self._clock = clock
        self._runtime = Runtime()
        self._manifests: dict[str, dict[str, Any]] = {}
        self._api_here = asyncio.Event()
        self._api_here.set()
        self._leaving: dict[str, asyncio.Event] = {}
        self._process: Process | None = None
        self._link: ApiLink | None = None
        self._source: asyncio.Task[None] | None = None
        self._starts = 0

    # --- life ------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the kubelet: every socket in the plugin folder is wiped, the plugins' too."""
        restarted = self._starts > 0
        self._starts += 1
        no_checkpoint = not (self.device_plugin_dir / checkpoint.CHECKPOINT_NAME).exists()
        process = Process(
            self._sockets,
            self._runtime,
            self._chance,
            report=self._report,
            on_change=self._on_change,
            delays=self._delays,
            list_terminal=self._list_terminal,
            by_resource=self._by_resource,
            clock=self._clock,
        )
        self._process = process
        await process.start()
        delay_s = self._sync_delay_s if restarted else 0.0
        if self._api_url is None:
            self._source = asyncio.create_task(self._sync_local(process, delay_s))
            self._source.add_done_callback(_complain)
            return
        self._link = ApiLink(
            self._api_url,
            self.node_name,
            process,
            sync_delay_s=delay_s,
            zero_resources=no_checkpoint,
        )
        self._source = asyncio.create_task(self._link.run())
        self._source.add_done_callback(_complain)

    async def kill(self) -> None:
        """End the kubelet as SIGKILL does: connections break, its socket files stay, containers run on."""
        await self._end(leave_sockets=True)

    async def stop(self) -> None:
        """End the kubelet for good and take its sockets away."""
        await self._end(leave_sockets=False)

    async def restart(self, *, lose_checkpoint: bool = False) -> None:
        """Kill the kubelet and start it again.

        Args:
            lose_checkpoint: kubelet_internal_checkpoint is deleted in between. The kubelet then no longer
                knows who holds what, and lists running pods without devices. The kubelet zeroes the extended
                resources of its Node.
        """
        await self.kill()
        if lose_checkpoint:
            (self.device_plugin_dir / checkpoint.CHECKPOINT_NAME).unlink(missing_ok=True)
        await self.start()

    async def _end(self, *, leave_sockets: bool) -> None:
        process, self._process, self._link = self._process, None, None
        if self._source is not None:
            self._source.cancel()
            await asyncio.gather(self._source, return_exceptions=True)
        if process is not None:
            await process.end(leave_sockets=leave_sockets)

    # --- what can be seen --------------------------------------------------------------------------------

    @property
    def device_plugin_dir(self) -> Path:
        return self._sockets.plugins

    @property
    def pod_resources_socket(self) -> Path:
        return self._sockets.pod_resources

    @property
    def containers(self) -> Mapping[tuple[str, str], ContainerRecord]:
        """Every container ever started, by pod UID and name, with its environment and devices."""
        return self._runtime.containers

    @property
    def registrations(self) -> int:
        """How many Register calls came since the kubelet started."""
        return self._alive().registry.registrations

    @property
    def streams(self) -> int:
        return self._alive().registry.streams

    def running_pods(self) -> frozenset[str]:
        """List the UIDs of pods with a running container: those whose cgroups would exist."""
        return self._runtime.running_pods()

    def capacity(self) -> dict[str, int]:
        """Count devices by resource, the unhealthy ones too."""
        return self._alive().devices.capacity()[0]

    def allocatable(self) -> dict[str, int]:
        return self._alive().devices.capacity()[1]

    def held(self, uid: str, container: str) -> dict[str, frozenset[str]]:
        """Return what the device manager says that a container holds: ordinary init containers too."""
        held = self._alive().devices.held(uid, container)
        return {resource: one.ids for resource, one in held.items()}

    def in_use(self, resource: str) -> frozenset[str]:
        """Return the IDs that no further container would get now; those of ended pods stay until missed."""
        return self._alive().devices.in_use(resource)

    def admission(self, uid: str) -> Admission | None:
        """Return what became of a pod; None while this kubelet has not decided, or no longer knows it."""
        status = self._alive().status(uid)
        if status is None:
            return None
        return Admission(uid, not status.reason, status.reason, status.message)

    # --- pods -------------------------------------------------------------------------------------------

    @property
    def api_away(self) -> bool:
        """Whether a restarted kubelet is kept from learning of its pods."""
        return not self._api_here.is_set()

    @api_away.setter
    def api_away(self, away: bool) -> None:
        if away:
            self._api_here.clear()
        else:
            self._api_here.set()

    async def synced(self) -> None:
        """Wait until the kubelet knows its pods after a start."""
        await self._alive().synced.wait()

    async def admit(self, manifest: Mapping[str, Any]) -> Admission:
        """Give the kubelet a pod that is bound to it, and wait for its decision."""
        return (await self.admit_batch([manifest]))[0]

    async def admit_batch(self, manifests: Sequence[Mapping[str, Any]]) -> list[Admission]:
        """Give the kubelet several pods at once: it takes the oldest first, by creationTimestamp."""
        self._without_api("admit")
        await self.synced()
        pods = [read_pod(manifest) for manifest in manifests]
        for pod, manifest in zip(pods, manifests, strict=True):
            self._manifests[pod.uid] = deepcopy(dict(manifest))
        process = self._alive()
        await process.add(pods)
        decided = [self.admission(pod.uid) for pod in pods]
        return [admission for admission in decided if admission is not None]

    def finish(self, uid: str, phase: str = "Succeeded") -> None:
        """Let a pod's containers end by themselves."""
        self._alive().finish(uid, phase)

    async def delete(self, uid: str) -> None:
        """Delete a pod gracefully: its containers stop, its status becomes terminal, then it is gone."""
        self._without_api("delete")
        left = self._leaving[uid] = asyncio.Event()
        manifest = self._manifests[uid]
        manifest["metadata"]["deletionTimestamp"] = "now"
        self._alive().update(read_pod(manifest))
        await left.wait()

    def remove(self, uid: str) -> None:
        """Delete a pod by force: it leaves PodResources at once, its containers are killed a little later."""
        self._without_api("remove")
        del self._manifests[uid]
        self._alive().remove(uid)

    # --- inside -----------------------------------------------------------------------------------------

    def _alive(self) -> Process:
        if self._process is None:
            raise RuntimeError(f"the kubelet of {self.node_name} is not running: start it first")
        return self._process

    def _without_api(self, what: str) -> None:
        if self._api_url is not None:
            raise RuntimeError(
                f"{what}: pods of {self.node_name} come from the API server at {self._api_url}"
            )

    async def _sync_local(self, process: Process, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        await self._api_here.wait()
        await process.sync([read_pod(manifest) for manifest in self._manifests.values()])

    def _report(self, pod: Pod, status: PodStatus) -> None:
        if self._link is not None:
            self._link.report(pod, status)
            return
        manifest = self._manifests.get(pod.uid)
        if manifest is None:
            return
        manifest["status"] = status_fields(pod, status)
        if status.gone:
            del self._manifests[pod.uid]
            self._alive().remove(pod.uid)
            if pod.uid in self._leaving:
                self._leaving.pop(pod.uid).set()

    def _on_change(self) -> None:
        if self._link is not None:
            self._link.capacity_changed()


def _complain(task: asyncio.Task[None]) -> None:
    """Say at once what ended a kubelet's source of pods: without it nothing more would happen, silently."""
    error = None if task.cancelled() else task.exception()
    if error is not None:
        task.get_loop().call_exception_handler(
            {"message": "the stand-in kubelet lost its source of pods", "exception": error, "task": task}
        )
