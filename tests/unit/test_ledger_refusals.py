"""Questions of the kubelet that are asked again, completed from init containers' IDs, or refused."""

import pytest

from allocator.errors import LedgerError
from allocator.selector import Selector
from tests.ledger_world import World, by_card, ids, pod

INIT_AND_MAIN = [("setup", 2, "init"), ("main", 5, "main")]


def test_h1_a_lost_pod_that_asks_again_stays_where_it_was():
    world = World.of(8, 8)
    world.run(pod("a", 3, "c0"))
    world.restart_daemon()
    world.ledger.remember({"a": {"c1": 3}})
    world.book.clear()
    world.write()
    world.sync()
    assert world.hand(3, "a") == {"c1": 3}
    assert world.promised == [0, 3]


def test_a_pod_whose_entry_was_lost_asks_again_and_stays_where_it_was():
    world = World.of(8, 8)
    world.run(pod("a", 3, "c1"))
    world.drop("a")
    assert world.hand(3, "a") == {"c1": 3}
    assert world.promised == [0, 3]


def test_a_lost_pod_of_which_no_card_is_known_goes_to_its_target():
    world = World.of(8, 8)
    world.bind(pod("a", 3))
    world.look("a")
    assert world.promised == [3, 3]
    assert world.hand(3, "a") == {"c0": 3}
    assert world.promised == [3, 0]


def test_init_ids_stay_on_their_card_and_are_completed_there():
    world = World.of(8, 5)
    world.bind(pod("a", INIT_AND_MAIN, "c1"))
    assert world.admit("a") == [{"c1": 2}, {"c1": 5}]
    assert world.book["a", "setup"] <= world.book["a", "main"]
    assert world.promised == [0, 5]


def test_init_ids_that_suffice_are_given_as_they_are():
    world = World.of(8, 8)
    world.bind(pod("a", [("setup", 5, "init"), ("main", 2, "main")], "c1"))
    assert world.admit("a") == [{"c1": 5}, {"c1": 2}]
    assert world.book["a", "main"] <= world.book["a", "setup"]
    assert world.ledger.facts.grants == []


def test_a_shared_pod_needs_a_card_with_room_for_its_peak():
    world = World.of(8, 8)
    world.allocate(ids("c0", 0, 1, 2, 3), ("x", "main"))
    world.ledger.set_pressure({"c1": 1})
    world.bind(pod("a", INIT_AND_MAIN))
    assert world.admit("a") == [{"c1": 2}, {"c1": 5}]


def linger(world: World, uid: str, units: int, card: str) -> None:
    """A pod that was deleted and whose containers may run on; the kubelet offers its IDs."""
    world.run(pod(uid, units, card))
    world.delete(uid)
    world.drop(uid)


def test_where_another_is_expected_goes_before_where_containers_run_that_the_kubelet_forgot():
    world = World.of(8, 8)
    world.run(pod("z", 8, "c1"))
    world.drop("z")
    world.bind(pod("w", 6, "c0", selector=Selector.parse(None, "c0")))
    assert world.hand(4) == {"c0": 4}
    with pytest.raises(LedgerError, match=r"no card has 5 free units, by card they have \[4, 0\]"):
        world.choose(5)


def test_a_shared_pod_that_fits_nowhere_is_served_for_its_first_container():
    """Perhaps it is another pod that asks."""
    world = World.of(4, 4)
    world.bind(pod("a", INIT_AND_MAIN))
    assert by_card(world.choose(2)) == {"c0": 2}


def test_no_card_with_room_is_refused_with_the_numbers():
    world = World.of(4, 4)
    with pytest.raises(LedgerError, match=r"no card has 5 free units, by card they have \[4, 4\]"):
        world.prefer(world.offered(), (), 5)


def test_too_few_cards_are_refused_with_the_numbers():
    world = World.of(4, 4)
    world.allocate(ids("c1", 0, 1), ("x", "main"))
    world.bind(pod("a", 6, "c0", "c1", count=2))
    with pytest.raises(LedgerError, match=r"no 2 cards each have 3 free units, by card they have \[4, 2\]"):
        world.prefer(world.offered(), (), 6)


def test_ids_of_two_cards_that_must_be_included_are_refused():
    world = World.of(8, 8)
    with pytest.raises(LedgerError, match=r"must stay on .*c0.*c1.*allowed is what one card has free"):
        world.prefer(world.offered(), ids("c0", 1) | ids("c1", 1), 4)


def test_ids_that_must_be_included_on_a_card_without_room_are_refused():
    world = World.of(4, 8)
    with pytest.raises(LedgerError, match=r"6 units that must stay on .*c0.*'c0': 4"):
        world.prefer(world.offered(), ids("c0", 1), 6)


@pytest.mark.parametrize(
    ("must", "offered"),
    [
        pytest.param("c9::1", ["c0::0", "c9::1"], id="unknown and offered"),
        pytest.param("c0::1", ["c0::0", "c0::2"], id="not offered"),
    ],
)
def test_ids_that_must_be_included_and_are_none_of_ours_are_refused(must, offered):
    with pytest.raises(LedgerError, match=f'must_include has "{must}": allowed are available IDs'):
        World.of(8).prefer(offered, [must], 2)


def test_offered_ids_of_cards_that_are_not_there_are_ignored():
    world = World.of(8)
    assert world.prefer(["c9::0", "c0::5"], (), 1) == ("c0::5",)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        pytest.param([], r"Allocate of \[\]: allowed are IDs of this node's cards", id="nothing"),
        pytest.param(["c0::8"], "Allocate of .*c0::8.*allowed are IDs", id="beyond the card"),
        pytest.param(["rubbish", "c0::1"], "Allocate of .*rubbish.*allowed are IDs", id="no ID"),
        pytest.param(["c0::1", "c1::1"], "2 units on 2 cards.*allowed is one card, or", id="two cards"),
        pytest.param(["c2::1"], r"Allocate on \['c2'\]: allowed are IDs of healthy cards", id="unhealthy"),
    ],
)
def test_allocate_refuses(given, message):
    world = World.of(8, 8, 8)
    world.ledger.set_healthy("c2", False)
    with pytest.raises(LedgerError, match=message):
        world.ledger.allocate(given, world.now)
    assert world.promised == [0, 0, 0]
    assert not world.ledger.in_flight()


def test_two_cards_are_allowed_once_per_answer():
    world = World.of(8, 8)
    world.bind(pod("a", 2, "c0", "c1", count=2))
    given = world.choose(2)
    world.allocate(given)
    with pytest.raises(LedgerError, match="2 cards"):
        world.allocate(given)


def test_a_grant_lists_cards_in_word_order():
    world = World.of(8, 8)
    world.bind(pod("a", 4, "c1", "c0", count=2))
    assert world.allocate(world.choose(4)).shares == (("c0", 2), ("c1", 2))
