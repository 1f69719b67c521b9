import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.request import ContainerRequest, PodRequest
from scheduler_plugin.cache.amounts import Amounts
from scheduler_plugin.cache.cards import build_cards
from scheduler_plugin.cache.node_arrays import NodeArrays
from scheduler_plugin.errors import PolicyError
from scheduler_plugin.scheduling.placing import score_nodes
from scheduler_plugin.scheduling.policies import make_policy
from scheduler_plugin.scheduling.policies.best_fit import SKIPPED, BestFit, BestFitSettings
from scheduler_plugin.scheduling.policies.fractions import CPU, GPU, MEMORY
from scheduler_plugin.scheduling.policies.registry import CardDemand
from scheduler_plugin.scheduling.policies.remaining import (
    NO_SET,
    compute_tighter,
    compute_tightest,
    find_dominant_class,
)
from scheduler_plugin.scheduling.request import SchedulingRequest
from tests.examples import examples
from tests.policy_view import ask, mask_fitting, place, rows_of, view

ABC = {
    "a": (40_000, 100 << 30, [16] * 4, 10_000, 20 << 30, [8, 8, 0, 0]),
    "b": (40_000, 100 << 30, [16] * 4, 4_000, 10 << 30, [8, 8, 8, 4]),
    "c": (40_000, 100 << 30, [16] * 4, 16_000, 40 << 30, [12] * 4),
}
REQUEST = ask(4_000, 10 << 30, (4, 1))


def pick(policy, arrays, wanted):
    return policy.pick(arrays, wanted, mask_fitting(arrays, wanted))


def winner(arrays, scores, rows):
    best = np.lexsort((arrays.name_rank[rows], scores))[0]
    return arrays.names[int(rows[best])]


@pytest.mark.parametrize("mode", ["pick", "candidates"])
def test_golden_of_the_plain_scores(mode):
    arrays = view(ABC)
    rows = rows_of(arrays)
    scores = make_policy("best-fit", {"mode": mode}).score(arrays, REQUEST, rows)
    assert winner(arrays, scores, rows) == "c"


@pytest.mark.parametrize("mode", ["pick", "candidates"])
@pytest.mark.parametrize(("compute", "expected"), [(0, "a"), (30, "b")])
def test_golden_of_the_tighter_of_memory_and_compute(mode, compute, expected):
    arrays = view(
        {
            "a": (0, 0, [16], 0, 0, [8], [20]),
            "b": (0, 0, [16], 0, 0, [0], [70]),
            "c": (0, 0, [16], 0, 0, [4], [0]),
        }
    )
    policy = make_policy("best-fit", {"mode": mode})
    request = PodRequest((ContainerRequest("main", 4, "main", compute),))
    query = SchedulingRequest(request, ask(0, 0, (4, 1, compute)))
    rows = rows_of(arrays)
    assert winner(arrays, score_nodes(policy, arrays, query, rows), rows) == expected


@given(
    cards=st.lists(
        st.tuples(st.integers(1, 20), st.integers(0, 20), st.integers(0, 120)), min_size=1, max_size=6
    ),
    units=st.integers(1, 20),
    limit=st.sampled_from((0, 100, 150)),
)
def test_the_tighter_number_of_arrays_is_that_of_cards(cards, units, limit):
    arrays = NodeArrays()
    row = arrays.add_node("n")
    arrays.set_cards(
        row,
        [size for size, *_ in cards],
        [min(size, used) for size, used, _ in cards],
        compute_limit=limit,
        compute_used=[compute for *_, compute in cards],
    )
    found = compute_tighter(arrays, CardDemand(units, 1, 10), np.array([row], dtype=np.intp))
    expected = [card.by_tighter_number(units).free_units for card in build_cards(arrays, row)]
    assert found[0, : len(cards)].tolist() == expected


@pytest.mark.parametrize(
    ("asked", "expected"),
    [((8, 16, 20), GPU), ((16, 64, 8), CPU), ((4, 128, 20), MEMORY), ((0, 0, 0), GPU)],
)
def test_dominant_class(asked, expected):
    totals = {CPU: 256, MEMORY: 1024, GPU: 320}
    assert find_dominant_class(dict(zip((CPU, MEMORY, GPU), asked, strict=True)), totals) == expected


def test_dominant_class_leaves_out_what_nobody_has():
    assert find_dominant_class({GPU: 0, CPU: 1, MEMORY: 9}, {GPU: 0, CPU: 10, MEMORY: 0}) == CPU
    assert (
        find_dominant_class({GPU: 3, CPU: 3, MEMORY: 3}, {GPU: 9, CPU: 9, MEMORY: 9}, (MEMORY, CPU, GPU))
        == MEMORY
    )


