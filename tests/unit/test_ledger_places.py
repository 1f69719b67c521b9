"""Where pods that are bound will be served, and what the words reserve for them."""

import pytest

from allocator.ledger import charges
from allocator.ledger.places import Place, places
from allocator.selector import Selector
from tests.ledger_world import World, ids, pod

INIT_AND_MAIN = [("setup", 2, "init"), ("main", 5, "main")]
TWO = [("one", 2, "main"), ("two", 3, "main")]


def where(world: World) -> dict[str, tuple[str, ...]]:
    """The cards of each waiting pod's demands, one after the other."""
    found: dict[str, tuple[str, ...]] = {}
    for (uid, _), place in sorted(places(world.ledger.facts).items()):
        found[uid] = found.get(uid, ()) + tuple(place.units)
    return found


def off_target(world: World) -> set[str]:
    return {uid for (uid, _), place in places(world.ledger.facts).items() if not place.on_target}


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
    """The kubelet gave Y the card of X: where X goes instead must not be given away."""
    world = World.of(4, 4)
    world.bind(pod("x", 4, "c0"))
    world.bind(pod("y", 4, "c1"))
    world.allocate(ids("c0", 0, 1, 2, 3), ("y", "main"))
    assert charges.holds(world.ledger.facts) == {"y": {"c0": 4}}
    assert where(world) == {"x": ("c1",)}
    assert off_target(world) == {"x"}
    assert world.ledger.reserved() == {"c1": 4}
    assert world.used == [4, 4]
    assert world.hand(4, "x") == {"c1": 4}
    assert charges.holds(world.ledger.facts) == {"x": {"c1": 4}, "y": {"c0": 4}}
    assert world.ledger.reserved() == {}
    assert world.used == [4, 4]


def test_the_reservation_ends_with_the_pod_that_it_is_for():
    world = World.of(4, 4)
    world.bind(pod("x", 4, "c0"))
    world.allocate(ids("c0", 0, 1, 2, 3), ("y", "main"))
    world.delete("x")
    world.ledger.settle(world.now + 10)
    assert world.used == [4, 0]


def test_h7_the_reservation_outlives_the_pod_that_took_the_card():
    """Y is deleted before x came, its containers run on: x still goes to c1, for c0 is not free."""
    world = World.of(4, 4)
    world.bind(pod("x", 4, "c0"))
    world.bind(pod("y", 4, "c1"))
    world.allocate(ids("c0", 0, 1, 2, 3), ("y", "main"))
    world.look("y")
    world.delete("y")
    assert where(world) == {"x": ("c1",)}
    assert world.used == [4, 4]
    world.drop("y")
    world.look()
    assert where(world) == {"x": ("c0",)}
    assert world.used == [0, 0]


def test_each_gets_its_own_cards_whoever_asks_first():
    world = World.of(8, 8, 8, 8)
    world.bind(pod("x", 6, "c0", "c1", count=2))
    world.bind(pod("y", 6, "c3", "c2", count=2))
    assert world.hand(6, "y") == {"c2": 3, "c3": 3}
    assert where(world) == {"x": ("c0", "c1")}
    assert world.used == [0, 0, 3, 3]


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


def test_who_has_its_cards_is_settled_before_anybody_goes_elsewhere():
    world = World.of(4, 4, 4)
    world.bind(pod("x", 4, "c0"))
    world.bind(pod("y", 4, "c1"))
    world.ledger.set_healthy("c0", False)
    assert where(world) == {"x": ("c2",), "y": ("c1",)}


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


def test_two_pods_may_have_the_same_target():
    world = World.of(8, 8)
    world.bind(pod("x", 3, "c0"))
    world.bind(pod("y", 3, "c0"))
    assert where(world) == {"x": ("c0",), "y": ("c0",)}
    assert off_target(world) == set()


def test_a_pod_that_was_asked_for_again_in_part_goes_where_the_scheduler_said():
    """Its card was unhealthy, its init container got another, and then the kubelet lost its book again."""
    world = World.of(8, 5)
    world.bind(pod("x", INIT_AND_MAIN, "c0"))
    world.admit("x")
    for given in ({("x", "setup"): ids("c1", 0, 1)}, {}):
        world.book = given
        world.write()
    world.ledger.kubelet_restarted()
    assert world.ledger.facts.pods["x"].units == {"c0": 5, "c1": 2}
    assert where(world) == {"x": ("c0",)}
    assert world.used == [5, 2]
    assert world.hand(2, "x", "setup") == {"c0": 2}
