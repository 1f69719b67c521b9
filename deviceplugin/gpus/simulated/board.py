"""State of a simulated card: its instances, its failure, and the processes on it."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from allocator.names import MIB
from deviceplugin.gpus.api.card_listing import NO_INSTANCES, describe_shared_memory
from deviceplugin.gpus.api.memory_info import MemoryInfo
from deviceplugin.gpus.api.source import GpuCard, GpuProcess
from deviceplugin.gpus.nvidia.mig import InstanceRequest, MigInstance, place_instances
from deviceplugin.gpus.simulated.profile import SimulatedFailure
from deviceplugin.gpus.simulated.script import ProcessGrowth

REFUSED: Final = "the driver refuses the MIG instance: Insufficient Permissions"


@dataclass(slots=True)
class SimulatedUse:
    """The processes on a card or instance; growing ones have a start time and first MiB."""

    used_mib: int = 0
    processes: tuple[GpuProcess, ...] = ()
    growing: dict[int, tuple[ProcessGrowth, float, int]] = field(default_factory=dict)

    def now(self, now_s: float, most_mib: int) -> tuple[GpuProcess, ...]:
        """Return the processes with what they have grown to."""
        found = {process.pid: process for process in self.processes}
        for pid, (growth, since_s, from_mib) in self.growing.items():
            part = 1.0 if growth.over_s == 0 else min(1.0, (now_s - since_s) / growth.over_s)
            mib = from_mib + int((growth.to_mib - from_mib) * part)
            found[pid] = replace(found.get(pid, GpuProcess(pid, 0)), used_mib=min(mib, most_mib))
        return tuple(found[pid] for pid in sorted(found))


@dataclass(slots=True)
class SimulatedBoard:
    """A physical card now.

    Attributes:
        used_has_reserved: what its driver calls used has the reserved part in it.
        residue_mib: MiB of pages that no process uses and the operating system keeps.
        tripped: its failure has come.
        shown: the driver shows it.
        accessible: UUIDs of its instances that are not refused, None for all.
    """

    card: GpuCard
    instances: tuple[MigInstance, ...] | None
    failure: SimulatedFailure | None
    used_has_reserved: bool = False
    residue_mib: int = 0
    calls: int = 0
    tripped: bool = False
    shown: bool = True
    accessible: frozenset[str] | None = None

    def partition(self, wanted: Sequence[InstanceRequest] | None) -> None:
        """Repartition the card, None: no MIG mode; existing instances stay if still wanted.

        Raises:
            PartitionError: no such card can be partitioned like this.
        """
        card, kept = self.card, self.instances or ()
        self.instances = (
            None
            if wanted is None
            else place_instances(card.uuid, card.model, card.schedulable_mib, wanted, kept)
        )

    def memory_info(self, card: GpuCard, used_mib: int) -> MemoryInfo:
        """Build the driver's sample of a card, itself or an instance, from the memory that processes use."""
        total, reserved, used = card.total_mib * MIB, card.reserved_mib * MIB, used_mib * MIB
        told = used + (reserved if self.used_has_reserved else 0)
        return MemoryInfo(total, reserved, total - reserved - used, told)

    def cards(self) -> tuple[GpuCard, ...]:
        if self.instances is None:
            return (self.card,)
        if not self.instances:
            return (replace(self.card, total_mib=0, reserved_mib=0, error=NO_INSTANCES),)
        reasons = [
            REFUSED if self.accessible is not None and instance.uuid not in self.accessible else reason
            for instance, reason in zip(
                self.instances,
                describe_shared_memory([instance.start for instance in self.instances]),
                strict=True,
            )
        ]
        return tuple(
            replace(
                self.card,
                uuid=instance.uuid,
                model=f"{self.card.model} MIG {instance.profile}",
                total_mib=instance.memory_mib if reason is None else 0,
                reserved_mib=0,
                error=reason,
                parent=self.card.uuid,
                links=(),
                gpu_instance=instance.start,
                compute_instance=instance.part,
            )
            for instance, reason in zip(self.instances, reasons, strict=True)
        )
