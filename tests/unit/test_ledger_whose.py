"""Whose devices the kubelet asks for: what it lists, and what is guessed where it lists nothing."""

import pytest

from allocator.ledger import AllocationRequest
from tests.ledger_world import SETTLED_S, World, by_card, ids, pod

TWO = [("one", 2, "main"), ("two", 3, "main")]


def asker(ask: AllocationRequest) -> tuple[str, str] | None:
    """The pod and the container that seem to ask."""
    found = ask.find_container()
    return None if found is None else (found[0].pod.uid, found[1].name)


# What the kubelet lists.


def test_only_who_was_taken_up_asks_and_of_those_who_lacks_something():
    world = World.of(8, 8)
    for uid, card in (("a", "c0"), ("b", "c1"), ("c", "c0")):
        world.bind(pod(uid, 3, card))
    assert asker(world.ask(3, "b")) == ("b", "main")
    world.hand(3, "b")
    assert asker(world.ask(3, "b", "c")) == ("c", "main")
    assert asker(world.ask(3, "b")) is None


def test_of_several_that_run_and_that_the_kubelet_has_lost_none_is_taken_for_the_one_that_asks():
    """A container starts again: what the others run with is in use."""
    world = World.of(8, 8)
    for uid, card in (("a", "c0"), ("b", "c1")):
        world.run(pod(uid, 5, card))
    world.lose_checkpoint()
    ask = world.ask(5, "a", "b")
    assert (asker(ask), ask.is_expected(), ask.has_room()) == (None, False, False)
    assert asker(world.ask(5, "b")) == ("b", "main")
    assert by_card(world.choose(3, "a")) == {"c0": 3}


def test_a_pod_that_was_deleted_asks_though_a_living_one_wants_as_much():
    """The kubelet had not heard of the end, and the scheduler had given up the claim."""
    world = World.of(8, 8)
    world.bind(pod("gone", [("side", 2, "sidecar"), ("main", 3, "main")], "c1", "c1"))
    world.delete("gone")
    world.bind(pod("alive", [("init", 2, "init"), ("main", 4, "main")], "c0", "c0"))
    ask = world.ask(2, "gone")
    assert (asker(ask), ask.is_expected()) == (("gone", "side"), False)
    assert by_card(world.choose(2, "gone")) == {"c1": 2}
    assert asker(world.ask(2, "gone", "alive")) == ("alive", "init")


def test_a_pod_that_asks_again_is_not_taken_for_one_that_the_kubelet_has_not_listed():
    """It lost its checkpoint, and its first list lacks a pod that was created before and bound just now."""
    world, shape = World.of(8, 5), [("init", 2, "init"), ("main", 4, "main")]
    for uid in ("1", "3"):
        world.bind(pod(uid, shape, "c0", "c0"))
        world.admit(uid)
    world.lose_checkpoint()
    world.bind(pod("2", TWO, "c1", "c1"))
    world.show("1", ids("c0", 0, 1), "init")
    world.show("1", ids("c0", 0, 1, 2, 3), "main")
    assert asker(world.ask(2, "1", "3")) == ("3", "init")
    assert by_card(world.choose(2, "3")) == {"c0": 2}


def test_a_pod_that_was_taken_up_and_is_not_known_is_waited_for():
    world = World.of(8, 8)
    world.bind(pod("other", 3, "c0"))
    assert not world.ask(3, "new").is_expected()
    world.bind(pod("new", 3, "c1"))
    assert world.ask(3, "new").is_expected()


def test_a_container_that_has_devices_does_not_ask_though_an_older_checkpoint_lacks_it():
    world = World.of(8, 8)
    world.bind(pod("a", [("one", 3, "main"), ("two", 3, "main")], "c0", "c1"))
    assert by_card(world.choose(3, "a")) == {"c0": 3}
    world.allocate(world.choose(3, "a"), "a")
    assert asker(world.ask(3, "a")) == ("a", "two")
    assert by_card(world.choose(3, "a")) == {"c1": 3}
    world.ledger.apply_kubelet_restart()
    assert asker(world.ask(3, "a")) == ("a", "one"), "the kubelet knows what its checkpoint says"


def test_without_the_list_an_allocate_is_nobodys():
    world = World.of(8)
    world.bind(pod("a", 3, "c0"))
    world.allocate(ids("c0", 0, 1, 2))
    assert asker(world.ask(3, "a")) == ("a", "main")
    world.allocate(ids("c0", 3, 4, 5), "a")
    assert world.ask(3, "a").find_container() is None


