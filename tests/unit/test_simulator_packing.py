import itertools

import pytest

from scheduler_plugin.scheduling.policies import NODE_POLICIES
from scheduler_plugin.scheduling.policies.fragmentation_workload import TypicalWorkload
from scheduler_plugin.scheduling.policies.registry import make_policy
from scheduler_plugin.simulator.bound import compute_unavoidable_waste
from scheduler_plugin.simulator.causes import USABLE, split_free_gpu, sum_fragmented
from scheduler_plugin.simulator.cluster import SimulatedCluster
from scheduler_plugin.simulator.options import WORKLOADS, SimulationOptions
from scheduler_plugin.simulator.packing import MOST_ROUNDS, make_typical_workload, run_packing
from scheduler_plugin.simulator.placer import HELD, make_simulated_policy
from scheduler_plugin.simulator.results import report_packing
from scheduler_plugin.simulator.trace import TraceNode, TracePod
from tests.other_policies import offered

NODES = [
    TraceNode("a", 8000, 64, 2, "T4"),
    TraceNode("b", 8000, 64, 4, "A10"),
    TraceNode("c", 64_000, 64, 0, ""),
]


def pod(milli, cards=1, cpu=100, memory=1, models=()):
    return TracePod("p", cpu, memory, cards if milli else 0, milli, models)


def simulate(pods, policy="least-requested", card_policy="most-used", nodes=NODES, **more):
    cluster = SimulatedCluster(nodes, more.pop("card_units", 1000))
    ranked = make_simulated_policy(policy, more.pop("parameters", {}), make_typical_workload(cluster, pods))
    ticks = itertools.count()
    return cluster, run_packing(cluster, ranked, card_policy, pods, lambda: float(next(ticks)), **more)


@pytest.mark.parametrize("policy", NODE_POLICIES.names())
def test_every_policy_fills_a_cluster(policy):
    pods = [pod(500) for _ in range(16)]
    cluster, outcome = simulate(pods, policy, policy if policy == "fragmentation" else "most-used")
    assert outcome.placed == 12
    assert outcome.allocated_percent == {"100": 100.0, "130": 100.0}
    assert outcome.failed == {"no card with enough free": 4}
    assert int(cluster.arrays.gpu_used.sum()) == 6000
    assert (cluster.arrays.free >= 0).all()


def test_reasons():
    pods = [
        pod(1000, models=("X",)),
        pod(1000, models=("T4",), cpu=9000),
        pod(1000, 4, memory=65),
        pod(1000, 5),
        pod(1000, 4),
        pod(1000, 2, models=("A10",)),
        pod(500, models=("A10",)),
        pod(0, cpu=99_000),
        pod(0, cpu=60_000),
    ]
    outcome = simulate(pods)[1]
    assert outcome.failed == {
        "no node of that model": 1,
        "not enough cpu beside the cards": 1,
        "not enough host memory beside the rest": 1,
        "not enough cards free": 2,
        "no card with enough free": 1,
        "not enough cpu": 1,
    }
    assert outcome.placed == 2
    assert outcome.placed_units == {1000: 4}
    assert outcome.failed_units == {1000: 1 + 1 + 4 + 5 + 2, 500: 1}


def test_the_curve_has_a_point_a_percent_and_measuring_costs_no_time():
    pods = [pod(600) for _ in range(20)]
    outcome = simulate(pods, last="200", measure=lambda _: 7.0)[1]
    assert [point.arrived for point in outcome.curve] == [*map(float, range(1, 201)), 200.0]
    assert outcome.curve[99].allocated == outcome.allocated_percent["100"] == pytest.approx(60.0)
    assert outcome.allocated_percent["200"] == pytest.approx(60.0)
    # Of six cards five pods of 0.6 have taken five when half of the GPUs had been asked for.
    assert outcome.whole_percent == pytest.approx(100 / 6)
    assert {point.fragmented for point in outcome.curve} == {7.0}
    # The fake clock ticks once a call: start, end, and two a point, of which one is taken off.
    assert outcome.wall_s == 201.0


