"""What every card is charged with: one case per rule of the accounting."""

import pytest

from allocator.ledger import Ledger, Listed, Pod
from tests.ledger_world import World, cards, ids, pod, request


def test_promised_is_a_union_of_ids():
    world = World.of(8, 8)
    world.allocate(ids("c0", 0, 1, 2))
    world.allocate(ids("c0", 1, 2, 3))
    assert world.promised == [4, 0]


def test_handed_ids_count_before_any_list():
    world = World.of(8)
    world.bind(pod("a", 3, "c0"))
    world.admit("a")
    assert world.promised == [3]


def test_listed_ids_count_although_nobody_saw_them_handed():
    world = World.of(8, 8)
    world.ledger.listed([Listed("ns", "x", "main", ids("c1", 0, 1))], world.ledger.mark(0.0))
    assert world.promised == [0, 2]


def test_ids_of_cards_that_are_not_there_are_left_out():
    world = World.of(8)
    world.ledger.listed([Listed("ns", "x", "main", ids("gone", 0, 1))], world.ledger.mark(0.0))
    assert world.promised == [0]
    assert world.ledger.explain()["holdings"] == []


def test_init_units_stay_charged_although_the_list_hides_them():
    world = World.of(8)
    world.run(pod("a", [("setup", 6, "init"), ("main", 2, "main")], "c0"))
    world.look(later=60)
    world.sync()
    world.look(later=60)
    assert world.promised == [6]


def test_init_units_are_charged_after_a_restart_that_lost_them():
    world = World.of(8)
    world.run(pod("a", [("setup", 6, "init"), ("main", 2, "main")], "c0"))
    world.ledger = Ledger(cards(8))
    world.sync()
    world.look()
    assert world.promised == [6]
    assert world.ledger.holds() == {"a"}


def test_an_admitted_pod_on_an_unknown_card_counts_on_every_card_that_could_have_it():
    world = World.of(8, 8, 4)
    world.bind(pod("a", 5, "c0"))
    world.start("a")
    world.look()
    assert world.promised == [5, 5, 0]
    assert world.ledger.holds() == {"a"}
    assert world.ledger.allocations() == {}


def test_a_pod_that_is_only_bound_holds_nothing():
    world = World.of(8)
    world.bind(pod("a", 5, "c0"))
    world.look()
    assert world.promised == [0]
    assert world.ledger.unheld() == {"a"}


def test_the_allocation_annotation_names_the_card_of_what_is_not_listed():
    world = World.of(8, 8)
    world.bind(pod("a", 5, "c0"))
    world.change("a", started=True, allocation={"main": (("c1", 5),)})
    assert world.promised == [0, 5]


@pytest.mark.parametrize(
    "allocation",
    [
        pytest.param({"main": (("c1", 1),)}, id="other units"),
        pytest.param({"other": (("c1", 5),)}, id="other container"),
        pytest.param({"main": (("c9", 5),)}, id="no such card"),
    ],
)
def test_an_allocation_that_cannot_be_true_is_ignored(allocation):
    world = World.of(8, 8)
    world.bind(pod("a", 5, "c0"))
    world.change("a", started=True, allocation=allocation)
    assert world.promised == [5, 5]


def test_an_allocation_admits_nobody():
    world = World.of(8)
    world.bind(pod("a", 5, "c0"))
    world.change("a", allocation={"main": (("c0", 5),)})
    world.look()
    assert world.promised == [0]
    assert world.ledger.holds() == frozenset()


def test_ids_that_the_kubelet_does_not_offer_are_in_use():
    world = World.of(8, 8)
    world.table["failed", "x"] = ids("c1", 0, 1, 2)
    world.ledger.preferred(world.offered(), (), 1, world.now)
    assert world.promised == [0, 3]


def test_withheld_ids_and_nameless_units_are_not_added_up():
    world = World.of(8)
    world.bind(pod("a", 5))
    world.start("a")
    world.table["a", "main"] = ids("c0", 0, 1, 2, 3, 4)
    world.ledger.preferred(world.offered(), (), 1, world.now)
    assert world.promised == [5]


def test_ids_offered_again_are_not_withheld():
    world = World.of(8)
    world.ledger.preferred(ids("c0", 0, 1), (), 1, world.now)
    assert world.promised == [6]
    world.ledger.preferred(world.all_ids(), (), 1, world.now)
    assert world.promised == [0]


