"""Many pods at once: what batch mode admits together, and those that wait."""

import asyncio
import itertools
import random
from typing import Any

import pytest

from allocator.names import COMPUTE_RESOURCE, POD_PLANNED
from benchmarks import floors
from scheduler_plugin.binding.committer import Committer
from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.queue.capacity.reservation_planner import ReservationPlanner
from scheduler_plugin.queue.controller.controller import Controller
from scheduler_plugin.queue.controller.writer import PodWriter, make_admission_patch
from scheduler_plugin.scheduling.cluster_policies import ClusterPolicies
from tests.cluster_builders import container, node, pod
from tests.queue_world import QueueWorld

SIZES = (80,) * 4


@pytest.mark.parametrize("seed", range(5))
def test_what_is_released_is_bound_in_any_order(seed: int) -> None:
    """kube-scheduler binds in parallel; the extender chooses the cards then, and does so as planned."""
    rng = random.Random(seed)
    world = QueueWorld("mode: batch\nqueues: [{name: a}]", "fragmentation")
    state = ClusterState()
    for name in ("n", "m"):
        world.node(name, SIZES)
        state.apply_node(node(name, SIZES, version=1), 0)
    units = {
        world.pod(f"p{at}", size): (f"p{at}", size)
        for at in range(60)
        for size in [rng.choice((10, 20, 24, 40))]
    }
    members = [member for release in world.decide() for member in release.members]
    assert len(members) > 8
    plans = {member.uid: ",".join(world.queue.list_planned_cards(member.uid)) for member in members}
    committer = Committer(state, ClusterPolicies("fragmentation"))
    rng.shuffle(members)
    for version, member in enumerate(members, start=2):
        name, size = units[member.uid]
        state.apply_pod(pod(name, size, version=version, annotations={POD_PLANNED: plans[member.uid]}), 0)
        committer.assume("default", name, member.uid, member.node, 0)


@pytest.mark.parametrize("seed", range(40))
def test_room_is_kept_where_the_least_must_become_free(seed: int) -> None:
    """The arrays rule nodes out; whoever is asked one by one says the same."""
    rng = random.Random(seed)
    world = QueueWorld()
    for at in range(30):
        sizes = tuple(rng.choice((16, 80)) for _ in range(rng.randint(1, 4)))
        used = [rng.randint(size // 2, size) for size in sizes]
        compute = [rng.choice((0, 50, 100)) for _ in sizes]
        world.node(f"n{at:02}", sizes, used, compute=compute, spec={"unschedulable": rng.random() < 0.3})
        if rng.random() < 0.5:
            # Its node has not said so yet, and it may be more than there is.
            world.bind_to(world.pod(f"bound{at}", 8, gates=()), f"n{at:02}")
    cards = {"gpupack.io/cards": str(rng.randint(1, 3))}
    asked = {COMPUTE_RESOURCE: rng.choice(("1", "30", "60"))}
    containers = [
        container(f"c{number}", rng.choice((12, 60)), resources=asked) for number in range(1 + seed // 20)
    ]
    requirements = world.queue.queued_pods[
        world.pod("p", containers=containers, annotations=cards)
    ].requirements
    assert requirements is not None
    room = world.queue.capacity
    clearing = ReservationPlanner(room, "uid-p")
    missing = {
        name: spot.missing
        for name, row in world.state.nodes.rows.items()
        if room.is_allowed(requirements, name)
        and (spot := clearing._find_place(requirements, row)) is not None
    }
    rows, least = clearing._find_possible(requirements, None)
    bounds = {world.state.nodes.names[row]: few for row, few in zip(rows, least, strict=True)}
    assert bounds.keys() == missing.keys()
    assert all(bounds[name] <= few for name, few in missing.items())
    assert bounds == missing or len(containers) > 1
    expected = sorted(missing, key=lambda name: (missing[name], name))[:1]
    found = clearing.plan_workload([("uid-p", requirements)])
    assert [kept.node for kept in found.values()] == expected


async def test_decisions_come_in_between_while_it_is_said_why_pods_wait() -> None:
    """To say why 100 000 pods wait takes seconds; a freed slot is given on meanwhile."""
    world = QueueWorld()
    for at in range(5):
        world.pod(f"p{at}", 8)
    said: list[str] = []
    seen: list[int] = []
    done = asyncio.Event()

    class Recorder:
        def event(self, ref: Any, type_: str, reason: str, message: str) -> None:
            del type_, message
            said.append(f"{ref.name} {reason}")
            if len(said) == 5:
                done.set()

    def ready() -> bool:
        seen.append(len(said))
        return True

    times = itertools.count(0.0, 0.015)
    writer: Any = PodWriter(None, lambda: True, 1.0)  # type: ignore[arg-type]
    controller = Controller(world.queue, writer, Recorder(), lambda: next(times), ready)
    controller.record_change()
    running = asyncio.create_task(controller.run())
    await asyncio.wait_for(done.wait(), 10)
    running.cancel()
    assert sorted(said) == [f"p{at} Waiting" for at in range(5)]
    assert {1, 2, 3, 4} & set(seen)


def test_the_benchmark_s_bare_client_writes_what_batch_mode_writes() -> None:
    world = QueueWorld("mode: batch\nqueues: [{name: a}]")
    pod = world.queue.queued_pods[world.pod("p")]
    assert floors.release(pod.uid, "a", "n") == make_admission_patch(pod, "n")
