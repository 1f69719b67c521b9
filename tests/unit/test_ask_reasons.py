"""What why, fit and snapshot say: the right node, the right reason, and what was left out."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec import structs

import gpupack
from allocator.names import (
    COMPUTE_RESOURCE,
    PACKED_LAYOUT,
    PERCENT_RESOURCE,
    POD_ALLOCATION,
    POD_ASSIGNED,
    resource_name,
)
from allocator.place import place
from allocator.records import MemoryRecord, dump_allocation, dump_assigned
from gpupack import InputError
from gpupack.cli.fit import fit
from gpupack.diagnose import explain_pod
from gpupack.rebalance.advise import advise_start
from gpupack.whatif import Cluster, FitQuestion, answer_fit
from gpupack.whatif.rendering import format_fit, format_why
from gpupack.whatif.snapshot import describe_snapshot, make_snapshot
from scheduler_plugin.cache.cards import build_cards
from tests.ask_world import Node, Pod, World, by_extender, without_words
from tests.cluster_builders import in_percent, node_object, pod_object, uuid

GIB = resource_name(1024)


@pytest.mark.parametrize(
    ("reason", "resource", "asked", "there", "said"),
    [
        ("Cpu", "cpu", "50", ("4", "8"), "the most cpu that a node has left is 7 cpu, asked 50 cpu"),
        ("Memory", "memory", "9000Gi", ("7000Gi", "8000Gi"), "left is 8192000 MiB, asked 9216000 MiB"),
        (
            "OtherResource",
            "example.com/nic",
            "3",
            ("1", "2"),
            "the most example.com/nic that a node has left is 2, asked 3",
        ),
        ("OtherResource", "ephemeral-storage", "3Gi", ("1Gi", "2Gi"), "left is 2048 MiB, asked 3072 MiB"),
        ("NodeSum", GIB, "8", ("3", "6"), "too little is left (5 GiB)"),
    ],
)
def test_too_little_of_a_node_names_the_node_with_the_most_left_and_no_card(
    reason, resource, asked, there, said
):
    def ask(pod):
        for amounts in pod["spec"]["containers"][0]["resources"].values():
            amounts[resource] = asked

    def has(amount):
        return lambda node: node["status"]["allocatable"].update({resource: amount})

    world = World((Node("a"), Node("b")), (Pod("used", 1, "b", (0,), cpu=1), Pod("p", 4)))
    answer = explain_pod(world.changed(p=ask, a=has(there[0]), b=has(there[1])).cluster, "default", "p")

    (group,) = answer.nodes
    assert (group.reason, group.best.node, group.best.card, group.best.free_units) == (
        reason,
        "b",
        None,
        None,
    )
    assert said in group.text
    assert "(node b)" in format_why(answer)


COMPUTE_TAKEN = (
    Pod("a", 4, "n", (0,), compute=90),
    Pod("b", 8, "n", (1,), compute=80),
    Pod("c", 14, "m", (0,), compute=80),
)
"""Card 1 of node n has 8 GiB and 20 percent of compute left, which is closest."""


def test_compute_that_is_short_is_told_with_card_and_percent():
    world = World((Node("n"), Node("m", (16,)), Node("old", publishes_compute=False)), COMPUTE_TAKEN)
    world = world.but(Pod("p", 8, compute=30))

    answer = explain_pod(world.cluster, "default", "p")

    told = {group.reason: group for group in answer.nodes}
    assert set(told) == {"ComputeNotFree", "NotFree", "NoCompute"}
    short = told["ComputeNotFree"]
    assert (short.best.node, short.best.card, short.best.free_units, short.best.compute_free) == (
        "n",
        1,
        8,
        20,
    )
    assert short.text == (
        "the closest card has 8 GiB free, but only 20 percent of its compute left, asked 30"
    )
    assert "asked 30 (node n, card 1)" in format_why(answer)
    ways = {way.kind: way for way in answer.ways_out}
    assert (ways["less-compute"].compute, ways["less-compute"].node) == (20, "n")
    assert "with 20 percent of compute in place of 30 it fits now" in ways["less-compute"].text
    assert [pod.pod for pod in ways["pods-end"].pods] == ["a"], "its end frees the compute, too"
    assert "smaller-request" not in ways


def test_ends_and_moves_that_free_compute_are_ways_out():
    """Both cards have the memory; a small pod has the compute, and the other card has too little for both."""
    pods = (Pod("large", 4, "n", (0,), compute=70), Pod("small", 2, "n", (1,), compute=30))
    world = World((Node("n"), Node("m", (4,))), (*pods, Pod("p", 8, compute=90)))
    ways = {way.kind: way for way in explain_pod(world.cluster, "default", "p").ways_out}
    assert [pod.pod for pod in ways["pods-end"].pods] == ["small"]
    (move,) = ways["moves"].moves
    assert (move.pod, move.source.node) == ("small", "n")
    for wanted in (1, 2):
        assert advise_start(world.without("p").cluster, FitQuestion(8, compute=90), wanted).after.pods == 1


@pytest.mark.parametrize(("asked", "ends"), [(20, 1), (30, 2), (100, 2)])
def test_the_end_of_a_pod_frees_less_where_pods_have_more_than_the_limit(asked, ends):
    """The limit was lowered while they ran, and the words stop at it: 80 and 80 percent of 100."""
    pods = (
        Pod("a", 4, "n", (0,), compute=80),
        Pod("b", 4, "n", (0,), compute=80),
        Pod("p", 4, compute=asked),
    )
    answer = explain_pod(World((Node("n", (16,)),), pods).cluster, "default", "p")

    assert [len(way.pods) for way in answer.ways_out if way.kind == "pods-end"] == [ends]


def test_a_pod_without_compute_is_not_told_of_it():
    world = World((Node("n", (16,)),), (Pod("a", 4, "n", (0,), compute=100), Pod("p", 8)))
    answer = explain_pod(world.cluster, "default", "p")
    assert answer.state == "fits"
    none = explain_pod(world.but(Pod("p", 8, compute=1)).cluster, "default", "p")
    assert [(way.kind, way.compute) for way in none.ways_out if way.kind == "less-compute"] == [
        ("less-compute", 0)
    ]
    assert "without gpupack.io/gpu-compute-percent it fits now, on node n" in format_why(none)


def test_a_running_pod_is_told_its_compute():
    world = World(
        (Node("n", (16,)),), (Pod("a", 4, "n", (0,), compute=40), Pod("b", 4, "n", (0,), compute=25))
    )
    answer = explain_pod(world.cluster, "default", "a")
    (card,) = answer.cards
    assert (card.compute, card.compute_in_use, card.compute_held) == (40, 65, "")
    for held, said in (("", ""), ("mps", " (mps)"), ("accounted", ", and nothing refuses more")):
        told = format_why(structs.replace(answer, cards=(structs.replace(card, compute_held=held),)))
        assert f"of its compute 40 percent are promised to it{said}, 65 percent by all together" in told


def test_a_running_pod_that_asks_for_a_share_is_told_it_in_the_unit_of_its_node():
    """Most nodes count in another one: half a card of 16 GiB was told to be 16 of 32 GiB."""
    shares = {POD_ASSIGNED: dump_assigned({"main": ((uuid("n", 0), 16),)})}
    made = [
        node_object("n", (32,), (16,), unit_mib=512),
        node_object("m", (16,)),
        node_object("o", (16,)),
    ]
    half = pod_object("p", node="n", phase="Running", containers=[in_percent(50)], annotations=shares)
    items = [each | {"kind": "Node"} for each in made] + [half | {"kind": "Pod"}]
    answer = explain_pod(Cluster.from_json(json.dumps({"items": items})), "default", "p")
    assert "promised to it 8 GiB of 16 GiB" in format_why(answer)


@pytest.mark.parametrize(
    ("held", "limit", "said"),
    [
        (("driver", "driver"), 4096, "and can use 4096 MiB at most (driver)"),
        (("driver", "accounted"), None, "and nothing refuses more than the promise"),
        (("", "driver"), None, "and not what holds it to its share"),
    ],
)
def test_a_running_pod_is_limited_if_each_of_its_containers_is(held, limit, said):
    memory = {f"c{number}": {uuid("n", 0): MemoryRecord(each)} for number, each in enumerate(held)}
    got = dump_allocation("uid-a", {"c0": ((uuid("n", 0), 4),)}, memory)
    pod = Pod("a", 4, "n", (0,), policies=((POD_ALLOCATION, got),))
    answer = explain_pod(World((Node("n", (16,)),), (pod,)).cluster, "default", "a")
    assert (answer.cards[0].limit_mib, answer.cards[0].used_mib) == (limit, None)
    assert said in format_why(answer)


@pytest.mark.parametrize(
    ("ask", "pods", "largest"),
    [
        (FitQuestion(4), 6, 16),
        (FitQuestion(4, compute=30), 4, 16),
        (FitQuestion(4, compute=5), 6, 16),
        (FitQuestion(4, compute=50), 2, 16),
        (FitQuestion(8, cards=2, compute=40), 1, 16),
        (FitQuestion(25, percent=True, compute=20), 6, 100),
    ],
)
def test_fit_counts_by_memory_and_compute(ask, pods, largest):
    """Card 0 has 8 GiB and 40 percent left, card 1 all of 16 GiB and 100 percent."""
    world = World((Node("n"), Node("old", publishes_compute=False, cordoned=True)), ())
    world = world.but(Pod("a", 8, "n", (0,), compute=60))
    answer = answer_fit(world.cluster, ask)
    assert (answer.pods, answer.largest_units) == (pods, largest)
    assert ask.percent or answer.pods == count_placed(world, ask)
    assert ("percent of compute" in format_fit(answer)) == bool(ask.compute)
    assert f"The largest request that fits now: {'100 percent' if ask.percent else '16 GiB'}" in format_fit(
        answer
    )


def count_placed(world, ask):
    """Put pods where bind would, one after the other, until the extender's own filter refuses one."""
    placed = 0
    while "n" in by_extender(
        world, pod := Pod(f"p{placed}", ask.units, count=ask.cards, compute=ask.compute)
    ):
        cluster = world.but(pod).cluster
        request = cluster.read_request(cluster.find_pod("default", pod.name))
        nodes = cluster.state.nodes
        placement = place(build_cards(nodes, nodes.rows["n"]), request, "fragmentation")
        world = world.but(replace(pod, node="n", cards=tuple(placement.charge)))
        placed += 1
    return placed


