"""The stand-in kubelet's device manager: which IDs are healthy, who holds which, and how they are chosen.

The rules are those of kubelet 1.37 (measured, or read in its source), Topology Manager policy `none`:

- A container's IDs come first from those of the pod's ordinary init containers, a random subset, without
  asking the plugin. For what is still needed GetPreferredAllocation is asked. Its answer is taken as far
  as it is available. Fewer IDs than needed are topped up at random over all cards. From more a random subset
  is taken. An error of the plugin fails the pod.
- Ordinary init containers' IDs stay reusable for every later container until a sidecar or a main container
  took them.
- The devices of pods that are no longer active are freed lazily: at the next admission that asks for
  devices, and whenever PodResources is listed. Not before every source of pods has spoken.
- A plugin that went away leaves its devices as unhealthy, capacity stays for 5 minutes.
- After a restart the checkpoint says who holds what, and which resources exist: with no device yet.
- The checkpoint is written at the end of a container's allocation, at each list of devices and when a
  resource is dropped. What was freed since, or never got that far, is known in memory only.
"""

import random
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from deviceplugin.kubelet.plugin_service import HEALTHY
from deviceplugin.kubelet.wire import deviceplugin_pb2 as pb
from standins.kubelet.checkpoint import CheckpointFile, Held
from standins.kubelet.pods import Container

STOP_GRACE_S: Final = 300.0


class AdmissionError(Exception):
    """A container did not get its devices; the pod fails for good."""


class Endpoint(Protocol):
    """The plugin of one resource, as far as the device manager needs it; errors are `AdmissionError`."""

    @property
    def options(self) -> pb.DevicePluginOptions: ...

    async def preferred(
        self, available: Collection[str], required: Collection[str], size: int
    ) -> set[str]: ...

    async def allocate(self, ids: Collection[str]) -> pb.ContainerAllocateResponse: ...

    async def pre_start(self, ids: Collection[str]) -> None: ...


PodDevices = dict[str, dict[str, dict[str, Held]]]


@dataclass(slots=True)
class _Resource:
    healthy: set[str] = field(default_factory=set)
    unhealthy: set[str] = field(default_factory=set)
    endpoint: Endpoint | None = None
    stopped_at: float | None = None


