"""Why pods wait is found out when something has changed, for a small share of the processor's time."""

import asyncio
from typing import Any

import pytest

from scheduler_plugin.queue.controller import explainer, status
from scheduler_plugin.queue.controller.controller import CHECK_EVERY_S, TICK_S, Controller
from scheduler_plugin.queue.controller.explainer import SHARE, SLICE_S, UNCHANGED_S, Explainer
from scheduler_plugin.queue.controller.writer import PodWriter
from tests.queue_world import QueueWorld

COST_S = 0.001
"""Seconds that it takes here to find out why one pod waits."""


class Told:
    """An explainer on a full node, a clock that it moves, and what it looked at and said."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world = QueueWorld()
        self.world.node("n1", (16,), (16,))
        self.looked: list[str] = []
        self.events: list[str] = []
        self.explainer = Explainer(self.world.queue, self, lambda: self.world.now)
        found_why = status.explain_pod

        def counted(queue: Any, pod: Any, now: float, position: int) -> Any:
            self.world.now += COST_S
            self.looked.append(pod.record.name)
            return found_why(queue, pod, now, position)

        monkeypatch.setattr(explainer, "explain_pod", counted)

    def event(self, ref: Any, _type: str, _reason: str, message: str) -> None:
        self.events.append(f"{ref.name} {message.partition(':')[0]}")

    def tick(self, *, changed: bool = False) -> list[str]:
        """Let a second pass; the pods that were looked at."""
        self.looked.clear()
        self.world.now += 1.0
        self.explainer.begin_round(changed=changed)
        while self.explainer.continue_round():
            pass
        return list(self.looked)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    return Told(monkeypatch)


def test_nothing_is_found_out_again_while_nothing_changes(told: Told) -> None:
    """Once in half a minute all the same: reasons follow from time too."""
    told.world.pod("p0")
    told.world.pod("p1")
    assert told.tick(changed=True) == ["p0", "p1"]
    looked = [len(told.tick()) for _ in range(int(UNCHANGED_S))]
    assert looked == [0] * (int(UNCHANGED_S) - 1) + [2]
    assert told.events == ["p0 NoRoom", "p1 NoRoom"]
    assert told.tick(changed=True) == ["p0", "p1"]


def test_however_much_changes_it_takes_a_small_share_of_the_time(told: Told) -> None:
    """And who came in the meantime is told at once."""
    count = 200
    for number in range(count):
        told.world.pod(f"p{number}")
    assert len(told.tick(changed=True)) == count
    pause = count * COST_S / SHARE
    began, looked = told.world.now, 0
    told.world.pod("new")
    assert told.tick(changed=True) == ["new"]
    while not looked:
        looked = len(told.tick(changed=told.world.now < began + 2))
    assert looked == count + 1, "what changed meanwhile is not forgotten"
    assert pause - 2 < told.world.now - began < pause + 2


def test_it_goes_on_a_moment_at_a_time(told: Told) -> None:
    """Decisions come in between; pods that go meanwhile are passed over."""
    for number in range(100):
        told.world.pod(f"p{number}")
    told.explainer.begin_round(changed=True)
    assert told.explainer.continue_round()
    assert len(told.looked) == pytest.approx(SLICE_S / COST_S, abs=1)
    told.world.delete("uid-p50")
    told.explainer.begin_round(changed=True)
    while told.explainer.continue_round():
        pass
    assert sorted(told.looked) == sorted(f"p{number}" for number in range(100) if number != 50)
    assert not told.explainer.continue_round()


def test_a_pod_that_waits_again_is_told_again(told: Told) -> None:
    uid = told.world.pod("p")
    told.tick(changed=True)
    told.explainer.forget_pod(uid)
    assert told.tick() == ["p"]
    assert told.events == ["p NoRoom"] * 2
    told.world.delete(uid)
    assert told.tick(changed=True) == []


async def test_the_controller_decides_when_something_changes_and_else_seldom(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or when the pause of an admission ends that the API server has refused."""
    monkeypatch.setattr("scheduler_plugin.queue.controller.controller.TICK_S", 0.001)
    world, nothing, decided = told.world, None, []
    writer = PodWriter(nothing, lambda: True, 1.0)  # type: ignore[arg-type]
    controller = Controller(world.queue, writer, told, lambda: world.now, lambda: True)
    decide = world.queue.admit_workloads
    monkeypatch.setattr(world.queue, "admit_workloads", lambda now: decided.append(now) or decide(now))  # type: ignore[func-returns-value]
    task = asyncio.create_task(controller.run())

    async def pass_time(seconds: float) -> int:
        """Let time pass in steps of a tick; how often it was decided."""
        decided.clear()
        for _ in range(int(seconds / TICK_S)):
            world.now += TICK_S
            await asyncio.sleep(0.01)
        return len(decided)

    await pass_time(10 * CHECK_EVERY_S)
    assert 9 <= await pass_time(10 * CHECK_EVERY_S) <= 11
    controller.record_change()
    assert await pass_time(TICK_S) >= 1
    await pass_time(CHECK_EVERY_S)
    world.queue.refusals.record(world.queue.queued_pods[world.pod("p")], world.now, "", ())
    assert await pass_time(2 * TICK_S) >= 1
    task.cancel()