@pytest.mark.parametrize(
    ("nodes", "asked", "text", "best"),
    [
        ((Node("a", (24, 24, 44)),), 60, "the largest healthy card has 44 GiB, asked 60 GiB", ("a", 2)),
        (
            (Node("a", (24, 24, 44)), Node("b", (30, 30))),
            60,
            "the largest healthy card has 44 GiB, asked 60 GiB",
            ("a", 2),
        ),
        (
            (Node("a", (24, 24, 44)),),
            (2, 40),
            "at most 1 healthy card of a node can hold 40 GiB, asked are 2",
            ("a", 0),
        ),
    ],
    ids=["one-node", "another-node-has-more-free", "two-cards"],
)
def test_the_card_that_is_named_is_the_one_whose_size_is_told(nodes, asked, text, best):
    """The card with the most free was named beside the size of the largest, which others have taken."""
    count, each = asked if isinstance(asked, tuple) else (1, asked)
    world = World(nodes, (Pod("runs", 43, "a", (2,)), Pod("p", count * each, count=count)))

    (group,) = explain_pod(world.cluster, "default", "p").nodes

    assert (group.reason, group.text, (group.best.node, group.best.card)) == ("TooSmall", text, best)


def test_a_share_in_percent_names_the_card_that_lacks_least_and_not_the_largest_free_share():
    """6 GiB were called the largest free share of a card, where a larger card had 30 free."""

    def ask(pod):
        pod["spec"]["containers"][0]["resources"] = {"limits": {PERCENT_RESOURCE: "50"}}

    nodes = (Node("a", (16,)), Node("b", (100,)))
    world = World(nodes, (Pod("x", 10, "a", (0,)), Pod("y", 70, "b", (0,)), Pod("p", 1)))

    (group,) = explain_pod(world.changed(p=ask).cluster, "default", "p").nodes

    assert group.text == "the closest card has 6 GiB free, 50 percent of it is 8 GiB: 2 GiB short"
    assert (group.best.node, group.best.free_units) == ("a", 6)


