"""Allocates: whose they are, which are refused, and when they end."""

from dataclasses import replace

import pytest

from allocator.errors import LedgerError
from tests.ledger_world import World, by_card, ids, pod

TWO = [("one", 2, "main"), ("two", 3, "main")]


# What is recorded.


def test_units_are_told_by_card_in_word_order():
    world = World.of(8, 8)
    world.bind(pod("a", 4, "c1", "c0", count=2))
    units = world.allocate(world.choose(4, "a"), "a")
    assert list(units.items()) == [("c0", 2), ("c1", 2)]


def test_it_is_of_the_pod_that_asked_before_the_checkpoint_shows_it():
    world = World.of(8, 8)
    world.bind(pod("a", TWO, "c0", "c1"))
    world.allocate(ids("c0", 0, 1), "a")
    assert world.ledger.allocated_units_by_pod() == {"c0": {"a": 2}, "c1": {}}
    assert [found.name for found in world.ask(3, "a").find_container()[1:]] == ["two"]
    world.allocate(ids("c1", 0, 1, 2), "a")
    assert world.ledger.allocated_units_by_pod() == {"c0": {"a": 2}, "c1": {"a": 3}}
    assert world.ask(3, "a").find_container() is None


@pytest.mark.parametrize("listed", [None, "unknown"], ids=["PodResources is mute", "nobody knows the pod"])
def test_whose_it_is_that_nobody_knows_the_checkpoint_says(listed):
    world = World.of(8)
    world.bind(pod("a", 3, "c0"))
    world.allocate(ids("c0", 0, 1, 2), listed)
    world.write()
    assert world.promised == [3]
    assert world.ledger.has_pods_in_flight()
    assert world.ledger.published_holds() == {}
    world.show("a", ids("c0", 0, 1, 2))
    assert world.ledger.allocated_units_by_pod() == {"c0": {"a": 3}}
    assert not world.ledger.has_pods_in_flight()
    assert not world.ledger.has_unsettled_pods()


def test_what_another_pod_turns_out_to_have_was_not_this_ones():
    world = World.of(8, 8)
    world.bind(pod("a", 3, "c0"))
    world.bind(pod("b", 3, "c0"))
    world.allocate(ids("c0", 0, 1, 2), "a")
    world.show("b", ids("c0", 0, 1, 2))
    assert world.ledger.allocated_units_by_pod() == {"c0": {"b": 3}, "c1": {}}
    assert world.hand(3, "a") == {"c0": 3}
    assert world.ledger.allocated_units_by_pod() == {"c0": {"a": 3, "b": 3}, "c1": {}}


def test_a_main_container_is_given_exactly_the_ids_of_an_init_container():
    world = World.of(8)
    world.bind(pod("a", [("setup", 3, "init"), ("main", 3, "main")], "c0"))
    for container in ("setup", "main"):
        world.allocate(ids("c0", 0, 1, 2), "a")
        assert world.ledger.accounts.pods["a"].current_ids.keys() == ({"setup"} | {container})
        world.show("a", ids("c0", 0, 1, 2), container)
    assert world.promised == [3]


@pytest.mark.parametrize("runs", [True, False])
def test_what_the_kubelet_lost_of_one_container_and_gives_to_another_counts_twice(runs):
    """The other one will ask for as much again, or runs with it."""
    world = World.of(8)
    world.bind(pod("a", [("x", 2, "main"), ("y", 3, "main")], "c0"))
    world.allocate(ids("c0", 0, 1), "a")
    world.allocate(ids("c0", 2, 3, 4), "a")
    world.write()
    world.show("a", ids("c0", 0, 1), "x")
    world.show("a", ids("c0", 2, 3, 4), "y")
    world.change("a", admitted=True, has_run=runs)
    world.lose_checkpoint()
    world.allocate(ids("c0", 2, 3), "a")
    assert world.promised == [5]
    world.allocate(ids("c0", 5, 6, 7), "a")
    assert world.promised == [5]


def test_what_an_older_copy_of_the_checkpoint_lacks_stays_charged():
    world = World.of(8)
    world.bind(pod("a", 3, "c0"))
    world.admit("a")
    world.drop("a")
    world.look(later=60)
    assert world.promised == [3]


