"""Since when pods wait: after a restart, with clocks that jump, and after a list instead of events."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import msgspec
import pytest

from kubeapi.objects import Pod, PodSchedulingGate
from scheduler_plugin.cache.signals import Signal
from scheduler_plugin.queue.cache.queue_clock import QueueClock
from scheduler_plugin.queue.controller.status import report_queues
from scheduler_plugin.queue.controller.watching import QueueFeed
from tests.cluster_builders import pod_object
from tests.queue_world import QueueWorld

if TYPE_CHECKING:
    from scheduler_plugin.cache.watcher import Watcher

DAY_S = 86400
RESTARTED = "keepRoomAfter: 10m\nqueues: [{name: a}]"


def test_a_restart_does_not_reset_how_long_pods_have_waited() -> None:
    """A pod that waited for a day gets room kept at once, and the status says so."""
    world = QueueWorld(RESTARTED)
    world.now = 23 * 3600.0
    world.node("n1", (16,))
    world.run("running", 8)
    world.pod("large", 16, created=3600)
    assert report_queues(world.queue, world.now)[0].oldest_wait_s == pytest.approx(22 * 3600)
    assert [node for _, node in world.queue.update_reservations(world.now)] == ["n1"]


def test_a_pod_that_comes_as_an_event_waits_since_then() -> None:
    """Whatever an API server with a wrong clock says."""
    world = QueueWorld(RESTARTED)
    world.now = 23 * 3600.0
    world.pod("early", 16, created=3600, live=True)
    assert report_queues(world.queue, world.now)[0].oldest_wait_s == 0


@pytest.mark.parametrize(
    ("began", "wall", "expected"),
    [
        (1000.0, 900.0, 100.0),
        (9999.0, 900.0, 300.0),  # dated in the future
        (0.0, 900.0, 300.0),  # not dated
        (1000.0, None, 300.0),  # the time of day is not known
    ],
)
def test_when_something_began_before_the_process(began: float, wall: float | None, expected: float) -> None:
    """Seconds of the queue's clock, at its second 300."""
    assert QueueClock(wall).to_monotonic(began, 300.0) == expected


def test_pods_of_a_later_list_come_after_those_before_it() -> None:
    """A pod was dated a day ahead; so those after it have their place by arrival, listed or not."""
    ages = QueueClock()
    ages.get_wait_start_wall(DAY_S, 1.0, live=True)
    early = ages.get_wait_start_wall(100.0, 2.0, live=True)
    listed = [ages.get_wait_start_wall(created, 60.0, live=True) for created in (160.0, 161.0, 162.0)]
    assert early < listed[0] < listed[1] < listed[2]


def test_a_pod_of_a_later_list_does_not_overtake_one_that_came_before() -> None:
    """Events were lost, and a list came instead; a pod dated ahead has put the others in order of arrival."""
    world = QueueWorld()
    sinks = SimpleNamespace(
        node_sink=SimpleNamespace(applied=Signal(), replaced=Signal()),
        pod_sink=SimpleNamespace(applied=Signal(), replaced=Signal()),
        claim_sink=SimpleNamespace(applied=Signal(), replaced=Signal()),
        groups=SimpleNamespace(updated=Signal()),
    )
    QueueFeed(world.queue, cast("Watcher", sinks), lambda: world.now)
    world.node("n1", (16,))
    world.run("running", 16, created=0)
    sinks.pod_sink.replaced(_listed(world))
    world.pod("ahead", 17, created=23 * 3600, live=True)
    world.now = 2.0
    world.pod("early", 16, created=100, live=True)
    world.now = 60.0
    late = msgspec.convert(pod_object("late", 16), Pod)
    late.metadata.labels = {"gpupack.io/queue-name": "a"}
    late.metadata.creation_timestamp = "2026-01-01T00:02:40Z"
    late.spec.scheduling_gates = [PodSchedulingGate("gpupack.io/queue")]
    world.state.apply_pod(late, world.now)
    sinks.pod_sink.replaced([late, *_listed(world)])
    order = sorted(world.queue.queued_pods.values(), key=lambda pod: pod.waiting_since)
    assert [pod.record.name for pod in order] == ["running", "ahead", "early", "late"]


def _listed(world: QueueWorld) -> list[Pod]:
    return [msgspec.convert(raw, Pod) for raw in world.objects.values()]
