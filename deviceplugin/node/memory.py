"""What every container really uses of what it was given on each card, and how it is held to it."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from deviceplugin.gpus.limits import Enforcement
from deviceplugin.gpus.source import GpuSample
from deviceplugin.node.cgroups import ProcessPlace
from deviceplugin.node.limit_state import Limit
from deviceplugin.node.limits import Enforcer
from deviceplugin.node.shares import Shares
from deviceplugin.node.supports import Supports
from deviceplugin.node.views import PodView, Seat

TURN: Final = 50
"""Rows that are worked out in one go: an Allocate waits for no more than these, some 0.2 ms."""


@dataclass(frozen=True, slots=True)
class ContainerMemory:
    """One container on one card.

    Attributes:
        uid: of the pod, as the kubelet knows it.
        namespace: of the pod; empty while the API server has not shown it.
        pod: its name; empty likewise.
        container: its name.
        uuid: of the card.
        promised_mib: what the container was given there.
        used_mib: what it uses; None where nobody can tell.
        limit_mib: the limit that was read back; None where there is none.
        held: what holds it to its promise.
        problem: why its limit is not in force though the driver could hold it; empty where all is well.
    """

    uid: str
    namespace: str
    pod: str
    container: str
    uuid: str
    promised_mib: int
    used_mib: int | None
    limit_mib: int | None
    held: Enforcement
    problem: str = ""

    @property
    def beyond_mib(self) -> int:
        """MiB used beyond the promise."""
        return max(0, (self.used_mib or 0) - self.promised_mib)


class Memory:
    """Joins the book's shares, the limits, the measured processes and the pods' names; worked out when asked.

    Args:
        shares: what containers were given; followed here.
        supports: how cards are held.
        enforcer: the limits.
        pods: the pods' names and containers.
        samples: the newest measurement of every card.
        place: where a process runs, None for one of no pod.
    """

    def __init__(
        self,
        shares: Shares,
        supports: Supports,
        enforcer: Enforcer,
        pods: PodView,
        samples: Callable[[], Sequence[GpuSample]],
        place: Callable[[int], ProcessPlace | None],
    ) -> None:
        self._shares = shares
        self._supports = supports
        self._enforcer = enforcer
        self._pods = pods
        self._samples = samples
        self._place = place

    def rows(self) -> list[ContainerMemory]:
        """Describe every container that was given memory and has not ended, by pod, container and card."""
        return sorted(self._each(), key=_order)

    async def rows_in_turns(self) -> list[ContainerMemory]:
        """Do the same, `TURN` rows at a time, with turns for others between."""
        found = []
        for row in self._each():
            found.append(row)
            if len(found) % TURN == 0:
                await asyncio.sleep(0)
        return sorted(found, key=_order)

    def _each(self) -> Iterator[ContainerMemory]:
        self._shares.follow()
        limits: dict[tuple[str, str], list[Limit]] = {}
        for limit in self._enforcer.limits():
            limits.setdefault((limit.uid, limit.uuid), []).append(limit)
        measured = self._measured()
        for uid, grants in list(self._shares.all().items()):
            seat = self._pods.seat(uid)
            for container, shares in grants.items():
                if seat is not None and container in seat.ended:
                    continue
                for uuid, mib in shares.items():
                    alone = sum(uuid in others for others in grants.values()) == 1
                    used = measured.get(uuid)
                    mine = [
                        limit
                        for limit in limits.get((uid, uuid), ())
                        if limit.container == container or (alone and limit.container is None)
                    ]
                    row = ContainerMemory(
                        uid,
                        seat.namespace if seat is not None else "",
                        seat.name if seat is not None else "",
                        container,
                        uuid,
                        mib,
                        _of(container, seat, used.get(uid, {}), alone=alone) if used is not None else None,
                        None,
                        self._supports.holding(uuid, mib, len(shares)),
                    )
                    yield _limited(row, mine) if mine else row

    def _measured(self) -> dict[str, dict[str, dict[str, int | None]]]:
        """MiB by card, pod and container's ID, as far as the driver tells processes apart."""
        found: dict[str, dict[str, dict[str, int | None]]] = {}
        for sample in self._samples():
            if sample.error is not None or sample.processes is None:
                continue
            pods = found.setdefault(sample.uuid, {})
            for process in sample.processes:
                place = self._place(process.pid)
                if place is not None:
                    of_pod = pods.setdefault(place.uid, {})
                    before_mib = of_pod.get(place.container_id, 0)
                    known = before_mib is not None and process.used_mib is not None
                    of_pod[place.container_id] = (
                        (before_mib or 0) + (process.used_mib or 0) if known else None
                    )
        return found


def _order(row: ContainerMemory) -> tuple[str, ...]:
    return row.namespace, row.pod, row.uid, row.container, row.uuid


def _limited(row: ContainerMemory, limits: Sequence[Limit]) -> ContainerMemory:
    """Add what the limits of a container's cgroups say; the driver's own count is the better one."""
    outcomes = [limit.outcome for limit in limits if limit.outcome is not None]
    readings = [outcome.reading for outcome in outcomes if outcome.reading is not None]
    used = [reading.used_mib for reading in readings if reading.used_mib is not None]
    hard = [reading.hard_mib for reading in readings if reading.hard_mib is not None]
    problem = next((outcome.problem for outcome in outcomes if outcome.problem), "")
    return replace(
        row,
        used_mib=sum(used) if used and len(used) == len(readings) else row.used_mib,
        limit_mib=max(hard, default=None),
        held=Enforcement.ACCOUNTED if problem and row.held is Enforcement.DRIVER else row.held,
        problem=problem,
    )


def _of(container: str, seat: Seat | None, used: Mapping[str, int | None], *, alone: bool) -> int | None:
    """MiB of one container out of those of its pod, None where that is not known.

    What runs in a container that nobody has named yet is its own where no other one was given the card.
    """
    names = seat.containers if seat is not None else {}
    total_mib = 0
    for identifier, mib in used.items():
        name = names.get(identifier)
        if name is None and not alone:
            return None
        if name is None or name == container:
            if mib is None:
                return None
            total_mib += mib
    return total_mib
