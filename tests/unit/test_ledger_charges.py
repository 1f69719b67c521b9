"""What every card is charged with, and what the words say of it: one case per rule of the accounting."""

import pytest

from allocator.ledger import Ledger
from deviceplugin.publishing.annotator import list_allocations
from deviceplugin.publishing.explain import explain_node
from tests.ledger_world import SETTLED_S, World, cards, ids, pod

INIT_AND_MAIN = [("setup", 6, "init"), ("main", 2, "main")]
TWO = [("one", 2, "main"), ("two", 3, "main")]


# Whose IDs.


def test_a_pod_is_charged_from_its_allocate_on():
    world = World.of(8)
    world.bind(pod("a", 3, "c0"))
    assert world.promised == [0]
    given = world.choose(3, "a")
    assert world.allocate(given, "a") == {"c0": 3}
    assert world.promised == [3]
    world.show("a", given)
    assert world.promised == [3]


def test_a_pod_in_the_checkpoint_is_charged_although_nobody_saw_its_allocate():
    world = World.of(8, 8)
    world.show("unknown", ids("c1", 0, 1))
    assert world.promised == [0, 2]
    assert world.ledger.unpublished_pods() == frozenset()
    assert world.ledger.pods_to_probe() == frozenset(), "first a list must lack it"
    assert world.published == {}


def test_ids_of_cards_that_are_not_there_count_for_nobody():
    world = World.of(8)
    world.show("a", ids("gone", 0, 1))
    assert world.promised == [0]


def test_main_containers_use_the_ids_of_init_containers_again():
    world = World.of(8)
    assert world.run(pod("a", INIT_AND_MAIN, "c0")) == [{"c0": 6}, {"c0": 2}]
    assert world.promised == [6]
    assert list_allocations(world.ledger.accounts) == {"a": {"setup": (("c0", 6),), "main": (("c0", 2),)}}


def test_sidecars_count_beside_init_containers():
    world = World.of(8)
    world.run(pod("a", [("side", 1, "sidecar"), ("setup", 6, "init")], "c0"))
    assert world.promised == [7]


def test_ids_of_two_living_pods_count_for_both():
    """A kubelet that lost its checkpoint gives out what containers run with."""
    world = World.of(8)
    world.run(pod("a", 3, "c0"))
    world.drop("a")
    world.bind(pod("b", 3, "c0"))
    world.show("b", ids("c0", 0, 1, 2))
    assert world.promised == [6]


def test_h10_a_container_that_starts_again_has_only_its_new_ids():
    """The checkpoint was lost: per container it replaces, over containers and pods it adds."""
    world = World.of(8)
    world.run(pod("a", TWO, "c0"))
    world.lose_checkpoint()
    world.show("a", ids("c0", 5, 6, 7), "two")
    assert world.promised == [5]
    assert world.ledger.accounts.pods["a"].known_ids == {"one": ids("c0", 0, 1), "two": ids("c0", 5, 6, 7)}


def test_promised_never_passes_the_size_and_explain_says_what_is_charged():
    world = World.of(4)
    world.run(pod("a", 3, "c0"))
    world.drop("a")
    world.show("b", ids("c0", 0, 1, 2))
    assert world.promised == [4]
    assert world.ledger.cards()[0].used_units == 4
    assert explain_node(world.ledger.accounts)["cards"][0]["charged"] == 6


def test_promises_tell_whose_units_are_on_a_card():
    world = World.of(8, 8)
    world.run(pod("a", INIT_AND_MAIN, "c0"))
    world.run(pod("b", 3, "c1"))
    world.bind(pod("c", 1, "c1"))
    assert world.ledger.allocated_units_by_pod() == {"c0": {"a": 6}, "c1": {"b": 3}}


# H1: the checkpoint lacks what runs.


def lost(uid: str = "a", wanted=5, **more) -> World:
    """A kubelet and a daemon that start with nothing, while a pod runs that was assigned to c0."""
    world = World.of(8, 8, 4)
    world.bind(pod(uid, wanted, "c0", admitted=True, **more))
    return world


@pytest.mark.parametrize(
    ("more", "promised"),
    [
        pytest.param({}, [5, 0, 0], id="assigned"),
        pytest.param({"assigned": None}, [5, 5, 0], id="every card that could have it"),
        pytest.param({"assigned": {"main": (("c9", 5),)}}, [5, 5, 0], id="no such card"),
        pytest.param({"assigned": {"main": (("c1", 1),)}}, [5, 5, 0], id="cannot be true"),
    ],
)
def test_h1_a_pod_that_runs_without_an_entry_is_lost_not_waiting(more, promised):
    world = lost(**more)
    assert world.promised == promised
    assert world.published.keys() == {"a"}
    assert world.ledger.unpublished_pods() == frozenset()
    assert list_allocations(world.ledger.accounts) == {}