def test_a_limit_of_zero_is_refused_with_the_reason():
    def ask(pod):
        pod["spec"]["containers"][0]["resources"] = {"limits": {GIB: "0"}, "requests": {GIB: "0"}}

    answer = explain_pod(World((Node("n"),), (Pod("p", 4),)).changed(p=ask).cluster, "default", "p")

    assert answer.state == "refused"
    assert f"{GIB}: 0 in its limits, which asks for no GPU memory; allowed: 1 to 131072" in answer.text


@pytest.mark.parametrize(
    ("amounts", "said"),
    [
        ({COMPUTE_RESOURCE: "30"}, f"{COMPUTE_RESOURCE}: 30 alone; allowed: beside {GIB}"),
        ({PERCENT_RESOURCE: "0"}, f"{PERCENT_RESOURCE}: 0 in its limits, which asks for no GPU memory"),
    ],
    ids=["compute-alone", "zero-percent"],
)
def test_what_filter_refuses_is_listed_as_waiting_and_refused_by_why(amounts, said):
    def ask(pod):
        pod["spec"]["containers"][0]["resources"] = {"limits": amounts, "requests": amounts}

    cluster = World((Node("n"),), (Pod("p", 4),)).changed(p=ask).cluster
    answer = explain_pod(cluster, "default", "p")

    assert [pod.full_name for pod in cluster.list_waiting_pods()] == ["default/p"]
    assert (answer.state, said in answer.text) == ("refused", True), answer.text


