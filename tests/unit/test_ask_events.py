"""`gpupack why`: which Events are told of a pod, in which order and form."""

import json

import msgspec

from gpupack.whatif.events import MOST_EVENTS, PodEvents, format_events


def event(message, uid="u-1", **more):
    return {
        "involvedObject": {"kind": "Pod", "name": "p", "uid": uid},
        "reason": "R",
        "message": message,
        **more,
    }


def told(*events, uids=("u-1",)):
    return format_events(msgspec.json.decode(json.dumps({"items": events}), type=PodEvents).items, uids)


def test_events_of_a_deleted_pod_of_the_same_name_are_left_out():
    events = [event("old", uid="u-0", lastTimestamp="2026-01-01T00:00:00Z"), event("new")]
    assert told(*events) == ("R: new",)
    assert told(*events, uids=()) == ()


def test_events_are_in_order_of_time_and_written_alike_whoever_wrote_them():
    found = told(
        event("scheduler", eventTime="2026-01-01T00:00:30.250000Z", lastTimestamp=None),
        event(
            "kubelet", firstTimestamp="2026-01-01T00:00:05Z", lastTimestamp="2026-01-01T00:01:00Z", count=3
        ),
        event("zone", lastTimestamp="2026-01-01T01:00:10+01:00"),
        event(
            "series",
            eventTime="2026-01-01T00:00:01.000000Z",
            series={"count": 5, "lastObservedTime": "2026-01-01T00:02:00.5Z"},
        ),
        event("first", firstTimestamp="2026-01-01T00:00:20Z"),
        event("no zone", lastTimestamp="2026-01-01T00:00:15"),
        event("rubbish", lastTimestamp="soon"),
    )
    assert found == (
        "R: rubbish",
        "2026-01-01T00:00:10Z R: zone",
        "2026-01-01T00:00:15Z R: no zone",
        "2026-01-01T00:00:20Z R: first",
        "2026-01-01T00:00:30Z R: scheduler",
        "2026-01-01T00:01:00Z R: kubelet (x3)",
        "2026-01-01T00:02:00Z R: series (x5)",
    )


def test_the_newest_are_told():
    events = [event(str(second), lastTimestamp=f"2026-01-01T00:00:{second:02}Z") for second in range(20)]
    assert [line.rpartition(" ")[2] for line in told(*events)] == [
        str(at) for at in range(20 - MOST_EVENTS, 20)
    ]
