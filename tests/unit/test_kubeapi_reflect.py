"""The reflector against a scripted API: what it asks, delivers and waits, without time or network."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import msgspec
import pytest

from kubeapi.errors import Gone, KubeApiError, Malformed, TimedOut, TooManyRequests, Unreachable
from kubeapi.reflect import Reflector, SinkFailedError


class Meta(msgspec.Struct):
    name: str


class Item(msgspec.Struct):
    metadata: Meta


def item(name, version="1") -> dict:
    return {
        "metadata": {"name": name, "resourceVersion": version, "extra": {"deep": [1, None]}},
        "spec": None,
    }


def page(version, *items, more="") -> bytes:
    return json.dumps(
        {"metadata": {"resourceVersion": version, "continue": more}, "items": list(items)}
    ).encode()


def event(kind, name, version) -> bytes:
    return json.dumps({"type": kind, "object": item(name, version)}).encode()


def error_event(code) -> bytes:
    body = {"kind": "Status", "code": code, "reason": "Expired", "message": "too old resource version: 1 (2)"}
    return json.dumps({"type": "ERROR", "object": body}).encode()


GONE = Gone("too old", status=410)


class Api:
    """Plays answers: for a list its pages, for a watch its lines; an exception is raised in its place.

    When nothing is left it waits for ever and sets `idle`. What a list of one object says of the newest
    version is not part of the script: `newest`, or by default that nothing has gone back.
    """

    def __init__(self, *answers) -> None:
        self.answers = list(answers)
        self.asked = []
        self.idle = asyncio.Event()
        self.now = 0.0
        self.slept = []
        self.open = 0
        self.newest = "999"
        self.probes = 0
        self.rubbish = False

    async def _next(self, kind, *asked) -> list:
        self.asked.append((kind, *asked))
        if not self.answers:
            self.idle.set()
            await asyncio.Event().wait()
        wanted, answer = self.answers.pop(0)
        assert wanted == kind, f"a {kind} came, the script expects a {wanted}"
        return answer

    async def pages(self, path, limit, **params) -> AsyncIterator[bytes]:
        if limit == 1:
            self.probes += 1
            yield b"<html>" if self.rubbish else page(self.newest, item("any"), more="x")
            raise AssertionError("nobody wants a second page of that")
        for each in await self._next("list", path, limit, params):
            if isinstance(each, Exception):
                raise each
            yield each

    async def watch(
        self, path, resource_version, *, timeout_s, idle_s, opened, **params
    ) -> AsyncIterator[bytes]:
        self.open += 1
        try:
            for each in await self._next("watch", path, resource_version, timeout_s, params):
                if isinstance(each, float):
                    self.now += each
                elif isinstance(each, Exception):
                    raise each
                elif each is None:
                    opened()
                else:
                    yield each
        finally:
            self.open -= 1

    async def sleep(self, seconds) -> None:
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)


class Log:
    """A sink that remembers; `fail` makes its next call raise."""

    def __init__(self) -> None:
        self.calls = []
        self.fail = None

    def _note(self, *call) -> None:
        self.calls.append(call)
        if self.fail == call[0]:
            self.fail = None
            raise KeyError("a bug in the consumer")

    def replace(self, items, resource_version) -> None:
        self._note("replace", [each.metadata.name for each in items], resource_version)

    def event(self, kind, item, resource_version) -> None:
        self._note(kind, item.metadata.name, resource_version)

    def bookmark(self, resource_version) -> None:
        self._note("bookmark", resource_version)

    def disconnected(self, error) -> None:
        self._note("disconnected", type(error))


@contextlib.asynccontextmanager
async def running(api, sink=None, **options):
    sink = sink or Log()
    reflector = Reflector(
        api,
        "/api/v1/pods",
        Item,
        sink,
        clock=lambda: api.now,
        sleep=api.sleep,
        uniform=lambda _low, high: high,
        **options,
    )
    task = asyncio.create_task(reflector.run())
    try:
        yield reflector, sink
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert api.open == 0


async def play(*answers, **options):
    api = Api(*answers)
    async with running(api, **options) as (reflector, sink):
        await asyncio.wait_for(api.idle.wait(), 5)
    return api, reflector, sink


def versions(api) -> list[str]:
    return [asked[2] for asked in api.asked if asked[0] == "watch"]


async def test_a_list_in_pages_then_events() -> None:
    api, reflector, sink = await play(
        ("list", [page("9", item("a"), more="x"), page("9", item("b"))]),
        (
            "watch",
            [None, event("ADDED", "c", "10"), event("MODIFIED", "a", "11"), event("DELETED", "b", "12")],
        ),
        params={"fieldSelector": "spec.nodeName=n"},
        watch_s=100,
        page_size=7,
    )
    assert sink.calls == [
        ("replace", ["a", "b"], "9"),
        ("ADDED", "c", "10"),
        ("MODIFIED", "a", "11"),
        ("DELETED", "b", "12"),
    ]
    assert api.asked[0] == ("list", "/api/v1/pods", 7, {"fieldSelector": "spec.nodeName=n"})
    assert api.asked[1] == ("watch", "/api/v1/pods", "9", 100, {"fieldSelector": "spec.nodeName=n"})
    assert versions(api) == ["9", "12"]
    assert (reflector.synced, reflector.resource_version, reflector.lists) == (True, "12", 1)
    assert api.slept == []


@pytest.mark.parametrize("items", ["[]", "null"])
async def test_an_empty_list(items) -> None:
    body = f'{{"metadata":{{"resourceVersion":"4"}},"items":{items}}}'.encode()
    _, reflector, sink = await play(("list", [body]))
    assert sink.calls == [("replace", [], "4")]
    assert reflector.synced


async def test_bookmarks_move_the_version_and_need_no_item() -> None:
    bookmark = (
        b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"50"},"spec":{"containers":null}}}'
    )
    api, _, sink = await play(("list", [page("9")]), ("watch", [None, bookmark]))
    assert sink.calls == [("replace", [], "9"), ("bookmark", "50")]
    assert versions(api) == ["9", "50"]


async def test_a_watch_that_ends_in_peace_is_resumed_without_a_list_or_a_wait() -> None:
    api, _, sink = await play(
        ("list", [page("9")]),
        ("watch", [None, 120.0]),
        ("watch", [event("ADDED", "a", "10")]),
        ("watch", [None, 1.0]),
    )
    assert versions(api) == ["9", "9", "10", "10"]
    assert api.slept == []
    assert [call[0] for call in sink.calls] == ["replace", "ADDED"]


async def test_a_server_that_ends_watches_at_once_is_not_asked_in_a_hot_loop() -> None:
    api, reflector, sink = await play(
        ("list", [page("9")]), ("watch", [None]), ("watch", []), ("watch", [None, event("ADDED", "a", "10")])
    )
    assert api.slept == [0.5, 1.0]
    assert reflector.lists == 1
    assert sink.calls[1:] == [
        ("disconnected", KubeApiError),
        ("disconnected", KubeApiError),
        ("ADDED", "a", "10"),
    ]


@pytest.mark.parametrize(
    "answer", [[GONE], [None, error_event(410)], [event("ADDED", "z", "10"), error_event(410)]]
)
async def test_410_in_any_form_lists_again(answer) -> None:
    api, reflector, sink = await play(
        ("list", [page("9", item("a"))]), ("watch", answer), ("list", [page("20", item("b"))])
    )
    assert reflector.lists == 2
    assert sink.calls[-2:] == [("disconnected", Gone), ("replace", ["b"], "20")]
    assert versions(api) == ["9", "20"]
    assert api.slept == [0.5]


async def test_410_within_a_list_starts_it_over_and_delivers_nothing_of_the_first() -> None:
    api, _, sink = await play(
        ("list", [page("9", item("old"), more="x"), GONE]), ("list", [page("30", item("new"))])
    )
    assert sink.calls == [("disconnected", Gone), ("replace", ["new"], "30")]
    assert versions(api) == ["30"]


async def test_an_outage_backs_off_keeps_the_version_and_recovers() -> None:
    down = [Unreachable("refused")]
    api, reflector, sink = await play(
        ("list", [page("9")]),
        *[("watch", down)] * 7,
        ("watch", [None, event("ADDED", "a", "10")]),
        ("watch", down),
    )
    assert api.slept == [0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0, 0.5]
    assert reflector.lists == 1
    assert versions(api) == ["9"] * 8 + ["10", "10"]
    assert sink.calls.count(("disconnected", Unreachable)) == 8


async def test_an_api_server_that_went_back_is_listed_anew() -> None:
    api = Api(
        ("list", [page("90")]),
        ("watch", [None, event("ADDED", "a", "100"), Unreachable("reset")]),
        ("list", [page("40", item("b"))]),
    )
    api.newest = "40"
    async with running(api) as (reflector, sink):
        await asyncio.wait_for(api.idle.wait(), 5)
    assert sink.calls[-2:] == [("disconnected", Unreachable), ("replace", ["b"], "40")]
    assert versions(api) == ["90", "40"]
    assert reflector.resource_version == "40"
    assert api.probes == 1


async def test_the_newest_version_is_asked_for_after_an_interruption_only() -> None:
    api, _, _ = await play(
        ("list", [page("9")]),
        ("watch", [None, 120.0]),
        ("watch", [None, event("ADDED", "a", "10"), Unreachable("reset")]),
        ("watch", [None, 120.0]),
    )
    assert versions(api) == ["9", "9", "10", "10"]
    assert api.probes == 1


async def test_a_newest_version_that_cannot_be_read_leads_to_a_list() -> None:
    api = Api(("list", [page("10")]), ("watch", [Unreachable("reset")]), ("list", [page("11")]))
    api.rubbish = True
    async with running(api) as (reflector, sink):
        await asyncio.wait_for(api.idle.wait(), 5)
    assert sink.calls[1:] == [
        ("disconnected", Unreachable),
        ("disconnected", Malformed),
        ("replace", [], "11"),
    ]
    assert reflector.lists == 2


@pytest.mark.parametrize("version", ["", "rubbish", "10"])
async def test_a_version_that_is_not_lower_has_not_gone_back(version) -> None:
    api = Api(("list", [page("10")]), ("watch", [Unreachable("reset")]), ("watch", [None]))
    api.newest = version
    async with running(api) as (reflector, _):
        await asyncio.wait_for(api.idle.wait(), 5)
    assert reflector.lists == 1


async def test_a_list_that_fails_is_tried_again() -> None:
    api, reflector, sink = await play(
        ("list", [TimedOut("late")]),
        ("list", [TooManyRequests("slow down", retry_after_s=7.0)]),
        ("list", [page("3")]),
    )
    assert api.slept == [0.5, 7.0]
    assert sink.calls == [("disconnected", TimedOut), ("disconnected", TooManyRequests), ("replace", [], "3")]
    assert reflector.synced


@pytest.mark.parametrize(
    "line",
    [
        b"rubbish",
        b"{",
        b"\xff\xfe\x00",
        b'{"type":"ADDED"}',
        b'{"type":"ADDED","object":5}',
        b'{"type":"ADDED","object":{"metadata":{"resourceVersion":"10"}}}',
        b'{"type":"ADDED","object":{"metadata":{"name":5,"resourceVersion":"10"}}}',
        b'{"type":"ADDED","object":{"metadata":{"name":"\xff","resourceVersion":"10"}}}',
        b'{"type":"UNHEARD","object":{"metadata":{"name":"a","resourceVersion":"10"}}}',
        b'{"type":"ERROR","object":[]}',
        b"[" * 100_000,
    ],
)
async def test_rubbish_in_a_watch_is_one_error_and_a_new_list(line) -> None:
    api, reflector, sink = await play(
        ("list", [page("9")]),
        ("watch", [None, line, event("ADDED", "never", "11")]),
        ("list", [page("12", item("a"))]),
    )
    assert sink.calls == [("replace", [], "9"), ("disconnected", Malformed), ("replace", ["a"], "12")]
    assert api.slept == [0.5]
    assert reflector.lists == 2


async def test_an_error_event_of_another_kind_resumes() -> None:
    api, reflector, sink = await play(("list", [page("9")]), ("watch", [None, error_event(500)]))
    assert reflector.lists == 1
    assert versions(api) == ["9", "9"]
    assert sink.calls[-1][0] == "disconnected"


@pytest.mark.parametrize(
    "body", [b"rubbish", b'{"metadata":{}}', b'{"items":[]}', b'{"metadata":{"resourceVersion":7}}']
)
async def test_a_list_page_that_is_none(body) -> None:
    api, _, sink = await play(("list", [body]), ("list", [page("3")]))
    assert sink.calls == [("disconnected", Malformed), ("replace", [], "3")]
    assert api.slept == [0.5]


async def test_one_bad_object_in_a_list_costs_only_itself() -> None:
    bad = {"metadata": {"name": 5}}
    _, reflector, sink = await play(("list", [page("9", item("a"), bad, item("b"))]))
    assert sink.calls == [("replace", ["a", "b"], "9")]
    assert reflector.skipped == 1


async def test_a_consumer_that_raises_gets_a_new_list() -> None:
    sink = Log()
    sink.fail = "ADDED"
    api = Api(
        ("list", [page("9")]), ("watch", [None, event("ADDED", "a", "10")]), ("list", [page("11", item("a"))])
    )
    async with running(api, sink) as (reflector, _):
        await asyncio.wait_for(api.idle.wait(), 5)
    assert sink.calls[2:] == [("disconnected", SinkFailedError), ("replace", ["a"], "11")]
    assert reflector.lists == 2


async def test_relist_interrupts_a_watch() -> None:
    api = Api(("list", [page("9")]))
    async with running(api) as (reflector, sink):
        await asyncio.wait_for(api.idle.wait(), 5)
        api.answers = [("list", [page("15", item("a"))])]
        api.idle.clear()
        reflector.relist()
        await asyncio.wait_for(api.idle.wait(), 5)
    assert sink.calls == [("replace", [], "9"), ("replace", ["a"], "15")]


async def test_relist_interrupts_a_wait() -> None:
    api = Api(("list", [Unreachable("refused")]), ("list", [page("3")]))
    waiting = asyncio.Event()

    async def sleep(seconds) -> None:
        waiting.set()
        await asyncio.Event().wait()

    api.sleep = sleep
    async with running(api) as (reflector, sink):
        await asyncio.wait_for(waiting.wait(), 5)
        reflector.relist()
        await asyncio.wait_for(api.idle.wait(), 5)
    assert sink.calls[-1] == ("replace", [], "3")


async def test_last_contact_follows_answers_and_events() -> None:
    api = Api(("list", [page("9")]), ("watch", [5.0, None, 3.0]))
    async with running(api) as (reflector, _):
        assert reflector.last_contact is None
        await asyncio.wait_for(api.idle.wait(), 5)
        assert (api.now, reflector.last_contact) == (8.0, 5.0)
        assert reflector.resource_version == "9"


async def test_cancelled_while_waiting_it_leaves_nothing_behind() -> None:
    api = Api(("list", [Unreachable("refused")]))
    waiting = asyncio.Event()

    async def sleep(seconds) -> None:
        waiting.set()
        await asyncio.Event().wait()

    api.sleep = sleep
    before = asyncio.all_tasks()
    async with running(api):
        await asyncio.wait_for(waiting.wait(), 5)
    assert asyncio.all_tasks() == before
