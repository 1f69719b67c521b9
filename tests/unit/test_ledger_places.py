"""Where pods that are bound will be served, and what the words reserve for them."""

import pytest

from allocator.ledger import Ledger, charges
from allocator.ledger.places import Place, places, shape
from allocator.selector import Selector
from tests.ledger_world import World, ids, pod, request

INIT_AND_MAIN = [("setup", 2, "init"), ("main", 5, "main")]
TWO = [("one", 2, "main"), ("two", 3, "main")]


def where(world: World) -> dict[str, tuple[str, ...]]:
    """The cards of each waiting pod's demands, one after the other."""
    found: dict[str, tuple[str, ...]] = {}
    for (uid, _), place in sorted(places(world.ledger.facts).items()):
        found[uid] = found.get(uid, ()) + place.cards
    return found


def off_target(world: World) -> set[str]:
    return {uid for (uid, _), place in places(world.ledger.facts).items() if not place.on_target}


# Who may stand in for whom.


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        pytest.param(request(4), request(4), True, id="equal"),
        pytest.param(request(4), request(5), False, id="other size"),
        pytest.param(request(4), request(8, 2), False, id="as much on each of two cards"),
        pytest.param(request(4), request(4, selector=Selector.parse("X", None)), False, id="other selector"),
        pytest.param(request(5), request(INIT_AND_MAIN), False, id="an init container shares its card"),
        pytest.param(
            request(INIT_AND_MAIN), request([("x", 2, "init"), ("y", 5, "main")]), True, id="other names"
        ),
        pytest.param(
            request(INIT_AND_MAIN), request([("x", 2, "init"), ("y", 5, "sidecar")]), False, id="other kinds"
        ),
    ],
)
def test_demands_of_one_shape_share_their_targets(one, other, alike):
    assert (shape(one, one.demands[0]) == shape(other, other.demands[0])) is alike


def test_each_container_of_a_pod_is_a_demand_of_its_own():
    asked = request(TWO)
    assert shape(asked, asked.demands[0]) != shape(asked, asked.demands[1])
    assert shape(asked, asked.demands[1]) == shape(request(3), request(3).demands[0])


# In this order.


def test_a_pod_waits_for_what_was_assigned():
    world = World.of(8, 8)
    world.bind(pod("a", TWO, "c1", "c0"))
    assert places(world.ledger.facts) == {
        ("a", 0): Place({"c1": 2}, on_target=True),
        ("a", 1): Place({"c0": 3}, on_target=True),
    }
    assert world.used == [0, 0]


def test_a_pod_that_is_over_or_has_everything_waits_for_nothing():
    world = World.of(8, 8)
    world.run(pod("a", 3, "c0"))
    world.bind(pod("b", 3, "c1"))
    world.delete("b")
    world.ledger.settle(world.now + 10)
    assert where(world) == {}


def test_h5_a_pod_that_is_gone_keeps_its_place_as_long_as_its_turn():
    """The kubelet may not have heard of it, and the scheduler counts it no more once the words say so."""
    world = World.of(4, 4)
    world.bind(pod("x", 4, "c0"))
    world.delete("x")
    assert world.used == [4, 0]
    world.ledger.settle(world.now + 10)
    assert world.used == [0, 0]


def test_init_units_still_to_come_are_where_the_first_are():
    world = World.of(8, 8)
    world.bind(pod("x", INIT_AND_MAIN, "c0"))
    world.allocate(ids("c1", 0, 1), ("x", "setup"))
    assert places(world.ledger.facts) == {("x", 0): Place({"c1": 3}, on_target=True)}
    assert world.used == [0, 5]


