"""Whose are the device IDs: names come again, guesses are wrong, init containers are hidden."""

from allocator.ledger import Ledger, Listed
from tests.ledger_world import World, by_card, cards, ids, pod


def holder(world: World, card: str) -> tuple[str | None, bool]:
    """The pod that the first holding on a card is for, and whether that is certain."""
    holdings = world.ledger.explain()["holdings"]
    first = next(h for h in holdings if card in h["cards"])
    return first["pod"], first["certain"]


def holders(world: World) -> list[str | None]:
    """The pod that each holding is for."""
    return [h["pod"] for h in world.ledger.explain()["holdings"]]


def test_a_pod_is_held_once_listed_and_started():
    world = World.of(8)
    world.bind(pod("a", 3, "c0"))
    world.admit("a")
    world.look()
    assert world.ledger.holds() == frozenset()
    world.start("a")
    assert world.ledger.holds() == frozenset()
    world.look()
    assert world.ledger.holds() == {"a"}
    assert world.ledger.unheld() == frozenset()
    assert world.ledger.allocations() == {"a": {"main": (("c0", 3),)}}


def test_a_list_that_began_before_the_start_was_seen_proves_nothing():
    """The list may still show an older pod of that name."""
    world = World.of(8)
    world.bind(pod("a", 3, "c0"))
    world.admit("a")
    mark = world.ledger.mark(world.now)
    world.start("a")
    world.ledger.listed(world.entries(), mark)
    assert world.ledger.holds() == frozenset()


def test_a_name_that_comes_again_gets_nothing_of_the_old_pod():
    world = World.of(8, 8)
    world.bind(pod("old", 3, "c0", name="web-0"))
    world.admit("old")
    world.look()
    world.delete("old")
    world.bind(pod("new", 3, "c1", name="web-0"))
    world.look()
    assert holder(world, "c0") == ("old", False)
    assert world.ledger.holds() == frozenset()
    assert world.promised == [3, 0]
    world.forget("old")
    world.admit("new")
    world.start("new")
    world.look()
    assert world.ledger.holds() == {"new"}
    assert world.promised == [3, 3]
    world.ledger.containers_ended("old")
    world.sync()
    world.look()
    assert world.promised == [0, 3]


def test_an_allocate_before_the_binding_was_seen_waits_for_the_start():
    world = World.of(8)
    world.seen["a"] = pod("a", 3, "c0")
    world.admit("a")
    world.look()
    world.bind(world.seen["a"])
    assert holder(world, "c0") == ("a", False)
    assert world.ledger.holds() == frozenset()
    world.start("a")
    world.look()
    assert holder(world, "c0") == ("a", True)
    assert world.ledger.holds() == {"a"}


def test_a_pod_with_a_container_missing_is_not_held():
    world = World.of(8)
    world.bind(pod("a", [("one", 2, "main"), ("two", 3, "main")], "c0"))
    world.hand(2, key=("a", "one"))
    world.hand(3, key=("a", "two"))
    world.start("a")
    two = world.table.pop(("a", "two"))
    world.look()
    assert world.ledger.holds() == frozenset()
    world.table["a", "two"] = two
    world.look()
    assert world.ledger.holds() == {"a"}
    assert world.ledger.allocations() == {"a": {"one": (("c0", 2),), "two": (("c0", 3),)}}


def test_a_wrong_guess_is_exchanged_both_ways():
    """Two equal pods, the kubelet takes them the other way round; both Allocates before the list."""
    world = World.of(8, 8)
    world.bind(pod("x", 3, "c0"))
    world.bind(pod("y", 3, "c1"))
    world.hand(3, key=("y", "main"))
    world.hand(3, key=("x", "main"))
    world.start("x")
    world.start("y")
    world.look()
    assert world.ledger.allocations() == {"x": {"main": (("c1", 3),)}, "y": {"main": (("c0", 3),)}}
    assert world.used == [3, 3]


