"""What people get wrong, and clusters that are half there: a plain sentence each."""

import asyncio
import codecs
import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from importlib import resources

import pytest
from click.testing import CliRunner

from allocator.names import NODE_CARDS, PACKED_LAYOUT, POD_CARDS
from allocator.records import CardRecord, dump_cards
from gpupack import InputError
from gpupack.autoscale.settings import AutoscaleSettings
from gpupack.cli.app import cli
from gpupack.diagnose import explain_pod
from gpupack.rebalance.advise import advise_empty, advise_start
from gpupack.whatif import Cluster, FitQuestion, answer_fit
from gpupack.whatif.fetching import ClusterSource, list_cluster
from gpupack.whatif.objects import load_objects
from kubeapi.errors import Forbidden
from kubeapi.paths import NODES_PATH
from tests.ask_world import EXAMPLE, Node, Pod, World, without_words


def run(*arguments, text=None):
    return CliRunner().invoke(cli, [*arguments, "-f", "-"], input=EXAMPLE.text if text is None else text)


@pytest.mark.parametrize(
    ("namespace", "name", "said"),
    [
        ("team-a", "nobody", 'the file has no pod "nobody" in namespace "team-a"'),
        ("team-b", "inference", "pods of that name are in team-a: use -n"),
        ("team-z", "nobody", "and no pod at all in that namespace"),
        ("team-a", "inferense", 'in namespace "team-a"; did you mean "inference"?'),
        ("team-a", "chat", 'in namespace "team-a"; did you mean "chat-1", "chat-2"?'),
    ],
)
def test_a_pod_that_is_not_there(namespace, name, said):
    result = run("why", name, "-n", namespace)

    assert result.exit_code == 2
    assert said in result.output
    assert len(result.output.splitlines()) == 1


def test_a_pod_as_kubectl_and_our_own_answers_write_it():
    """`why` says "Pod team-a/inference": that can be pasted, and so can kubectl's pod/inference."""
    plain = run("why", "inference", "-n", "team-a")

    assert plain.exit_code == 0
    for arguments in (
        ["team-a/inference"],
        ["team-a/inference", "-n", "team-a"],
        ["pod/inference", "-n", "team-a"],
    ):
        assert run("why", *arguments).output == plain.output
    two = run("why", "team-a/inference", "-n", "team-b")
    assert (two.exit_code, "'team-a/inference' with --namespace 'team-b'" in two.output) == (2, True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the input is empty"),
        ("{", "the input is not JSON"),
        ("[]", "does not hold nodes and pods"),
        ('{"kind": "Node", "metadata": {"name": "n"}}', 'a "Node", not a list'),
        ('{"items": [{"kind": "Service", "metadata": {"name": "web"}}]}', 'a "Service", "web"'),
        ('{"items": []}', "holds nothing"),
        ('{"kind": "NodeList"}', 'the input is a "NodeList" without items; allowed:'),
        ('{"kind": "List", "items": null}', 'the input is a "List" without items; allowed:'),
        ('{"items": [{"kind": "Pod", "metadata": {"name": "p"}}]}', "holds no nodes"),
        ('{"items": [{"kind": "Node", "metadata": 4}]}', "$.items[0].metadata"),
        ('{"items": [{"kind": "Node", "metadata": {}}]}', "a node without a name"),
        (
            '{"items": [{"kind": "ResourceClaim", "metadata": {"name": "c"}}, {"kind": "Node", "spec": 4}]}',
            "$.items[1].spec",
        ),
    ],
)
def test_a_file_of_something_else(text, said):
    with pytest.raises(InputError) as raised:
        load_objects(text)
    assert said in str(raised.value)
    assert "kubectl get nodes,pods -A -o json" in str(raised.value)