def test_card_units_round_requests_up():
    cluster, outcome = simulate(
        [pod(110), pod(110)], card_units=16, nodes=[TraceNode("a", 8000, 64, 1, "T4")]
    )
    assert int(cluster.arrays.gpu_used.sum()) == 4
    assert outcome.allocated_percent["130"] == 25.0


def test_a_pod_that_is_held_back_is_tried_again_with_each_later_one_and_at_the_end():
    held = {"on-no-improvement": "hold", "hold-rounds": "2", "threshold": "1"}
    node = [TraceNode("a", 100_000, 1000, 1, "T4")]
    pods = [pod(100, memory=500), *[pod(10, memory=40)] * 4]
    for rounds, failed in (("2", {}), (str(MOST_ROUNDS + 5), {HELD: 4})):
        outcome = simulate(pods, "weighted-balance", parameters=held | {"hold-rounds": rounds}, nodes=node)[1]
        assert (outcome.placed, outcome.failed) == (5 - sum(failed.values()), failed)


def test_fragmentation_knows_the_pod_list_or_learns_it():
    pods = [pod(470)] * 20
    epochs = []
    for workload in (make_typical_workload(SimulatedCluster(NODES), pods), None):
        policy = make_simulated_policy("fragmentation", {}, workload)
        run_packing(SimulatedCluster(NODES), policy, "fragmentation", pods, lambda: 0.0)
        epochs.append(policy.epoch)
    assert epochs[0] == 0 < epochs[1]


def test_a_policy_of_others_gets_the_workload():
    class Own:
        epoch = 0
        workload = None

        def score(self, _view, _ask, rows):
            return rows * 1.0

        def with_workload(self, workload):
            own = Own()
            own.workload = workload
            return own

    workload = TypicalWorkload()
    with offered(NODE_POLICIES, own=lambda _: Own()):
        assert make_simulated_policy("own", {}, workload).workload is workload
        assert make_simulated_policy("own", {}, None).workload is None
        assert make_simulated_policy("own", {"a": "b"}, workload).workload is None
        variants = SimulationOptions("", "", ("own", "best-fit"), workloads=WORKLOADS).list_variants()
    assert [each.label for each in variants] == ["own, learned", "own, trace", "best-fit"]


def test_the_fragmentation_card_policy_serves_other_node_policies_too():
    outcome = simulate([pod(500), pod(500)], "best-fit", "fragmentation")[1]
    assert outcome.placed == 2


def test_parameters_replace_the_learned_workload(tmp_path):
    path = tmp_path / "w.csv"
    path.write_text("cpu_milli,memory_mib,cards,units\n1,1,1,700\n")
    policy = make_simulated_policy("fragmentation", {"workload": str(path)}, TypicalWorkload())
    cluster = SimulatedCluster(NODES)
    fresh = make_policy("fragmentation", {"workload": str(path)})
    rows = cluster.arrays.usable.nonzero()[0]
    assert policy.value(cluster.arrays, rows).tolist() == fresh.value(cluster.arrays, rows).tolist()


def test_causes_add_up_to_what_is_free():
    pods = [
        pod(1000, 2, cpu=4000),
        pod(600, cpu=4000),
        pod(300, models=("A10",)),
        pod(0),
        pod(1000, memory=60),
    ]
    cluster, _ = simulate([*pods, *pods])
    split = split_free_gpu(cluster, make_typical_workload(cluster, pods))
    free = 100.0 * (6000 - int(cluster.arrays.gpu_used.sum())) / 6000
    assert sum(split.values()) == pytest.approx(free)
    assert sum_fragmented(split) == pytest.approx(free - split[USABLE])
    assert split["pods that ask for no GPU"] == pytest.approx(free / 5)


