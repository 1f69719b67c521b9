"""A refused pod that comes back: kube-scheduler read the news before us."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from scheduler_plugin.extender.filter_reply import Filtered
from scheduler_plugin.extender.metrics import Metrics
from scheduler_plugin.extender.server import Service
from scheduler_plugin.extender.stale_refusals import REMEMBERED, REST_S, News, Patience


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def patience(clock: Clock) -> Patience:
    return Patience(News(), clock)


def test_a_new_pod_is_not_waited_for(patience: Patience) -> None:
    assert not patience.is_worth_it("a")


def test_a_pod_that_comes_back_without_news_is(patience: Patience) -> None:
    patience.note_refused("a")
    patience.note_in_vain()
    assert patience.is_worth_it("a")
    assert not patience.is_worth_it("b")


def test_among_other_news_waits_in_vain_are_rare(patience: Patience, clock: Clock) -> None:
    patience.note_refused("a")
    patience.news.note()
    assert patience.is_worth_it("a")
    patience.note_in_vain()
    assert not patience.is_worth_it("a")
    clock.now += REST_S
    assert patience.is_worth_it("a")


def test_a_pod_that_found_a_node_is_new_again(patience: Patience) -> None:
    patience.note_refused("a")
    patience.note_passed("a")
    patience.note_passed("never seen")
    assert not patience.is_worth_it("a")


def test_the_oldest_are_forgotten(patience: Patience) -> None:
    for number in range(REMEMBERED + 1):
        patience.note_refused(str(number))
    assert not patience.is_worth_it("0")
    assert patience.is_worth_it("1")


async def test_news_end_a_wait_when_they_are_the_right_ones() -> None:
    news, seen = News(), []

    def enough() -> bool:
        seen.append(news.count)
        return news.count == 2

    waiting = asyncio.create_task(news.until(enough, 30))
    for _ in range(2):
        await asyncio.sleep(0)
        news.note()
    assert await waiting
    assert seen == [0, 1, 2]


async def test_a_wait_ends() -> None:
    assert not await News().until(lambda: False, 0.01)


class FullUntil:
    """An extender whose only node has room once enough news came."""

    def __init__(self, news: News, count: int) -> None:
        self.news, self.count = news, count

    def filter(self, body: bytes, _now: float, _stale: str) -> Filtered:
        return Filtered(b"passed") if self.news.count >= self.count else Filtered(b"refused", body.decode())

    def answered(self, found: Filtered) -> None:
        pass


def make_service(patience: Patience, clock: Clock, room_at: int) -> Service:
    return Service(
        extender=cast("Any", FullUntil(patience.news, room_at)),
        binder=cast("Any", None),
        watcher=cast("Any", SimpleNamespace(stale="")),
        metrics=Metrics(),
        clock=clock,
        patience=patience,
        reporter=cast("Any", SimpleNamespace(filtered=lambda _found: None)),
    )


async def call(service: Service, uid: str) -> bytes:
    return (await service.filter(uid.encode())).body


async def test_filter_answers_a_first_refusal_at_once_and_the_next_after_the_news(
    patience: Patience, clock: Clock
) -> None:
    service = make_service(patience, clock, room_at=1)
    assert await call(service, "a") == b"refused"
    again = asyncio.create_task(call(service, "a"))
    await asyncio.sleep(0)
    assert not again.done()
    patience.news.note()
    assert await again == b"passed"


async def test_filter_refuses_again_when_no_news_come(patience: Patience, clock: Clock) -> None:
    service = make_service(patience, clock, room_at=1)
    assert await call(service, "a") == b"refused"
    assert await call(service, "a") == b"refused"
    patience.news.note()
    assert await call(service, "a") == b"passed"
