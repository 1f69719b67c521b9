import pytest

from scheduler_plugin.errors import TraceError
from scheduler_plugin.simulator.cluster import SimulatedCluster
from scheduler_plugin.simulator.trace import TraceNode, TracePod, draw_pods, read_nodes, read_pods

NODE_HEAD = "sn,cpu_milli,memory_mib,gpu,model\n"
POD_HEAD = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"
NODES = [TraceNode("n", 8000, 1000, 2, "T4")]


def write(tmp_path, text, name="trace.csv"):
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


def test_nodes_are_sorted_by_name(tmp_path):
    path = write(tmp_path, NODE_HEAD + "b,8000,1000,2,T4\na,16000,2000,8,A10\n")
    warnings = []
    assert read_nodes(path, warnings.append) == [
        TraceNode("a", 16000, 2000, 8, "A10"),
        TraceNode("b", 8000, 1000, 2, "T4"),
    ]
    assert warnings == []


def test_pods_with_and_without_models(tmp_path):
    warnings = []
    path = write(tmp_path, POD_HEAD + "p,4000,100,1,500,T4|T4\nq,1000,50,0,0,T4\n")
    assert read_pods(path, NODES, warnings.append) == [
        TracePod("p", 4000, 100, 1, 500, ("T4",)),
        TracePod("q", 1000, 50, 0, 0),
    ]
    five = write(tmp_path, "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1,1,1,10\n", "five.csv")
    assert read_pods(five, NODES, warnings.append) == [TracePod("p", 1, 1, 1, 10)]
    assert warnings == []


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("p,-5,1,1,10,", "trace.csv:2: cpu_milli is '-5'; allowed: a whole number from 0 to 100000000"),
        ("p,1,x,1,10,", "trace.csv:2: memory_mib is 'x'; allowed"),
        ("p,1,1,65,10,", "trace.csv:2: num_gpu is '65'; allowed: a whole number from 0 to 64"),
        ("p,1,1,1,1001,", "trace.csv:2: gpu_milli is '1001'; allowed: a whole number from 0 to 1000"),
        ("p,1,1,1,0,", "trace.csv:2: gpu_milli is 0 with num_gpu 1; allowed: 1 to 1000"),
        ("p,1,1,1,", "trace.csv:2: gpu_milli is ''; allowed"),
        ("p,1,1,1", "trace.csv:2: gpu_milli is ''; allowed"),
        ("p,1.5,1,1,10,", "trace.csv:2: cpu_milli is '1.5'; allowed"),
        (f"p,{'9' * 99},1,1,10,", "trace.csv:2: cpu_milli is '" + "9" * 64 + "...'; allowed"),
    ],
)
def test_bad_pods_are_left_out_with_one_line(tmp_path, row, message):
    warnings = []
    pods = read_pods(write(tmp_path, POD_HEAD + row + "\ngood,1,1,1,10,\n"), NODES, warnings.append)
    assert [pod.name for pod in pods] == ["good"]
    assert len(warnings) == 1
    assert message in warnings[0]
    assert warnings[0].endswith("; the pod is left out")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("p,9000,1,1,10,", "9000 cpu_milli, 1 memory_mib, 1 num_gpu fit on no node even when it is empty"),
        ("p,1,9999,1,10,", "fit on no node"),
        ("p,1,1,3,1000,", "fit on no node"),
        ("p,1,1,1,10,X9|T4", "trace.csv:2: gpu_spec names 'X9', a model that no node has; the pod is kept"),
    ],
)
def test_odd_pods_are_kept_with_one_line(tmp_path, row, message):
    warnings = []
    pods = read_pods(write(tmp_path, POD_HEAD + row + "\n"), NODES, warnings.append)
    assert [pod.name for pod in pods] == ["p"]
    assert len(warnings) == 1
    assert message in warnings[0]


def test_a_node_and_a_pod_of_several_containers_may_have_more_cards_than_one_container(tmp_path):
    """`gpupack snapshot` writes such nodes and pods of a cluster."""
    warnings = []
    nodes = read_nodes(write(tmp_path, NODE_HEAD + "n,8000,1000,80,T4\n"), warnings.append)
    row = "p,1,1,80,10,2|2\nq,1,1,130,10,2|2\n"
    path = write(tmp_path, POD_HEAD.replace("gpu_spec", "gpu_units") + row, "pods.csv")
    assert [pod.cards for pod in read_pods(path, nodes, warnings.append)] == [80]
    allowed = "allowed: a whole number from 0 to 128; the pod is left out"
    assert warnings == [f"{path}:3: num_gpu is '130'; {allowed}"]


