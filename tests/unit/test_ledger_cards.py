"""Cards that come and go while pods run: what stays charged, what is named, what is never given twice."""

from dataclasses import replace

import pytest

from allocator.cards import Card
from allocator.errors import LedgerError
from allocator.ids import percent_id
from allocator.ledger import CheckpointEntry, Ledger
from allocator.names import PERCENT_RESOURCE
from allocator.request import ContainerRequest, PodRequest
from deviceplugin.publishing.annotator import list_allocations
from tests.ledger_world import RESOURCE, World, ids, pod


def card(uuid: str, size: int) -> Card:
    return Card(0, uuid, "M", size_units=size, used_units=0)


def install(world: World, **sizes: int) -> dict[str, dict[str, int]]:
    cards = [replace(card(uuid, size), index=at) for at, (uuid, size) in enumerate(sizes.items())]
    return world.ledger.set_cards(cards)


@pytest.fixture
def world() -> World:
    """Pod a has 5 units of c0, pod b 3 of c1."""
    world = World.of(8, 8)
    for bound in (pod("a", 5, "c0"), pod("b", 3, "c1")):
        world.bind(bound)
        world.admit(bound.uid)
    assert world.ledger.used() == (5, 3)
    return world


def test_what_stays_keeps_its_charge_and_what_is_gone_is_named(world: World) -> None:
    assert install(world, n0=4, c1=8) == {"c0": {"a": 5}}
    assert world.ledger.used() == (0, 3)
    assert world.ledger.allocated_units_by_pod() == {"n0": {}, "c1": {"b": 3}}
    assert world.ledger.published_holds() == {"a": {}, "b": {1: 3}}


def test_a_card_that_is_back_is_charged_as_before_also_for_pods_that_the_checkpoint_forgot(
    world: World,
) -> None:
    world.drop("a")
    install(world, c1=8)
    install(world, c1=8, c0=8)
    assert world.ledger.used() == (3, 5)


def test_an_instance_of_the_same_name_that_is_smaller_is_full(world: World) -> None:
    install(world, c0=2, c1=8)
    assert world.ledger.used() == (2, 3)
    install(world, c0=16, c1=8)
    assert world.ledger.used() == (5, 3)


def test_units_that_a_card_has_no_more_are_charged_as_long_as_a_pod_has_them(world: World) -> None:
    install(world, c0=4, c1=8)
    world.bind(pod("c", 4, "c1"))
    world.admit("c")
    install(world, c0=4, c1=6)
    assert world.ledger.used() == (4, 6), "a has 5 of 4 units, b and c have 7 of 6"
    world.forget("b")
    world.look("a", "c", later=60)
    assert world.ledger.used() == (4, 4)
    assert world.ledger.published_holds() == {"a": {0: 5}, "c": {1: 4}}


def test_ids_of_a_card_that_is_gone_are_refused_and_those_of_new_ones_are_given(world: World) -> None:
    install(world, n0=4, c1=8)
    world.bind(pod("c", 4, "n0"))
    assert world.admit("c") == [{"n0": 4}]
    with pytest.raises(LedgerError, match="allowed: IDs of this node's cards"):
        world.ledger.allocate(ids("c0", 6), world.now)


def test_an_allocate_that_is_under_way_loses_the_card_that_goes(world: World) -> None:
    for uid, given in (("x", ids("c0", 6, 7)), ("y", ids("c1", 6))):
        world.bind(pod(uid, len(given)))
        world.allocate(given, uid)
    install(world, c1=8)
    assert world.ledger.used() == (4,)
    assert world.ledger.allocated_units() == {"c1": 4}


def test_a_card_that_is_sick_from_the_start_is_so_until_it_is_healthy() -> None:
    ledger = Ledger([replace(card("c0", 8), healthy=False), replace(card("c1", 8), index=1)])
    assert ledger.set_unavailable("cordoned", {"c1"})
    assert not ledger.set_unavailable("cordoned", {"c1"})
    assert [(each.is_closed, each.healthy) for each in ledger.installed] == [(False, False), (True, True)]
    ledger.set_healthy("c0", True)
    assert ledger.used() == (0, 8)


