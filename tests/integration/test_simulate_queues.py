"""`gpupack simulate --replay --queues`: a trace through the borrowing queue."""

import dataclasses
import json
import re

import msgspec
import pytest

from allocator.names import DEFAULT_NODE_POLICY
from benchmarks import slots
from scheduler_plugin.errors import SettingsError
from scheduler_plugin.queue.config.queues import parse_config
from scheduler_plugin.scheduling.policies.registry import make_policy
from scheduler_plugin.simulator.app import run, simulate
from scheduler_plugin.simulator.arrivals import make_replay
from scheduler_plugin.simulator.options import SimulationOptions, choose_policies
from scheduler_plugin.simulator.queued_replay import QueuedReplayState, choose_queue
from scheduler_plugin.simulator.queued_results import compute_jain_index
from scheduler_plugin.simulator.trace import TracePod, read_nodes, read_pods

COHORT = "queues: [{name: a, cohort: x, nominalQuota: 2000}, {name: b, cohort: x, nominalQuota: 2000}]"


def quiet(*_):
    pass


@pytest.fixture
def trace(tmp_path):
    """One node of four cards; eight pods of a card come for a, each for 100 s; b's one comes later."""
    (tmp_path / "nodes.csv").write_text("sn,cpu_milli,memory_mib,gpu,model\nn1,32000,65536,4,T4\n")
    rows = [f"p{number},1000,1024,1,1000,{number // 8},{number // 8 + 100},a" for number in range(8)]
    rows += ["late,1000,1024,1,1000,50,150,b"]
    head = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time,queue"
    (tmp_path / "pods.csv").write_text("\n".join([head, *rows]) + "\n")
    return tmp_path


def begin(what, config, policy="best-fit"):
    """A replay before its first pod."""
    config = msgspec.structs.replace(config, node_policy=policy)
    return QueuedReplayState(what, config, "least-used", 1000, make_policy)


def options(trace, config=COHORT, **more):
    (trace / "queues.yaml").write_text(config)
    return SimulationOptions(
        str(trace / "nodes.csv"),
        str(trace / "pods.csv"),
        policies=("best-fit",),
        replay=True,
        load=None,
        queues=str(trace / "queues.yaml"),
        **more,
    )


def test_borrowing_fills_the_cluster_and_the_lender_waits(trace):
    """a takes four rounds with its own two cards. With b's idle ones two, but for its last pod:
    the cards come free at 100 s, and b, which has nothing, gets one of them for its pod first."""
    lent, own = simulate(options(trace), quiet, quiet)["runs"]
    assert (lent["label"], own["label"]) == ("best-fit, borrowing", "best-fit, own quota only")
    assert lent["queues"]["a"]["wait_s"]["most"] == 200
    assert lent["queues"]["a"]["wait_s"]["median"] == 50
    assert lent["queues"]["b"]["wait_s"]["most"] == 50
    assert own["queues"]["a"]["wait_s"]["most"] == 300
    assert own["queues"]["b"]["wait_s"]["most"] == 0
    assert lent["allocated_percent"] == pytest.approx(100)
    assert own["allocated_percent"] == pytest.approx(50)
    assert (lent["fairness"], own["fairness"]) == (1, 1)


def rewrite(trace, pods, nodes=("n1,32000,65536,4,T4",), head="queue", node_head=""):
    """Write another trace; of pods name, thousandths of a card, when they come and how long they run."""
    head = f"name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time,{head}"
    rows = [f"{name},1000,1024,1,{milli},{at},{at + runs},{rest}" for name, milli, at, runs, rest in pods]
    (trace / "pods.csv").write_text("\n".join([head, *rows]) + "\n")
    node_head = f"sn,cpu_milli,memory_mib,gpu,model{node_head}"
    (trace / "nodes.csv").write_text("\n".join([node_head, *nodes]) + "\n")


def test_a_lender_gets_its_share_back_by_evictions(trace):
    """b's pod need not wait for one of a's; a pod of a that is evicted begins anew and waits longer."""
    lent, own = simulate(options(trace, f"{COHORT}\nreclaim: evict"), quiet, quiet)["runs"]
    assert (lent["evicted"], own["evicted"]) == (1, 0)
    assert lent["queues"]["b"]["wait_s"]["most"] == 0
    assert lent["queues"]["a"]["wait_s"]["most"] > 50
    assert lent["never_placed"] == 0


