"""What the kubelet's book lacks though it was given out: it was lost, or is an older copy."""

from allocator.ledger import Ledger
from allocator.ledger.places import places
from tests.ledger_world import World, cards, ids, pod


def test_a_pod_that_is_asked_for_again_has_its_place_where_it_was():
    world = World.of(8, 8)
    world.bind(pod("a", 4, "c0"))
    world.admit("a")
    world.drop("a")
    ((key, place),) = places(world.ledger.facts).items()
    assert (key, tuple(place.units), place.on_target) == (("a", 0), ("c0",), True)
    assert world.used == [4, 0]


def test_the_words_reserve_for_a_pod_that_is_asked_for_again_and_whose_card_is_unhealthy():
    world = World.of(8, 8)
    world.bind(pod("a", 4, "c0"))
    world.admit("a")
    world.drop("a")
    world.ledger.set_healthy("c0", healthy=False)
    world.sick.add("c0")
    assert world.used == [8, 4]
    assert world.admit("a") == [{"c1": 4}]
    assert world.used == [8, 4]


def test_the_words_alone_say_where_a_pod_was_that_is_asked_for_again():
    world = World.of(8, 8)
    world.bind(pod("a", 4, "c0"))
    world.admit("a")
    world.restart_daemon()
    world.book.clear()
    world.write()
    world.sync()
    assert world.used == [4, 0]
    world.ledger.set_healthy("c0", healthy=False)
    assert world.used == [8, 4]


def test_a_pod_that_runs_is_not_asked_for_again():
    world = World.of(8, 8)
    world.run(pod("a", 4, "c0"))
    world.drop("a")
    world.ledger.set_healthy("c0", healthy=False)
    assert world.used == [8, 0]


def test_an_older_copy_that_lacks_containers_of_an_admitted_pod_is_written_anew():
    """The daemon starts when that copy has just overwritten the newest one."""
    world = World(Ledger(cards(8)))
    world.pods["a"] = pod("a", [("one", 2, "main"), ("two", 3, "main")], "c0", "c0")
    world.book["a", "one"] = ids("c0", 0, 1)
    world.write()
    world.sync()
    assert not world.ledger.wants_write(world.now)
    world.change("a", admitted=True)
    assert world.ledger.wants_write(world.now)
    world.write()
    assert not world.ledger.wants_write(world.now), "the kubelet itself does not know better"
