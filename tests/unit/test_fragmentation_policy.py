from dataclasses import replace

import numpy as np
import pytest

from allocator.policies import CARD_POLICIES
from allocator.pricing import hole_values
from allocator.request import ContainerRequest, PodRequest
from allocator.selector import Selector
from scheduler_plugin.cache.amounts import Amounts
from scheduler_plugin.errors import PolicyError
from scheduler_plugin.scheduling.cluster_policies import ClusterPolicies
from scheduler_plugin.scheduling.placing import score_nodes
from scheduler_plugin.scheduling.policies import make_policy
from scheduler_plugin.scheduling.policies.fragmentation import FragmentationPolicy
from scheduler_plugin.scheduling.policies.fragmentation_scores import FragmentationScores
from scheduler_plugin.scheduling.policies.fragmentation_states import TIE_LEVELS, NodeStates
from scheduler_plugin.scheduling.policies.fragmentation_workload import (
    MAX_COUNTED,
    MAX_SHAPES,
    TypicalWorkload,
)
from scheduler_plugin.scheduling.policies.registry import CardDemand, PolicyRequest
from tests.other_policies import offered
from tests.policy_view import ask, place, rows_of, view

FREE = 1 << 40


def frag(*asks):
    return FragmentationPolicy(TypicalWorkload.from_pods(asks))


def one(units, cpu=0, memory=0, **more):
    return ask(cpu, memory, (units, 1), card_policy="fragmentation", **more)


def cluster(**cards):
    """Nodes with ample cpu and memory and cards of 100 units, used as given."""
    return view({name: (10**6, FREE, [100] * len(used), 0, 0, used) for name, used in cards.items()})


def hole_costs(size, weights):
    """F + 0.5 C + 3 S + 20 W of each rest of one card, as docs/policies/fragmentation.md has them."""
    values, total, costs = hole_values(size, weights), sum(weights.values()), [0.0]
    for free in range(1, size + 1):
        cost = 20 * (free - size * values[free])
        for units, weight in weights.items():
            left, unfit = free % units, free if free < units else 0
            cost += weight / total * (unfit + left / 2 + 3 * free * (left / free) ** 6)
        costs.append(cost)
    return costs


def test_cost_by_hand():
    # Demands of 50 and of 100, half and half; V(f) is 0, 1/2 from 50 on, 1 at 100.
    costs = hole_costs(100, {50: 1, 100: 1})
    assert costs[0] == 0
    assert costs[100] == pytest.approx(0)
    # 50 free: fits 50 exactly; for 100 all of it is fragment: (50 + .5*50 + 3*50) / 2.
    assert costs[50] == pytest.approx(112.5)
    # 30 free: nothing fits: 30 + 15 + 90 for both, 20 * 30 lost.
    assert costs[30] == pytest.approx(135 + 600)


def test_one_card_nodes_are_worth_their_hole():
    demands = {81: 10, 47: 7, 32: 3, 65: 3}
    workload = TypicalWorkload()
    for units, count in demands.items():
        workload.add(one(units), count)
    used = [[0], [10], [35], [53], [81], [100]]
    arrays = cluster(**{f"n{i}": cards for i, cards in enumerate(used)})
    costs = hole_costs(100, demands)
    expected = [costs[100 - cards[0]] for cards in used]
    assert FragmentationPolicy(workload).value(arrays, rows_of(arrays)) == pytest.approx(expected)


def test_value_by_hand():
    # One shape: two whole cards, 4 cpu; half of the pods ask for no GPU.
    policy = frag(ask(4000, 10, (100, 2)), ask(1000, 0))
    nodes = {
        "a": (8000, FREE, [100] * 4, 0, 0, [0, 0, 0, 0]),  # two fit: nothing is lost
        "b": (4000, FREE, [100] * 4, 0, 0, [0, 0, 0, 0]),  # cpu for one: C = 200
        "c": (8000, FREE, [100] * 4, 0, 0, [0, 0, 0, 100]),  # one fits: F = 0, C = 100
        "d": (8000, FREE, [100] * 4, 0, 0, [0, 50, 100, 100]),  # none fits: all of 150
        "e": (8000, 9, [100] * 2, 0, 0, [0, 0]),  # no host memory
        "f": (8000, FREE, [100] * 3, 0, 0, [0, 0, 50]),  # one fits, beside a rest of 50
    }
    arrays = view(nodes)

    def expected(free, fragment, left):
        return 0.5 * (fragment + 0.5 * left + 3 * free * (left / free) ** 6)

    # No demand for one card: every unit of a rest is worth the same, W = 0.
    wanted = [(400, 0, 0), (400, 0, 200), (300, 0, 100), (150, 150, 150), (200, 200, 200), (250, 50, 50)]
    assert policy.value(arrays, rows_of(arrays)) == pytest.approx([expected(*each) for each in wanted])


