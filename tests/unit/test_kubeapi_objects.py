"""What every part of the product reads of Kubernetes' objects, and how: `kubeapi.objects`."""

import gc
import json
from typing import Any

import msgspec
import pytest

from kubeapi.objects import Node, Pod, PodSpec, WritableNode, make_list_decoder
from kubeapi.selectors import NodeTerm, Taint


def pod(**parts: dict[str, Any]) -> Pod:
    return msgspec.json.decode(json.dumps(parts), type=Pod)


def scheduled(**more: str) -> Pod:
    ready = {"type": "Ready", "status": "False"}
    return pod(status={"conditions": [ready, {"type": "PodScheduled", **more}]})


@pytest.mark.parametrize(
    ("phase", "ended"),
    [
        ("", False),
        ("Pending", False),
        ("Running", False),
        ("Unknown", False),
        ("Failed", True),
        ("Succeeded", True),
    ],
)
def test_a_pod_has_ended(phase: str, ended: bool) -> None:
    assert pod(status={"phase": phase}).has_ended is ended


@pytest.mark.parametrize(
    ("owners", "controller", "of_daemon_set"),
    [
        (None, None, False),
        ([{"kind": "DaemonSet", "uid": "d"}], None, False),
        ([{"kind": "DaemonSet", "uid": "d", "controller": False}], None, False),
        ([{"kind": "Node", "uid": "n"}, {"kind": "DaemonSet", "uid": "d", "controller": True}], "d", True),
        ([{"kind": "ReplicaSet", "uid": "r", "controller": True}], "r", False),
    ],
    ids=["none", "an owner that is no controller", "controller: false", "the second", "a ReplicaSet"],
)
def test_the_controller_is_the_owner_that_says_so(owners, controller, of_daemon_set) -> None:
    found = pod(metadata={"ownerReferences": owners})
    uid = found.metadata.controller.uid if found.metadata.controller is not None else None
    assert (uid, found.is_of_daemon_set) == (controller, of_daemon_set)
    assert found.metadata.is_controlled_by("d") is (controller == "d")
    assert not found.metadata.is_controlled_by("x")


def test_what_a_pod_without_anything_is() -> None:
    bare = pod()
    assert (bare.priority, bare.gates, bare.is_gated, bare.is_mirror) == (0, [], False, False)
    assert (bare.metadata.is_terminating, bare.metadata.created_at, bare.metadata.version) == (False, 0.0, 0)
    assert bare.status.scheduled is None
    assert (bare.status.was_tried, bare.status.was_refused) == (False, False)
    assert not bare.status.is_unschedulable
    assert (bare.metadata.get_label("x"), bare.metadata.get_annotation("x")) == (None, None)
    assert (bare.spec.node_terms, bare.spec.all_containers) == (None, ())
    assert bare.spec.can_preempt
    assert not bare.spec.has_preferences


def test_an_old_api_server_writes_null_as_the_time_of_a_template() -> None:
    found = pod(metadata={"name": "p", "creationTimestamp": None})
    assert (found.metadata.name, found.metadata.created_at) == ("p", 0.0)


def test_what_a_pod_says_of_itself() -> None:
    found = pod(
        metadata={
            "name": "p",
            "namespace": "ns",
            "uid": "u",
            "resourceVersion": "7",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "deletionTimestamp": "2026-01-01T00:01:00Z",
            "annotations": {"kubernetes.io/config.mirror": "hash"},
            "labels": {"team": "a"},
        },
        spec={
            "containers": [{"name": "main"}],
            "initContainers": [{"name": "first"}],
            "priority": -5,
            "schedulingGates": [{"name": "a"}, {"name": "b"}],
        },
    )
    assert (found.full_name, found.priority, found.gates) == ("ns/p", -5, ["a", "b"])
    assert (found.is_gated, found.is_mirror, found.runtime_uid) == (True, True, "hash")
    assert (found.metadata.is_terminating, found.metadata.version) == (True, 7)
    assert found.metadata.created_at == 1767225600.0
    assert (found.metadata.get_label("team"), found.metadata.get_label("x")) == ("a", None)
    assert [each.name for each in found.spec.all_containers] == ["first", "main"]


