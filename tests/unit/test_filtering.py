from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from pytest_mock import MockerFixture

from allocator.cards import Card
from allocator.policies import CARD_POLICIES
from allocator.request import ContainerRequest, PodRequest
from allocator.selector import ANY_CARD, Selector
from scheduler_plugin.cache.amounts import ONE_POD
from scheduler_plugin.cache.arrays import RowArray
from scheduler_plugin.cache.card_inventory import SelectorMasks
from scheduler_plugin.cache.node_arrays import NodeArrays
from scheduler_plugin.extender.name_index import NameIndex, cut_names
from scheduler_plugin.scheduling import filtering
from scheduler_plugin.scheduling.cluster_policies import ClusterPolicies
from scheduler_plugin.scheduling.filtering import (
    explain_rejections,
    filter_nodes,
)
from scheduler_plugin.scheduling.placing import place_by_policy
from scheduler_plugin.scheduling.reasons import FilterReason
from tests.other_policies import offered


def rows_of(*rows: int) -> RowArray:
    return np.array(rows, dtype=np.intp)


def request(
    *units: int, cards: int = 1, policy: str | None = None, selector: Selector = ANY_CARD
) -> PodRequest:
    containers = tuple(ContainerRequest(f"c{i}", size * cards, "main") for i, size in enumerate(units))
    return PodRequest(containers, cards=cards, card_policy=policy, selector=selector)


def test_more_cards_than_any_node_has() -> None:
    nodes = NodeArrays(cards=2)
    row = nodes.add_node("n")
    nodes.set_cards(row, (8, 8), (0, 0))
    for asked in (request(1, cards=3), request(1, cards=3, selector=Selector.parse("!T4", None))):
        query = ClusterPolicies().make_request(nodes, asked, ONE_POD)
        assert filter_nodes(nodes, query, rows_of(row)).tolist() == [False]
        assert explain_rejections(nodes, query, rows_of(row)).tolist()[0] in {
            FilterReason.TOO_SMALL,
            FilterReason.NOT_ADMITTED,
        }


def test_a_selector_that_no_card_of_the_cluster_matches_is_told_apart() -> None:
    nodes = NodeArrays()
    for name, model in (("a", "NVIDIA A100"), ("b", "Tesla T4")):
        nodes.set_cards(nodes.add_node(name), (8,), (8,), models=(model,), uuids=(f"GPU-{name}",))
    here = rows_of(nodes.rows["a"])
    for model, uuid, found in (
        ("*T4", None, FilterReason.NOT_ADMITTED),
        (None, "GPU-b", FilterReason.NOT_ADMITTED),
        ("*A10O*", None, FilterReason.NO_SUCH_CARD),
        ("*T4", "GPU-a", FilterReason.NO_SUCH_CARD),
        ("!*", None, FilterReason.NO_SUCH_CARD),
    ):
        asked = request(1, selector=Selector.parse(model, uuid))
        assert explain_rejections(
            nodes, ClusterPolicies().make_request(nodes, asked, ONE_POD), here
        ).tolist() == [found], (
            model,
            uuid,
        )
    # A node that is gone has no cards, whatever its row still says.
    nodes.remove_node("b")
    gone = ClusterPolicies().make_request(nodes, request(1, selector=Selector.parse("*T4", None)), ONE_POD)
    assert explain_rejections(nodes, gone, here).tolist() == [FilterReason.NO_SUCH_CARD]


class First:
    """A card policy that knows nothing of arrays."""

    def costs(self, cards: Sequence[Card], _units: int) -> Sequence[float]:
        return [card.index for card in cards]


class Last:
    """The other way round."""

    def costs(self, cards: Sequence[Card], _units: int) -> Sequence[float]:
        return [-card.index for card in cards]


@pytest.fixture
def first() -> Iterator[None]:
    with offered(CARD_POLICIES, first=lambda _: First()):
        yield


