"""bind against an API server that answers late, wrongly or not at all."""

import asyncio

import msgspec
import pytest

from allocator.names import POD_ASSIGNED
from kubeapi.errors import Conflict, Forbidden, KubeApiError, Malformed, NotFound, ServerError, TimedOut
from kubeapi.events import BUSY_S
from kubeapi.objects import Pod
from tests.binding_world import ARGS, Leader, T, World, bound
from tests.cluster_builders import node, pod, pod_object


async def test_a_binding_names_version_and_cards() -> None:
    world = World()
    world.api.during = lambda: assert_(world.assumed() == 8)
    assert await world.binder.bind(*ARGS) == ""
    assigned = {POD_ASSIGNED: '{"main":[["GPU-n-0",8]]}'}
    assert world.api.calls == [("default", "p", "uid-p", "n", assigned, "3", T)]
    assert world.assumed() == 8


def assert_(condition: bool) -> None:
    assert condition


async def test_a_pod_that_does_not_ask_is_bound_without_annotations() -> None:
    world = World()
    world.state.apply_pod(pod("p", version=4, containers=[{"name": "c"}]), 0)
    assert await world.binder.bind(*ARGS) == ""
    assert world.api.calls[0][4:6] == ({}, "4")


async def test_a_failure_for_such_a_pod_leaves_nothing_behind() -> None:
    world = World()
    world.state.apply_pod(pod("p", version=4, containers=[{"name": "c"}]), 0)
    world.fails(Forbidden("no", status=403))
    assert await world.binder.bind(*ARGS) == "Binding refused: no"
    world.fails(TimedOut("late"))
    assert "without an answer" in await world.binder.bind(*ARGS)
    assert world.gates.empty()


async def test_what_cannot_be_committed_is_not_sent() -> None:
    world = World()
    world.state.apply_node(node("n", (16, 16), (16, 16), version=5), 0)
    assert "no longer fits" in await world.binder.bind(*ARGS)
    assert world.api.calls == []


async def test_a_definite_refusal_gives_the_cards_back() -> None:
    world = World()
    world.fails(Forbidden("not allowed", status=403))
    assert await world.binder.bind(*ARGS) == "Binding refused: not allowed"
    assert world.assumed() == 0


async def test_a_conflict_shows_the_pod_before_the_cards_are_given_back() -> None:
    world = World()
    world.state.apply_node(node("m", (16, 16), version=5), 0)
    world.fails(Conflict("already assigned to node m"))
    world.api.pod = bound(on="m")
    assert "Binding refused" in await world.binder.bind(*ARGS)
    assert world.state.pods["uid-p"].node == "m"
    assert int(world.state.nodes.assumed[world.state.nodes.rows["n"]].sum()) == 0
    assert int(world.state.nodes.assumed[world.state.nodes.rows["m"]].sum()) > 0


NOMINATED = pod_object("p", 8, version=7, status={"nominatedNodeName": "n"})


@pytest.mark.parametrize("watched", [False, True])
async def test_a_binding_refused_for_a_patch_of_the_status_is_sent_once_more(watched: bool) -> None:
    """kube-scheduler may write nominatedNodeName between filter and bind."""
    world = World()
    world.api.pod = NOMINATED

    def answer() -> None:
        if watched:
            world.state.apply_pod(msgspec.convert(NOMINATED, Pod), 0)
        assert world.assumed() == 8
        if len(world.api.calls) == 1:
            raise Conflict("the object has been modified")

    world.api.binding = answer
    assert await world.binder.bind(*ARGS) == ""
    assert [call[5] for call in world.api.calls] == ["3", "7"]
    assert world.api.calls[0][4] == world.api.calls[1][4] != {}
    assert world.assumed() == 8


@pytest.mark.parametrize(
    ("current", "sent"),
    [
        (NOMINATED, 2),
        (pod_object("p", 8, version=3), 1),
        (pod_object("p", 8, version=7, labels={"changed": "yes"}), 1),
        (pod_object("p", 9, version=7), 1),
        (pod_object("p", 8, version=7, spec={"schedulingGates": [{"name": "example.com/held"}]}), 1),
        (pod_object("p", 8, version=7, uid="another"), 1),
        (NotFound("gone"), 1),
        (TimedOut("late"), 1),
    ],
    ids=["again", "the same version", "other labels", "another request", "gated", "another pod", "gone", "?"],
)
async def test_a_binding_that_is_refused_again_or_for_another_change_gives_the_cards_back(
    current: dict[str, object] | KubeApiError, sent: int
) -> None:
    world = World()
    world.api.pod = current
    world.fails(Conflict("the object has been modified"))
    assert "Binding refused" in await world.binder.bind(*ARGS)
    assert len(world.api.calls) == sent
    assert world.assumed() == 0


async def test_a_binding_is_not_sent_again_by_a_process_that_no_longer_leads() -> None:
    world = World(leader := Leader(is_leader=True, since=0.0))
    world.api.pod = NOMINATED

    def answer() -> None:
        leader.is_leader = False
        raise Conflict("the object has been modified")

    world.api.binding = answer
    assert "Binding refused" in await world.binder.bind(*ARGS)
    assert len(world.api.calls) == 1
    assert world.assumed() == 0


