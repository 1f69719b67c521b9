"""Answers that are made once for all who ask, and bounds of the work of an HTTP server."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack

import aiohttp
import pytest
from aiohttp import web

from kubeapi.listening import Connection, Connections
from kubeapi.serving import SHARED_PARTS, SharedAnswer, serve_health, start_serving

LIMIT_S = 20.0


class Maker:
    """Makes numbered answers; each takes a second of the test's clock."""

    def __init__(self) -> None:
        self.made = 0
        self.now = 0.0
        self.slept: list[float] = []
        self.fails = False
        self.begun = asyncio.Event()
        self.shared = SharedAnswer(self.make, clock=lambda: self.now, sleep=self.sleep)

    async def make(self) -> bytes:
        self.begun.set()
        await asyncio.sleep(0)
        self.now += 1.0
        if self.fails:
            raise ValueError("no answer")
        self.made += 1
        return b"%d" % self.made

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)


async def test_who_asks_at_a_time_gets_one_answer() -> None:
    maker = Maker()
    assert await asyncio.gather(*(maker.shared.get() for _ in range(50))) == [b"1"] * 50
    assert maker.made == 1


async def test_after_an_answer_it_rests_three_times_as_long() -> None:
    maker = Maker()
    await maker.shared.get()
    assert await asyncio.gather(*(maker.shared.get() for _ in range(50))) == [b"2"] * 50
    assert maker.slept == [SHARED_PARTS - 1]
    maker.now += 100
    assert await maker.shared.get() == b"3"
    assert maker.slept == [SHARED_PARTS - 1]


async def test_who_asks_while_an_answer_is_made_gets_a_newer_one() -> None:
    maker = Maker()
    first = asyncio.create_task(maker.shared.get())
    await maker.begun.wait()
    assert (await maker.shared.get(), await first) == (b"2", b"1")


async def test_a_failure_is_that_of_all_who_wait_and_the_next_one_is_made() -> None:
    maker = Maker()
    maker.fails = True
    found = await asyncio.gather(*(maker.shared.get() for _ in range(3)), return_exceptions=True)
    assert [str(each) for each in found] == ["no answer"] * 3
    maker.fails = False
    assert await maker.shared.get() == b"1"


@pytest.mark.parametrize("leave", [False, True])
async def test_health_is_answered_while_too_many_requests_are(
    monkeypatch: pytest.MonkeyPatch, *, leave: bool
) -> None:
    """Whose client went away is answered all the same, and counts. Who is refused was answered, too."""
    made: list[Connections] = []

    def connect(make_protocol: Callable[[Connection], asyncio.Protocol], most: int) -> Connections:
        made.append(Connections(make_protocol, most))
        return made[0]

    monkeypatch.setattr("kubeapi.serving.Connections", connect)
    let_go, under_way = asyncio.Event(), asyncio.Semaphore(0)

    async def slow(_request: web.Request) -> web.Response:
        under_way.release()
        await let_go.wait()
        return web.Response(text="done")

    app = web.Application()
    app.add_routes([*serve_health(lambda: "not yet"), web.get("/slow", slow)])
    async with (
        asyncio.timeout(LIMIT_S),
        AsyncExitStack() as stack,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
    ):
        host, port, _ = await start_serving(stack, app, "127.0.0.1:0", ValueError, most_connections=8)
        url = f"http://{host}:{port}"
        asked = [asyncio.create_task(session.get(f"{url}/slow")) for _ in range(6)]
        for _ in asked:
            await under_way.acquire()
        if leave:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        async with session.get(f"{url}/slow") as refused:
            assert (refused.status, refused.headers["Retry-After"]) == (429, "1")
            assert await refused.text() == "6 requests are being answered; allowed: no more\n"
        idle = [each for each in made[0].by_protocol.values() if not each.is_answering]
        assert [each.was_answered for each in idle] == [True]
        for path, expected in (("/healthz", (200, "ok\n")), ("/readyz", (503, "not yet\n"))):
            async with session.get(url + path) as answer:
                assert (answer.status, await answer.text()) == expected
        let_go.set()
        for task in () if leave else asked:
            assert await (await task).text() == "done"
        async with session.get(f"{url}/nowhere") as answer:
            said = await answer.text()
        assert said == 'GET "/nowhere"; allowed: GET /healthz, GET /readyz, GET /slow\n'
