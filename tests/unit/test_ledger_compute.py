"""Compute: what every card's is charged with, as the words say it: one case per rule of the accounting."""

from dataclasses import replace

import pytest

from allocator.ledger import Ledger
from deviceplugin.publishing.explain import explain_node
from tests.ledger_world import SETTLED_S, World, cards, ids, pod

TWO = [("one", 2, "main"), ("two", 3, "main")]


def asking(uid, units, *on, compute, **more):
    """A bound pod whose containers ask for so much compute of each of their cards, in order."""
    bound = pod(uid, units, *on, **more)
    containers = zip(bound.request.containers, compute, strict=True)
    return replace(
        bound,
        request=replace(
            bound.request, containers=tuple(replace(each, compute=percent) for each, percent in containers)
        ),
    )


def used(world):
    return world.ledger.make_words(1024).compute_used


def test_a_pod_is_charged_on_the_cards_of_its_ids_and_freed_with_its_units():
    world = World.of(8, 8)
    world.bind(asking("a", 3, "c1", compute=[30]))
    assert used(world) == (0, 0), "the scheduler counts it"
    given = world.choose(3, "a")
    world.allocate(given, "a")
    assert used(world) == (0, 30)
    world.show("a", given)
    world.change("a", admitted=True, has_run=True)
    assert used(world) == (0, 30)
    world.delete("a")
    assert used(world) == (0, 30)
    world.drop("a")
    world.look()
    assert used(world) == (0, 0)


@pytest.mark.parametrize(
    ("containers", "count", "on", "compute", "charged"),
    [
        pytest.param(6, 2, ("c0", "c1"), [40], (40, 40), id="each of its cards"),
        pytest.param(TWO, 1, ("c0", "c0"), [20, 30], (50, 0), id="containers on one card"),
        pytest.param(TWO, 1, ("c0", "c1"), [20, 30], (20, 30), id="containers on two cards"),
        pytest.param(TWO, 1, ("c0", "c1"), [0, 30], (0, 30), id="one asks for none"),
        pytest.param(
            [("setup", 6, "init"), ("main", 2, "main")], 1, ("c0",), [60, 10], (60, 0), id="peak of init"
        ),
        pytest.param(
            [("side", 1, "sidecar"), ("setup", 2, "init"), ("main", 2, "main")],
            1,
            ("c0",),
            [10, 20, 30],
            (40, 0),
            id="sidecar beside mains",
        ),
    ],
)
def test_what_the_containers_of_a_pod_are_charged_with(containers, count, on, compute, charged):
    world = World.of(8, 8)
    world.run(asking("a", containers, *on, compute=compute, count=count))
    assert used(world) == charged


def test_a_pod_that_asks_for_none_is_charged_with_none_and_a_pod_that_nobody_knows_with_all():
    world = World.of(8, 8, 8)
    world.run(pod("a", 3, "c0"))
    world.show("unknown", ids("c1", 0, 1))
    assert used(world) == (0, 100, 0)
    # Now it is known.
    world.bind(asking("unknown", 2, "c1", compute=[20]))
    assert used(world) == (0, 20, 0)


def test_after_a_restart_a_pod_that_ended_meanwhile_is_charged_with_all_until_nothing_runs():
    world = World.of(8, 8)
    world.run(asking("a", 3, "c0", compute=[30]))
    world.run(asking("b", 3, "c1", compute=[30]))
    world.restart_daemon()
    del world.pods["a"]
    world.write()
    world.sync()
    assert used(world) == (100, 30)
    world.drop("a")
    world.look("b", later=SETTLED_S)
    assert used(world) == (0, 30)


@pytest.mark.parametrize(
    ("more", "charged"),
    [
        pytest.param({}, (20, 30, 0), id="assigned"),
        pytest.param({"assigned": None}, (50, 50, 50), id="all on every card that one could have"),
        pytest.param({"published": {"c1": 5}}, (0, 50, 0), id="what the node wrote, whichever is where"),
    ],
)
def test_a_pod_that_runs_without_an_entry_is_charged_where_it_may_be(more, charged):
    """A kubelet and a daemon start with nothing while the pod runs."""
    world = World.of(8, 8, 2)
    published = more.pop("published", None)
    if published is not None:
        world.ledger.restore_published({"a": published})
    world.bind(asking("a", TWO, "c0", "c1", compute=[20, 30], admitted=True, **more))
    assert used(world) == charged


def test_the_words_stop_at_the_limit_and_an_unavailable_card_shows_it():
    world = World(Ledger(cards(8, 8), policy="least-used", compute_limit=150))
    world.write()
    world.sync()
    for uid in ("a", "b"):
        world.run(asking(uid, 2, "c0", compute=[80]))
    assert used(world) == (150, 0)
    assert [card["compute"] for card in explain_node(world.ledger.accounts)["cards"]] == [150, 0]
    world.ledger.set_unavailable("cordoned", ["c1"])
    assert used(world) == (150, 150)
    world.ledger.set_unavailable("cordoned", [])
    world.ledger.set_healthy("c0", False)
    world.end("b")
    assert used(world) == (150, 0)
    world.ledger.set_healthy("c0", True)
    assert used(world) == (80, 0)


@pytest.mark.parametrize(
    ("pods", "change", "offered"),
    [
        pytest.param([], {}, 300, id="nobody asks"),
        pytest.param([(6, ("c0", "c1"), [40], 2)], {}, 300, id="less asked than there is"),
        pytest.param(
            [(2, ("c0",), [90], 1)] * 2, {}, 380, id="more asked of one card: there is still one free"
        ),
        pytest.param([(2, ("c0",), [90], 1)], {"cordoned": ["c0"]}, 300, id="a cordoned card"),
        pytest.param([(2, ("c0",), [90], 1)], {"gone": "c0"}, 290, id="a card that is gone with a pod"),
        pytest.param([(TWO, ("c0", "c1"), [20, 30], 1)], {"gone": "c0"}, 220, id="gone with a part of a pod"),
        pytest.param([(2, ("c0",), [90], 1)], {"gone": "c1"}, 200, id="another card is gone"),
    ],
)
def test_the_node_offers_what_its_cards_give_and_never_less_than_its_pods_ask_for(pods, change, offered):
    """A kubelet that starts fails the pods that exceed the offer, although they run.

    In the third case a limit of 200 was lowered to 100 while the pods ran.
    """
    world = World.of(8, 8, 8)
    for number, (containers, on, compute, count) in enumerate(pods):
        world.run(asking(f"p{number}", containers, *on, compute=compute, count=count))
    world.ledger.set_unavailable("cordoned", change.get("cordoned", []))
    if "gone" in change:
        world.ledger.set_cards([card for card in world.ledger.cards() if card.uuid != change["gone"]])
    assert world.ledger.offered_compute() == offered
    asked = [account.pod.request.effective_compute for account in world.ledger.accounts.pods.values()]
    assert offered >= sum(asked)


def test_where_nobody_assigned_cards_those_with_compute_left_come_first_and_others_are_not_refused():
    world = World.of(8, 8, policy="most-used")
    world.run(asking("a", 4, "c0", compute=[80]))
    assert world.run(pod("plain", 1)) == [{"c0": 1}]
    assert world.run(asking("b", 1, compute=[30])) == [{"c1": 1}]
    world.bind(asking("waits", 2, "c1", compute=[60]))
    assert world.run(asking("c", 1, compute=[30])) == [{"c0": 1}], "no card has it: as if it asked for none"
