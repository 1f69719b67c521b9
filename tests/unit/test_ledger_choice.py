"""What the kubelet is told: one case per rule of GetPreferredAllocation and Allocate."""

import pytest

from allocator.errors import LedgerError
from allocator.ledger import Ledger, Pod
from allocator.selector import Selector
from tests.ledger_world import World, by_card, cards, ids, pod, request


def test_an_unknown_container_gets_exactly_its_size_on_one_card():
    world = World.of(8, 8)
    assert by_card(world.hand(3)) == {"c0": 3}
    assert by_card(world.hand(8)) == {"c1": 8}


def test_the_assigned_card_goes_before_the_policy():
    world = World.of(8, 8)
    world.bind(pod("a", 3, "c1"))
    assert not world.ledger.displaces(3, world.offered())
    assert by_card(world.hand(3)) == {"c1": 3}


def test_the_oldest_waiting_pod_is_served_first():
    world = World.of(8, 8, 8)
    world.bind(pod("b", 3, "c2"))
    world.bind(pod("a", 3, "c1"))
    assert by_card(world.hand(3)) == {"c1": 3}
    assert by_card(world.hand(3)) == {"c2": 3}


def test_a_pod_that_has_begun_is_served_before_older_ones():
    """The kubelet admits one pod at a time."""
    world = World.of(8, 8)
    world.bind(pod("b", [("one", 2, "main"), ("two", 3, "main")], "c0", "c1"))
    world.hand(2, key=("b", "one"))
    world.bind(pod("a", 3, "c0"))
    assert by_card(world.hand(3)) == {"c1": 3}


def test_a_container_whose_turn_comes_later_is_not_meant():
    world = World.of(8, 8)
    world.bind(pod("a", [("one", 5, "main"), ("two", 3, "main")], "c0", "c0"))
    assert not world.ledger.expects(3, world.offered())
    world.bind(pod("b", 3, "c1"))
    assert world.ledger.expects(3, world.offered())
    assert by_card(world.hand(3)) == {"c1": 3}


def test_a_pod_of_another_size_is_not_meant():
    world = World.of(8, 8)
    world.bind(pod("a", 4, "c1"))
    assert not world.ledger.expects(3, world.offered())
    assert world.ledger.expects(4, world.offered())


def test_a_full_assigned_card_falls_back_to_the_policy():
    world = World.of(8, 8, 8)
    world.allocate(ids("c1", 0, 1, 2, 3, 4, 5))
    world.table["x", "x"] = ids("c1", 0, 1, 2, 3, 4, 5)
    world.bind(pod("a", 3, "c1"))
    assert by_card(world.hand(3)) == {"c0": 3}


def test_the_fallback_leaves_other_pods_their_cards():
    world = World.of(8, 8)
    world.bind(pod("w", 6, "c0"))
    assert by_card(world.hand(4)) == {"c1": 4}


def test_the_fallback_avoids_cards_that_others_use():
    world = World.of(8, 8)
    world.ledger.set_pressure({"c0": 6})
    assert by_card(world.hand(4)) == {"c1": 4}


def test_the_fallback_takes_a_card_that_others_wait_for_rather_than_fail():
    world = World.of(8)
    world.bind(pod("w", 6, "c0"))
    assert by_card(world.hand(4)) == {"c0": 4}


def test_ids_that_linger_are_taken_last():
    world = World.of(8)
    world.allocate(ids("c0", 0, 1))
    answer = world.ledger.preferred(world.all_ids(), (), 3, world.now)
    assert set(answer) == ids("c0", 2, 3, 4)


def test_what_a_finished_pod_is_known_to_have_had_is_taken_after_what_it_may_have_had():
    """It was doubted that pod a got its IDs, so it counts on both cards; its containers may run yet."""
    world = World.of(8, 8)
    world.bind(pod("a", 3, "c0"))
    world.hand(3, key=("a", "main"))
    world.forget("a")
    assert not world.ledger.expects(3, world.offered())
    world.start("a")
    world.delete("a")
    assert world.promised == [6, 3]
    world.bind(pod("b", 6))
    assert by_card(world.hand(6)) == {"c1": 6}


def test_a_pod_that_is_gone_may_be_asking_when_it_is_no_other_pods_turn():
    """The kubelet has not heard of the deletion of g yet, and admits it before b."""
    world = World.of(8, 8)
    world.bind(pod("g", 3, "c1"))
    world.delete("g")
    world.bind(pod("b", [("first", 2, "main"), ("second", 3, "main")], "c0"))
    assert by_card(world.hand(3)) == {"c1": 3}
    assert by_card(world.hand(2)) == {"c0": 2}
    assert by_card(world.hand(3)) == {"c0": 3}


