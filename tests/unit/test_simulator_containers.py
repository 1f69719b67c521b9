"""The simulator's pods with several containers, and with percent: placed wherever there is a way."""

import pytest

from allocator.names import POD_CARDS
from allocator.request import WHOLE
from gpupack.whatif.changes import make_nodes
from gpupack.whatif.cluster import Cluster as Asked
from gpupack.whatif.simulation import make_trace
from gpupack.whatif.snapshot import NODE_HEADER, make_snapshot
from scheduler_plugin.errors import PolicyError
from scheduler_plugin.queue.config.queues import LocalityForm
from scheduler_plugin.scheduling.policies import NODE_POLICIES
from scheduler_plugin.scheduling.policies.registry import make_policy
from scheduler_plugin.simulator.cluster import SimulatedCluster
from scheduler_plugin.simulator.packing import make_typical_workload, run_packing
from scheduler_plugin.simulator.placer import PlacedPod, Placer, make_simulated_policy
from scheduler_plugin.simulator.queued_cluster import UNIT_MIB, make_node
from scheduler_plugin.simulator.trace import (
    COMPUTE_LIMIT_COLUMN,
    UNFIT,
    TraceNode,
    TracePod,
    read_nodes,
    read_pods,
)
from tests.ask_world import Node, Pod, World
from tests.cluster_builders import container, in_percent
from tests.other_policies import offered

HEAD = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_units\n"
FIVES = TraceNode("n", 8000, 1000, 2, "T4", 5)
THREE = TracePod("p", 1, 1, 3, 533, gpu_units=(40, 40, 80), percent=True)


def pod(*units, cards=None, cpu=1, percent=False):
    return TracePod("p", cpu, 1, cards or len(units), 500, gpu_units=units, percent=percent)


def placer(nodes, policy="least-requested"):
    cluster = SimulatedCluster(nodes)
    return cluster, Placer(cluster, make_simulated_policy(policy, {}, None))


@pytest.mark.parametrize("policy", NODE_POLICIES.names())
@pytest.mark.parametrize("card_policy", ["least-used", "fragmentation"])
def test_forty_forty_and_eighty_percent_fit_on_two_cards_of_five(policy, card_policy):
    """Each container counted as the largest: 80 percent on three cards, which two do not have."""
    cluster = SimulatedCluster([FIVES])
    ranked = make_simulated_policy(policy, {}, make_typical_workload(cluster, [THREE]))
    outcome = run_packing(cluster, ranked, card_policy, [THREE], lambda: 0.0)
    assert (outcome.placed, outcome.failed) == (1, {})
    assert cluster.arrays.assumed[0].tolist()[:2] == [4, 4]
    assert outcome.allocated_percent["130"] == 80


@pytest.mark.parametrize(
    ("nodes", "asked", "charge"),
    [
        (
            [TraceNode("n", 8000, 1000, 1, "T4", 80), TraceNode("s", 8000, 1000, 1, "T4", 40)],
            (100,),
            (80, 40),
        ),
        ([TraceNode("n", 8000, 1000, 2, "T4", 8), TraceNode("s", 8000, 1000, 2, "T4", 4)], (50, 50), (8, 4)),
    ],
    ids=["whole", "halves"],
)
def test_percent_are_of_the_card_that_the_pod_gets(nodes, asked, charge):
    """All were as many units as of the card that there is most: no whole card of 40 was ever taken."""
    cluster, where = placer(nodes)
    kind = cluster.get_kind(pod(*asked, percent=True), "most-used")
    places = [where.place_pod(kind, str(number)) for number in range(2)]
    assert sorted(place.units for place in places) == sorted(charge)
    where.remove_pod(kind, places[0], "0")
    where.remove_pod(kind, places[1], "1")
    assert not cluster.arrays.assumed.any()


@pytest.mark.parametrize("policy", NODE_POLICIES.names())
def test_compute_of_cards_is_given_away_and_comes_back(policy):
    """Two cards of 5 units: memory for ten pods of one unit, compute for three of 60 and 30 percent."""
    cluster, where = placer([FIVES], policy)
    large, small, plain = (
        cluster.get_kind(TracePod("p", 1, 1, 1, 200, gpu_units=(1,), compute=compute), "fragmentation")
        for compute in ((60,), (30,), ())
    )
    places = [where.place_pod(large, str(number)) for number in range(2)]
    assert cluster.arrays.compute.assumed[0].tolist() == [60, 60]
    assert where.place_pod(large, "2") == "not enough compute beside the memory of cards"
    assert [type(where.place_pod(small, str(number))) for number in (3, 4)] == [PlacedPod, PlacedPod]
    assert isinstance(where.place_pod(plain, "5"), PlacedPod)
    assert cluster.arrays.compute.assumed[0].tolist() == [90, 90]
    where.remove_pod(large, places[0], "0")
    assert sorted(cluster.arrays.compute.assumed[0].tolist()) == [30, 90]
    assert list(where.place_pod(large, "6").cards.compute.values()) == [60]
    assert cluster.arrays.compute.assumed[0].tolist() == [90, 90]