def test_causes_by_hand():
    nodes = [TraceNode("a", 1000, 64, 2, "T4")]
    cluster = SimulatedCluster(nodes)
    shapes = {
        "another model is asked for": pod(500, models=("X",)),
        "no card, or too few, with enough free": pod(1000, 3),
        "cpu is used up": pod(500, cpu=2000),
        "host memory is used up": pod(500, memory=65),
        USABLE: pod(500),
    }
    for cause, shape in shapes.items():
        assert {
            name: share
            for name, share in split_free_gpu(cluster, make_typical_workload(cluster, [shape])).items()
            if share
        } == {cause: 100.0}
    filled = simulate([pod(600)], nodes=nodes)[0]
    assert split_free_gpu(filled, make_typical_workload(filled, [pod(700)])) == {
        **dict.fromkeys(shapes, 0.0),
        "pods that ask for no GPU": 0.0,
        "rests on other cards of a node that fits": 20.0,
        USABLE: 50.0,
    }


@pytest.mark.parametrize(
    ("placed", "dropped", "waste"),
    [
        ({810: 10}, {}, 1900),  # nothing fits beside
        ({810: 10}, {160: 4}, 1900 - 640),  # four fit
        ({500: 10}, {}, 0),
        ({470: 4}, {}, 120),
        ({470: 4, 530: 2}, {530: 2}, 0),
        ({1000: 5}, {1000: 3}, 0),
        ({}, {810: 3}, 0),  # dropping them is free
    ],
)
def test_unavoidable_waste(placed, dropped, waste):
    assert compute_unavoidable_waste(1000, 10, placed, dropped) == pytest.approx(waste, abs=1e-6)


def test_the_bound_never_passes_what_a_placement_reached():
    # Whatever was placed is one of the placements that the bound speaks of.
    for seed in range(6):
        pods = [pod(((number * 7 + seed * 3) % 19 + 1) * 50) for number in range(60)]
        nodes = [TraceNode(f"n{number}", 10**6, 10**6, 4, "T4") for number in range(5)]
        cluster, outcome = simulate(pods, "fragmentation", "fragmentation", nodes=nodes)
        free = 20_000 - int(cluster.arrays.gpu_used.sum())
        waste = compute_unavoidable_waste(1000, 20, outcome.placed_units, outcome.failed_units)
        if outcome.failed:
            assert 0 <= waste <= free + 1e-6


def test_a_bound_from_unfinished_prices_still_holds(monkeypatch):
    exact = compute_unavoidable_waste(1000, 10, {470: 4, 320: 3}, {160: 3})
    for steps in range(8):
        monkeypatch.setattr("scheduler_plugin.simulator.bound._STEPS", steps)
        assert 0 <= compute_unavoidable_waste(1000, 10, {470: 4, 320: 3}, {160: 3}) <= exact + 1e-6


def test_many_sizes_are_not_bounded():
    assert compute_unavoidable_waste(1000, 10, dict.fromkeys(range(401, 480), 1), {}) == 0


def test_causes_look_once_at_shapes_with_the_same_cards():
    cluster = SimulatedCluster([TraceNode("a", 1000, 64, 1, "T4")])
    split = split_free_gpu(cluster, make_typical_workload(cluster, [pod(500, cpu=100), pod(500, cpu=2000)]))
    assert split[USABLE] == split["cpu is used up"] == 50.0


def test_pods_with_more_cards_than_any_node_fit_nowhere():
    cluster, outcome = simulate([pod(0), pod(1000, 9), pod(1000, 2), pod(1000, 2, models=("A10",))])
    assert outcome.failed == {"not enough cards free": 1}
    assert int(cluster.arrays.gpu_used.sum()) == 4000


def test_pods_dropped_in_every_run_alike_are_whole_pods():
    mean = {
        "card_policy": "most-used",
        "allocated_percent": {},
        "spread": {},
        "unavoidable_percent": 0.0,
        "runs": 2,
        "wall_s": 0.1,
        "free_percent": 0.0,
        "whole_percent": None,
        "failed": {"no room": 116.0, "no such card": 2.5},
        "fragmentation": {"too little": 10.0},
    }
    lines = list(report_packing({"best-fit": mean}))
    assert lines[-2:] == [
        "  pods dropped: no room 116, no such card 2.5",
        "  free GPU as a typical pod sees it: too little 10.00 %",
    ]
