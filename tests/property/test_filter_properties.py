"""The vectorised filter, name lookup and ranks against their scalar oracles."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.cards import Card
from allocator.place import place
from allocator.policies import CARD_POLICIES
from allocator.request import ContainerRequest, Kind, PodRequest
from allocator.selector import Selector
from scheduler_plugin.cache.amounts import FIXED, NOTHING, ONE_POD, Amounts
from scheduler_plugin.cache.arrays import LongArray
from scheduler_plugin.cache.cards import build_cards
from scheduler_plugin.cache.node_arrays import NodeArrays
from scheduler_plugin.extender.name_index import NameIndex, cut_names
from scheduler_plugin.scheduling.cluster_policies import ClusterPolicies
from scheduler_plugin.scheduling.filtering import explain_rejections, filter_nodes
from scheduler_plugin.scheduling.node_fit import list_shortages
from scheduler_plugin.scheduling.placing import place_by_policy
from scheduler_plugin.scheduling.reasons import FilterReason
from tests.other_policies import offered

MODELS = ("", "T4", "A100", "H100")


class Alone:
    """A card policy that tells for the cards of one node only."""

    def costs(self, cards: Sequence[Card], units: int) -> Sequence[float]:
        return [(card.index * 7 + units) % 5 + (card.numa == 1) + len(card.uuid) % 3 for card in cards]


class ByFill:
    """One that looks at size and free units."""

    by_fill = True

    def costs(self, cards: Sequence[Card], units: int) -> Sequence[float]:
        return [(card.used_units * 7 + units) % 5 + card.size_units % 3 for card in cards]


class Arrays(ByFill):
    """One that tells for arrays as well."""

    def array_costs(self, size: LongArray, free: LongArray, units: int) -> LongArray:
        return ((size - free) * 7 + units) % 5 + size % 3


OTHERS: dict[str, Callable[[Any], Any]] = {
    "alone": lambda _: Alone(),
    "arrays": lambda _: Arrays(),
    "filled": lambda _: ByFill(),
}


@pytest.fixture(scope="module", autouse=True)
def others() -> Iterator[None]:
    with offered(CARD_POLICIES, **OTHERS):
        yield


cards = st.lists(
    st.tuples(
        st.integers(0, 12),
        st.integers(0, 12),
        st.integers(0, 4),
        st.booleans(),
        st.sampled_from(MODELS),
        st.integers(-1, 2),
        st.integers(0, 5),
        st.integers(0, 5),
    ),
    max_size=6,
)
selectors = st.sampled_from(
    [
        Selector(),
        Selector.parse("T4", None),
        Selector.parse("*100,!H*", None),
        Selector.parse(None, "GPU-*-1,GPU-*-3"),
        Selector.parse("!T4", "!GPU-*-0"),
    ]
)


@st.composite
def requests(draw: st.DrawFn) -> PodRequest:
    count = draw(st.integers(1, 3))
    percent = draw(st.booleans())
    sizes = draw(st.lists(st.integers(1, 100 if percent else 8), min_size=1, max_size=3))
    compute = draw(st.sampled_from(([0] * 3, [0] * 3, [40] * 3, [30, 0, 60], [100, 10, 50])))
    first: Kind = "init" if count == 1 and draw(st.booleans()) else "main"
    kinds: list[Kind] = [first, "main", "main"]
    return PodRequest(
        tuple(
            ContainerRequest(f"c{index}", size * count, kinds[index], compute[index])
            for index, size in enumerate(sizes)
        ),
        cards=count,
        selector=draw(selectors),
        card_policy=draw(st.sampled_from([None, "least-used", "most-used", "fragmentation", *OTHERS])),
        percent=percent,
        mixed_models=draw(st.booleans()),
        places=draw(st.sampled_from(("", "same-card", "apart") if first == "main" else ("", "same-card"))),
    )


Drawn = list[list[tuple[int, int, int, bool, str, int, int, int]]]


def compute_limit(index: int) -> int:
    """Every third node does not publish its compute, another third gives it away twice."""
    return (100, 0, 200)[index % 3]


def arrays(drawn: Drawn) -> NodeArrays:
    nodes = NodeArrays(rows=2, cards=2)
    for index, node in enumerate(drawn):
        row = nodes.add_node(f"n{index}")
        sizes = [size for size, *_ in node]
        healthy = [card[3] for card in node]
        nodes.set_cards(
            row,
            sizes,
            [min(used, size) if ok else size for (size, used, *_), ok in zip(node, healthy, strict=True)],
            evictable=[size if ok else 0 for size, ok in zip(sizes, healthy, strict=True)],
            uuids=[f"GPU-{index}-{card}" for card in range(len(node))],
            models=[card[4] for card in node],
            numa=[card[5] for card in node],
            links=links(len(node), index),
            compute_limit=compute_limit(index),
            compute_used=[
                10 * card[6] if ok else compute_limit(index) for card, ok in zip(node, healthy, strict=True)
            ],
        )
        nodes.set_assumed(row, [card[2] for card in node], [10 * card[7] for card in node])
    return nodes


def links(cards: int, index: int) -> list[tuple[int, ...]]:
    if not index % 2:
        return []
    return [tuple(0 if i == j else (i + j) % (index + 1) for j in range(cards)) for i in range(cards)]


def scalar_cards(drawn: Drawn, index: int) -> list[Card]:
    """The oracle's view, written without the arrays."""
    return [
        Card(
            index=position,
            uuid=f"GPU-{index}-{position}",
            model=model,
            size_units=size,
            used_units=size if not healthy else min(size, min(used, size) + assumed),
            numa=None if numa < 0 else numa,
            links=links(len(drawn[index]), index)[position] if index % 2 else (),
            compute_limit=compute_limit(index),
            compute_used=(10 * tenths if healthy else compute_limit(index)) + 10 * more,
        )
        for position, (size, used, assumed, healthy, model, numa, tenths, more) in enumerate(drawn[index])
    ]


