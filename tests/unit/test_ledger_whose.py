"""Whose devices the kubelet asks for: what it lists, and what is guessed where it lists nothing."""

from allocator.ledger import Ask
from allocator.selector import Selector
from tests.ledger_world import World, by_card, ids, pod

TWO = [("one", 2, "main"), ("two", 3, "main")]


def expects(world: World, size: int) -> bool:
    return world.ledger.ask(world.offered(), (), size).is_expected()


def displaces(world: World, size: int) -> bool:
    return world.ledger.ask(world.offered(), (), size).is_displaced()


def asks(world: World, size: int) -> tuple[str, str] | None:
    """Whose container the kubelet seems to be asking for."""
    return whose(world, size, frozenset())


def whose(world: World, size: int, must: frozenset[str]) -> tuple[str, str] | None:
    """The same for a container that must have some IDs."""
    found = world.ledger.ask(world.offered() | must, must, size).whose()
    return None if found is None else (found[0].pod.uid, found[1].name)


def test_a_pod_that_nobody_knows_is_not_expected():
    world = World.of(8)
    assert asks(world, 3) is None
    assert not expects(world, 3)
    assert not displaces(world, 3)


def test_h4_the_pod_that_was_bound_first_is_served_first():
    world = World.of(8, 8, 8)
    world.bind(pod("b", 3, "c2"))
    world.bind(pod("a", 3, "c1"))
    assert world.hand(3, "b") == {"c2": 3}
    assert world.hand(3, "a") == {"c1": 3}


def test_a_pod_that_has_begun_is_served_before_older_ones():
    """The kubelet admits one pod at a time."""
    world = World.of(8, 8)
    world.bind(pod("a", 3, "c0"))
    world.bind(pod("b", TWO, "c0", "c1"))
    world.hand(2, "b", "one")
    assert asks(world, 3) == ("b", "two")
    assert world.hand(3, "b", "two") == {"c1": 3}


def test_of_pods_that_have_begun_the_last_one_is_served():
    """The kubelet gave up the other one between two containers."""
    world = World.of(8, 8)
    world.bind(pod("a", TWO, "c0", "c0"))
    world.bind(pod("b", TWO, "c1", "c1"))
    world.hand(2, "a", "one")
    world.hand(2, "b", "one")
    world.book["b", "one"] = ids("c1", 0, 1)
    world.write()
    assert asks(world, 3) == ("b", "two")


def test_a_container_whose_turn_comes_later_is_not_meant_while_another_fits():
    world = World.of(8, 8)
    world.bind(pod("a", [("one", 5, "main"), ("two", 3, "main")], "c0", "c0"))
    assert asks(world, 3) == ("a", "two")
    world.bind(pod("b", 3, "c1"))
    assert asks(world, 3) == ("b", "main")
    assert world.hand(3, "b") == {"c1": 3}


def asked_for(world: World, size: int, *taken_up: str) -> Ask:
    """A question of a kubelet that says which pods it has taken up."""
    return world.ledger.ask(world.offered(), (), size, {("ns", f"pod-{uid}") for uid in taken_up})


def asker(ask: Ask) -> str | None:
    found = ask.whose()
    return None if found is None else found[0].pod.uid


def test_a_pod_that_was_deleted_asks_though_a_living_one_wants_as_much():
    """The kubelet had not heard of the end, and the scheduler had given up the claim."""
    world = World.of(8, 8)
    world.bind(pod("gone", [("side", 2, "sidecar"), ("main", 3, "main")], "c1", "c1"))
    world.delete("gone")
    world.bind(pod("alive", [("init", 2, "init"), ("main", 4, "main")], "c0", "c0"))
    ask = asked_for(world, 2, "gone")
    assert (asker(ask), ask.is_expected()) == ("gone", False)
    assert ids("c1", 0, 1) == frozenset(world.ledger.preferred(ask))
    assert asker(asked_for(world, 2, "gone", "alive")) == "alive"


def test_a_pod_that_asks_again_is_not_taken_for_one_that_the_kubelet_has_not_listed():
    """It lost its book, and its first list lacks a pod that was created before and bound a moment ago."""
    world, shape = World.of(8, 5), [("init", 2, "init"), ("main", 4, "main")]
    for uid in ("1", "3"):
        world.bind(pod(uid, shape, "c0", "c0"))
        world.admit(uid)
    world.book.clear()
    world.write()
    world.ledger.kubelet_restarted()
    world.bind(pod("2", TWO, "c1", "c1"))
    world.book["1", "init"], world.book["1", "main"] = ids("c0", 0, 1), ids("c0", 0, 1, 2, 3)
    world.write()
    ask = asked_for(world, 2, "1", "3")
    assert asker(ask) == "3"
    assert by_card(frozenset(world.ledger.preferred(ask))) == {"c0": 2}


def test_a_pod_that_was_taken_up_and_is_not_known_is_waited_for():
    world = World.of(8, 8)
    world.bind(pod("other", 3, "c0"))
    assert not asked_for(world, 3, "new").is_expected()
    world.bind(pod("new", 3, "c1"))
    assert asked_for(world, 3, "new").is_expected()