def test_pick_names_one_node_and_holds_the_rest():
    arrays = view(ABC)
    rows = rows_of(arrays)
    policy = make_policy("best-fit", {"mode": "pick"})
    scores = policy.score(arrays, REQUEST, rows)
    assert np.isfinite(scores).tolist() == [False, False, True]
    # Not among the candidates: the next best.
    assert make_policy("best-fit", {"mode": "pick"}).score(arrays, REQUEST, rows[:2])[1] == np.inf


def test_remaining_is_of_the_card_that_would_be_used():
    arrays = view({"a": (0, 0, [16] * 4, 0, 0, [0, 16, 16, 16]), "b": (0, 0, [16] * 4, 0, 0, [4, 4, 4, 4])})
    rows = rows_of(arrays)
    policy = make_policy("best-fit", {"mode": "pick"})
    assert arrays.names[pick(policy, arrays, ask(0, 0, (10, 1))).key] == "b"
    assert pick(policy, arrays, ask(0, 0, (13, 1))).key == rows[0]
    assert pick(policy, arrays, ask(0, 0, (4, 2))).key == rows[1]
    assert pick(policy, arrays, ask(0, 0, (13, 2))).key is None
    assert pick(policy, arrays, ask(0, 0, (1, 9))).key is None


def test_the_index_follows_changes():
    arrays = view({"a": (100_000, 0, [16], 0, 0, [0]), "b": (100_000, 0, [16], 0, 0, [8])})
    policy = BestFit(BestFitSettings(mode="pick"))
    eight = ask(1000, 0, (8, 1))
    picked = pick(policy, arrays, eight).key
    assert arrays.names[picked] == "b"
    place(arrays, picked, ((0,),), eight)
    assert arrays.names[pick(policy, arrays, eight).key] == "a"
    arrays.remove_node("a")
    assert pick(policy, arrays, eight).key is None
    for number in range(40):
        row = arrays.add_node(f"c{number}")
        arrays.amounts.set_capacity(row, Amounts(cpu_milli=100_000))
        arrays.set_cards(row, [16], [0])
    assert arrays.names[pick(policy, arrays, eight).key] == "c0"


def test_other_classes_must_fit():
    nodes = {"a": (1000, 9 << 30, [16], 0, 0, [8]), "b": (9000, 1 << 30, [16], 0, 0, [8])}
    nodes["c"] = (9000, 9 << 30, [16], 0, 0, [0])
    arrays = view(nodes)
    found = pick(BestFit(BestFitSettings(mode="pick")), arrays, ask(2000, 2 << 30, (8, 1)))
    assert arrays.names[found.key] == "c"


def test_host_memory_must_fit():
    arrays = view({"a": (9000, 1 << 30, [16], 0, 0, [8]), "b": (9000, 9 << 30, [16], 0, 0, [0])})
    found = pick(BestFit(BestFitSettings(mode="pick")), arrays, ask(2000, 2 << 30, (8, 1)))
    assert arrays.names[found.key] == "b"


def test_cards_must_fit_when_another_class_dominates():
    arrays = view({"a": (2000, 0, [16], 0, 0, [12]), "b": (9000, 0, [16, 16], 0, 0, [0, 0])})
    found = pick(BestFit(BestFitSettings(mode="pick")), arrays, ask(2000, 0, (8, 1)))
    assert arrays.names[found.key] == "b"
    admits = np.zeros(arrays.size.shape, dtype=bool)
    assert (
        pick(BestFit(BestFitSettings(mode="pick")), arrays, ask(2000, 0, (8, 1), admits=admits)).key is None
    )


def test_cpu_and_memory_can_dominate():
    nodes = {"a": (8000, 64 << 30, [16], 0, 0, [0]), "b": (16_000, 32 << 30, [16], 0, 0, [0])}
    arrays = view(nodes)
    rows = rows_of(arrays)
    for mode in ("pick", "candidates"):
        policy = make_policy("best-fit", {"mode": mode})
        assert winner(arrays, policy.score(arrays, ask(6000, 0), rows), rows) == "a"
        assert winner(arrays, policy.score(arrays, ask(0, 20 << 30), rows), rows) == "b"


def test_a_node_with_less_than_a_core_left_is_in_the_index():
    """The processor is what the pod takes the largest part of."""
    arrays = view({"n1": (4000, 0, [16] * 8, 3200, 0, [0] * 8)})
    assert pick(make_policy("best-fit", {"mode": "pick"}), arrays, ask(500, 0, (1, 1))).key == 0


