"""Pods and Nodes as the API server sends them, rubbish included."""

import json

import msgspec
import pytest

from allocator.names import NODE_CARDS, NODE_CORDON, NODE_HOLDS, POD_ASSIGNED, POD_CARD_POLICY, POD_CARDS
from allocator.packing import Layout, NodeWords, node_resources
from allocator.records import charge, dump_assigned
from deviceplugin.allocation.objects import NodeObject, PodObject
from kubeapi.objects import MIRROR_ANNOTATION

GIB = "gpupack.io/gpu-memory-gib"


def pod(annotations=None, *, units="3", init=None, **more) -> PodObject:
    manifest = {
        "metadata": {
            "name": "a",
            "namespace": "ns",
            "uid": "u1",
            "resourceVersion": "17",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "annotations": annotations,
        },
        "spec": {
            "nodeName": "n1",
            "containers": [{"name": "main", "image": "x", "resources": {"limits": {GIB: units}}}],
        },
        **more,
    }
    if init is not None:
        manifest["spec"]["initContainers"] = [
            {"name": "setup", "restartPolicy": init, "resources": {"limits": {GIB: 2, "cpu": "1"}}}
        ]
    return msgspec.json.decode(json.dumps(manifest), type=PodObject)


def node(annotations=None, capacity=None, allocatable=None) -> NodeObject:
    manifest = {
        "metadata": {"name": "n1", "resourceVersion": "9", "annotations": annotations},
        "status": {"capacity": capacity, "allocatable": allocatable if allocatable is not None else capacity},
    }
    return msgspec.json.decode(json.dumps(manifest), type=NodeObject)


def words() -> dict:
    return node_resources(NodeWords(layout=Layout(4, 2, 1024), sizes=(8, 8), used=(3, 0), revision=5))


def test_a_pod_as_the_ledger_wants_it():
    read, problem = pod({POD_ASSIGNED: '{"main":[["c0",3]]}'}).to_ledger_pod(GIB)
    assert problem is None
    assert read is not None
    assert (read.uid, read.namespace, read.name) == ("u1", "ns", "a")
    assert read.request.effective_units == 3
    assert read.assigned == {"main": (("c0", 3),)}
    assert (read.admitted, read.has_run, read.terminal) == (False, False, False)


ADMITTED, RAN, TERMINAL = "admitted", "has_run", "terminal"


@pytest.mark.parametrize(
    ("phase", "status", "facts"),
    [
        pytest.param("Running", {"conditions": [{"type": "Ready"}]}, {ADMITTED, RAN}, id="running"),
        pytest.param("Succeeded", {"conditions": [{"type": "Ready"}]}, {ADMITTED, RAN, TERMINAL}, id="ended"),
        pytest.param("Pending", {}, set(), id="about to be refused"),
        pytest.param(
            "Pending", {"conditions": [{"type": "PodScheduled", "status": "True"}]}, set(), id="bound"
        ),
        pytest.param(None, {"conditions": [{"type": "Ready"}], "startTime": None}, set(), id="no start"),
        pytest.param("Failed", {"startTime": None}, {TERMINAL}, id="failed"),
        pytest.param(
            "Failed", {"conditions": [{"type": "Ready", "status": "False"}]}, {TERMINAL}, id="refused"
        ),
        pytest.param("Pending", {"startTime": None}, set(), id="pending"),
        pytest.param(
            "Pending", {"conditions": [{"type": "Initialized"}]}, {ADMITTED}, id="init containers run"
        ),
    ],
)
def test_how_far_a_pod_is(phase, status, facts):
    every = {"phase": phase, "startTime": "x", **status}
    read, _ = pod(status={key: value for key, value in every.items() if value}).to_ledger_pod(GIB)
    assert read is not None
    assert {fact for fact in (ADMITTED, RAN, TERMINAL) if getattr(read, fact)} == facts


def test_a_pod_that_does_not_ask_is_none():
    assert pod(units="0").to_ledger_pod(GIB) == (None, None)
    assert pod().to_ledger_pod("gpupack.io/gpu-memory-1mib") == (None, None)


def test_annotations_that_cannot_be_read_are_left_out_and_told():
    read, problem = pod({POD_CARDS: "many"}).to_ledger_pod(GIB)
    assert read is not None
    assert read.request.cards == 1
    assert "many" in str(problem)
    read, problem = pod({POD_ASSIGNED: "rubbish"}).to_ledger_pod(GIB)
    assert read is not None
    assert read.assigned is None
    assert "rubbish" in str(problem)


def test_a_card_policy_that_only_the_scheduler_knows_changes_no_cards():
    """The scheduler has charged these cards: on others the next pod that it binds could find no room."""
    shares = {"main": (("GPU-a", 4), ("GPU-b", 4))}
    found = pod({POD_CARD_POLICY: "mine", POD_CARDS: "2", POD_ASSIGNED: dump_assigned(shares)}, units="8")
    read, problem = found.to_ledger_pod(GIB)
    assert charge(read.request, read.assigned, {"GPU-a": 16, "GPU-b": 16}) == {"GPU-a": 4, "GPU-b": 4}
    assert "mine" in str(problem)


def test_a_request_that_cannot_be_read_is_told():
    read, problem = pod(units="3500m").to_ledger_pod(GIB)
    assert read is None
    assert "3500m" in str(problem)


def test_init_containers_and_sidecars_are_told_apart():
    read, _ = pod(init=None).to_ledger_pod(GIB)
    assert read is not None
    assert not read.request.shared
    for restart, shared in (("Always", False), ("", True)):
        read, _ = pod(init=restart).to_ledger_pod(GIB)
        assert read is not None
        assert read.request.shared is shared


def test_the_kubelet_runs_a_static_pod_under_another_uid():
    for annotations, key in (({}, "u1"), ({MIRROR_ANNOTATION: "abc"}, "abc")):
        read, _ = pod(annotations).to_ledger_pod(GIB)
        assert read is not None
        assert (read.uid, read.key) == ("u1", key)


def test_a_nodes_words_and_annotations():
    notes = {NODE_HOLDS: '{"seen":"7","uids":["u1"]}', NODE_CARDS: "[]", NODE_CORDON: "c0, c1"}
    told = node(notes, {"cpu": "4", **words()})
    assert told.metadata.version == 9
    read, holds = told.read_words(), told.read_accounted_pods()
    assert read is not None
    assert holds is not None
    assert (read.used, read.revision) == ((3, 0), 5)
    assert (holds.seen, holds.uids) == (7, {"u1"})
    assert told.read_cards() == ()
    assert told.read_cordon() == ({"c0", "c1"}, None)
    assert told.list_published_keys() == set(words())


def test_a_node_that_says_nothing():
    told = node()
    assert (told.read_words(), told.read_accounted_pods(), told.read_cards(), told.list_published_keys()) == (
        None,
        None,
        None,
        frozenset(),
    )
    assert told.read_cordon() == (frozenset(), None)


def test_words_that_are_corrupt_or_unlike_are_none():
    assert node({}, words(), {}).read_words() is None
    assert node({}, {**words(), "gpupack.io/packed-used-0": "1.5"}).read_words() is None


def test_rubbish_in_annotations_is_none():
    told = node({NODE_HOLDS: "x", NODE_CARDS: "x", NODE_CORDON: "no:uuid"})
    assert (told.read_accounted_pods(), told.read_cards()) == (None, None)
    cordoned, problem = told.read_cordon()
    assert cordoned == frozenset()
    assert "no:uuid" in str(problem)