@pytest.mark.parametrize("why", ["unhealthy", "not_enforced", "cordoned", "client_limit", "detached"])
def test_what_is_out_of_use_is_full_and_to_the_kubelet_unhealthy_if_nobody_may_have_it(why) -> None:
    ledger = Ledger([card("c0", 8)])
    ledger.set_unavailable(why, {"c0"})
    (out,) = ledger.installed
    assert (out.healthy, out.is_closed) == (
        (False, False) if why in {"unhealthy", "not_enforced"} else (True, True)
    )
    assert ledger.used() == (8,)
    assert ledger.cordoned == ({"c0"} if why == "cordoned" else set())


def test_all_cards_are_kept_out_where_those_with_units_are() -> None:
    lost = replace(card("c2", 0), index=2, healthy=False)
    ledger = Ledger([card("c0", 8), replace(card("c1", 8), index=1), lost])
    assert not ledger.is_unavailable("cordoned")
    ledger.set_unavailable("cordoned", {"c0"})
    assert not ledger.is_unavailable("cordoned")
    ledger.set_unavailable("cordoned", {"c0", "c1", "c9"})
    assert ledger.is_unavailable("cordoned")
    assert not ledger.is_unavailable("detached")


def test_a_node_is_empty_once_everything_says_so() -> None:
    world, fresh = World.of(8), Ledger([card("c0", 8)])
    assert not fresh.is_empty, "nobody has said anything yet"
    world.sync()
    world.write()
    assert world.ledger.is_empty
    world.bind(pod("a", 4, "c0"))
    assert not world.ledger.is_empty, "it is on its way"
    world.run(pod("a", 4, "c0"))
    assert not world.ledger.is_empty
    world.end("a")
    assert world.ledger.is_empty


def test_a_cordon_stays_with_its_card_and_health_comes_with_the_list(world: World) -> None:
    world.ledger.set_unavailable("cordoned", {"c1"})
    world.ledger.set_healthy("c1", False)
    install(world, n0=4, c1=8)
    assert [(each.is_closed, each.healthy) for each in world.ledger.installed] == [
        (False, True),
        (True, True),
    ]


def test_a_pod_bound_to_a_card_that_is_gone_goes_elsewhere(world: World) -> None:
    world.bind(pod("c", 4, "c0"))
    install(world, n0=4, c1=8)
    assert world.admit("c") in ([{"n0": 4}], [{"c1": 4}])


def test_percent_cost_what_the_new_cards_are_worth() -> None:
    world = World.of(8)
    request = PodRequest((ContainerRequest("main", 50, "main"),), percent=True)
    world.bind(replace(pod("p", 50), request=request, assigned={"main": (("n0", 5),)}))
    install(world, n0=10)
    (bound,) = world.ledger.accounts.pods.values()
    assert bound.pod.assigned_costs == {"n0": 5}


def test_a_share_of_a_card_that_has_lost_its_units_is_not_written_down_as_none(world: World) -> None:
    entry = CheckpointEntry(
        "a", "main", PERCENT_RESOURCE, frozenset({percent_id("c0", 0), percent_id("c0", 1)})
    )
    world.ledger.apply_checkpoint([entry], world.now)
    install(world, c0=0, c1=8)
    assert world.ledger.published_holds() == {"a": {}, "b": {1: 3}}


def test_a_share_that_is_less_than_a_unit_now_is_not_told() -> None:
    """An annotation with no units is refused by who reads it."""
    world, shares = World.of(8), frozenset(percent_id("c0", slot) for slot in range(50))
    containers = (ContainerRequest("i", 13, "init"), ContainerRequest("main", 50, "main"))
    world.bind(replace(pod("p", 50), request=PodRequest(containers, percent=True)))
    few = frozenset(sorted(shares)[:13])
    entries = [
        CheckpointEntry("p", "i", PERCENT_RESOURCE, few),
        CheckpointEntry("p", "main", PERCENT_RESOURCE, shares),
    ]
    world.ledger.apply_checkpoint(entries, world.now)
    assert list_allocations(world.ledger.accounts) == {"p": {"i": (("c0", 1),), "main": (("c0", 4),)}}
    install(world, c0=7)
    assert world.ledger.published_holds() == {"p": {0: 3}}
    assert list_allocations(world.ledger.accounts) == {}


def test_checkpoint_entries_of_cards_unknown_so_far_count_when_they_come() -> None:
    world = World.of(8)
    world.ledger.apply_checkpoint([CheckpointEntry("x", "main", RESOURCE, ids("n0", 0, 1))], world.now)
    assert world.ledger.used() == (0,)
    install(world, c0=8, n0=4)
    assert world.ledger.used() == (0, 2)