@pytest.mark.parametrize(
    ("encoding", "mark"),
    [("utf-8", codecs.BOM_UTF8), ("utf-16-le", codecs.BOM_UTF16_LE), ("utf-16-be", codecs.BOM_UTF16_BE)],
)
def test_files_as_powershell_writes_them(encoding, mark, tmp_path):
    """`>` of PowerShell 5 writes UTF-16, and `Out-File -Encoding utf8` a byte order mark."""

    def write(name, text):
        file = tmp_path / name
        file.write_bytes(mark + text.encode(encoding))
        return str(file)

    cluster = write("cluster.json", EXAMPLE.text)
    manifest = '{"kind": "Pod", "metadata": {"name": "ä"}}'
    shapes = write(
        "shapes.yaml",
        "shapes:\n- {name: a, cards: [{count: 1, model: T4, mib: 15360}], cpu: 4, memory: 8Gi}\n",
    )

    for question in (["why", "team-a/inference"], ["fit", "8"], ["top"]):
        result = CliRunner().invoke(cli, [*question, "-f", cluster])
        assert result.exit_code == 0, result.output
    migrated = CliRunner().invoke(cli, ["migrate", "-f", write("pod.json", manifest)])
    assert "ä" in migrated.stdout
    queues = CliRunner().invoke(
        cli, ["queue", "check", write("queues.yaml", "queues:\n- {name: a, nominalQuota: 8}\n")]
    )
    assert queues.exit_code == 0, queues.output
    assert [shape.name for shape in AutoscaleSettings(shapes=shapes).declared()] == ["a"]


def test_a_file_cut_off_in_utf_16_is_refused_in_a_line():
    result = CliRunner().invoke(cli, ["fit", "8", "-f", "-"], input=codecs.BOM_UTF16_LE + b"{")

    assert result.exit_code == 2
    assert "the input is not JSON" in result.stderr


class RefusingApi:
    """An API server that lists nothing, and says so of the nodes last."""

    def __init__(self) -> None:
        self.pods_refused = asyncio.Event()

    async def pages(self, path: str) -> AsyncGenerator[bytes]:
        if path == NODES_PATH:
            await self.pods_refused.wait()
            await asyncio.sleep(0)
        self.pods_refused.set()
        raise Forbidden(path, status=403)
        yield b""


async def test_who_may_list_neither_is_told_of_the_nodes():
    """With these words goes the hint what members can ask; pods may be refused first."""
    told = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: told.append(context))
    with pytest.raises(Forbidden, match=NODES_PATH):
        await list_cluster(RefusingApi(), ClusterSource())
    assert told == []


def changed(change, names):
    """The example cluster with changed nodes, each named by its last letter."""
    return EXAMPLE.changed(**{f"gpu-{name}": change for name in names}).cluster


def test_a_cluster_without_any_gpupack():
    cluster = changed(without_words, "abcd")

    answer = explain_pod(cluster, "team-a", "inference")

    assert answer.state == "pending"
    assert "no node of the file offers GPU memory" in answer.text
    with pytest.raises(InputError, match="is gpupack node running on them"):
        answer_fit(cluster, FitQuestion(8))
    with pytest.raises(InputError, match="no node of the file offers GPU memory"):
        advise_start(cluster, FitQuestion(8))


def test_half_a_cluster_with_gpupack_says_so_of_the_other_half():
    answer = explain_pod(changed(without_words, "cd"), "team-a", "inference")

    assert {group.reason: group.count for group in answer.nodes} == {"NotFree": 2, "NoWords": 2}
    assert answer_fit(changed(without_words, "cd"), FitQuestion(27)).pods == 1


def test_a_node_with_corrupt_words_is_a_group_of_its_own_and_the_rest_is_answered():
    def corrupt(node):
        node["status"]["allocatable"][PACKED_LAYOUT] = "7"

    answer = explain_pod(changed(corrupt, "b"), "team-a", "inference")

    assert {group.reason for group in answer.nodes} >= {"NotFree", "CorruptWords"}
    assert "words that cannot be read are on gpu-b" in answer.notes


def test_a_pod_whose_request_cannot_be_given_is_refused_with_the_reason():
    world = World((Node("n"),), (Pod("p", 3, policies=((POD_CARDS, "2"),)),))

    answer = explain_pod(world.cluster, "default", "p")

    assert answer.state == "refused"
    assert "allowed: a multiple of the number of cards" in answer.text