def test_a_pod_that_runs_with_compute_alone_has_no_cards_and_no_unknown_resource():
    def ask(pod):
        pod["spec"]["containers"][0]["resources"] = {"limits": {COMPUTE_RESOURCE: "30"}}

    cluster = World((Node("n"),), (Pod("p", 4, "n", (0,), held=False),)).changed(p=ask).cluster
    answer = explain_pod(cluster, "default", "p")
    assert (answer.state, "is no resource" in answer.text) == ("no-cards", False), answer.text


def test_no_card_of_any_node_is_not_at_most_0_cards():
    world = World((Node("n", foreign=(9, 9)),), (Pod("p", 32, count=2),))

    (group,) = explain_pod(world.cluster, "default", "p").nodes

    assert group.text == "no card of any node has 16 GiB free, asked are 2; the closest node has 2 with 7 GiB"


def corrupt(node):
    node["status"]["allocatable"][PACKED_LAYOUT] = "7"


THREE = World((Node("a"), Node("b"), Node("c")), (Pod("p", 17), Pod("q", 4, "c", (0,))))
UNREAD = (
    "1 of 3 nodes is left out: its packed words cannot be read "
    "(first: a: layout header 7 has version 7; allowed: 1 or 2)"
)


def test_nodes_that_cannot_be_read_are_told_with_the_first_reason():
    cluster = THREE.changed(a=corrupt).cluster

    assert answer_fit(cluster, FitQuestion(8)).notes == (UNREAD,)
    assert UNREAD in format_fit(answer_fit(cluster, FitQuestion(8)))
    assert gpupack.advise(cluster, 16, 4).notes[-1] == UNREAD
    assert gpupack.advise(cluster, empty="c").notes[-1] == UNREAD
    assert make_snapshot(cluster).notes == (UNREAD,)
    assert make_snapshot(cluster, hidden=True).notes == (UNREAD.partition(" (")[0],)
    assert not answer_fit(THREE.cluster, FitQuestion(8)).notes


def test_a_snapshot_counts_the_processor_of_a_running_pod_once():
    """That of a pod which is left out was neither in the file nor taken from its node."""
    odd = Pod("odd", 4, "n", (0,), cpu=4, policies=(("gpupack.io/cards", "x"),))
    world = World((Node("n"),), (odd, Pod("p", 4, "n", (1,), cpu=3)))
    taken = make_snapshot(world.cluster)
    assert [row[:2] for row in taken.pods] == [("default/p", 3000)]
    assert [row[:2] for row in taken.nodes] == [("n", 36_000)]
    assert describe_snapshot(taken, [Path("a"), Path("b")])[0] == "wrote a (1 node) and b (1 pod)"