def test_room_is_kept_for_a_pod_that_waits_long(trace):
    """A whole card among pods of half a card that never leave one empty at once."""
    halves = [(f"h{n}", 500, 25 * n, 100, "a") for n in range(40)]
    rewrite(trace, [*halves, ("whole", 1000, 95, 10, "b")], ["n1,99000,655360,2,T4"])
    waits = {}
    for after in ("30s", "720h"):
        config = f"queues: [{{name: a, weight: 4}}, {{name: b}}]\nkeepRoomAfter: {after}"
        one, _ = simulate(options(trace, config), quiet, quiet)["runs"]
        waits[after] = one["queues"]["b"]["wait_s"]["most"]
        assert bool(one["reservations"]) == (after == "30s")
        assert one["never_placed"] == 0
    assert waits["30s"] < 300 < waits["720h"]


@pytest.mark.parametrize(("policy", "node"), [("best-fit", 0), ("least-requested", 1)])
def test_the_node_policy_of_the_queues_is_obeyed(trace, policy, node):
    """The second pod goes beside the first one, or to the empty node."""
    rewrite(
        trace,
        [("p0", 100, 0, 100, "a"), ("p1", 100, 1, 100, "a")],
        ["n1,32000,65536,1,T4", "n2,32000,65536,1,T4"],
    )
    made = options(trace, f"nodePolicy: {policy}\nqueues: [{{name: a}}]")
    made = dataclasses.replace(made, policies=choose_policies(None, made.queues))
    assert {run["policy"] for run in simulate(made, quiet, quiet)["runs"]} == {policy}
    nodes = read_nodes(made.nodes, quiet)
    what = make_replay(nodes, read_pods(made.pods, nodes, quiet, timed=True), None, 10, 1)
    replaying = QueuedReplayState(what, made.make_config(policy), "least-used", 1000, make_policy)
    for number, kind in enumerate(replaying.kinds):
        replaying.add_pod(number, kind)
    used = replaying.cluster.arrays.gpu_used[:2].tolist()
    assert used == ([200, 0] if node == 0 else [100, 100])


def test_policies_that_are_named_are_run_in_place_of_the_queues_own(trace):
    made = options(trace, "nodePolicy: fragmentation\nqueues: [{name: a}, {name: b}]")
    assert choose_policies("best-fit,least-requested", made.queues) == ("best-fit", "least-requested")
    assert choose_policies(None, None) == (DEFAULT_NODE_POLICY,)
    assert {run["policy"] for run in simulate(made, quiet, quiet)["runs"]} == {"best-fit"}


def test_parameters_of_the_queues_are_obeyed(trace):
    """Those that the options name come before them; a fault is told as of any other policy."""
    text = "nodePolicyParameters: {best-fit: {limit: 4}}\nqueues: [{name: a}, {name: b}]"
    made = options(trace, text)
    assert made.parameters_of("best-fit") == {"limit": "4"}
    given = dataclasses.replace(made, parameters={"best-fit": {"limit": "2"}})
    assert given.make_config("best-fit").node_policy_parameters == {"best-fit": {"limit": "2"}}
    with pytest.raises(SettingsError, match="limit"):
        simulate(options(trace, text.replace("4", "x")), quiet, quiet)


def test_report_json_and_pictures(trace):
    pytest.importorskip("matplotlib")
    lines = []
    run(options(trace, plot=str(trace), json=str(trace / "out.json")), lines.append, quiet)
    text = "\n".join(lines)
    assert re.search(r"best-fit, borrowing +a +1 +8 +0 +", text)
    assert "best-fit, own quota only: 50.00 % of the GPUs allocated, Jain's index 1.000" in text
    assert text.count("nominal quotas add up to 4000 units, the cluster's cards to 4000") == 1
    for name in ("queue-fairness.png", "queue-waiting.png", "replay-allocation.png"):
        assert (trace / name).read_bytes().startswith(b"\x89PNG")
    mean = json.loads((trace / "out.json").read_text())["mean"]
    assert mean["best-fit, borrowing"]["queues"]["b"]["wait_s"]["p95"] == 50


@pytest.mark.parametrize("starved", ["stopPolicy: Hold", "nominalQuota: 0", "nominalQuota: 500"])
def test_pods_that_never_start_wait_until_the_end(trace, starved):
    """a's eight pods come at 0 to 0.9 s, b's at 50 s runs until 150 s, and a never gets a card."""
    config = f"queues: [{{name: a, {starved}}}, {{name: b}}]"
    for run_of in simulate(options(trace, config), quiet, quiet)["runs"]:
        queues = run_of["queues"]
        assert (queues["a"]["never_started"], queues["b"]["never_started"]) == (8, 0)
        assert queues["a"]["wait_s"]["median"] == 150
    lines = []
    run(options(trace, config), lines.append, quiet)
    text = "\n".join(lines)
    assert re.search(r"best-fit, borrowing +a +1 +8 +8 +2.5 min +2.5 min", text)
    assert "pods that never started count with what they waited until the end" in text


