"""Measures how much every container uses of its share of each card, and how it is limited."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from allocator.request import WHOLE
from deviceplugin.allocation.objects import PodObject
from deviceplugin.allocation.own_pods import OwnPods
from deviceplugin.enforcement.enforcer import Enforcer
from deviceplugin.enforcement.granted_memory import GrantedMemory
from deviceplugin.enforcement.limit_plan import Grants
from deviceplugin.enforcement.limit_state import ContainerLimit
from deviceplugin.enforcement.memory_enforcement import MemoryEnforcement
from deviceplugin.gpus.api.memory_limits import Enforcement
from deviceplugin.gpus.api.source import GpuProcess
from deviceplugin.monitoring.sampling import CardSampler
from deviceplugin.monitoring.telemetry import is_fresh

TURN: Final = 50
"""Rows that are computed in one go: an Allocate waits for no more than these, some 0.2 ms."""

NOT_YET: Final = "no limit was read back yet"


@dataclass(frozen=True, slots=True)
class ContainerUse:
    """What one container uses of one card.

    Attributes:
        uid: UID of the pod, as the kubelet knows it.
        used_mib: what it uses; None if that cannot be measured.
        limit_mib: the limit that was read back; None if there is none.
        enforcement: what holds it to its promise.
        problem: why its limit is not in force though the driver could hold it; empty if all is well.
        measured_s: when `used_mib` was measured, by the ledger's clock; None without it.
        compute: percent of the card's compute that it asks for; 0 if for none.
        compute_enforcement: what holds it to that.
        used_compute: percent of the time in which its processes kept the card busy; None if that cannot be
            measured.
    """

    uid: str
    namespace: str
    pod: str
    container: str
    uuid: str
    promised_mib: int
    used_mib: int | None
    limit_mib: int | None
    enforcement: Enforcement
    problem: str = ""
    measured_s: float | None = None
    compute: int = 0
    compute_enforcement: Enforcement = Enforcement.ACCOUNTED
    used_compute: int | None = None

    @property
    def beyond_mib(self) -> int:
        return max(0, (self.used_mib or 0) - self.promised_mib)


class ContainerUseReader:
    """Joins grants, limits, measured processes and pods' names when it is asked."""

    def __init__(
        self,
        granted_memory: GrantedMemory,
        enforcement: MemoryEnforcement,
        enforcer: Enforcer,
        pods: OwnPods,
        sampler: CardSampler,
        clock: Callable[[], float],
    ) -> None:
        self._granted_memory = granted_memory
        self._enforcement = enforcement
        self._enforcer = enforcer
        self._pods = pods
        self._sampler = sampler
        self._clock = clock

    def read_rows(self) -> list[ContainerUse]:
        """Describe every container that was given memory and has not ended, by pod, container and card."""
        return sorted(self._iterate_uses(), key=_order)

    async def read_rows_in_turns(self) -> list[ContainerUse]:
        """Do the same, `TURN` rows at a time, with turns for others between."""
        found = []
        for row in self._iterate_uses():
            found.append(row)
            if len(found) % TURN == 0:
                await asyncio.sleep(0)
        return sorted(found, key=_order)

    def _iterate_uses(self) -> Iterator[ContainerUse]:
        limits: dict[tuple[str, str], list[ContainerLimit]] = {}
        for limit in self._enforcer.list_limits():
            limits.setdefault((limit.uid, limit.uuid), []).append(limit)
        now_s, sampled_s = self._clock(), self._sampler.sampled_s
        fresh = is_fresh(sampled_s, now_s)
        measured = self._measured(lambda process: process.used_mib) if fresh else {}
        busy = self._measured(lambda process: process.compute_percent) if fresh else {}
        for uid, grants in self._granted_memory.read().items():
            pod = self._pods.find_pod(uid)
            for row in self._promised(uid, pod, grants):
                alone = sum(row.uuid in shares for shares in grants.values()) == 1
                used = measured.get(row.uuid)
                if used is not None:
                    used_mib = _add_up(row.container, pod, used.get(uid, {}), alone=alone)
                    percent = _add_up(row.container, pod, busy[row.uuid].get(uid, {}), alone=alone)
                    row = replace(  # noqa: PLW2901 - the same
                        row,
                        used_mib=used_mib,
                        measured_s=None if used_mib is None else sampled_s,
                        # Processes that run at the same time, as MPS lets them, add up to more.
                        used_compute=None if percent is None else min(WHOLE, percent),
                    )
                mine = [
                    limit
                    for limit in limits.get((uid, row.uuid), ())
                    if limit.container == row.container or (alone and limit.container is None)
                ]
                yield _limited(row, mine, now_s) if mine or row.enforcement is Enforcement.DRIVER else row

    def _promised(self, uid: str, pod: PodObject | None, grants: Grants) -> Iterator[ContainerUse]:
        namespace, name = (pod.metadata.namespace, pod.metadata.name) if pod is not None else ("", "")
        asked = self._granted_memory.asked_compute(uid)
        for container, shares in grants.items():
            if pod is None or container not in pod.ended_containers:
                cards, ids = len(shares), self._granted_memory.ids_of_container(uid, container)
                for uuid, mib in shares.items():
                    held = self._enforcement.get_container_enforcement(uuid, mib, cards, ids)
                    row = ContainerUse(uid, namespace, name, container, uuid, mib, None, None, held)
                    compute = asked.get(container, 0)
                    if compute:
                        limits = self._enforcement.get_compute_enforcement(uuid, mib, cards, compute, ids)
                        row = replace(row, compute=compute, compute_enforcement=limits)
                    yield row

    def _measured(
        self, read: Callable[[GpuProcess], int | None]
    ) -> dict[str, dict[str, dict[str, int | None]]]:
        """Add up a number of processes by card, pod and container's ID, as far as the driver tells it."""
        measured: dict[str, dict[str, dict[str, int | None]]] = {}
        places = self._sampler.places
        for sample in self._sampler.samples:
            if sample.error is not None or sample.processes is None:
                continue
            if any(process.pid not in places for process in sample.processes):
                # It may be anybody's.
                continue
            pods = measured.setdefault(sample.uuid, {})
            for process in sample.processes:
                place = places[process.pid]
                if place is not None:
                    of_pod = pods.setdefault(place.uid, {})
                    before, more = of_pod.get(place.container_id, 0), read(process)
                    known = before is not None and more is not None
                    of_pod[place.container_id] = (before or 0) + (more or 0) if known else None
        return measured


