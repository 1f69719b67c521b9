"""The committer of batch mode: lists of nodes in, at most one Binding a pod out, whatever fails."""

import asyncio
import json
import random
from collections import Counter
from typing import Any

import msgspec
import pytest

from allocator.names import POD_ASSIGNED
from kubeapi.client import CONNECTIONS
from kubeapi.errors import Conflict, Forbidden, KubeApiError, TimedOut, Unreachable
from scheduler_plugin.binding.batch_committer import LATE, NOT_LEADER
from scheduler_plugin.binding.batch_protocol import (
    MOST_PODS,
    CommitCall,
    CommitOutcome,
    decode_commit_call,
    decode_commit_reply,
    encode,
)
from scheduler_plugin.errors import FAULT, ProtocolError
from scheduler_plugin.scheduling.cluster_policies import ClusterPolicies
from tests.batch_world import BatchWorld, T, raising
from tests.binding_world import Leader
from tests.cluster_builders import container


async def test_a_pod_is_bound_by_one_write_with_its_cards() -> None:
    world = BatchWorld()
    world.pod("p", 8)
    (result,) = await world.commit([world.candidates("p", "n", "m")])
    assert (result.outcome, result.node) == (CommitOutcome.BOUND, "n")
    assert world.api.sent == [("uid-p", "n")]
    assigned = json.loads(world.api.objects["p"]["metadata"]["annotations"][POD_ASSIGNED])
    assert [units for _, units in assigned["main"]] == [8]


async def test_what_one_pod_takes_the_next_one_of_the_call_sees() -> None:
    world = BatchWorld()
    for name in "pqrs":
        world.pod(name, 12)
    lists = [[world.candidates(name, "n", "m")] for name in "pqrs"]
    results = await world.commit(*lists)
    assert Counter(result.node for result in results) == {"n": 2, "m": 2}
    assert {result.outcome for result in results} == {CommitOutcome.BOUND}


@pytest.mark.parametrize("planned", [0, 1])
async def test_the_cards_that_the_queue_planned_are_taken_while_they_are_free(planned: int) -> None:
    """Each process learns its own weights: without that the two would choose other cards."""
    world = BatchWorld()
    uuid = world.state.node_records["n"].uuids[planned]
    for name in "pq":
        world.pod(name, 12)
    lists = [[msgspec.structs.replace(world.candidates(name, "n"), cards=(uuid,))] for name in "pq"]
    assert [result.outcome for result in await world.commit(*lists)] == [CommitOutcome.BOUND] * 2
    first, second = (
        json.loads(world.api.objects[name]["metadata"]["annotations"][POD_ASSIGNED])["main"] for name in "pq"
    )
    assert first == [[uuid, 12]]
    assert second != first, "it is taken by now"


async def test_the_next_node_is_taken_where_the_first_is_refused_and_the_reason_told_where_none_is_left() -> (
    None
):
    world = BatchWorld()
    world.pod("p", 8)
    world.pod("q", 8)
    world.lose_node("n")
    (first,) = await world.commit([world.candidates("p", "n", "m")])
    assert (first.outcome, first.node) == (CommitOutcome.BOUND, "m")
    world.node("m", cpu="1")
    (second,) = await world.commit([world.candidates("q", "n", "m")])
    assert (second.outcome, second.why) == (CommitOutcome.REFUSED, "insufficient cpu")
    assert second.rejected == ("m",)
    (third,) = await world.commit([world.candidates("q", "n")])
    assert third.why == "no node of its list is there any more"


HOLD = {"on-no-improvement": "hold", "threshold": "1"}


@pytest.mark.parametrize(
    ("policy", "parameters"),
    [
        ("least-requested", {}),
        ("least-requested", {"resources": "example.com/nic"}),
        ("weighted-balance", HOLD),
        ("best-fit", {"mode": "pick"}),
    ],
    ids=["of another policy", "with another resource", "held back", "one node picked"],
)
async def test_the_order_of_a_list_is_the_queues_whatever_this_process_would_rank(
    policy: str, parameters: dict[str, str]
) -> None:
    """Only the queue knows what it ranked by, and how often it tried the pod."""
    world = BatchWorld()
    world.binder.committer.policies = ClusterPolicies(policy, parameters=parameters)
    for name, cards, nics in (("n", (2, 2), "2"), ("m", (8, 2), "20")):
        world.node(name, used=cards, resources={"example.com/nic": nics})
    asks = [container(units=1, cpu="0", memory="40Gi", resources={"example.com/nic": "2"})]
    world.pod("p", containers=asks)
    world.pod("q", containers=asks)
    lists = [[world.candidates("p", "m", "n")], [world.candidates("q", "n", "m")]]
    assert [result.node for result in await world.commit(*lists)] == ["m", "n"]


