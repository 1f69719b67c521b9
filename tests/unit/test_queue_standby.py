"""A queue that stands by, or that led until a moment ago."""

from typing import Any

import pytest

from kubeapi.client import CONNECTIONS
from kubeapi.errors import Forbidden, KubeApiError, ServerError, TooManyRequests
from scheduler_plugin.queue.cache.queued_pods import RequeueWrite
from tests.queue_world import UNSCHEDULABLE, QueueWorld
from tests.unit.test_queue_events import Running, running

__all__ = ["running"]

PODS = 60


def live_through(world: QueueWorld, **more: Any) -> None:
    """Let one pod after the other come, be admitted by the leader, be refused, and go."""
    for number in range(PODS):
        world.now += 60
        uid = world.pod(f"p{number}", 1 + number, **more)
        world.change(uid, spec={"schedulingGates": []})
        world.change(uid, status=UNSCHEDULABLE)
        world.delete(uid)


@pytest.mark.parametrize("more", [{}, {"gang": "g", "size": 1}], ids=["pods", "gangs"])
def test_a_standby_forgets_pods_that_are_gone(more: dict[str, Any]) -> None:
    """It stands by for months: what it remembers of each pod would never be asked for, and never end."""
    world = QueueWorld()
    world.node("n1", (PODS,))
    live_through(world, **more)
    queue = world.queue
    assert not queue.queued_pods
    assert not queue.charges.unplaced
    assert not queue._requeue_finder._refused
    remembered = len(queue.equivalence_backoff.refused_templates) + len(
        queue.gangs.equivalence_backoff.refused_templates
    )
    assert 0 < remembered <= 12, "ten minutes' templates: who made the pods may make them again"


def test_a_standby_that_begins_to_lead_takes_back_what_was_refused_before() -> None:
    """What it remembers of pods that are there is not lost."""
    world = QueueWorld()
    world.node("n1", (PODS,))
    live_through(world)
    uid = world.pod("last", 8)
    world.change(uid, spec={"schedulingGates": []})
    world.change(uid, status=UNSCHEDULABLE)
    assert [(back.queued_pod.uid, back.why, back.write) for back in world.requeue_pods()] == [
        (uid, "kube-scheduler found no node for it", RequeueWrite.MARK)
    ]


async def test_who_led_until_a_moment_ago_removes_nobody(running: Running) -> None:
    """Evictions wait for their turn; the next leader decides anew who has to go."""
    names = [f"p{at}" for at in range(2 * CONNECTIONS)]
    for name in names:
        running.world.pod(name)
    await running.pass_time()
    for name in names:
        running.world.bind(f"uid-{name}")
    running.world.configure("queues: [{name: a, stopPolicy: HoldAndDrain}]")
    running.events.clear()
    running.leads = False
    await running.pass_time()
    assert "post" not in running.verbs
    assert running.events == []


async def test_who_leads_again_tells_again_why_pods_wait(running: Running) -> None:
    """Another process may have told, and written in conditions, something else since."""
    running.world.pod("large", 99)
    await running.pass_time()
    told = running.told("large")
    assert len(told) == 1
    running.leads = False
    await running.pass_time()
    running.leads = True
    running.controller.begin_term()
    await running.pass_time()
    assert running.told("large") == 2 * told


@pytest.mark.parametrize("error", [ServerError("it is overloaded"), TooManyRequests("it is overloaded")])
async def test_no_answer_to_a_mark_is_no_refusal(running: Running, error: KubeApiError) -> None:
    """An API server that has much to do gets no Events about it on top."""
    running.refuses = error
    running.world.pod("kept")
    await running.pass_time()
    running.world.change("uid-kept", status=UNSCHEDULABLE)
    for _ in range(10):
        await running.pass_time()
    assert [text for text in running.told("kept") if "NotRequeued" in text] == []
    assert running.world.queue.queued_pods["uid-kept"].charged_queue == "a", (
        "its quota is its own until it is marked"
    )
    running.refuses = Forbidden("denied by policy x")
    for _ in range(20):
        await running.pass_time()
    refused = "the API server refuses to requeue it: denied by policy x"
    assert set(running.told("kept")[1:]) == {f"Warning NotRequeued it could not be bound, but {refused}"}
