"""Shares of cards, in percent: what they cost, and what the node serves and refuses."""

from dataclasses import replace

import pytest

from allocator.cards import Card
from allocator.errors import LedgerError, RequestError
from allocator.ids import PERCENT_IDS, device_id, percent_id
from allocator.ledger import CheckpointEntry, Ledger, Pod, charges
from allocator.names import PERCENT_RESOURCE
from allocator.place import place
from allocator.records import charge
from allocator.request import ContainerRequest, Demand, Kind, PodRequest, parse_pod
from deviceplugin.publishing.annotator import list_allocations
from deviceplugin.publishing.explain import explain_node

GIB = "gpupack.io/gpu-memory-gib"
CARDS = "gpupack.io/cards"


def container(
    name: str, percent: str | int, resource: str = PERCENT_RESOURCE, **more: str
) -> dict[str, object]:
    return {"name": name, "resources": {"limits": {resource: str(percent)}}, **more}


def share(percent: int, cards: int = 1, kind: Kind = "main") -> PodRequest:
    return PodRequest((ContainerRequest("main", percent, kind),), cards, percent=True)


# What a pod asks for.


def test_a_share_is_read_from_its_own_resource():
    found = parse_pod({CARDS: "2"}, [], [container("m", 200)], GIB)
    assert found == PodRequest((ContainerRequest("m", 200, "main"),), 2, percent=True)
    assert found.demands == (Demand(("m",), 100, 2, percent=True, least=100),)
    assert [found.demands[0].units_on(size) for size in (79, 44)] == [79, 44]


@pytest.mark.parametrize(
    ("annotations", "init", "mains", "problem"),
    [
        ({}, [], [container("m", 50), container("n", 8, GIB)], "allowed: one of the two in a pod"),
        ({}, [], [container("m", 101)], "container 'm' asks for gpupack.io/gpu-percent: 101 of 1 card(s)"),
        ({CARDS: "2"}, [], [container("m", 202)], "202 of 2 card(s); allowed: 100 for each card"),
        ({CARDS: "2"}, [], [container("m", 75)], "allowed: a multiple of the number of cards"),
        ({}, [container("i", 1)], [container("m", 60), container("n", 60)], "120 together; allowed: 100"),
        ({}, [], [container("m", "50%")], "allowed: a whole number"),
    ],
)
def test_what_no_card_can_give_is_told_with_value_and_limit(annotations, init, mains, problem):
    with pytest.raises(RequestError) as caught:
        parse_pod(annotations, init, mains, GIB)
    assert problem in str(caught.value).replace('"', "'")


@pytest.mark.parametrize("size", [5, 14, 15, 39, 44, 79, 80, 16384])
def test_shares_of_a_hundred_percent_together_fit_on_any_card(size):
    for parts in ([100], [50, 50], [33, 33, 34], [60, 40], [25] * 4, [10] * 10, [99, 1]):
        units = [share(percent).demands[0].units_on(size) for percent in parts]
        assert sum(count for count in units if count <= size) <= size


def test_a_share_of_less_than_a_unit_fits_no_card():
    assert share(7).demands[0].units_on(14) == 15
    assert place([Card(0, "c0", "T4", 14, 0)], share(7), "least-used") is None


def test_shares_that_have_room_need_fewer_ids_than_a_card_has():
    # Every share of p percent has p < 200 * units / size; so have their sums.
    for size in range(1, 300):
        for percent in range(1, 101):
            units = share(percent).demands[0].units_on(size)
            assert units > size or percent * size < PERCENT_IDS * units


def test_a_share_costs_what_each_card_makes_of_it():
    cards = [Card(0, "big", "H100", 79, 0), Card(1, "small", "T4", 14, 0)]
    placement = place(cards, replace(share(100, cards=2), mixed_models=True), "least-used")
    assert placement is not None
    assert placement.charge == {0: 39, 1: 7}
    assigned = {"main": (("big", 39), ("small", 7))}
    assert charge(share(100, cards=2), assigned, {"big": 79, "small": 14}) == {"big": 39, "small": 7}
    for sizes in ({"big": 79, "small": 44}, {}):
        with pytest.raises(RequestError, match="50 percent on each of 2 cards"):
            charge(share(100, cards=2), assigned, sizes)


