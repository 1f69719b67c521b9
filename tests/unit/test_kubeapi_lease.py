import asyncio

import pytest

from kubeapi.errors import Unreachable
from kubeapi.lease import LeaseElector
from tests.lease_world import LeaseApi, candidate


@pytest.fixture
def api() -> LeaseApi:
    return LeaseApi()


async def leader(api) -> LeaseElector:
    first = candidate(api, "a")
    await first._round()
    return first


async def follower(api) -> LeaseElector:
    second = candidate(api, "b")
    await second._round()
    return second


async def test_the_first_creates_the_lease(api) -> None:
    first = candidate(api, "a")
    assert (first.is_leader, first.since, first.holder) == (False, None, "")
    await first._round()
    assert (first.is_leader, first.since, first.holder) == (True, 1000.0, "a")
    assert api.body["metadata"] == {"name": "lease", "namespace": "ns", "resourceVersion": "1"}
    assert api.spec == {
        "holderIdentity": "a",
        "leaseDurationSeconds": 15,
        "acquireTime": "1970-01-01T00:16:40.000000Z",
        "renewTime": "1970-01-01T00:16:40.000000Z",
        "leaseTransitions": 0,
    }


async def test_renewals_keep_the_time_of_taking_and_need_no_read(api) -> None:
    first = await leader(api)
    api.get = None
    api.now += 2
    await first._round()
    assert api.spec["acquireTime"] == "1970-01-01T00:16:40.000000Z"
    assert api.spec["renewTime"] == "1970-01-01T00:16:42.000000Z"
    assert (first.since, api.spec["leaseTransitions"]) == (1000.0, 0)


async def test_the_second_waits_a_whole_lease_after_the_last_renewal_it_saw(api) -> None:
    await leader(api)
    second = candidate(api, "b")
    api.now += 1
    await second._round()
    assert (second.is_leader, second.holder) == (False, "a")
    api.now += 14.9
    await second._round()
    assert not second.is_leader
    api.now += 0.1
    await second._round()
    assert (second.is_leader, second.since) == (True, 1016.0)
    assert (api.spec["holderIdentity"], api.spec["leaseTransitions"]) == ("b", 1)
    assert api.spec["acquireTime"] == api.spec["renewTime"]


async def test_a_renewal_starts_the_wait_over(api) -> None:
    first, second = await leader(api), await follower(api)
    api.now += 14
    await first._round()
    await second._round()
    api.now += 14.9
    await second._round()
    assert not second.is_leader


async def test_leadership_lapses_a_third_of_the_lease_before_anybody_can_take_it(api) -> None:
    first, second = await leader(api), await follower(api)
    assert first.gap_s == 5.0
    api.now += 9.9
    assert first.is_leader
    api.now += 0.1
    assert (first.is_leader, first.since) == (False, None)
    await second._round()
    assert not second.is_leader


async def test_an_outage_ends_leadership_and_it_begins_anew(api) -> None:
    first = await leader(api)
    api.away = Unreachable("refused")
    for _ in range(5):
        api.now += 2
        await first._round()
    assert not first.is_leader
    api.away = None
    await first._round()
    assert (first.is_leader, first.since, api.spec["leaseTransitions"]) == (True, 1010.0, 0)


async def test_a_renewal_without_answer_does_not_end_leadership(api) -> None:
    first = await leader(api)
    api.now += 2
    api.fault = "late"
    await first._round()
    assert first.is_leader
    api.now += 2
    await first._round()
    assert (first.is_leader, first.since) == (True, 1000.0)
    api.now += 9
    assert first.is_leader


async def test_a_write_by_hand_is_obeyed(api) -> None:
    first = await leader(api)
    api.body["spec"]["holderIdentity"] = "operator"
    api.body["metadata"]["resourceVersion"] = "99"
    api.now += 2
    await first._round()
    assert (first.is_leader, first.holder) == (False, "operator")


async def test_a_lease_deleted_by_hand_ends_leadership_until_it_is_made_again(api) -> None:
    first = await leader(api)
    api.body = None
    api.now += 1
    await first._round()
    assert not first.is_leader
    await first._round()
    assert (first.is_leader, first.since) == (True, 1001.0)


