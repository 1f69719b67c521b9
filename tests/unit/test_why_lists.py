"""`gpupack why` without a pod, and of a workload: which pods, and a line of each."""

import json
import re

import msgspec
import pytest

from allocator.names import resource_name
from gpupack.diagnose import explain_pod
from gpupack.diagnose.listing import format_pods, list_waiting, list_workload, parse_workload
from gpupack.errors import InputError
from gpupack.whatif.cluster import Cluster
from gpupack.whatif.rendering import format_why
from kubeapi import objects
from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.queue.controller.status import WaitExplanation as QueueWhy
from tests.ask_world import Node, Pod, World

NOW = 1_767_225_600.0
"""2026-01-01T00:00:00Z."""


def pods_of(*pods: Pod) -> list[dict]:
    return [pod.object() for pod in pods]


def cluster_of(*changed: dict, nodes: tuple[Node, ...] = (Node("n1", (16, 16)),)) -> Cluster:
    items = [*(node.object(()) for node in nodes), *changed]
    return Cluster.from_json(json.dumps({"kind": "List", "items": items}))


def test_all_that_wait_with_their_closest_reason() -> None:
    large, small, running = pods_of(Pod("large", 20), Pod("small", 4), Pod("runs", 4, "n1", (0,)))
    large["metadata"]["creationTimestamp"] = "2025-12-31T23:55:00Z"
    found = list_waiting(cluster_of(large, small, running), NOW)
    assert [(line.pod, line.state, line.reason, line.age_s) for line in found.pods] == [
        ("large", "pending", "TooSmall", 300.0),
        ("small", "fits", "Fits", None),
    ]
    table = [line.split()[:5] for line in format_pods(found).splitlines()]
    assert table == [
        ["POD", "ASKS", "AGE", "REASON", "WHY"],
        ["default/large", "20", "GiB", "5m", "TooSmall"],
        ["default/small", "4", "GiB", "-", "Fits"],
    ]


def test_nobody_waits() -> None:
    found = list_waiting(cluster_of(*pods_of(Pod("runs", 4, "n1", (0,)))), NOW)
    assert format_pods(found) == "No pod waits for GPU memory."


def test_one_namespace() -> None:
    cluster = cluster_of(*pods_of(Pod("a", 4), Pod("b", 4, namespace="team")))
    assert [line.pod for line in list_waiting(cluster, NOW, "team").pods] == ["b"]
    assert [line.pod for line in list_waiting(cluster, NOW).pods] == ["a", "b"]


def test_pods_that_ask_in_another_unit_are_listed() -> None:
    (other,) = pods_of(Pod("other", 4))
    other["spec"]["containers"][0]["resources"] = {"limits": {resource_name(512): "4"}}
    cluster = cluster_of(other, *pods_of(Pod("ours", 4)))
    assert [(line.pod, line.state, line.asked) for line in list_waiting(cluster, NOW).pods] == [
        ("other", "pending", "2 GiB"),
        ("ours", "fits", "4 GiB"),
    ]
    gone = cluster.find_pod("default", "other")
    cluster.drop_pod(gone, "9")
    assert [line.pod for line in list_waiting(cluster, NOW).pods] == ["ours"]


