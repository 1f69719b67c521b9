"""When a charge ends, and what must not end it: one case per rule."""

import pytest

from allocator.ledger import Ledger
from deviceplugin.publishing.explain import explain_node
from tests.ledger_world import SETTLED_S, World, cards, ids, pod

TWO = [("one", 2, "main"), ("two", 3, "main")]


@pytest.fixture
def running() -> World:
    """Pod a with 3 units on c0, everything seen."""
    world = World.of(8)
    world.run(pod("a", 3, "c0"))
    return world


@pytest.fixture
def admitted() -> World:
    """Pod a with 3 units on c0; no container was ever seen."""
    world = World.of(8)
    world.bind(pod("a", 3, "c0"))
    world.admit("a")
    return world


def known(world: World) -> list[str]:
    return [one["uid"] for one in explain_node(world.ledger.accounts)["pods"]]


def test_the_whole_end_of_a_pod(running):
    assert not running.ledger.has_unsettled_pods()
    assert not running.ledger.accounts.has_unlisted_pods
    running.delete("a")
    assert running.ledger.has_unsettled_pods()
    running.drop("a")
    running.look()
    assert running.promised == [0]
    assert running.published == {}
    assert known(running) == []
    assert not running.ledger.has_unsettled_pods()


@pytest.mark.parametrize(
    "happened",
    [
        pytest.param((), id="nothing"),
        pytest.param(("drop",), id="the checkpoint alone"),
        pytest.param(("delete",), id="the API alone"),
        pytest.param(("look",), id="the cgroups alone"),
        pytest.param(("drop", "look"), id="a kubelet that lost its checkpoint, and no cgroup found"),
        pytest.param(("delete", "look"), id="the kubelet has not heard of it yet"),
        pytest.param(("delete", "drop"), id="nobody looked for its cgroups"),
        pytest.param(("look", "delete", "drop"), id="a look before the end was seen"),
        pytest.param(("delete", "look", "drop"), id="a look before the checkpoint lacked it"),
        pytest.param(("delete", "drop", "alive"), id="containers that run"),
        pytest.param(("sync", "drop", "look"), id="a list that has it"),
    ],
)
def test_less_than_the_whole_end_ends_nothing(running, happened):
    for step in happened:
        running.now += SETTLED_S
        if step == "look":
            running.ledger.record_cgroup_probe(["a"], [], running.now)
        elif step == "alive":
            running.look("a")
        else:
            getattr(running, step)(*(() if step == "sync" else "a"))
    assert running.promised == [3]


def test_a_finished_pod_is_not_counted_until_its_object_goes(running):
    running.change("a", terminal=True)
    running.drop("a")
    running.look()
    assert running.promised == [0]
    running.change("a", admitted=False)
    running.sync()
    assert known(running) == []
    assert running.ledger.unpublished_pods() == frozenset()


def test_a_finished_pod_that_nobody_charges_is_never_taken_in():
    world = World.of(8)
    world.bind(pod("a", 3, "c0", terminal=True))
    assert known(world) == []


def test_a_finished_pod_that_is_in_the_checkpoint_is_charged_until_the_end():
    world = World(Ledger(cards(8)))
    world.pods["a"] = pod("a", 3, "c0", terminal=True, has_run=True)
    world.checkpoint["a", "main"] = ids("c0", 0, 1, 2)
    world.write()
    world.sync()
    assert world.promised == [3]
    world.drop("a")
    world.look()
    assert world.promised == [0]


@pytest.mark.parametrize("runtime_uid", ["", "hash"], ids=["a pod", "a static pod"])
def test_a_finished_pod_that_the_words_had_is_charged_until_the_end(runtime_uid):
    world = World.restored(
        {"a": {"c0": 3}}, pod("a", 3, "c0", runtime_uid=runtime_uid, terminal=True, has_run=True)
    )
    assert world.promised == [3]
    world.look()
    assert world.promised == [0]


def test_a_look_before_the_end_was_seen_does_not_end_a_lost_pod():
    """It found nothing because the containers were only about to start."""
    world = World.of(8)
    world.bind(pod("a", 3, "c0", admitted=True))
    world.look()
    world.change("a", has_run=True)
    world.delete("a")
    assert world.promised == [3]
    world.look()
    assert world.promised == [0]


# H2: "gone and no cgroup" before the cgroup exists.


def test_h2_a_pod_of_which_no_container_was_seen_gets_time_to_start_them(admitted):
    admitted.forget("a")
    admitted.assert_ends_after(10)


def test_h2_that_time_begins_when_the_kubelet_has_heard_of_the_end(admitted):
    """Its network was not ready; at last it began to start a pod that was deleted long before."""
    admitted.delete("a")
    admitted.look(later=60)
    admitted.drop("a")
    admitted.assert_ends_after(10)


def test_h2_a_pod_that_only_the_words_had_gets_the_same_time():
    world = World.restored({"a": {"c0": 3}})
    world.assert_ends_after(10)


def test_h2_the_time_begins_when_the_checkpoint_was_first_read_with_it():
    """The deletion was seen first; the kubelet hears of it later and may be about to start containers."""
    world = World.of(8)
    world.bind(pod("a", 3, "c0"))
    world.delete("a")
    world.now += 9
    world.show("a", ids("c0", 0, 1, 2))
    world.drop("a")
    world.assert_ends_after(10)


@pytest.mark.parametrize("told", ["cgroup", "status"])
def test_h2_a_pod_that_had_a_cgroup_ends_as_soon_as_it_is_gone(admitted, told):
    if told == "cgroup":
        admitted.look("a")
    else:
        admitted.change("a", has_run=True)
    admitted.end("a")
    assert admitted.promised == [0]