def test_wrong_models_are_fragment():
    shape = one(50, selector=Selector(models=("b*",)))
    arrays = cluster(n=[0, 0])
    assert frag(shape).value(arrays, rows_of(arrays)) == pytest.approx([200 + 100 + 600])
    mixed = view({"n": (0, 0, [100, 100], 0, 0, [0, 0])})
    mixed.set_cards(mixed.rows["n"], [100, 100], [0, 0], models=["A", "B"])
    # The card of the other model is lost: F counts it, C too.
    assert frag(shape).value(mixed, rows_of(mixed)) == pytest.approx([100 + 50 + 3 * 200 / 2**6])


def test_scores_are_the_increase_of_the_best_card():
    policy = frag(one(81), one(47), one(47), one(32), one(65))
    arrays = cluster(a=[47, 65, 0], b=[0, 0, 0])
    rows = rows_of(arrays)
    before = policy.value(arrays, rows)
    pod = one(32)
    scores = policy.score(arrays, pod, rows)
    assert policy.choose_cards(arrays, pod, int(rows[0])) == ((1,),)
    for number in range(2):
        again = cluster(a=[47, 65, 0], b=[0, 0, 0])
        row = int(rows_of(again)[number])
        chosen = policy.choose_cards(again, pod, row)
        place(again, row, chosen, pod)
        increase = policy.value(again, rows_of(again))[number] - before[number]
        assert scores[number] // TIE_LEVELS**2 == pytest.approx(round(increase * 1e6), abs=1)


def test_ties_go_to_less_free_gpu_then_less_free_cpu():
    nodes = {
        "a": (8000, FREE, [100, 100], 0, 0, [0, 0]),
        "b": (8000, FREE, [100, 100], 0, 0, [0, 100]),
        "c": (8000, FREE, [100, 100], 4000, 0, [0, 100]),
    }
    arrays = view(nodes)
    scores = frag(one(100)).score(arrays, one(100), rows_of(arrays))
    assert scores.argsort().tolist() == [2, 1, 0]


@pytest.mark.parametrize(("policy", "card"), [("least-used", 2), ("most-used", 0), ("fragmentation", 1)])
def test_the_score_is_that_of_the_cards_the_card_policy_takes(policy, card):
    ranked = frag(one(100), one(47), one(32), one(65))
    arrays = cluster(a=[47, 19, 0])
    pod = ask(0, 0, (32, 1), card_policy=policy)
    rows = rows_of(arrays)
    assert ranked.choose_cards(arrays, pod, int(rows[0])) == ((card,),)
    before = ranked.value(arrays, rows)
    score = ranked.score(arrays, pod, rows)[0] // TIE_LEVELS**2
    place(arrays, int(rows[0]), ((card,),), pod)
    assert score == pytest.approx((ranked.value(arrays, rows) - before)[0] * 1e6, abs=1)


class Costs:
    """A card policy that knows nothing of arrays."""

    def __init__(self, costs):
        self.costs = costs


@pytest.mark.parametrize("card", [0, 1, 2])
def test_a_card_policy_that_tells_for_one_node_only(card):
    ranked = frag(one(100), one(47), one(32), one(65))
    arrays = cluster(a=[47, 19, 0])
    pod = ask(0, 0, (32, 1), card_policy="own")
    rows = rows_of(arrays)
    by_uuid = Costs(lambda cards, _: [each.uuid != f"a-{card}" for each in cards])
    with offered(CARD_POLICIES, own=lambda _: by_uuid):
        assert ranked.choose_cards(arrays, pod, int(rows[0])) == ((card,),)
        before = ranked.value(arrays, rows)
        score = ranked.score(arrays, pod, rows)[0] // TIE_LEVELS**2
        place(arrays, int(rows[0]), ((card,),), pod)
    assert score == pytest.approx((ranked.value(arrays, rows) - before)[0] * 1e6, abs=1)


