"""Pods that come and end: who runs when, worked out by hand."""

import pytest

from scheduler_plugin.errors import TraceError
from scheduler_plugin.scheduling.policies import make_policy
from scheduler_plugin.simulator.arrivals import Arrival, Replay, make_replay
from scheduler_plugin.simulator.cluster import SimulatedCluster
from scheduler_plugin.simulator.replay import run_replay
from scheduler_plugin.simulator.replay_report import format_duration
from scheduler_plugin.simulator.replay_results import SERIES, compute_wait_figures, make_replay_result
from scheduler_plugin.simulator.trace import Times, TraceNode, TracePod, read_pods

NODE = TraceNode("n", 8000, 64, 2, "T4")


def pod(milli, cards=1, cpu=100, at=0, runs=0, models=()):
    return TracePod("p", cpu, 1, cards if milli else 0, milli, models, Times(at, runs))


def story(arrivals, nodes=(NODE,), policy="best-fit", **parameters):
    """Replay pairs of a time, how long it runs and a pod."""
    cluster = SimulatedCluster(nodes)
    made = make_policy(policy, parameters)
    return cluster, made, run_replay(cluster, made, "most-used", [Arrival(*each) for each in arrivals])


def test_who_finds_no_place_waits_until_something_ends():
    cluster, _, told = story([(0, 10, pod(1000, 2)), (3, 5, pod(600)), (4, 2, pod(600))])
    assert told.placed_s == [0, 10, 10]
    assert told.turned_away == [1, 2]
    assert [tuple(sample) for sample in told.samples] == [
        (0, 2000, 0, 0),
        (3, 2000, 1, 600),
        (4, 2000, 2, 1200),
        (10, 1200, 0, 0),
        (12, 600, 0, 0),
        (15, 0, 0, 0),
    ]
    assert int(cluster.arrays.gpu_used.sum()) == int(cluster.arrays.cpu_used.sum()) == 0


def test_a_pod_that_waits_keeps_none_of_the_later_ones_back():
    # The second wants both cards; the third and the fourth fit beside the first, and go first.
    _, _, told = story([(0, 10, pod(500)), (1, 5, pod(1000, 2)), (2, 20, pod(500)), (3, 1, pod(500))])
    assert told.placed_s == [0, 22, 2, 3]


def test_of_those_that_fit_the_first_that_came_goes_first():
    full = (0, 10, pod(1000, 2))
    # Two kinds, and a third pod of the first kind: in the order of their arrival, not by kind.
    waiting = [(1, 5, pod(700)), (2, 5, pod(800)), (3, 5, pod(700))]
    assert story([full, *waiting])[2].placed_s == [0, 10, 10, 15]
    assert story([full, waiting[1], (2, 5, pod(700)), (3, 5, pod(700))])[2].placed_s == [0, 10, 10, 15]


def test_a_pod_ends_before_another_comes_at_the_same_moment():
    assert story([(0, 5, pod(1000, 2)), (5, 5, pod(1000, 2))])[2].turned_away == []


def test_pods_that_never_end_and_pods_that_fit_nowhere():
    endless = [(0, None, pod(1000, 2)), (1, 5, pod(500)), (2, 5, pod(1000, 3)), (3, 1, pod(0))]
    _, _, told = story(endless)
    assert told.placed_s == [0, None, None, 3]
    assert told.impossible == {2}
    assert told.turned_away == [1]


def test_cpu_makes_pods_wait_too():
    _, _, told = story([(0, 10, pod(0, cpu=8000)), (1, 5, pod(500))])
    assert told.placed_s == [0, 10]


def test_a_policy_that_holds_pods_back_is_asked_again():
    nodes = (TraceNode("a", 100, 1000, 1, "T4"),)
    pods = [TracePod("p", 20, 500, 1, 400), TracePod("p", 30, 400, 1, 200), TracePod("p", 40, 200, 1, 200)]
    arrivals = [(at, 10, one) for at, one in enumerate(pods)]
    parameters = {"on-no-improvement": "hold", "threshold": "1", "parts": "W2"}
    told = story(arrivals, nodes, "weighted-balance", **parameters)[2]
    # As in the golden of the policy the second is held; when the first has ended the node may take it.
    assert told.placed_s[0] == 0
    assert told.placed_s[2] == 2
    assert told.placed_s[1] in {10, 12}


