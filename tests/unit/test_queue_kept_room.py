"""Room that is kept for a pod that waits long: it moves with its chances, and is given up without any."""

import pytest

from allocator.names import PERCENT_RESOURCE
from allocator.records import Assignment
from scheduler_plugin.queue.controller.status import KEPT_QUOTA, explain_waiting
from tests.cluster_builders import in_percent
from tests.queue_world import QueueWorld

TWO = "queues: [{name: a, nominalQuota: 32}, {name: b}]"


def _kept(world: QueueWorld) -> list[str]:
    return [node for _, node in world.queue.update_reservations(world.now)]


def _keeping() -> QueueWorld:
    """Two nodes with a card, half of each used by b; a pod of a waits for a whole card, kept on n1."""
    world = QueueWorld(TWO)
    for node in ("n1", "n2"):
        world.node(node, (16,))
    for uid in [world.pod(f"b{i}", 9, queue="b", created=0) for i in range(2)]:
        world.admitted()
        world.bind(uid)
    world.pod("large", 16, created=1)
    world.now = 1000.0
    assert _kept(world) == ["n1"]
    return world


def _lose(world: QueueWorld, node: str) -> None:
    world.version += 1
    world.state.delete_node(node, str(world.version), world.now)
    world.queue.set_node(node, None)


def checkpoint_cards(uuids: tuple[str, ...], assigned: Assignment | None) -> list[int]:
    """Positions of the cards that a pod was bound with."""
    return [uuids.index(uuid) for shares in (assigned or {}).values() for uuid, _ in shares]


def test_room_is_kept_for_a_pod_that_waited_too_long() -> None:
    """Small pods that come and go do not starve a large one; before that they pass it."""
    world = QueueWorld(n1=(16, 16))
    small = [world.pod(f"s{i}", 8, created=i) for i in range(4)]
    assert len(world.admitted()) == 4
    world.bind(*small)
    large = world.pod("large", 16, created=5)
    world.delete(small.pop())
    world.pod("s4", 8, created=6)
    assert world.admitted() == ["s4"], "it passes while there is time"
    world.now = 600
    ((queued_pod, node),) = world.queue.update_reservations(world.now)
    assert (queued_pod.uid, node) == (large, "n1")
    world.bind("uid-s4")
    record = world.state.node_records["n1"]
    (held,) = world.queue.capacity.reservations.get_by_pod(large)[large].cards
    inside = [uid for uid, pod in record.pods.items() if held in checkpoint_cards(record.uuids, pod.assigned)]
    world.delete(inside[0])
    world.pod("s5", 8, created=7)
    assert world.admitted() == [], "the room on the kept card is not for s5"
    world.delete(inside[1])
    assert world.admitted() == ["large"]


def test_kept_room_moves_when_its_node_is_cordoned() -> None:
    """The pod would wait on it for ever."""
    world = _keeping()
    world.node("n1", (16,), spec={"unschedulable": True})
    assert _kept(world) == ["n2"]


def test_kept_room_moves_when_its_card_is_no_longer_large_enough() -> None:
    """Somebody exchanged it."""
    world = _keeping()
    world.node("n1", (12,))
    assert _kept(world) == ["n2"]


def test_kept_room_moves_when_its_node_is_gone_and_is_not_its_successors() -> None:
    """The arrays give the row of a node that is gone to the next one."""
    world = _keeping()
    _lose(world, "n1")
    world.node("n3", (12,))
    world.pod("small", 12, queue="b", created=2)
    assert world.admitted() == ["small"]
    assert _kept(world) == ["n2"]


@pytest.mark.parametrize(
    "config",
    [
        TWO.replace("nominalQuota: 32", "stopPolicy: Hold"),
        TWO.replace("32", "0"),
        TWO.replace("name: a", "name: c"),
    ],
    ids=("hold", "quota", "gone"),
)
def test_kept_room_is_given_up_when_its_pod_may_not_be_released(config: str) -> None:
    """Others can have it."""
    world = _keeping()
    world.configure(config)
    assert _kept(world) == []
    for uid in [uid for uid in world.objects if world.name(uid) == "b0"]:
        world.delete(uid)
    world.pod("other", 16, queue="b", created=2)
    assert world.admitted() == ["other"]
    assert "room is kept" not in " ".join(each.message for each in explain_waiting(world.queue, world.now))


