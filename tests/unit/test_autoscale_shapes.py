"""What machine types are like: learned from nodes, read from a file, written for autoscalers."""

import json

import pytest
import yaml
from click.testing import CliRunner

from gpupack.autoscale.shape_formats import FORMATS, find_shapes, write_shapes
from gpupack.autoscale.shapes import Shapes, learn_shapes, read_card_sets, read_shapes
from gpupack.cli.app import cli
from gpupack.errors import InputError
from kubeapi.selectors import HOSTNAME
from scheduler_plugin.cache.amounts import CPU, PODS
from scheduler_plugin.cache.amounts import MEMORY as HOST_MEMORY
from tests.autoscale_world import Node, Pod, fragments, grown, of_daemon_set, serve_claims
from tests.cluster_builders import MEMORY
from tests.yaml_text import read_yaml

TYPE = "node.kubernetes.io/instance-type"
SHAPES = """
shapes:
  - name: h100
    cards: [{count: 2, model: NVIDIA H100, mib: 81559}]
    cpu: "206"
    memory: 1800Gi
    labels: {node.kubernetes.io/instance-type: a3}
    taints: [{key: nvidia.com/gpu, value: present, effect: NoSchedule}]
"""


def learned(nodes, pods=(), **changes):
    cluster = grown(nodes, pods, **changes).cluster
    return learn_shapes(cluster, (), read_card_sets(cluster))


def test_nodes_with_the_same_cards_and_group_are_one_shape():
    nodes = [Node(f"n{at}", (80, 80), labels=((TYPE, "a" if at % 2 else "b"),)) for at in range(6)]
    assert [(len(shape.nodes), shape.labels[TYPE]) for shape in learned(nodes)] == [(3, "a"), (3, "b")]


def agent(item):
    of_daemon_set(item)
    item["spec"]["containers"][0]["resources"]["requests"]["example.com/hca"] = "1"


def static(item):
    agent(item)
    item["metadata"]["ownerReferences"][0]["kind"] = "Node"
    item["metadata"]["annotations"]["kubernetes.io/config.mirror"] = "a"


def ended(item):
    agent(item)
    item["status"]["phase"] = "Failed"