def test_a_pod_without_gpu_memory_and_pods_that_are_over():
    everything = json.loads(World((Node("n"),), (Pod("a", 3), Pod("b", 3, "n", (0,)), Pod("c", 1))).text)
    *_, plain, failed, done = everything["items"]
    plain["spec"]["containers"][0]["resources"] = {}
    failed["status"] = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no devices"}
    done["status"] = {"phase": "Succeeded"}
    cluster = Cluster.from_json(json.dumps(everything))

    assert explain_pod(cluster, "default", "a").state == "no-cards"
    answer = explain_pod(cluster, "default", "b")
    assert (answer.state, answer.text) == ("failed", "failed: UnexpectedAdmissionError: no devices")
    assert "the kubelet refused it" in answer.notes[0]
    assert explain_pod(cluster, "default", "c").state == "ended"


def test_a_running_pod_has_its_cards_and_neighbours():
    answer = explain_pod(EXAMPLE.cluster, "team-a", "chat-1")

    (card,) = answer.cards
    assert (answer.state, answer.node, card.card, card.promised_units) == ("running", "gpu-a", 1, 10)
    assert [(each.pod, each.units) for each in card.neighbours] == [("chat-2", 10)]
    assert (card.used_mib, card.limit_mib) == (None, None)


def test_a_gated_pod_says_which_queue():
    gated = replace(EXAMPLE.pod("inference"), queue="research")

    answer = explain_pod(EXAMPLE.but(gated).cluster, "team-a", "inference")

    assert answer.state == "gated"
    assert (answer.ways_out[0].kind, answer.ways_out[0].queue) == ("queue", "research")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["fit", "0"], "0 units; allowed: 1 to"),
        (["fit", "9", "--cards", "2"], "allowed: a multiple of the number of cards"),
        (["fit", "8", "--model", "!"], "allowed: a comma list"),
        (["fit", "8", "--without", "gone"], 'no node has the name "gone"'),
        (["fit", "8", "--add", "9xnothing"], "profile"),
        (["advise"], "allowed: one of --for"),
        (["advise", "--for", "8", "--empty", "gpu-a"], "allowed: one of --for"),
        (["advise", "--for", "8y2"], "allowed: UNITS or UNITSxN"),
        (["advise", "--for", "8x10000"], "with UNITS up to 999999 and N up to 9999"),
        (["advise", "--empty", "gpu-z"], '"gpu-z" is no node and no card'),
        (["advise", "--empty", "gpu-a/7"], '"gpu-a/7" is no node and no card; allowed: gpu-a/0, gpu-a/1\n'),
        (["advise", "--empty", "GPU-gpu-a"], '"GPU-gpu-a" is the beginning of 2 UUIDs; allowed: a node'),
        (["advise", "--empty", ""], '"" is no node and no card'),
        (["simulate", "--nodes", "x"], "--nodes with a cluster"),
        (["why", "p", "--context", "c"], "--context is for a cluster"),
    ],
)
def test_what_is_wrong_with_a_command_line(arguments, said):
    result = run(*arguments)

    assert result.exit_code == 2
    assert said in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize("times", ["0", "10000", "-1", "1.5", "01", "two", ""])
def test_a_number_of_added_nodes_that_is_not_allowed(times):
    result = run("fit", "8", "--add", f"8xh100-80x{times}")

    assert result.exit_code == 2
    assert result.stderr == (
        f'gpupack: --add "8xh100-80x{times}"; allowed: the profile alone, or "8xh100-80xN" with N a whole '
        "number from 1 to 9999\n"
    )


def test_a_profile_that_is_a_file_may_be_called_as_if_it_had_a_number(tmp_path):
    named = tmp_path / "minex0"
    refused = run("fit", "8", "--add", str(named))
    shipped = resources.files("deviceplugin.gpus.simulated") / "profiles" / "2xt4.yaml"
    named.write_text(shipped.read_text("utf-8"), encoding="utf-8")

    assert "N a whole number from 1 to 9999" in refused.stderr
    assert run("fit", "8", "--add", str(named)).exit_code == 0


