"""What the node knows: the values, and what can be read from them without a conclusion."""

import pytest

from allocator.errors import LedgerError
from allocator.ledger import Ledger, Pod
from allocator.selector import Selector
from deviceplugin.publishing.explain import explain_node
from tests.ledger_world import World, cards, ids, pod, request

INIT_AND_MAIN = [("setup", 2, "init"), ("main", 5, "main")]
TWO = [("one", 2, "main"), ("two", 3, "main")]


def test_a_card_twice_is_refused_with_its_uuid():
    with pytest.raises(LedgerError, match=r"c0.*allowed: every UUID once"):
        Ledger([cards(4)[0], cards(4)[0]])


def test_every_unit_of_every_card_has_an_id():
    facts = Ledger(cards(2, 1)).accounts
    units = {text: uuid for text, uuid in facts.card_of.items() if text not in facts.percent_ids}
    assert units == {"c0::0": "c0", "c0::1": "c0", "c1::0": "c1"}
    assert list(facts.units_by_card(["c1::0", "c0::0", "c0::1"]).items()) == [("c0", 2), ("c1", 1)]


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
        pytest.param({"main": (("c1", 3), ("c9", 3))}, (), id="a card that this node has not"),
        pytest.param({"main": (("c1", 6),)}, (), id="too few cards"),
        pytest.param(None, (), id="nobody said"),
    ],
)
def test_a_target_is_a_set_of_cards_of_this_node(assigned, target):
    bound = Pod("a", "ns", "a", request(6, 2), assigned=assigned)
    assert Ledger(cards(8, 8)).accounts.assigned_cards(bound, bound.request.demands[0]) == target


def test_containers_that_share_a_card_are_one_demand():
    assert request(INIT_AND_MAIN).demand_of("main") == request(INIT_AND_MAIN).demands[0]
    assert request(TWO).demand_of("two") == request(TWO).demands[1]


def test_eligible_are_cards_large_enough_that_the_pod_accepts():
    facts = Ledger(cards(8, 4, 8)).accounts
    five = request(5)
    assert facts.eligible_cards(five, five.demands[0]) == {"c0": 5, "c2": 5}
    picky = request(5, selector=Selector.parse(None, "!c0"))
    assert facts.eligible_cards(picky, picky.demands[0]) == {"c2": 5}


def test_missing_is_what_was_never_given():
    world = World.of(8)
    bound = world.ledger.accounts.pods
    world.bind(pod("a", TWO, "c0"))
    assert [c.name for c in bound["a"].unserved_containers] == ["one", "two"]
    world.show("a", ids("c0", 0, 1), "one")
    assert [c.name for c in bound["a"].unserved_containers] == ["two"]
    world.allocate(ids("c0", 2, 3, 4), "a")
    assert bound["a"].unserved_containers == ()
    assert bound["a"].id_sets(["one", "two"]) == [ids("c0", 0, 1), ids("c0", 2, 3, 4)]
    world.drop("a")
    assert bound["a"].unserved_containers == ()


def test_a_pod_that_the_api_shows_again_is_not_over():
    """etcd was restored from an older copy: the pod's deletion is undone."""
    world = World.of(8)
    world.run(pod("a", 3, "c0"))
    world.delete("a")
    world.bind(pod("a", 3, "c0", admitted=True, has_run=True))
    world.drop("a")
    world.look(later=60)
    assert world.promised == [3]
    world.delete("a")
    world.look()
    assert world.promised == [0]


def test_a_change_that_others_work_with_has_a_version_of_its_own():
    world = World.of(8)
    facts = world.ledger.accounts
    steps = [
        lambda: world.bind(pod("a", 3, "c0")),
        lambda: world.allocate(ids("c0", 0, 1, 2), "a"),
        lambda: world.show("a", ids("c0", 0, 1, 2)),
        lambda: world.change("a", admitted=True),
        world.look,
        lambda: world.change("a", has_run=True),
    ]
    for step in steps:
        before = facts.version
        step()
        assert facts.version > before
        before = facts.version
        world.write()
        world.sync()
        assert facts.version == before


def test_a_pod_that_is_dropped_is_a_change_also_where_another_one_comes():
    """Who compares versions would take the one for the other."""
    world = World.of(8)
    facts = world.ledger.accounts
    world.run(pod("a", 3, "c0"))
    before = facts.version
    assert facts.remove_pod("never") is None
    assert facts.version == before
    gone = facts.remove_pod("a")
    assert gone is not None
    assert gone.pod.uid == "a"
    assert (facts.version > before, facts.pods) == (True, {})


@pytest.mark.parametrize("way", ["cgroups", "checkpoint", "static"])
def test_whatever_ends_a_pod_s_charge_has_a_version(way):
    world = World.of(8)
    facts = world.ledger.accounts
    if way == "cgroups":
        world.run(pod("a", 3, "c0"))
        world.ledger.remove_pod("a", world.now)
        world.drop("a")
        before = facts.version
        world.look(later=1.0)
        # The look, and the end.
        assert (facts.version, facts.pods) == (before + 2, {})
    elif way == "checkpoint":
        world.sync()
        world.allocate(ids("c0", 0, 1))
        (unknown,) = facts.pods
        before = facts.version
        world.show("b", ids("c0", 0, 1))
        # The new pod, the unknown one without its IDs, and its end.
        assert (facts.version, unknown in facts.pods) == (before + 3, False)
    else:
        world.ledger.restore_published({"mirror": {"c0": 3}})
        before = facts.version
        world.ledger.apply_pod(pod("mirror", 3, "c0", runtime_uid="hash"), 1.0)
        assert (facts.version, set(facts.pods)) == (before + 2, {"hash"})


def test_explain_shows_everything_as_json():
    world = World.of(8, 8)
    world.run(pod("a", 3, "c0"))
    world.bind(pod("b", [("main", 2, "main"), ("side", 1, "sidecar")], "c1"))
    world.allocate(ids("c1", 6, 7), "b")
    world.ledger.set_unaccounted_use({"c1": 1})
    told = explain_node(world.ledger.accounts)
    every = {"size": 8, "compute": 0, "healthy": True, "is_closed": False}
    assert told["cards"] == [
        {"uuid": "c0", "used": 3, "charged": 3, "unaccounted_use": 0, **every},
        {"uuid": "c1", "used": 3, "charged": 2, "unaccounted_use": 1, **every},
    ]
    assert told["checkpoint"] == [{"pod": "a", "container": "main", "cards": {"c0": 3}}]
    assert {"pod": "b", "container": "main", "cards": {"c1": 2}} in told["pending"]
    assert told["charged"] == {"a": {"c0": 3}, "b": {"c1": 2}}
    assigned = {"main": (("c1", 2),), "side": (("c1", 1),)}
    nothing = {"admitted": False, "has_run": False, "is_live": True, "in_holds": False}
    assert told["pods"] == [
        {
            "uid": "a",
            "pod": "ns/pod-a",
            "assigned": {"main": (("c0", 3),)},
            "admitted": True,
            "has_run": True,
            "is_live": True,
            "in_holds": True,
        },
        {"uid": "b", "pod": "ns/pod-b", "assigned": assigned, **nothing},
    ]