@pytest.mark.parametrize(
    ("units", "compute", "expected"),
    [("2|2", "30|0", (30, 0)), ("2", " 30% ", (30,)), ("", "100", (100,)), ("2", "", ()), ("2|2", "0|0", ())],
)
def test_compute_of_a_trace(tmp_path, units, compute, expected):
    cards = max(1, units.count("|") + 1)
    head = HEAD.strip() + ",gpu_compute\n"
    (tmp_path / "pods.csv").write_text(f"{head}p,1,1,{cards},500,{units},{compute}\n")
    warnings = []
    (read,) = read_pods(str(tmp_path / "pods.csv"), [FIVES], warnings.append)
    assert (read.compute, warnings) == (expected, [])


@pytest.mark.parametrize(
    ("units", "compute", "said"),
    [
        ("2", "1001", "gpu_compute is '1001'; allowed: a whole number from 0 to 1000;"),
        ("2|2", "30", "gpu_compute is '30'; allowed: a whole number from 0 to 1000 for each of 2;"),
        ("2", "many", "gpu_compute is 'many'; allowed:"),
    ],
)
def test_compute_of_a_trace_that_cannot_be_is_told(tmp_path, units, compute, said):
    head = HEAD.strip() + ",gpu_compute\n"
    text = f"{head}p,1,1,2,500,{units},{compute}\ngood,1,1,1,10,,\n"
    (tmp_path / "pods.csv").write_text(text)
    warnings = []
    assert len(read_pods(str(tmp_path / "pods.csv"), [FIVES], warnings.append)) == 1
    assert said in warnings[0]


def test_cards_give_away_as_much_compute_as_their_node_says(tmp_path):
    """60 percent of each of two cards, as often as the limit allows; an empty field is 100."""
    head = "sn,cpu_milli,memory_mib,gpu,model,card_units,compute_limit\n"
    rows = [
        f"{name},8000,1000,2,T4,5,{limit}" for name, limit in (("a", 200), ("b", ""), ("c", 50), ("d", 0))
    ]
    (tmp_path / "nodes.csv").write_text(head + "\n".join([*rows, "e,8000,1000,2,T4,5,1001"]))
    warnings = []
    nodes = read_nodes(str(tmp_path / "nodes.csv"), warnings.append)
    assert [line.partition(": ")[2] for line in warnings] == [
        "compute_limit is '1001'; allowed: a whole number from 0 to 1000; the node is left out"
    ]
    asking = TracePod("p", 1, 1, 1, 200, gpu_units=(1,), compute=(60,))
    places = {}
    for node in nodes:
        # A queue's replay has it, too, and so have a snapshot and a node that is added to a cluster.
        live = Asked({node.name: make_node(node, 0, 5, LocalityForm())}, {}, UNIT_MIB)
        assert live.state.nodes.compute_limit.max() == node.compute_limit
        assert make_snapshot(live).nodes[0][NODE_HEADER.index(COMPUTE_LIMIT_COLUMN)] == node.compute_limit
        (added,) = make_nodes(live, "2xt4", 1)
        more = Asked({added.name: added}, {}, UNIT_MIB).state.nodes
        assert more.compute_limit.max() == (node.compute_limit or WHOLE)
        cluster, where = placer([node])
        kind = cluster.get_kind(asking, "fragmentation")
        placed = [isinstance(where.place_pod(kind, str(number)), PlacedPod) for number in range(8)]
        places[node.name] = sum(placed)
    assert places == {"a": 6, "b": 2, "c": 0, "d": 0}
    text = f"{HEAD.strip()},gpu_compute\np,1,1,1,500,1,60\n"
    (tmp_path / "pods.csv").write_text(text)
    for node, said in zip(nodes, (False, False, True, True), strict=True):
        warnings.clear()
        read_pods(str(tmp_path / "pods.csv"), [node], warnings.append)
        assert any(UNFIT in line for line in warnings) is said


def test_a_snapshot_has_the_compute_of_pods(tmp_path):
    world = World((Node("n", (5, 5)),), (Pod("p", 1, compute=30), Pod("q", 1)))
    taken = make_trace(Asked.from_json(world.text))
    nodes, pods = map(str, taken.write(tmp_path))
    read = read_pods(pods, read_nodes(nodes, pytest.fail), pytest.fail)
    assert {pod.name: pod.compute for pod in read} == {"default/p": (30,), "default/q": ()}


def test_a_snapshot_counts_further_resources_and_leaves_what_filter_counts_as_it_is():
    nic = "example.com/nic"
    world = World((Node("n"),), (Pod("p", 1),))
    world = world.changed(n=lambda node: node["status"]["allocatable"].update({nic: "2"}))
    cluster = Asked.from_json(world.text)
    taken = make_snapshot(cluster, others=[nic])
    assert dict(zip((*NODE_HEADER, *taken.others), taken.nodes[0], strict=True))[nic] == 2
    assert cluster.state.nodes.other_resources == []