@given(st.lists(cards, min_size=1, max_size=6), requests(), st.sampled_from(["least-used", "most-used"]))
def test_the_filter_equals_the_scalar_placement(drawn: Drawn, request: PodRequest, policy: str) -> None:
    nodes = arrays(drawn)
    query = ClusterPolicies(card_policy_name=policy).make_request(nodes, request, ONE_POD)
    rows = np.array([nodes.rows[f"n{index}"] for index in range(len(drawn))], dtype=np.intp)
    found = filter_nodes(nodes, query, rows)
    for index, row in enumerate(rows.tolist()):
        oracle = place(scalar_cards(drawn, index), request, policy)
        assert bool(found[index]) == (oracle is not None)
        assert list(build_cards(nodes, row)) == scalar_cards(drawn, index)
        assert place_by_policy(ClusterPolicies().cluster_policy, nodes, row, query) == oracle


@given(st.lists(cards, min_size=1, max_size=6), requests())
def test_misfits_are_told_apart_as_one_would_by_hand(drawn: Drawn, request: PodRequest) -> None:
    nodes = arrays(drawn)
    query = ClusterPolicies().make_request(nodes, request, ONE_POD)
    rows = np.arange(len(drawn), dtype=np.intp)
    out = rows[~filter_nodes(nodes, query, rows)]
    anywhere = replace(request, mixed_models=True, places="" if request.places == "apart" else request.places)
    most = max(demand.cards for demand in request.demands)
    somewhere = any(
        request.selector.admits(card) and card.size_units > 0
        for index in range(len(drawn))
        for card in scalar_cards(drawn, index)
    )
    for row, code in zip(out.tolist(), explain_rejections(nodes, query, out).tolist(), strict=True):
        index = int(nodes.names[row][1:])
        here = scalar_cards(drawn, index)
        emptied = [
            replace(card, used_units=0 if drawn[index][card.index][3] else card.size_units, compute_used=0)
            for card in here
        ]
        memory = replace(request, containers=tuple(replace(each, compute=0) for each in request.containers))
        admitted = sum(request.selector.admits(card) and card.size_units > 0 for card in here)
        if request.asks_compute and not compute_limit(index):
            assert code == FilterReason.NO_COMPUTE
        elif not request.selector.admits_all and admitted < most:
            assert code == (FilterReason.NOT_ADMITTED if somewhere else FilterReason.NO_SUCH_CARD)
        elif place(here, anywhere, "least-used") is not None:
            assert code == FilterReason.CARD_RULES
        elif place(emptied, request, "least-used") is not None:
            found = place(here, memory, "least-used") is not None
            assert code == (FilterReason.COMPUTE_NOT_FREE if found else FilterReason.NOT_FREE)
        elif place(emptied, anywhere, "least-used") is not None:
            assert code == FilterReason.CARD_RULES
        else:
            assert code == FilterReason.TOO_SMALL


