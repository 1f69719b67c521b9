"""Stepper: when it calls its step."""

import asyncio

import pytest
import structlog

from kubeapi.stepper import Stepper


@pytest.mark.parametrize(("events", "sleeps"), [(1, 1), (3, 3), (10**6, 5)])
async def test_a_step_waits_for_a_quiet_moment_but_not_for_ever(mocker, events, sleeps):
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) < events:
            stepper.wake()

    async def step() -> None:
        stepper.wake()

    stepper = Stepper(step, burst_s=0.2, bursts=5)
    mocker.patch("kubeapi.stepper.asyncio.sleep", sleep)
    await stepper.run_once()
    assert slept == [0.2] * sleeps


async def test_a_step_that_is_due_by_its_own_time_does_not_wait_for_more_news(mocker):
    mocker.patch("kubeapi.stepper.asyncio.sleep", side_effect=AssertionError)

    async def step() -> float:
        return 0.0

    await Stepper(step, burst_s=0.2).run_once()


async def test_a_cancellation_that_a_step_keeps_ends_the_loop():
    started = asyncio.Event()

    async def step() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return

    task = asyncio.create_task(Stepper(step).run())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("is_failure", [True, False], ids=["failures", "a watch that stays behind"])
async def test_pauses_grow_until_a_step_goes_without(mocker, is_failure):
    pauses: list[float] = []
    is_right = False

    async def step() -> float:
        if is_right:
            return 0.0
        if is_failure:
            return await stepper.back_off(structlog.get_logger(), "not written", "no answer")
        return await stepper.pause_for_watch()

    stepper = Stepper(step)
    mocker.patch.object(stepper, "pause", side_effect=lambda pause_s: pauses.append(pause_s) or 0.0)
    for _ in range(9):
        await stepper.run_once()
    assert pauses[0] <= 0.2 < pauses[4] < 7.5 <= pauses[8] <= 15
    is_right = True
    await stepper.run_once()
    is_right = False
    await stepper.run_once()
    assert pauses[9] <= 0.2