@pytest.mark.usefixtures("first")
def test_a_card_policy_of_others_refuses_no_node_where_the_pod_fits() -> None:
    nodes = NodeArrays()
    for name, used in (("a", (0, 4)), ("b", (4, 0)), ("c", (8, 8)), ("d", (0, 0))):
        nodes.set_cards(nodes.add_node(name), (8, 8), used)
    # First 3, then 6: on "a" the policy prefers the card that only the 6 can have.
    query = ClusterPolicies().make_request(nodes, request(3, 6, policy="first"), ONE_POD)
    rows = rows_of(*nodes.rows.values())
    assert filter_nodes(nodes, query, rows).tolist() == [True, True, False, True]
    assert explain_rejections(nodes, query, rows_of(nodes.rows["c"])).tolist() == [FilterReason.NOT_FREE]
    placement = place_by_policy(ClusterPolicies().cluster_policy, nodes, nodes.rows["a"], query)
    assert placement is not None
    assert placement.containers == (("c0", ((1, 3),)), ("c1", ((0, 6),)))


def test_what_evicting_pods_could_cure_does_not_depend_on_what_a_policy_prefers() -> None:
    nodes = NodeArrays()
    nodes.set_cards(nodes.add_node("n"), (16, 8), (16, 8))
    # With all evicted, 8 on the first card would leave nothing for 16: the other card is left.
    with offered(CARD_POLICIES, first=lambda _: First(), last=lambda _: Last()):
        for policy in ("first", "last", "least-used"):
            for asked, found in (((8, 16), FilterReason.NOT_FREE), ((9, 16), FilterReason.TOO_SMALL)):
                query = ClusterPolicies().make_request(nodes, request(*asked, policy=policy), ONE_POD)
                assert explain_rejections(nodes, query, rows_of(0)).tolist() == [found]