# What is guessed without the list.


def test_the_pod_that_was_bound_first_is_served_first():
    world = World.of(8, 8)
    world.bind(pod("b", 3, "c0"))
    world.bind(pod("a", 3, "c1"))
    world.change("b", admitted=True)
    assert asker(world.ask(3)) == ("b", "main")


def test_a_pod_of_another_size_is_not_meant():
    world = World.of(8, 8)
    assert asker(world.ask(3)) is None
    world.bind(pod("a", 4, "c1"))
    assert asker(world.ask(3)) is None
    assert asker(world.ask(4)) == ("a", "main")


def test_a_pod_that_runs_asks_only_when_no_other_can():
    """The kubelet lost its checkpoint and starts a container again."""
    world = World.of(8, 8)
    world.run(pod("a", 3, "c1"))
    assert asker(world.ask(3)) is None
    world.lose_checkpoint()
    assert asker(world.ask(3)) == ("a", "main")
    world.bind(pod("b", 3, "c0"))
    assert asker(world.ask(3)) == ("b", "main")


def test_h5_a_pod_that_is_gone_asks_when_no_living_one_can_and_no_more_once_its_charge_ended():
    world = World.of(8, 8)
    world.bind(pod("x", 4, "c0"))
    world.delete("x")
    assert asker(world.ask(4)) == ("x", "main")
    world.bind(pod("y", 4, "c1"))
    assert asker(world.ask(4)) == ("y", "main")
    world.delete("y")
    world.look(later=SETTLED_S)
    assert asker(world.ask(4)) is None


# What is waited for before an answer.


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        pytest.param((), True, id="bound"),
        pytest.param(("delete",), False, id="deleted"),
        pytest.param(("admit", "lose_checkpoint"), False, id="it had devices"),
        pytest.param(("status", "lose_checkpoint"), False, id="its status says that it was admitted"),
        pytest.param(("shown", "lose_checkpoint"), False, id="the checkpoint had it"),
        pytest.param(("one",), True, id="its second container"),
        pytest.param(("admit", "run", "lose_checkpoint"), False, id="it runs, and the checkpoint was lost"),
        pytest.param(("one", "run", "again"), False, id="it starts again, or another asks"),
    ],
)
def test_a_living_pod_that_has_not_had_its_devices_yet_is_expected(steps, expected):
    world = World.of(8)
    world.bind(pod("a", TWO if "one" in steps else 3, "c0"))
    for step in steps:
        match step:
            case "admit":
                world.admit("a")
            case "run":
                world.change("a", has_run=True)
            case "shown":
                world.show("a", ids("c0", 0, 1, 2))
            case "status":
                world.change("a", admitted=True)
            case "one":
                world.hand(2, "a", "one")
            case "delete":
                world.delete("a")
            case "lose_checkpoint":
                world.lose_checkpoint()
            case "again":
                world.lose_checkpoint()
                world.show("a", ids("c0", 0, 1), "one")
    assert world.ask(3, "a").is_expected() == expected


def test_a_list_of_pods_may_say_more_where_nobody_known_asks_or_is_assigned():
    world = World.of(8, 8)
    assert not world.ask(3, "unknown").is_unambiguous()
    world.bind(pod("a", 3, "c0"))
    assert world.ask(3, "a").is_unambiguous()
    world.bind(pod("b", 4))
    assert not world.ask(4, "b").is_unambiguous()


def test_containers_that_may_run_on_are_waited_for():
    world = World.of(8)
    world.run(pod("b", 3, "c0"))
    assert not world.ask(3).has_ended_pods()
    world.delete("b")
    assert world.ask(3).has_ended_pods()
    world.drop("b")
    assert world.ask(3).has_ended_pods()
    world.look()
    assert not world.ask(3).has_ended_pods()


def test_where_a_container_belongs():
    world = World.of(8, 8)
    assert world.ask(3).target_cards() == ()
    world.bind(pod("a", 3))
    assert world.ask(3).target_cards() == ()
    assert world.ask(3, must=ids("c1", 0)).target_cards() == ("c1",)
    world.bind(pod("b", 4, "c1"))
    assert world.ask(4).target_cards() == ("c1",)
    assert world.ask(4, must=ids("c0", 0)).target_cards() == ("c1",)