def _on_the_second_card(**others: int) -> QueueWorld:
    """Card B is kept for a pod of a. Units of b are on A: 16, on B: 9, and on others by their names."""
    world = QueueWorld(TWO)
    used = {"A": 16, "B": 9, **others}
    world.node("n1", [16] * len(used), uuids=list(used))
    for card, units in used.items():
        uid = world.pod(card, units, queue="b", created=0, annotations={"gpupack.io/gpu-uuid": card})
        assert world.admitted() == [card]
        world.bind(uid)
    world.pod("large", 16, created=10)
    world.now = 1000.0
    assert _kept(world) == ["n1"]
    assert _card(world) == "B"
    return world


def test_no_room_is_kept_for_a_share_on_a_node_that_offers_shares_no_more() -> None:
    world = QueueWorld(TWO)
    for node in ("n1", "n2"):
        world.node(node, (16,))
    for uid in (pods := [world.pod(f"b{i}", 9, queue="b", created=0) for i in range(2)]):
        world.admitted()
        world.bind(uid)
    world.pod("large", containers=[in_percent(100)], created=1)
    world.now = 1000.0
    assert _kept(world) == ["n1"]
    holds = [uid for uid in pods if uid in world.state.node_records["n1"].pods]
    world.node("n1", (16,), (9,), holds=holds, resources={PERCENT_RESOURCE: "0"})
    assert _kept(world) == ["n2"]


def _card(world: QueueWorld) -> str:
    kept = world.queue.capacity.reservations.get_reservation("uid-large")
    assert kept is not None
    (card,) = kept.cards
    return kept.uuids[card]


def test_a_card_stays_kept_where_one_before_it_goes() -> None:
    """A younger pod would take what is free of it, and after that the rest."""
    world = _on_the_second_card()
    world.delete("uid-A")
    world.node("n1", (16,), uuids=("B",))
    assert _kept(world) == []
    assert _card(world) == "B"
    world.pod("small", 7, queue="b", created=11)
    assert world.admitted() == []
    world.delete("uid-B")
    assert world.admitted() == ["large"]


def test_the_card_that_comes_to_a_kept_position_is_not_kept() -> None:
    world = _on_the_second_card(C=10)
    world.delete("uid-A")
    world.node("n1", (16, 16), uuids=("B", "C"))
    world.pod("small", 6, queue="b", created=11)
    assert world.admitted() == ["small"]
    assumed = world.state.get_assumed("uid-small")
    assert assumed is not None
    assert assumed.assigned == {"main": (("C", 6),)}


def test_another_card_is_kept_where_the_kept_one_goes() -> None:
    """The one that needs the least, and not the one that has come to its position."""
    world = _on_the_second_card(C=12, D=10)
    world.delete("uid-B")
    world.node("n1", (16, 16, 16), uuids=("A", "C", "D"))
    assert _kept(world) == ["n1"]
    assert _card(world) == "D"


def test_cards_without_uuids_stay_where_they_are() -> None:
    """The node's record is not there for a moment; nothing better is known than the positions."""
    world = _on_the_second_card()
    world.node("n1", (16, 16), inventory=False)
    assert _kept(world) == []
    assert _card(world) == "B"


def test_an_older_pod_that_asks_the_same_comes_back_after_room_was_kept_for_a_younger_one() -> None:
    world = QueueWorld("queues: [{name: a}]\nkeepRoomAfter: 10s", n1=(16,))
    filler = world.run("filler", 8, created=0)
    world.pod("younger", 16, created=2)
    world.now = 20.0
    assert [pod.record.name for pod, _ in world.queue.update_reservations(world.now)] == ["younger"]
    world.pod("older", 16, created=1)
    world.delete(filler)
    world.queue.update_reservations(world.now)
    assert world.admitted() == ["older"]


def test_room_is_not_kept_for_a_borrower_whose_quota_its_lender_needs() -> None:
    """Else neither starts: quota is kept for the lender, whose only room is kept for the borrower."""
    queues = "{name: a, cohort: x, nominalQuota: 16}, {name: b, cohort: x, nominalQuota: 0}"
    world = QueueWorld(f"queues: [{queues}]\nkeepRoomAfter: 30s", n1=(16,))
    running = [world.pod(f"a{number}", 8, created=number) for number in range(2)]
    assert len(world.admitted()) == 2
    world.bind(*running)
    world.node("n1", (16,), [16], holds=running)
    world.pod("borrower", 3, queue="b", created=2)
    world.pod("lender", 16, created=3)
    world.now = 1000.0
    world.delete(running[0])
    assert _kept(world) == ["n1"], "its quota is free, and the node does not say yet that the card is"
    world.delete(running[1])
    world.node("n1", (16,))
    assert world.admitted() == []
    _kept(world)
    assert world.admitted() == ["lender"]