def test_a_unit_that_no_node_publishes_costs_no_view_of_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody who creates pods may ask in millions of units."""
    others = pods_of(*(Pod(f"p{unit}", 4) for unit in range(1, 20)))
    for unit, other in enumerate(others, start=1):
        other["spec"]["containers"][0]["resources"] = {"limits": {resource_name(unit): "4"}}
    others[0]["spec"]["nodeName"] = "n1"
    cluster = cluster_of(*others)
    read: list[object] = []
    monkeypatch.setattr(ClusterState, "replace_pods", lambda _state, pods, *_: read.extend(pods))
    lines = list_waiting(cluster, NOW).pods
    assert not read
    assert {line.state for line in lines} == {"pending"}
    assert explain_pod(cluster, "default", "p1").state == "running"
    assert explain_pod(cluster, "default", "p7").text == (
        "waits: no node of the file offers GPU memory in units of 7 MiB; is gpupack node running on them? "
        "See docs/troubleshooting.md"
    )


def test_pods_of_one_template_are_answered_alike_and_others_are_not() -> None:
    """Their names differ only; a difference in what they ask for, or may use, is a difference."""
    pods = [Pod(f"p{at}", 20) for at in range(3)]
    other = Pod("q", 4, model="H100")
    found = list_waiting(cluster_of(*pods_of(*pods, other)), NOW)
    assert [line.reason for line in found.pods] == ["TooSmall"] * 3 + ["NoSuchCard"]
    assert len({line.text for line in found.pods}) == 2


def test_a_pod_that_is_deleted_is_told_apart_from_others_of_its_template() -> None:
    waits, deleted = pods_of(Pod("a", 4), Pod("b", 4))
    deleted["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z"
    for each in (waits, deleted):
        each["metadata"]["ownerReferences"] = [{"kind": "Job", "name": "train", "controller": True}]
    cluster = cluster_of(waits, deleted)
    found = list_workload(cluster, "default", parse_workload("job/train"), NOW)
    assert [(line.pod, line.reason) for line in found.pods] == [("a", "Fits"), ("b", "Ending")]
    assert [line.pod for line in list_waiting(cluster, NOW).pods] == ["a"], "no scheduler takes the other"


def test_the_queue_says_why_where_it_holds_a_pod() -> None:
    gated, free = pods_of(Pod("gated", 4), Pod("free", 20))
    gated["spec"]["schedulingGates"] = [{"name": "gpupack.io/queue"}]
    said = [
        QueueWhy(
            "default", name, "research", 3, "Quota", "queue research uses 40 units of its quota of 40", 60.0
        )
        for name in ("gated", "free")
    ]
    waiting = list_waiting(cluster_of(gated, free), NOW, queued=said)
    assert [(line.state, line.reason) for line in waiting.pods] == [
        ("pending", "TooSmall"),
        ("gated", "Quota"),
    ]
    assert waiting.pods[1].text == "queue research uses 40 units of its quota of 40"
    unasked = list_waiting(cluster_of(gated, free), NOW).pods[1]
    assert unasked.reason == "Gated"
    assert unasked.text.startswith("is held by scheduling gate gpupack.io/queue")


def pod(owner: tuple[str, str] | None = None, **labels: str) -> objects.Pod:
    meta: dict[str, object] = {
        "name": "p",
        "namespace": "default",
        "labels": {key.replace("__", "/").replace("_", "-"): value for key, value in labels.items()},
    }
    if owner is not None:
        meta["ownerReferences"] = [{"kind": owner[0], "name": owner[1], "uid": "u", "controller": True}]
    return msgspec.json.decode(json.dumps({"kind": "Pod", "metadata": meta}), type=objects.Pod)


@pytest.mark.parametrize(
    ("text", "theirs", "not_theirs"),
    [
        ("sts/db", pod(("StatefulSet", "db")), pod(("StatefulSet", "db2"))),
        ("statefulsets.apps/db", pod(("StatefulSet", "db")), pod(("DaemonSet", "db"))),
        ("deploy/web", pod(("ReplicaSet", "web-7f9"), pod_template_hash="7f9"), pod(("ReplicaSet", "web"))),
        ("Deployment/web", pod(("ReplicaSet", "web-7f9"), pod_template_hash="7f9"), pod()),
        ("deploy/web", pod(("ReplicaSet", "web-1"), pod_template_hash="1"), pod(("ReplicaSet", "web-x-1"))),
        ("job/train", pod(("Job", "train")), pod(("Job", "train-1"))),
        ("cj/nightly", pod(("Job", "nightly-29461620")), pod(("Job", "nightly-x"))),
        ("jobset/big", pod(("Job", "big-workers-0"), **{"jobset.sigs.k8s.io__jobset_name": "big"}), pod()),
        ("pytorchjob/nlp", pod(("PyTorchJob", "nlp")), pod(("TFJob", "nlp"))),
        ("jaxjob/nlp", pod(("JAXJob", "nlp")), pod(("PyTorchJob", "nlp"))),
        ("raycluster/ray", pod(("RayCluster", "ray")), pod(("RayCluster", "other"))),
        ("lws/llm", pod(None, **{"leaderworkerset.sigs.k8s.io__name": "llm"}), pod(("StatefulSet", "llm"))),
    ],
)
def test_whose_pods_are_meant(text: str, theirs: objects.Pod, not_theirs: objects.Pod) -> None:
    workload = parse_workload(text)
    assert workload is not None
    assert workload.owns(theirs)
    assert not workload.owns(not_theirs)


@pytest.mark.parametrize("text", ["web", "team-a/web", "pod/web", "deploy/", "/web", "deploy/a/b", ""])
def test_what_is_no_workload(text: str) -> None:
    assert parse_workload(text) is None


def test_the_pods_of_a_workload_are_listed_wherever_they_are() -> None:
    cluster = cluster_of(*pods_of(Pod("waits", 20), Pod("runs", 4, "n1", (0,)), Pod("alone", 4, owned=False)))
    workload = parse_workload("rs/app")
    assert workload is not None
    found = list_workload(cluster, "default", workload, NOW)
    assert [(line.pod, line.state, line.reason) for line in found.pods] == [
        ("runs", "running", "Running"),
        ("waits", "pending", "TooSmall"),
    ]
    assert format_pods(found).splitlines()[0].split()[3] == "STATE"
    with pytest.raises(InputError, match='the file has no pod of ReplicaSet/app in namespace "team"'):
        list_workload(cluster, "team", workload, NOW)


def test_the_world_of_other_tests_has_one_that_waits() -> None:
    world = World((Node("n1"),), (Pod("w", 20),))
    assert [line.pod for line in list_waiting(Cluster.from_json(world.text), NOW).pods] == ["w"]


def test_on_a_terminal_titles_are_bold_and_the_state_has_a_colour() -> None:
    cluster = cluster_of(*pods_of(Pod("large", 20)))
    plain = format_why(explain_pod(cluster, "default", "large"))
    coloured = format_why(explain_pod(cluster, "default", "large"), colour=True)
    assert coloured != plain
    assert re.sub("\x1b\\[[0-9;]*m", "", coloured) == plain
    lines = coloured.splitlines()
    assert lines[0].startswith("\x1b[33mPod default/large")
    assert "\x1b[1mWhy not:\x1b[0m" in lines
    assert "\x1b" not in format_pods(list_waiting(cluster, NOW))
    assert "\x1b[1m" in format_pods(list_waiting(cluster, NOW), colour=True)


def test_events_are_told_by_their_age() -> None:
    events = ("2025-12-31T23:55:00Z FailedScheduling: no card (x3)", "Odd: without a time")
    cluster = cluster_of(*pods_of(Pod("large", 20)))
    answer = explain_pod(cluster, "default", "large", events=events)
    text = format_why(answer, now_s=NOW)
    assert "  - 5m ago: FailedScheduling: no card (x3)\n  - Odd: without a time" in text
    assert answer.events == events