def test_a_guess_for_a_pod_of_another_name_is_taken_back():
    world = World.of(8)
    world.bind(pod("a", 3, "c0"))
    given = world.hand(3)
    world.ledger.listed([Listed("kube-system", "static", "main", given)], world.ledger.mark(0.0))
    assert holder(world, "c0") == (None, False)
    assert world.ledger.expects(3, world.offered())


def test_an_unknown_allocate_that_turns_out_to_be_a_pods_makes_room_for_the_one_it_displaced():
    """Nobody knew y when the kubelet asked, and it got x's card; x goes to y's then."""
    world = World.of(8, 4)
    world.seen["y"] = pod("y", 4, "c1")
    given = world.hand(4, key=("y", "main"))
    assert given == ids("c0", 0, 1, 2, 3)
    world.bind(pod("x", 4, "c0"))
    world.bind(world.seen["y"])
    world.start("y")
    world.look()
    assert world.ledger.holds() == {"y"}
    assert world.used == [4, 4]
    assert world.hand(4) == ids("c1", 0, 1, 2, 3)


def test_other_shapes_do_not_exchange_places():
    world = World.of(8, 8)
    world.seen["y"] = pod("y", 4, "c1")
    world.hand(4, key=("y", "main"))
    world.bind(pod("x", 2, "c0"))
    world.bind(world.seen["y"])
    world.start("y")
    world.look()
    assert world.used == [4, 0]


def test_hidden_init_ids_are_proven_by_the_main_container_that_uses_them():
    world = World.of(8)
    world.run(pod("a", [("setup", 6, "init"), ("main", 2, "main")], "c0"))
    assert holder(world, "c0") == ("a", True)
    assert world.ledger.allocations() == {"a": {"setup": (("c0", 6),), "main": (("c0", 2),)}}


def test_a_sidecar_is_listed_and_an_init_only_pod_is_held_by_its_start():
    world = World.of(8)
    world.run(pod("a", [("side", 1, "sidecar"), ("setup", 6, "init")], "c0"))
    assert world.ledger.holds() == {"a"}
    assert world.promised == [7]


def test_two_init_only_pods_that_were_taken_for_each_other():
    world = World.of(8, 8)
    world.bind(pod("x", [("setup", 3, "init")], "c0"))
    world.bind(pod("y", [("setup", 3, "init")], "c1"))
    given = world.hand(3, key=("y", "setup"))
    assert holder(world, "c0") == ("x", False)
    world.start("y")
    world.look()
    assert holder(world, "c0")[0] == "y"
    assert world.ledger.holds() == {"y"}
    assert world.used == [3, 3]
    assert world.hand(3).isdisjoint(given)


def test_an_init_only_pod_does_not_take_from_an_admitted_one():
    world = World.of(8, 8)
    world.run(pod("x", [("setup", 3, "init")], "c0"))
    world.bind(pod("y", [("setup", 3, "init")], "c1"))
    world.start("y")
    assert holder(world, "c0")[0] == "x"
    assert world.promised == [6, 3]


def test_a_pod_seen_started_takes_what_an_equal_one_seemed_to_get():
    """It was not known when the kubelet asked; the next question may come before the next list."""
    world = World.of(8, 8)
    world.bind(pod("b", [("side", 2, "sidecar"), ("main", 3, "main")], "c0", "c0"))
    world.bind(pod("c", 5, "c0"))
    world.seen["a"] = pod("a", [("one", 2, "main"), ("two", 3, "main")], "c1", "c1")
    world.admit("a")
    world.bind(world.seen["a"])
    world.start("a")
    assert holders(world) == ["a", "a"]
    assert world.ledger.expects(2, world.offered())
    assert [set(by_card(given)) for given in world.admit("b")] == [{"c1"}, {"c1"}]


