"""Which pods of queues advise and why may move: those that the queue admits again where the plan says."""

import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from allocator.names import POD_DATA, POD_JOB, POD_PLANNED, QUEUE_GATE, QUEUE_NAME
from gpupack.diagnose import explain_pod
from gpupack.rebalance.advise import advise_empty, advise_start
from gpupack.rebalance.movable_pods import MovablePods
from gpupack.rebalance.plan_state import Destination
from gpupack.rebalance.queue_rehearsal import QueueRehearsal
from gpupack.whatif.answers import Advice
from gpupack.whatif.cluster import Cluster
from gpupack.whatif.fetching import ClusterSource, list_cluster
from gpupack.whatif.fit import FitQuestion
from gpupack.whatif.queue_rules import QueueRules, read_rules
from gpupack.whatif.what_if import PodCardUsage
from kubeapi import objects
from kubeapi.errors import Forbidden
from kubeapi.objects import PodSchedulingGroup
from scheduler_plugin.queue.cache.node_pins import make_node_affinity
from scheduler_plugin.queue.controller.settings import DecisionSettings
from tests.ask_world import Node, Pod, World
from tests.queue_world import pod_group

NODES = (Node("a", (16,)), Node("b", (16,)))
MOVED = Pod("moved", 8, "a", (0,), queue="a")
STAYS = Pod("stays", 8, "b", (0,), owned=False)
OLDER = Pod("older", 8, queue="a")

FULL = "queues: [{name: a, nominalQuota: 8}]"
NO_SLOTS = (
    "queues: [{name: a}]\n"
    "slots: {per: node, local: {count: 0}, free: {count: 1, nodeSelector: {matchLabels: {pool: slots}}}}"
)


def ask(config: str, *pods: Pod, nodes: tuple[Node, ...] = NODES) -> Cluster:
    cluster = World(nodes, (MOVED, STAYS, *pods)).cluster
    if config:
        cluster.queue = read_rules(DecisionSettings(config))
    return cluster


def start(cluster: Cluster, units: int = 16) -> Advice:
    return advise_start(cluster, FitQuestion(units))


def test_a_pod_moves_whose_queue_admits_its_successor_on_the_planned_card() -> None:
    (move,) = start(ask(FULL)).moves
    assert (move.pod, move.target.node, move.target.cards) == ("moved", "b", (0,))


@pytest.mark.parametrize(
    ("config", "others", "why"),
    [
        ("", (), "the queue was not read"),
        (FULL, (OLDER,), "it needs 8 units; queue a uses 8 units of its quota of 8"),
        ("queues: [{name: a, stopPolicy: Hold}]", (), "queue a is stopped"),
        ("queues: [{name: b}]", (), 'queue "a" does not exist'),
        ("queues: [{name: a, nominalQuota: 4}]", (), "queue a can never have more than 4"),
        (
            "queues: [{name: a, nominalQuota: 0, cohort: c}, {name: b, nominalQuota: 8, cohort: c}]",
            (replace(OLDER, queue="b"),),
            "and its cohort has 0 more",
        ),
        (
            NO_SLOTS,
            (),
            "no node that could take it has slots",
        ),
        (
            "queues: [{name: a, namespaceSelector: {matchLabels: {team: x}}}]",
            (),
            "the labels of namespace",
        ),
    ],
    ids=["not read", "older pod", "stopped", "no queue", "quota", "lender", "slots", "namespace"],
)
def test_a_pod_stays_whose_successor_would_wait(config: str, others: tuple[Pod, ...], why: str) -> None:
    """The successor stood behind older pods, or waited for ever."""
    cluster = ask(config, *others)
    advice = start(cluster)
    assert not advice.moves
    emptied = advise_empty(cluster, "a/0")
    assert not emptied.moves
    (note,) = [note for note in emptied.notes if note.startswith("default/moved stays")]
    assert why in note
    waits = Pod("w", 16)
    asked = ask(config, *others, waits)
    assert "moves" not in {way.kind for way in explain_pod(asked, "default", "w").ways_out}


@pytest.mark.parametrize("exists", [True, False], ids=["group", "no-group"])
def test_a_pod_group_comes_before_a_successor_once_it_exists(exists: bool) -> None:
    cluster = ask(FULL, OLDER)
    cluster.find_pod("default", "older").spec.scheduling_group = PodSchedulingGroup("g")
    cluster = cluster.with_objects(cluster.nodes, cluster.pods)
    if exists:
        cluster.pod_groups.put_group(pod_group("g", 1))
    assert bool(start(cluster).moves) != exists


@pytest.mark.parametrize(("policy", "pods"), [("best-fit", ["moved"]), ("least-requested", [])])
def test_a_pod_goes_where_its_queue_starts_it(policy: str, pods: list[str]) -> None:
    """On an empty node its successor would take the place of one of the two pods that are to start."""
    nodes = (*NODES, Node("c", (16,)))
    cluster = ask(f"queues: [{{name: a}}]\nnodePolicy: {policy}", nodes=nodes)
    advice = advise_start(cluster, FitQuestion(16), 2)
    assert [move.pod for move in advice.moves] == pods


