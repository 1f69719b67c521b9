"""Which device IDs a container gets: one case per rule of GetPreferredAllocation."""

import pytest

from allocator.errors import LedgerError
from allocator.selector import Selector
from tests.ledger_world import World, by_card, ids, pod

INIT_AND_MAIN = [("setup", 2, "init"), ("main", 5, "main")]
TWO = [("one", 2, "main"), ("two", 3, "main")]


# Where the container belongs.


def test_the_assigned_card_goes_before_the_policy():
    world = World.of(8, 8)
    world.bind(pod("a", 3, "c1"))
    assert world.hand(3, "a") == {"c1": 3}


def test_containers_of_one_pod_are_served_on_their_own_cards():
    world = World.of(8, 8)
    world.bind(pod("a", [("one", 3, "main"), ("two", 3, "main")], "c1", "c0"))
    assert world.admit("a") == [{"c1": 3}, {"c0": 3}]


def test_two_cards_get_the_same_number_each():
    world = World.of(8, 8, 8)
    world.bind(pod("a", 6, "c2", "c0", count=2))
    assert world.hand(6, "a") == {"c0": 3, "c2": 3}


def test_each_gets_its_own_cards_whoever_asks_first():
    world = World.of(8, 8, 8, 8)
    world.bind(pod("x", 6, "c0", "c1", count=2))
    world.bind(pod("y", 6, "c3", "c2", count=2))
    assert world.hand(6, "y") == {"c2": 3, "c3": 3}
    assert world.hand(6, "x") == {"c0": 3, "c1": 3}


def test_a_pod_bound_before_the_cordon_still_gets_its_card():
    world = World.of(8, 8)
    world.bind(pod("a", 3, "c0"))
    world.ledger.set_unavailable("cordoned", {"c0"})
    assert world.hand(3, "a") == {"c0": 3}


def test_use_beyond_what_was_promised_keeps_nobody_from_its_card():
    """Others may be gone by then, and the scheduler knew of them."""
    world = World.of(8, 8)
    world.ledger.set_unaccounted_use({"c0": 8})
    world.bind(pod("a", 3, "c0"))
    assert world.hand(3, "a") == {"c0": 3}


@pytest.mark.parametrize("kept", ["unhealthy", "taken", "lingering"])
def test_who_has_no_room_where_it_belongs_is_refused_not_sent_elsewhere(kept):
    world = World.of(8, 8)
    if kept == "unhealthy":
        world.sick.add("c0")
    else:
        world.run(pod("z", 6, "c0"))
        if kept == "lingering":
            world.forget("z")
    world.bind(pod("a", 3, "c0"))
    left = 0 if kept == "unhealthy" else 2
    with pytest.raises(
        LedgerError, match=rf"cards \['c0'\] do not have 3 units free; free units by card: \[{left}, 8\]"
    ):
        world.choose(3, "a")


def test_too_few_cards_are_refused_with_the_numbers():
    world = World.of(4, 4)
    world.show("x", ids("c1", 0, 1))
    world.bind(pod("a", 6, "c0", "c1", count=2))
    with pytest.raises(
        LedgerError, match=r"cards \['c0', 'c1'\] do not have 3 units free; free units by card: \[4, 2\]"
    ):
        world.choose(6, "a")


def test_where_a_demand_has_devices_goes_before_where_the_scheduler_said():
    world = World.of(8, 8)
    world.bind(pod("x", INIT_AND_MAIN, "c0"))
    world.show("x", ids("c1", 0, 1), "setup")
    assert by_card(world.choose(5, "x", ids("c1", 0, 1))) == {"c1": 5}


def test_a_pod_whose_entry_was_lost_asks_again_and_stays_where_it_was():
    world = World.of(8, 8)
    world.run(pod("a", 3, "c1"))
    world.lose_checkpoint()
    assert world.hand(3, "a") == {"c1": 3}
    assert world.promised == [0, 3]


def test_a_lost_pod_of_which_no_card_is_known_goes_where_there_is_room():
    world = World.of(8, 8)
    world.bind(pod("a", 6, admitted=True))
    assert world.promised == [6, 6]
    assert world.hand(6, "a") == {"c0": 6}
    assert world.promised == [6, 0]


# IDs of init containers.


def test_init_ids_stay_on_their_card_and_are_completed_there():
    world = World.of(8, 5)
    world.bind(pod("a", INIT_AND_MAIN, "c1"))
    assert world.admit("a") == [{"c1": 2}, {"c1": 5}]
    assert world.checkpoint["a", "setup"] <= world.checkpoint["a", "main"]
    assert world.promised == [0, 5]