def test_a_control_sequence_in_a_message_does_not_reach_the_terminal():
    def refuse(pod):
        message = "0/4 nodes \x1b[31mred"
        pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "message": message}]

    result = run("why", "inference", "-n", "team-a", text=EXAMPLE.changed(inference=refuse).text)

    assert "kube-scheduler says:" in result.output
    assert "\x1b" not in result.output


def test_the_message_of_a_gate_that_is_gone_is_not_the_schedulers():
    def release(pod):
        gated = {"status": "False", "reason": "SchedulingGated", "message": "Scheduling is blocked"}
        pod["status"]["conditions"] = [{"type": "PodScheduled", **gated}]

    result = run("why", "inference", "-n", "team-a", text=EXAMPLE.changed(inference=release).text)

    assert "kube-scheduler says:" not in result.output


def test_the_keys_that_scripts_rely_on():
    told = json.loads(run("why", "inference", "-n", "team-a", "-o", "json").output)
    assert {"pod", "state", "nodes", "ways_out"} <= told.keys()
    assert {"reason", "count", "best", "asked_units"} <= told["nodes"][0].keys()
    assert told["nodes"][0]["best"].keys() == {"node", "card", "free_units", "compute_free"}
    assert all({"kind", "text"} <= way.keys() for way in told["ways_out"])

    told = json.loads(run("fit", "8", "-o", "json").output)
    assert {"pods", "largest_units", "nodes"} <= told.keys()
    assert {"node", "pods"} <= told["nodes"][0].keys()

    told = json.loads(run("advise", "--for", "39x2", "-o", "json").output)
    assert {"gained", "moves", "before", "after", "at_least"} <= told.keys()
    move = told["moves"][0]
    assert {"namespace", "pod", "units", "from", "to"} <= move.keys()
    assert move["from"].keys() == move["to"].keys() == {"node", "cards", "uuids"}
    assert (told["before"], told["after"]) == ({"pods": 1}, {"pods": 2})


def test_what_may_not_move_and_why():
    world = World((Node("n", (16,)), Node("m", (16,))), (Pod("alone", 9, "n", (0,), owned=False),))

    assert not advise_start(world.cluster, FitQuestion(16), 2).moves
    advice = advise_empty(world.cluster, "n/0")
    assert not advice.moves
    assert advice.notes == ("default/alone stays: no controller replaces it",)


@pytest.mark.parametrize(
    ("what", "cards"),
    [("n", {0, 1, 2}), ("n/0", {0, 1}), ("n/3", {2}), ("MIG-a1", {0}), ("MIG-a12", {2}), ("MIG-b", {1})],
)
def test_a_card_to_empty_is_named_as_for_cordon(what, cards):
    """The instances of a card in MIG mode share its number: all of them are emptied."""
    ids = [("MIG-a1", 0, "GPU-0"), ("MIG-b77", 0, "GPU-0"), ("MIG-a12", 3, "")]
    records = [CardRecord(uuid, at, "H100", 16384, 0, True, parent=parent) for uuid, at, parent in ids]
    pods = tuple(Pod(f"p{card}", 4, "n", (card,), owned=False) for card in range(3))

    def change(node):
        node["metadata"]["annotations"][NODE_CARDS] = dump_cards(records)

    advice = advise_empty(World((Node("n", (16, 16, 16)),), pods).changed(n=change).cluster, what)

    assert {note.split()[0] for note in advice.notes} == {f"default/p{card}" for card in cards}