@pytest.mark.parametrize(("policy", "place"), [("best-fit", "b"), ("least-requested", "c")])
def test_the_place_is_that_which_the_queue_chooses_where_it_serves_as_well(policy: str, place: str) -> None:
    nodes = (Node("a", (16,)), Node("b", (8,)), Node("c", (12,)))
    cluster = World(nodes, (MOVED,)).cluster
    cluster.queue = read_rules(DecisionSettings(f"queues: [{{name: a}}]\nnodePolicy: {policy}"))
    (move,) = start(cluster).moves
    assert move.target.node == place


def change(cluster: Cluster, name: str, annotations: dict[str, str], **parts: Any) -> None:
    """Change annotations of a pod, and its spec, status or owners."""
    pod = cluster.find_pod("default", name)
    notes = {**(pod.metadata.annotations or {}), **annotations}
    raw = msgspec.to_builtins(pod)
    raw["metadata"] |= {"annotations": notes} | parts.get("metadata", {})
    raw["spec"] |= parts.get("spec", {})
    raw["status"] |= parts.get("status", {})
    cluster.pods[pod.metadata.uid] = msgspec.convert(raw, objects.Pod)
    cluster.state.apply_pod(cluster.pods[pod.metadata.uid], 0.0)


@pytest.mark.parametrize("own", [False, True], ids=["any node", "nodes of its own"])
def test_a_pod_moves_off_the_node_that_its_queue_named(own: bool) -> None:
    """Its controller makes the successor without that node. In batch mode the queue names one for all."""
    cluster = ask(f"{FULL}\nmode: batch")
    affinity = make_node_affinity(["a"])
    if own:
        terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        terms[0]["matchExpressions"] = [{"key": "pool", "operator": "DoesNotExist"}]
    change(cluster, "moved", {POD_PLANNED: "GPU-a-0"}, spec={"affinity": {"nodeAffinity": affinity}})
    (move,) = start(cluster).moves
    assert (move.pod, move.target.node) == ("moved", "b")


@pytest.mark.parametrize("phase", ["Succeeded", "Running"])
def test_a_second_stage_whose_first_may_have_ended_comes_before_a_successor(phase: str) -> None:
    """Jobs are not read: one that is complete lets its second stage go, which takes the quota."""
    first = Pod("first", 1, "b", (0,), queue="a")
    nodes = (Node("a", (16,)), Node("b", (17,)))
    config = f"queues: [{{name: a, nominalQuota: {8 if phase == 'Succeeded' else 9}}}]"
    cluster = ask(config, OLDER, first, nodes=nodes)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "maps", "uid": "maps", "controller": True}
    change(cluster, "older", {POD_JOB: "j"})
    change(
        cluster,
        "first",
        {POD_JOB: "j", POD_DATA: "d"},
        metadata={"ownerReferences": [owner]},
        status={"phase": phase},
    )
    assert [move.pod for move in start(cluster).moves] == ([] if phase == "Succeeded" else ["moved"])


@pytest.mark.parametrize(
    ("asked", "hole", "rest"),
    [((16, 0), (8, 0), (8, 0)), ((4, 100), (2, 60), (2, 40))],
    ids=["memory", "compute"],
)
def test_a_hole_that_the_queue_fills_is_no_place_for_a_pod_of_no_queue(
    asked: tuple[int, int], hole: tuple[int, int], rest: tuple[int, int]
) -> None:
    """`first` makes room on node a for `second`; a pod of the queue that waits for a would have it."""
    here = (("zone", "here"),)
    nodes = (
        Node("a", (16,), labels=(*here, ("only", "a"))),
        Node("b", (16,), labels=here),
        Node("c", (16,)),
    )
    units, compute = hole
    pods = (
        Pod("first", units, "a", (0,), compute=compute),
        Pod("second", units, "b", (0,), selector=here, compute=compute),
        *(Pod(f"stays-{node}", rest[0], node, (0,), owned=False, compute=rest[1]) for node in "ac"),
    )
    waits = Pod("waits", units, queue="a", selector=(("only", "a"),), compute=compute)

    def moves(*more: Pod) -> list[str]:
        cluster = World(nodes, (*pods, *more)).cluster
        cluster.queue = read_rules(DecisionSettings("queues: [{name: a}]"))
        return [move.pod for move in advise_start(cluster, FitQuestion(asked[0], compute=asked[1])).moves]

    assert moves() == ["first", "second"]
    assert moves(waits) == []


def test_the_place_that_the_queue_gives_a_pod_has_its_compute() -> None:
    cluster = World(NODES, (replace(MOVED, compute=60), STAYS)).cluster
    rules = cluster.queue = read_rules(DecisionSettings("queues: [{name: a}]"))
    movable = MovablePods(cluster, PodCardUsage(cluster)).find(
        cluster.find_pod("default", "moved").metadata.uid
    )
    assert movable is not None
    place = QueueRehearsal(cluster, rules).move(movable)
    assert isinstance(place, Destination)
    assert place.placement.compute == {0: 60}