def test_what_a_kubelet_has_forgotten_that_starts_again_counts_until_the_pod_is_over():
    """It may have begun to start a container, and asks for it again."""
    world = World.of(8)
    world.bind(pod("a", 3, "c0"))
    world.allocate(ids("c0", 0, 1, 2), "a")
    world.lose_checkpoint()
    assert world.promised == [3]
    assert world.hand(3, "a") == {"c0": 3}
    assert world.promised == [3]


# What is refused.


@pytest.mark.parametrize(
    ("given", "message"),
    [
        pytest.param([], r"Allocate of \[\]; allowed: IDs of this node's cards", id="nothing"),
        pytest.param(["c0::8"], "Allocate of .*c0::8.*allowed: IDs", id="beyond the card"),
        pytest.param(["rubbish", "c0::1"], "Allocate of .*rubbish.*allowed: IDs", id="no ID"),
    ],
)
def test_ids_of_which_there_are_none_are_refused(given, message):
    world = World.of(8, 8, 8)
    with pytest.raises(LedgerError, match=message):
        world.ledger.allocate(given, world.now)
    assert world.promised == [0, 0, 0]
    assert not world.ledger.has_pods_in_flight()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        pytest.param(["c0::1", "c1::1"], "free units by card", id="two cards"),
        pytest.param(
            ["c2::1"], r"c2.* do not have 1 units free; free units by card: \[0, 0, 0\]", id="unhealthy"
        ),
    ],
)
def test_ids_that_do_not_belong_together_are_refused(given, message):
    world = World.of(8, 8, 8)
    world.ledger.set_healthy("c2", False)
    with pytest.raises(LedgerError, match=message):
        world.allocate(frozenset(given))
    assert world.promised == [0, 0, 0]
    assert not world.ledger.has_pods_in_flight()


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(ids("c2", 0, 1, 2, 3), id="another card"),
        pytest.param(ids("c0", 0, 1) | ids("c2", 0, 1), id="another card for one of two"),
        pytest.param(ids("c0", 0, 1, 2) | ids("c1", 0), id="not as many on each"),
    ],
)
def test_other_ids_than_the_scheduler_chose_are_refused(given):
    world = World.of(8, 8, 8)
    world.bind(pod("a", 4, "c0", "c1", count=2))
    with pytest.raises(LedgerError):
        world.allocate(given, "a")
    assert world.promised == [0, 0, 0]
    world.allocate(ids("c0", 0, 1) | ids("c1", 0, 1), "a")


def test_what_is_charged_is_refused_except_to_the_pod_that_has_it():
    """A kubelet that lost its checkpoint offers what containers run with."""
    world = World.of(8)
    world.run(pod("a", 6, "c0"))
    world.lose_checkpoint()
    world.bind(pod("b", 6, "c0"))
    with pytest.raises(
        LedgerError, match=r"cards \['c0'\] do not have 6 units free; free units by card: \[2\]"
    ):
        world.allocate(ids("c0", *range(6)), "b")
    world.allocate(ids("c0", *range(2, 8)), "a")
    assert world.promised == [6]
    world.show("a", ids("c0", *range(2, 8)))
    assert world.promised == [6]


def test_what_the_kubelet_dropped_of_a_pod_that_ended_and_never_ran_may_be_given_to_who_was_sent_there():
    world, every = World.of(8), ids("c0", *range(8))
    for uid in ("a", "b"):
        world.bind(pod(uid, 6, "c0"))
    world.allocate(ids("c0", *range(6)), "a")
    with pytest.raises(LedgerError):
        world.prefer(every, (), 6)
    world.show("a", ids("c0", *range(6)))
    world.delete("a")
    # The kubelet drops it before it asks, and writes after that.
    assert len(world.prefer(every, (), 6)) == 6
    world.drop("a")
    with pytest.raises(LedgerError):
        world.choose(6, "unknown")
    assert world.admit("b") == [{"c0": 6}]


# When they end.


