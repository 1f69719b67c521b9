"""Lent slots, with the golden numbers of the method."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from scheduler_plugin.queue.cache.lending import (
    SlotChoice,
    SlotMatch,
    pick_workload,
    sort_by_launch_order,
    sort_by_share,
)
from scheduler_plugin.queue.cache.waiting import QueuedWorkload, SlotType, WaitingWorkloads, WorkloadGroup

RACKS = {"n1": "r1", "n2": "r1", "n3": "r2"}


@dataclass
class User:
    """A queue of the goldens."""

    name: str
    weight: float = 1.0
    allocated: float = 0.0
    waiting: WaitingWorkloads[str] = field(default_factory=WaitingWorkloads)


def local(uid: str, data: str = "", since: float = 0.0, job: str = "") -> QueuedWorkload[str]:
    return QueuedWorkload(uid, SlotType.LOCAL, since, "", frozenset([data] if data else []), job)


def free(uid: str, since: float = 0.0, job: str = "") -> QueuedWorkload[str]:
    return QueuedWorkload(uid, SlotType.FREE, since, "", frozenset(), job)


def user(name: str, *workloads: QueuedWorkload[str], weight: float = 1.0, allocated: float = 0.0) -> User:
    queue = User(name, weight, allocated)
    for workload in workloads:
        queue.waiting.add(workload)
    return queue


def offer(
    slot: SlotType | None, node: str, queues: Sequence[User], *, locality: bool = True
) -> SlotChoice[str] | None:
    """Offer a slot on a node; data is named after the node that it is on."""

    def near(_tenant: object, group: WorkloadGroup[str]) -> bool:
        return all(RACKS[name] == RACKS[node] for name in group.key.data)

    return pick_workload(
        slot, sort_by_share(queues), is_near=near, can_run=lambda _tenant, _group: True, locality=locality
    )


@pytest.mark.parametrize(
    ("slot", "workloads", "chosen", "case", "relaxed"),
    [
        (SlotType.LOCAL, [local("m1", "n1", 5), local("m2", "n2", 3), free("r1", 1)], "m2", 1, False),
        (SlotType.FREE, [local("m1", "n1", 1), free("r1", 5)], "r1", 2, False),
        (SlotType.LOCAL, [local("m1", "n3", 1), free("r1", 5)], "r1", 3, False),
        (SlotType.FREE, [local("m1", "n2")], "m1", 4, False),
        (SlotType.LOCAL, [local("m1", "n3", 4), local("m0", "n3", 2)], "m0", 1, True),
    ],
)
def test_the_golden_picks_of_one_tenant(
    slot: SlotType, workloads: list[QueuedWorkload[str]], chosen: str, case: int, *, relaxed: bool
) -> None:
    """A slot on n1 goes to these."""
    choice = offer(slot, "n1", [user("u1", *workloads)])
    assert choice is not None
    assert (choice.workload.uid, choice.slot_match, choice.relaxed) == (chosen, SlotMatch(case), relaxed)
    assert choice.lender == ""


def test_a_tenant_without_near_data_lends_its_turn() -> None:
    """u1's data is in the other rack."""
    choice = offer(SlotType.LOCAL, "n1", [user("u1", local("m1", "n3")), user("u2", local("m9", "n1"))])
    assert choice is not None
    assert (choice.queue, choice.workload.uid, choice.lender, choice.relaxed) == ("u2", "m9", "u1", False)


def test_without_locality_the_head_is_not_passed_over() -> None:
    """The same offer, and nobody looks at data."""
    queues = [user("u1", local("m1", "n3")), user("u2", local("m9", "n1"))]
    choice = offer(SlotType.LOCAL, "n1", queues, locality=False)
    assert choice is not None
    assert (choice.queue, choice.workload.uid, choice.relaxed) == ("u1", "m1", True)


def test_nobody_waits_and_the_slot_stays_idle() -> None:
    """There is no choice then."""
    assert offer(SlotType.FREE, "n1", [user("u1"), user("u2")]) is None


def test_the_smallest_share_of_its_worth_comes_first_then_the_name() -> None:
    """4 of weight 4 is less than 2 of weight 1."""
    queues = [
        user("c", weight=1, allocated=2),
        user("b", weight=4, allocated=4),
        user("a", weight=1, allocated=1),
    ]
    assert [queue.name for queue in sort_by_share(queues)] == ["a", "b", "c"]


