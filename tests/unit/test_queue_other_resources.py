"""Further resources in the queue: they decide who is admitted, kept room for, and evicted."""

import pytest

from scheduler_plugin.queue.controller.status import explain_waiting
from scheduler_plugin.queue.scheduler.reclaim import Reclaimer
from tests.cluster_builders import container
from tests.queue_world import ONE_QUEUE, QueueWorld

NIC = "example.com/nic"
COUNTED = f"\nnodePolicyParameters: {{least-requested: {{resources: {NIC}}}}}"


def asks(nics: int, units: int = 1) -> list[dict[str, object]]:
    return [container(units=units, resources={NIC: str(nics)})]


def where(world: QueueWorld) -> dict[str, str]:
    return {world.name(each.uid): each.node for release in world.decide() for each in release.members}


BY_ANY = pytest.mark.parametrize("config", [ONE_QUEUE + COUNTED, ONE_QUEUE], ids=["counted", "by no policy"])


@BY_ANY
def test_a_pod_goes_where_it_is_left(config: str) -> None:
    world = QueueWorld(config)
    world.node("n1", resources={NIC: "1"})
    world.node("n2", resources={NIC: "4"})
    world.pod("p", containers=asks(2), created=1)
    world.pod("q", containers=asks(2), created=2)
    world.pod("r", containers=asks(2), created=3)
    world.pod("s", containers=asks(5), created=4)
    assert where(world) == {"p": "n2", "q": "n2"}
    told = {each.name: (each.reason, each.message) for each in explain_waiting(world.queue, world.now)}
    others = f"its rules, processor, memory, {NIC} and number of pods"
    allowed = f"it needs 1 units on one card, on a node that {others} allow"
    assert told["r"] == ("NoRoom", f"{allowed}: none has that")
    assert told["s"][0] == "NeverFits"
    assert f"processor, memory, {NIC} and number of pods allow no node" in told["s"][1]


@BY_ANY
def test_a_node_that_offers_more_of_it_takes_the_pod(config: str) -> None:
    """As where its device plugin starts later; nothing else of the node changes."""
    world = QueueWorld(config)
    world.node("n1", resources={NIC: "1"})
    world.pod("p", containers=asks(2))
    assert where(world) == {}
    assert explain_waiting(world.queue, world.now)[0].reason == "NeverFits"
    world.node("n1", resources={NIC: "4"})
    assert where(world) == {"p": "n1"}


def test_another_configuration_counts_it_from_then_on() -> None:
    """Also on a node that has nothing of it, where the pod seemed to fit."""
    world = QueueWorld()
    world.node("n1", used=(0, 0))
    world.node("n2", used=(8, 8), resources={NIC: "4"})
    uid = world.pod("p", containers=asks(1))
    pod = world.queue.queued_pods[uid]
    assert pod.requirements is not None
    assert world.queue.capacity.mask_fits(pod.requirements).sum() == 2
    world.configure(ONE_QUEUE + COUNTED)
    assert where(world) == {"p": "n2"}
    world.configure(ONE_QUEUE)
    world.pod("q", containers=asks(1))
    assert where(world) == {"q": "n1"}


@BY_ANY
def test_a_gang_has_it_on_as_many_nodes_as_it_needs(config: str) -> None:
    world = QueueWorld(config)
    world.node("n1", resources={NIC: "1"})
    world.node("n2", resources={NIC: "1"})
    for number in range(3):
        world.pod(f"g{number}", containers=asks(1), gang="g", size=3)
    for number in range(2):
        world.pod(f"h{number}", containers=asks(1), gang="h", size=2)
    assert sorted(where(world).items()) == [("h0", "n1"), ("h1", "n2")]


@BY_ANY
def test_room_is_kept_where_it_can_become_free(config: str) -> None:
    """n1 has the cards and too few of the resource; what is kept of that on n2 nobody else gets."""
    world = QueueWorld(config)
    world.node("n1", (16, 16), resources={NIC: "1"})
    world.node("n2", (16, 16), (8, 0), resources={NIC: "4"})
    holds = world.pod("holds", containers=asks(3, units=4), created=0)
    assert where(world) == {"holds": "n2"}
    world.bind(holds)
    large = world.pod("large", containers=asks(3, units=10), created=1)
    assert where(world) == {}
    world.now = 1000.0
    assert [(pod.uid, node) for pod, node in world.queue.update_reservations(world.now)] == [(large, "n2")]
    world.pod("small", containers=asks(1, units=1), created=2)
    assert where(world) == {"small": "n1"}
    world.pod("more", containers=asks(1, units=1), created=3)
    assert where(world) == {}
    world.delete(holds)
    assert where(world) == {"large": "n2", "more": "n2"}


def test_those_are_evicted_that_have_it() -> None:
    """The youngest borrower would free the units, and not the resource."""
    queues = "{name: a, cohort: x, nominalQuota: 0}, {name: b, cohort: x, nominalQuota: 32}"
    world = QueueWorld(f"queues: [{queues}]\nreclaim: evict{COUNTED}")
    world.node("n1", (32,), resources={NIC: "2"})
    for number, nics in enumerate((2, 0, 0)):
        world.run(f"a{number}", containers=asks(nics, units=2), created=number)
    world.pod("b0", containers=asks(2, units=2), queue="b", created=9)
    assert where(world) == {}
    (found,) = Reclaimer(world.queue).find_plans(world.now)
    assert [victim.record.name for victim in found.victims] == ["a0"]