def test_where_nobody_had_anything_nothing_was_fair(trace):
    config = "queues: [{name: a, stopPolicy: Hold}, {name: b, stopPolicy: Hold}]"
    everything = simulate(options(trace, config), quiet, quiet)
    assert [one["fairness"] for one in everything["runs"]] == [None, None]
    lines = []
    run(options(trace, config, json=str(trace / "out.json")), lines.append, quiet)
    assert "0.00 % of the GPUs allocated, Jain's index -, for nobody had anything" in "\n".join(lines)
    assert re.search(r"best-fit, borrowing +b +1 +1 +1 +- +-", "\n".join(lines))
    json.loads((trace / "out.json").read_text(), parse_constant=pytest.fail)


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        (
            "queues: [{name: a}]",
            SettingsError,
            "queue 'b' of the pod list is not configured; allowed: a",
        ),
        ("queues: [{name: a, weight: 0}]", SettingsError, "queues.yaml: queues.*weight"),
    ],
)
def test_bad_input(trace, config, error, message):
    with pytest.raises(error, match=message):
        simulate(options(trace, config), quiet, quiet)


def test_queues_need_a_replay(trace):
    with pytest.raises(SettingsError, match="without a replay"):
        SimulationOptions("n", "p", queues="queues.yaml").check()


def test_pods_without_a_queue_are_spread_by_weight():
    config = parse_config("queues", "queues: [{name: a, weight: 3}, {name: b}]")
    pods = [TracePod(f"pod-{number}", 0, 0, 1, 1000) for number in range(2000)]
    of_a = sum(choose_queue(pod, config) == "a" for pod in pods)
    assert 1400 < of_a < 1600
    assert choose_queue(TracePod("p", 0, 0, 1, 1000, queue="b"), config) == "b"


def test_jain_s_index():
    assert [compute_jain_index(shares) for shares in ([], [0, 0], [2, 2], [1, 0, 0, 0], [3])] == [
        1,
        1,
        1,
        0.25,
        1,
    ]


def test_the_headline_as_a_picture(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    slots.main([str(tmp_path / "slots.png")])
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {
        "without borrowing": {"rounds": 6, "busy_percent": 50},
        "with borrowing": {"rounds": 3, "busy_percent": 100},
    }
    assert (tmp_path / "slots.png").read_bytes().startswith(b"\x89PNG")


def test_slots_near_data_and_pods_to_come(trace):
    """The slot of n2, where the data is, goes first; the second stage waits for a pod that comes later."""
    pods = [("m0", 100, 0, 10, "a,d,j"), ("r0", 100, 1, 10, "a,,j"), ("m1", 100, 30, 10, "a,d,j")]
    nodes = ["n1,32000,65536,1,T4,,r1", "n2,32000,65536,1,T4,d,r2"]
    rewrite(trace, pods, nodes, "queue,data,job", ",data,rack")
    config = "queues: [{name: a}]\nslots: {per: node, local: {count: 1}, free: {count: 1}}"
    lent, _ = simulate(options(trace, config), quiet, quiet)["runs"]
    assert lent["queues"]["a"]["wait_s"]["most"] == 39, "the second stage waits until 40"
    made = options(trace, config)
    read = read_nodes(made.nodes, quiet)
    what = make_replay(read, read_pods(made.pods, read, quiet, timed=True), None, 10, 1)
    replaying = begin(what, parse_config("q", config))
    replaying.add_pod(0, replaying.kinds[0])
    assert [bool(used) for used in replaying.cluster.arrays.gpu_used[:2]] == [False, True]


def test_every_pod_that_waits_counts(trace):
    """Whatever queue it is in, and whether it was tried or not."""
    made = options(trace)
    read = read_nodes(made.nodes, quiet)
    what = make_replay(read, read_pods(made.pods, read, quiet, timed=True), None, 10, 1)
    replaying = begin(what, parse_config("q", COHORT), "weighted-balance")
    for number, kind in enumerate(replaying.kinds):
        replaying.run_until(what.arrivals[number].at_s)
        replaying.add_pod(number, kind)
    # Five that find no card, and one that the policy has held back since it came.
    assert replaying.queue.capacity.policies.cluster_policy.pending_by_class == (0, 0, 6)