def test_nodes_without_words_are_told_and_a_node_that_is_mended_no_more():
    cluster = THREE.changed(a=without_words, b=corrupt).cluster
    assert len(answer_fit(cluster, FitQuestion(8)).notes) == 2
    assert answer_fit(cluster, FitQuestion(8)).notes[1] == (
        "1 of 3 nodes is left out: no gpupack daemon has published cards there (first: a)"
    )

    mended = THREE.cluster.nodes["b"]
    mended.metadata.resource_version = "99999"
    cluster.put_node(mended)
    assert len(answer_fit(cluster, FitQuestion(8)).notes) == 1


def test_where_no_node_can_be_read_the_words_are_the_reason():
    cluster = THREE.changed(a=corrupt, b=corrupt, c=corrupt).cluster

    text = explain_pod(cluster, "default", "p").text
    assert (
        "the packed words of 3 of the 3 nodes of the file cannot be read (first: a: layout header 7" in text
    )
    assert "is gpupack node running" not in text
    with pytest.raises(InputError) as raised:
        answer_fit(cluster, FitQuestion(8))
    assert text == f"waits: {raised.value}"


def test_nodes_without_words_beside_one_that_cannot_be_read_are_not_called_unreadable():
    cluster = THREE.changed(a=corrupt, b=without_words, c=without_words).cluster

    with pytest.raises(InputError, match=r"1 of the 3 nodes .*, and the others offer no GPU memory"):
        answer_fit(cluster, FitQuestion(8))


def other_scheduler(pod):
    pod["spec"]["schedulerName"] = "default-scheduler"


def test_a_pod_of_batch_mode_waits_for_its_turn_and_is_told_what_the_queue_wrote():
    def batch(pod):
        pod["spec"]["schedulerName"] = "gpupack-batch"
        pod["metadata"]["labels"] = {"gpupack.io/queue-name": "a"}

    def told(pod):
        batch(pod)
        pod["status"]["conditions"] = [
            {"type": "PodScheduled", "status": "False", "reason": "Refused", "message": "it has hostNetwork"}
        ]

    def requeued(pod):
        batch(pod)
        pod["metadata"]["annotations"] = {"gpupack.io/requeued": "true"}

    pods = Pod("p", 8), Pod("q", 8), Pod("r", 8)
    cluster = World((Node("a"),), pods).changed(p=batch, q=told, r=requeued).cluster
    answer = explain_pod(cluster, "default", "p")
    assert explain_pod(cluster, "default", "r").text == answer.text
    assert answer.state == "gated"
    assert answer.text == (
        "waits in its queue, which has it bound without kube-scheduler when its turn has come;"
        " node a would take it then"
    )
    assert [way.kind for way in answer.ways_out] == ["queue"]
    assert explain_pod(cluster, "default", "q").text.endswith("; it was told: it has hostNetwork")


def test_a_pod_of_another_scheduler_waits_for_one_that_never_asks_gpupack():
    answer = explain_pod(THREE.changed(q=other_scheduler, p=other_scheduler).cluster, "default", "p")
    # The extender has bound a pod of that scheduler: it has joined it.
    assert "never asks" not in answer.text

    world = World((Node("a"),), (Pod("p", 8), Pod("large", 17)))
    cluster = world.changed(p=other_scheduler, large=other_scheduler).cluster
    answer = explain_pod(cluster, "default", "p")
    assert answer.state == "pending"
    assert answer.text == "waits for its scheduler default-scheduler, which never asks gpupack"
    assert [way.kind for way in answer.ways_out] == ["scheduler-name"]
    assert "schedulerName: gpupack-scheduler; node a would take it now" in answer.ways_out[0].text
    assert "will try it again" not in format_why(answer)
    answer = explain_pod(cluster, "default", "large")
    assert answer.text.endswith("never asks gpupack; 0 of 1 nodes take 17 GiB")
    assert answer.ways_out[0].kind == "scheduler-name"