def test_a_cluster_that_is_kept_current_forgets_a_pod_as_the_extender_does():
    world = World((Node("n", (16,)),), (Pod("p", 12, "n", (0,), held=False),))
    cluster = world.cluster
    (pod,) = cluster.pods.values()
    node = cluster.nodes["n"]
    assert answer_fit(cluster, FitQuestion(4)).pods == 1

    cluster.drop_pod(pod, "200", now=1000.0)
    # The kubelet may have started it before it heard of the end, and the words do not say.
    assert answer_fit(cluster, FitQuestion(4)).pods == 1
    cluster.put_node(node, now=1031.0)
    assert answer_fit(cluster, FitQuestion(4)).pods == 4

    cluster.put_pod(pod, now=1040.0)
    cluster.drop_node("n", "300", now=1050.0)
    with pytest.raises(InputError):
        answer_fit(cluster, FitQuestion(4))


SIMULATE = ("simulate", "--cluster", "--jobs", "1", "--policy", "best-fit")


def test_a_pod_that_fits_nowhere_is_named_in_a_simulation():
    whole = World((Node("n", sizes=(39,)),), (Pod("big", 39, "n", (0,), cpu=2), Pod("small", 2)))

    result = run(*SIMULATE, "--unit-mib", "2048", text=whole.text)

    assert result.exit_code == 0
    assert result.stderr == (
        "pod default/big asks for 39 GiB of GPU memory, 2 CPU and 0 GiB of memory: that, in units of 2 GiB, "
        "fits on no node even when it is empty; the pod is kept and will fail\n"
    )


def test_other_oddities_of_a_row_name_the_pod_too():
    absurd = World((Node("n"),), (Pod("odd", 2, cpu=10**9), Pod("small", 2)))

    result = run(*SIMULATE, text=absurd.text)

    assert result.stderr.startswith("pod default/odd: cpu_milli is ")
    assert "/tmp" not in result.output


@pytest.mark.parametrize(
    ("more", "pods", "said"),
    [
        ((), (), "no pod of the file asks for GPU memory that can be given: there is nothing to simulate"),
        (
            ("--unit-mib", "999999"),
            (Pod("p", 2),),
            "no card has a unit of 999999 MiB: the largest has 16 GiB",
        ),
        (("--policy", "nope"), (Pod("p", 2),), 'node policy "nope"; allowed: '),
        (("--inflation", "0"), (Pod("p", 2),), "inflation 0; allowed: more than 0 up to 100"),
    ],
    ids=["no-pods", "unit", "policy", "inflation"],
)
def test_what_cannot_be_simulated_is_refused_before_anything_is_written(more, pods, said):
    text = World((Node("n"),), (*pods, Pod("none", 0)))

    result = run(*SIMULATE, *more, text=text.text)

    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"gpupack: {said}")
    assert len(result.stderr.splitlines()) == 1


def test_fit_counts_apart_what_only_pods_that_tolerate_taints_can_use():
    """The first line promised places on nodes that keep most pods off."""
    plain, tainted = Node("a", (16,)), Node("b", (8,), taints=("team-b",))

    def first_line(*nodes):
        return run("fit", "8", text=World(nodes).text).output.splitlines()[0]

    assert first_line(plain) == "2 pods of 8 GiB fit now."
    assert first_line(plain, tainted) == "2 pods of 8 GiB fit now, and 1 more, if they tolerate taints."
    assert first_line(tainted) == "1 pod of 8 GiB fits now, if it tolerates taints."


def test_fit_counts_apart_what_needs_a_toleration_in_json_too():
    """Scripts read `pods` and `largest_units` as what any pod gets."""
    smaller, tainted = Node("a", (16,)), Node("b", (24,), taints=("team-b",))
    text = World((smaller, tainted)).text
    told = json.loads(run("fit", "8", "-o", "json", text=text).stdout)
    keys = ("pods", "tolerating_pods", "largest_units", "largest_tolerating_units")
    assert [told[key] for key in keys] == [2, 3, 16, 24]
    assert "that fits now: 16 GiB; 24 GiB if it tolerates taints\n" in run("fit", "8", text=text).stdout
    after = run("fit", "8", "--without", "b", text=text).stdout.splitlines()[-1]
    assert after == "  that is +0 pods, and -3 of those that tolerate taints"
    told = json.loads(run("fit", "8", "-o", "json", text=World((tainted,)).text).stdout)
    assert [told[key] for key in keys] == [0, 3, 0, 24]
