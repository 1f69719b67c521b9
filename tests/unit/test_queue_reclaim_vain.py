"""Reclaim: for what kube-scheduler cannot place others are not evicted again and again."""

from typing import Any

import pytest

from allocator.names import BATCH_SCHEDULER
from scheduler_plugin.queue.scheduler.reclaim import Reclaimer
from tests.queue_world import TWO_QUEUES, QueueWorld

STEP_S = 5
"""The queue looks as often; its back-offs are longer."""


class Lender:
    """Queue b has lent what it has; whatever a loses of it a borrows again, and kube-scheduler refuses b."""

    def __init__(self) -> None:
        self.world = QueueWorld(f"{TWO_QUEUES}\nreclaim: evict\ngangWithin: 60s")
        self.world.node("n1", (16, 16))
        self.reclaimer = Reclaimer(self.world.queue)
        self.made = 0
        self.lends = True
        self.refuses = True
        self.denies = False

    def borrow(self) -> None:
        """Pods of a take what is free, those of b what is theirs, as far as kube-scheduler lets them."""
        world = self.world
        for name in world.admitted():
            if name.startswith("b") and self.denies:
                world.queue.record_refused_admission(f"uid-{name}", world.now, "a policy says no")
            elif name.startswith("b") and self.refuses:
                condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
                world.change(f"uid-{name}", status={"conditions": [{**condition, "message": str(world.now)}]})
            else:
                world.bind(f"uid-{name}")

    def step(self) -> int:
        """Let some seconds pass; how many were evicted then."""
        world = self.world
        world.now += STEP_S
        world.requeue_pods()
        evicted = [victim.uid for each in self.reclaimer.find_plans(world.now) for victim in each.victims]
        for uid in evicted:
            world.delete(uid)
        self.borrow()
        made = self.made
        while self.lends and sum(pod.startswith("uid-a") for pod in world.objects) < 4:
            world.pod(f"a{self.made}", 8, created=0)
            self.made += 1
        if self.made > made:
            self.borrow()
        return len(evicted)


def evictions(lender: Lender, seconds: int) -> int:
    return sum(lender.step() for _ in range(0, seconds, STEP_S))


def check(**more: Any) -> None:
    lender = Lender()
    evictions(lender, 2)
    lender.world.pod("b0", 8, queue="b", created=10, **more)
    assert evictions(lender, 300) == 1
    assert evictions(lender, 3600) <= 2, "fewer and fewer"
    lender.refuses = False
    assert evictions(lender, 1500) <= 1
    assert lender.world.objects["uid-b0"]["spec"].get("nodeName") == "n1"
    lender.world.delete("uid-b0")
    evictions(lender, 10)
    lender.world.pod("b1", 8, queue="b", created=20, **more)
    assert evictions(lender, 60) == 1, "one like it was bound: others are evicted at once again"


def test_a_pod_that_kube_scheduler_refuses_costs_others_less_and_less() -> None:
    check()


def test_so_does_a_gang() -> None:
    check(gang="G", size=1)


@pytest.mark.parametrize("more", [{}, {"gang": "G", "size": 1}])
def test_so_does_what_the_api_server_refuses_to_let_go(more: dict[str, Any]) -> None:
    """It is tried again and again; for each try a pod that has borrowed would have to go."""
    lender = Lender()
    lender.refuses, lender.denies = False, True
    evictions(lender, 2)
    lender.world.pod("b0", 8, queue="b", created=10, **more)
    assert evictions(lender, 290) == 1
    assert evictions(lender, 3600) <= 4, "fewer and fewer"
    lender.denies = False
    assert evictions(lender, 3600) == 1
    assert lender.world.objects["uid-b0"]["spec"].get("nodeName") == "n1"
    lender.world.pod("b1", 8, queue="b", created=20, **more | ({"gang": "H"} if more else {}))
    assert evictions(lender, 60) == 1, "one that nobody has refused"


@pytest.mark.parametrize(("refusals", "plans"), [(1, 1), (2, 0)])
def test_in_batch_mode_one_refusal_may_be_of_a_moment(refusals: int, plans: int) -> None:
    """The committer did not know the pod yet, say, and another one took the room meanwhile."""
    world = QueueWorld(f"{TWO_QUEUES}\nreclaim: evict\nmode: batch")
    world.queue.batch.enabled = True
    world.node("n1", (16, 16), allocatable_units=32)
    spec = {"schedulerName": BATCH_SCHEDULER}
    b0 = world.pod("b0", 8, queue="b", gates=(), spec=spec)
    world.queue.set_batch_spec(b0, {**spec, "containers": [{"name": "main"}]})
    for _ in range(refusals):
        world.now += 3
        assert world.admitted() == ["b0"]
        world.queue.record_refused_admission(b0, world.now, "it is tried again")
    for number in range(4):
        world.pod(f"a{number}", 8)
    world.bind(*(f"uid-{name}" for name in world.admitted()))
    world.now += 3
    world.decide()
    assert len(Reclaimer(world.queue).find_plans(world.now)) == plans
