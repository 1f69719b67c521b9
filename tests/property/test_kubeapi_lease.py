"""However writes get lost and time passes, there is one leader at most, and a gap before the next."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lease_world import LeaseApi, candidate

ACTIONS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.5, 2.0, 4.9, 10.0, 15.0]),
        st.integers(0, 2),
        st.sampled_from([None, None, None, "lost", "late"]),
        st.sampled_from(["round", "round", "round", "round", "release"]),
    ),
    min_size=5,
    max_size=60,
)


@given(ACTIONS)
@settings(deadline=None)
def test_there_is_one_leader_at_most_and_a_gap_between_two(actions) -> None:
    asyncio.run(play(actions))


async def play(actions) -> None:
    api = LeaseApi()
    candidates = [candidate(api, name) for name in "abc"]
    lapse = dict.fromkeys(candidates, 0.0)
    led = None
    for wait_s, index, fault, action in actions:
        api.now += wait_s
        api.fault = fault
        acting = candidates[index]
        if action == "release":
            await acting._release()
            if led is acting:
                led = None
        else:
            await acting._round()
        leaders = [each for each in candidates if each.is_leader]
        assert len(leaders) <= 1
        for leader in leaders:
            if led not in {None, leader}:
                assert api.now >= lapse[led] + led.gap_s
            led = leader
            lapse[leader] = leader._renewed_at + leader._deadline_s
            assert leader.since is not None
