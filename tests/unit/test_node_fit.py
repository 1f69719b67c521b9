"""Rules of kube-scheduler one by one; tests/cluster/test_kube_scheduler_oracle.py asks the real one."""

from itertools import product
from typing import Any

import msgspec
import pytest

from allocator.names import PERCENT_RESOURCE
from kubeapi.objects import Pod
from kubeapi.selectors import (
    UNSCHEDULABLE,
    Expression,
    NodeRules,
    NodeTraits,
    Taint,
    Toleration,
    parse_int64,
)
from scheduler_plugin.cache.amounts import FIXED, RESOURCES, Amounts
from scheduler_plugin.cache.pods import is_resized, read_pod, sum_held_requests
from scheduler_plugin.scheduling.node_fit import (
    CORDONED,
    CPU,
    NOT_READY,
    PODS,
    RESOURCE,
    SELECTOR,
    SUM,
    TAINT,
    HostPort,
    Rejection,
    Shortage,
    find_node_rejection,
    leave_out_undecided,
    list_shortages,
)
from scheduler_plugin.scheduling.pod_affinity import (
    AFFINITY,
    ANTI_AFFINITY,
    OTHERS_ANTI_AFFINITY,
    ExistingAntiAffinity,
    Neighbour,
    PodAffinityFilter,
)
from tests.cluster_builders import MEMORY, pod_object

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
HOSTNAME = "kubernetes.io/hostname"
GIB = 1 << 30


def make_pod(name: str = "p", **more: Any) -> Pod:
    return msgspec.json.decode(msgspec.json.encode(pod_object(name, 0, **more)), type=Pod)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5),
        ("-3", -3),
        ("+5", 5),
        ("007", 7),
        ("1_000", None),
        ("5.0", None),
        (" 5", None),
        ("", None),
        ("\u0665", None),
        ("9223372036854775807", 2**63 - 1),
        ("9223372036854775808", None),
        ("-9223372036854775808", -(2**63)),
        ("9" * 5000, None),
    ],
)
def test_labels_are_numbers_as_go_reads_them(text: str, value: int | None) -> None:
    assert parse_int64(text) == value
    assert Expression("size", "Gt", ("-9223372036854775808",)).matches(text) is (
        value is not None and value > -(2**63)
    )


@pytest.mark.parametrize(
    ("one", "other", "conflict"),
    [
        ((53, "TCP", ""), (53, "", "0.0.0.0"), True),
        ((53, "TCP", ""), (53, "UDP", ""), False),
        ((53, "TCP", ""), (54, "TCP", ""), False),
        ((53, "TCP", "10.0.0.1"), (53, "TCP", "10.0.0.2"), False),
        ((53, "TCP", "10.0.0.1"), (53, "TCP", "10.0.0.1"), True),
        ((53, "TCP", "10.0.0.1"), (53, "TCP", ""), True),
    ],
)
def test_ports_conflict_by_protocol_and_address(
    one: tuple[int, str, str], other: tuple[int, str, str], conflict: bool
) -> None:
    assert HostPort.read(*one).conflicts_with(HostPort.read(*other)) is conflict
    assert HostPort.read(*other).conflicts_with(HostPort.read(*one)) is conflict


def test_a_node_is_not_ready_once_it_has_the_taint_and_no_pod_tolerates_it() -> None:
    taints = (Taint("team", "a", "NoExecute"), Taint("node.kubernetes.io/not-ready", "", "NoSchedule"))
    node = NodeTraits("n", False, {}, taints)
    assert find_node_rejection(node, NodeRules(), lambda _: False) == Rejection(NOT_READY)
    assert find_node_rejection(node, NodeRules(), lambda taint: taint.key != "team") == Rejection(
        TAINT, "team=a:NoExecute"
    )
    assert find_node_rejection(node, NodeRules(), lambda _: True) is None


NOT_READY_TAINT = Taint("node.kubernetes.io/not-ready", "", "NoExecute")
TAINTED = Taint("a", "b", "NoSchedule")


def reject(
    *taints: Taint, cordoned: bool = False, zone: str = "x", tolerations: tuple[Toleration, ...] = ()
) -> tuple[str, str] | None:
    """Find why a pod that wants zone x is kept off a node, and what tells that apart."""
    rules = NodeRules(selector=(("zone", "x"),), tolerations=tolerations)
    node = NodeTraits("n", cordoned, {"zone": zone}, taints)
    found = find_node_rejection(node, rules, rules.tolerates)
    return None if found is None else (found.reason, found.detail)