@pytest.mark.parametrize(
    "error", [TimedOut("late"), ServerError("broken", status=504)], ids=["silence", "504"]
)
async def test_a_binding_without_an_answer_that_was_done(error: KubeApiError) -> None:
    world = World()
    world.fails(error)
    world.api.pod = bound()
    assert await world.binder.bind(*ARGS) == ""
    assert world.assumed() == 8
    assert world.state.get_assumed("uid-p") is None
    await world.pass_time()
    assert world.assumed() == 8


async def test_a_binding_without_an_answer_keeps_its_cards() -> None:
    world = World()
    world.fails(TimedOut("late"))
    await world.binder.bind(*ARGS)
    assert world.assumed() == 8
    await world.binder.close()


async def test_a_binding_without_an_answer_that_was_not_done() -> None:
    world = World()
    world.fails(TimedOut("late"))
    assert await world.binder.bind(*ARGS) == "Binding without an answer, its cards stay taken for now: late"
    assert world.assumed() == 8
    assert "under way" in await world.binder.bind(*ARGS)
    await world.pass_time()
    assert world.assumed() == 0
    assert world.slept == [T]


async def test_a_binding_that_takes_effect_late_is_found_although_the_watch_is_late() -> None:
    world = World()
    world.fails(TimedOut("late"))
    await world.binder.bind(*ARGS)
    world.api.pod = bound()
    await world.pass_time()
    assert world.assumed() == 8
    assert world.state.pods["uid-p"].node == "n"


@pytest.mark.parametrize("how", ["deleted", "created again"])
async def test_a_pod_that_is_gone_may_have_been_bound_so_the_watch_decides(how: str) -> None:
    world = World()
    world.fails(TimedOut("late"))
    world.api.pod = (
        NotFound("gone", status=404) if how == "deleted" else pod_object("p", 8, uid="new", version=9)
    )
    await world.binder.bind(*ARGS)
    await world.pass_time()
    assert world.assumed() == 8
    world.state.delete_pod(pod("p", 8, version=6), "6", world.now)
    assert world.assumed() == 0


NO_SERVER = Malformed("no API server answers so: {}", maybe_done=True)


@pytest.mark.parametrize(
    ("answer", "read"),
    [
        (TimedOut("late"), TimedOut("away")),
        (TimedOut("late"), {"metadata": 3}),
        (TimedOut("late"), {}),
        (TimedOut("late"), {"kind": "Status"}),
        (NO_SERVER, NotFound("404 page not found", status=404)),
    ],
    ids=["away", "no metadata", "nothing", "another kind", "a 2xx of something else than the API server"],
)
async def test_while_the_pod_cannot_be_read_its_cards_stay_taken(
    answer: KubeApiError, read: dict[str, object] | KubeApiError
) -> None:
    world = World()
    world.fails(answer)
    world.api.pod = read
    assert "without an answer" in await world.binder.bind(*ARGS)
    for _ in range(2):
        await world.pass_time()
        assert world.assumed() == 8
    world.api.pod = pod_object("p", 8, version=3)
    await world.pass_time()
    assert world.assumed() == 0
    assert world.state.get_assumed("uid-p") is None


async def test_a_caller_that_goes_away_leaves_the_outcome_open() -> None:
    world = World()
    reached = asyncio.Event()

    async def never(*_: object, **__: object) -> None:
        reached.set()
        await asyncio.Event().wait()

    world.api.bind = never  # type: ignore[method-assign]
    call = asyncio.create_task(world.binder.bind(*ARGS))
    await reached.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert world.assumed() == 8
    await world.pass_time()
    assert world.assumed() == 0
    await world.binder.close()


async def test_a_fault_of_ours_leaves_the_outcome_open() -> None:
    world = World()

    def fault() -> None:
        raise KeyError("a bug")

    world.api.binding = fault
    with pytest.raises(KeyError):
        await world.binder.bind(*ARGS)
    assert world.assumed() == 8
    await world.pass_time()
    assert world.assumed() == 0
    await world.binder.close()


async def test_closing_stops_waiting() -> None:
    world = World()
    world.fails(TimedOut("late"))
    await world.binder.bind(*ARGS)
    await world.binder.close()
    assert world.assumed() == 8


async def test_it_is_busy_while_a_binding_is_under_way_and_a_moment_longer() -> None:
    """Between two Bindings of many it has nothing to write, and its Events wait all the same."""
    world = World()
    assert not world.binder.is_busy
    world.api.during = lambda: assert_(world.binder.is_busy)
    assert await world.binder.bind(*ARGS) == ""
    assert world.binder.is_busy
    world.now += BUSY_S
    assert not world.binder.is_busy
    world.fails(Forbidden("not allowed", status=403))
    world.state.apply_pod(pod("q", 8, version=5), 0)
    assert await world.binder.bind("default", "q", "uid-q", "n") != ""
    world.now += BUSY_S
    assert not world.binder.is_busy