def leaving(item):
    agent(item)
    item["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:00Z"


def annotated(item):
    agent(item)
    item["metadata"]["ownerReferences"][0]["kind"] = "CloneSet"
    item["metadata"]["annotations"]["cluster-autoscaler.kubernetes.io/daemonset-pod"] = "true"


@pytest.mark.parametrize(
    ("change", "counts"),
    [(agent, True), (static, True), (annotated, True), (ended, False), (leaving, False)],
)
def test_what_a_new_node_runs_too_is_not_there_for_pods(change, counts):
    """As Cluster Autoscaler counts for the template of a group: pods of DaemonSets and static ones."""

    def offer(item):
        item["status"]["allocatable"] |= {"pods": "11", "example.com/hca": "4"}

    (shape,) = learned(
        [Node("n1", (80,), cpu=16)],
        [Pod("agent", 1, "n1", (0,), cpu=3), Pod("app", 1, "n1", (0,), cpu=2)],
        agent=change,
        n1=offer,
    )
    amounts = Shapes([shape], 1024).amounts(shape.name)
    assert (amounts.pods, amounts.cpu_milli, amounts.units, amounts.get("example.com/hca")) == (
        (10, 13_000, 79, 3) if counts else (11, 16_000, 80, 4)
    )


@pytest.mark.parametrize(("resource", "position"), [("pods", PODS), ("cpu", CPU), ("memory", HOST_MEMORY)])
def test_of_what_a_node_does_not_offer_a_new_one_has_none(resource, position):
    def offer_none(item):
        del item["status"]["allocatable"][resource]

    (shape,) = learned([Node("n1")], n1=offer_none)
    assert Shapes([shape], 1024).amounts(shape.name)[position] == 0


def test_taints_of_a_moment_are_left_out():
    def taints(item):
        item["spec"]["taints"] = [
            {"key": key, "effect": "NoSchedule"}
            for key in ("node.kubernetes.io/not-ready", "ToBeDeletedByClusterAutoscaler", "team")
        ]

    (shape,) = learned([Node("n1")], n1=taints)
    assert [taint.key for taint in shape.taints] == ["team"]


def test_the_least_that_a_ready_node_offers_counts():
    """A card is unhealthy on n1: an autoscaler may take that node for its template."""

    def offers(item):
        for amounts in (item["status"]["allocatable"], item["status"]["capacity"]):
            amounts["gpupack.io/gpu-memory-gib"] = "80"

    (shape,) = learned([Node("n1", (80, 80)), Node("n2", (80, 80))], n1=offers)
    assert (shape.offered, shape.node.status.allocatable[MEMORY]) == (80, "160")


def test_a_file_of_shapes_is_read_as_it_is_written():
    (shape,) = read_shapes(SHAPES, 1024)
    assert (shape.card_set, shape.offered) == ((("NVIDIA H100", 79), ("NVIDIA H100", 79)), 158)
    again = read_shapes(write_shapes([shape], 1024, "file"), 1024)[0]
    assert (again.card_set, again.taints) == (shape.card_set, shape.taints)
    assert again.labels == {**shape.labels, HOSTNAME: again.name}, "each is a host of its own"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"cards": []}, "shapes[0].cards is []; allowed: a list with at least one entry"),
        (
            {"cards": [{"count": 0, "mib": 1024}]},
            "shapes[0].cards[0].count is 0; allowed: a whole number from 1",
        ),
        ({"cards": [{"mib": 5}]}, "shapes[0].cards[0].mib is 5; allowed: a whole number of MiB from 1024"),
        ({"cards": [{"mib": 1024, "x": 1}]}, "allowed: a mapping of count, mib, model"),
        ({"cpu": "many"}, "shapes[0].cpu is"),
        ({"cpu": -1}, "shapes[0].cpu is"),
        ({"memory": None}, "shapes[0].memory is"),
        ({"name": ""}, "shapes[0].name is"),
        ({"labels": ["a"]}, "shapes[0].labels is"),
        ({"labels": {"bad key!": "a"}}, 'shapes[0].labels has the key "bad key!"; allowed: letters'),
        ({"labels": {"a/": "a"}}, 'shapes[0].labels has the key "a/"'),
        ({"labels": {"a": "b c"}}, 'shapes[0].labels has "a": "b c"; allowed: letters'),
        ({"labels": {"a": "b" * 64}}, "allowed: letters"),
        ({"taints": [{"key": "a", "effect": "No"}]}, "shapes[0].taints[0] is"),
        ({"taints": [{"key": "a b", "effect": "NoSchedule"}]}, 'shapes[0].taints[0] has the key "a b"'),
        ({"pods": 0}, "shapes[0].pods is 0"),
        ({"resources": {"gpupack.io/gpu-memory-gib": 1}}, "allowed: quantities of other resources"),
        ({"colour": 1}, "is not known; allowed: cards, cpu"),
    ],
)
def test_faults_of_a_file_are_one_line_each(change, said):
    entry = read_yaml(SHAPES)["shapes"][0] | change
    with pytest.raises(InputError) as caught:
        read_shapes(json.dumps({"shapes": [entry]}), 1024)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_amounts_are_quantities_as_people_write_them():
    entry = read_yaml(SHAPES)["shapes"][0]
    text = yaml.safe_dump({"shapes": [entry | {"cpu": 3.5, "memory": 1024, "resources": {"a.io/b": 2}}]})
    (shape,) = read_shapes(text, 1024)
    amounts = shape.node.status.allocatable
    assert (amounts["cpu"], amounts["memory"], amounts["a.io/b"]) == ("3500m", "1024", "2")


@pytest.mark.parametrize("text", ["", "a: [", "shapes: 5", "shapes: [], x: 1", "other: []"])
def test_what_is_no_file_of_shapes_is_said(text):
    with pytest.raises(InputError, match=r"the file of shapes(: not YAML|; allowed): "):
        read_shapes(text, 1024)


def test_every_format_says_what_the_kubelet_will_offer():
    shape = read_shapes(SHAPES, 1024)[0]
    written = {form: write_shapes([shape], 1024, form) for form in FORMATS}
    aws = "k8s.io/cluster-autoscaler/node-template"
    assert written["aws"].splitlines()[1:] == [
        f"{aws}/resources/gpupack.io/gpu-memory-gib: 158",
        f"{aws}/resources/gpupack.io/gpu-percent: 400",
        f"{aws}/label/{TYPE}: a3",
        f"{aws}/taint/nvidia.com/gpu: present:NoSchedule",
        f"{aws}/taint/startup-taint.cluster-autoscaler.kubernetes.io/gpupack: :NoSchedule",
    ]
    azure = "k8s.io_cluster-autoscaler_node-template"
    assert f"{azure}_resources_gpupack.io_gpu-memory-gib: 158" in written["azure"].splitlines()
    assert all("/" not in line.partition(": ")[0] for line in written["azure"].splitlines()[1:])
    labelled = read_shapes(SHAPES.replace("labels: {", "labels: {team.io/my_pool: x, "), 1024)
    assert f"{azure}_label_team.io_my~2pool: x" in write_shapes(labelled, 1024, "azure").splitlines()
    assert written["gce"].splitlines()[1] == (
        f"AUTOSCALER_ENV_VARS: node_labels={TYPE}=a3;node_taints=nvidia.com/gpu=present:NoSchedule,"
        "startup-taint.cluster-autoscaler.kubernetes.io/gpupack=:NoSchedule;"
        "extended_resources=gpupack.io/gpu-memory-gib=158,gpupack.io/gpu-percent=400"
    )
    overlay = read_yaml(written["karpenter"])
    assert overlay["spec"] == {
        "requirements": [{"key": TYPE, "operator": "In", "values": ["a3"]}],
        "capacity": {"gpupack.io/gpu-memory-gib": "158", "gpupack.io/gpu-percent": "400"},
    }


