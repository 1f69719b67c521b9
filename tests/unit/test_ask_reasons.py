"""What why, fit and snapshot say: the right node, the right reason, and what was left out."""

import json

from allocator.names import resource_name
from gpupack.ask import Cluster, why
from gpupack.ask.rendering import why_text
from tests.ask_world import Node, Pod, World

GIB = resource_name(1024)


def changed(world, **changes):
    """The cluster of a world, with the named objects changed in place by functions."""
    everything = json.loads(world.text)
    for item in everything["items"]:
        change = changes.get(item["metadata"]["name"])
        if change is not None:
            change(item)
    return Cluster.read(json.dumps(everything))


def test_too_little_cpu_names_the_node_with_the_most_left_and_no_card():
    world = World(
        (Node("a", cpu=4), Node("b", cpu=8)), (Pod("used", 1, "b", (0,), cpu=1), Pod("p", 4, cpu=50))
    )

    answer = why(world.cluster, "default", "p")

    (group,) = answer.nodes
    assert (group.reason, group.best.node, group.best.card, group.best.free_units) == ("Cpu", "b", None, None)
    assert group.text == "the most cpu that a node has left is 7 cpu, asked 50 cpu"
    assert "asked 50 cpu (node b)" in why_text(answer)


def test_too_little_host_memory_names_the_node_with_the_most_left_and_no_card():
    def ask(pod):
        pod["spec"]["containers"][0]["resources"]["requests"]["memory"] = "9000Gi"

    def larger(node):
        node["status"]["allocatable"]["memory"] = "8000Gi"

    answer = why(changed(World((Node("a"), Node("b")), (Pod("p", 4),)), p=ask, b=larger), "default", "p")

    (group,) = answer.nodes
    assert (group.reason, group.best.node, group.best.card) == ("Memory", "b", None)
    assert "(node b)" in why_text(answer)


def test_a_limit_of_zero_is_refused_with_the_reason():
    def ask(pod):
        pod["spec"]["containers"][0]["resources"] = {"limits": {GIB: "0"}, "requests": {GIB: "0"}}

    answer = why(changed(World((Node("n"),), (Pod("p", 4),)), p=ask), "default", "p")

    assert answer.state == "refused"
    assert f"{GIB}: 0 in its limits, which asks for no GPU memory: allowed are 1 to 131072" in answer.text


def test_no_card_of_any_node_is_not_at_most_0_cards():
    world = World((Node("n", foreign=(9, 9)),), (Pod("p", 32, count=2),))

    (group,) = why(world.cluster, "default", "p").nodes

    assert group.text == "no card of any node has 16 GiB free, asked are 2; the closest has 7 GiB"