def test_selectors_limit_the_cards():
    arrays = view({"a": (0, 0, [16, 16], 0, 0, [0, 8]), "b": (0, 0, [16, 16], 0, 0, [0, 0])})
    admits = np.zeros(arrays.size.shape, dtype=bool)
    a, b = (arrays.rows[name] for name in "ab")
    admits[a, 1] = admits[b, 0] = True
    wanted = ask(0, 0, (6, 1), admits=admits)
    scores = make_policy("best-fit").score(arrays, wanted, np.array([a, b]))
    assert scores[0] < scores[1]
    assert pick(make_policy("best-fit", {"mode": "pick"}), arrays, ask(0, 0, (9, 1), admits=admits)).key == b


def test_given_widths_and_bounds():
    arrays = view({"a": (4000, 0, [16], 0, 0, [0]), "b": (64_000, 0, [16], 0, 0, [4])})
    narrow = make_policy("best-fit", {"mode": "pick", "width-gpu-memory": "4", "buckets": "3"})
    assert pick(narrow, arrays, ask(0, 0, (6, 1))).probes == (2, 3)
    given = make_policy(
        "best-fit", {"mode": "pick", "bounds-gpu-memory": "1,6,14", "limit": "1", "fallback": "largest"}
    )
    assert pick(given, arrays, ask(0, 0, (2, 1))).probes == (1, 3)
    cores = make_policy(
        "best-fit", {"mode": "pick", "bounds-cpu": "1,8", "lower": "1", "order": "cpu,memory,gpu-memory"}
    )
    assert pick(cores, arrays, ask(2000, 0)).probes == (1,)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"mode": "best"}, "mode is 'best'; allowed: candidates, pick"),
        ({"fallback": "x"}, "fallback is 'x'"),
        ({"buckets": "0"}, "buckets is 0; allowed: 1 to 65536"),
        ({"buckets": "99999999999", "width-cpu": "1"}, "buckets is 99999999999; allowed: 1 to 65536"),
        ({"limit": "0"}, "limit is 0; allowed: 1 or more"),
        ({"limit": "-1"}, "limit is '-1'; allowed: a whole number from 0"),
        ({"width-cpu": "0"}, "32 buckets of width 0"),
        ({"width-gpu": "1"}, 'parameter "width-gpu" does not exist; allowed: mode, .*width-gpu-memory'),
        ({"bounds-cpu": "4,2"}, r"bucket bounds \[4, 2\]"),
        ({"order": "cpu"}, "order is cpu; allowed: each of gpu-memory, cpu, memory once"),
        ({"outermost": "wide"}, "outermost is 'wide'; allowed: open, closed"),
        ({"outermost": "closed"}, "outermost is closed with mode candidates; allowed: mode pick"),
        ({"mode": "pick", "outermost": "closed", "bounds-cpu": "4"}, r"bucket bounds \[4\]; allowed"),
        ({"colour": "red"}, 'parameter "colour" does not exist'),
    ],
)
def test_bad_parameters(parameters, message):
    with pytest.raises(PolicyError, match=message):
        make_policy("best-fit", parameters)


def test_a_negative_bound_is_refused():
    with pytest.raises(PolicyError, match="lower is -1"):
        BestFitSettings(lower=-1)


GOLDEN = [
    # Free units of the cards by node, selectors by (node, card) or None, units, cards -> node.
    ({"a": [16, 2], "b": [3, 3]}, None, 2, 1, "a"),
    ({"a": [16, 2], "b": [3, 3]}, None, 3, 1, "b"),
    ({"a": [16, 2], "b": [3, 3]}, None, 4, 1, "a"),
    ({"a": [16, 16, 4, 4], "b": [5, 5, 0, 0]}, None, 4, 2, "a"),
    ({"a": [16, 4], "b": [6, 6]}, None, 4, 2, "b"),
    ({"a": [8, 0], "b": [3, 16]}, {("a", 0), ("b", 0)}, 2, 1, "b"),
    ({"a": [8, 3], "b": [16, 3]}, {("a", 0), ("b", 0)}, 2, 1, "a"),
]


@pytest.mark.parametrize("mode", ["pick", "candidates"])
@pytest.mark.parametrize(("free", "admitted", "units", "cards", "expected"), GOLDEN)
def test_the_tightest_admitted_set_of_cards(mode, free, admitted, units, cards, expected):
    """The issue's: request 2, free [16, 2] and [3, 3]; the first one's 2 fits exactly."""
    arrays = view({name: (0, 0, [16] * len(cs), 0, 0, [16 - c for c in cs]) for name, cs in free.items()})
    admits = None
    if admitted is not None:
        admits = np.zeros(arrays.size.shape, dtype=bool)
        for name, card in admitted:
            admits[arrays.rows[name], card] = True
    rows = rows_of(arrays)
    scores = make_policy("best-fit", {"mode": mode}).score(
        arrays, ask(0, 0, (units, cards), admits=admits), rows
    )
    assert winner(arrays, scores, rows) == expected