def test_a_pod_whose_card_another_got_is_reserved_where_it_goes():
    """Y took X's place on c0. The scheduler still expects X there; Y's own place must not be given away."""
    world = World.of(4, 4)
    world.bind(pod("x", 4, "c0"))
    world.bind(pod("y", 4, "c1"))
    # The kubelet takes y first, we serve it as x, the older one; the book says afterwards who it was.
    assert world.hand(4, "y") == {"c0": 4}
    assert charges.holds(world.ledger.facts) == {"y": {"c0": 4}}
    assert where(world) == {"x": ("c1",)}
    assert off_target(world) == set()
    assert world.ledger.reserved() == {"c1": 4}
    assert world.used == [4, 4]
    assert world.hand(4, "x") == {"c1": 4}
    assert charges.holds(world.ledger.facts) == {"x": {"c1": 4}, "y": {"c0": 4}}
    assert world.ledger.reserved() == {}
    assert world.used == [4, 4]


def test_the_reservation_ends_with_the_pod_that_it_is_for():
    world = World.of(4, 4)
    world.bind(pod("x", 4, "c0"))
    world.bind(pod("y", 4, "c1"))
    world.hand(4, "y")
    world.delete("x")
    world.ledger.settle(world.now + 10)
    assert world.used == [4, 0]


def test_h7_the_reservation_outlives_the_pod_that_stood_in():
    """Y is deleted before x came, its containers run on: x still goes to c1, for c0 is not free."""
    world = World.of(4, 4)
    world.bind(pod("x", 4, "c0"))
    world.bind(pod("y", 4, "c1"))
    world.hand(4, "y")
    world.look("y")
    world.delete("y")
    assert where(world) == {"x": ("c1",)}
    assert off_target(world) == set()
    assert world.used == [4, 4]
    world.drop("y")
    world.look()
    assert where(world) == {"x": ("c0",)}
    assert world.used == [0, 0]


def test_the_own_target_goes_before_another_of_the_pool():
    world = World.of(8, 8, 8)
    for uid, card in (("x", "c1"), ("y", "c0"), ("w", "c2")):
        world.bind(pod(uid, 3, card))
    assert where(world) == {"x": ("c1",), "y": ("c0",), "w": ("c2",)}
    world.hand(3, "y")
    assert where(world) == {"x": ("c0",), "w": ("c2",)}


def test_the_pool_has_the_targets_of_pods_that_got_other_cards():
    """y got w's card, x got y's: w is to be served where x was expected."""
    world = World.of(8, 8, 8)
    for uid, card in (("w", "c2"), ("x", "c0"), ("y", "c1")):
        world.bind(pod(uid, 3, card))
    world.allocate(ids("c2", 0, 1, 2), ("y", "main"))
    world.allocate(ids("c1", 0, 1, 2), ("x", "main"))
    assert where(world) == {"w": ("c0",)}
    assert off_target(world) == set()


def test_other_shapes_do_not_exchange_places():
    world = World.of(8, 4)
    world.bind(pod("x", 2, "c1"))
    world.bind(pod("y", 4, "c1"))
    world.allocate(ids("c0", 0, 1, 2, 3), ("y", "main"))
    assert where(world) == {"x": ("c1",)}
    assert world.used == [4, 0]


def test_two_cards_are_one_target():
    world = World.of(8, 8, 8, 8)
    world.bind(pod("x", 6, "c0", "c1", count=2))
    world.bind(pod("y", 6, "c3", "c2", count=2))
    assert world.hand(6, "y") == {"c0": 3, "c1": 3}
    assert where(world) == {"x": ("c2", "c3")}
    assert world.used == [3, 3, 3, 3]


def test_h8_the_last_resort_is_the_own_target():
    """c0 is unhealthy, x got c1 when nobody waited for it, z is bound to c1: x has used up c0."""
    world = World.of(8, 8, 8)
    world.bind(pod("x", 4, "c0"))
    world.ledger.set_healthy("c0", False)
    world.allocate(ids("c1", 0, 1, 2, 3), ("x", "main"))
    world.bind(pod("z", 4, "c1"))
    assert where(world) == {"z": ("c1",)}
    assert off_target(world) == set()
    assert world.used == [8, 4, 0]