def test_h1_a_lost_pod_may_be_on_every_card_of_the_node():
    world = World.of(8, 8)
    world.bind(pod("a", 6, "c0", "c1", count=2, admitted=True))
    assert world.promised == [3, 3]
    assert world.published == {"a": {"c0": 3, "c1": 3}}


@pytest.mark.parametrize(
    ("remembered", "promised"),
    [
        pytest.param({"c1": 5}, [0, 5], id="they go before the annotation"),
        pytest.param({"c9": 5}, [5, 0], id="of a card that is not there they say nothing"),
        pytest.param({}, [5, 0], id="without units they say nothing"),
    ],
)
def test_h1_what_the_words_had_of_a_pod_that_is_lost(remembered, promised):
    world = World.restored({"a": remembered}, pod("a", 5, "c0"), cards_of=2)
    assert world.promised == promised
    assert world.published == {"a": {f"c{promised.index(5)}": 5}}


@pytest.mark.parametrize(
    ("remembered", "promised"),
    [
        pytest.param({"c1": 5, "c9": 1}, [0, 5], id="the cards that it was on"),
        pytest.param(None, [8, 8], id="every card whole where an older version did not write them"),
    ],
)
def test_h1_a_pod_that_the_api_has_no_more_stays_charged_until_its_cgroups_are_gone(remembered, promised):
    world = World.restored({"a": remembered}, cards_of=2)
    assert world.promised == promised
    assert world.published.keys() == {"a"}
    assert world.ledger.pods_to_probe() == {"a"}
    world.look("a", later=60)
    assert world.promised == promised
    world.look()
    assert world.promised == [0, 0]
    assert world.published == {}


def test_h1_what_the_words_had_counts_beside_an_entry_that_came_again():
    """The checkpoint was lost, one container started again, the pod was deleted by force: the other runs."""
    world = World(Ledger(cards(8, 8)))
    world.ledger.restore_published({"a": {"c0": 2, "c1": 3}})
    world.checkpoint["a", "one"] = ids("c0", 0, 1)
    world.write()
    world.sync()
    assert world.promised == [2, 3]


def test_h1_containers_of_a_lost_pod_that_start_again_are_not_counted_twice():
    world = lost("a", TWO)
    assert world.promised == [5, 0, 0]
    world.show("a", ids("c0", 0, 1, 2), "two")
    assert world.promised == [5, 0, 0]


def test_h1_a_lost_pod_of_which_nobody_knows_the_cards_counts_on_every_one():
    world = World.of(8, 8, 2)
    world.bind(pod("a", TWO, admitted=True))
    world.show("a", ids("c0", 0, 1), "one")
    assert world.promised == [5, 5, 2]


@pytest.mark.parametrize(
    ("on", "promised"),
    [
        pytest.param(("c1",), [0, 3], id="where the scheduler said"),
        pytest.param((), [3, 3], id="on every card where nobody said"),
    ],
)
def test_h5_a_pod_that_is_deleted_before_it_was_served_counts_until_the_kubelet_has_heard(on, promised):
    """The scheduler counts it no more, and the kubelet may admit it all the same."""
    world = World.of(8, 8)
    world.bind(pod("a", 3, *on))
    assert world.promised == [0, 0]
    world.delete("a")
    assert world.promised == promised
    assert world.published.keys() == {"a"}
    world.look(later=SETTLED_S)
    assert world.promised == [0, 0]


def test_h5_what_it_has_counts_as_a_part_of_that():
    world = World.of(8, 8)
    world.bind(pod("a", TWO, "c0", "c1"))
    world.hand(2, "a", "one")
    world.delete("a")
    assert world.promised == [2, 3]


def test_a_pod_that_was_refused_is_charged_with_what_it_was_given():
    """UnexpectedAdmissionError: phase Failed, here of its second container."""
    world = World.of(8)
    world.bind(pod("a", TWO, "c0"))
    world.bind(pod("b", 3, "c0"))
    world.hand(2, "a", "one")
    for uid in ("a", "b"):
        world.change(uid, terminal=True)
    assert world.promised == [2]
    assert world.published == {"a": {"c0": 2}}


# What the words say.


