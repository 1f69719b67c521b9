"""Policies that a command does not know, for only the cluster has their package: their pods count."""

from dataclasses import dataclass

import pytest
from click.testing import CliRunner

from allocator.names import POD_CARD_POLICY, POD_NODE_POLICY
from allocator.policies import CARD_POLICIES
from allocator.request import unknown_policy
from gpupack.cli.app import cli
from gpupack.diagnose import explain_pod
from gpupack.rebalance.advise import advise_empty, advise_start
from gpupack.whatif import Cluster, FitQuestion, answer_fit
from scheduler_plugin.scheduling.policies import NODE_POLICIES
from tests.ask_world import Node, Pod, World


@dataclass(frozen=True)
class Told(Pod):
    """A pod of which kube-scheduler says something."""

    said: str = ""

    def object(self):
        condition = {"type": "PodScheduled", "status": "False", "message": self.said}
        made = super().object()
        made["status"]["conditions"] = [condition]
        return made


NODE, CARD = (POD_NODE_POLICY, "mine"), (POD_CARD_POLICY, "mine")
BOTH = (NODE, CARD)


def asked(pod, *others):
    world = World((Node("a"), Node("b", sizes=(8,))), (*others, pod))
    return explain_pod(Cluster.from_json(world.text), "default", pod.name)


@pytest.mark.parametrize("policies", [(NODE,), (CARD,), BOTH])
def test_a_pod_that_waits_is_looked_at_as_if_it_named_none(policies):
    answer = asked(Pod("p", 12, policies=policies))

    assert (answer.state, answer.fits, answer.asked) == ("fits", ("a",), "12 GiB")
    kinds = [annotation.removeprefix("gpupack.io/").replace("-", " ") for annotation, _ in policies]
    notes = [note for note in answer.notes if "does not know" in note]
    assert [f'the {kind} "mine" of the pod' in note for kind, note in zip(kinds, notes, strict=True)] == [
        True for _ in kinds
    ]
    assert all("refuses the pod" in note for note in notes)


def test_its_other_annotations_count():
    """A card holds 16: two halves of 24 fit, one of 24 does not."""
    assert asked(Pod("p", 24, count=2, policies=BOTH)).fits == ("a",)
    assert asked(Pod("p", 24, policies=BOTH)).state == "pending"
    assert asked(Pod("p", 8, model="T4", policies=BOTH)).state == "pending"


def test_what_the_extender_has_refused_is_refused():
    theirs = unknown_policy(*NODE, NODE_POLICIES)
    said = f"0/2 nodes are available: 1 {theirs}, 1 node(s) had untolerated taint. preemption: 0/2 nodes"

    answer = asked(Told("p", 12, policies=BOTH, said=said))

    assert (answer.state, answer.text) == ("refused", f"is refused: {theirs}")
    assert asked(Told("p", 12, policies=(CARD,), said=said)).state == "fits"


@pytest.mark.parametrize("name", ["Mine", "", "a b", "a--b"])
def test_a_name_that_no_policy_can_have_is_a_mistake(name):
    answer = asked(Pod("p", 12, policies=((POD_CARD_POLICY, name),)))

    assert answer.state == "refused"
    assert f'card-policy is "{name}"; allowed: {CARD_POLICIES.allowed}' in answer.text


def test_the_cards_of_a_pod_that_runs_count():
    runs = Pod("runs", 12, "a", (0,), policies=BOTH)
    answer = explain_pod(Cluster.from_json(World((Node("a"),), (runs,)).text), "default", "runs")

    assert answer.state == "running"
    assert [(card.card, card.promised_units) for card in answer.cards] == [(0, 12)]
    free = answer_fit(Cluster.from_json(World((Node("a"),), (runs,)).text), FitQuestion(8))
    assert free.pods == 2


def test_top_shows_it_on_the_cards_that_the_scheduler_chose():
    runs = Pod("runs", 12, "a", (0, 1), held=False, count=2, policies=BOTH)

    (row,) = Cluster.from_json(World((Node("a"),), (runs,)).text).build_inventory()

    assert [[(pod.name, pod.units) for pod in card.pods] for card in row.cards] == [[("runs", 6)]] * 2


def test_it_is_moved_like_others():
    """Lists of moves do not go by policies: a moved pod may go to any cards."""
    pods = (Pod("one", 8, "a", (0,), policies=BOTH), Pod("fixed", 4, "b", (0,), owned=False))
    cluster = Cluster.from_json(World((Node("a", (16,)), Node("b", (16,))), pods).text)

    for answer in (advise_start(cluster, FitQuestion(16)), advise_empty(cluster, "a")):
        assert [move.pod for move in answer.moves] == ["one"]


def test_the_snapshot_has_them(tmp_path):
    text = World((Node("a"),), (Pod("p", 12, policies=BOTH),)).text

    done = CliRunner().invoke(cli, ["snapshot", "-f", "-", "--out", str(tmp_path / "out")], input=text)

    assert done.exit_code == 0, done.output
    assert "default/p," in (tmp_path / "out" / "pods.csv").read_text()


def test_an_annotation_that_gpupack_does_not_know_is_said():
    """A misspelt one is no mistake to the API server where gpupack's policies are not installed."""
    pod = Pod("p", 4, policies=(("gpupack.io/gpu-modle", "T4"), ("gpupack.io/cards", "1"), ("x.io/y", "")))
    (said,) = asked(pod).notes
    assert said.startswith("annotations that gpupack does not know: ['gpupack.io/gpu-modle']; allowed: ")
    assert "gpupack.io/gpu-model" in said