def run(*arguments, text=None):
    done = CliRunner().invoke(cli, ["autoscale", "shapes", *arguments], input=text)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def test_the_command_reads_nodes():
    nodes, pods = fragments(2, labels=((TYPE, "a2"),))
    world = grown([*nodes, Node("other", (40,), labels=((TYPE, "t4"),))], pods)
    status, said = run("-f", "-", text=world.text)
    assert status == 0
    assert [entry["name"] for entry in read_yaml(said)["shapes"]] == ["t4", "a2"]
    assert read_shapes(said, 1024)
    status, said = run("n1", "--format", "aws", "-f", "-", text=world.text)
    assert (status, "resources/gpupack.io/gpu-memory-gib: 160" in said, "t4" in said) == (0, True, False)
    assert run("nosuch", "-f", "-", text=world.text)[0] == 2
    assert len(find_shapes(world.cluster, ())) == 2


def test_nodes_that_serve_claims_are_no_shape_that_an_autoscaler_could_add():
    nodes = [Node("n1", labels=((TYPE, "a2"),)), Node("d1", (40,), labels=((TYPE, "t4"),))]
    said = "node d1 serves claims: its kubelet offers no GPU memory"
    status, output = run("-f", "-", text=grown(nodes, [], d1=serve_claims).text)
    assert (status, [entry["name"] for entry in read_yaml(output)["shapes"]]) == (0, ["a2"])
    for names, text in (
        (("d1",), grown(nodes, [], d1=serve_claims)),
        ((), grown(nodes[1:], [], d1=serve_claims)),
    ):
        status, output = run(*names, "-f", "-", text=text.text)
        assert (status, said in output) == (2, True), output


def test_the_label_of_batch_modes_own_nodes_is_told():
    """Its pods have a node selector for it: without the label no autoscaler adds a node for them."""
    world = grown([Node("n1", (80,), labels=(("gpupack.io/batch", "true"), ("gpupack.io/host", "n1")))], [])
    (entry,) = read_yaml(run("-f", "-", text=world.text)[1])["shapes"]
    assert entry["labels"] == {"gpupack.io/batch": "true"}
    given = ("--name", "a", "--cards", "1x2048", "--cpu", "1", "--memory", "1Gi", "--format", "aws")
    said = run(*given, "--label", "gpupack.io/batch=true")[1]
    assert "k8s.io/cluster-autoscaler/node-template/label/gpupack.io/batch: true" in said.splitlines()


def test_the_command_takes_what_is_given():
    given = (
        "--name",
        "h100",
        "--cards",
        "8x81559:NVIDIA H100 80GB HBM3",
        "--cpu",
        "206",
        "--memory",
        "1800Gi",
    )
    status, said = run(*given, "--taint", "gpu=yes:NoSchedule")
    (entry,) = read_yaml(said)["shapes"]
    assert (status, entry["cards"]) == (0, [{"count": 8, "model": "NVIDIA H100 80GB HBM3", "mib": 80896}])
    assert entry["taints"] == [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--format", "oracle"), "--format 'oracle'; allowed: file, aws, azure, gce, karpenter"),
        (
            ("--name", "a", "--cards", "eight", "--cpu", "1", "--memory", "1Gi"),
            '--cards "eight"; allowed: COUNTxMIB',
        ),
        (
            ("--name", "a", "--cards", "1x2048", "--cpu", "1"),
            "--memory not given; allowed: all of them together",
        ),
        (("--label", "a=b"), "--name, --cards, --cpu, --memory not given"),
        (("n1", "--name", "a"), "NODE is for what nodes have"),
        (
            ("--name", "a", "--cards", "1x2048", "--cpu", "1", "--memory", "1Gi", "--format", "karpenter"),
            "has no label node.kubernetes.io/instance-type",
        ),
    ],
)
def test_what_is_wrong_with_the_command_is_one_line(arguments, said):
    status, output = run(*arguments)
    assert (status, said.lower() in output.lower()) == (2, True), output