# What the node does.


class World:
    """A ledger, and a kubelet that has given out what is in its checkpoint."""

    def __init__(self, *sizes: int) -> None:
        self.sizes = sizes
        self.ledger = Ledger([Card(i, f"c{i}", "M", size, 0) for i, size in enumerate(sizes)])
        self.checkpoint: dict[tuple[str, str], frozenset[str]] = {}
        self.pods: list[Pod] = []
        self.write()
        self.ledger.apply_pod_list([], 0.0, 0.0)

    def write(self) -> None:
        self.ledger.apply_checkpoint(
            [CheckpointEntry(*key, "any", ids) for key, ids in self.checkpoint.items()], 0.0
        )

    def bind(self, uid: str, request: PodRequest, **on: list[tuple[str, int]]) -> None:
        assigned = {name: tuple(cards) for name, cards in on.items()} or None
        pod = Pod(uid, "ns", uid, request, assigned=assigned)
        self.pods.append(pod)
        self.ledger.apply_pod(pod, 0.0)

    def give(self, uid: str, name: str, ids: frozenset[str]) -> None:
        self.allocate(ids)
        self.checkpoint[uid, name] = ids
        self.write()

    def allocate(self, ids: frozenset[str]) -> None:
        """An Allocate that the kubelet did not ask for."""
        self.ledger.read_request(ids, ids, len(ids)).choose_ids()
        self.ledger.allocate(ids, 0.0)

    def offered(self, *, percent: bool) -> frozenset[str]:
        names = percent_id if percent else device_id
        every = {
            names(f"c{i}", slot)
            for i, size in enumerate(self.sizes)
            for slot in range(PERCENT_IDS if percent else size)
        }
        return frozenset(every.difference(*self.checkpoint.values()))

    def ask(self, size: int, *, percent: bool = True) -> frozenset[str]:
        return frozenset(self.ledger.read_request(self.offered(percent=percent), (), size).choose_ids())

    def card(self, size: int, *, percent: bool = True) -> str:
        (card,) = {text.partition("::")[0] for text in self.ask(size, percent=percent)}
        return card


def percents(card: str, first: int, count: int) -> frozenset[str]:
    return frozenset(percent_id(card, slot) for slot in range(first, first + count))


def units(card: str, count: int) -> frozenset[str]:
    return frozenset(device_id(card, slot) for slot in range(count))


def test_percent_and_units_are_charged_to_the_same_card():
    world = World(44, 44)
    world.give("a", "main", percents("c0", 0, 50))
    world.give("b", "main", units("c0", 20))
    assert world.ledger.used() == (42, 0)
    assert explain_node(world.ledger.accounts)["charged"] == {"a": {"c0": 22}, "b": {"c0": 20}}


def test_each_container_has_its_share_rounded_down_as_the_scheduler_counts_it():
    world = World(44)
    request = PodRequest(tuple(ContainerRequest(name, 33, "main") for name in "ab"), percent=True)
    world.bind("p", request, a=[("c0", 14)], b=[("c0", 14)])
    world.give("p", "a", percents("c0", 0, 33))
    world.give("p", "b", percents("c0", 33, 33))
    assert world.ledger.used() == (28,)
    assert charges.charge_published_pods(world.ledger.accounts) == {"p": {"c0": 28}}
    assert list_allocations(world.ledger.accounts) == {"p": {"a": (("c0", 14),), "b": (("c0", 14),)}}


def test_init_and_main_have_one_share():
    world = World(44)
    kinds: list[tuple[str, int, Kind]] = [("i", 33, "init"), ("m", 50, "main")]
    request = PodRequest(tuple(ContainerRequest(*each) for each in kinds), percent=True)
    world.bind("p", request, i=[("c0", 14)], m=[("c0", 22)])
    world.give("p", "i", percents("c0", 0, 33))
    world.give("p", "m", percents("c0", 0, 50))
    assert world.ledger.used() == (22,)
    assert list_allocations(world.ledger.accounts) == {"p": {"i": (("c0", 14),), "m": (("c0", 22),)}}