@pytest.mark.parametrize("given", [ids("c0", 0, 1, 2), None], ids=["served", "not served"])
def test_h3_a_pod_that_ends_before_the_checkpoint_shows_it_is_charged_for_ten_seconds(given):
    """Its containers may be about to start, or the kubelet has not heard of the end and admits it."""
    world = World.of(8)
    world.bind(pod("a", 3, "c0"))
    if given is not None:
        world.allocate(given, "a")
    world.delete("a")
    world.look(later=9)
    assert world.promised == [3]
    assert world.ledger.has_unsettled_pods()
    world.look(later=1)
    assert world.promised == [0]
    assert world.ledger.accounts.pods == {}


def test_h3_where_containers_of_it_are_found_it_is_charged_until_they_end():
    world = World.of(8)
    world.bind(pod("a", 3, "c0"))
    world.allocate(ids("c0", 0, 1, 2), "a")
    world.delete("a")
    world.look("a", later=9)
    world.look("a", later=60)
    assert world.promised == [3]
    world.look()
    assert world.promised == [0]


def test_h3_time_alone_ends_no_allocate():
    world = World.of(8)
    world.bind(pod("a", 3, "c0"))
    world.allocate(ids("c0", 0, 1, 2), "a")
    for _ in range(3):
        world.look(later=3600)
        world.write()
        world.sync()
    assert world.promised == [3]


def test_h3_a_pod_that_failed_after_its_allocate_is_charged_for_ten_seconds():
    """The kubelet refused it for another reason, and its checkpoint shows it already or never will."""
    world = World.of(8)
    world.bind(pod("a", 3, "c0"))
    world.allocate(ids("c0", 0, 1, 2), "a")
    world.change("a", terminal=True)
    world.write()
    world.assert_ends_after(10)


# Found by a hostile review.


def test_a_pod_that_came_again_under_its_name_gets_its_own_card():
    world = World.of(8, 8)
    two = [("a", 4, "main"), ("b", 4, "main")]
    world.bind(pod("old", two, "c0", "c0"))
    world.hand(4, "old", "a")
    world.change("old", terminal=True)
    world.forget("old")
    world.bind(replace(pod("new", two, "c1", "c1"), name="pod-old"))
    ask = world.ledger.read_request(world.offered(), (), 4, {("ns", "pod-old")})
    assert by_card(frozenset(ask.choose_ids())) == {"c1": 4}


def test_an_unknown_pod_is_given_its_init_containers_ids_again():
    world = World.of(8)
    given = world.choose(6, "x")
    world.allocate(given, "x")
    world.show("x", given, "init")
    world.allocate(given, "x")
    world.show("x", given, "main")
    assert world.used == [6]
    assert world.choose(8, "x", must=given) > given


def test_who_runs_on_and_only_holds_tells_of_is_waited_for():
    world = World.of(8)
    world.run(pod("x", 8, "c0"))
    world.pods.clear()
    world.checkpoint.clear()
    world.restart_daemon()
    world.write()
    world.sync()
    world.look("x")
    world.bind(pod("y", 8, "c0"))
    assert world.ask(8, "y").has_ended_pods()


def test_a_static_pod_that_is_made_again_under_its_uid_is_served():
    world = World.of(8)
    world.bind(replace(pod("m1", 8), runtime_uid="hash", name="pod-hash"))
    world.hand(8, "hash")
    world.delete("m1")
    world.drop("hash")
    world.bind(replace(pod("m2", 8), runtime_uid="hash", name="pod-hash"))
    assert by_card(world.choose(8, "hash")) == {"c0": 8}


def test_what_a_later_container_got_first_is_not_the_other_ones():
    world = World.of(8)
    world.bind(pod("x", [("a", 4, "main"), ("b", 4, "main")], "c0", "c0"))
    world.hand(4, "x", "b")
    assert world.ledger.accounts.pods["x"].pending_ids == {}
    assert world.ask(4, "x").is_expected()


def test_what_a_pod_that_is_gone_was_still_to_get_is_no_hindrance_to_who_was_sent_there():
    """The scheduler was started again and never heard of it; the kubelet asks for one pod at a time."""
    world = World.of(8)
    world.bind(pod("x", [("a", 2, "main"), ("b", 5, "main")], "c0", "c0"))
    world.hand(2, "x", "a")
    world.delete("x")
    assert world.used == [7]
    world.bind(pod("y", 6, "c0"))
    assert by_card(world.choose(6, "y")) == {"c0": 6}
    with pytest.raises(LedgerError):
        world.choose(4, "unknown")
