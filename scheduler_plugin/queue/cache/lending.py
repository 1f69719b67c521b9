"""Choice of the workload that gets a slot: queues by share, borrowing inside and between queues. Pure.

docs/queue/data.md#data-and-slots has the method.

A slot belongs to a node and has a type. Queues are tried in ascending order of their usage divided by their
weight; the first queue with a workload that may run there gets the slot. If that workload is of the other
type, the queue lends the slot to itself (cases 3 and 4). The queues tried before it lend it the slot.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from heapq import heapify, heappop
from typing import Any, Generic, Protocol, TypeVar

from scheduler_plugin.queue.cache.waiting import QueuedWorkload, SlotType, WaitingWorkloads, WorkloadGroup

W = TypeVar("W", bound=Hashable)
T = TypeVar("T", bound="LendingQueue[Any]")


class SlotMatch(IntEnum):
    """The pairing of a workload's class with a slot's type."""

    LOCAL_FOR_LOCAL = 1
    FREE_FOR_FREE = 2
    LOCAL_LENT_TO_FREE = 3
    FREE_LENT_TO_LOCAL = 4


class LendingQueue(Protocol[W]):
    """What choosing a workload needs to know of a queue."""

    @property
    def name(self) -> str: ...

    @property
    def weight(self) -> float: ...

    @property
    def allocated(self) -> float:
        """Amount that the queue has now, in the unit of its weight."""
        ...

    @property
    def waiting(self) -> WaitingWorkloads[W]: ...


@dataclass(frozen=True, slots=True)
class SlotChoice(Generic[W]):
    """The workload that gets a slot.

    Attributes:
        slot_match: Which kind of workload got which type of slot; None if there are no types.
        relaxed: Its data is elsewhere; no workload whose data is near was waiting.
        lender: Name of the queue whose turn it was, empty when it was its own.
    """

    queue: str
    workload: QueuedWorkload[W]
    slot_match: SlotMatch | None
    relaxed: bool
    lender: str


def sort_by_share(queues: Iterable[T]) -> list[T]:
    """Sort queues by usage divided by weight, the smallest first, ties by name."""
    return sorted(queues, key=lambda queue: (queue.allocated / queue.weight, queue.name))


def pick_workload(
    slot: SlotType | None,
    queues: Sequence[LendingQueue[W]],
    *,
    is_near: Callable[[LendingQueue[W], WorkloadGroup[W]], bool],
    can_run: Callable[[LendingQueue[W], WorkloadGroup[W]], bool],
    locality: bool = True,
) -> SlotChoice[W] | None:
    """Choose the workload for a free slot on a node.

    Args:
        slot: Its type; None: there are no types, of a queue's workloads the oldest comes first.
        queues: In the order of `sort_by_share`.
        is_near: Whether the data of a queue's group of local workloads is on the node or in its rack.
        can_run: Whether a queue's workloads of a group can run on the node now.
        locality: Ask first for workloads whose data is near.

    Returns:
        The choice, None when nobody has a workload that may run there.
    """
    for relaxed in (False, True) if locality else (True,):
        for queue in queues:
            found = [
                _find_oldest(queue, kind, is_near, can_run, relaxed=relaxed) for kind in _list_preferred(slot)
            ]
            able = [group for group in found if group is not None]
            if not able:
                continue
            group = able[0] if slot is not None else min(able, key=lambda each: each.get_oldest().age_key)
            head = queues[0].name
            return SlotChoice(
                queue=queue.name,
                workload=group.get_oldest(),
                slot_match=None if slot is None else _match_slot(slot, group.key.kind),
                relaxed=relaxed and bool(group.key.data) and not is_near(queue, group),
                lender="" if queue.name == head else head,
            )
    return None


def sort_by_launch_order(
    workloads: Iterable[QueuedWorkload[W]], *, plain: bool = False
) -> list[QueuedWorkload[W]]:
    """Sort the workloads that start on a node: second stages first, because they finish jobs and free slots.

    With `plain` only their age counts.
    """
    return sorted(
        workloads, key=lambda workload: (not plain and workload.kind is SlotType.LOCAL, *workload.age_key)
    )


def _list_preferred(slot: SlotType | None) -> tuple[SlotType, SlotType]:
    """List the classes of workloads in the order in which a slot is offered to them."""
    return (SlotType.FREE, SlotType.LOCAL) if slot is SlotType.FREE else (SlotType.LOCAL, SlotType.FREE)


def _find_oldest(
    queue: LendingQueue[W],
    kind: SlotType,
    is_near: Callable[[LendingQueue[W], WorkloadGroup[W]], bool],
    can_run: Callable[[LendingQueue[W], WorkloadGroup[W]], bool],
    *,
    relaxed: bool,
) -> WorkloadGroup[W] | None:
    # Whether a group can run costs more than its age does: it is asked of the oldest first.
    groups = {group.get_oldest().age_key: group for group in queue.waiting.list_groups(kind)}
    ages = list(groups)
    heapify(ages)
    while ages:
        group = groups[heappop(ages)]
        bound = kind is SlotType.LOCAL and bool(group.key.data)
        if (relaxed or not bound or is_near(queue, group)) and can_run(queue, group):
            return group
    return None


def _match_slot(slot: SlotType, workload: SlotType) -> SlotMatch:
    if slot is workload:
        return SlotMatch.LOCAL_FOR_LOCAL if slot is SlotType.LOCAL else SlotMatch.FREE_FOR_FREE
    return SlotMatch.LOCAL_LENT_TO_FREE if slot is SlotType.LOCAL else SlotMatch.FREE_LENT_TO_LOCAL