def test_a_pod_enters_holds_with_the_allocate_of_its_last_container():
    world = World.of(8)
    world.bind(pod("a", TWO, "c0"))
    assert not world.ledger.has_pods_in_flight()
    world.hand(2, "a", "one")
    assert world.published == {}
    assert world.ledger.unpublished_pods() == {"a"}
    assert world.ledger.has_pods_in_flight()
    world.allocate(world.choose(3, "a"), "a")
    assert world.published == {"a": {"c0": 5}}
    assert list_allocations(world.ledger.accounts) == {"a": {"one": (("c0", 2),), "two": (("c0", 3),)}}
    assert world.ledger.unpublished_pods() == frozenset()
    assert not world.ledger.has_pods_in_flight()


def test_a_pod_stays_in_holds_as_long_as_it_is_charged():
    """For the daemon after this one: the kubelet may drop a pod that was deleted by force while it runs."""
    world = World.of(8)
    world.run(pod("a", 3, "c0"))
    world.forget("a")
    assert list_allocations(world.ledger.accounts) == {}
    assert world.published == {"a": {"c0": 3}}
    world.look()
    assert world.published == {}


def test_a_pod_that_a_list_lacks_is_in_holds_as_long_as_it_is_charged():
    """It was never seen: the API server had let go of it before this daemon started."""
    world = World.of(8)
    world.show("a", ids("c0", 0, 1, 2))
    assert world.published == {}
    world.sync()
    assert world.published == {"a": {"c0": 3}}


def test_holds_names_a_static_pod_by_the_uid_of_the_api():
    world = World.of(8)
    world.bind(pod("mirror", 3, runtime_uid="hash"))
    world.show("hash", ids("c0", 0, 1, 2))
    assert world.published == {"mirror": {"c0": 3}}
    assert world.ledger.published_holds() == {"mirror": {0: 3}}


def test_published_holds_leave_out_cards_without_units():
    world = World.of(8, 8)
    world.run(pod("a", 3, "c1"))
    world.drop("a")
    world.restart_daemon()
    world.ledger.restore_published({"a": {"c0": 0, "c1": 3}})
    world.write()
    world.sync()
    assert world.ledger.published_holds() == {"a": {1: 3}}


def test_a_static_pod_that_the_words_had_is_looked_for_under_the_kubelets_uid():
    world = World.restored({"mirror": {"c0": 3}}, pod("mirror", 3, runtime_uid="hash"))
    assert world.promised == [3]
    assert world.ledger.pods_to_probe() == {"hash"}
    assert world.published == {"mirror": {"c0": 3}}


@pytest.mark.parametrize(
    "given",
    [
        pytest.param([("setup", ids("c0", 0, 1)), ("main", ids("c1", 0))], id="two cards, one to share"),
        pytest.param([("setup", ids("c9", 0, 1)), ("main", ids("c9", 0))], id="a card that is gone"),
    ],
)
def test_a_pod_on_cards_that_cannot_be_is_held_and_not_described(given):
    world = World.of(8, 8)
    world.bind(pod("a", [("setup", 2, "init"), ("main", 1, "main")], "c0"))
    for container, mine in given:
        world.show("a", mine, container)
    assert world.published.keys() == {"a"}
    assert list_allocations(world.ledger.accounts) == {}


def test_a_pod_that_lacks_a_container_is_not_described():
    world = World.of(8)
    world.bind(pod("a", INIT_AND_MAIN, "c0"))
    world.hand(6, "a", "setup")
    assert list_allocations(world.ledger.accounts) == {}


def test_an_allocation_names_the_units_of_each_card_in_word_order():
    world = World.of(8, 8)
    world.run(pod("a", 6, "c1", "c0", count=2))
    assert list_allocations(world.ledger.accounts) == {"a": {"main": (("c0", 3), ("c1", 3))}}


def test_used_is_what_is_charged_and_used_beyond_it_up_to_the_size():
    world = World.of(8, 8)
    world.run(pod("a", 6, "c0"))
    assert world.ledger.set_unaccounted_use({"c0": 5, "c1": 2, "c9": 1})
    assert not world.ledger.set_unaccounted_use({"c0": 5, "c1": 2})
    assert world.used == [8, 2]
    assert world.promised == [6, 0]
    assert world.ledger.set_unaccounted_use({"c0": 1, "c1": 0})
    assert not world.ledger.set_unaccounted_use({"c0": 1})
    assert world.used == [7, 0]


def test_unhealthy_and_cordoned_cards_are_full():
    world = World.of(8, 8)
    world.ledger.set_healthy("c0", False)
    world.ledger.set_unavailable("cordoned", {"c1", "c9"})
    assert world.used == [8, 8]
    assert world.promised == [0, 0]
    world.ledger.set_healthy("c0", True)
    world.ledger.set_unavailable("cordoned", ())
    assert world.used == [0, 0]
