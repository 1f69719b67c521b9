"""That a list of moves is short, and that each of its moves can be made."""

import json

from allocator.names import POD_GANG, POD_GANG_SIZE
from gpupack.diagnose import explain_pod
from gpupack.rebalance import plan_state as tables
from gpupack.rebalance.advise import advise_empty, advise_start
from gpupack.rebalance.planning import TOGETHER
from gpupack.whatif import Cluster, FitQuestion
from gpupack.whatif.rendering import format_advice
from tests.ask_world import Node, Pod, World
from tests.cluster_builders import uuid

CARDS = Node("n", (12, 12, 12))
STAYS = Pod("stays", 4, "b", (0,), owned=False)


def with_pods(world, **changes):
    """The cluster of a world, with the named objects changed in place by functions."""
    everything = json.loads(world.text)
    for item in everything["items"]:
        changes.get(item["metadata"]["name"], lambda _: None)(item)
    return Cluster.from_json(json.dumps(everything))


def test_a_pod_on_two_cards_moves_to_any_two_as_far_as_its_choices_are_tried(monkeypatch):
    # What is left of card 0 and 1 without `two` differs: the card policy alone would choose others.
    single = tuple(Pod(f"s{at}", units, "n", (0,)) for at, units in enumerate((1, 4, 1, 1)))
    asked = World((CARDS,), (*single, Pod("two", 2, "n", (1, 2), count=2))).cluster

    advice = advise_start(asked, FitQuestion(8), 3)

    assert (advice.before.pods, advice.after.pods, len(advice.moves)) == (2, 3, 2)
    monkeypatch.setattr(tables, "MOST_CHOICES", 1)
    assert len(advise_start(asked, FitQuestion(8), 3).moves) == 3


def test_two_pods_on_two_cards_move_to_the_same_ones():
    pods = (
        Pod("four", 4, "n", (0,)),
        Pod("one", 1, "n", (0,)),
        Pod("first", 2, "n", (0, 1), count=2),
        Pod("second", 2, "n", (0, 2), count=2),
    )

    advice = advise_start(World((CARDS,), pods).cluster, FitQuestion(8), 3)

    assert (advice.before.pods, advice.after.pods, len(advice.moves)) == (2, 3, 2)


def test_a_node_that_has_as_many_pods_as_it_may_needs_one_to_go_and_not_more():
    # On b both would have to go; a has room on its card, and takes no further pod.
    nodes = (Node("a", (12,)), Node("b", (8,)), Node("c", (7,)))
    pods = (Pod("p", 1, "a", (0,)), Pod("q", 1, "b", (0,)), Pod("r", 1, "b", (0,)))
    full = with_pods(World(nodes, pods), a=lambda node: node["status"]["allocatable"].update(pods="1"))

    advice = advise_start(full, FitQuestion(8))

    assert ([move.pod for move in advice.moves], advice.at_least) == (["p"], 1)


def test_cards_that_another_pod_names_are_not_taken_for_the_same():
    # `large` is looked at first, and the cards of b differ in nothing but that `small` is for one of them.
    nodes = (Node("a", (12, 12)), Node("b", (12, 12)))
    pods = (Pod("large", 9, "a", (0,)), Pod("small", 8, "a", (1,)))
    for card in (0, 1):
        named = {"gpupack.io/gpu-uuid": uuid("b", card)}
        asked = with_pods(
            World(nodes, pods), small=lambda pod, named=named: pod["metadata"]["annotations"].update(named)
        )

        advice = advise_empty(asked, "a")

        assert {move.pod for move in advice.moves} == {"large", "small"}


def apart(pod):
    term = {"topologyKey": "host", "labelSelector": {"matchLabels": {"app": "x"}}}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    pod["spec"]["affinity"] = {"podAntiAffinity": required}


def test_a_move_that_another_move_would_make_possible_by_anti_affinity_is_not_found():
    # `p` has room on b alone, where `q` keeps it off until that has moved to c: this is not followed.
    nodes = tuple(
        Node(name, (size,), labels=(("host", name),)) for name, size in (("a", 12), ("b", 11), ("c", 3))
    )
    labels = (("app", "x"),)
    pods = (Pod("p", 9, "a", (0,), labels=labels), Pod("q", 2, "b", (0,), labels=labels))

    advice = advise_start(with_pods(World(nodes, pods), p=apart, q=apart), FitQuestion(12))
    alone = advise_start(World(nodes, pods).cluster, FitQuestion(12))

    assert advice.moves == ()
    assert "no list of moves was found that lets another one start" in format_advice(advice)
    assert [move.pod for move in alone.moves] == ["p"]


def test_why_says_that_pods_trade_places():
    # Each has room only where the other is.
    nodes = (Node("a", (8,)), Node("b", (10,)))
    pods = (Pod("p", 8, "b", (0,)), Pod("q", 5, "a", (0,)), Pod("w", 5))

    (way,) = [
        way for way in explain_pod(World(nodes, pods).cluster, "default", "w").ways_out if way.kind == "moves"
    ]

    assert {move.pod for move in way.moves} == {"p", "q"}
    assert way.text == f"2 moves let it start on node b ({TOGETHER}):"


def test_of_two_pods_that_keep_each_other_off_one_moves():
    # Both could go to c by its cards, but not both together; to d neither.
    nodes = tuple(
        Node(name, (size,), labels=(("host", name),))
        for name, size in (("a", 12), ("b", 12), ("c", 8), ("d", 2))
    )
    pods = tuple(Pod(name, 3, node, (0,), labels=(("app", "x"),)) for name, node in (("p", "a"), ("q", "b")))

    advice = advise_start(with_pods(World(nodes, pods), p=apart, q=apart), FitQuestion(12), 2)

    assert (advice.before.pods, advice.after.pods, len(advice.moves)) == (0, 1, 1)
    assert advice.text.endswith("; no list was found that lets all 2 start")


def ways(nodes, pods, name="w", **changes):
    answer = explain_pod(World(nodes, pods).changed(**changes).cluster, "default", name)
    return {way.kind: way for way in answer.ways_out}


def test_a_move_gives_back_what_a_node_lacks_beside_cards():
    nodes = (Node("a", (16,), cpu=8), Node("b", (16,), cpu=64))
    found = ways(nodes, (Pod("p", 12, "a", (0,), cpu=6), STAYS, Pod("w", 16, cpu=4)))
    assert [move.pod for move in found["moves"].moves] == ["p"]
    # Of a node that has too few processors once p has gone, nothing is said.
    assert "moves" not in ways(nodes, (Pod("p", 12, "a", (0,), cpu=1), STAYS, Pod("w", 16, cpu=64)))


def test_pods_of_a_gang_take_what_they_ask_beside_cards_each():
    gang = ((POD_GANG, "g"), (POD_GANG_SIZE, "2"))
    nodes = (Node("a", (16, 16), cpu=64), Node("b", (16,), cpu=64), Node("c", (16,), cpu=64))
    pods = (Pod("p", 4, "b", (0,)), Pod("q", 8, "c", (0,)))
    waiting = tuple(Pod(name, 16, cpu=40, policies=gang) for name in ("g0", "g1"))
    assert [move.pod for move in ways(nodes, pods + waiting, "g0")["moves"].moves] == ["p"]


def test_the_end_of_a_pod_gives_back_its_port():
    def with_port(pod):
        pod["spec"]["containers"][0]["ports"] = [{"containerPort": 80, "hostPort": 80}]

    found = ways((Node("a", (16,)),), (Pod("p", 12, "a", (0,)), Pod("w", 16)), p=with_port, w=with_port)
    assert "default/p" in found["pods-end"].text