@st.composite
def clusters(draw):
    """Cards free by node, twice: before and after somebody else's changes; and which are admitted."""
    nodes = draw(st.integers(1, 6))
    free = st.lists(st.integers(0, 9), min_size=3, max_size=3)
    drawn = [draw(st.lists(free, min_size=nodes, max_size=nodes)) for _ in range(2)]
    return drawn, draw(st.none() | st.lists(st.booleans(), min_size=nodes * 3, max_size=nodes * 3))


def by_hand(free, admits, units, cards, policy):
    """The method read literally: sums of the tightest sets, in rings; None where nothing fits."""
    items = []
    for row, of in enumerate(free):
        fitting = sorted(
            f for card, f in enumerate(of) if f >= units and (admits is None or admits[row, card])
        )
        if len(fitting) >= cards:
            items.append((sum(fitting[:cards]), row))
    (index,) = policy._indexes.values()
    buckets, limit = index.buckets, policy.settings.limit
    amount = units * cards
    first = max(1, buckets.bucket_of(amount))
    upper = max(first, min(limit or buckets.count, buckets.count))
    near = [item for item in items if first <= buckets.bucket_of(item[0]) <= upper]
    if near:
        return min(near)[1]
    top = max((buckets.bucket_of(left) for left, _ in items), default=0)
    far = [item for item in items if buckets.bucket_of(item[0]) == top > upper]
    if not far:
        return None
    return min(
        far, key=lambda item: (-item[0] if policy.settings.fallback == "largest" else item[0], item[1])
    )[1]


@examples(200)
@given(clusters(), st.integers(1, 9), st.integers(1, 3), st.sampled_from([None, 1, 2]), st.booleans())
def test_index_arrays_and_the_method_agree(drawn, units, cards, limit, largest):
    (before, after), mask = drawn
    arrays = view({f"n{row}": (0, 0, [9] * 3, 0, 0, [9 - f for f in of]) for row, of in enumerate(before)})
    rows = rows_of(arrays)
    admits = None
    if mask is not None:
        admits = np.zeros(arrays.size.shape, dtype=bool)
        admits[rows, :3] = np.array(mask).reshape(-1, 3)
    policy = BestFit(BestFitSettings("pick", 4, limit, fallback="largest" if largest else "closest"))
    wanted = ask(0, 0, (units, cards), admits=admits)
    everything = np.ones(arrays.size.shape, dtype=bool)
    for free in (before, after):
        for row, of in zip(rows, free, strict=True):
            arrays.set_cards(row, [9] * 3, [9 - f for f in of])
        found = pick(policy, arrays, wanted)
        by_row_of = [free[row] for row in range(len(free))]
        expected = by_hand(by_row_of, None if admits is None else admits[rows], units, cards, policy)
        assert found.key == (None if expected is None else rows[expected])
        if admits is None:
            # A selector that admits all goes over arrays, and finds the same in the same buckets.
            same = pick(policy, arrays, ask(0, 0, (units, cards), admits=everything))
            assert (same.key, same.probes) == (found.key, found.probes)


def test_a_search_that_looks_at_too_many_goes_over_arrays():
    """Hundreds of nodes with the tightest cards have no processor left."""
    full = {f"a{number:03}": (1000, 0, [16], 1000, 0, [8]) for number in range(600)}
    arrays = view(full | {"b": (9000, 0, [16], 0, 0, [4])})
    policy = BestFit(BestFitSettings(mode="pick"))
    found = pick(policy, arrays, ask(500, 0, (8, 1)))
    assert (arrays.names[found.key], found.touched) == ("b", 512 + 1)
    rows = rows_of(arrays)
    scores = policy.score(arrays, ask(500, 0, (8, 1)), rows[-1:])
    assert scores.tolist() == [4 / (601 * 16)]


def test_what_the_index_was_given_up_for_goes_over_arrays_for_a_while():
    """Then the index is tried again; of many such requests the newest are remembered."""
    full = {f"a{number:03}": (1000, 0, [16], 1000, 0, [8]) for number in range(600)}
    arrays = view(full | {"b": (9000, 0, [16], 0, 0, [4])})
    policy = BestFit(BestFitSettings(mode="pick"))

    def touched(units):
        return pick(policy, arrays, ask(100, 0, (units, 1))).touched

    assert [touched(8) for _ in range(SKIPPED + 2)] == [512 + 1, *[1] * SKIPPED, 512 + 1]
    assert touched(9) == 1
    policy._skips.most = 1
    assert [touched(units) for units in (8, 7, 8)] == [1, 512 + 1, 512 + 1]


