"""A call of the driver that hangs takes one thread, and no one else waits."""

import asyncio
import threading

import pytest

from deviceplugin.host.driver import DriverThread


async def test_calls_are_made_in_their_order_by_one_thread() -> None:
    driver = DriverThread("t")
    names = await asyncio.gather(*(driver.call(lambda: threading.current_thread().name) for _ in range(3)))
    assert names == ["t"] * 3
    assert driver.busy_s == 0
    driver.end()


async def test_errors_belong_to_the_caller() -> None:
    driver = DriverThread("t")
    with pytest.raises(ZeroDivisionError):
        await driver.call(lambda: 1 // 0)
    assert await driver.call(lambda: 7) == 7
    driver.end()


async def test_who_is_cancelled_waits_no_more_and_later_calls_come_after_the_one_that_hangs() -> None:
    now_s = [10.0]
    driver, hangs, begun = DriverThread("t", lambda: now_s[0]), threading.Event(), threading.Event()
    call = asyncio.create_task(driver.call(lambda: (begun.set(), hangs.wait(30))))
    assert await asyncio.to_thread(begun.wait, 30)
    now_s[0] = 17.0
    assert driver.busy_s == 7
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    dropped = asyncio.create_task(driver.call(lambda: pytest.fail("nobody waits for it")))
    await asyncio.sleep(0)
    dropped.cancel()
    later = asyncio.create_task(driver.call(lambda: "later"))
    await asyncio.sleep(0)
    assert not later.done()
    hangs.set()
    assert await later == "later"
    driver.end()