def test_the_assigned_card_goes_before_one_where_a_finished_pods_containers_linger():
    """Something that nobody is known to have lingers on the assigned card too, but it is on offer."""
    world = World.of(8, 8)
    world.run(pod("b", 5, "c0"))
    world.forget("b")
    world.delete("b")
    assert by_card(world.hand(4)) == {"c1": 4}
    world.forget("failed")
    world.bind(pod("a", 5, "c1"))
    assert world.ledger.expects(5, world.offered())
    assert world.ledger.displaces(5, world.offered())
    assert by_card(world.hand(5)) == {"c1": 5}


def test_the_assigned_card_goes_before_one_where_somebody_may_have_left_something():
    """Pod u runs, nobody knows where; z has ended on c1; something of nobody known is on offer on c0."""
    world = World.of(8, 8)
    world.run(pod("z", 2, "c1"))
    assert by_card(world.hand(2)) == {"c0": 2}
    world.forget("failed")
    world.forget("z")
    world.delete("z")
    world.bind(pod("u", 5))
    world.start("u")
    world.bind(pod("a", 3, "c0"))
    assert by_card(world.hand(3)) == {"c0": 3}


def test_policies_decide_for_pods_that_nobody_assigned():
    world = World.of(8, 8, policy="most-used")
    world.table["x", "x"] = ids("c1", 0, 1)
    world.allocate(ids("c1", 0, 1))
    assert by_card(world.hand(3)) == {"c1": 3}


def test_two_cards_get_the_same_number_each():
    world = World.of(8, 8, 8)
    world.bind(pod("a", 6, "c2", "c0", count=2))
    assert by_card(world.hand(6)) == {"c0": 3, "c2": 3}


def test_selectors_bind_the_fallback():
    world = World.of(8, 8)
    world.bind(Pod("a", "ns", "a", request(3, selector=Selector.parse(None, "c1"))))
    assert by_card(world.hand(3)) == {"c1": 3}


def test_a_cordoned_card_is_not_chosen():
    world = World.of(8, 8)
    world.ledger.set_cordoned({"c0"})
    assert by_card(world.hand(3)) == {"c1": 3}


def test_a_pod_bound_before_the_cordon_still_gets_its_card():
    world = World.of(8)
    world.bind(pod("a", 3, "c0"))
    world.ledger.set_cordoned({"c0"})
    assert by_card(world.hand(3)) == {"c0": 3}


def test_no_card_with_room_is_refused_with_the_numbers():
    world = World.of(4, 4)
    with pytest.raises(LedgerError, match=r"no 1 card.*5 free units.*c0.*4"):
        world.ledger.preferred(world.all_ids(), (), 5, world.now)


def test_init_ids_stay_on_their_card_and_are_completed_there():
    world = World.of(8, 8)
    world.bind(pod("a", [("setup", 2, "init"), ("main", 5, "main")], "c1"))
    first, second = world.admit("a")
    assert by_card(first) == {"c1": 2}
    assert by_card(second) == {"c1": 5}
    assert first <= second


def test_a_shared_pod_needs_a_card_with_room_for_its_peak():
    world = World.of(8, 8)
    world.table["x", "x"] = ids("c0", 0, 1, 2, 3)
    world.allocate(ids("c0", 0, 1, 2, 3))
    world.ledger.set_pressure({"c1": 1})
    world.bind(pod("a", [("setup", 2, "init"), ("main", 6, "main")]))
    assert by_card(world.admit("a")[1]) == {"c1": 6}


def test_init_ids_on_two_cards_are_refused():
    world = World.of(8, 8)
    with pytest.raises(LedgerError, match="must stay on"):
        world.ledger.preferred(world.all_ids(), ids("c0", 1) | ids("c1", 1), 4, world.now)


def test_init_ids_on_a_full_card_are_refused():
    world = World.of(4, 8)
    with pytest.raises(LedgerError, match="must stay on"):
        world.ledger.preferred(world.all_ids(), ids("c0", 1), 6, world.now)


