"""Binding: who may, and from when on."""

import asyncio

from tests.binding_world import ARGS, Leader, T, World
from tests.cluster_builders import pod


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
    world.binder.stop_binding()
    world.now = 107.0
    gate.set()
    assert await call == "this gpupack scheduler is ending; it is tried again with the next one"
    assert world.api.calls == []
    assert world.assumed() == 0


async def test_each_term_as_the_leader_opens_once() -> None:
    leader = Leader(is_leader=True, since=90.0)
    world = World(leader)
    await asyncio.gather(world.binder.wait_for_fence(), world.binder.wait_for_fence())
    await world.binder.wait_for_fence()
    assert world.refreshed == [104.0]
    leader.since = 99.0
    await world.binder.wait_for_fence()
    assert world.refreshed == [104.0, 104.0]
    assert world.slept == []


async def test_the_first_process_of_a_new_cluster_lists_the_pods_and_waits_for_nobody() -> None:
    world = World(after_another=False)
    world.now -= T
    assert await world.binder.bind(*ARGS) == ""
    assert world.slept == []
    assert world.refreshed == [100.0]
    # An etcd restore is a history of its own, of which Bindings may be under way.
    world.binder.restart_fence()
    call = asyncio.create_task(world.binder.wait_for_fence())
    await world.pass_time()
    await call
    assert world.slept == [T]


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
    assert world.state.get_assumed("uid-p") is not None
    assert world.api.calls == []
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    assert world.state.get_assumed("uid-p") is None


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
    world.binder.restart_fence()
    binding = asyncio.create_task(world.binder.bind("default", "q", "uid-q", "n"))
    await world.pass_time()
    assert await binding == ""
    assert world.slept == [T]
    assert world.refreshed[1:] == [100.0 + 2 * T]