@pytest.mark.parametrize("policy", ["least-used", "most-used"])
@pytest.mark.parametrize("demands", [((30, 1),), ((30, 2),), ((30, 2), (40, 1)), ((101, 1),), ()])
def test_costs_alone_rank_as_costs_for_arrays_do(policy, demands):
    random = np.random.default_rng(1)
    arrays = cluster(**{f"n{i:02}": random.integers(0, 101, 4).tolist() for i in range(40)})
    rows = rows_of(arrays)
    ranked = frag(one(100), one(47), one(32), one(65))
    expected = ranked.score(arrays, ask(0, 0, *demands, card_policy=policy), rows)
    with offered(CARD_POLICIES, own=lambda _: Costs(CARD_POLICIES.made(policy).costs)):
        found = ranked.score(arrays, ask(0, 0, *demands, card_policy="own"), rows)
    assert found.tolist() == expected.tolist()
    assert np.isfinite(expected).any() == (demands != ((101, 1),))


def test_several_cards_and_demands():
    policy = frag(one(100), one(50))
    arrays = cluster(a=[0, 50, 0, 50], b=[0, 0, 0, 100])
    a, b = (arrays.rows[name] for name in "ab")
    pair = ask(0, 0, (50, 2), card_policy="fragmentation")
    assert sorted(policy.choose_cards(arrays, pair, a)[0]) == [1, 3]
    three = ask(0, 0, (50, 1), (60, 1), (50, 1), card_policy="fragmentation")
    chosen = policy.choose_cards(arrays, three, a)
    assert [len(cards) for cards in chosen] == [1, 1, 1]
    assert chosen[0] != chosen[2]
    too_many = ask(0, 0, (60, 4), card_policy="fragmentation")
    assert policy.choose_cards(arrays, too_many, b) is None
    assert policy.score(arrays, too_many, np.array([b]))[0] == np.inf


def test_pods_without_gpu_are_scored_by_what_their_cpu_strands():
    policy = frag(one(100, cpu=4000))
    nodes = {"a": (4000, FREE, [100], 0, 0, [0]), "b": (8000, FREE, [100], 0, 0, [0])}
    arrays = view(nodes)
    scores = policy.score(arrays, ask(1000, 0, card_policy="fragmentation"), rows_of(arrays))
    assert scores.argmin() == 1


def test_model_selectors_choose_among_cards():
    arrays = view({"n": (0, 0, [100, 100], 0, 0, [0, 0])})
    row = arrays.rows["n"]
    arrays.set_cards(row, [100, 100], [0, 50], models=["A", "B"], uuids=["u0", "u1"])
    pod = one(50, selector=Selector(models=("a",)), admits=np.array([[True, False]]))
    policy = frag(one(50))
    assert policy.choose_cards(arrays, pod, row) == ((0,),)
    assert np.isfinite(policy.score(arrays, pod, np.array([row]))[0])


def test_uuid_selectors_are_exact():
    arrays = cluster(a=[0, 50, 0], b=[0, 0, 50])
    a, b = (arrays.rows[name] for name in "ab")
    admits = np.zeros(arrays.size.shape, dtype=bool)
    admits[a, 2] = True
    pod = one(50, selector=Selector(uuids=("a-2",)), admits=admits)
    policy = frag(one(50))
    assert policy.choose_cards(arrays, pod, a) == ((2,),)
    assert np.isfinite(policy.score(arrays, pod, np.array([a, b]))).tolist() == [True, False]