def test_a_pod_that_was_deleted_is_ending():
    def delete(pod):
        pod["metadata"]["deletionTimestamp"] = "2026-11-22T09:00:00Z"

    cluster = THREE.changed(p=delete, q=delete).cluster
    waits, runs = explain_pod(cluster, "default", "p"), explain_pod(cluster, "default", "q")

    assert (waits.state, runs.state) == ("ending", "ending")
    assert waits.text.startswith("is ending: it was deleted, and has until 2026-11-22T09:00:00Z")
    assert not waits.nodes
    assert runs.text.startswith("is ending on node c")
    assert [card.card for card in runs.cards] == [0]


def test_the_end_of_a_pod_that_is_being_deleted_is_told_first_and_as_under_way():
    def delete(pod):
        pod["metadata"]["deletionTimestamp"] = "2026-11-22T09:00:00Z"

    pods = (Pod("p", 10), Pod("a", 8, "n", (0,), owned=False), Pod("z", 8, "n", (1,), owned=False))
    cluster = World((Node("n"),), pods).changed(z=delete).cluster
    (text,) = [way.text for way in explain_pod(cluster, "default", "p").ways_out if way.kind == "pods-end"]

    assert text == "the end of one pod frees the cards on node n: default/z (8 GiB, is being deleted)"


def test_a_uuid_that_no_card_has_is_told_beside_those_that_there_are():
    def ask(pod):
        pod["metadata"]["annotations"]["gpupack.io/gpu-uuid"] = "GPU-nope"

    cluster = World((Node("n"),), (Pod("p", 4),)).changed(p=ask).cluster

    (group,) = explain_pod(cluster, "default", "p").nodes

    there = ", ".join(cluster.state.nodes.uuids[cluster.state.nodes.rows["n"]])
    assert group.text == f'the pod\'s gpu-uuid is "GPU-nope", and the cards there are {there}'
    assert there.count("GPU-") == 2


def test_a_model_that_no_card_is_of_is_told_beside_those_that_there_are():
    cluster = World((Node("a", model="NVIDIA L4"), Node("b", model="Tesla T4")), ()).cluster
    said = ('no card matches: gpu-model is "*l40s*", and the cluster has NVIDIA L4, Tesla T4',)

    answer = answer_fit(cluster, FitQuestion(8, model="*L40S*"))

    assert (answer.pods, answer.notes) == (0, said)
    assert advise_start(cluster, FitQuestion(8, model="*L40S*")).notes == said
    assert answer_fit(cluster, FitQuestion(8, model="*t4*")).notes == ()
    (starless,) = answer_fit(cluster, FitQuestion(8, model="T4,L40S")).notes
    assert starless.endswith('; "*t4*" would match: a pattern without stars is the whole name')


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (FitQuestion(8, 3), "8 units on 3 cards; allowed: a multiple of the number of cards"),
        (FitQuestion(101, percent=True), "101 percent on 1 card; allowed: at most 100"),
        (FitQuestion(202, 2, percent=True), "202 percent on 2 cards; allowed: at most 200"),
    ],
)
def test_a_size_that_cannot_be_is_refused_in_the_words_of_the_question(asked, words):
    with pytest.raises(InputError) as caught:
        answer_fit(THREE.cluster, asked)
    assert str(caught.value) == words


def test_a_pod_that_starts_keeps_none_of_another_shape_off_that_asks_for_as_much():
    starts = (Pod("x", 2, "a", (0,), held=False), Pod("y", 2, "a", (1,), held=False))
    waits = Pod("w", 2, model="NVIDIA A100")
    world = World((Node("a", (4, 4)),), (*starts, Pod("z", 1, "a", (0,), held=False), waits))

    answer = explain_pod(world.cluster, "default", "w")

    assert (answer.state, answer.fits) == ("fits", ("a",))


def test_a_resource_that_no_node_has_is_named():
    """Somebody wrote gb for gib."""

    def misspell(item):
        item["spec"]["containers"][0]["resources"] = {"limits": {"gpupack.io/gpu-memory-gb": "8"}}

    answer = explain_pod(World((Node("a"),), (Pod("p", 4),)).changed(p=misspell).cluster, "default", "p")
    assert answer.state == "no-cards"
    assert "gpupack.io/gpu-memory-gb is no resource of this cluster's nodes" in answer.text


