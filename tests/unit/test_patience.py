"""A refused pod that comes back: kube-scheduler read the news before us."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from scheduler_plugin.extender.filter_reply import FilterReply
from scheduler_plugin.extender.metrics import Metrics
from scheduler_plugin.extender.server import ExtenderService
from scheduler_plugin.extender.stale_refusals import (
    MAX_REFUSED_PODS,
    PAUSE_S,
    StaleRefusalWait,
    WatchActivity,
)
from tests.clock import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def patience(clock: Clock) -> StaleRefusalWait:
    return StaleRefusalWait(WatchActivity(), clock)


def test_a_new_pod_is_not_waited_for(patience: StaleRefusalWait) -> None:
    assert not patience.should_wait("a")


def test_a_pod_that_comes_back_without_news_is(patience: StaleRefusalWait) -> None:
    patience.record_refused("a")
    patience.record_vain_wait()
    assert patience.should_wait("a")
    assert not patience.should_wait("b")


def test_among_other_news_waits_in_vain_are_rare(patience: StaleRefusalWait, clock: Clock) -> None:
    patience.record_refused("a")
    patience.activity.record_event()
    assert patience.should_wait("a")
    patience.record_vain_wait()
    assert not patience.should_wait("a")
    clock.now += PAUSE_S
    assert patience.should_wait("a")


def test_a_pod_that_found_a_node_is_new_again(patience: StaleRefusalWait) -> None:
    patience.record_refused("a")
    patience.record_passed("a")
    patience.record_passed("never seen")
    assert not patience.should_wait("a")


def test_the_oldest_are_forgotten(patience: StaleRefusalWait) -> None:
    for number in range(MAX_REFUSED_PODS + 1):
        patience.record_refused(str(number))
    assert not patience.should_wait("0")
    assert patience.should_wait("1")


async def test_news_end_a_wait_when_they_are_the_right_ones() -> None:
    news, seen = WatchActivity(), []

    def enough() -> bool:
        seen.append(news.count)
        return news.count == 2

    waiting = asyncio.create_task(news.wait_until(enough, 30))
    for _ in range(2):
        await asyncio.sleep(0)
        news.record_event()
    assert await waiting
    assert seen == [0, 1, 2]


async def test_a_wait_ends() -> None:
    assert not await WatchActivity().wait_until(lambda: False, 0.01)


class FullUntil:
    """An extender whose only node has room once enough news came."""

    def __init__(self, news: WatchActivity, count: int) -> None:
        self.news, self.count = news, count

    def filter(self, body: bytes, _now: float, _stale: str) -> FilterReply:
        return (
            FilterReply(b"passed")
            if self.news.count >= self.count
            else FilterReply(b"refused", body.decode())
        )

    def record_attempt(self, found: FilterReply) -> None:
        pass


def make_service(patience: StaleRefusalWait, clock: Clock, room_at: int) -> ExtenderService:
    return ExtenderService(
        extender=cast("Any", FullUntil(patience.activity, room_at)),
        binder=cast("Any", None),
        watcher=cast("Any", SimpleNamespace(stale="")),
        metrics=Metrics(),
        clock=clock,
        stale_refusal_wait=patience,
        reporter=cast("Any", SimpleNamespace(report_filter=lambda _found: None)),
        retrier=cast("Any", SimpleNamespace(record_reply=lambda _found: None)),
    )


async def call(service: ExtenderService, uid: str) -> bytes:
    return (await service.filter(uid.encode())).body


async def test_filter_answers_a_first_refusal_at_once_and_the_next_after_the_news(
    patience: StaleRefusalWait, clock: Clock
) -> None:
    service = make_service(patience, clock, room_at=1)
    assert await call(service, "a") == b"refused"
    again = asyncio.create_task(call(service, "a"))
    await asyncio.sleep(0)
    assert not again.done()
    patience.activity.record_event()
    assert await again == b"passed"


async def test_filter_refuses_again_when_no_news_come(patience: StaleRefusalWait, clock: Clock) -> None:
    service = make_service(patience, clock, room_at=1)
    assert await call(service, "a") == b"refused"
    assert await call(service, "a") == b"refused"
    patience.activity.record_event()
    assert await call(service, "a") == b"passed"
