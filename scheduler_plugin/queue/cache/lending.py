"""Choice of the workload that gets a slot: queues by share, borrowing inside and between queues. Pure.

docs/queue.md#data-and-slots has the method.

A slot belongs to a node and has a type. Tenants are asked in the order of what they have by what they are
worth. Whoever has a task that may run there gets the slot, even if it is of the other type: then the tenant
lends it to itself (cases 3 and 4), and when a tenant further down is the one, the others lend it to that one.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Generic, Protocol, TypeVar

from scheduler_plugin.queue.cache.waiting import QueuedWorkload, SlotType, WaitingWorkloads, WorkloadGroup

W = TypeVar("W", bound=Hashable)
T = TypeVar("T", bound="LendingQueue[Any]")


class SlotMatch(IntEnum):
    """Which task got which slot."""

    LOCAL_FOR_LOCAL = 1
    FREE_FOR_FREE = 2
    LOCAL_LENT_TO_FREE = 3
    FREE_LENT_TO_LOCAL = 4


class LendingQueue(Protocol[W]):
    """Whose turn it may be."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def weight(self) -> float:
        """Its share of the whole, above 0."""
        ...

    @property
    def allocated(self) -> float:
        """What it has now."""
        ...

    @property
    def waiting(self) -> WaitingWorkloads[W]:
        """Its tasks."""
        ...


@dataclass(frozen=True, slots=True)
class SlotChoice(Generic[W]):
    """The task that gets a slot.

    Attributes:
        queue: Name of its tenant.
        workload: The task.
        slot_match: Which kind of task got which type of slot; None where there are no types.
        relaxed: Its data is elsewhere; nobody whose data is near had a task.
        lender: Name of the tenant whose turn it was, empty when it was its own.
    """

    queue: str
    workload: QueuedWorkload[W]
    slot_match: SlotMatch | None
    relaxed: bool
    lender: str


def sort_by_share(tenants: Iterable[T]) -> list[T]:
    """Order tenants: the smallest share of what it is worth first, ties by name."""
    return sorted(tenants, key=lambda tenant: (tenant.allocated / tenant.weight, tenant.name))


def pick_workload(
    slot: SlotType | None,
    tenants: Sequence[LendingQueue[W]],
    *,
    near: Callable[[LendingQueue[W], WorkloadGroup[W]], bool],
    may: Callable[[LendingQueue[W], WorkloadGroup[W]], bool],
    among: Collection[W] | None = None,
    locality: bool = True,
) -> SlotChoice[W] | None:
    """Choose the task for a free slot on a node.

    Args:
        slot: Its type; None: there are no types, of a tenant's tasks the oldest comes first.
        tenants: In the order of `sort_by_share`.
        near: Whether the data of a tenant's group of local tasks is on the node or in its rack.
        may: Whether a tenant's tasks of a group can run on the node now.
        among: Needs of tasks that could be chosen; no other tasks are looked at. None: all.
        locality: Ask first for tasks whose data is near.

    Returns:
        The choice, None when nobody has a task that may run there.
    """
    for relaxed in (False, True) if locality else (True,):
        for tenant in tenants:
            found = [
                _find_oldest(tenant, kind, near, may, among, relaxed=relaxed)
                for kind in _list_preferred(slot)
            ]
            able = [group for group in found if group is not None]
            if not able:
                continue
            group = able[0] if slot is not None else min(able, key=lambda each: each.get_oldest().age_key)
            head = tenants[0].name
            return SlotChoice(
                queue=tenant.name,
                workload=group.get_oldest(),
                slot_match=None if slot is None else _match_slot(slot, group.key.kind),
                relaxed=relaxed and bool(group.key.data) and not near(tenant, group),
                lender="" if tenant.name == head else head,
            )
    return None


def sort_by_launch_order(
    tasks: Iterable[QueuedWorkload[W]], *, plain: bool = False
) -> list[QueuedWorkload[W]]:
    """Order the tasks that start on a node: those of the second stage first, they finish jobs and free slots.

    Args:
        tasks: Released for one node.
        plain: By age alone.
    """
    return sorted(tasks, key=lambda task: (not plain and task.kind is SlotType.LOCAL, *task.age_key))


def _list_preferred(slot: SlotType | None) -> tuple[SlotType, SlotType]:
    """The classes of tasks in the order in which a slot is offered to them."""
    return (SlotType.FREE, SlotType.LOCAL) if slot is SlotType.FREE else (SlotType.LOCAL, SlotType.FREE)


def _find_oldest(
    tenant: LendingQueue[W],
    kind: SlotType,
    near: Callable[[LendingQueue[W], WorkloadGroup[W]], bool],
    may: Callable[[LendingQueue[W], WorkloadGroup[W]], bool],
    among: Collection[W] | None,
    *,
    relaxed: bool,
) -> WorkloadGroup[W] | None:
    """The group of the tenant's longest waiting task of a class that may run, None when there is none."""
    best: WorkloadGroup[W] | None = None
    for group in tenant.waiting.list_groups(kind, among):
        if best is not None and best.get_oldest().age_key < group.get_oldest().age_key:
            continue
        bound = kind is SlotType.LOCAL and bool(group.key.data)
        if (relaxed or not bound or near(tenant, group)) and may(tenant, group):
            best = group
    return best


def _match_slot(slot: SlotType, task: SlotType) -> SlotMatch:
    if slot is task:
        return SlotMatch.LOCAL_FOR_LOCAL if slot is SlotType.LOCAL else SlotMatch.FREE_FOR_FREE
    return SlotMatch.LOCAL_LENT_TO_FREE if slot is SlotType.LOCAL else SlotMatch.FREE_LENT_TO_LOCAL
