"""Whose quota an admitted pod counts against, and for whom a queue is."""

from scheduler_plugin.queue.controller.status import explain_waiting, report_queues
from tests.queue_world import QueueWorld

LABEL = "gpupack.io/queue-name"
FOR_X = "queues: [{name: a, nominalQuota: 8, namespaceSelector: {matchLabels: {team: x}}}]"
NOT_FOR_X = (
    "queues: [{name: a, namespaceSelector: {matchExpressions: [{key: team, operator: NotIn, values: [x]}]}}]"
)


def _used(world: QueueWorld) -> dict[str, int]:
    return {each.name: each.used for each in report_queues(world.queue, 0) if each.used}


def test_a_released_pod_counts_for_its_queue_until_it_ends() -> None:
    """Whatever its label says meanwhile: quota could be escaped else, or used up for others."""
    world = QueueWorld("queues: [{name: a, nominalQuota: 8}, {name: b, nominalQuota: 8}]", n1=(16, 16))
    uid = world.run("p", 8)
    world.change(uid, metadata={"labels": {LABEL: "b"}})
    assert _used(world) == {"a": 8}
    world.change(uid, metadata={"labels": {}})
    assert _used(world) == {"a": 8}
    other = world.pod("q", 8)
    assert world.admitted() == []
    world.delete(uid)
    assert world.admitted() == ["q"]
    assert _used(world) == {"a": 8}
    world.delete(other)
    assert _used(world) == {}


def test_pods_of_a_queue_that_is_gone_count_for_the_one_that_they_name_then() -> None:
    """So a queue can be renamed."""
    world = QueueWorld("queues: [{name: a, nominalQuota: 8}]", n1=(16, 16))
    uid = world.run("p", 8)
    world.configure("queues: [{name: b, nominalQuota: 8}]")
    world.change(uid, metadata={"labels": {LABEL: "b"}})
    assert _used(world) == {"b": 8}
    assert [each.name for each in report_queues(world.queue, 0)] == ["b"]


def test_a_bound_pod_of_an_excluded_namespace_does_not_count() -> None:
    """Or anybody could use up the quota of a queue that is not for them."""
    world = QueueWorld(FOR_X, n1=(16, 16))
    world.queue.set_namespaces({"default": {"team": "y"}})
    uid = world.pod("p", 8, gates=())
    world.change(uid, spec={"nodeName": "n1"})
    assert _used(world) == {}
    world.queue.set_namespaces({"default": {"team": "x"}})
    assert _used(world) == {"a": 8}


def test_what_was_released_counts_when_its_namespace_is_excluded_later() -> None:
    """It has the room, and had it from this queue."""
    world = QueueWorld(FOR_X, n1=(16, 16))
    world.queue.set_namespaces({"default": {"team": "x"}})
    world.run("p", 8)
    world.queue.set_namespaces({"default": {"team": "y"}})
    assert _used(world) == {"a": 8}


def test_no_selector_admits_a_namespace_that_is_not_known_yet() -> None:
    """It may have the very label that the selector excludes."""
    world = QueueWorld(NOT_FOR_X, n1=(16, 16))
    world.pod("p", 8)
    assert world.admitted() == []
    assert "namespace 'default' are not known yet" in explain_waiting(world.queue, 0)[0].message.replace(
        '"', "'"
    )
    world.queue.set_namespaces({"default": {}})
    assert world.admitted() == ["p"]