def test_ranks_that_move_reach_the_index():
    """Names between names: a tie goes to the first name, also where its rank was given anew."""
    arrays = view({"a": (0, 0, [16], 0, 0, [8]), "c": (0, 0, [16], 0, 0, [8])})
    policy = BestFit(BestFitSettings(mode="pick"))
    assert arrays.names[pick(policy, arrays, ask(0, 0, (8, 1))).key] == "a"
    for number in range(40):
        arrays.add_node("b" * (40 - number))
    arrays.set_cards(arrays.rows["b"], [16], [8])
    arrays.remove_node("a")
    assert arrays.names[pick(policy, arrays, ask(0, 0, (8, 1))).key] == "b"


@pytest.mark.parametrize("admitted", [False, True], ids=["index", "arrays"])
@pytest.mark.parametrize(
    ("parameters", "units", "expected"),
    [
        ({"width-gpu-memory": "4", "buckets": "2"}, 2, "b"),
        ({"width-gpu-memory": "4", "buckets": "2", "outermost": "closed"}, 2, None),
        ({"width-gpu-memory": "4", "buckets": "3", "outermost": "closed"}, 2, "b"),
        ({"width-gpu-memory": "4", "buckets": "3", "outermost": "closed"}, 13, None),
        ({"bounds-gpu-memory": "1,6,11", "outermost": "closed"}, 2, "b"),
        ({"bounds-gpu-memory": "1,6,10", "outermost": "closed"}, 2, None),
        # M buckets cover the largest card, idle or not.
        ({"outermost": "closed"}, 16, "a"),
    ],
)
def test_a_closed_outermost_ring(parameters, units, expected, admitted):
    """The method's last ring ends at l + M n; ours is open above unless it is told."""
    arrays = view({"a": (0, 0, [16], 0, 0, [0]), "b": (0, 0, [16], 0, 0, [6])})
    admits = np.ones(arrays.size.shape, dtype=bool) if admitted else None
    policy = make_policy("best-fit", {"mode": "pick", **parameters})
    key = pick(policy, arrays, ask(0, 0, (units, 1), admits=admits)).key
    assert (None if key is None else arrays.names[key]) == expected
    arrays.set_cards(arrays.rows["a"], [16], [9])
    assert arrays.names[pick(policy, arrays, ask(0, 0, (2, 1), admits=admits)).key] == "a"


@given(
    free=st.lists(st.lists(st.integers(0, 16), min_size=4, max_size=4), min_size=40, max_size=40),
    demand=st.builds(CardDemand, st.integers(0, 17), st.integers(1, 5)),
    admitted=st.none() | st.lists(st.booleans(), min_size=4, max_size=4),
    asked=st.integers(1, 40),
)
def test_what_the_tightest_set_of_cards_has_free_of_many_nodes_and_of_few(free, demand, admitted, asked):
    arrays = view(
        {f"n{at:02}": (0, 0, [16] * 4, 0, 0, [16 - c for c in cards]) for at, cards in enumerate(free)}
    )
    admits = None
    if admitted is not None:
        admits = np.zeros(arrays.size.shape, dtype=bool)
        admits[:, :4] = admitted
    rows = rows_of(arrays)[:asked]
    expected = []
    for cards in free[:asked]:
        usable = sorted(
            units
            for at, units in enumerate(cards)
            if units >= demand.units and (admitted is None or admitted[at])
        )
        expected.append(sum(usable[: demand.cards]) if len(usable) >= demand.cards else NO_SET)
    assert compute_tightest(arrays, demand, admits, rows).tolist() == expected


@pytest.mark.parametrize("admitted", [False, True], ids=["index", "arrays"])
def test_a_pod_that_asks_for_no_cpu_goes_where_more_is_used_than_there_is(admitted):
    arrays = view({"a": (2000, 1 << 30, [16], 2001, 2 << 30, [8])})
    admits = np.ones_like(arrays.size, dtype=np.bool_) if admitted else None
    policy = make_policy("best-fit", {"mode": "pick"})
    assert pick(policy, arrays, ask(0, 0, (8, 1), admits=admits)).key == arrays.rows["a"]
    assert pick(policy, arrays, ask(1, 0, (8, 1), admits=admits)).key is None
    assert pick(policy, arrays, ask(0, 1, (8, 1), admits=admits)).key is None
