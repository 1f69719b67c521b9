"""bind against an API server that answers late, wrongly or not at all."""

import asyncio
import json
from collections.abc import Callable, Mapping

import pytest

from allocator.names import POD_ASSIGNED
from kubeapi.errors import Conflict, Forbidden, KubeApiError, Malformed, NotFound, ServerError, TimedOut
from scheduler_plugin.cluster.state import ClusterState
from scheduler_plugin.commit.binding import Binder
from scheduler_plugin.commit.committer import Committer
from scheduler_plugin.placement.cluster_policies import Policies
from tests.cluster_builders import node, pod, pod_object, uuid

ARGS = ("default", "p", "uid-p", "n")
T = 4.0


class Api:
    """Answers as told, and notes what it was asked."""

    def __init__(self) -> None:
        self.binding: Callable[[], None] = lambda: None
        self.pod: dict[str, object] | KubeApiError = pod_object("p", 8, version=3)
        self.calls: list[tuple[object, ...]] = []
        self.during: Callable[[], None] = lambda: None

    async def bind(
        self,
        namespace: str,
        name: str,
        uid: str,
        node: str,
        annotations: Mapping[str, str],
        resource_version: str | None = None,
        timeout_s: float = 0,
    ) -> None:
        self.calls.append((namespace, name, uid, node, dict(annotations), resource_version, timeout_s))
        self.during()
        self.binding()

    async def get(self, path: str, *, timeout_s: float = 0) -> bytes:
        assert path == "/api/v1/namespaces/default/pods/p"
        if isinstance(self.pod, KubeApiError):
            raise self.pod
        return json.dumps(self.pod).encode()


class Leader:
    def __init__(self, *, is_leader: bool, since: float | None) -> None:
        self.is_leader = is_leader
        self.since = since


class World:
    def __init__(self, leadership: Leader | None = None) -> None:
        self.now = 100.0
        self.slept: list[float] = []
        self.gates: asyncio.Queue[asyncio.Event] = asyncio.Queue()
        self.state = ClusterState()
        self.api = Api()
        committer = Committer(self.state, Policies())
        self.refreshed: list[float] = []
        self.binder = Binder(
            committer,
            self.api,
            lambda: self.now,
            T,
            leadership,
            refresh=self.refresh,
            sleep=self.sleep,
        )
        self.now += T
        self.state.apply_node(node("n", (16, 16), version=2), 0)
        self.state.apply_pod(pod("p", 8, version=3), 0)

    async def refresh(self) -> None:
        self.refreshed.append(self.now)

    async def sleep(self, seconds: float) -> None:
        """Waits until the test lets time pass."""
        self.slept.append(seconds)
        gate = asyncio.Event()
        self.gates.put_nowait(gate)
        await gate.wait()

    async def pass_time(self) -> None:
        gate = await self.gates.get()
        self.now += T
        gate.set()
        for _ in range(5):
            await asyncio.sleep(0)

    def fails(self, error: KubeApiError) -> None:
        def answer() -> None:
            raise error

        self.api.binding = answer

    def assumed(self) -> int:
        return int(self.state.nodes.assumed.sum())


def bound(version: int = 4, on: str = "n") -> dict[str, object]:
    return pod_object(
        "p",
        8,
        version=version,
        node=on,
        annotations={POD_ASSIGNED: json.dumps({"main": [[uuid("n", 0), 8]]})},
    )


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


@pytest.mark.parametrize(
    "error", [TimedOut("late"), ServerError("broken", status=504)], ids=["silence", "504"]
)
async def test_a_binding_without_an_answer_that_was_done(error: KubeApiError) -> None:
    world = World()
    world.fails(error)
    world.api.pod = bound()
    assert await world.binder.bind(*ARGS) == ""
    assert world.assumed() == 8
    assert world.state.taken("uid-p") is None
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


async def test_while_the_pod_cannot_be_read_its_cards_stay_taken() -> None:
    world = World()
    world.fails(TimedOut("late"))
    world.api.pod = TimedOut("away")
    assert "without an answer" in await world.binder.bind(*ARGS)
    await world.pass_time()
    await world.pass_time()
    assert world.assumed() == 8
    world.api.pod = pod_object("p", 8, version=3)
    await world.pass_time()
    assert world.assumed() == 0


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


@pytest.mark.parametrize("rubbish", [{"metadata": 3}, {}, {"kind": "Status"}], ids=repr)
async def test_rubbish_instead_of_a_pod_is_no_answer(rubbish: dict[str, object]) -> None:
    world = World()
    world.fails(TimedOut("late"))
    world.api.pod = rubbish
    await world.binder.bind(*ARGS)
    await world.pass_time()
    assert world.assumed() == 8
    world.api.pod = pod_object("p", 8, version=3)
    await world.pass_time()
    assert world.assumed() == 0


async def test_a_2xx_of_something_else_than_the_api_server_leaves_no_take_for_ever() -> None:
    world = World()
    world.fails(Malformed("no API server answers so: {}", maybe_done=True))
    world.api.pod = NotFound("404 page not found", status=404)
    assert "without an answer" in await world.binder.bind(*ARGS)
    await world.pass_time()
    assert world.assumed() == 8
    world.api.pod = pod_object("p", 8, version=3)
    await world.pass_time()
    assert world.assumed() == 0
    assert world.state.taken("uid-p") is None


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