def test_h2_a_container_that_comes_up_late_keeps_the_charge(admitted):
    admitted.forget("a")
    admitted.look("a", later=9)
    admitted.look("a", later=60)
    assert admitted.promised == [3]
    admitted.look()
    assert admitted.promised == [0]


def test_a_list_that_is_older_than_the_checkpoint_does_not_end_a_pod_that_only_the_checkpoint_shows():
    """It was bound while the list was on its way; half of its containers have devices."""
    world = World.of(8)
    world.sync()
    began_s = world.now
    world.now += 1
    world.show("n", ids("c0", 0, 1), "one")
    world.ledger.apply_pod_list([], began_s, world.now)
    assert world.ledger.accounts.has_unlisted_pods
    assert world.ledger.published_holds() == {}
    world.now += 1
    world.sync()
    assert not world.ledger.accounts.has_unlisted_pods


def test_h2_a_list_that_began_before_the_checkpoint_was_read_does_not_end_the_charge_of_a_pod_that_it_lacks():
    """Our view lags: the kubelet has admitted a pod that nobody else has seen."""
    world = World.of(8)
    began_s = world.now
    world.show("a", ids("c0", 0, 1, 2))
    world.ledger.apply_pod_list([], began_s, world.now)
    world.look(later=60)
    assert world.promised == [3]
    world.bind(pod("a", 3, "c0"))
    world.drop("a")
    world.look(later=60)
    assert world.promised == [3], "it lives"
    world.delete("a")
    world.look(later=SETTLED_S)
    assert world.promised == [0]


def test_h2_a_pod_in_the_checkpoint_that_came_into_view_after_a_list_lacked_it_lives():
    world = World.of(8)
    world.show("a", ids("c0", 0, 1, 2))
    world.sync()
    world.bind(pod("a", 3, "c0"))
    world.drop("a")
    world.look(later=60)
    assert world.promised == [3]
    assert world.published == {"a": {"c0": 3}}


def test_a_list_ends_pods_that_it_lacks(running):
    del running.pods["a"]
    running.sync()
    running.drop("a")
    running.look()
    assert running.promised == [0]


def test_a_static_pods_new_mirror_is_another_pod():
    """The kubelet makes it anew when somebody deletes it; the containers run on under the same UID."""
    world = World.of(8)
    world.bind(pod("one", 3, runtime_uid="hash"))
    world.show("hash", ids("c0", 0, 1, 2))
    world.delete("one")
    world.bind(pod("two", 3, runtime_uid="hash"))
    world.ledger.remove_pod("one", world.now)
    assert world.published == {"two": {"c0": 3}}
    world.drop("hash")
    world.look(later=60)
    assert world.promised == [3]


def test_the_end_of_an_unknown_pod_is_nothing():
    world = World.of(8)
    world.ledger.remove_pod("nobody", world.now)
    world.ledger.record_cgroup_probe(["nobody"], [], world.now)
    assert known(world) == []
    assert world.ledger.accounts.pods == {}


def test_another_list_does_not_move_the_end(admitted):
    admitted.forget("a")
    admitted.now += 9
    admitted.sync()
    admitted.look(later=1)
    assert admitted.promised == [0]


# H11: the kubelet's first batch is admitted against its checkpoint as it finds it.


def test_h11_the_kubelet_is_made_to_clean_its_checkpoint_before_a_release(running):
    assert not running.ledger.needs_checkpoint_purge()
    running.delete("a")
    assert not running.ledger.needs_checkpoint_purge()
    running.look("a")
    assert not running.ledger.needs_checkpoint_purge()
    running.look()
    assert running.ledger.needs_checkpoint_purge()
    running.look(later=3600)
    assert running.promised == [3]
    running.drop("a")
    assert not running.ledger.needs_checkpoint_purge()
    assert running.promised == [3]
    running.look()
    assert running.promised == [0]


def test_h11_an_entry_that_an_older_copy_brought_back_is_charged_again(running):
    running.forget("a")
    running.show("a", ids("c0", 0, 1, 2))
    running.look(later=60)
    assert running.promised == [3]
    running.drop("a")
    running.look()
    assert running.promised == [0]


def test_h11_a_pod_in_the_checkpoint_that_nobody_knows_is_charged_as_long_as_it_is_there():
    world = World.of(8)
    world.show("unknown", ids("c0", 0))
    world.sync()
    world.look(later=3600)
    assert world.promised == [1]
    assert world.ledger.needs_checkpoint_purge()


# What is asked for.


def test_nothing_is_complete_before_the_checkpoint_and_a_list_of_pods():
    world = World(Ledger(cards(8)))
    assert not world.ledger.is_complete
    world.sync()
    assert not world.ledger.is_complete
    world.write()
    assert world.ledger.is_complete
    world = World(Ledger(cards(8)))
    world.write()
    assert not world.ledger.is_complete


def test_cgroups_are_looked_for_until_a_container_was_seen_and_again_at_the_end():
    world = World.of(8)
    world.bind(pod("a", 3, "c0"))
    assert world.ledger.pods_to_probe() == {"a"}
    world.admit("a")
    world.look("a")
    assert world.ledger.pods_to_probe() == frozenset()
    world.delete("a")
    assert world.ledger.pods_to_probe() == {"a"}


def test_a_pod_that_only_the_words_had_asks_for_a_list_of_pods():
    world = World(Ledger(cards(8)))
    world.ledger.restore_published({"a": {"c0": 3}})
    assert world.ledger.accounts.has_unlisted_pods
    world.sync()
    assert not world.ledger.accounts.has_unlisted_pods


def test_nothing_is_kept_of_a_pod_that_has_ended(running):
    running.end("a")
    assert running.ledger.accounts.pods == {}