def test_scores_follow_versions_and_equal_nodes_share_them():
    arrays = cluster(a=[0, 0], b=[0, 0])
    policy = frag(one(50), one(100))
    rows = rows_of(arrays)
    pod = one(50)
    first = policy.score(arrays, pod, rows)
    assert first[0] == first[1]
    place(arrays, int(rows[1]), ((0,),), pod)
    second = policy.score(arrays, pod, rows)
    assert second[0] == first[0]
    assert second[1] < first[1]
    # A card that turns bad is used in full.
    arrays.set_cards(int(rows[1]), [100, 100], [100, 100])
    assert policy.score(arrays, pod, rows)[1] == np.inf


def test_nodes_that_are_alike_are_read_once(monkeypatch):
    """All nodes are looked at anew whenever pods of another shape come."""
    read = []
    number = NodeStates._number

    def count(states, view, row, *left):
        read.append(row)
        return number(states, view, row, *left)

    monkeypatch.setattr(NodeStates, "_number", count)
    arrays = cluster(**{f"n{at}": [0, 30 * (at % 2)] for at in range(8)})
    rows = rows_of(arrays)
    scores = frag(one(50), one(100)).score(arrays, one(50), rows)
    assert len(read) == 2
    assert len(set(scores[::2].tolist())) == len(set(scores[1::2].tolist())) == 1
    assert scores[0] != scores[1]


@pytest.mark.parametrize("percents", [(0,), (0, 20, 40)])
def test_incremental_equals_fresh(percents):
    rng = np.random.default_rng(7)
    workload = TypicalWorkload.from_pods(
        [one(81, 4000, 4), one(47, 6000, 8), one(32, 2000, 2), one(100, 8000, 16), ask(1, 1)]
    )
    arrays = view({f"n{i:02}": (64_000, 64, [100] * 4, 0, 0, [0] * 4) for i in range(20)})
    rows = rows_of(arrays)
    lasting = FragmentationPolicy(workload)
    pods = [one(81, 4000, 2), one(47, 6000, 2), one(32, 2000, 2), one(100, 8000, 2), one(10, 500, 2)]
    for _ in range(120):
        pod = pods[rng.integers(len(pods))]
        percent = percents[rng.integers(len(percents))]
        if percent:
            demands = (pod.demands[0]._replace(compute=percent),)
            pod = replace(pod, demands=demands, admits=arrays.compute_free >= percent)
        able = arrays.free >= pod.demands[0].units
        able &= True if pod.admits is None else pod.admits
        fitting = rows[able[rows].any(axis=1)]
        if not fitting.size:
            continue
        scores = lasting.score(arrays, pod, fitting)
        assert scores.tolist() == FragmentationPolicy(workload).score(arrays, pod, fitting).tolist()
        row = int(fitting[scores.argmin()])
        chosen = lasting.choose_cards(arrays, pod, row)
        assert chosen == FragmentationPolicy(workload).choose_cards(arrays, pod, row)
        assert able[row, chosen[0][0]]
        place(arrays, row, chosen, pod)


def test_a_share_is_scored_by_the_card_that_it_gets_and_as_many_units_by_any():
    """On a node with cards of two sizes half of the small one has as many units as the large one has free."""
    arrays = view({"n": (10**6, FREE, [50, 100], 0, 0, [0, 75])})
    rows, policies = rows_of(arrays), ClusterPolicies()
    workload = TypicalWorkload.from_pods([one(100), one(50)])

    def score(policy, percent, compute):
        container = ContainerRequest("main", 50 if percent else 25, "main", compute)
        request = PodRequest((container,), percent=percent)
        query = policies.make_request(arrays, request, Amounts(1))
        (found,) = score_nodes(policy, arrays, query, rows)
        return found

    shared, free = (score(FragmentationPolicy(workload), percent, 30) for percent in (True, False))
    assert shared != free
    for compute in (0, 30):
        for first in (True, False):
            lasting = FragmentationPolicy(workload)
            found = {percent: score(lasting, percent, compute) for percent in (first, not first)}
            assert found == {True: shared, False: free}


def test_states_are_forgotten_when_there_are_too_many(monkeypatch):
    monkeypatch.setattr("scheduler_plugin.scheduling.policies.fragmentation_states._SPARE", 0)
    arrays = cluster(a=[0])
    row = arrays.rows["a"]
    policy = frag(one(50))
    seen = set()
    for memory in range(200):
        arrays.amounts.set_requested(row, Amounts(memory_bytes=memory))
        seen.add(float(policy.score(arrays, one(50), np.array([row]))[0]))
    assert len(seen) == 1