def test_h8_the_own_target_only_if_it_has_room():
    world = World.of(8, 4, 8)
    world.bind(pod("x", 4, "c0"))
    world.ledger.set_healthy("c0", False)
    world.allocate(ids("c1", 0, 1, 2, 3), ("x", "main"))
    world.bind(pod("z", 4, "c1"))
    assert where(world) == {"z": ("c2",)}
    assert world.used == [8, 4, 4]


def test_a_target_on_an_unhealthy_card_moves_and_is_reserved():
    world = World.of(8, 8)
    world.bind(pod("x", 1, "c0"))
    world.ledger.set_healthy("c0", False)
    assert where(world) == {"x": ("c1",)}
    assert off_target(world) == {"x"}
    assert world.used == [8, 1]


def test_a_pod_bound_before_the_cordon_still_goes_to_its_card():
    world = World.of(8, 8)
    world.bind(pod("x", 4, "c0"))
    world.ledger.keep_out("cordoned", {"c0"})
    assert where(world) == {"x": ("c0",)}
    assert off_target(world) == set()


@pytest.mark.parametrize(
    ("policy", "more", "card"),
    [
        pytest.param("least-used", {}, "c2", id="the cluster's policy"),
        pytest.param("most-used", {}, "c1", id="another one"),
        pytest.param("least-used", {"selector": Selector.parse(None, "!c2")}, "c1", id="the pod's selector"),
    ],
)
def test_a_pod_without_a_target_goes_where_the_policy_says(policy, more, card):
    world = World.of(4, 8, 8, policy=policy)
    world.run(pod("b", 2, "c1"))
    world.bind(pod("x", 4, "c0", **more))
    world.ledger.set_healthy("c0", False)
    assert where(world) == {"x": (card,)}


def test_two_pods_without_a_target_do_not_share_room_for_one():
    world = World.of(4, 4, 4)
    world.ledger.set_healthy("c0", False)
    world.bind(pod("x", 4, "c0"))
    world.bind(pod("y", 4, "c0"))
    assert where(world) == {"x": ("c1",), "y": ("c2",)}


def test_targets_are_settled_before_anybody_goes_elsewhere():
    world = World.of(4, 4, 4)
    world.bind(pod("x", 4, "c0"))
    world.bind(pod("y", 4, "c1"))
    world.ledger.set_healthy("c0", False)
    assert where(world) == {"x": ("c1",), "y": ("c2",)}


def test_a_pod_that_nobody_assigned_is_counted_by_the_scheduler_everywhere():
    world = World.of(8, 8, 2)
    world.bind(pod("x", 4))
    world.bind(pod("y", [("one", 2, "main"), ("two", 1, "sidecar")]))
    assert world.ledger.reserved() == {}
    assert world.used == [0, 0, 0]


def test_an_assignment_to_another_nodes_card_is_counted_everywhere():
    world = World.of(8, 8)
    world.bind(pod("x", 4, assigned={"main": (("c9", 4),)}))
    assert off_target(world) == {"x"}
    assert world.ledger.reserved() == {}


def test_an_allocate_that_the_book_lacks_takes_room():
    world = World.of(4, 4)
    world.bind(pod("x", 4, "c0"))
    world.allocate(ids("c0", 0))
    assert where(world) == {"x": ("c1",)}
    assert world.used == [1, 4]


def test_pressure_moves_nobody():
    """Others may be gone by then; the kubelet decides, and an off-target place would be reserved in vain."""
    world = World.of(4, 4)
    world.bind(pod("x", 4, "c0"))
    world.ledger.set_pressure({"c0": 4})
    assert where(world) == {"x": ("c0",)}
    assert world.used == [4, 0]


def test_h9_a_pod_that_was_refused_before_it_asked_leaves_its_target_to_its_like():
    """x failed another predicate; y's question passes for x's, and the book says that it was y."""
    world = World.of(4, 4)
    world.bind(pod("x", 4, "c0"))
    world.bind(pod("y", 4, "c1"))
    assert world.hand(4, "y") == {"c0": 4}
    world.change("x", terminal=True)
    assert where(world) == {}
    assert charges.holds(world.ledger.facts) == {"y": {"c0": 4}}
    assert world.used == [4, 0]