letters = st.characters(codec="ascii", exclude_characters='"\\', min_codepoint=32, max_codepoint=126)
names = st.lists(st.text(letters, max_size=30), max_size=12)


@given(names, names, st.randoms())
def test_names_are_found_whatever_their_order(known: list[str], others: list[str], random) -> None:  # type: ignore[no-untyped-def]
    nodes = NodeArrays(rows=1)
    for name in dict.fromkeys(known):
        if name:
            nodes.add_node(name)
    asked = [*known, *others]
    random.shuffle(asked)
    text = json.dumps(asked, separators=(",", ":")).encode()
    cut = cut_names(text)
    if not asked:
        assert cut is None
        return
    assert cut is not None
    assert NameIndex(nodes.index).rows(cut).tolist() == [nodes.rows.get(name, -1) for name in asked]
    assert [json.loads(cut.quoted(position)) for position in range(len(asked))] == asked


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_only_plain_lists_are_cut(text: bytes) -> None:
    check_cut(text)


@given(st.lists(st.sampled_from([b'"', b",", b"a", b"[", b"]", b" ", b"\\", b"\n", b"bc"]), max_size=14))
def test_only_plain_lists_are_cut_near_misses(parts: Sequence[bytes]) -> None:
    check_cut(b"".join(parts))
    check_cut(b'["' + b"".join(parts) + b'"]')


def check_cut(text: bytes) -> None:
    cut = cut_names(text)
    if cut is None:
        return
    decoded = json.loads(text)
    assert decoded
    assert [json.loads(cut.quoted(position)) for position in range(len(cut.starts))] == decoded


RESOURCES = ("example.com/a", "example.com/b")


@st.composite
def amounts(draw: st.DrawFn) -> Amounts:
    numbers = [draw(st.integers(0, 3)) for _ in range(FIXED)]
    others = tuple((name, amount) for name in RESOURCES if (amount := draw(st.integers(0, 3))))
    return Amounts(*numbers, others)


@given(st.lists(st.tuples(amounts(), amounts()), min_size=1, max_size=20), amounts())
def test_arrays_say_of_amounts_what_kube_scheduler_s_rule_says(
    there: list[tuple[Amounts, Amounts]], asked: Amounts
) -> None:
    nodes = NodeArrays(1, 1)
    nodes.amounts.set_other_resources(RESOURCES)
    for number, (capacity, used) in enumerate(there):
        row = nodes.add_node(f"n{number}")
        nodes.amounts.set_capacity(row, capacity)
        nodes.amounts.set_requested(row, used)
    rows = np.array([nodes.rows[f"n{number}"] for number in range(len(there))], dtype=np.intp)
    expected = [not list(list_shortages(asked, used, capacity)) for capacity, used in there]
    assert nodes.amounts.mask_fits(asked, rows).tolist() == expected
    assert [nodes.amounts.fits(asked, row) for row in rows.tolist()] == expected
    assert [asked.fits_in(capacity.subtract(used)) for capacity, used in there] == expected
    counts = [asked.count_in(capacity.subtract(used)) for capacity, used in there]
    assert [count > 0 for count in counts] == expected
    assert nodes.amounts.count_fits(asked, rows).tolist() == counts
    expected = [not list(list_shortages(asked, NOTHING, capacity)) for capacity, _ in there]
    emptied = nodes.amounts.as_emptied()
    assert emptied.mask_fits(asked, rows).tolist() == expected
    assert [emptied.fits(asked, row) for row in rows.tolist()] == expected
    counts = [asked.count_in(capacity) for capacity, _ in there]
    assert emptied.count_fits(asked, rows).tolist() == counts


@given(amounts(), amounts(), amounts(), st.integers(1, 4))
def test_amounts_are_added_and_taken_off_resource_by_resource(
    one: Amounts, other: Amounts, more: Amounts, times: int
) -> None:
    assert one.add(other) == other.add(one)
    assert one.add(other).add(more) == one.add(other.add(more))
    assert one.add(other, times).subtract(other.add(NOTHING, 1)) == one.add(other, times - 1)
    assert one.subtract(one) == NOTHING
    if one != NOTHING:
        assert one.count_in(NOTHING.add(one, times)) == times