def test_rows_and_cards_may_grow():
    arrays = cluster(a=[0])
    policy = frag(one(50))
    pod = one(50)
    before = policy.score(arrays, pod, rows_of(arrays))
    arrays.set_cards(arrays.add_node("wide"), [100] * 20, [0] * 20)
    for number in range(70):
        arrays.set_cards(arrays.add_node(f"n{number:02}"), [100], [0])
    scores = policy.score(arrays, pod, rows_of(arrays))
    assert scores[0] // TIE_LEVELS**2 == before[0] // TIE_LEVELS**2
    assert len(policy.choose_cards(arrays, ask(0, 0, (100, 20)), arrays.rows["wide"])[0]) == 20


def test_it_learns_from_pods_bound_and_pending_each_once():
    arrays = cluster(a=[0, 0])
    rows = rows_of(arrays)
    policy = make_policy("fragmentation")
    policy.score(arrays, one(50), rows)
    assert policy.epoch == 0
    for number in range(7):
        policy.pod_resolved(f"p{number}", one(70))
        policy.pod_resolved(f"p{number}", None)
        policy.pending(f"p{number}", arrays, one(70), rows)
    assert policy.epoch == 0
    policy.pending("p7", arrays, one(70), rows)
    assert policy.epoch == 1
    # Only 70s are asked for, and what else may come: (16 / (16 + 8))^2 of it.
    known = FragmentationScores(TypicalWorkload.from_pods([one(70)] * 8), 4 / 9)
    known.follow(arrays)
    assert policy.value(arrays, rows) == pytest.approx(known.value(rows))
    for number in range(8, 200):
        policy.pod_resolved(f"p{number}", one(70))
    # Nothing new: the scores are kept.
    learned = policy.epoch
    for number in range(200, 1000):
        policy.pod_resolved(f"p{number}", one(70))
    assert policy.epoch == learned
    for number in range(1000, 1600):
        policy.pod_resolved(f"p{number}", one(30))
    assert policy.epoch > learned


def test_pods_without_gpu_teach_nothing():
    policy = make_policy("fragmentation")
    for number in range(20):
        policy.pod_resolved(str(number), ask(1000, 0))
    assert policy.epoch == 0


def test_a_given_workload_is_kept():
    policy = frag(one(50))
    for number in range(20):
        policy.pod_resolved(str(number), one(70))
    assert policy.epoch == 0


def test_remembered_pods_are_limited(monkeypatch):
    monkeypatch.setattr("scheduler_plugin.scheduling.policies.fragmentation._PODS", 4)
    policy = make_policy("fragmentation")
    for number in range(6):
        policy.pod_resolved(str(number), one(70))
    policy.pod_resolved("5", one(70))
    policy.pod_resolved("0", one(70))
    policy.pod_resolved("7", one(70))
    assert policy.epoch == 1


def test_rare_shapes_are_left_out_and_order_does_not_matter():
    asks = [PolicyRequest(Amounts(1, cpu), (CardDemand(10, 1),)) for cpu in range(MAX_SHAPES + 5)]
    workload = TypicalWorkload.from_pods([*asks, asks[-1]])
    kept = workload.shares()
    assert len(kept) == MAX_SHAPES
    assert max(share.popularity for share in kept) == 2 / (MAX_SHAPES + 6)
    assert kept == TypicalWorkload.from_pods([asks[-1], *reversed(asks)]).shares()


def test_demands_of_one_pod_share_its_cpu():
    (first, second) = TypicalWorkload.from_pods([ask(4000, 100, (10, 1), (20, 2))]).shares()
    assert (first.shape.cpu_milli, first.memory_bytes, second.shape.cards) == (2000, 50, 2)


def write(tmp_path, text):
    path = tmp_path / "workload.csv"
    path.write_text(text)
    return str(path)


def test_shapes_that_were_seen_once_are_forgotten_where_there_are_too_many():
    workload = TypicalWorkload.from_pods([one(50)] * 3)
    before = workload.shares()[0]
    for number in range(MAX_COUNTED):
        workload.add(one(60, number + 1))
    assert len(workload.popularity()) == MAX_SHAPES
    (kept,) = [share for share in workload.shares() if share.shape == before.shape]
    assert (workload.total, kept.popularity) == (MAX_COUNTED + 3, 3 / (MAX_COUNTED + 3))