async def test_a_released_lease_is_taken_at_once(api) -> None:
    first, second = await leader(api), await follower(api)
    await first._release()
    assert (first.is_leader, api.spec["holderIdentity"], api.spec["leaseDurationSeconds"]) == (False, "", 1)
    await second._round()
    assert (second.is_leader, api.spec["leaseTransitions"], api.spec["leaseDurationSeconds"]) == (True, 1, 15)


async def test_a_foreign_record_without_fields_is_a_free_one(api) -> None:
    api.body = {"metadata": {"name": "lease", "resourceVersion": "7", "labels": {"keep": "me"}}, "spec": {}}
    assert (await leader(api)).is_leader
    assert api.body["metadata"]["labels"] == {"keep": "me"}


@pytest.mark.parametrize(
    "body", [{"metadata": 5}, {"metadata": {}, "spec": {"leaseDurationSeconds": "x"}}, []]
)
async def test_a_record_that_cannot_be_read_is_no_crash(api, body) -> None:
    api.body = body
    first = await leader(api)
    assert not first.is_leader


async def test_run_renews_and_releases_when_cancelled(api) -> None:
    rounds = asyncio.Queue()

    async def sleep(seconds) -> None:
        rounds.put_nowait(seconds)
        api.now += seconds
        await asyncio.sleep(0)

    first = candidate(api, "a", sleep=sleep)
    task = asyncio.create_task(first.run())
    assert [await rounds.get() for _ in range(3)] == [2.0, 2.0, 2.0]
    assert first.is_leader
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (first.is_leader, api.spec["holderIdentity"]) == (False, "")


async def test_a_stop_in_the_middle_of_a_renewal_still_releases(api) -> None:
    first = await leader(api)
    api.body["metadata"]["resourceVersion"] = "50"  # our own renewal, whose answer was not awaited
    await first._release()
    assert api.spec["holderIdentity"] == ""


async def test_a_stop_does_not_release_what_another_holds(api) -> None:
    first, second = await leader(api), await follower(api)
    api.now += 15
    await second._round()
    await first._release()
    assert api.spec["holderIdentity"] == "b"


async def test_a_stop_while_the_api_server_is_away(api) -> None:
    first = await leader(api)
    api.away = Unreachable("refused")
    await first._release()
    assert not first.is_leader


@pytest.mark.parametrize(
    ("lease_s", "renew_s"), [(0, 0.1), (1.5, 0.1), (-3, 1), (15, 0), (15, -1), (15, 5.1)]
)
def test_bad_times_are_refused(api, lease_s, renew_s) -> None:
    with pytest.raises(ValueError, match="expected"):
        candidate(api, "a", lease_s, renew_s)


async def test_who_may_not_lead_gives_the_lease_up_and_watches_it(api) -> None:
    eligible = True
    first, second = candidate(api, "a", is_eligible=lambda: eligible), candidate(api, "b")
    await first._round()
    assert first.is_leader
    eligible = False
    assert not first.is_leader, "at once, not at the next round"
    await first._round()
    assert api.spec["holderIdentity"] == ""
    await second._round()
    await first._round()
    assert (second.is_leader, first.holder) == (True, "b")
    eligible = True
    await first._round()
    assert not first.is_leader


async def test_who_may_not_lead_makes_no_lease(api) -> None:
    await candidate(api, "a", is_eligible=lambda: False)._round()
    assert api.body is None


async def test_nobody_waits_for_a_holder_that_is_known_to_have_stopped(api) -> None:
    first = candidate(api, "pair/a")
    second = candidate(api, "pair/b", has_stopped=lambda holder: holder.startswith("pair/"))
    other = candidate(api, "c")
    await first._round()
    await second._round()
    assert (second.is_leader, api.spec["holderIdentity"]) == (True, "pair/b")
    await other._round()
    api.now += 2
    api.body["spec"]["holderIdentity"] = "c"
    api.body["metadata"]["resourceVersion"] = "99"
    await second._round()
    assert (second.is_leader, second.holder) == (False, "c"), "that one has not stopped"