def test_what_a_card_gives_beyond_its_limit_is_free_once_all_its_pods_have_moved() -> None:
    """The limit was lowered while they ran, and the words stop at it: 80 and 80 percent of 100."""
    here = (("zone", "here"),)
    nodes = (Node("a", (16,), labels=here), Node("b", (16,), labels=here), Node("c", (4,)), Node("d", (4,)))
    pods = (
        *(Pod(name, 1, "a", (0,), compute=80) for name in ("first", "second")),
        Pod("third", 4, "b", (0,), selector=here, compute=90),
    )
    cluster = World(nodes, pods).cluster
    cluster.queue = read_rules(DecisionSettings("queues: [{name: a}]"))
    assert {move.pod for move in advise_empty(cluster, "b").moves} == {"first", "second", "third"}


def test_a_pod_without_a_label_is_of_the_queue_of_its_namespace() -> None:
    """Its label was taken away, or it is older than that of the namespace."""
    for label, moves in (("a", 0), ("", 1)):
        cluster = World(NODES, (replace(MOVED, queue=""), STAYS)).cluster
        held = DecisionSettings("queues: [{name: a, stopPolicy: Hold}]")
        cluster.queue = read_rules(held, {"default": {QUEUE_NAME: label}})
        assert len(start(cluster).moves) == moves


class QueueApi:
    """An API server with the cluster, and the queue's leader behind its proxy.

    Attributes:
        asked: Paths, in their order.
    """

    def __init__(self, answer: bytes | None, pods: tuple[Pod, ...] = (MOVED, STAYS)) -> None:
        self.answer = answer
        self.pods = pods
        self.asked: list[str] = []

    async def pages(self, path: str) -> AsyncGenerator[bytes]:
        self.asked.append(path)
        kind = {"nodes": "Node", "pods": "Pod"}.get(path.rpartition("/")[2])
        items = json.loads(World(NODES, self.pods).text)["items"]
        found = [item for item in items if item["kind"] == kind]
        if path.endswith("namespaces"):
            found = [{"metadata": {"name": "default", "labels": {"team": "x"}}}]
        yield json.dumps({"metadata": {"resourceVersion": "1"}, "items": found}).encode()

    async def get(self, path: str, **_query: str) -> bytes:
        self.asked.append(path)
        if self.answer is None:
            raise Forbidden("services/proxy is forbidden", status=403)
        return self.answer

    async def read(self) -> Cluster:
        return await list_cluster(self, ClusterSource(), moves=True)  # type: ignore[arg-type]


OF_NAMESPACES = "queues: [{name: a, namespaceSelector: {matchLabels: {team: x}}}]"


@pytest.mark.parametrize("config", [FULL, OF_NAMESPACES])
async def test_the_leader_is_asked_by_what_it_decides(config: str) -> None:
    api = QueueApi(msgspec.json.encode(DecisionSettings(config, "best-fit")))
    cluster = await api.read()
    assert isinstance(cluster.queue, QueueRules)
    assert cluster.queue.settings.node_policy == "best-fit"
    assert "/api/v1/namespaces/gpupack-system/services/gpupack-queue:http/proxy/configuration" in api.asked
    assert [move.pod for move in start(cluster).moves] == ["moved"]


@pytest.mark.parametrize("held", ["", ", stopPolicy: Hold"])
async def test_a_queue_that_selects_a_namespace_is_asked_though_no_pod_has_its_label(held: str) -> None:
    settings = DecisionSettings(OF_NAMESPACES.replace("}}}", f"}}}}{held}}}"))
    cluster = await QueueApi(msgspec.json.encode(settings), (replace(MOVED, queue=""), STAYS)).read()
    assert len(start(cluster).moves) == (0 if held else 1)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (None, "cannot be asked: services/proxy is forbidden"),
        (b"nothing", "cannot be asked: "),
        (msgspec.json.encode(DecisionSettings(FULL, "of-their-own")), "its settings cannot be used here"),
        (msgspec.json.encode(DecisionSettings("queues: 1")), "its settings cannot be used here"),
    ],
    ids=["forbidden", "rubbish", "policy", "configuration"],
)
async def test_without_an_answer_pods_of_queues_stay_and_advise_says_so(
    answer: bytes | None, why: str
) -> None:
    advice = start(await QueueApi(answer).read())
    assert not advice.moves
    (note,) = [note for note in advice.notes if note.startswith("pods of queues stay: the queue ")]
    assert why in note


def test_a_pod_is_told_the_queue_that_its_namespace_selects() -> None:
    """The rules say which; it was told to wait in one that its namespace might have."""
    gated = World(NODES, (Pod("w", 8),)).changed(
        w=lambda pod: pod["spec"].update(schedulingGates=[{"name": QUEUE_GATE}])
    )
    cluster = gated.cluster
    cluster.queue = read_rules(DecisionSettings(OF_NAMESPACES), {"default": {"team": "x"}})
    (way,) = explain_pod(cluster, "default", "w").ways_out
    assert (way.queue, "its turn in queue a:" in way.text) == ("a", True)
