"""Each rule of kube-scheduler that batch mode checks itself: one pod, one node, and what keeps them apart."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from allocator.names import (
    BATCH_SCHEDULER,
    COMPUTE_RESOURCE,
    PLACEHOLDER_LABEL,
    PLACEHOLDER_SCHEDULER,
    POD_CONTAINERS,
    POD_GPU_MODEL,
)
from kubeapi.objects import Node, Pod
from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.scheduling.kubernetes_checks import MOST_UNTRIED, UNTRIED_S, KubernetesChecks
from tests.cluster_builders import container, node_object, pod_object

READY = [{"type": "Ready", "status": "True"}]
TRIED = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]
JUST_RELEASED = [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]


class World:
    """One node `n` of 4 cores, 8 GiB and 10 pods, and the pod `p` of 1 core and 1 GiB that is to be bound."""

    def __init__(self, **pod: Any) -> None:
        self.state = ClusterState()
        self.checks = KubernetesChecks(self.state)
        self.version = 1
        self.now = 0.0
        self.node()
        self.node("other")
        for scheduler in ("default-scheduler", "other"):
            self.show_at_work(scheduler)
        self.pod("p", **pod)

    def show_at_work(self, scheduler: str) -> None:
        """A scheduler binds a pod to another node."""
        name = f"of-{scheduler}"
        self.pod(name, scheduler=scheduler)
        self.pod(name, scheduler=scheduler, node="other")

    def node(
        self,
        name: str = "n",
        *,
        labels: Mapping[str, str] | None = None,
        spec: Mapping[str, Any] | None = None,
        conditions: list[dict[str, str]] | None = None,
        resources: Mapping[str, str] | None = None,
        units: int = 64,
    ) -> None:
        self.version += 1
        raw: dict[str, Any] = node_object(
            name,
            version=self.version,
            cpu="4",
            memory="8Gi",
            allocatable_units=units,
            resources={"pods": "10", **(resources or {})},
        )
        raw["metadata"]["labels"] = {"kubernetes.io/hostname": name, **(labels or {})}
        raw["spec"] = dict(spec or {})
        raw["status"]["conditions"] = READY if conditions is None else conditions
        found = msgspec.convert(raw, Node)
        self.state.apply_node(found, 0)
        self.checks.apply_node(found)

    def pod(self, name: str, units: int = 1, *, scheduler: str = BATCH_SCHEDULER, **more: Any) -> None:
        self.version += 1
        raw: dict[str, Any] = pod_object(name, units, version=self.version, **more)
        raw["spec"].setdefault("schedulerName", scheduler)
        found = msgspec.json.decode(msgspec.json.encode(raw), type=Pod)
        self.state.apply_pod(found, self.now)
        self.checks.apply_pod(found, self.now)

    def rejection(self, node: str = "n", now: float = 0, margin: float = 0.0) -> str:
        return self.checks.find_rejection("uid-p", node, now, margin=margin)


def test_an_empty_node_is_allowed_and_unknown_ones_are_not() -> None:
    world = World()
    assert world.rejection() == ""
    assert world.rejection("m") == "the node is gone"
    assert world.checks.find_rejection("uid-q", "n", 0) == "the pod is not in the scheduler's cache yet"


@pytest.mark.parametrize(("taints", "why"), [([], ""), (["not-ready"], "the node is not ready")])
def test_a_node_that_is_not_ready_is_refused_once_it_has_the_taint(taints: list[str], why: str) -> None:
    world = World()
    found = [{"key": f"node.kubernetes.io/{key}", "effect": "NoSchedule"} for key in taints]
    world.node(conditions=[{"type": "Ready", "status": "False"}], spec={"taints": found})
    assert world.rejection() == why


def test_a_cordoned_node_is_refused_unless_that_is_tolerated() -> None:
    world = World()
    world.node(spec={"unschedulable": True})
    assert world.rejection() == "the node is cordoned"
    world.pod("p", spec={"tolerations": [{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}]})
    assert world.rejection() == ""


@pytest.mark.parametrize(
    ("effect", "why"),
    [("NoSchedule", "taint team"), ("NoExecute", "taint team"), ("PreferNoSchedule", "")],
)
def test_a_taint_is_refused_by_its_effect_and_unless_tolerated(effect: str, why: str) -> None:
    world = World()
    world.node(spec={"taints": [{"key": "team", "value": "a", "effect": effect}]})
    assert world.rejection() == why
    world.pod("p", spec={"tolerations": [{"key": "team", "value": "b", "effect": effect}]})
    assert world.rejection() == why
    world.pod("p", spec={"tolerations": [{"key": "team", "value": "a"}]})
    assert world.rejection() == ""


@pytest.mark.parametrize(
    ("spec", "allowed"),
    [
        ({"nodeSelector": {"zone": "a"}}, True),
        ({"nodeSelector": {"zone": "b"}}, False),
        ({"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["b"]}]}, True),
        ({"matchExpressions": [{"key": "zone", "operator": "DoesNotExist"}]}, False),
        ({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}, True),
        ({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["m"]}]}, False),
        ({}, False),
    ],
)
def test_selector_and_required_affinity_select_the_node(spec: dict[str, Any], allowed: bool) -> None:
    if "nodeSelector" not in spec:
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [spec]}}
        spec = {"affinity": {"nodeAffinity": required}}
    world = World(spec=spec)
    world.node(labels={"zone": "a"})
    assert (world.rejection() == "") is allowed


@pytest.mark.parametrize(
    ("amounts", "why"),
    [
        ({"cpu": "3"}, ""),
        ({"cpu": "3001m"}, "insufficient cpu"),
        ({"memory": "7Gi"}, ""),
        ({"memory": "7169Mi"}, "insufficient memory"),
    ],
)
def test_cpu_and_memory_of_bound_pods_count_terminating_ones_too(amounts: dict[str, str], why: str) -> None:
    world = World()
    world.pod("bound", node="n", deleted="2026-01-01T00:00:00Z", **{"cpu": "0", "memory": "0"} | amounts)
    assert world.rejection() == why
    world.pod("bound", node="n", phase="Succeeded", **{"cpu": "0", "memory": "0"} | amounts)
    assert world.rejection() == ""


@pytest.mark.parametrize("resource", ["ephemeral-storage", "hugepages-2Mi", "example.com/fpga"])
def test_every_other_resource_counts(resource: str) -> None:
    wish = [container(units=1, resources={resource: "2"})]
    world = World(containers=wish)
    assert world.rejection() == f"insufficient {resource}"
    world.node(resources={resource: "3"})
    assert world.rejection() == ""
    world.pod("bound", node="n", containers=wish)
    assert world.rejection() == f"insufficient {resource}"


def test_compute_does_not_count_whatever_the_node_offers() -> None:
    """The extender's entry says `ignoredByScheduler`."""
    world = World(containers=[container(units=1, resources={COMPUTE_RESOURCE: "30"})])
    assert world.rejection() == ""
    world.node(resources={COMPUTE_RESOURCE: "20"})
    assert world.rejection() == ""


