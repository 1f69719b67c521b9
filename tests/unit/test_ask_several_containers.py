"""`gpupack fit` of pods with several containers: counted wherever there is a way to place them."""

import json

import pytest
from click.testing import CliRunner

import gpupack
from gpupack.cli.fit import fit as command
from gpupack.errors import InputError
from gpupack.whatif import FitQuestion, answer_fit
from tests.ask_world import Node, Pod, World

FIVES = World((Node("n", (5, 5)), Node("m", (5, 5, 5, 5)), Node("one", (5,))))


@pytest.mark.parametrize(
    ("world", "ask", "pods"),
    [
        (FIVES, FitQuestion(40, percent=True, more=(40, 80)), {"n": 1, "m": 2}),
        (FIVES, FitQuestion(2, more=(2, 4)), {"n": 1, "m": 2}),
        (FIVES, FitQuestion(2, more=(3,)), {"n": 2, "m": 4, "one": 1}),
        (FIVES, FitQuestion(4, more=(4, 4)), {"m": 1}),
        (FIVES, FitQuestion(4, 2, more=(4,)), {"n": 1, "m": 2}),
        (World((Node("n", (5, 5)),), (Pod("x", 2, "n", (0,)),)), FitQuestion(2, more=(3, 3)), {"n": 1}),
        (World((Node("n", (5, 5)),), (Pod("x", 3, "n", (0,)),)), FitQuestion(2, more=(3, 3)), {}),
    ],
    ids=["percent", "units", "to-the-last-unit", "not-together", "two-cards-each", "beside-another", "full"],
)
def test_pods_with_several_containers_are_counted(world, ask, pods):
    answer = answer_fit(world.cluster, ask)
    assert {each.node: each.pods for each in answer.nodes} == pods
    assert (answer.pods, answer.largest_units) == (sum(pods.values()), 0)
    assert (
        gpupack.fit(world.cluster, ask.units, *ask.more, cards=ask.cards, percent=ask.percent).pods
        == answer.pods
    )


def test_what_one_of_the_containers_asks_for_is_checked():
    with pytest.raises(InputError, match="140 percent on 1 card; allowed: at most 100"):
        answer_fit(FIVES.cluster, FitQuestion(40, percent=True, more=(140,)))
    with pytest.raises(InputError, match='units is "4"; allowed: a whole number'):
        gpupack.fit(FIVES.cluster, 2, "4")


def test_the_command_takes_an_amount_for_each_container(tmp_path):
    path = tmp_path / "cluster.json"
    path.write_text(FIVES.text)
    done = CliRunner().invoke(command, ["40", "40", "80", "--percent", "-f", str(path)])
    assert done.output.splitlines() == [
        "3 pods of 40 percent + 40 percent + 80 percent fit now.",
        "  m: 2",
        "  n: 1",
    ]
    done = CliRunner().invoke(command, ["40", "40", "80", "--percent", "-f", str(path), "-o", "json"])
    assert json.loads(done.output)["pods"] == 3