async def test_a_gang_is_bound_whole_or_not_at_all() -> None:
    world = BatchWorld()
    for name in "pqr":
        world.pod(name, 16)
    results = await world.commit([world.candidates(name, "n") for name in "pqr"])
    assert {result.outcome for result in results} == {CommitOutcome.REFUSED}
    assert results[0].why.startswith("pod r of its gang: ")
    assert [result.rejected for result in results] == [("n",)] * 3
    assert not world.api.sent
    assert world.assumed() == 0
    results = await world.commit(
        [world.candidates("p", "n"), world.candidates("q", "n"), world.candidates("r", "m")]
    )
    assert {result.outcome for result in results} == {CommitOutcome.BOUND}


@pytest.mark.parametrize("error", [Conflict("changed"), Forbidden("no", status=403)])
async def test_a_refused_binding_gives_the_cards_back(error: KubeApiError) -> None:
    world = BatchWorld()
    world.pod("p", 8)
    world.api.before = raising(error)
    (result,) = await world.commit([world.candidates("p", "n", "m")])
    assert result.outcome is CommitOutcome.REFUSED
    assert world.assumed() == 0
    assert world.api.sent == [("uid-p", "n")]


async def test_a_binding_whose_answer_was_lost_is_bound_where_the_pod_says_so() -> None:
    world = BatchWorld()
    world.pod("p", 8)
    world.api.after = raising(TimedOut("late"))
    (result,) = await world.commit([world.candidates("p", "n", "m")])
    assert (result.outcome, result.node) == (CommitOutcome.BOUND, "n")


async def test_a_binding_that_may_have_happened_is_never_sent_to_another_node() -> None:
    """Not while it may take effect still; once the pod is read unbound after that, it may."""
    world = BatchWorld()
    world.pod("p", 8)
    world.api.before = raising(TimedOut("late"))

    def unreachable() -> None:
        raise Unreachable("away")

    world.api.read = unreachable
    (result,) = await world.commit([world.candidates("p", "n", "m")])
    assert result.outcome is CommitOutcome.UNKNOWN
    assert world.assumed() == 8
    for _ in range(3):
        (again,) = await world.commit([world.candidates("p", "m")])
        assert again.outcome is CommitOutcome.REFUSED
        assert "under way" in again.why
        await world.pass_time()
    assert world.api.sent == [("uid-p", "n")]
    world.api.read, world.api.before = lambda: None, lambda _name: None
    await world.pass_time()
    assert world.assumed() == 0
    (result,) = await world.commit([world.candidates("p", "m")])
    assert result.outcome is CommitOutcome.BOUND
    await world.binder.close()


async def test_who_loses_the_lead_in_the_middle_sends_no_further_binding() -> None:
    leader = Leader(is_leader=True, since=90.0)
    world = BatchWorld(leader)
    for name in ("n", "m"):
        world.node(name, (16,) * 16)
    names = [f"p{number}" for number in range(CONNECTIONS + 8)]
    for name in names:
        world.pod(name, 8)

    def depose(_name: str) -> None:
        leader.is_leader = False

    world.api.before = depose
    results = await world.commit(*([world.candidates(name, "n", "m")] for name in names))
    sent = {uid for uid, _ in world.api.sent}
    assert len(sent) == 1
    assert {result.uid for result in results if result.outcome is CommitOutcome.BOUND} == sent
    assert all(result.outcome is CommitOutcome.REFUSED for result in results if result.uid not in sent)
    (later,) = await world.commit([world.candidates(names[-1], "n")])
    assert "not the leader" in later.why