def test_the_number_of_pods_counts() -> None:
    world = World()
    world.node(resources={"pods": "1"})
    assert world.rejection() == ""
    world.pod("bound", 0, node="n", cpu="0", memory="0")
    assert world.rejection() == "too many pods"
    world.pod("bound", 0, node="n", cpu="0", memory="0", phase="Succeeded")
    assert world.rejection() == ""


def test_the_sum_of_gpu_memory_counts_as_kube_scheduler_has_it() -> None:
    world = World(units=8)
    world.node(units=8)
    assert world.rejection() == ""
    world.pod("bound", 1, node="n", cpu="0", memory="0")
    assert world.rejection() == "insufficient GPU memory"


def test_what_is_being_bound_counts() -> None:
    world = World(cpu="2")
    world.pod("other", 1, cpu="3")
    assert world.rejection() == ""
    world.state.assume("uid-other", "n", None, 0)
    assert world.rejection() == "insufficient cpu"


@pytest.mark.parametrize(("priority", "why"), [(-1, ""), (0, "insufficient cpu"), (1, "insufficient cpu")])
def test_nominated_pods_of_the_same_priority_or_a_larger_one_count(priority: int, why: str) -> None:
    world = World(cpu="2")
    world.pod(
        "other",
        1,
        cpu="3",
        scheduler="default-scheduler",
        spec={"priority": priority},
        status={"nominatedNodeName": "n", "conditions": TRIED},
    )
    assert world.rejection() == why
    assert world.rejection("n", UNTRIED_S) == why