@pytest.mark.parametrize(
    ("condition", "tried", "refused", "unschedulable"),
    [
        ({"status": "False", "reason": "Unschedulable"}, True, True, True),
        ({"status": "False", "reason": "SchedulerError"}, True, True, False),
        ({"status": "False", "reason": "SchedulingGated"}, False, False, False),
        ({"status": "True", "reason": "Unschedulable"}, True, False, False),
    ],
)
def test_what_its_condition_says_of_a_pods_scheduling(condition, tried, refused, unschedulable) -> None:
    """The API server writes SchedulingGated when a pod is created; it outlives the gate."""
    found = scheduled(**condition)
    assert found.status.scheduled is not None
    assert (found.status.was_tried, found.status.was_refused) == (tried, refused)
    assert found.status.is_unschedulable is unschedulable
    assert found.status.scheduled.is_true is (condition["status"] == "True")


@pytest.mark.parametrize(
    ("conditions", "ready"),
    [
        (None, None),
        ([{"type": "Ready", "status": "Unknown"}], False),
        ([{"type": "Ready", "status": "True"}], True),
    ],
)
def test_a_node_is_ready(conditions, ready) -> None:
    body = json.dumps({"metadata": {"name": "n"}, "status": {"conditions": conditions}})
    assert msgspec.json.decode(body, type=Node).ready is ready


def test_taints_are_compared_by_what_repels_and_written_again_whole() -> None:
    taint = {"key": "k", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}
    body = json.dumps({"spec": {"taints": [taint]}})
    assert msgspec.json.decode(body, type=Node).spec.taints == (Taint("k", "", "NoExecute"),)
    assert msgspec.json.decode(body, type=WritableNode).spec.taints == [taint]


def test_equal_constraints_are_equal_rules_whatever_their_order() -> None:
    tolerations = [{"key": "a", "operator": "Exists"}, {"key": "b", "value": "v"}]
    term = {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}
    affinity = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    specs = [
        msgspec.convert(
            {
                "nodeSelector": dict(pairs),
                "tolerations": some,
                "affinity": {"nodeAffinity": affinity},
            },
            PodSpec,
        )
        for pairs, some in (
            ([("x", "1"), ("y", "2")], tolerations),
            ([("y", "2"), ("x", "1")], [*reversed(tolerations), tolerations[0]]),
        )
    ]
    (one, other) = (spec.node_rules for spec in specs)
    assert one == other
    assert hash(one) == hash(other)
    assert one.terms == (msgspec.convert(term, NodeTerm),)


@pytest.mark.parametrize(
    ("body", "names"), [('{"items":null}', []), ('{"items":[{"metadata":{"name":"p"}}]}', ["p"])]
)
def test_a_page_of_a_list(body: str, names: list[str]) -> None:
    page = make_list_decoder(Pod)(body.encode())
    assert [each.metadata.name for each in page.items or ()] == names


def test_something_else_is_no_list() -> None:
    with pytest.raises(msgspec.ValidationError, match="items"):
        make_list_decoder(Pod)(b'{"kind":"Status"}')


def test_decoded_objects_cost_the_garbage_collector_nothing() -> None:
    """Or a list of thousands of pods would be walked again and again while it is decoded."""
    term = {"key": "zone", "operator": "In", "values": ["a"]}
    status = {
        "name": "c",
        "state": {"terminated": {"finishedAt": "t"}},
        "resources": {"requests": {"cpu": "1"}},
    }
    found = pod(
        metadata={"ownerReferences": [{"uid": "u"}]},
        spec={
            "containers": [{"name": "c", "resources": {"limits": {"cpu": "1"}}, "ports": [{"hostPort": 1}]}],
            "tolerations": [{"key": "k"}],
            "volumes": [{"persistentVolumeClaim": {"claimName": "v"}}],
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [{"matchExpressions": [term]}]
                    }
                }
            },
        },
        status={"conditions": [{"type": "Ready"}], "containerStatuses": [status]},
    )
    seen = []

    def walk(value: object) -> None:
        if isinstance(value, msgspec.Struct):
            seen.append(value)
            for name in value.__struct_fields__:
                walk(getattr(value, name))
        elif isinstance(value, (list, tuple)):
            for each in value:
                walk(each)

    walk(found)
    assert len(seen) > 20
    assert [type(each).__name__ for each in seen if gc.is_tracked(each)] == []