async def test_with_the_lease_of_another_process_it_binds_only_while_that_one_leads() -> None:
    """Each term begins with a list of the pods; the binder itself takes part in no election."""
    follower = Leader(is_leader=False, since=None)
    world = BatchWorld(follower=follower)
    for name in ("n", "m"):
        world.node(name, (16,) * 16)
    for number in range(CONNECTIONS + 8):
        world.pod(f"p{number}", 8)
    lists = [[world.candidates(f"p{number}", "n", "m")] for number in range(CONNECTIONS + 8)]
    assert {result.why for result in await world.commit(*lists)} == {NOT_LEADER}
    before = world.refreshed
    follower.is_leader, follower.since = True, 90.0
    await world.commit(lists[0])
    await world.commit(lists[1])
    assert world.refreshed == before + 1

    def depose(_name: str) -> None:
        follower.is_leader = False

    world.api.before = depose
    results = await world.commit(*lists[2:])
    assert len(world.api.sent) == 3
    refused = [result for result in results if result.outcome is CommitOutcome.REFUSED]
    assert len(refused) == len(results) - 1
    assert world.assumed() == 24
    follower.is_leader, follower.since = True, 200.0
    world.api.before = lambda _name: None
    results = await world.commit(*lists[3:])
    assert {result.outcome for result in results} == {CommitOutcome.BOUND}
    assert world.refreshed == before + 2


async def test_a_binding_is_sent_within_its_time_out_of_the_call_or_never() -> None:
    """A queue that begins anew decides once nothing that was handed over before can be bound any more."""
    world = BatchWorld()
    names = [f"p{number}" for number in range(CONNECTIONS + 8)]
    for name in ("n", "m"):
        world.node(name, (16,) * 16)
    for name in names:
        world.pod(name, 8)

    def take_long(_name: str) -> None:
        world.now += T + 1

    world.api.before = take_long
    results = await world.commit(*([world.candidates(name, "n", "m")] for name in names))
    assert Counter(result.outcome for result in results) == {
        CommitOutcome.BOUND: len(world.api.sent),
        CommitOutcome.REFUSED: len(names) - len(world.api.sent),
    }
    assert len(world.api.sent) < len(names)
    assert {result.why for result in results if result.outcome is CommitOutcome.REFUSED} == {LATE}
    assert world.assumed() == 8 * len(world.api.sent)


@pytest.mark.parametrize("happens", ["late", "deposed"])
async def test_a_binding_refused_for_a_patch_is_not_sent_again_where_a_first_one_must_not_be(
    happens: str,
) -> None:
    follower = Leader(is_leader=True, since=90.0)
    world = BatchWorld(follower=follower)
    world.pod("p", 8)

    def patch(_name: str) -> None:
        world.api.objects["p"]["metadata"]["resourceVersion"] = "900"
        raise Conflict("changed")

    def stop() -> None:
        follower.is_leader = happens != "deposed"
        world.now += 2 * T if happens == "late" else 0

    world.api.before, world.api.read = patch, stop
    (result,) = await world.commit([world.candidates("p", "n")])
    assert result.outcome is CommitOutcome.REFUSED
    assert len(world.api.sent) == 1
    assert world.assumed() == 0


async def test_a_pod_at_which_our_code_fails_is_refused_and_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = BatchWorld()
    for name in "pqr":
        world.pod(name, 8)
    find_rejection = world.checks.find_rejection

    def fail(uid: str, *args: Any, **more: Any) -> str:
        if uid == "uid-q":
            raise ZeroDivisionError
        return find_rejection(uid, *args, **more)

    monkeypatch.setattr(world.checks, "find_rejection", fail)
    gang = [world.candidates("p", "n"), world.candidates("q", "n")]
    results = await world.commit(gang, [world.candidates("r", "n")])
    assert [result.outcome.value for result in results] == ["refused", "refused", "bound"]
    assert results[0].why == f"pod q of its gang: {FAULT}"
    monkeypatch.undo()
    assert {result.outcome for result in await world.commit(gang)} == {CommitOutcome.BOUND}


async def test_who_ends_sends_no_further_binding() -> None:
    world = BatchWorld()
    world.pod("p", 8)
    await world.binder.wait_for_fence()
    world.binder.stop_binding()
    (result,) = await world.commit([world.candidates("p", "n")])
    assert result.outcome is CommitOutcome.REFUSED
    assert not world.api.sent