def test_what_was_allocated_after_a_pods_start_is_another_ones():
    world = World.of(8, 8)
    world.bind(pod("a", 3, "c0"))
    world.start("a")
    world.bind(pod("b", 3, "c1"))
    world.hand(3, key=("b", "main"))
    world.ledger.pod_gone("nobody")
    assert holders(world) == ["b"]


def test_init_ids_follow_a_main_container_that_is_listed_under_another_name():
    world = World.of(8, 8)
    shape = [("setup", 2, "init"), ("main", 4, "main")]
    world.bind(pod("x", shape, "c0"))
    world.bind(pod("y", shape, "c1"))
    world.admit("y")
    assert holders(world) == ["x", "x"]
    world.look()
    assert holders(world) == ["y", "y"]
    assert [set(by_card(given)) for given in world.admit("x")] == [{"c1"}, {"c1"}]


def test_after_a_restart_a_pod_that_may_be_served_exchanges_places():
    """Pod y got the cards of x before the restart; whether the listed name is y's is not proven yet."""
    world = World.of(8, 5)
    shape = [("one", 2, "main"), ("two", 3, "main")]
    for bound in (pod("x", shape, "c0", "c1"), pod("y", shape, "c1", "c0")):
        world.pods[bound.uid] = world.seen[bound.uid] = bound
    world.table = {("y", "one"): ids("c0", 0, 1), ("y", "two"): ids("c1", 0, 1, 2)}
    world.look()
    world.sync()
    assert holders(world) == [None, None]
    assert [set(by_card(given)) for given in world.admit("x")] == [{"c1"}, {"c0"}]


def test_a_list_finds_the_newest_allocate_of_the_same_ids():
    world = World.of(8)
    world.bind(pod("a", 3, "c0"))
    world.allocate(ids("c0", 0, 1, 2))
    world.allocate(ids("c0", 0, 1, 2))
    world.table["a", "main"] = ids("c0", 0, 1, 2)
    world.start("a")
    world.look()
    listed = [h["listed"] for h in world.ledger.explain()["holdings"]]
    assert sorted(listed) == [False, True]
    assert world.promised == [3]


def test_a_running_pod_found_after_a_restart_is_proven_by_its_start():
    world = World.of(8)
    world.run(pod("a", 3, "c0"))
    world.ledger = Ledger(cards(8))
    world.look()
    world.sync()
    assert world.ledger.holds() == frozenset()
    world.look()
    assert world.ledger.holds() == {"a"}


def test_a_restart_with_a_new_pod_of_an_old_name_proves_nothing():
    world = World.of(8)
    world.run(pod("old", 3, "c0", name="web-0"))
    world.ledger = Ledger(cards(8))
    del world.pods["old"]
    world.pods["new"] = pod("new", 3, "c0", name="web-0")
    world.sync()
    world.look()
    assert holder(world, "c0") == (None, False)
    assert world.ledger.holds() == frozenset()


def test_of_two_pods_taken_for_each_other_one_is_listed_first():
    """What seemed to be y's belongs to x then, so the next of that size is a third pod."""
    world = World.of(8, 8, 8)
    for uid, card in (("x", "c0"), ("y", "c1"), ("z", "c2")):
        world.bind(pod(uid, 3, card))
    first = world.hand(3, key=("y", "main"))
    second = world.hand(3)
    assert (first, second) == (ids("c0", 0, 1, 2), ids("c1", 0, 1, 2))
    world.look()
    assert holder(world, "c0") == ("y", False)
    assert holder(world, "c1") == ("x", False)
    assert world.hand(3) == ids("c2", 0, 1, 2)


def test_of_two_pods_taken_for_each_other_one_has_another_by_then():
    world = World.of(8, 8)
    world.bind(pod("x", 3, "c0"))
    world.bind(pod("y", 3, "c1"))
    world.hand(3, key=("y", "main"))
    world.hand(3)
    world.ledger.allocate(ids("c1", 5, 6, 7), world.now)
    world.seen["x"] = world.pods["x"]
    world.table["x", "main"] = ids("c1", 5, 6, 7)
    world.look()
    holdings = world.ledger.explain()["holdings"]
    assert [h["pod"] for h in holdings] == ["y", None, "x"]