def test_withheld_ids_that_are_then_handed_count_once():
    world = World.of(8)
    world.ledger.preferred(ids("c0", 0, 1), (), 1, world.now)
    world.allocate(ids("c0", 2, 3))
    assert world.promised == [6]


def test_a_card_just_back_is_not_withheld():
    """The kubelet may not have heard yet that the card is healthy."""
    world = World.of(8, 8)
    world.ledger.set_healthy("c1", False, world.now)
    world.ledger.set_healthy("c1", True, world.now)
    world.ledger.preferred(ids("c0", *range(8)), (), 1, world.now + 1)
    assert world.promised == [0, 0]
    world.ledger.preferred(ids("c0", *range(8)), (), 1, world.now + 60)
    assert world.promised == [0, 8]


def test_a_released_holding_does_not_come_back_as_withheld():
    world = World.of(8)
    world.run(pod("a", 3, "c0"))
    world.ledger.preferred(world.offered(), (), 1, world.now)
    world.end("a")
    assert world.promised == [0]


def test_used_never_passes_the_size():
    world = World.of(8)
    world.run(pod("a", 6, "c0"))
    world.ledger.set_pressure({"c0": 5, "c9": 1})
    assert world.used == [8]
    assert world.promised == [6]


def test_pressure_adds_to_what_is_promised():
    world = World.of(8)
    world.run(pod("a", 2, "c0"))
    world.ledger.set_pressure({"c0": 3})
    assert world.used == [5]


def test_sick_and_cordoned_cards_are_full():
    world = World.of(8, 8)
    world.ledger.set_healthy("c0", False, 0.0)
    world.ledger.set_cordoned({"c1", "c9"})
    assert world.used == [8, 8]
    world.ledger.set_healthy("c0", True, 0.0)
    world.ledger.set_cordoned(())
    assert world.used == [0, 0]


def test_what_is_waited_for_as_assigned_is_not_reserved():
    world = World.of(8, 8)
    world.bind(pod("a", 3, "c0"))
    assert world.used == [0, 0]


def test_a_pod_whose_card_another_got_is_reserved_where_it_goes():
    """Y took X's place on c0. The scheduler still expects X there; Y's own place must not be given away."""
    world = World.of(4, 4)
    world.bind(pod("x", 4, "c0"))
    world.bind(pod("y", 4, "c1"))
    # The kubelet admits y first, we take it for x, the older one.
    given = world.hand(4, key=("y", "main"))
    assert given == ids("c0", 0, 1, 2, 3)
    world.start("y")
    world.look()
    assert world.ledger.holds() == {"y"}
    assert world.used == [4, 4]
    assert world.hand(4, key=("x", "main")) == ids("c1", 0, 1, 2, 3)
    world.start("x")
    world.look()
    assert world.ledger.holds() == {"x", "y"}
    assert world.used == [4, 4]
    assert world.ledger.reserved() == {}


def test_the_reservation_ends_with_the_pod_that_it_is_for():
    world = World.of(4, 4)
    world.bind(pod("x", 4, "c0"))
    world.bind(pod("y", 4, "c1"))
    world.hand(4, key=("y", "main"))
    world.start("y")
    world.look()
    world.delete("x")
    assert world.used == [4, 0]


def test_the_reservation_outlives_the_pod_that_stood_in():
    """Y is deleted before X came, its container runs on: X still goes to c1."""
    world = World.of(4, 4)
    world.bind(pod("x", 4, "c0"))
    world.bind(pod("y", 4, "c1"))
    world.hand(4, key=("y", "main"))
    world.look()
    world.delete("y")
    assert world.used == [4, 4]


def test_a_target_on_a_sick_card_moves_and_is_reserved():
    world = World.of(8, 8)
    world.bind(pod("x", 4, "c0"))
    world.ledger.set_healthy("c0", False, 0.0)
    assert world.used == [8, 4]


def test_a_waiting_pod_without_any_room_keeps_what_is_left():
    world = World.of(8, 8)
    world.run(pod("a", 6, "c0"))
    world.run(pod("b", 6, "c1"))
    world.bind(pod("x", 4, "c0"))
    assert world.used == [6, 8]


def test_a_pod_that_nobody_assigned_is_counted_by_the_scheduler_everywhere():
    world = World.of(8, 8)
    world.bind(pod("x", 4))
    world.bind(pod("y", [("one", 2, "main"), ("two", 1, "sidecar")]))
    assert world.used == [0, 0]