def test_h8_a_pod_goes_to_its_own_card_when_the_pool_has_none_for_it():
    world = World.of(8, 8, 8)
    world.bind(pod("x", 4, "c0"))
    world.ledger.set_healthy("c0", False)
    world.sick.add("c0")
    world.allocate(ids("c1", 0, 1, 2, 3), ("x", "main"))
    world.bind(pod("z", 4, "c1"))
    assert world.hand(4, "z") == {"c1": 4}


def test_a_pod_on_no_place_of_its_own_does_not_take_another_ones():
    """z's card has room for v alone, whom no other card may have: z goes elsewhere, as the words say."""
    world = World.of(8, 8, 8)
    world.bind(pod("x", 4, "c0"))
    world.ledger.set_healthy("c0", False)
    world.sick.add("c0")
    world.bind(pod("z", 4, "c1"))
    world.bind(pod("v", 4, "c1", selector=Selector.parse(None, "c1")))
    world.allocate(ids("c1", 0, 1, 2, 3), ("x", "main"))
    assert world.used == [8, 4, 4]
    assert world.hand(4, "z") == {"c2": 4}
    assert world.hand(4, "v") == {"c1": 4}


def test_two_pods_may_have_the_same_target():
    world = World.of(8, 8)
    world.bind(pod("x", 3, "c0"))
    world.bind(pod("y", 3, "c0"))
    assert where(world) == {"x": ("c0",), "y": ("c0",)}
    assert off_target(world) == set()


def test_of_two_targets_that_are_left_a_pod_takes_one():
    """x and y both got what was w's."""
    world = World.of(8, 8, 6)
    for uid, card in (("x", "c0"), ("y", "c1"), ("w", "c2")):
        world.bind(pod(uid, 3, card))
    world.allocate(ids("c2", 0, 1, 2), ("x", "main"))
    world.allocate(ids("c2", 3, 4, 5), ("y", "main"))
    assert where(world) == {"w": ("c0",)}
    assert world.used == [3, 0, 6]
    world.bind(pod("z", 8, "c1"))
    assert where(world) == {"w": ("c0",), "z": ("c1",)}
    # What the scheduler counts on c0 itself, for v, is not reserved besides.
    world.bind(pod("v", 2, "c0"))
    assert world.ledger.reserved() == {"c0": 3}


def test_a_target_of_before_the_pod_that_got_it_is_its_own():
    """u got c1 while c0 was unhealthy: the scheduler, which knows, has bound y to c1 and v to c0."""
    world = World.of(8, 8)
    world.bind(pod("u", 3, "c0"))
    world.ledger.set_healthy("c0", False)
    world.sick.add("c0")
    assert world.hand(3, "u") == {"c1": 3}
    world.sick.clear()
    world.ledger.set_healthy("c0", True)
    world.bind(pod("y", 3, "c1"))
    world.bind(pod("v", 8, "c0"))
    assert world.hand(3, "y") == {"c1": 3}


@pytest.mark.parametrize(
    ("size", "had", "goes"),
    [
        pytest.param(8, True, "c0", id="the words had it there: the scheduler counts both"),
        pytest.param(5, True, "c1", id="likewise, but there is no room: they kept the other place"),
        pytest.param(8, False, "c1", id="they did not: the scheduler counts each on its own card"),
    ],
)
def test_a_daemon_that_starts_does_not_know_whose_place_a_pod_took(size, had, goes):
    world = World.of(size, 8, 8)
    world.run(pod("x", 3, "c1"))
    world.book["x", "main"] = ids("c0", 0, 1, 2)
    world.write()
    world.restart_daemon()
    if not had:
        world.ledger = Ledger(world.ledger.installed)
    world.pods["y"] = pod("y", 3, "c0")
    world.write()
    world.sync()
    assert where(world) == {"y": (goes,)}
