"""What the node knows: the values, and what can be read from them without a conclusion."""

import pytest

from allocator.errors import LedgerError
from allocator.ledger import Ledger, Pod
from allocator.ledger.pods import demand_of
from allocator.selector import Selector
from deviceplugin.node.telling.explain import explain
from tests.ledger_world import World, by_card, cards, ids, pod, request

INIT_AND_MAIN = [("setup", 2, "init"), ("main", 5, "main")]
TWO = [("one", 2, "main"), ("two", 3, "main")]


def test_a_card_twice_is_refused_with_its_uuid():
    with pytest.raises(LedgerError, match=r"c0.*allowed is every UUID once"):
        Ledger([cards(4)[0], cards(4)[0]])


def test_every_unit_of_every_card_has_an_id():
    facts = Ledger(cards(2, 1)).facts
    assert facts.card_of == {"c0::0": "c0", "c0::1": "c0", "c1::0": "c1"}
    assert list(facts.by_card(["c1::0", "c0::0", "c0::1"]).items()) == [("c0", 2), ("c1", 1)]


def test_the_kubelet_knows_a_static_pod_by_another_uid():
    assert pod("mirror", 3, runtime_uid="hash").key == "hash"
    assert pod("a", 3).key == "a"


@pytest.mark.parametrize(
    ("assigned", "costs"),
    [
        pytest.param({"main": (("c1", 5),)}, {"c1": 5}, id="as asked"),
        pytest.param({"main": (("c9", 5),)}, {"c9": 5}, id="a card of another node"),
        pytest.param({"main": (("c1", 1),)}, None, id="other units"),
        pytest.param({"other": (("c1", 5),)}, None, id="other container"),
        pytest.param(None, None, id="nothing"),
    ],
)
def test_what_the_annotation_says_counts_only_when_it_can_be_true(assigned, costs):
    bound = Pod("a", "ns", "a", request(5), assigned=assigned)
    assert bound.assigned_costs == costs


@pytest.mark.parametrize(
    ("assigned", "target"),
    [
        pytest.param({"main": (("c1", 3), ("c0", 3))}, ("c0", "c1"), id="sorted"),
        pytest.param({"main": (("c1", 3), ("c9", 3))}, None, id="a card that this node has not"),
        pytest.param({"main": (("c1", 6),)}, None, id="too few cards"),
        pytest.param(None, None, id="nobody said"),
    ],
)
def test_a_target_is_a_set_of_cards_of_this_node(assigned, target):
    bound = Pod("a", "ns", "a", request(6, 2), assigned=assigned)
    assert Ledger(cards(8, 8)).facts.target(bound, bound.request.demands[0]) == target


def test_containers_that_share_a_card_are_one_demand():
    assert demand_of(request(INIT_AND_MAIN), "main") == (0, request(INIT_AND_MAIN).demands[0])
    assert demand_of(request(TWO), "two") == (1, request(TWO).demands[1])


def test_eligible_are_cards_large_enough_that_the_pod_accepts():
    facts = Ledger(cards(8, 4, 8)).facts
    five = request(5)
    assert facts.eligible(five, five.demands[0]) == {"c0": 5, "c2": 5}
    picky = request(5, selector=Selector.parse(None, "!c0"))
    assert facts.eligible(picky, picky.demands[0]) == {"c2": 5}


def test_missing_is_what_the_book_never_showed():
    world = World.of(8)
    bound = world.ledger.facts.pods
    world.bind(pod("a", TWO, "c0"))
    assert [c.name for c in bound["a"].missing] == ["one", "two"]
    world.allocate(ids("c0", 0, 1), ("a", "one"))
    assert [c.name for c in bound["a"].missing] == ["two"]
    world.drop("a")
    assert [c.name for c in bound["a"].missing] == ["two"]
    assert bound["a"].ids_of(["one", "two"]) == ids("c0", 0, 1)


def test_ids_of_a_pod_count_once():
    world = World.of(8)
    world.run(pod("a", [("setup", 3, "init"), ("main", 2, "main")], "c0"))
    assert world.ledger.facts.pods["a"].ids_of(["setup", "main"]) == ids("c0", 0, 1, 2)


def queue(world: World) -> list[str]:
    return [bound.pod.uid for bound in world.ledger.facts.queue()]


def test_h4_a_pods_place_in_the_queue_is_when_it_was_first_seen_bound():
    world = World.of(8)
    world.bind(pod("b", 1))
    world.bind(pod("a", 1))
    world.change("b", admitted=True)
    assert queue(world) == ["b", "a"]


def test_a_complete_list_is_believed_also_with_lower_versions():
    """etcd was restored from an older copy: what happens next has lower versions than what was seen."""
    world = World.of(8)
    world.version = 900
    world.run(pod("a", 3, "c0"))
    world.version = 500
    world.pods["a"] = pod("a", 3, "c0", version=500)
    world.sync()
    world.change("a", terminal=True)
    world.drop("a")
    world.look()
    assert world.promised == [0]


# H3: an Allocate that no write shows.


def test_h3_an_allocate_that_two_writes_lack_is_dropped_after_two_seconds():
    world = World.of(8)
    world.allocate(ids("c0", 0, 1, 2))
    assert not world.ledger.wants_write(world.now + 1.9)
    assert world.ledger.wants_write(world.now + 2)
    world.now += 2
    world.write()
    assert world.promised == [3]
    assert world.ledger.unsettled()
    world.write()
    assert world.promised == [0]
    assert not world.ledger.wants_write(world.now)
    assert not world.ledger.unsettled()