def test_an_assignment_that_cannot_be_true_is_none():
    world = World.of(8, 8)
    world.bind(Pod("x", "ns", "x", request(4), assigned={"main": (("c9", 4),)}))
    assert world.hand(4) == ids("c0", 0, 1, 2, 3)


def test_init_units_still_to_come_are_reserved_on_the_card_of_the_first():
    world = World.of(8, 8)
    world.bind(pod("x", [("setup", 2, "init"), ("main", 5, "main")], "c0"))
    world.allocate(ids("c1", 0, 1))
    assert world.used == [0, 5]


def test_words_of_before_stand_for_pods_that_the_api_has_no_more():
    world = World.of(8, 8)
    world.ledger.remember({"c0": 5, "c1": 2, "c9": 1}, {"ghost"})
    world.sync()
    world.look()
    assert world.promised == [5, 2]
    world.bind(pod("a", 1, "c0"))
    world.admit("a")
    assert world.promised == [6, 2]
    assert world.ledger.doubtful() == {"ghost"}
    world.ledger.containers_ended("ghost")
    assert world.promised == [1, 0]


def test_a_pod_that_may_be_on_any_card_explains_nothing_of_the_words_of_before():
    world = World.of(8, 8)
    world.ledger.remember({"c0": 7, "c1": 0}, {"a", "ghost"})
    world.pods["a"] = pod("a", 4, "c0")
    world.sync()
    world.look()
    assert world.promised == [8, 4]
    world.bind(world.pods["a"])
    world.start("a")
    world.table["a", "main"] = ids("c0", 0, 1, 2, 3)
    world.look()
    assert world.promised == [7, 0]
    world.end("a")
    assert world.promised == [3, 0]


def test_words_of_before_are_not_believed_without_such_pods():
    world = World.of(8)
    world.ledger.remember({"c0": 5}, {"a"})
    world.bind(pod("a", 3, "c0"))
    world.admit("a")
    world.sync()
    world.look()
    assert world.ledger.explain()["cards"][0]["leftover"] == 0


def test_remembered_pods_hold_their_request_although_the_list_forgot_them():
    world = World.of(8, 8)
    world.ledger.remember({"c1": 5}, {"a"})
    world.pods["a"] = pod("a", 5, "c0")
    world.sync()
    world.look()
    assert world.promised == [5, 5]
    assert world.ledger.holds() == {"a"}


def test_promised_never_passes_the_size():
    world = World.of(8)
    world.bind(pod("a", 6))
    world.bind(pod("b", 6))
    world.start("a")
    world.start("b")
    assert world.promised == [8]


def test_promises_tell_whose_units_are_on_a_card():
    world = World.of(8, 8)
    world.run(pod("a", [("setup", 6, "init"), ("main", 2, "main")], "c0"))
    world.bind(pod("b", 3, "c1"))
    world.admit("b")
    world.bind(pod("w", 1, "c1"))
    world.allocate(ids("c1", 7))
    world.allocate(ids("c1", 6))
    assert world.ledger.promises() == {"c0": {"a": 6}, "c1": {"b": 3, "w": 1}}
    world.ledger = Ledger(cards(8, 8))
    world.sync()
    world.allocate(ids("c1", 7))
    assert world.ledger.promises()["c0"] == {"a": 6}


def test_cards_show_what_is_promised_on_them():
    world = World.of(8, 4)
    world.run(pod("a", 3, "c0"))
    assert [(card.uuid, card.size_units, card.used_units) for card in world.ledger.cards()] == [
        ("c0", 8, 3),
        ("c1", 4, 0),
    ]


def test_ids_of_two_living_pods_count_for_both():
    """A kubelet that lost its checkpoint hands out what containers run with."""
    world = World.of(8)
    for uid in ("a", "b"):
        world.bind(pod(uid, 3, "c0"))
        world.allocate(ids("c0", 0, 1, 2))
        world.table[uid, "main"] = ids("c0", 0, 1, 2)
        world.start(uid)
        world.look()
    assert world.promised == [6]


def test_health_that_is_told_again_is_no_news():
    world = World.of(8)
    world.ledger.set_healthy("c0", True, world.now)
    world.ledger.preferred(ids("c0", 0), (), 1, world.now)
    assert world.promised == [7]
