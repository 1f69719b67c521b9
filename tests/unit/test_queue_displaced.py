"""Admitted pods whose room others have: they get other room before anybody else is admitted."""

import msgspec

from kubeapi.objects import Pod
from tests.queue_world import QueueWorld


def where(world: QueueWorld, uid: str) -> str:
    assumed = world.state.get_assumed(uid)
    return assumed.node if assumed is not None else ""


def test_who_finds_its_card_taken_moves_and_keeps_others_from_its_new_room() -> None:
    """kube-scheduler bound the one pod where the queue had thought of the other."""
    world = QueueWorld(n1=(16,), n2=(16,))
    one, two = world.pod("one", 16), world.pod("two", 16)
    world.decide()
    elsewhere = where(world, two)
    world.objects[one]["metadata"]["annotations"]["gpupack.io/assigned"] = (
        f'{{"main":[["GPU-{elsewhere}-0",16]]}}'
    )
    world.change(one, spec={"nodeName": elsewhere})
    world.pod("three", 16)
    assert world.admitted() == []
    assert where(world, two) == ({"n1", "n2"} - {elsewhere}).pop()


def test_the_rest_of_the_node_is_not_kept_from_others() -> None:
    """A pod bound by others fills the card that was meant for an admitted one; the second card stays free."""
    world = QueueWorld(n1=(16, 16))
    world.node("n2", (16,), labels={"only": "this"})
    pinned = world.pod("pinned", 16, spec={"nodeSelector": {"only": "this"}})
    assert world.admitted() == ["pinned"]
    world.node("n2", (16, 8), [16, 0], labels={"only": "this"})
    assert where(world, pinned) == ""
    world.pod("small", 8, spec={"nodeSelector": {"only": "this"}})
    assert world.admitted() == ["small"]
    world.node("n2", (16, 8), [0, 8], labels={"only": "this"}, holds=["uid-small"])
    world.pod("large", 16, spec={"nodeSelector": {"only": "this"}})
    assert world.admitted() == []
    assert where(world, pinned) == "n2"


def test_what_another_process_released_has_room_here_too() -> None:
    """The standby knew the pod while it waited; when it leads it counts it."""
    world = QueueWorld(n1=(16,))
    uid = world.pod("one", 16)
    world.change(uid, spec={"schedulingGates": []})
    world.pod("two", 16)
    assert world.admitted() == []
    assert where(world, uid) == "n1"


def test_what_was_given_back_before_a_restart_takes_no_room_after_it() -> None:
    """kube-scheduler has said that it finds no node for it."""
    world = QueueWorld(n1=(16,))
    failed = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]
    world.pod("one", 16, gates=(), status={"conditions": failed})
    world.pod("two", 15)
    assert world.admitted() == ["two"]


def test_a_pod_that_vanished_is_counted_for_a_while_only() -> None:
    """Its node never says that it is gone."""
    world = QueueWorld(n1=(16,))
    uid = world.run("one", 16)
    raw = world.objects.pop(uid)
    world.queue.state.delete_pod(msgspec.convert(raw, Pod), str(world.version + 1), world.now)
    world.queue.delete_pod(uid, world.now)
    world.pod("two", 16)
    assert world.admitted() == []
    world.now = 31
    assert world.admitted() == ["two"]