@pytest.mark.parametrize(
    ("config", "cpu"),
    [("\nslots: {per: node, local: {count: 1}, free: {count: 1}}", "64"), ("", "4")],
    ids=["slots", "cpu"],
)
def test_of_two_for_which_room_is_kept_on_a_node_the_first_goes_as_soon_as_one_fits(
    config: str, cpu: str
) -> None:
    """Each has cards, and only one slot is idle, or cpu for one. They waited for each other."""
    world = QueueWorld(f"queues: [{{name: a}}, {{name: b}}]\nkeepRoomAfter: 30s{config}")
    world.node("n1", (16, 16, 16), cpu=cpu)
    running = [world.pod(f"r{number}", 16, created=0, cpu="2") for number in range(2)]
    assert len(world.admitted()) == 2
    world.bind(*running)
    world.pod("first", 16, created=1, cpu="2")
    world.pod("second", 16, queue="b", created=2, cpu="2")
    world.now = 1000.0
    assert world.admitted() == []
    assert _kept(world) == ["n1", "n1"]
    for uid, name in zip(running, ("first", "second"), strict=True):
        world.delete(uid)
        assert world.admitted() == [name]
        world.bind(f"uid-{name}")


def test_of_two_borrowers_for_which_not_both_the_quota_is_left_the_first_keeps_its_room() -> None:
    """Each left it to the other: room was given up and kept again, with an Event, every few seconds."""
    queues = ", ".join(f"{{name: {name}, cohort: x, nominalQuota: 8}}" for name in "abc")
    world = QueueWorld(f"queues: [{queues}]\nkeepRoomAfter: 30s", n1=(10, 10))
    running = [world.pod(f"r{name}", 10, queue=name, created=0) for name in "bc"]
    assert len(world.admitted()) == 2
    world.bind(*running)
    world.pod("first", 3, queue="b", created=1)
    world.pod("second", 3, queue="c", created=2)
    world.now = 1000.0
    assert world.admitted() == []
    _kept(world)
    assert [_kept(world) for _ in range(3)] == [[], [], []]
    assert list(world.queue.capacity.reservations.workload_uids) == ["uid-first"]
    world.delete(running[1])
    assert sorted(world.admitted()) == ["first", "second"]


def test_younger_pods_borrow_while_an_older_one_waits_for_room_until_that_cost_it_its_quota() -> None:
    """Younger pods started each time that others lent: the older one had quota or room, never both."""
    nominal = {"a": 16, "b": 16, "c": 8}
    queues = ", ".join(f"{{name: {name}, cohort: x, nominalQuota: {has}}}" for name, has in nominal.items())
    world = QueueWorld(f"queues: [{queues}]\nkeepRoomAfter: 30s")
    world.node("n1", (16, 4, 4, 8, 16), uuids=("A", "B", "C", "D", "E"))

    def starts(name: str, units: int, queue: str, card: str) -> bool:
        annotations = {"gpupack.io/gpu-uuid": card}
        uid = world.pod(name, units, queue=queue, created=len(world.objects), annotations=annotations)
        if world.admitted() != [name]:
            return False
        world.bind(uid)
        return True

    assert starts("first", 8, "a", "A")
    assert not starts("large", 16, "a", "A")
    world.now = 1000.0
    assert _kept(world) == ["n1"]
    assert starts("small", 4, "a", "B"), "nobody else asks for what is lent"
    assert starts("lender", 16, "b", "E")
    assert starts("other", 8, "c", "D")
    world.delete("uid-first")
    assert world.admitted() == []
    assert _kept(world) == [], "its card is for others while it lacks quota"
    world.delete("uid-other")
    assert starts("another", 8, "c", "A")
    world.delete("uid-lender")
    assert _kept(world) == ["n1"]
    assert not starts("small-2", 4, "a", "C")
    messages = {each.name: each.message for each in explain_waiting(world.queue, world.now)}
    assert messages["small-2"] == KEPT_QUOTA
    world.delete("uid-another")
    assert world.admitted() == ["large", "small-2"]