def test_a_model_without_stars_that_stars_would_match_is_told_with_a_way_out():
    """The pod waited for good, and only `fit` knew."""
    world = World((Node("n", model="NVIDIA A100-SXM4-40GB"),), (Pod("p", 8, model="A100"),))

    answer = explain_pod(world.cluster, "default", "p")

    assert answer.nodes[0].text == (
        """the pod's gpu-model is "a100", and the cards there are NVIDIA A100-SXM4-40GB; """
        """"*a100*" would match: a pattern without stars is the whole name"""
    )
    assert (answer.ways_out[0].kind, answer.ways_out[0].node) == ("model-pattern", "n")
    assert answer.ways_out[0].text == (
        'with stars (annotation gpupack.io/gpu-model: "*a100*") it fits now, on 1 node, first n '
        "(NVIDIA A100-SXM4-40GB)"
    )


@pytest.mark.parametrize(
    ("model", "units", "kinds"),
    [
        ("T4", 8, ["other-model"]),
        ("*A100*", 40, []),
        ("A100", 40, []),
    ],
    ids=["stars-do-not-help", "stars-are-there", "fits-nowhere"],
)
def test_stars_are_proposed_only_where_they_help(model, units, kinds):
    world = World((Node("n", model="NVIDIA A100-SXM4-40GB"),), (Pod("p", units, model=model),))
    found = [way.kind for way in explain_pod(world.cluster, "default", "p").ways_out]
    assert [kind for kind in found if kind in {"model-pattern", "other-model"}] == kinds


@pytest.mark.parametrize(
    ("units", "reason", "text"),
    [
        (
            (4, 4, 4),
            "TooSmall",
            "4 GiB + 4 GiB + 4 GiB do not fit together on any node, even with all of its healthy cards empty",
        ),
        ((1, 6), "TooSmall", "the largest healthy card has 5 GiB, asked 1 GiB + 6 GiB"),
        ((3, 3, 2), "NotFree", "3 GiB + 3 GiB + 2 GiB do not fit together on any node"),
    ],
    ids=["not-together", "one-too-large", "not-free"],
)
def test_several_containers_that_fit_each_by_itself_are_said_not_to_fit_together(units, reason, text):
    """The largest card was named, which was larger than what each of them asks for."""
    world = World((Node("n", (5, 5)),), (Pod("runs", 1, "n", (0,)), Pod("more", 1, "n", (1,)), Pod("p", 1)))

    def ask(pod):
        pod["spec"]["containers"] = [
            {"name": f"c{at}", "resources": {"limits": {GIB: str(each)}}} for at, each in enumerate(units)
        ]

    (group,) = explain_pod(world.changed(p=ask).cluster, "default", "p").nodes
    assert group.reason == reason
    assert group.text.startswith(text)


GANGS = World((Node("a", (8, 8)), Node("b", (8, 8), taints=("team:NoSchedule",))), (Pod("x", 4, "a", (0,)),))


@pytest.mark.parametrize(
    ("units", "gang", "said"),
    [
        (4, 3, "There is room for a gang of 3 pods of 4 GiB now."),
        (8, 3, "There is room for a gang of 3 pods of 8 GiB now, if its pods tolerate taints."),
        (
            8,
            4,
            (
                "There is no room for a gang of 4 pods of 8 GiB now: 1 of them finds none. "
                "Empty nodes take all of it."
            ),
        ),
        (
            8,
            6,
            (
                "There is no room for a gang of 6 pods of 8 GiB now: 3 of them find none. "
                "Empty nodes take at most 4 of them, so it never starts."
            ),
        ),
    ],
)
def test_a_gang_is_judged_as_one(units, gang, said):
    answer = gpupack.fit(GANGS.cluster, units, gang=gang)
    assert format_fit(answer).splitlines()[0] == said
    assert answer.gang == gang


def test_a_gang_is_judged_again_after_a_change(tmp_path):
    path = tmp_path / "cluster.json"
    path.write_text(GANGS.text)
    asked = ["8", "--gang", "3", "-f", str(path)]
    lines = CliRunner().invoke(fit, [*asked, "--without", "b"]).output.splitlines()
    assert lines[0].startswith("There is room for a gang of 3 pods")
    assert (
        "There is no room for a gang of 3 pods of 8 GiB after the change: 2 of them find none. "
        in "".join(lines)
    )