def test_containers_of_one_pod_are_served_on_their_own_cards():
    world = World.of(8, 8)
    world.bind(pod("a", [("one", 3, "main"), ("two", 3, "main")], "c1", "c0"))
    assert [by_card(given) for given in world.admit("a")] == [{"c1": 3}, {"c0": 3}]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        pytest.param([], "Allocate of", id="nothing"),
        pytest.param(["c0::8"], "c0::8", id="beyond the card"),
        pytest.param(["rubbish"], "rubbish", id="no ID"),
        pytest.param(["c0::1", "c1::1"], "2 cards", id="two cards without an answer"),
        pytest.param(["c2::1"], "healthy", id="sick card"),
    ],
)
def test_allocate_refuses(given, message):
    world = World.of(8, 8, 8)
    world.ledger.set_healthy("c2", False, 0.0)
    with pytest.raises(LedgerError, match=message):
        world.allocate(frozenset(given))
    assert world.promised == [0, 0, 0]


def test_two_cards_are_allowed_once_per_answer():
    world = World.of(8, 8)
    world.bind(pod("a", 2, "c0", "c1", count=2))
    given = world.hand(2)
    with pytest.raises(LedgerError, match="2 cards"):
        world.allocate(given)


def test_a_grant_lists_cards_in_word_order():
    world = World.of(8, 8)
    world.bind(pod("a", 4, "c1", "c0", count=2))
    answer = world.ledger.preferred(world.all_ids(), (), 4, world.now)
    assert world.allocate(frozenset(answer)).shares == (("c0", 2), ("c1", 2))


def test_allocate_without_a_question_is_guessed_by_size():
    world = World.of(8, 8)
    world.bind(pod("a", 2, "c0"))
    world.allocate(ids("c1", 0, 1))
    assert not world.ledger.expects(2, world.all_ids() - ids("c1", 0, 1))


def test_an_allocate_on_offer_again_served_nobody():
    world = World.of(8, 8)
    world.bind(pod("a", 3, "c1"))
    world.hand(3)
    assert not world.ledger.expects(3, world.offered())
    world.forget("failed")
    assert not world.ledger.expects(3, world.offered())  # it may be over: look first
    assert by_card(world.hand(3)) == {"c1": 3}


def test_what_is_on_offer_was_rather_that_of_a_pod_known_to_be_over():
    """Both were taken for each other; now b is gone, and the kubelet keeps what seemed to be b's."""
    world = World.of(8, 8)
    world.bind(pod("a", 3, "c0"))
    world.bind(pod("b", 3, "c1"))
    world.hand(3, key=("b", "main"))
    world.hand(3, key=("a", "main"))
    world.forget("b")
    assert not world.ledger.expects(3, world.offered())
    world.delete("b")
    assert not world.ledger.expects(3, world.offered())
    assert [h["pod"] for h in world.ledger.explain()["holdings"]] == ["b", "a"]


def test_an_admitted_pod_that_lost_its_ids_may_ask_again():
    world = World.of(8, 8)
    world.bind(pod("a", 3, "c1"))
    world.start("a")
    assert not world.ledger.expects(3, world.offered())  # a pod not seen yet is likelier: look first
    assert by_card(world.hand(3)) == {"c1": 3}


def test_equal_uuids_are_refused():
    with pytest.raises(LedgerError, match="every UUID once"):
        Ledger([cards(4)[0], cards(4)[0]])


def test_health_of_an_unknown_card_is_refused():
    with pytest.raises(LedgerError, match="c9"):
        World.of(8).ledger.set_healthy("c9", False, 0.0)


def test_a_list_between_question_and_allocate_may_take_the_pod_away():
    """The answer was for x, and then the list shows that x has an earlier Allocate already."""
    world = World.of(8, 8)
    world.bind(pod("a", 3, "c0"))
    world.bind(pod("x", 3, "c1"))
    world.hand(3, key=("x", "main"))
    answer = frozenset(world.ledger.preferred(world.offered(), (), 3, world.now))
    assert by_card(answer) == {"c1": 3}
    world.start("x")
    world.look()
    world.allocate(answer)
    world.table["a", "main"] = answer
    assert not world.ledger.expects(3, world.offered())


def test_an_allocate_nobody_asked_for_is_guessed_by_its_card():
    world = World.of(8, 8)
    world.bind(pod("a", 3, "c0"))
    world.bind(pod("b", 3, "c1"))
    world.allocate(ids("c1", 0, 1, 2))
    world.table["b", "main"] = ids("c1", 0, 1, 2)
    assert by_card(world.hand(3)) == {"c0": 3}


def test_an_admitted_pods_allocate_is_not_doubted():
    """The kubelet offers it again only because it has lost its checkpoint."""
    world = World.of(8)
    world.bind(pod("a", 3, "c0"))
    world.hand(3, key=("a", "main"))
    world.start("a")
    world.forget("a")
    assert not world.ledger.expects(3, world.offered())
    assert world.promised == [3]