def test_init_ids_that_suffice_are_given_as_they_are():
    world = World.of(8, 8)
    world.bind(pod("a", [("setup", 5, "init"), ("main", 2, "main")], "c1"))
    assert world.admit("a") == [{"c1": 5}, {"c1": 2}]
    assert world.checkpoint["a", "main"] <= world.checkpoint["a", "setup"]


def test_a_shared_pod_needs_a_card_with_room_for_its_peak():
    world = World.of(8, 8)
    world.show("x", ids("c0", 0, 1, 2, 3))
    world.ledger.set_unaccounted_use({"c1": 1})
    world.bind(pod("a", INIT_AND_MAIN))
    assert world.admit("a") == [{"c1": 2}, {"c1": 5}]


def test_ids_that_must_be_included_are_in_the_answer_or_it_is_refused():
    world = World.of(8, 8)
    world.bind(pod("a", INIT_AND_MAIN, "c1"))
    assert by_card(world.choose(5, must=ids("c1", 6, 7))) == {"c1": 5}
    with pytest.raises(LedgerError, match=r"cards \['c1'\] do not have 5 units free"):
        world.prefer(world.offered(), ids("c0", 1), 5)


def test_ids_of_two_cards_that_must_be_included_are_refused():
    world = World.of(8, 8)
    with pytest.raises(LedgerError, match=r"cards \['c0', 'c1'\] do not have 4 units free"):
        world.prefer(world.offered(), ids("c0", 1) | ids("c1", 1), 4)


def test_ids_that_must_be_included_on_a_card_without_room_are_refused():
    world = World.of(4, 8)
    with pytest.raises(
        LedgerError, match=r"cards \['c0'\] do not have 6 units free; free units by card: \[4, 8\]"
    ):
        world.prefer(world.offered(), ids("c0", 1), 6)


@pytest.mark.parametrize(
    ("must", "offered"),
    [
        pytest.param("c9::1", ["c0::0", "c9::1"], id="unknown and offered"),
        pytest.param("c0::1", ["c0::0", "c0::2"], id="not offered"),
    ],
)
def test_ids_that_must_be_included_and_are_none_of_ours_are_refused(must, offered):
    with pytest.raises(LedgerError, match=f'must_include has "{must}"; allowed: available IDs'):
        World.of(8).prefer(offered, [must], 2)


def test_offered_ids_of_cards_that_are_not_there_are_ignored():
    world = World.of(8)
    assert world.prefer(["c9::0", "c0::5"], (), 1) == ("c0::5",)


# By the card policy, where nobody said.


def test_an_unknown_container_gets_exactly_its_size_on_one_card():
    world = World.of(8, 8)
    assert world.hand(3) == {"c0": 3}
    assert world.hand(8) == {"c1": 8}


@pytest.mark.parametrize(("policy", "card"), [("least-used", "c0"), ("most-used", "c1")])
def test_policies_decide_for_pods_that_nobody_assigned(policy, card):
    world = World.of(8, 8, policy=policy)
    world.show("x", ids("c1", 0, 1))
    world.bind(pod("a", 3))
    assert world.hand(3, "a") == {card: 3}


def test_a_pods_own_policy_goes_before_the_clusters():
    world = World.of(8, 8)
    world.show("x", ids("c1", 0, 1))
    bound = pod("a", 3)
    object.__setattr__(bound.request, "card_policy", "most-used")
    world.bind(bound)
    assert world.hand(3, "a") == {"c1": 3}


def test_selectors_bind_the_policy():
    world = World.of(8, 8)
    world.bind(pod("a", 3, selector=Selector.parse(None, "c1")))
    assert world.hand(3, "a") == {"c1": 3}


@pytest.mark.parametrize("asks", [None, "a"], ids=["unknown", "bound without our scheduler"])
def test_a_cordoned_card_is_not_chosen(asks):
    world = World.of(8, 8)
    world.ledger.set_unavailable("cordoned", {"c0"})
    world.bind(pod("a", 3))
    assert by_card(world.choose(3, asks)) == {"c1": 3}


def test_a_container_leaves_the_pods_other_containers_room():
    """Least-used alone takes card 1 for the second, and the third finds none."""
    world = World.of(5, 5)
    world.bind(pod("a", [("one", 2, "main"), ("two", 2, "main"), ("three", 4, "main")]))
    assert world.admit("a") == [{"c0": 2}, {"c0": 2}, {"c1": 4}]


def test_a_container_is_served_where_the_others_have_no_room_in_any_case():
    world = World.of(5, 5)
    world.bind(pod("a", [("one", 3, "main"), ("two", 3, "main"), ("three", 3, "main")]))
    assert world.hand(3, "a", "one") == {"c0": 3}