@pytest.mark.parametrize("policy", ["first", "least-used", "most-used", "fragmentation"])
@pytest.mark.parametrize(
    ("used", "asked", "fits"),
    [
        pytest.param((0, 0), (40, 40, 80), True, id="two small ones share a card"),
        pytest.param((0, 0), (60, 60, 60), False, id="each needs most of a card"),
        pytest.param((1, 0), (20, 100), True, id="only one card is whole"),
        pytest.param((1, 0), (100, 100), False, id="two whole cards"),
    ],
)
@pytest.mark.usefixtures("first")
def test_a_pod_of_several_containers_fits_wherever_there_is_a_way(
    policy: str, used: tuple[int, int], asked: tuple[int, ...], fits: bool
) -> None:
    nodes = NodeArrays()
    nodes.set_cards(nodes.add_node("even"), (5, 5), used)
    # Cards that differ in size are looked at one by one.
    nodes.set_cards(nodes.add_node("mixed"), (5, 10), (used[0], used[1] * 2))
    shares = replace(request(*asked, policy=policy), percent=True)
    units = request(*(part * 5 // 100 for part in asked), policy=policy)
    for node, pod in (("even", shares), ("even", units), ("mixed", shares)):
        row = nodes.rows[node]
        query = ClusterPolicies().make_request(nodes, pod, ONE_POD)
        assert filter_nodes(nodes, query, rows_of(row)).tolist() == [fits]
        assert (place_by_policy(ClusterPolicies().cluster_policy, nodes, row, query) is not None) == fits


def test_compute_is_searched_exactly_only_where_sums_and_simple_placing_do_not_tell(
    mocker: MockerFixture,
) -> None:
    nodes, policies = NodeArrays(), ClusterPolicies()
    rows = rows_of(*(nodes.add_node(f"n{index}") for index in range(60)))
    for row in rows.tolist():
        # The first third has no card for both containers nor two cards for one each, as their compute says.
        kind = row % 3
        used = ((40 + row % 20, 100), (0, row % 20), (0, 60 + row % 20))[kind]
        nodes.set_cards(row, (40, 40), (row % 7, row % 5), compute_used=used)
    both = tuple(ContainerRequest(f"c{at}", 10, "main", 40) for at in range(2))
    search = mocker.spy(filtering, "fit_together")
    query = policies.make_request(nodes, PodRequest(both), ONE_POD)
    assert filter_nodes(nodes, query, rows).tolist() == [row % 3 > 0 for row in rows.tolist()]
    assert not search.call_count


def test_one_of_two_containers_asks_for_compute() -> None:
    nodes, policies = NodeArrays(), ClusterPolicies()
    for name, used in (("none", 90), ("enough", 40)):
        nodes.set_cards(nodes.add_node(name), (40, 40), (0, 0), compute_used=(used, used))
    asked = PodRequest((ContainerRequest("a", 10, "main", 60), ContainerRequest("b", 10, "main")))
    query = policies.make_request(nodes, asked, ONE_POD)
    assert filter_nodes(nodes, query, rows_of(nodes.rows["none"])).tolist() == [False]
    assert filter_nodes(nodes, query, rows_of(nodes.rows["enough"])).tolist() == [True]


def test_nothing_is_placed_on_an_unusable_node() -> None:
    nodes = NodeArrays()
    row = nodes.add_node("n")
    query = ClusterPolicies().make_request(nodes, request(1), ONE_POD)
    assert place_by_policy(ClusterPolicies().cluster_policy, nodes, row, query) is None
    assert filter_nodes(nodes, query, rows_of(row)).tolist() == [False]


def test_selectors_follow_inventories_and_wider_nodes() -> None:
    nodes = NodeArrays(rows=1, cards=1)
    selectors = SelectorMasks()
    selector = Selector.parse("T4", "!GPU-a-1")
    first = nodes.add_node("a")
    nodes.set_cards(first, (8,), (0,), models=("T4",), uuids=("GPU-a-0",))
    mask = selectors.get_mask(nodes.inventory, selector)
    assert mask is not None
    assert mask.tolist() == [[True]]
    assert selectors.get_mask(nodes.inventory, selector) is mask
    second = nodes.add_node("b")
    nodes.set_cards(second, (8, 8), (0, 0), models=("T4", "A100"))
    nodes.set_cards(first, (8, 8), (0, 0), models=("T4", "T4"), uuids=("GPU-a-0", "GPU-a-1"))
    mask = selectors.get_mask(nodes.inventory, selector)
    assert mask is not None
    assert mask.tolist() == [[True, False], [True, False]]
    nodes.set_cards(second, (8, 8), (0, 0), models=("A100", "T4"))
    mask = selectors.get_mask(nodes.inventory, selector)
    assert mask is not None
    assert mask[second].tolist() == [False, True]


def test_selectors_that_are_not_used_are_forgotten() -> None:
    nodes = NodeArrays()
    nodes.set_cards(nodes.add_node("a"), (8,), (0,), models=("T4",))
    selectors = SelectorMasks(limit=2)
    first = selectors.get_mask(nodes.inventory, Selector.parse("T4", None))
    selectors.get_mask(nodes.inventory, Selector.parse("A*", None))
    assert selectors.get_mask(nodes.inventory, Selector.parse("T4", None)) is first
    selectors.get_mask(nodes.inventory, Selector.parse("H*", None))
    assert selectors.get_mask(nodes.inventory, Selector.parse("T4", None)) is first
    selectors.get_mask(nodes.inventory, Selector.parse("A*", None))
    selectors.get_mask(nodes.inventory, Selector.parse("H*", None))
    assert selectors.get_mask(nodes.inventory, Selector.parse("T4", None)) is not first


def test_names_longer_than_any_known_one() -> None:
    nodes = NodeArrays()
    nodes.add_node("short")
    index = NameIndex(nodes.index)
    for text, expected in ((b'["much-longer-name"]', [-1]), (b'["much-longer-name","short"]', [-1, 0])):
        cut = cut_names(text)
        assert cut is not None
        assert index.rows(cut).tolist() == expected


def test_a_name_too_long_for_the_index_is_not_found() -> None:
    nodes = NodeArrays()
    nodes.add_node("x" * 300)
    nodes.add_node("y")
    cut = cut_names(b'["' + b"x" * 300 + b'","y"]')
    assert cut is not None
    assert NameIndex(nodes.index).rows(cut).tolist() == [-1, 1]