def test_policies_hear_of_pods_that_wait_and_of_those_that_got_their_place():
    _, policy, told = story([(0, 10, pod(1000, 2)), (1, 5, pod(600))], policy="weighted-balance")
    assert told.placed_s == [0, 10]
    assert policy.pending_by_class == (0, 0, 0)


def test_every_pod_that_waits_counts_by_what_it_is_short_of_by_now():
    """Not only the first one of its kind, which is tried; and the node that had no cpu may get some."""
    short = [(at, None, pod(100, cpu=8000)) for at in (1, 3, 5, 7)]
    _, policy, told = story(
        [(0, 20, pod(100, cpu=4000)), *short, (30, None, pod(100))], policy="weighted-balance"
    )
    assert told.placed_s[:3] == [0, 20, None]
    # One runs on all of the cpu, three wait for it; the last pod asks for some of that, too.
    assert policy.pending_by_class == (4, 0, 0)


def test_results_by_hand():
    nodes = (NODE,)
    pods = [(0, 40, pod(1000)), (10, 20, pod(1000)), (20, 20, pod(500)), (40, 10, pod(500))]
    arrivals = tuple(Arrival(*each) for each in pods)
    cluster = SimulatedCluster(nodes)
    told = run_replay(cluster, make_policy("best-fit"), "most-used", arrivals)
    assert told.placed_s == [0, 10, 30, 40]
    result = make_replay_result(told, Replay(nodes, arrivals, 1.0, 0, 40), cluster, 1.0)
    assert (result["gpu_pods"], result["pods"], result["nodes"], result["gpus"]) == (4, 4, 1, 2)
    # 10 s one card, 20 s two, 10 s one and a half, of two cards for 40 s; asked for: a half from 20 on, too.
    assert result["allocated_percent"] == pytest.approx(100 * (10 + 40 + 15) / 80, abs=1e-3)
    assert result["load"] == pytest.approx((40 + 20 + 10) / 80, abs=1e-3)
    assert result["turned_away_percent"] == 25
    assert result["wait_s"] == {"mean": 2.5, "median": 0.0, "p95": 10, "most": 10}
    assert result["wait_mean_s"] == {"a whole card": 0.0, "part of a card": 5.0}
    assert (result["waiting"], result["waiting_most"]) == (0.25, 1)
    assert result["waiting_gpus_percent"] == pytest.approx(100 * 5 / 80, abs=1e-3)
    assert (result["impossible"], result["never_placed"]) == (0, 0)
    table = [dict(zip(SERIES, point, strict=True)) for point in result["series"]]
    assert sum(point["turned_away"] for point in table) == 1
    assert {point["allocated_percent"] for point in table if 0.00012 < point["day"] < 0.0003} == {100}


def even(count, every=10, runs=50, milli=1000):
    """A list that asks for runs / every cards at a time."""
    return [pod(milli, at=every * number, runs=runs) for number in range(count)]


def asked(replay):
    """Cards asked for at a time in the time that counts, if none waits."""
    seconds = sum(
        max(0, min(at + runs, replay.until_s) - max(at, replay.from_s)) for at, runs, _ in replay.arrivals
    )
    return seconds / (replay.until_s - replay.from_s)


MANY = [TraceNode(f"n{number:03}", 8000, 64, 4, "T4" if number % 4 else "A10") for number in range(100)]


@pytest.mark.parametrize("load", [0.005, 0.5, 1.0, 1.3])
def test_the_load_is_what_was_asked_for(load):
    made = make_replay(MANY, even(2000), load, 40_000, 1)
    assert asked(made) / sum(node.cards for node in made.nodes) == pytest.approx(load, rel=0.1)
    assert [arrival.at_s for arrival in made.arrivals] == sorted(arrival.at_s for arrival in made.arrivals)
    assert len(made.arrivals) == pytest.approx(2000 * made.copies, abs=1)
    assert len(made.arrivals) <= 40_000 * 1.2
    if load < 0.5:
        assert (made.nodes, len(made.arrivals)) == (tuple(MANY), 800)