def _anti_affinity(**more: Any) -> dict[str, Any]:
    term = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "x"}}, **more}
    return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


@pytest.mark.parametrize(
    ("spec", "labels", "why"),
    [
        (_anti_affinity(), {"app": "x"}, "anti-affinity of another pod"),
        (_anti_affinity(), {"app": "y"}, ""),
        (_anti_affinity(topologyKey="kubernetes.io/hostname"), {"app": "x"}, ""),
        (_anti_affinity(namespaces=["elsewhere"]), {"app": "x"}, ""),
        (
            _anti_affinity(namespaceSelector={"matchLabels": {"a": "b"}}),
            {"app": "x"},
            "anti-affinity of another pod",
        ),
    ],
)
@pytest.mark.parametrize("where", ["bound", "taken", "nominated"])
def test_others_required_anti_affinity_is_obeyed(
    spec: dict[str, Any], labels: dict[str, str], why: str, where: str
) -> None:
    """The other pod is on another node of the zone: bound, being bound, or nominated."""
    world = World(labels=labels)
    world.node(labels={"zone": "a"})
    world.node("m", labels={"zone": "a"})
    world.pod(
        "other",
        1,
        node="m" if where == "bound" else "",
        spec=spec,
        status={"nominatedNodeName": "m"} if where == "nominated" else {},
    )
    if where == "taken":
        world.state.assume("uid-other", "m", None, 0)
    assert world.rejection() == why


def test_anti_affinity_that_many_pods_share_ends_with_the_last_one_in_the_zone() -> None:
    world = World(labels={"app": "x"}, spec=_anti_affinity())
    for name, zone in (("n", "a"), ("m", "a"), ("far", "b")):
        world.node(name, labels={"zone": zone})
    where = {"one": "m", "two": "m", "three": "far", "waits": ""}
    for name, node in where.items():
        world.pod(name, node=node, spec=_anti_affinity())
    for name, node in where.items():
        assert world.rejection() == ("anti-affinity of another pod" if name in {"one", "two"} else "")
        world.pod(name, node=node, spec=_anti_affinity(), phase="Succeeded")
    world.pod("p", node="n", labels={"app": "x"}, spec=_anti_affinity(), phase="Succeeded")
    assert not world.checks._existing._owners


FIVE_CARDS = [container(f"c{number}", 16, cpu="1m", memory="1Mi") for number in range(5)]

FIVE_SMALL = [container(f"c{number}", 1, cpu="1m", memory="1Mi") for number in range(5)]


@pytest.mark.parametrize(
    ("units", "more", "why"),
    [
        (1, {"spec": {"priority": 1}}, "a pod of larger priority waits for the node"),
        (1, {"spec": {"priority": 0}}, ""),
        (17, {"spec": {"priority": 1}}, ""),
        (1, {"spec": {"priority": 1}, "cpu": "5"}, ""),
        (1, {"spec": {"priority": 1, "schedulingGates": [{"name": "g"}]}}, ""),
        (1, {"spec": {"priority": 1, "nodeSelector": {"a": "b"}}}, ""),
        (1, {"spec": {"priority": 1}, "status": {"conditions": TRIED}}, ""),
        (
            1,
            {"spec": {"priority": 1}, "status": {"conditions": JUST_RELEASED}},
            "a pod of larger priority waits for the node",
        ),
        (1, {"spec": {"priority": 1}, "scheduler": BATCH_SCHEDULER}, ""),
        # By the rule of filter: each of five has a card, and all have none together; and no card is a T4.
        (1, {"spec": {"priority": 1}, "containers": FIVE_CARDS}, ""),
        (1, {"spec": {"priority": 1}, "annotations": {POD_GPU_MODEL: "T4"}}, ""),
        (
            1,
            {"spec": {"priority": 1}, "annotations": {POD_CONTAINERS: "apart"}, "containers": FIVE_SMALL},
            "",
        ),
    ],
)
def test_no_pod_of_larger_priority_waits_for_the_room(units: int, more: dict[str, Any], why: str) -> None:
    """One that kube-scheduler has tried, and one that would not fit there, holds up nobody."""
    world = World()
    world.pod("other", units, **{"scheduler": "default-scheduler"} | more)
    assert world.rejection() == why
    assert world.rejection(now=UNTRIED_S) == ""