def _order(row: ContainerUse) -> tuple[str, ...]:
    return row.namespace, row.pod, row.uid, row.container, row.uuid


def _limited(row: ContainerUse, limits: Sequence[ContainerLimit], now_s: float) -> ContainerUse:
    """Add what the limits of a container's cgroups say; the driver's own count is the better one."""
    outcomes = [limit.outcome for limit in limits if limit.outcome is not None]
    readings = [outcome.reading for outcome in outcomes if outcome.reading is not None]
    used = [reading.used_mib for reading in readings if reading.used_mib is not None]
    read_s = min((outcome.at_s for outcome in outcomes if outcome.reading is not None), default=now_s)
    if used and len(used) == len(readings) and is_fresh(read_s, now_s):
        row = replace(row, used_mib=sum(used), measured_s=read_s)
    hard = [reading.hard_mib for reading in readings if reading.hard_mib is not None]
    problem = next((outcome.problem for outcome in outcomes if outcome.problem), "")
    held = row.enforcement
    if held is Enforcement.DRIVER and (problem or not hard):
        held, problem = Enforcement.ACCOUNTED, problem or NOT_YET
    return replace(row, limit_mib=max(hard, default=None), enforcement=held, problem=problem)


def _add_up(
    container: str, pod: PodObject | None, used: Mapping[str, int | None], *, alone: bool
) -> int | None:
    """Add up what one container uses out of what its pod does, None if that is not known.

    Processes of a container without a name yet are its own if no other container has the card.
    """
    names = pod.container_names if pod is not None else {}
    total = 0
    for identifier, amount in used.items():
        name = names.get(identifier)
        if name is None and not alone:
            return None
        if name is None or name == container:
            if amount is None:
                return None
            total += amount
    return total
