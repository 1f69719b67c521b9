"""A reflector and an API server that fails or answers rubbish."""

import asyncio

import pytest

from kubeapi.errors import Malformed, TimedOut, TooManyRequests, Unreachable
from kubeapi.reflect import SinkFailedError
from tests.reflect_world import Api, Log, error_event, event, item, page, play, running, versions


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


def sleep_for_ever(api: Api) -> asyncio.Event:
    """Let no wait end; the event is set once one has begun."""
    waiting = asyncio.Event()

    async def sleep(seconds) -> None:
        waiting.set()
        await asyncio.Event().wait()

    api.sleep = sleep
    return waiting


async def test_relist_interrupts_a_wait() -> None:
    api = Api(("list", [Unreachable("refused")]), ("list", [page("3")]))
    waiting = sleep_for_ever(api)
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
    waiting = sleep_for_ever(api)
    before = asyncio.all_tasks()
    async with running(api):
        await asyncio.wait_for(waiting.wait(), 5)
    assert asyncio.all_tasks() == before