def test_the_first_reason_counts() -> None:
    """In the order of kube-scheduler's filters."""
    reasons = (CORDONED, NOT_READY, TAINT, SELECTOR)
    for held in product((False, True), repeat=4):
        cordoned, not_ready, tainted, other_zone = held
        taints = [taint for taint, has in ((TAINTED, tainted), (NOT_READY_TAINT, not_ready)) if has]
        found = reject(*taints, cordoned=cordoned, zone="y" if other_zone else "x")
        first = next((reason for reason, holds in zip(reasons, held, strict=True) if holds), None)
        assert (None if found is None else found[0]) == first


def test_a_cordon_may_be_tolerated_and_its_taint_outlives_it() -> None:
    assert reject(cordoned=True, tolerations=(Toleration(operator="Exists"),)) is None
    assert reject(UNSCHEDULABLE) == (TAINT, "node.kubernetes.io/unschedulable:NoSchedule")


@pytest.mark.parametrize(
    ("operator", "stands"), [("", True), ("Equal", True), ("Exists", True), ("Gt", False)]
)
def test_a_toleration_with_an_operator_that_is_off_by_default_covers_nothing(
    operator: str, *, stands: bool
) -> None:
    """kube-scheduler compares numbers only with the feature gate TaintTolerationComparisonOperators."""
    found = reject(TAINTED, tolerations=(Toleration(key="a", operator=operator, value="b"),))
    assert found == (None if stands else (TAINT, "a=b:NoSchedule"))


def test_every_field_of_amounts_but_the_last_has_a_position_a_name_and_a_reason() -> None:
    asked = Amounts(*range(1, FIXED + 1))
    assert Amounts._fields[FIXED:] == ("others",)
    assert asked == Amounts(**dict(zip(Amounts._fields, (1, 2, 3, 4, 5), strict=False)))
    assert len(RESOURCES) == FIXED
    assert len(list(list_shortages(asked, Amounts(), Amounts()))) == FIXED
    assert asked.subtract(asked) == Amounts()
    assert asked.add(asked, 2) == Amounts(*(3 * each for each in asked[:FIXED]))


def test_every_shortage_is_listed_with_its_numbers() -> None:
    used, capacity = Amounts(3, 500, 9, 8), Amounts(3, 1000, 1, 8, others=(("example.com/b", 2),))
    asked = Amounts(1, 501, 0, 1, 1, (("example.com/b", 2), ("example.com/nic", 1)))
    found = list(list_shortages(asked, used, capacity))
    assert [(each.reason, each.detail, each.shortage) for each in found] == [
        (PODS, "", Shortage("pods", 1, 3, 3)),
        (CPU, "", Shortage("cpu", 501, 500, 1000)),
        (SUM, "", Shortage("gpu-memory", 1, 8, 8)),
        (SUM, "", Shortage(PERCENT_RESOURCE, 1, 0, 0)),
        (RESOURCE, "example.com/nic", Shortage("example.com/nic", 1, 0, 0)),
    ]
    assert leave_out_undecided(asked, capacity) == asked._replace(others=(("example.com/b", 2),))


@pytest.mark.parametrize(
    ("status", "milli"),
    [
        pytest.param({}, 1000, id="the-spec"),
        pytest.param({"allocated": "4"}, 4000, id="down-in-progress"),
        pytest.param({"allocated": "500m"}, 1000, id="up-deferred"),
        pytest.param({"allocated": "500m", "actual": "3"}, 3000, id="actual-is-largest"),
        pytest.param({"allocated": "500m", "reason": "Infeasible"}, 500, id="infeasible"),
    ],
)
def test_a_pod_that_is_being_resized_holds_the_largest_of_what_counts(
    status: dict[str, str], milli: int
) -> None:
    told: dict[str, Any] = {"phase": "Running"}
    if "allocated" in status:
        allocated = {"cpu": status["allocated"], "memory": "1Gi"}
        actual = allocated | ({"cpu": status["actual"]} if "actual" in status else {})
        resources = {"allocatedResources": allocated, "resources": {"requests": actual}}
        told["containerStatuses"] = [{"name": "main", **resources}]
    if "reason" in status:
        told["conditions"] = [{"type": "PodResizePending", "status": "True", "reason": status["reason"]}]
    pod = make_pod(node="n", status=told)
    assert sum_held_requests(pod) == (milli, GIB)
    assert is_resized(pod) is (milli != 1000 or "allocated" in status)
    assert read_pod(pod, MEMORY).amounts.cpu_milli == milli