def test_h3_two_writes_are_not_enough_within_two_seconds():
    """An older copy may overwrite a newer one."""
    world = World.of(8)
    world.allocate(ids("c0", 0, 1, 2))
    world.write()
    world.write()
    assert world.promised == [3]
    world.ledger.settle(world.now + 2)
    assert world.promised == [0]


def served_and_deleted_unshown() -> World:
    """The kubelet served pod a, heard of its end, and dropped it before anybody read its book."""
    world = World.of(8, 8)
    world.bind(pod("a", 3, "c0"))
    world.allocate(ids("c0", 0, 1, 2))
    world.delete("a")
    world.now += 2
    world.write()
    world.write()
    world.run(pod("b", 2, "c1"))
    return world


def test_h3_an_allocate_may_be_of_a_pod_that_was_deleted_before_the_book_was_read():
    world = served_and_deleted_unshown()
    assert world.promised == [3, 2]
    assert not world.ledger.wants_write(world.now + 60)
    world.look("b", later=7)
    assert world.promised == [3, 2]
    world.look("b", later=1)
    assert world.promised == [0, 2]
    assert not world.ledger.unsettled()


def test_h3_where_containers_of_it_are_found_it_is_charged_itself():
    world = served_and_deleted_unshown()
    world.look("a", "b", later=5)
    world.ledger.settle(world.now + 60)
    assert world.promised == [3, 2]
    world.look("b", later=60)
    assert world.promised == [0, 2]


def test_h3_a_pod_that_failed_was_refused():
    world = World.of(8)
    world.bind(pod("a", 3, "c0"))
    world.allocate(ids("c0", 0, 1, 2))
    world.change("a", terminal=True)
    world.now += 2
    world.write()
    world.write()
    assert world.promised == [0]


def test_h3_what_the_kubelet_has_forgotten_is_given_out_before_what_is_certainly_in_use():
    """Pod a was being served beside b when the kubelet ended without its book: it asks for a again."""
    world = World.of(8, 8)
    world.run(pod("b", 5, "c0"))
    world.bind(pod("a", 5, "c0"))
    given = world.choose(5)
    world.allocate(given)
    assert by_card(given) == {"c1": 5}
    world.ledger.kubelet_restarted()
    world.book.clear()
    world.write()
    assert by_card(world.choose(5)) == {"c1": 5}


def test_a_kubelet_that_lost_its_book_may_ask_for_a_pod_that_is_gone():
    """Both pods went with its book, not because it heard of the end of one; b runs and is not asked for."""
    world = World.of(8, 8)
    world.run(pod("b", 3, "c0"))
    world.bind(pod("a", 3, "c1"))
    world.admit("a")
    world.ledger.kubelet_restarted()
    world.book.clear()
    world.write()
    world.delete("a")
    found = world.ledger.ask(world.offered(), (), 3).whose()
    assert found is not None
    assert found[0].pod.uid == "a"


def test_h3_time_alone_drops_no_allocate():
    world = World.of(8)
    world.allocate(ids("c0", 0, 1, 2))
    world.ledger.settle(world.now + 3600)
    assert world.promised == [3]


def test_h3_what_an_older_copy_lacks_stays_charged():
    world = World.of(8)
    world.bind(pod("a", 3, "c0"))
    world.admit("a")
    world.drop("a")
    world.now += 60
    world.write()
    assert world.promised == [3]


def test_h3_an_allocate_ends_with_the_entry_that_is_new():
    """A main container is given exactly the IDs of an init container, which are in the book already."""
    world = World.of(8)
    world.bind(pod("a", [("setup", 3, "init"), ("main", 3, "main")], "c0"))
    world.allocate(ids("c0", 0, 1, 2), ("a", "setup"))
    grant = world.allocate(ids("c0", 0, 1, 2))
    world.write()
    assert world.ledger.facts.grants == [grant]
    world.book["a", "main"] = grant.ids
    world.write()
    assert world.ledger.facts.grants == []


def test_h3_an_entry_that_went_and_came_again_is_new():
    """The kubelet dropped the old pod's entry and gave the same IDs to the same container of that pod."""
    world = World.of(8)
    world.allocate(ids("c0", 0), ("a", "main"))
    world.allocate(ids("c0", 0))
    world.drop("a")
    assert len(world.ledger.facts.grants) == 1
    world.book["a", "main"] = ids("c0", 0)
    world.write()
    assert world.ledger.facts.grants == []


def test_explain_shows_everything_as_json():
    world = World.of(8, 8)
    world.run(pod("a", 3, "c0"))
    world.bind(pod("b", 2, "c1"))
    world.allocate(ids("c0", 7))
    world.ledger.set_pressure({"c1": 1})
    assert explain(world.ledger.facts) == {
        "cards": [
            {
                "uuid": "c0",
                "size": 8,
                "used": 4,
                "charged": 4,
                "reserved": 0,
                "pressure": 0,
                "healthy": True,
                "cordoned": False,
            },
            {
                "uuid": "c1",
                "size": 8,
                "used": 1,
                "charged": 0,
                "reserved": 0,
                "pressure": 1,
                "healthy": True,
                "cordoned": False,
            },
        ],
        "book": [{"pod": "a", "container": "main", "cards": {"c0": 3}}],
        "granted": [{"cards": {"c0": 1}, "writes": 0}],
        "charged": {"a": {"c0": 3}},
        "pods": [
            {
                "uid": "a",
                "pod": "ns/pod-a",
                "assigned": {"main": (("c0", 3),)},
                "admitted": True,
                "ran": True,
                "over": False,
                "in_holds": True,
            },
            {
                "uid": "b",
                "pod": "ns/pod-b",
                "assigned": {"main": (("c1", 2),)},
                "admitted": False,
                "ran": False,
                "over": False,
                "in_holds": False,
            },
        ],
    }