def test_without_slot_types_the_oldest_task_of_the_tenant_comes_first() -> None:
    """Whichever class it is of."""
    choice = offer(None, "n1", [user("u1", free("r1", 2), local("m1", "n1", 1))])
    assert choice is not None
    assert (choice.workload.uid, choice.slot_match) == ("m1", None)


def test_the_golden_launch_order() -> None:
    """The second stage first; by age alone as an option."""
    workloads = [local("m1", "n1", 1), local("m2", "n1", 2), free("r1", 3)]
    assert [workload.uid for workload in sort_by_launch_order(workloads)][:2] == ["r1", "m1"]
    assert [workload.uid for workload in sort_by_launch_order(workloads, plain=True)][:2] == ["m1", "m2"]


def rounds(*, borrowing: bool) -> tuple[int, float]:
    """Run the headline: 2 local and 2 free slots, 8 local workloads of one round each, then 4 free ones.

    Returns:
        Rounds until all is done, and the share of slots that were busy.
    """
    queue = user(
        "u1", *[local(f"m{i}", "n1", i, "j") for i in range(8)], *[free(f"r{i}", i, "j") for i in range(4)]
    )
    count = busy = 0
    while len(queue.waiting):
        running: list[QueuedWorkload[str]] = []
        for slot in (SlotType.LOCAL, SlotType.LOCAL, SlotType.FREE, SlotType.FREE):

            def may(_tenant: object, group: WorkloadGroup[str], slot: SlotType = slot) -> bool:
                return borrowing or group.key.kind is slot

            choice = pick_workload(slot, [queue], is_near=lambda _tenant, _group: True, can_run=may)
            if choice is not None:
                queue.waiting.remove(choice.workload.uid)
                running.append(choice.workload)
        for workload in running:
            queue.waiting.finish_first_stage(workload.uid, workload.job)
        busy += len(running)
        count += 1
    return count, busy / (4 * count)


def test_the_headline() -> None:
    """6 rounds and half the slots busy without borrowing, 3 rounds and all of them with it."""
    assert rounds(borrowing=False) == (6, 0.5)
    assert rounds(borrowing=True) == (3, 1.0)


def test_the_second_stage_waits_for_the_first() -> None:
    """Also for a first-stage workload that is added when the second stage was eligible already."""
    waiting: WaitingWorkloads[str] = WaitingWorkloads()
    second = free("r1", job="j")
    waiting.add(second)
    assert not waiting.waits_for_stage("r1")
    assert waiting.is_first_of_group(second)
    waiting.add(local("m1", job="j"))
    assert waiting.waits_for_stage("r1")
    assert not waiting.is_first_of_group(second)
    waiting.remove("m1")
    assert waiting.waits_for_stage("r1"), "m1 runs"
    waiting.finish_first_stage("m1", "j")
    assert not waiting.waits_for_stage("r1")
    assert [group.get_oldest().uid for group in waiting.list_groups(SlotType.FREE)] == ["r1"]


def test_a_group_forgets_who_left() -> None:
    """The oldest of those that are left is known, however many came and went."""
    waiting: WaitingWorkloads[str] = WaitingWorkloads()
    for i in range(1000):
        waiting.add(free(f"r{i}", i))
        if i >= 2:
            waiting.remove(f"r{i - 2}")
    (group,) = waiting.list_groups(SlotType.FREE)
    assert (group.get_oldest().uid, len(group), len(waiting)) == ("r998", 2, 2)
    assert len(group._by_age) < 64


def test_the_oldest_of_all_groups_is_known_after_each_change() -> None:
    waiting: WaitingWorkloads[str] = WaitingWorkloads()

    def oldest() -> str:
        first = waiting.get_oldest()
        return first.uid if first is not None else ""

    assert not oldest()
    waiting.add(free("r1", 5.0, job="j"))
    assert oldest() == "r1"
    waiting.add(local("m2", "d", since=3.0))
    assert oldest() == "m2"
    waiting.add(local("m2", "d", since=7.0))
    assert oldest() == "r1", "m2 waits anew"
    waiting.add(free("r0", 4.0))
    assert oldest() == "r0"
    waiting.remove("r0")
    waiting.remove("m2")
    assert oldest() == "r1"
    waiting.begin_first_stage("m1", "j")
    assert not oldest(), "r1 waits for the first stage of its job"
    waiting.finish_first_stage("m1", "j")
    assert oldest() == "r1"