def test_a_pod_that_is_resized_as_a_whole_holds_what_its_status_says() -> None:
    asked = {"cpu": "1", "memory": "1Gi"}
    told = {"resources": {"requests": {"cpu": "4", "memory": "1Gi"}}, "allocatedResources": asked}
    spec = {"resources": {"requests": asked}, "overhead": {"cpu": "250m"}}
    assert read_pod(make_pod(node="n", spec=spec, status=told), MEMORY).amounts.cpu_milli == 4250
    infeasible = told | {
        "conditions": [{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}]
    }
    spec["resources"] = {"requests": {"cpu": "100", "memory": "1Gi"}}
    assert read_pod(make_pod(node="n", spec=spec, status=infeasible), MEMORY).amounts.cpu_milli == 4250


def near(kind: str, key: str = "zone", **term: Any) -> dict[str, Any]:
    term = {"topologyKey": key, "labelSelector": {"matchLabels": {"app": "x"}}, **term}
    return {"affinity": {kind: {REQUIRED: [term]}}}


def refusal(pod: Pod, others: list[tuple[Pod, dict[str, str]]], labels: dict[str, str]) -> str:
    node_labels = {f"n{at}": of_node for at, (_, of_node) in enumerate(others)}
    there = [Neighbour(other, of_node) for other, of_node in others]
    existing = ExistingAntiAffinity(
        msgspec.structs.replace(other, spec=msgspec.structs.replace(other.spec, node_name=f"n{at}"))
        for at, (other, _) in enumerate(others)
    )
    found = PodAffinityFilter(pod, there, existing, node_labels)
    conditions = found.list_conditions()
    refused = found.find_refusal(labels)
    assert all(each.matches(labels.get(each.key)) for each in conditions) is not bool(refused)
    return refused


def test_the_first_pod_of_a_group_needs_a_node_with_the_topology_label() -> None:
    pod = make_pod(labels={"app": "x"}, spec=near("podAffinity"))
    assert refusal(pod, [], {"zone": ""}) == ""
    assert refusal(pod, [], {HOSTNAME: "n"}) == AFFINITY
    # One of the group on a node without the label is at no place: the group has not begun.
    assert refusal(pod, [(make_pod("q", labels={"app": "x"}), {})], {"zone": "a"}) == ""
    assert refusal(pod, [(make_pod("q", labels={"app": "x"}), {"zone": "b"})], {"zone": "a"}) == AFFINITY


def test_a_term_that_no_text_can_hold_is_left_out_as_other_malformed_ones_are() -> None:
    body = msgspec.json.encode(make_pod(labels={"app": "x"}, spec=near("podAntiAffinity", "ZONE")))
    pod = msgspec.json.decode(body.replace(b"ZONE", b"\xff"), type=Pod)
    assert refusal(pod, [(make_pod("q", labels={"app": "x"}), {"zone": "a"})], {"zone": "a"}) == ""


def test_a_node_without_the_label_is_at_no_place() -> None:
    pod = make_pod(spec=near("podAntiAffinity"))
    other = make_pod("q", labels={"app": "x"})
    assert refusal(pod, [(other, {})], {}) == ""
    assert refusal(pod, [(other, {"zone": ""})], {"zone": ""}) == ANTI_AFFINITY


@pytest.mark.parametrize(
    ("selector", "more"),
    [
        ({}, OTHERS_ANTI_AFFINITY),
        ({"matchLabels": {"kubernetes.io/metadata.name": "default"}}, OTHERS_ANTI_AFFINITY),
        ({"matchLabels": {"kubernetes.io/metadata.name": "noisy"}}, ""),
        (
            {"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "Exists"}]},
            OTHERS_ANTI_AFFINITY,
        ),
    ],
)
def test_others_anti_affinity_selects_namespaces_by_name(selector: dict[str, Any], more: str) -> None:
    other = make_pod("q", namespace="elsewhere", spec=near("podAntiAffinity", namespaceSelector=selector))
    pod = make_pod(labels={"app": "x"})
    assert refusal(pod, [(other, {"zone": "a"})], {"zone": "a"}) == more


def test_where_labels_of_a_namespace_decide_it_is_said() -> None:
    selector = {"matchLabels": {"tier": "gold"}}
    spec = near("podAntiAffinity", namespaceSelector=selector)
    other = make_pod("q", namespace="elsewhere", node="n", spec=spec)
    pod, existing, node_labels = (
        make_pod(labels={"app": "x"}),
        ExistingAntiAffinity([other]),
        {"n": {"zone": "a"}},
    )
    found = PodAffinityFilter(pod, (), existing, node_labels)
    assert (found.is_undecided, found.find_refusal({"zone": "a"})) == (True, "")
    assert not PodAffinityFilter(make_pod(), (), existing, node_labels).is_undecided
    assert not PodAffinityFilter(pod, (), existing, node_labels, {other.metadata.uid}).is_undecided
    assert not PodAffinityFilter(pod, (), existing, {}).is_undecided
