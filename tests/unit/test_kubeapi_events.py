import pytest
import structlog.testing

from kubeapi.correlation import BURST, COMBINED, REFILL_S, REMEMBERED, SIMILAR, SIMILAR_S, EventCorrelator
from kubeapi.errors import Forbidden, ServerError, Unauthorized, Unreachable
from kubeapi.events import BUSY_S, QUEUE, TRIES, WRITE_EACH_S, WRITES, make_node_ref, make_pod_ref
from kubeapi.ratelimit import TokenBucket
from tests.events_world import EventsApi, recording

POD = make_pod_ref("team", "train", "uid-1")
NODE = make_node_ref("n1")


@pytest.fixture
def api() -> EventsApi:
    return EventsApi()


async def tell(recorder, message="no card") -> None:
    """Record an Event of the pod, and wait until it is written."""
    recorder.event(POD, "Warning", "Waiting", message)
    assert await recorder.drain(5)


async def test_an_event_of_a_pod_is_what_kubectl_describe_asks_for(api) -> None:
    async with recording(api, host="n7") as recorder:
        recorder.event(POD, "Normal", "GPUsAssigned", "card 3")
        assert await recorder.drain(5)
    (path,) = api.objects
    assert path == "/api/v1/namespaces/team/events/train.e8d4a51000"
    assert api.objects[path] == {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "train.e8d4a51000", "namespace": "team"},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": "team",
            "name": "train",
            "uid": "uid-1",
        },
        "type": "Normal",
        "reason": "GPUsAssigned",
        "message": "card 3",
        "source": {"component": "gpupack-test", "host": "n7"},
        "reportingComponent": "gpupack-test",
        "reportingInstance": "n7",
        "count": 1,
        "firstTimestamp": "1970-01-01T00:16:40Z",
        "lastTimestamp": "1970-01-01T00:16:40Z",
    }


async def test_an_event_of_a_node_is_in_default_under_the_nodes_name_as_uid(api) -> None:
    async with recording(api) as recorder:
        recorder.event(NODE, "Warning", "XID", "48")
        assert await recorder.drain(5)
    ((path, event),) = api.objects.items()
    assert path.startswith("/api/v1/namespaces/default/events/n1.")
    assert event["involvedObject"] == {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "n1"}


async def test_a_repeated_event_raises_the_count_of_the_one_there_is(api) -> None:
    async with recording(api) as recorder:
        for _ in range(3):
            await tell(recorder)
            api.now += 60
    ((_, event),) = api.objects.items()
    assert (event["count"], event["firstTimestamp"], event["lastTimestamp"]) == (
        3,
        "1970-01-01T00:16:40Z",
        "1970-01-01T00:18:40Z",
    )
    assert api.verbs == ["post", "patch", "patch"]


async def test_what_comes_while_a_write_waits_goes_with_it(api) -> None:
    async with recording(api) as recorder:
        for _ in range(500):
            recorder.event(POD, "Warning", "Waiting", "no card")
        assert await recorder.drain(5)
    assert (api.shown, api.verbs) == ([("train", "no card", 500)], ["post"])


async def test_an_event_that_the_api_server_has_forgotten_is_created_again(api) -> None:
    async with recording(api) as recorder:
        await tell(recorder)
        api.objects.clear()
        await tell(recorder)
    assert api.shown == [("train", "no card", 2)]


async def test_many_different_messages_of_one_reason_become_one_event(api) -> None:
    async with recording(api) as recorder:
        for number in range(SIMILAR + 5):
            await tell(recorder, f"{number} nodes")
    assert len(api.objects) == SIMILAR
    assert api.shown[-1] == ("train", f"{COMBINED}{SIMILAR + 4} nodes", 6)


def test_messages_that_come_rarely_stay_apart(api) -> None:
    correlator = EventCorrelator(lambda: api.now, lambda: api.now)
    for number in range(3 * SIMILAR):
        series = correlator.add(POD, "Warning", "Waiting", f"{number} nodes")
        api.now += SIMILAR_S + 1
        assert series.message == f"{number} nodes"


async def test_one_object_gets_a_burst_of_writes_then_one_every_five_minutes(api) -> None:
    async with recording(api) as recorder:
        for _ in range(BURST + 20):
            await tell(recorder)
        assert (len(api.verbs), recorder.limited) == (BURST, 20)
        recorder.event(NODE, "Warning", "XID", "48")
        api.now += REFILL_S
        await tell(recorder)
    # The count in between was not lost, and another object has writes of its own.
    assert api.shown == [("train", "no card", BURST + 21), ("n1", "48", 1)]


async def test_all_objects_together_are_written_at_a_limited_pace(api) -> None:
    began = api.now
    async with recording(api) as recorder:
        for number in range(WRITES + 40):
            recorder.event(make_pod_ref("team", f"p{number}", ""), "Normal", "Waiting", "no card")
        assert await recorder.drain(5)
    assert len(api.objects) == WRITES + 40
    assert api.now - began == pytest.approx(40 * WRITE_EACH_S)