def test_several_cards_are_chosen_together_or_refused():
    world = World.of(8, 4, 8)
    world.bind(pod("a", 12, count=2))
    assert world.hand(12, "a") == {"c0": 6, "c2": 6}
    world.bind(pod("b", 12, count=2))
    with pytest.raises(
        LedgerError, match=r"fewer than 2 cards have 6 units free; free units by card: \[2, 4, 2\]"
    ):
        world.choose(12, "b")


@pytest.mark.parametrize(
    ("pressure", "awaited", "card"),
    [
        pytest.param({"c0": 6}, None, "c1", id="others use a card"),
        pytest.param({}, "c0", "c1", id="a pod waits for it"),
        pytest.param({"c0": 6}, "c1", "c0", id="rather what others use than what a pod waits for"),
    ],
)
def test_what_others_use_goes_last_and_what_a_pod_waits_for_is_kept(pressure, awaited, card):
    world = World.of(8, 8)
    world.ledger.set_unaccounted_use(pressure)
    if awaited:
        world.bind(pod("w", 6, awaited))
    assert world.hand(4) == {card: 4}


def test_what_other_pods_wait_for_is_not_given_to_who_was_not_sent_there():
    world = World.of(8, 8)
    world.bind(pod("v", 1))
    world.bind(pod("w", TWO, "c0", "c1"))
    with pytest.raises(LedgerError, match=r"no card has 7 units free; free units by card: \[8, 8\]"):
        world.choose(7, "unknown")
    world.show("x", ids("c0", *range(2, 8)))
    assert by_card(world.choose(5, "unknown")) == {"c1": 5}
    with pytest.raises(LedgerError):
        world.choose(6, "unknown")
    for container in ("one", "two"):
        world.hand(2, "w", container)
    assert by_card(world.choose(6, "unknown")) == {"c1": 6}


def test_a_pod_keeps_nothing_from_itself():
    """One of its cards is not there any more."""
    world = World.of(6, 6)
    world.bind(pod("a", 12, "c0", "c9", count=2))
    assert world.hand(12, "a") == {"c0": 6, "c1": 6}


def test_a_card_that_is_full_is_not_chosen():
    world = World.of(8, 8, policy="most-used")
    world.show("x", ids("c0", *range(8)))
    assert world.hand(1) == {"c1": 1}


def test_a_pod_that_waits_for_a_card_of_another_node_keeps_nothing():
    world = World.of(8)
    world.bind(pod("w", 6, "c9"))
    assert by_card(world.choose(8, "unknown")) == {"c0": 8}


@pytest.mark.parametrize("ended", ["deleted", "refused", "lost"])
def test_what_is_charged_to_a_pod_already_is_not_kept_for_it_besides(ended):
    world = World.of(8)
    world.bind(pod("w", 4, "c0"))
    if ended == "deleted":
        world.delete("w")
    else:
        world.change("w", **{"terminal" if ended == "refused" else "admitted": True})
    size = 8 if ended == "refused" else 4
    assert by_card(world.choose(size, "unknown")) == {"c0": size}
    with pytest.raises(LedgerError):
        world.choose(size + 1, "unknown")


def test_no_card_with_room_is_refused_with_the_numbers():
    world = World.of(4, 4)
    with pytest.raises(LedgerError, match=r"no card has 5 units free; free units by card: \[4, 4\]"):
        world.choose(5)


# What may be in use.


def test_what_containers_of_a_deleted_pod_run_with_is_not_given_out_again():
    """The kubelet offers c0 whole; whoever is served there would share memory that is in use."""
    world = World.of(8, 8)
    world.run(pod("z", 6, "c0"))
    world.forget("z")
    assert world.hand(4) == {"c1": 4}
    with pytest.raises(LedgerError, match=r"no card has 6 units free; free units by card: \[2, 4\]"):
        world.choose(6)
    world.look("z")
    with pytest.raises(LedgerError):
        world.choose(6)
    world.look()
    assert world.hand(6) == {"c0": 6}


def test_the_checkpoint_that_was_read_last_counts_whatever_is_offered():
    """The kubelet drops a deleted pod, offers its IDs and writes its checkpoint after it got an answer."""
    world = World.of(8)
    world.run(pod("z", 6, "c0"))
    world.delete("z")
    with pytest.raises(LedgerError, match=r"no card has 3 units free; free units by card: \[2\]"):
        world.prefer(ids("c0", *range(8)), (), 3)


def test_what_a_checkpoint_lacks_that_containers_run_with_is_not_given_out():
    world = World.of(8, 8)
    world.run(pod("z", 8, "c1"))
    world.lose_checkpoint()
    assert world.hand(4, "x") == {"c0": 4}
    with pytest.raises(LedgerError, match=r"no card has 5 units free; free units by card: \[4, 0\]"):
        world.choose(5, "y")
