"""What the kubelet is told: one case per rule of GetPreferredAllocation and Allocate."""

import pytest

from allocator.errors import LedgerError
from allocator.selector import Selector
from tests.ledger_world import World, ids, pod


def expects(world: World, size: int) -> bool:
    return world.ledger.ask(world.offered(), (), size).is_expected()


def displaces(world: World, size: int) -> bool:
    return world.ledger.ask(world.offered(), (), size).is_displaced()


def test_an_unknown_container_gets_exactly_its_size_on_one_card():
    world = World.of(8, 8)
    assert world.hand(3) == {"c0": 3}
    assert world.hand(8) == {"c1": 8}


def test_the_assigned_card_goes_before_the_policy():
    world = World.of(8, 8)
    world.bind(pod("a", 3, "c1"))
    assert not displaces(world, 3)
    assert world.hand(3, "a") == {"c1": 3}


def test_containers_of_one_pod_are_served_on_their_own_cards():
    world = World.of(8, 8)
    world.bind(pod("a", [("one", 3, "main"), ("two", 3, "main")], "c1", "c0"))
    assert world.admit("a") == [{"c1": 3}, {"c0": 3}]


def test_two_cards_get_the_same_number_each():
    world = World.of(8, 8, 8)
    world.bind(pod("a", 6, "c2", "c0", count=2))
    assert world.hand(6, "a") == {"c0": 3, "c2": 3}


def test_h6_who_goes_elsewhere_waits_for_all_pods():
    """Its card is taken, and where the policy would send it another pod may have been bound."""
    world = World.of(8, 8)
    world.hand(6)
    world.bind(pod("a", 3, "c0"))
    assert displaces(world, 3)
    world.bind(pod("b", 4, "c1"))
    assert world.hand(3, "a") == {"c1": 3}


def test_the_fallback_leaves_other_pods_their_cards():
    world = World.of(8, 8, 8)
    world.allocate(ids("c1", 0, 1, 2, 3, 4, 5), ("x", "main"))
    world.bind(pod("w", 6, "c0"))
    world.bind(pod("a", 3, "c1"))
    assert world.hand(3, "a") == {"c2": 3}


def test_the_fallback_avoids_cards_that_others_use():
    world = World.of(8, 8)
    world.ledger.set_pressure({"c0": 6})
    assert world.hand(4) == {"c1": 4}


def test_the_fallback_takes_a_card_that_others_wait_for_rather_than_fail():
    world = World.of(8)
    world.bind(pod("w", 6, "c0"))
    assert world.hand(4) == {"c0": 4}


def test_what_containers_of_a_deleted_pod_run_with_is_not_given_out_again():
    """The kubelet offers c0 whole; whoever is served there would share memory that is in use."""
    world = World.of(8, 8)
    world.run(pod("z", 6, "c0"))
    world.delete("z")
    world.drop("z")
    assert world.hand(4) == {"c1": 4}
    with pytest.raises(LedgerError, match=r"no card has 6 free units, by card they have \[2, 4\]"):
        world.choose(6)
    world.look("z")
    with pytest.raises(LedgerError):
        world.choose(6)
    world.look()
    assert world.hand(6) == {"c0": 6}


def test_the_book_that_was_read_last_counts_while_a_deleted_pod_may_run():
    """The kubelet drops a deleted pod, offers its IDs and writes its book after it got an answer."""
    world = World.of(8)
    world.run(pod("z", 6, "c0"))
    world.run(pod("y", 1, "c0"))
    world.delete("z")
    offered = world.offered() | ids("c0", *range(8)) - world.book["y", "main"]
    with pytest.raises(LedgerError, match=r"no card has 2 free units, by card they have \[1\]"):
        world.prefer(offered, (), 2)
    world.look("y")
    assert len(world.prefer(offered, (), 7)) == 7


def test_the_assigned_card_goes_before_another_once_a_finished_pods_containers_are_gone():
    """Something was to end on both cards, and only the assigned one is counted on."""
    world = World.of(8, 8)
    for uid, card in (("y", "c1"), ("z", "c0")):
        world.run(pod(uid, 5, card))
    for uid in ("y", "z"):
        world.delete(uid)
        world.drop(uid)
    assert world.promised == [5, 5]
    world.bind(pod("a", 5, "c1"))
    assert expects(world, 5)
    assert displaces(world, 5)
    with pytest.raises(LedgerError):
        world.choose(5)
    world.look()
    assert world.hand(5, "a") == {"c1": 5}


def test_a_free_card_goes_before_the_assigned_one_where_containers_linger():
    world = World.of(8, 8)
    world.run(pod("z", 5, "c0"))
    world.delete("z")
    world.drop("z")
    world.bind(pod("a", 5, "c0"))
    assert world.hand(5, "a") == {"c1": 5}


def test_h5_a_pod_that_is_gone_does_not_go_where_another_ones_containers_linger():
    world = World.of(8, 8)
    world.run(pod("z", 5, "c0"))
    world.delete("z")
    world.drop("z")
    world.bind(pod("x", 5, "c0"))
    world.delete("x")
    assert world.hand(5, "x") == {"c1": 5}


def test_an_assigned_card_that_the_kubelet_does_not_offer_is_not_tried():
    world = World.of(4, 8)
    world.bind(pod("a", 1, "c0"))
    world.sick.add("c0")
    assert world.hand(1, "a") == {"c1": 1}


@pytest.mark.parametrize(
    ("policy", "card"), [pytest.param("least-used", "c0"), pytest.param("most-used", "c1")]
)
def test_policies_decide_for_pods_that_nobody_assigned(policy, card):
    world = World.of(8, 8, policy=policy)
    world.allocate(ids("c1", 0, 1), ("x", "main"))
    world.bind(pod("a", 3))
    assert world.hand(3, "a") == {card: 3}


def test_a_pods_own_policy_goes_before_the_clusters():
    world = World.of(8, 8)
    world.allocate(ids("c1", 0, 1), ("x", "main"))
    bound = pod("a", 3)
    object.__setattr__(bound.request, "card_policy", "most-used")
    world.bind(bound)
    assert world.hand(3, "a") == {"c1": 3}


def test_selectors_bind_the_fallback():
    world = World.of(8, 8)
    world.bind(pod("a", 3, selector=Selector.parse(None, "c1")))
    assert world.hand(3, "a") == {"c1": 3}


def test_a_cordoned_card_is_not_chosen():
    world = World.of(8, 8)
    world.ledger.keep_out("cordoned", {"c0"})
    assert world.hand(3) == {"c1": 3}


def test_a_pod_bound_before_the_cordon_still_gets_its_card():
    world = World.of(8, 8)
    world.bind(pod("a", 3, "c0"))
    world.ledger.keep_out("cordoned", {"c0"})
    assert world.hand(3, "a") == {"c0": 3}


def test_an_unknown_container_leaves_other_pods_their_cards():
    world = World.of(8, 8)
    world.bind(pod("w", 6, "c0"))
    assert world.hand(4) == {"c1": 4}


def test_the_fallback_takes_a_card_that_others_use_rather_than_one_that_a_pod_waits_for():
    world = World.of(8, 8)
    world.ledger.set_pressure({"c0": 6})
    world.bind(pod("w", 6, "c1"))
    assert world.hand(4) == {"c0": 4}