@pytest.mark.parametrize(
    ("before", "wanted"),
    [
        (units("c0", 5), percents("c0", 0, 50)),
        (percents("c0", 0, 50), units("c0", 5)),
        (percents("c0", 0, 75), percents("c0", 75, 75)),
        (units("c0", 1), percents("c0", 0, 100)),
    ],
)
def test_no_more_is_given_out_of_a_card_than_it_has(before, wanted):
    world = World(8, 8)
    world.give("a", "main", before)
    with pytest.raises(LedgerError, match=r"cards \['c0'\] do not have .* free"):
        world.allocate(wanted)
    world.allocate(frozenset(text.replace("c0", "c1") for text in wanted))


def test_percent_of_a_card_full_of_units_are_refused():
    world = World(8)
    world.give("a", "main", units("c0", 8))
    with pytest.raises(LedgerError):
        world.allocate(percents("c0", 0, 50))


def test_units_that_percent_have_taken_are_not_offered():
    world = World(8)
    world.give("a", "main", percents("c0", 0, 75))
    with pytest.raises(LedgerError):
        world.ask(3, percent=False)


def test_a_share_of_less_than_a_unit_is_not_given_out():
    with pytest.raises(LedgerError, match=r"cards \['c0'\] do not have 12 percent free"):
        World(8).allocate(percents("c0", 0, 12))


def test_the_kubelet_is_sent_to_the_card_that_the_scheduler_chose():
    world = World(44, 44, 44)
    world.bind("b", PodRequest((ContainerRequest("main", 50, "main"),)), main=[("c1", 50)])
    world.bind("a", share(50), main=[("c2", 22)])
    assert world.card(50) == "c2"


def test_a_share_needs_as_many_ids_as_it_has_percent_whatever_they_are_worth():
    world = World(200, 200)
    offered = percents("c0", 0, 49) | percents("c1", 0, 50)
    assert frozenset(world.ledger.read_request(offered, (), 50).choose_ids()) == percents("c1", 0, 50)
    small = World(2).ledger
    with pytest.raises(LedgerError, match=r"no card has 50 percent free; free units by card: \[0\]"):
        small.read_request(percents("c0", 0, 49), (), 50).choose_ids()


def test_what_the_kubelet_has_for_another_container_of_the_pod_counts():
    world = World(10)
    world.bind("p", PodRequest(tuple(ContainerRequest(name, 60, "main") for name in "ab"), percent=True))
    world.give("p", "a", percents("c0", 0, 60))
    with pytest.raises(LedgerError, match=r"no card has 60 percent free; free units by card: \[4\]"):
        world.ask(60)


def test_what_one_resource_has_taken_is_not_offered_by_the_other():
    world = World(8, 8)
    world.give("a", "main", percents("c0", 0, 75))
    assert world.card(3, percent=False) == "c1"
    world.give("b", "main", units("c1", 7))
    assert world.card(2, percent=False) == "c0"
    with pytest.raises(LedgerError, match="no card has 3 units free"):
        world.ask(3, percent=False)
    with pytest.raises(LedgerError, match="no card has 38 percent free"):
        world.ask(38)
    assert world.card(25) == "c0"


def test_what_a_restarted_kubelet_has_forgotten_it_may_ask_for_again():
    world = World(8)
    world.bind("a", share(100), main=[("c0", 8)])
    listed = {("ns", "a")}
    given = world.ask(100)
    world.ledger.allocate(given, 0.0, listed)
    assert world.ledger.used() == (8,)
    with pytest.raises(LedgerError, match=r"has 100 percent free; free units by card: \[0\]"):
        world.ask(100)
    world.ledger.apply_kubelet_restart()
    assert len(world.ask(100)) == 100
    world.ledger.allocate(given, 0.0, listed)
    assert world.ledger.used() == (8,)


def test_a_daemon_that_starts_reads_percent_from_the_checkpoint():
    world = World(44)
    world.give("a", "main", percents("c0", 10, 50))
    again = World(44)
    again.checkpoint = world.checkpoint
    again.write()
    assert again.ledger.used() == (22,)


def test_a_container_with_both_resources_is_charged_with_both():
    world = World(44)
    ids = percents("c0", 0, 50), units("c0", 3)
    world.ledger.apply_checkpoint(
        [CheckpointEntry("a", "main", name, each) for name, each in zip("xy", ids, strict=True)], 0
    )
    assert world.ledger.used() == (25,)