def test_equal_pods_are_checked_once(tmp_path):
    warnings = []
    row = "p,9000,1,1,10,\n"
    assert len(read_pods(write(tmp_path, POD_HEAD + row + row), NODES, warnings.append)) == 2
    assert len(warnings) == 2


@pytest.mark.parametrize(("models", "unknown"), [("t4", []), ("T*", []), ("X9*|*4", ["'X9*'"])])
def test_a_model_is_known_by_the_rule_by_which_pods_find_it(tmp_path, models, unknown):
    warnings = []
    (pod,) = read_pods(write(tmp_path, POD_HEAD + f"p,1,1,1,10,{models}\n"), NODES, warnings.append)
    cluster = SimulatedCluster(NODES)
    assert cluster.filter_rows(cluster.get_kind(pod, "best-fit")).size
    assert [line.partition(" names ")[2].partition(",")[0] for line in warnings] == unknown


def test_a_pod_of_an_unknown_model_only_is_told_twice(tmp_path):
    warnings = []
    read_pods(write(tmp_path, POD_HEAD + "p,1,1,1,10,X9\n"), NODES, warnings.append)
    told = [("gpu_spec names" in line, "fit on no node" in line) for line in warnings]
    assert told == [(True, False), (False, True)]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (",1,1,1,T4", "sn is empty; allowed: a name; the node is left out"),
        ("n,1,1,1,T4", "sn 'n' is there twice; allowed: a name of its own; the node is left out"),
        ("m,1,1,-1,T4", "gpu is '-1'; allowed: a whole number from 0 to 1023; the node is left out"),
        ("m,1,1,1024,T4", "gpu is '1024'; allowed: a whole number from 0 to 1023; the node is left out"),
    ],
)
def test_bad_nodes_are_left_out(tmp_path, row, message):
    warnings = []
    path = write(tmp_path, NODE_HEAD + "n,8000,1000,2,T4\n" + row + "\n")
    assert read_nodes(path, warnings.append) == NODES
    assert len(warnings) == 1
    assert message in warnings[0]
    assert "trace.csv:3: " in warnings[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "trace.csv is empty: needed are the columns sn, cpu_milli, memory_mib, gpu, model"),
        ("sn,cpu_milli,memory_mib,gpu\n", "trace.csv:1: no column model; needed are sn, cpu_milli"),
        (NODE_HEAD, "no usable node with a GPU in it"),
        (NODE_HEAD + "n,1,1,0,\n", "no usable node with a GPU in it"),
        (b"\xff\xfe\x00", "cannot be read"),
    ],
)
def test_useless_node_files_stop(tmp_path, text, message):
    with pytest.raises(TraceError, match=message):
        read_nodes(write(tmp_path, text), print)


@pytest.mark.parametrize(
    ("text", "message"),
    [(POD_HEAD, "no usable pod in it"), ("name,cpu_milli\n", "no column memory_mib, num_gpu, gpu_milli")],
)
def test_useless_pod_files_stop(tmp_path, text, message):
    with pytest.raises(TraceError, match=message):
        read_pods(write(tmp_path, text), NODES, print)


def test_a_missing_file_stops():
    with pytest.raises(TraceError, match=r"/nowhere\.csv: cannot be read"):
        read_nodes("/nowhere.csv", print)


def test_draws_repeat_and_reach_the_inflation():
    pods = [TracePod("a", 1, 1, 1, 500), TracePod("b", 1, 1, 2, 1000), TracePod("c", 1, 1, 0, 0)]
    drawn = draw_pods(pods, 10, 1.3, 42)
    assert drawn == draw_pods(pods, 10, 1.3, 42)
    assert drawn != draw_pods(pods, 10, 1.3, 43)
    asked = sum(pod.requested_milli for pod in drawn)
    assert 13_000 <= asked < 15_000
    assert set(drawn) == set(pods)


def test_lists_that_ask_for_enough_or_for_nothing_are_only_shuffled():
    pods = [TracePod(str(number), 1, 1, 1, 1000) for number in range(20)]
    drawn = draw_pods(pods, 10, 1.3, 42)
    assert drawn != pods
    assert sorted(drawn, key=lambda pod: int(pod.name)) == pods
    idle = [TracePod("c", 1, 1, 0, 0)] * 3
    assert draw_pods(idle, 10, 1.3, 42) == idle
