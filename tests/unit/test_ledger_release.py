"""When a charge ends, and what must not end it: one case per rule."""

import pytest

from allocator.ledger import Ledger
from tests.ledger_world import World, cards, ids, pod


@pytest.fixture
def running() -> World:
    """Pod a with 3 units on c0, everything seen."""
    world = World.of(8)
    world.sync()
    world.run(pod("a", 3, "c0"))
    return world


def test_the_whole_end_of_a_pod(running):
    running.end("a")
    assert running.promised == [0]
    assert running.ledger.holds() == frozenset()
    assert running.ledger.explain()["pods"] == []


def test_a_finished_pod_is_not_counted_until_its_object_goes(running):
    running.forget("a")
    running.change("a", terminal=True)
    running.look()
    running.ledger.containers_ended("a")
    assert running.promised == [0]
    running.change("a", terminal=True, version=9)
    running.sync()
    assert running.ledger.explain()["pods"] == []


def test_the_list_alone_ends_nothing(running):
    running.forget("a")
    running.look(later=60)
    assert running.promised == [3]
    assert running.ledger.doubtful() == frozenset()


def test_the_api_alone_ends_nothing(running):
    running.delete("a")
    running.look(later=60)
    assert running.promised == [3]
    assert running.ledger.doubtful() == frozenset()
    running.ledger.containers_ended("a")
    assert running.promised == [3]


def test_a_list_from_before_the_end_ends_nothing(running):
    running.forget("a")
    running.look()
    running.delete("a")
    assert running.ledger.doubtful() == frozenset()
    assert running.ledger.wants_list()
    running.look()
    assert running.ledger.doubtful() == {"a"}


def test_living_containers_keep_the_charge(running):
    running.delete("a")
    running.forget("a")
    running.look(later=60)
    assert running.promised == [3]
    running.ledger.containers_ended("a")
    assert running.promised == [0]


def test_a_kubelet_that_forgot_its_list_ends_nothing(running):
    running.forget("a")
    running.ledger.kubelet_restarted()
    running.look(later=60)
    running.sync()
    running.look(later=60)
    assert running.promised == [3]
    assert running.ledger.holds() == {"a"}


def test_nothing_is_asked_about_between_a_kubelets_start_and_its_first_list(running):
    running.forget("a")
    running.delete("a")
    running.look()
    running.ledger.kubelet_restarted()
    assert running.ledger.doubtful() == frozenset()
    running.look()
    assert running.ledger.doubtful() == {"a"}


def test_a_list_begun_before_the_kubelets_start_is_ignored(running):
    running.forget("a")
    running.delete("a")
    mark = running.ledger.mark(running.now)
    running.ledger.kubelet_restarted()
    running.ledger.listed([], mark)
    assert running.ledger.doubtful() == frozenset()


def test_an_older_list_does_not_replace_a_newer_one(running):
    old = running.ledger.mark(running.now)
    running.look()
    running.ledger.listed([], old)
    assert running.ledger.explain()["holdings"][0]["listed"]


def test_an_allocate_that_no_pod_explains_is_dropped_in_time():
    world = World.of(8)
    world.hand(3)
    world.sync()
    world.look()
    assert world.promised == [3]
    world.look(later=9)
    assert world.promised == [3]
    world.look(later=1)
    assert world.promised == [0]


def test_it_is_not_dropped_while_the_pods_were_listed_before_it():
    world = World.of(8)
    world.sync()
    world.hand(3)
    world.look(later=60)
    assert world.promised == [3]
    assert world.ledger.wants_view()
    world.sync()
    assert not world.ledger.wants_view()
    assert world.promised == [0]


def test_it_is_not_dropped_while_the_pods_were_listed_before_the_kubelets_start():
    world = World.of(8)
    world.hand(3)
    world.sync()
    world.ledger.kubelet_restarted()
    assert world.ledger.wants_view()
    assert world.ledger.wants_list()
    world.look(later=60)
    assert world.promised == [3]
    world.sync()
    assert world.promised == [0]


def test_it_is_not_dropped_while_a_living_pod_may_own_it():
    """After a kubelet restart a running pod may be listed without its devices."""
    world = World.of(8)
    world.bind(pod("a", 3, "c0"))
    world.admit("a")
    world.forget("a")
    world.sync()
    world.look(later=60)
    world.sync()
    world.look(later=60)
    assert world.promised == [3]
    world.delete("a")
    world.look()
    world.ledger.containers_ended("a")
    assert world.promised == [0]


def test_a_pod_that_already_has_its_own_does_not_keep_it():
    world = World.of(8)
    world.hand(3)
    world.run(pod("a", 3, "c0"))
    assert world.promised == [6]
    world.sync()
    world.look(later=60)
    assert world.promised == [3]


def test_a_listed_pod_that_nobody_knows_ends_with_the_list_and_the_pods():
    world = World.of(8)
    world.seen["s"] = pod("s", 3)
    world.hand(3, key=("s", "main"))
    world.sync()
    world.look()
    world.forget("s")
    world.look()
    assert world.promised == [3]
    assert world.ledger.wants_view()
    world.sync()
    assert world.promised == [0]


def test_a_listed_pod_may_be_a_living_one_that_was_not_seen_started():
    world = World.of(8)
    world.seen["s"] = pod("s", 3)
    world.hand(3, key=("s", "main"))
    world.look()
    world.bind(world.seen["s"])
    world.forget("s")
    world.look()
    world.sync()
    world.look(later=60)
    assert world.promised == [3]