def test_a_pod_seen_only_after_its_end_owns_what_the_list_still_shows():
    world = World.of(8)
    world.seen["a"] = pod("a", 3, "c0")
    world.admit("a")
    world.look()
    world.bind(world.seen["a"])
    world.change("a", started=True, terminal=True)
    world.look()
    assert holder(world, "c0") == ("a", True)
    assert world.ledger.doubtful() == frozenset()


def test_a_listed_name_of_a_dead_pod_suggests_nobody():
    world = World.of(8)
    world.seen["a"] = pod("a", 3, "c0")
    world.admit("a")
    world.bind(world.seen["a"])
    world.delete("a")
    world.look()
    assert holder(world, "c0") == (None, False)


def test_reuse_proves_only_what_an_init_container_can_have_had():
    """Dead Allocates had the same IDs before: of another size, and of the same."""
    world = World.of(8)
    world.allocate(ids("c0", 0, 1, 2, 3))
    world.allocate(ids("c0", 0, 1))
    world.bind(pod("a", [("setup", 2, "init"), ("main", 1, "main")], "c0"))
    world.allocate(ids("c0", 0, 1))
    world.allocate(ids("c0", 1))
    world.table["a", "main"] = ids("c0", 1)
    world.start("a")
    world.look()
    holdings = world.ledger.explain()["holdings"]
    assert [(h["pod"], h["certain"]) for h in holdings] == [
        (None, False),
        (None, False),
        ("a", True),
        ("a", True),
    ]


def test_a_target_goes_to_one_that_got_another_card_before_one_that_waits():
    """y got x's card, x got w's: w is to be served where y was expected."""
    world = World.of(8, 8, 8)
    for uid, card in (("w", "c2"), ("x", "c0"), ("y", "c1")):
        world.bind(pod(uid, 3, card))
    world.table["y", "main"] = ids("c0", 0, 1, 2)
    world.table["x", "main"] = ids("c2", 0, 1, 2)
    world.allocate(world.table["y", "main"])
    world.allocate(world.table["x", "main"])
    world.start("x")
    world.start("y")
    world.look()
    targets = {p["uid"]: p["targets"] for p in world.ledger.explain()["pods"]}
    assert targets == {"w": [["c1"]], "x": [["c2"]], "y": [["c0"]]}
    assert world.hand(3) == ids("c1", 0, 1, 2)


def test_a_shared_pod_that_seems_to_be_on_two_cards_is_not_described():
    world = World.of(8, 8)
    world.bind(pod("a", [("setup", 2, "init"), ("main", 1, "main")], "c0"))
    world.allocate(ids("c0", 0, 1))
    world.table["a", "main"] = ids("c1", 0)
    world.allocate(ids("c1", 0))
    world.start("a")
    world.look()
    assert world.ledger.holds() == {"a"}
    assert world.ledger.allocations() == {}


def test_a_pod_is_in_flight_from_its_allocate_until_it_is_held():
    world = World.of(8)
    assert not world.ledger.in_flight()
    world.bind(pod("a", 3, "c0"))
    assert not world.ledger.in_flight()
    world.admit("a")
    assert world.used == [3]
    assert world.ledger.in_flight()
    world.start("a")
    world.look()
    assert not world.ledger.in_flight()


def test_a_target_is_not_taken_from_a_pod_that_is_over():
    """Nobody is served there any more: y's place is given to nobody."""
    world = World.of(8, 8)
    world.bind(pod("x", 3, "c0"))
    world.seen["y"] = pod("y", 3, "c1")
    world.hand(3, key=("y", "main"))
    world.bind(world.seen["y"])
    world.delete("x")
    world.start("y")
    world.look()
    targets = {p["uid"]: p["targets"] for p in world.ledger.explain()["pods"]}
    assert targets["y"] == [["c0"]]