def test_a_placeholder_holds_up_nobody() -> None:
    """No scheduler takes one, though autoscale gives it the condition that a scheduler writes."""
    world = World()
    placeholder = {"scheduler": PLACEHOLDER_SCHEDULER, "labels": {PLACEHOLDER_LABEL: "true"}}
    world.pod("marked", **placeholder, status={"conditions": TRIED})
    world.pod("new", **placeholder, spec={"priority": 1})
    assert world.rejection() == ""


@pytest.mark.parametrize("units", [0, 1])
def test_a_pod_that_is_being_deleted_holds_up_nobody(units: int) -> None:
    world = World()
    more = {"containers": [{"name": "main"}]} if not units else {}
    world.pod("other", scheduler="other", spec={"priority": 1}, **more)
    assert world.rejection() == "a pod of larger priority waits for the node"
    world.pod("other", scheduler="other", spec={"priority": 1}, deleted="2027-01-15T08:00:00Z", **more)
    assert world.rejection() == ""


@pytest.mark.parametrize("kinds", [1, MOST_UNTRIED + 1])
def test_many_pods_of_larger_priority_that_fit_nowhere_hold_up_nobody(kinds: int) -> None:
    world = World()
    for number in range(MOST_UNTRIED + 1):
        world.pod(f"x{number}", scheduler="other", spec={"priority": 1}, cpu=str(100 + number % kinds))
    assert world.rejection() == ""
    world.pod("fits", scheduler="other", spec={"priority": 2})
    assert world.rejection() == "a pod of larger priority waits for the node"
    world.pod("fits", scheduler="other", spec={"priority": 2}, status={"conditions": TRIED})
    assert world.rejection() == ""


@pytest.mark.parametrize("proof", ["it binds a pod", "it finds no node for a pod"])
def test_a_pod_of_a_scheduler_that_does_not_exist_holds_up_nobody(proof: str) -> None:
    world = World()
    world.pod("waits", scheduler="nobody", spec={"priority": 1})
    world.pod(
        "named",
        scheduler="nobody",
        node="other",
        status={"conditions": [{"type": "PodScheduled", "status": "True"}]},
    )
    assert world.rejection() == ""
    if proof == "it binds a pod":
        world.show_at_work("nobody")
    else:
        world.pod("tried", scheduler="nobody", status={"conditions": TRIED})
    assert world.rejection() == "a pod of larger priority waits for the node"


def test_kinds_of_pods_of_a_scheduler_that_does_not_exist_cost_nothing_however_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They wait for ever, and each node and pod of a call is checked."""
    world, looked = World(), list[str]()
    for number in range(5):
        world.pod(f"x{number}", scheduler="nobody", spec={"priority": 1}, cpu=str(100 + number))
    world.pod("waits", scheduler="other", spec={"priority": 1}, cpu="100")
    monkeypatch.setattr(world.checks, "_find_untried", lambda kind, *_: looked.append(kind.scheduler))
    assert world.rejection() == ""
    assert looked == ["other"]


def test_a_pod_that_waited_long_does_not_hide_a_new_one_that_is_alike() -> None:
    world = World()
    world.pod("old", scheduler="other", spec={"priority": 1})
    world.now = UNTRIED_S / 2
    world.pod("old", scheduler="other", spec={"priority": 1})
    world.pod("new", scheduler="other", spec={"priority": 1})
    assert world.rejection(now=UNTRIED_S) == "a pod of larger priority waits for the node"
    assert world.rejection(now=1.5 * UNTRIED_S) == ""


def test_headroom_is_kept_of_cpu_and_memory() -> None:
    world = World(cpu="2")
    assert world.rejection(margin=0.5) == ""
    assert world.rejection(margin=0.51) == "insufficient cpu"


def test_a_complete_list_replaces_what_was_known() -> None:
    world = World()
    world.pod("bound", 1, node="n", cpu="4")
    assert world.rejection() == "insufficient cpu"
    kept = msgspec.convert(pod_object("p", 1, version=9), Pod)
    world.state.replace_pods([kept], "20", 0)
    world.checks.replace_pods([kept], 0)
    assert world.rejection() == ""
    world.checks.replace_nodes([])
    assert world.rejection() == "the node is gone"