async def test_a_full_queue_drops_events_and_says_so_once_a_minute(api) -> None:
    with structlog.testing.capture_logs() as said:
        async with recording(api) as recorder:
            for number in range(QUEUE + 30):
                recorder.event(make_pod_ref("team", f"p{number}", ""), "Normal", "Waiting", "no card")
            # What waits already is written with the count of all.
            recorder.event(make_pod_ref("team", "p7", ""), "Normal", "Waiting", "no card")
            assert await recorder.drain(30)
    assert api.shown[7] == ("p7", "no card", 2)
    assert (len(api.objects), recorder.written, recorder.dropped) == (QUEUE, QUEUE, 30)
    assert [(line["event"], line["why"]) for line in said] == [("Events are lost", "queue is full")]


@pytest.mark.parametrize("away", [Unreachable("refused"), Unauthorized("expired")], ids=str)
async def test_an_api_server_that_is_back_in_time_loses_nothing(api, away) -> None:
    api.away = away

    async def sleep(seconds: float) -> None:
        await EventsApi.sleep(api, seconds)
        if len(api.verbs) == TRIES - 1:
            api.away = None

    api.sleep = sleep
    async with recording(api) as recorder:
        await tell(recorder)
    assert (api.shown, recorder.dropped) == ([("train", "no card", 1)], 0)


async def test_an_api_server_that_stays_away_costs_the_event_not_the_recorder(api) -> None:
    api.away = Unreachable("refused")
    async with recording(api) as recorder:
        await tell(recorder)
        assert (len(api.verbs), recorder.dropped, max(api.sleeps)) == (TRIES, 1, 10.0)
        api.away = None
        await tell(recorder)
    assert api.shown == [("train", "no card", 2)]


async def test_missing_rights_cost_one_request_each_and_one_line_of_log(api) -> None:
    api.away = Forbidden("may not create events", status=403)
    with structlog.testing.capture_logs() as said:
        async with recording(api) as recorder:
            for number in range(5):
                recorder.event(make_pod_ref("team", f"p{number}", ""), "Normal", "Waiting", "no card")
            assert await recorder.drain(5)
    assert (len(api.verbs), recorder.dropped) == (5, 5)
    assert [line["why"] for line in said] == ["may not create events"]


@pytest.mark.parametrize("fault", ["late", ServerError("did not complete in time", status=504)], ids=str)
@pytest.mark.parametrize("already", [False, True], ids=["create", "update"])
async def test_an_answer_that_is_lost_makes_no_second_event(api, already, fault) -> None:
    async with recording(api) as recorder:
        if already:
            await tell(recorder)
        api.fault = fault
        await tell(recorder)
    assert api.shown == [("train", "no card", 1 + already)]


async def test_texts_that_no_api_server_would_take_are_mended(api) -> None:
    async with recording(api) as recorder:
        recorder.event(make_pod_ref("team", "p" * 253, ""), "Normal", "Waiting", "lone \udc80\n" + "x" * 5000)
        assert await recorder.drain(5)
    ((path, event),) = api.objects.items()
    assert len(path.rpartition("/")[2]) == 253
    assert event["message"].startswith("lone ? xxx")
    assert len(event["message"]) == 1024


def test_memory_is_bounded(api) -> None:
    correlator = EventCorrelator(lambda: api.now, lambda: api.now)
    for number in range(REMEMBERED + 10):
        ref = make_pod_ref("team", f"p{number}", "")
        correlator.add(ref, "Normal", "Waiting", "no card")
        assert correlator.may_write(ref)
    assert len(correlator._series) == len(correlator._similar) == REMEMBERED
    assert correlator.add(make_pod_ref("team", "p0", ""), "Normal", "Waiting", "no card").count == 1
    assert correlator.add(ref, "Normal", "Waiting", "no card").count == 2


async def test_drain_gives_up_in_time(api) -> None:
    async with recording(api) as recorder:
        assert await recorder.drain(0.01)
    recorder.event(POD, "Normal", "Waiting", "nobody writes any more")
    assert not await recorder.drain(0.01)


@pytest.mark.parametrize(("burst", "refill_s"), [(0, 1.0), (1, 0.0), (1, float("nan"))])
def test_a_bucket_that_never_fills_is_refused(burst, refill_s) -> None:
    with pytest.raises(ValueError, match=f"token bucket of {burst}, one each {refill_s} s"):
        TokenBucket(burst, refill_s, lambda: 0.0)


async def test_events_wait_while_there_is_something_more_urgent_to_write(api) -> None:
    urgent = iter((True, True))
    async with recording(api, busy=lambda: next(urgent, False)) as recorder:
        for number in range(4):
            recorder.event(make_pod_ref("team", f"p{number}", ""), "Normal", "Admitted", "it fits")
        assert await recorder.drain(5)
    assert api.sleeps == [BUSY_S, BUSY_S]
    assert len(api.objects) == 4


async def test_a_longer_queue_drops_later(api) -> None:
    async with recording(api, most=QUEUE + 30) as recorder:
        for number in range(QUEUE + 31):
            recorder.event(make_pod_ref("team", f"p{number}", ""), "Normal", "Admitted", "it fits")
        assert await recorder.drain(30)
    assert (recorder.written, recorder.dropped) == (QUEUE + 30, 1)
