"""The reflector against a scripted API: what it asks, delivers and waits, without time or network."""

import asyncio

import pytest

from kubeapi.errors import Gone, KubeApiError, Malformed, Unreachable
from tests.reflect_world import Api, error_event, event, item, page, play, running, versions

GONE = Gone("too old", status=410)


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