async def test_nothing_is_bound_from_a_stale_view_nor_for_pods_of_others() -> None:
    world = BatchWorld()
    world.pod("p", 8)
    world.pod("theirs", 8, spec={"schedulerName": "default-scheduler"})
    world.pod("gated", 8, spec={"schedulingGates": [{"name": "g"}]})
    world.pod("plain", 0, containers=[{"name": "main"}])
    world.stale = "it is old"
    assert (await world.commit([world.candidates("p", "n")]))[0].why == "it is old"
    world.stale = ""
    results = await world.commit(
        *([world.candidates(name, "n")] for name in ("theirs", "gated", "plain", "none"))
    )
    assert {result.outcome for result in results} == {CommitOutcome.REFUSED}
    assert [result.why for result in results] == [
        "its schedulerName is not gpupack-batch",
        "it has scheduling gates",
        "it asks for no card",
        "the pod is not in the scheduler's cache yet",
    ]
    assert not world.api.sent


async def test_headroom_stays_free() -> None:
    world = BatchWorld()
    world.pod("p", 8, cpu="20")
    (refused,) = await world.commit([world.candidates("p", "n")], headroom=0.51)
    assert refused.why == "insufficient cpu"
    (bound,) = await world.commit([world.candidates("p", "n")], headroom=0.5)
    assert bound.outcome is CommitOutcome.BOUND


class Trouble:
    """An API server that refuses, loses and delays."""

    def __init__(self, world: BatchWorld, rng: random.Random) -> None:
        self.rng = rng
        world.api.before, world.api.after, world.api.read = self.before, self.after, self.read

    def before(self, _name: str) -> None:
        if self.rng.random() < 0.2:
            raise self.rng.choice([Conflict("changed"), TimedOut("late"), Unreachable("away")])

    def after(self, _name: str) -> None:
        if self.rng.random() < 0.2:
            raise TimedOut("late")

    def read(self) -> None:
        if self.rng.random() < 0.3:
            raise Unreachable("away")


def count_units(world: BatchWorld) -> Counter[str]:
    """Units by card of all pods that are bound, as the API server has them."""
    used: Counter[str] = Counter()
    for name, raw in world.api.objects.items():
        if f"uid-{name}" in world.api.bound:
            for card, units in json.loads(raw["metadata"]["annotations"][POD_ASSIGNED])["main"]:
                used[card] += units
    return used


@pytest.mark.parametrize("seed", range(20))
async def test_whatever_fails_nothing_is_bound_twice_or_over_committed(seed: int) -> None:
    """409s, time-outs that did bind and that did not, reads that fail, late watches, nodes that go."""
    rng = random.Random(seed)
    world = BatchWorld()
    names = [f"p{number}" for number in range(40)]
    for name in names:
        world.pod(name, rng.choice((4, 8, 12)))
    Trouble(world, rng)
    for _ in range(30):
        waiting = [name for name in names if f"uid-{name}" not in world.api.bound]
        rng.shuffle(waiting)
        lists = [[world.candidates(name, *rng.sample(("n", "m"), 2))] for name in waiting]
        results = await world.commit(*lists)
        bound = {result.uid: result.node for result in results if result.outcome is CommitOutcome.BOUND}
        assert bound.items() <= world.api.bound.items()
        for name in rng.sample(names, 20):
            world.see(name)
        if rng.random() < 0.1:
            world.lose_node("m")
            world.node("m")
        await world.pass_time()
    assert max(count_units(world).values()) <= 16
    assert len(world.api.bound) > 4
    await world.binder.close()


async def test_calls_are_checked() -> None:
    world = BatchWorld()
    call = CommitCall((tuple(world.candidates("p", "n") for _ in range(MOST_PODS)),))
    assert decode_commit_call(encode(call)) == call
    with pytest.raises(ProtocolError, match="allowed: 1024"):
        decode_commit_call(encode(CommitCall((*call.groups, *call.groups))))
    with pytest.raises(ProtocolError, match="not JSON"):
        decode_commit_call(b"{")
    with pytest.raises(ProtocolError, match="allowed: groups"):
        decode_commit_call(b"{}")
    with pytest.raises(ProtocolError, match="1 to 64 nodes"):
        decode_commit_call(encode(CommitCall(((world.candidates("p"),),))))
    with pytest.raises(ProtocolError, match="headroom"):
        decode_commit_call(encode(CommitCall((), 1.0)))
    with pytest.raises(ProtocolError, match="cannot be read"):
        decode_commit_reply(b"no")
    await asyncio.sleep(0)