def test_a_cluster_that_is_too_large_is_made_smaller_evenly():
    made = make_replay(MANY, even(2000), 1.0, 10_000, 1)
    assert sum(node.cards for node in made.nodes) == pytest.approx(25, abs=4)
    models = [node.model for node in make_replay(MANY, even(2000), 1.0, 80_000, 1).nodes]
    assert models.count("A10") / len(models) == pytest.approx(0.25, abs=0.03)


def test_the_trace_as_it_is():
    pods = even(50)
    made = make_replay(MANY, pods, None, 1, 7)
    assert made.nodes == tuple(MANY)
    assert [arrival.pod for arrival in made.arrivals] == pods
    assert [arrival.at_s for arrival in made.arrivals] == [one.times.arrives_s for one in pods]
    assert (made.copies, made.from_s, made.until_s) == (1.0, 50, 490)


def test_seeds_decide():
    one, same, other = (make_replay(MANY, even(200), 0.3, 900, seed) for seed in (1, 1, 2))
    assert one == same != other


def test_copies_come_a_little_later():
    made = make_replay(MANY[:1], even(100), 5.0, 1000, 1)
    later = sorted(arrival.at_s - arrival.pod.times.arrives_s for arrival in made.arrivals)
    assert later.count(0) == 100
    assert 0 < later[100] <= later[-1] <= 9.9


@pytest.mark.parametrize("pods", [even(5, every=0), [pod(0, at=number, runs=9) for number in range(9)]])
def test_no_load_can_be_made_of_nothing(pods):
    with pytest.raises(TraceError, match="ask for no GPU at any time that counts"):
        make_replay(MANY, pods, 1.0, 1000, 1)
    make_replay(MANY, pods, None, 1000, 1)


HEAD = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time,scheduled_time\n"


def read(tmp_path, text):
    path = tmp_path / "pods.csv"
    path.write_text(text)
    told = []
    return [one.times for one in read_pods(str(path), [NODE], told.append, timed=True)], told


def test_times_are_read(tmp_path):
    rows = "a,1,1,1,500,5,30,10\nb,1,1,1,500,5,30,\nc,1,1,1,500,5,,\n"
    assert read(tmp_path, HEAD + rows) == ([Times(5, 20), Times(5, 25), Times(5, None)], [])
    without = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time\na,1,1,1,500,5,30\n"
    assert read(tmp_path, without)[0] == [Times(5, 25)]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("-1,30,", "pods.csv:3: creation_time is '-1'; allowed: a whole number"),
        (",30,", "pods.csv:3: creation_time is ''"),
        ("5,soon,", "pods.csv:3: deletion_time is 'soon'"),
        ("5,30,1.5", "pods.csv:3: scheduled_time is '1.5'"),
        ("5,4,", "pods.csv:3: created 5, scheduled 5, deleted 4; allowed: growing times"),
        ("5,30,31", "created 5, scheduled 31, deleted 30"),
        ("5,30,4", "created 5, scheduled 4, deleted 30"),
    ],
)
def test_bad_times_are_told(tmp_path, row, message):
    times, (told,) = read(tmp_path, f"{HEAD}a,1,1,1,500,5,30,10\nb,1,1,1,500,{row}\n")
    assert times == [Times(5, 20)]
    assert message in told
    assert told.endswith("; the pod is left out")


def test_a_list_without_times_is_refused(tmp_path):
    with pytest.raises(TraceError, match=r"pods.csv:1: no column creation_time, deletion_time; needed are"):
        read(tmp_path, "name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,1,1,1,500\n")


def test_durations():
    assert [format_duration(at) for at in (0, 59, 60, 5400, 129_600)] == [
        "0 s",
        "59 s",
        "1.0 min",
        "1.5 h",
        "1.5 d",
    ]


@pytest.mark.parametrize(("count", "p95"), [(1, 1), (19, 19), (20, 19), (100, 95), (101, 96), (1000, 950)])
def test_the_p95_is_the_least_wait_that_95_percent_do_not_pass(count: int, p95: int) -> None:
    assert compute_wait_figures([float(wait) for wait in range(1, count + 1)])["p95"] == p95