def test_workload_from_a_file(tmp_path):
    path = write(
        tmp_path,
        "cpu_milli,memory_mib,cards,units,gpu_model,count\n4000,1,1,50,,3\n0,0,0,0,,\n8000,2,2,100,B*,1\n2,3,1,40,,0\n",
    )
    policy = make_policy("fragmentation", {"workload": path})
    workload = TypicalWorkload()
    workload.add(one(50, 4000, 1 << 20), 3)
    workload.add(ask(0, 0))
    workload.add(ask(8000, 2 << 20, (100, 2), selector=Selector.parse("B*", None)))
    arrays = cluster(a=[0, 0])
    assert policy.value(arrays, rows_of(arrays)) == pytest.approx(
        FragmentationPolicy(workload).value(arrays, rows_of(arrays))
    )


HEAD = "cpu_milli,memory_mib,cards,units\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cpu_milli,memory_mib\n", "workload.csv:1: column cards is missing"),
        ("", "workload.csv:1: column cpu_milli is missing"),
        (HEAD, "no pod in it asks for a GPU"),
        ("count," + HEAD + "0,1,1,1,5\n", "no pod in it asks for a GPU"),
        (HEAD + "1,1,1,x\n", "workload.csv:2: units is 'x'; allowed: a whole number"),
        (HEAD + "1,1,1\n", "workload.csv:2: units is None"),
        (HEAD + "-1,1,1,5\n", "cpu_milli is '-1'"),
        (HEAD + "1,1,0,5\n", "cards 0 with units 5"),
        ("gpu_model," + HEAD + "!,1,1,1,5\n", "workload.csv:2: annotation"),
    ],
)
def test_bad_workload_files(tmp_path, text, message):
    with pytest.raises(PolicyError, match=message):
        make_policy("fragmentation", {"workload": write(tmp_path, text)})


def test_missing_workload_file():
    with pytest.raises(PolicyError, match="workload file /nowhere"):
        make_policy("fragmentation", {"workload": "/nowhere"})


def test_unknown_parameter():
    with pytest.raises(PolicyError, match='parameter "weight" does not exist; allowed: workload'):
        make_policy("fragmentation", {"weight": "1"})


def test_remembered_scores_are_limited(monkeypatch):
    monkeypatch.setattr("scheduler_plugin.scheduling.policies.fragmentation_scores._ENTRIES", 1)
    arrays = cluster(a=[0], b=[50])
    policy = frag(one(50))
    first = policy.score(arrays, one(50), rows_of(arrays)).tolist()
    policy.score(arrays, one(40), rows_of(arrays))
    assert policy.score(arrays, one(50), rows_of(arrays)).tolist() == first


def test_more_kinds_of_cards_than_the_table_begins_with():
    arrays = cluster(**{f"n{used:03}": [used] for used in range(100)})
    policy = frag(one(10))
    values = policy.value(arrays, rows_of(arrays))
    assert values[0] == values[10] == pytest.approx(0, abs=1e-9)
    assert values[99] == pytest.approx(1 + 0.5 + 3 + 20)


@pytest.mark.parametrize("compute", [0, 10])
def test_the_largest_demand_goes_first_where_the_pods_own_order_leaves_it_no_card(compute, monkeypatch):
    """To search each node by itself takes too long on many."""
    arrays = view({"n": (64_000, 64, [100, 100], 0, 0, [20, 60])})
    searched = []
    monkeypatch.setattr(FragmentationScores, "by_cards", lambda *_: searched.append(1) or np.array([0.0]))
    demands = (CardDemand(30, 1, compute), CardDemand(60, 1, compute))
    pod = PolicyRequest(Amounts(1), demands, arrays.compute_free >= compute, card_policy="fragmentation")
    # For pods of 40 the first demand belongs on the emptier card, where the second would have had room.
    assert frag(one(40)).score(arrays, pod, rows_of(arrays))[0] < np.inf
    assert not searched