async def test_only_the_leader_binds() -> None:
    world = World(Leader(is_leader=False, since=None))
    assert "not the leader" in await world.binder.bind(*ARGS)
    assert world.api.calls == []


async def test_a_new_leader_waits_for_the_former_one_s_bindings_and_then_looks() -> None:
    world = World(Leader(is_leader=True, since=103.0))
    call = asyncio.create_task(world.binder.bind(*ARGS))
    gate = await world.gates.get()
    assert world.refreshed == []
    world.now = 107.0
    gate.set()
    assert await call == ""
    assert world.slept == [3.0]
    assert world.refreshed == [107.0]


async def test_a_bind_that_waits_when_the_end_comes_sends_nothing() -> None:
    world = World(Leader(is_leader=True, since=103.0))
    call = asyncio.create_task(world.binder.bind(*ARGS))
    gate = await world.gates.get()
    world.binder.end()
    world.now = 107.0
    gate.set()
    assert await call == "this gpupack scheduler is ending; it is tried again with the next one"
    assert world.api.calls == []
    assert world.assumed() == 0


async def test_each_term_as_the_leader_opens_once() -> None:
    leader = Leader(is_leader=True, since=90.0)
    world = World(leader)
    await asyncio.gather(world.binder.open(), world.binder.open())
    await world.binder.open()
    assert world.refreshed == [104.0]
    leader.since = 99.0
    await world.binder.open()
    assert world.refreshed == [104.0, 104.0]
    assert world.slept == []


async def test_a_new_process_waits_for_the_bindings_of_the_one_before() -> None:
    world = World()
    world.now -= T
    call = asyncio.create_task(world.binder.bind(*ARGS))
    await world.pass_time()
    assert await call == ""
    assert world.slept == [T]
    assert world.refreshed == [104.0]
    world.state.apply_pod(pod("q", 4, version=9), 0)
    assert await world.binder.bind("default", "q", "uid-q", "n") == ""
    assert world.refreshed == [104.0]


async def test_cards_are_held_while_this_process_may_not_bind_yet() -> None:
    world = World()
    world.now -= T
    call = asyncio.create_task(world.binder.bind(*ARGS))
    await world.gates.get()
    assert world.state.taken("uid-p") is not None
    assert world.api.calls == []
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    assert world.state.taken("uid-p") is None


async def test_what_the_list_shows_decides_about_cards_held_before_it() -> None:
    world = World()
    world.now -= T
    call = asyncio.create_task(world.binder.bind(*ARGS))
    gate = await world.gates.get()
    world.state.apply_pod(pod("p", 4, version=9, node="n"), 0)
    gate.set()
    assert "bound to node n already" in await call
    assert world.api.calls == []


async def test_leadership_lost_while_waiting() -> None:
    leader = Leader(is_leader=True, since=103.0)
    world = World(leader)
    call = asyncio.create_task(world.binder.bind(*ARGS))
    gate = await world.gates.get()
    leader.is_leader = False
    gate.set()
    assert "not the leader" in await call
    assert world.refreshed == []


async def test_leadership_lost_and_won_again_while_waiting() -> None:
    leader = Leader(is_leader=True, since=103.0)
    world = World(leader)
    call = asyncio.create_task(world.binder.bind(*ARGS))
    gate = await world.gates.get()
    leader.since, world.now = 106.0, 107.0
    gate.set()
    gate = await world.gates.get()
    world.now = 110.0
    gate.set()
    assert await call == ""
    assert world.slept == [3.0, 3.0]
    assert world.refreshed == [110.0]


async def test_a_list_that_does_not_come_is_an_answer_too() -> None:
    world = World()
    world.binder.timeout_s = 0.01

    async def never() -> None:
        await asyncio.Event().wait()

    world.binder.refresh = never
    assert "has not listed the pods" in await world.binder.bind(*ARGS)
    assert world.api.calls == []


async def test_after_an_etcd_restore_it_waits_as_after_a_start() -> None:
    world = World()
    assert await world.binder.bind(*ARGS) == ""
    assert world.slept == []
    assert world.refreshed == [100.0 + T]
    world.state.apply_pod(pod("q", 8, version=4), 0)
    world.binder.begin_anew()
    binding = asyncio.create_task(world.binder.bind("default", "q", "uid-q", "n"))
    await world.pass_time()
    assert await binding == ""
    assert world.slept == [T]
    assert world.refreshed[1:] == [100.0 + 2 * T]


async def test_it_is_busy_while_a_binding_is_under_way() -> None:
    world = World()
    world.api.during = lambda: assert_(world.binder.busy)
    assert await world.binder.bind(*ARGS) == ""
    assert not world.binder.busy
    world.fails(Forbidden("not allowed", status=403))
    world.state.apply_pod(pod("q", 8, version=5), 0)
    assert await world.binder.bind("default", "q", "uid-q", "n") != ""
    assert not world.binder.busy