def test_a_container_that_has_devices_does_not_ask_though_an_older_book_lacks_it():
    world = World.of(8, 8)
    world.bind(pod("a", [("one", 3, "main"), ("two", 3, "main")], "c0", "c1"))
    ask = asked_for(world, 3, "a")
    assert ask.asker() == ("a", "one")
    given = frozenset(world.ledger.preferred(ask))
    world.allocate(given)
    ask = asked_for(world, 3, "a")
    assert ask.asker() == ("a", "two")
    assert by_card(frozenset(world.ledger.preferred(ask))) == {"c1": 3}
    world.ledger.kubelet_restarted()
    assert asked_for(world, 3, "a").asker() == ("a", "one"), "the kubelet knows what its book says"


def test_a_pod_of_another_size_is_not_meant():
    world = World.of(8, 8)
    world.bind(pod("a", 4, "c1"))
    assert not expects(world, 3)
    assert expects(world, 4)


def test_a_pod_that_runs_asks_only_when_no_other_can():
    """The kubelet lost its book and starts a container again."""
    world = World.of(8, 8)
    world.run(pod("a", 3, "c1"))
    assert asks(world, 3) is None
    world.drop("a")
    assert asks(world, 3) == ("a", "main")
    assert not expects(world, 3)
    world.bind(pod("b", 3, "c0"))
    assert asks(world, 3) == ("b", "main")
    assert expects(world, 3)


def test_ids_that_must_be_included_tell_whose_container_it_is():
    world = World.of(8, 8)
    shape = [("setup", 2, "init"), ("main", 5, "main")]
    world.bind(pod("a", shape, "c0"))
    world.bind(pod("b", shape, "c1"))
    world.allocate(ids("c0", 0, 1), ("a", "setup"))
    world.allocate(ids("c1", 0, 1), ("b", "setup"))
    world.bind(pod("c", 4, "c1"))
    assert whose(world, 5, ids("c0", 0, 1)) == ("a", "main")
    assert whose(world, 5, ids("c1", 0, 1)) == ("b", "main")
    assert whose(world, 5, ids("c1", 6)) == ("b", "main")
    must = ids("c1", 0, 1)
    assert not world.ledger.ask(world.offered() | must, must, 5).is_displaced()


def test_h5_a_pod_that_is_gone_may_be_asking_and_its_place_is_kept():
    """x was bound to c2 and deleted by force, then y was bound to c1: the kubelet admits x first."""
    world = World.of(4, 4, 4)
    world.bind(pod("x", 4, "c2"))
    world.delete("x")
    world.bind(pod("y", 4, "c1"))
    assert not displaces(world, 4)
    assert world.used[2] == 4
    assert world.hand(4, "x") == {"c2": 4}
    assert world.hand(4, "y") == {"c1": 4}


def test_h5_after_ten_seconds_it_is_not():
    world = World.of(4, 4)
    world.bind(pod("x", 4, "c0"))
    world.delete("x")
    world.bind(pod("y", 4, "c1"))
    world.now += 10
    assert asks(world, 4) == ("y", "main")


def test_h5_a_pod_that_is_gone_is_not_one_to_wait_for():
    world = World.of(4, 4)
    world.bind(pod("x", 4, "c0"))
    world.delete("x")
    assert asks(world, 4) == ("x", "main")
    assert not expects(world, 4)


def test_a_pod_that_was_dropped_from_the_book_does_not_ask_again():
    """The kubelet drops whom it knows to be gone; x's containers may run on c0."""
    world = World.of(4, 4)
    world.bind(pod("x", 4, "c0"))
    world.hand(4, "x")
    world.delete("x")
    world.bind(pod("y", 4, "c1"))
    world.drop("x")
    assert asks(world, 4) == ("y", "main")
    assert world.hand(4, "y") == {"c1": 4}
    assert world.used == [4, 4]


def test_a_pod_that_was_served_before_the_kubelet_lost_its_book_asks_in_its_turn():
    """It does not run yet; a pod bound later must not be given what the words show of it elsewhere."""
    world = World.of(4, 4)
    world.bind(pod("x", 4, "c0"))
    world.hand(4, "x")
    world.drop("x")
    world.ledger.kubelet_restarted()
    world.bind(pod("y", 4, "c1"))
    assert asks(world, 4) == ("x", "main")
    assert not expects(world, 4)  # it may be over, or run: look first
    assert world.hand(4, "x") == {"c0": 4}


def test_a_pod_that_is_gone_between_two_containers_may_still_ask():
    world = World.of(8, 8)
    world.bind(pod("x", TWO, "c0", "c1"))
    world.bind(pod("y", 3, "c0"))
    world.hand(2, "x", "one")
    world.delete("x")
    assert asks(world, 3) == ("x", "two")
    assert world.hand(3, "x", "two") == {"c1": 3}


def test_h9_a_pod_that_the_kubelet_refused_does_not_ask_again():
    """x failed another predicate: the scheduler has given its card to w, which may have no other."""
    world = World.of(4, 4)
    world.bind(pod("x", 4, "c0"))
    world.change("x", terminal=True)
    world.bind(pod("w", 2, "c0", selector=Selector.parse(None, "c0")))
    world.bind(pod("y", 4, "c1"))
    assert asks(world, 4) == ("y", "main")
    assert world.hand(4, "y") == {"c1": 4}


def test_h9_a_pod_that_the_kubelet_refused_between_two_containers_does_not_ask_again():
    world = World.of(8, 8)
    world.bind(pod("x", TWO, "c0", "c0"))
    world.hand(2, "x", "one")
    world.change("x", terminal=True)
    world.bind(pod("y", 3, "c1"))
    assert asks(world, 3) == ("y", "main")