def test_a_pod_that_ended_before_anything_was_proven():
    world = World.of(8)
    world.sync()
    world.bind(pod("a", 3, "c0"))
    world.admit("a")
    world.look()
    world.end("a")
    assert world.promised == [3]
    world.sync()
    assert world.promised == [0]


def test_withheld_ids_end_with_a_later_complete_list():
    world = World.of(8)
    world.sync()
    world.look()
    world.ledger.preferred(ids("c0", 0, 1), (), 1, world.now)
    world.look(later=60)
    assert world.promised == [6]
    world.sync()
    world.look()
    assert world.promised == [0]


def test_withheld_ids_ask_for_the_list_of_pods_that_ends_them():
    world = World.of(8)
    world.sync()
    world.look()
    world.ledger.preferred(ids("c0", 0, 1), (), 1, world.now)
    assert not world.ledger.wants_view()
    world.look(later=60)
    assert world.ledger.wants_view()
    world.sync()
    world.look()
    assert not world.ledger.wants_view()


def test_withheld_ids_stay_while_a_pods_card_is_unknown():
    world = World.of(8, 8)
    world.bind(pod("a", 3))
    world.start("a")
    world.ledger.preferred(world.all_ids() - ids("c0", 0, 1, 2, 3), (), 1, world.now)
    world.sync()
    world.look(later=60)
    assert world.promised == [4, 3]


def test_withheld_ids_stay_until_the_list_is_late_enough():
    world = World.of(8)
    world.ledger.preferred(ids("c0", 0, 1), (), 1, world.now)
    world.sync()
    world.look(later=9)
    assert world.promised == [6]


def test_words_of_before_end_with_their_pods_only():
    world = World.of(8)
    world.ledger.remember({"c0": 5}, {"ghost"})
    world.sync()
    world.look(later=60)
    world.sync()
    world.look(later=60)
    assert world.promised == [5]


def test_what_the_list_shows_stays_although_no_pod_explains_it():
    world = World.of(8)
    world.seen["ghost"] = pod("ghost", 3)
    world.table["ghost", "main"] = ids("c0", 0, 1, 2)
    world.look()
    world.sync()
    assert world.promised == [3]


def test_a_ghost_is_not_asked_about_while_the_list_shows_a_pod_that_nobody_knows():
    world = World.of(8)
    world.seen["ghost"] = pod("ghost", 3)
    world.table["ghost", "main"] = ids("c0", 0, 1, 2)
    world.ledger.remember({"c0": 3}, {"ghost"})
    world.sync()
    world.look()
    # Nobody knows that the IDs are the ghost's: they count beside what the words said.
    assert world.promised == [6]
    assert world.ledger.doubtful() == frozenset()
    world.forget("ghost")
    world.look()
    world.sync()
    assert world.promised == [6]
    assert world.ledger.doubtful() == {"ghost"}
    world.ledger.containers_ended("ghost")
    assert world.promised == [0]


def test_a_pod_that_is_late_comes_not_back_to_life(running):
    last = running.pods["a"]
    running.end("a")
    running.bind(last)
    assert running.ledger.explain()["pods"] == []


def test_an_older_state_of_a_pod_is_ignored(running):
    running.change("a", version=7, terminal=True)
    running.change("a", version=6, terminal=False)
    running.forget("a")
    running.look()
    assert running.ledger.doubtful() == {"a"}


def test_a_pod_first_seen_after_a_list_of_pods_began_is_not_gone():
    world = World.of(8)
    mark = world.ledger.mark(world.now)
    world.bind(pod("a", 3, "c0"))
    world.ledger.pods_synced([], mark)
    assert world.ledger.unheld() == {"a"}
    world.ledger.pods_synced([], world.ledger.mark(world.now))
    assert world.ledger.unheld() == frozenset()


def test_an_older_list_of_pods_does_not_move_the_view_back():
    world = World.of(8)
    old = world.ledger.mark(world.now)
    world.ledger.kubelet_restarted()
    world.sync()
    world.ledger.pods_synced([], old)
    assert not world.ledger.wants_view()


def test_nothing_is_complete_before_both_lists():
    world = World.of(8)
    assert not world.ledger.complete
    assert world.ledger.wants_list()
    assert world.ledger.wants_view()
    world.sync()
    assert not world.ledger.complete
    world.look()
    assert world.ledger.complete
    assert not world.ledger.wants_list()


def test_a_refused_pod_charges_nothing_anywhere():
    """UnexpectedAdmissionError: the kubelet sets startTime and phase Failed at once."""
    world = World.of(8, 8)
    world.sync()
    world.bind(pod("a", 3, "c0"))
    world.change("a", started=True, terminal=True)
    assert world.promised == [0, 0]


def test_gone_of_an_unknown_pod_is_nothing():
    ledger = Ledger(cards(8))
    ledger.pod_gone("nobody")
    ledger.containers_ended("nobody")
    assert ledger.explain()["pods"] == []


def test_an_allocate_is_what_a_list_is_wanted_for(running):
    assert not running.ledger.wants_list()
    running.hand(2)
    assert running.ledger.wants_list()
    running.look()
    assert not running.ledger.wants_list()
