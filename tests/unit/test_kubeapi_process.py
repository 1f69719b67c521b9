"""The life of a process: works that end, fail, and are cancelled."""

import asyncio

import pytest

from kubeapi.process import run_until


class Endless:
    """A part that notes when it begins and ends."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.began = asyncio.Event()

    async def run(self) -> None:
        self.seen.append("began")
        self.began.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.seen.append("ended")


async def fail(after: asyncio.Event) -> None:
    await after.wait()
    raise ValueError("broken")


async def end_at_once() -> None:
    return


async def test_works_run_until_the_stop_and_what_is_under_way_is_drained_before():
    stop, part, order = asyncio.Event(), Endless(), []

    async def drain() -> None:
        order.extend(part.seen)

    running = asyncio.create_task(run_until(stop, part, None, end_at_once(), drain=drain))
    await part.began.wait()
    stop.set()
    await running
    assert (order, part.seen) == (["began"], ["began", "ended"])


async def test_a_work_that_fails_ends_the_others_without_a_drain():
    failing, part = asyncio.Event(), Endless()
    failing.set()

    async def drain() -> None:
        raise AssertionError

    with pytest.raises(ValueError, match="broken"):
        await run_until(asyncio.Event(), part, fail(failing), drain=drain)
    assert part.seen == ["began", "ended"]


async def test_the_first_failure_is_raised_whatever_fails_as_it_is_cancelled(capsys):
    async def fail_at_its_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise RuntimeError("cleaning up")

    failing = asyncio.Event()
    failing.set()
    with pytest.raises(ValueError, match="broken"):
        await run_until(asyncio.Event(), fail_at_its_end(), fail(failing))
    assert "cleaning up" in capsys.readouterr().out


async def test_nothing_is_waited_for_once_every_work_has_ended():
    await run_until(asyncio.Event(), end_at_once(), end_at_once())


async def test_a_work_that_fails_while_the_others_are_drained_is_told():
    stop, failing = asyncio.Event(), asyncio.Event()
    stop.set()

    async def drain() -> None:
        failing.set()
        await asyncio.sleep(0)

    with pytest.raises(ValueError, match="broken"):
        await run_until(stop, fail(failing), drain=drain)


async def test_a_cancelled_process_cancels_its_works():
    part = Endless()
    running = asyncio.create_task(run_until(asyncio.Event(), part))
    await part.began.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert part.seen == ["began", "ended"]