class DeviceManager:
    """The device manager of one kubelet process; a restarted kubelet has a new one.

    Args:
        chance: where the kubelet's choice is arbitrary, this decides.
        checkpoint: what the process before left on disk, None when there is nothing.
    """

    def __init__(
        self,
        chance: random.Random,
        clock: Callable[[], float],
        checkpoint: CheckpointFile | None,
        write: Callable[[CheckpointFile], None],
    ) -> None:
        self._chance = chance
        self._clock = clock
        self._write_down = write
        self._resources: dict[str, _Resource] = {}
        self._allocated: dict[str, set[str]] = {}
        self._reusable: tuple[str, dict[str, set[str]]] = ("", {})
        self._pods: PodDevices = {}
        if checkpoint is not None:
            self._pods = {
                uid: {container: dict(held) for container, held in containers.items()}
                for uid, containers in checkpoint.pods.items()
            }
            for resource in checkpoint.resources:
                self._resources[resource] = _Resource(stopped_at=clock())
            self._regenerate()

    # --- plugins ---------------------------------------------------------------------------------------

    def plugin_connected(self, resource: str, endpoint: Endpoint) -> None:
        """Add a plugin; its devices come with its first list."""
        known = self._resources.setdefault(resource, _Resource())
        known.endpoint, known.stopped_at = endpoint, None

    def plugin_listed(self, resource: str, devices: Iterable[pb.Device]) -> None:
        """Apply a list of devices; IDs missing from it are gone, but their containers run on."""
        known = self._resources.setdefault(resource, _Resource())
        known.healthy, known.unhealthy = set(), set()
        for device in devices:
            (known.healthy if device.health == HEALTHY else known.unhealthy).add(device.ID)
        self._write()

    def plugin_disconnected(self, resource: str) -> None:
        """Count every device of the resource as unhealthy, and start its 5 minutes of grace."""
        known = self._resources.get(resource)
        if known is not None and known.endpoint is not None:
            known.unhealthy |= known.healthy
            known.healthy = set()
            known.stopped_at = self._clock()

    def capacity(self) -> tuple[dict[str, int], dict[str, int], set[str]]:
        """Count devices; drop what has been without a plugin for more than 5 minutes.

        Returns:
            Capacity (healthy and unhealthy) and allocatable (healthy) by resource; and the resources that
            were just dropped, which the node's status then shows as 0.
        """
        now = self._clock()
        dropped = {
            name
            for name, known in self._resources.items()
            if known.stopped_at is not None and now - known.stopped_at > STOP_GRACE_S
        }
        for name in dropped:
            del self._resources[name]
        if dropped:
            self._write()
        capacity = {name: len(known.healthy | known.unhealthy) for name, known in self._resources.items()}
        allocatable = {name: len(known.healthy) for name, known in self._resources.items()}
        return capacity, allocatable, dropped

    def healthy(self) -> dict[str, frozenset[str]]:
        return {name: frozenset(known.healthy) for name, known in self._resources.items()}

    # --- who holds what ---------------------------------------------------------------------------------

    def _write(self) -> None:
        self._write_down(
            CheckpointFile(
                pods={
                    uid: {name: dict(held) for name, held in pod.items()} for uid, pod in self._pods.items()
                },
                resources=self.healthy(),
            )
        )

    def held(self, uid: str, container: str) -> Mapping[str, Held]:
        return self._pods.get(uid, {}).get(container, {})

    def in_use(self, resource: str) -> frozenset[str]:
        """Return the IDs of a resource that no further container would get now."""
        return frozenset(self._allocated.get(resource, ()))

    def free_inactive(self, active: Collection[str]) -> None:
        gone = self._pods.keys() - set(active)
        if gone:
            for uid in gone:
                del self._pods[uid]
            self._regenerate()

    def _regenerate(self) -> None:
        self._allocated = {}
        for containers in self._pods.values():
            for held_by_resource in containers.values():
                for resource, held in held_by_resource.items():
                    self._allocated.setdefault(resource, set()).update(held.ids)

    # --- admission ---------------------------------------------------------------------------------------

    async def allocate(
        self, uid: str, container: Container, active: Callable[[], Collection[str] | None], *, running: bool
    ) -> None:
        """Give one container all the devices it asks for, resource by resource.

        Args:
            uid: the pod. Pods are admitted one at a time, its containers in order.
            active: UIDs of the pods that have not ended; None while a source of pods is still missing.
            running: the container ran already when this kubelet started.

        Raises:
            AdmissionError: no devices, no plugin, or the plugin refused.
        """
        if self._reusable[0] != uid:
            self._reusable = (uid, {})
        reusable = self._reusable[1]
        taken = False
        for resource, amount in container.limits.items():
            if resource not in self._resources and resource not in self._allocated:
                continue
            alive = active()
            if alive is not None:
                self.free_inactive(alive)
            chosen = await self._choose(
                uid,
                container.name,
                resource,
                amount,
                reusable.get(resource, set()),
                trust_running=alive is None and running,
            )
            if chosen:
                await self._take(uid, container.name, resource, chosen)
                taken = True
        if taken:
            self._write()
        for resource, held in self.held(uid, container.name).items():
            pool = reusable.setdefault(resource, set())
            if container.kind == "init":
                pool |= held.ids
            else:
                pool -= held.ids

    async def _choose(
        self, uid: str, container: str, resource: str, amount: int, reusable: set[str], *, trust_running: bool
    ) -> set[str]:
        known = self._checked(uid, container, resource, amount, trust_running=trust_running)
        if known is None:
            return set()
        chosen = self._draw(reusable, amount)
        used = self._allocated.setdefault(resource, set())
        used |= chosen
        if len(chosen) == amount:
            return chosen
        available = known.healthy - used
        missing = amount - len(chosen)
        if len(available) < missing:
            raise AdmissionError(
                f"requested number of devices unavailable for {resource}. "
                f"Requested: {missing}, Available: {len(available)}"
            )
        if known.endpoint is not None and known.endpoint.options.get_preferred_allocation_available:
            answer = await known.endpoint.preferred(available | chosen, chosen, amount)
            chosen |= self._draw(answer & available, missing)
        chosen |= self._draw(available - chosen, amount - len(chosen))
        self._allocated.setdefault(resource, set()).update(chosen)
        return chosen

    def _checked(
        self, uid: str, container: str, resource: str, amount: int, *, trust_running: bool
    ) -> _Resource | None:
        """Return the resource to choose from; None when the container needs nothing more."""
        before = self._pods.get(uid, {}).get(container, {}).get(resource)
        if before is not None and len(before.ids) != amount:
            raise AdmissionError(
                f'pod "{uid}" container "{container}" changed request for resource "{resource}" '
                f"from {len(before.ids)} to {amount}"
            )
        if trust_running:
            return None
        known = self._resources.get(resource)
        if known is None:
            raise AdmissionError(f"cannot allocate unregistered device {resource}")
        if not known.healthy:
            raise AdmissionError(f"no healthy devices present; cannot allocate unhealthy devices {resource}")
        if before is not None and not before.ids <= known.healthy:
            raise AdmissionError(
                "previously allocated devices are no longer healthy; "
                f"cannot allocate unhealthy devices {resource}"
            )
        return None if before is not None or amount <= 0 else known

    def _draw(self, pool: Collection[str], amount: int) -> set[str]:
        """Take up to `amount` at random; the kubelet walks over a Go map, whose order is arbitrary."""
        return set(self._chance.sample(sorted(pool), min(amount, len(pool))))

    async def _take(self, uid: str, container: str, resource: str, chosen: set[str]) -> None:
        known = self._resources.get(resource)
        if known is None or known.endpoint is None:
            self._regenerate()
            raise AdmissionError(f"unknown Device Plugin {resource}")
        try:
            response = await known.endpoint.allocate(chosen)
        except AdmissionError:
            self._regenerate()
            raise
        self._pods.setdefault(uid, {}).setdefault(container, {})[resource] = Held(frozenset(chosen), response)

    async def pre_start(self, uid: str, container: Container) -> None:
        """Ask the plugins that want to be asked before a container starts.

        Raises:
            AdmissionError: a plugin refused.
        """
        for resource, held in self.held(uid, container.name).items():
            known = self._resources.get(resource)
            if known is not None and known.endpoint is not None and known.endpoint.options.pre_start_required:
                await known.endpoint.pre_start(held.ids)