def test_what_does_not_fit_together_is_dropped_with_a_reason():
    cluster, where = placer([FIVES])
    assert where.place_pod(cluster.get_kind(pod(4, 4, 4), "least-used"), "0") == "not enough cards free"
    assert where.place_pod(cluster.get_kind(pod(3, 3, cards=4), "least-used"), "0") == "not enough cards free"
    assert isinstance(where.place_pod(cluster.get_kind(pod(2, 3, cards=4), "least-used"), "0"), PlacedPod)


def test_cards_that_a_node_policy_may_not_take_are_never_charged():
    """It was charged what no card has."""
    cluster = SimulatedCluster([FIVES])
    policy = make_policy("least-requested", {})
    policy.choose_cards = lambda *_: ((7,),)
    with offered(NODE_POLICIES, odd=lambda _: policy):
        kind = cluster.get_kind(pod(2), "fragmentation")
        with pytest.raises(PolicyError, match="cards"):
            Placer(cluster, policy).place_pod(kind, "0")
    assert not cluster.arrays.assumed.any()


@pytest.mark.parametrize(
    ("text", "cards", "units", "percent"),
    [
        ("2|2|4", 3, (2, 2, 4), False),
        (" 40% |40%|80%", 3, (40, 40, 80), True),
        ("2|3", 4, (2, 3), False),
        ("8", 2, (8,), False),
        ("50%", 1, (50,), True),
        ("", 1, (), False),
        ("0", 1, (), False),
    ],
)
def test_containers_of_a_trace(tmp_path, text, cards, units, percent):
    (tmp_path / "pods.csv").write_text(f"{HEAD}p,1,1,{cards},500,{text}\n")
    warnings = []
    (read,) = read_pods(str(tmp_path / "pods.csv"), [FIVES], warnings.append)
    assert (read.gpu_units, read.percent) == (units, percent)


@pytest.mark.parametrize(
    ("text", "cards", "said"),
    [
        ("2|x", 2, "gpu_units is '2|x'; allowed: whole numbers from 1 to 131072, or all of them percent"),
        ("2|0", 2, "gpu_units is '2|0'; allowed: whole numbers from 1"),
        ("2|4%", 2, "gpu_units is '2|4%'; allowed:"),
        ("101%", 1, "gpu_units is '101%'; allowed:"),
        ("2|2", 3, "num_gpu 3 for 2 containers of gpu_units '2|2'; allowed: as many cards for each"),
    ],
)
def test_containers_that_cannot_be_are_left_out(tmp_path, text, cards, said):
    (tmp_path / "pods.csv").write_text(f"{HEAD}p,1,1,{cards},500,{text}\ngood,1,1,1,10,\n")
    warnings = []
    assert len(read_pods(str(tmp_path / "pods.csv"), [FIVES], warnings.append)) == 1
    assert said in warnings[0]


@pytest.mark.parametrize(("text", "told"), [("40%|40%|80%", 0), ("4|4|4", 1), ("6|1|1", 1)])
def test_pods_that_fit_on_no_empty_node_are_told(tmp_path, text, told):
    (tmp_path / "pods.csv").write_text(f"{HEAD}p,1,1,3,500,{text}\n")
    warnings = []
    read_pods(str(tmp_path / "pods.csv"), [FIVES], warnings.append)
    assert len(warnings) == told


@pytest.mark.parametrize(
    ("containers", "annotations", "row"),
    [
        ([in_percent(40, "x"), in_percent(40, "y"), in_percent(80, "z")], {}, (3, 533, "40%|40%|80%")),
        ([container("x", 2), container("y", 4)], {}, (2, 600, "2|4")),
        ([container("x", 2), container("y", 4)], {POD_CARDS: "2"}, (4, 300, "1|2")),
        ([in_percent(50)], {}, (1, 500, "50%")),
        ([container("x", 3)], {}, (1, 600, 3)),
    ],
    ids=["percent", "units", "two-cards-each", "one-in-percent", "one"],
)
def test_a_snapshot_has_every_container(tmp_path, containers, annotations, row):
    class Waits(Pod):
        def object(self):
            made = super().object()
            made["spec"]["containers"] = containers
            made["metadata"]["annotations"] |= annotations
            return made

    taken = make_trace(Asked.from_json(World((Node("n", (5, 5)),), (Waits("p", 1),)).text))
    (written,) = taken.pods
    assert (written[3], written[4], written[-3]) == row
    assert taken.notes == ()
    nodes, pods = map(str, taken.write(tmp_path))
    warnings = []
    cluster = SimulatedCluster(read_nodes(nodes, warnings.append))
    (read,) = read_pods(pods, read_nodes(nodes, warnings.append), warnings.append)
    assert cluster.filter_rows(cluster.get_kind(read, "least-used")).tolist() == [0]
    assert warnings == []
