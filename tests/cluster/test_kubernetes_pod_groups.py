"""Kubernetes' own PodGroups on the real kube-scheduler: a group is bound whole by cards, or waits whole."""

import itertools
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import pytest

from allocator.names import POD_ASSIGNED
from scheduler_plugin.extender.verbs import BINDING_REFUSED
from tests.cluster.harness import ApiError, Cluster, binaries, until, versions, workload
from tests.cluster.harness.admission import add_priority_class
from tests.cluster.harness.cluster import BUDGETS, PODS, publish_node
from tests.cluster.harness.controlplane import free_ports
from tests.cluster.harness.daemons import Extender
from tests.cluster.harness.extender_proxy import ExtenderProxy
from tests.cluster_builders import node_object

API = "/apis/scheduling.k8s.io/v1beta1"
GROUPS = f"{API}/namespaces/default/podgroups"
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
POLICY_BINDINGS = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
ZONE = "topology.kubernetes.io/zone"
SECOND = "second"
"""Name of another kube-scheduler."""


class World:
    """Fake nodes, groups and pods on a real API server, with kube-scheduler and two replicas of the extender.

    Attributes:
        proxy: Between kube-scheduler and the extenders.
        extenders: The replicas of the extender; one of them leads.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.control, self.api = cluster, cluster.control, cluster.api
        self.extenders = [
            Extender(
                self.control.admin_config,
                self._folder(f"extender-{at}"),
                port,
                "--leader-elect",
                "--bind-timeout=2",
            )
            for at, port in enumerate(free_ports(2))
        ]
        self.proxy = ExtenderProxy(*(each.url for each in self.extenders))
        self._nodes: list[str] = []
        self._numbers = itertools.count()

    def _folder(self, name: str) -> Any:
        folder = self.cluster.home / name
        folder.mkdir()
        return folder

    def start(self) -> None:
        until(lambda: self.api.get(API), "PodGroups are served")
        for name, value in (("low", 1), ("high", 1000)):
            add_priority_class(self.cluster, name, value)
        self.control.configure_scheduler(self.proxy.url)
        self.control.start_scheduler()
        self.control.start_second_scheduler(SECOND)
        for each in self.extenders:
            each.start(ready=False)
        self.wait_led()

    def wait_led(self) -> None:
        until(lambda: any(each.alive and each.is_ready() for each in self.extenders), "an extender leads")

    def stop(self) -> None:
        self.proxy.stop()
        for each in self.extenders:
            each.kill()

    def clear(self) -> None:
        """Delete everything; the finalizers of groups are those of a controller that does not run."""
        self.proxy.reset()
        for group in self.api.names(GROUPS):
            path = f"{GROUPS}/{group}"
            with suppress(ApiError):  # where the controller did run, it may be gone by now
                self.api.delete(path)
                self.api.merge(path, {"metadata": {"finalizers": None}})
        self.api.delete(PODS, grace_s=0)
        for node in self._nodes:
            self.api.delete(f"/api/v1/nodes/{node}")
        self._nodes.clear()
        until(lambda: not (self.api.names(PODS) or self.api.names(GROUPS)), "everything is deleted")

    # ---- what there is

    def node(self, sizes: Sequence[int], used: Sequence[int] = (), zone: str = "a") -> str:
        """Create a node as its daemon publishes it; return its name, which no node had before.

        The units of a vanished pod count on a node of the same name for a while.
        """
        name = f"n{next(self._numbers)}"
        made = node_object(name, sizes, used or [0] * len(sizes))
        publish_node(self.api, made, labels={ZONE: zone})
        self._nodes.append(name)
        return name

    def set_used(self, name: str, sizes: Sequence[int], used: Sequence[int], *, seen: bool = False) -> None:
        """Publish other words of a node, whose daemon may have seen all pods that are gone."""
        newest = int(self.api.get(PODS)["metadata"]["resourceVersion"]) if seen else 1
        publish_node(self.api, node_object(name, sizes, used, revision=2, seen=newest))

    def group(
        self, name: str, gib: Sequence[int], min_count: int = 0, topology: str = "", **spec: Any
    ) -> None:
        """Create a PodGroup and its pods, one of each size, called by the group's name and a number."""
        body: dict[str, Any] = {"schedulingPolicy": {"gang": {"minCount": min_count or len(gib)}}}
        if topology:
            body["schedulingConstraints"] = {"topology": [{"key": topology}]}
        if priority := spec.get("priorityClassName"):
            body["priorityClassName"] = priority
        self.api.post(GROUPS, {"metadata": {"name": name}, "spec": body})
        for at, units in enumerate(gib):
            self.pod(f"{name}-{at}", units, schedulingGroup={"podGroupName": name}, **spec)

    def pod(self, name: str, gib: int, **more: Any) -> None:
        self.cluster.create(workload.pod(name, workload.container(gib=gib), **more))

    # ---- what became of it

    def pods(self) -> dict[str, Any]:
        return {pod["metadata"]["name"]: pod for pod in self.api.get(PODS)["items"]}

    def bound(self) -> set[str]:
        return {name for name, pod in self.pods().items() if pod["spec"].get("nodeName")}

    def wait_bound(self, *names: str) -> None:
        until(lambda: set(names) <= self.bound(), f"{names} are bound")

    def wait_tried(self, name: str, times: int = 1) -> None:
        """Wait until filter has refused pods of a group so often, from now on."""

        def refused() -> int:
            calls = self.proxy.list_calls("filter")
            return sum(call.pod.startswith(f"{name}-") and not call.node for call in calls)

        before = refused()
        until(lambda: refused() >= before + times, f"group {name} is tried {times} times more")


@pytest.fixture(scope="module")
def running(make_cluster: Any) -> Iterator[World]:
    binaries.skip_before(versions.POD_GROUPS_SINCE, "PodGroups in one cycle")

    def start(cluster: Cluster) -> None:
        cluster.control.with_pod_groups = True
        cluster.control.start_without_controllers()

    world = World(make_cluster(with_node=False, start=start))
    try:
        world.start()
        yield world
    finally:
        world.stop()


@pytest.fixture
def world(running: World) -> Iterator[World]:
    yield running
    running.clear()


def test_a_group_for_which_the_sum_suffices_and_no_card_does_waits_whole(world: World) -> None:
    node = world.node((8, 8), (2, 4))
    world.group("g", (5, 5))
    world.wait_tried("g", 2)
    assert world.bound() == set()
    world.set_used(node, (8, 8), (2, 0))
    world.wait_bound("g-0", "g-1")


def test_a_gang_that_fits_exactly_is_bound(world: World) -> None:
    for _ in range(8):
        world.node((8, 8))
    world.group("g", [5] * 16)
    world.wait_bound(*(f"g-{at}" for at in range(16)))
    assigned = [pod["metadata"]["annotations"][POD_ASSIGNED] for pod in world.pods().values()]
    cards = {card for text in assigned for shares in json.loads(text).values() for card, _ in shares}
    assert len(cards) == 16
    assert not [call for call in world.proxy.list_calls("bind") if call.why]


@pytest.mark.parametrize("scheduler", ["default-scheduler", pytest.param(SECOND, marks=pytest.mark.nightly)])
def test_of_two_groups_that_want_the_same_cards_one_is_bound(world: World, scheduler: str) -> None:
    world.node((8, 8, 8))
    world.group("a", (5, 5))
    world.group("b", (5, 5), schedulerName=scheduler)
    groups = ({"a-0", "a-1"}, {"b-0", "b-1"})
    until(lambda: world.bound() in groups, "one of them is bound")
    (waits,) = [group for group in groups if group != world.bound()]
    name = min(waits)[0]
    world.wait_tried(name)
    assert world.bound() in groups


def test_a_group_of_more_pods_than_min_count_is_bound_without_the_last(world: World) -> None:
    world.node((8, 8))
    world.group("g", (5, 5, 5), min_count=2)
    until(lambda: len(world.bound()) == 2, "two of three are bound")
    world.wait_tried("g")
    assert len(world.bound()) == 2


def test_a_topology_has_several_placements_of_which_one_is_chosen(world: World) -> None:
    """Of those that are asked about, in whatever order, half have the sum for a group and no card."""
    good = [world.node((6, 8), zone="a"), world.node((6, 8), zone="c")]
    for zone in "bd":
        world.node((6, 6), zone=zone)
    chosen = []
    for name in ("g", "h"):
        world.group(name, (5, 7), topology=ZONE)
        world.wait_bound(f"{name}-0", f"{name}-1")
        pods = world.pods()
        (node,) = {pods[f"{name}-{at}"]["spec"]["nodeName"] for at in range(2)}
        chosen.append(node)
    assert sorted(chosen) == sorted(good)
    assert len({call.node for call in world.proxy.list_calls("filter", "g-0")}) > 1
    assert any(not call.node for call in world.proxy.list_calls("filter")), "a placement fails"
    assert not [call for call in world.proxy.list_calls("bind") if call.why]


def test_no_pod_of_larger_priority_takes_a_card_between_filter_and_bind(world: World) -> None:
    world.node((8, 8, 8))
    world.proxy.binds_may_pass.clear()
    world.group("g", (5, 5, 5), priorityClassName="low")
    until(lambda: len(world.proxy.waiting_binds) == 3, "the Bindings of the group wait")
    world.pod("s-0", 5, priorityClassName="high")
    until(lambda: world.proxy.list_calls("filter", "s-0"), "the other pod is tried")
    assert not any(call.node for call in world.proxy.list_calls("filter", "s-0"))
    world.proxy.binds_may_pass.set()
    world.wait_bound("g-0", "g-1", "g-2")
    assert "s-0" not in world.bound()


def test_a_node_that_is_nominated_before_the_binding_is_no_reason_to_refuse_it(world: World) -> None:
    node = world.node((8, 8))

    def nominate(name: str) -> None:
        world.api.merge(f"{PODS}/{name}/status", {"status": {"nominatedNodeName": node}})

    world.proxy.before_bind = nominate
    # A pod is seen bound before kube-scheduler has the answer: also the last one of the test before.
    pods = ("nominated-0", "nominated-1")
    world.group("nominated", (5, 5))
    world.wait_bound(*pods)
    until(lambda: len(world.proxy.list_calls("bind", *pods)) >= 2, "both calls are answered")
    assert [call.why for call in world.proxy.list_calls("bind", *pods)] == ["", ""]


@pytest.mark.nightly
def test_a_pod_whose_binding_is_refused_is_tried_ever_more_rarely(world: World) -> None:
    world.node((8, 8))
    refuse_binding(world, "g-1")
    world.group("g", (5, 5))
    until(lambda: "g-0" in world.bound(), "the other pod is bound")
    try:
        pauses = lambda: [call.why for call in world.proxy.list_calls("filter", "g-1")].count(BINDING_REFUSED)  # noqa: E731
        until(lambda: pauses() >= 3, "it pauses")
        # Without pauses kube-scheduler would call filter and bind in turns, and nothing else.
        binds = len(world.proxy.list_calls("bind", "g-1"))
        assert binds <= pauses() + 1
        wait_event(world, "g", "PodGroupBoundInPart")
    finally:
        world.api.delete(f"{POLICIES}/refuse")
        world.api.delete(f"{POLICY_BINDINGS}/refuse")
    world.wait_bound("g-1")


def wait_event(world: World, name: str, reason: str) -> None:
    fields = (f"involvedObject.name={name}", f"reason={reason}")
    until(lambda: world.cluster.find_events(*fields), f"an Event {reason} of {name}")


def refuse_binding(world: World, name: str) -> None:
    policy = {
        "metadata": {"name": "refuse"},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "resourceRules": [
                    {
                        "apiGroups": [""],
                        "apiVersions": ["v1"],
                        "operations": ["CREATE"],
                        "resources": ["pods/binding"],
                    }
                ]
            },
            "validations": [{"expression": f"object.metadata.name != '{name}'", "message": "not this pod"}],
        },
    }
    world.api.post(POLICIES, policy)
    binding = {
        "metadata": {"name": "refuse"},
        "spec": {"policyName": "refuse", "validationActions": ["Deny"]},
    }
    world.api.post(POLICY_BINDINGS, binding)

    def is_refused() -> bool:
        """The policy comes first, and then that there is no such pod yet."""
        try:
            world.api.post(f"{PODS}/{name}/binding", {"target": {"name": "none"}, "metadata": {"name": name}})
        except ApiError as error:
            return error.status != 404
        return False

    until(is_refused, "the policy is in force")


def test_kube_scheduler_killed_between_filter_and_bind_places_the_group_again(world: World) -> None:
    world.node((8, 8, 8))
    world.proxy.binds_may_pass.clear()
    world.group("g", (5, 5, 5))
    until(lambda: len(world.proxy.waiting_binds) == 3, "the Bindings of the group wait")
    world.control.restart_scheduler()
    asked = len(world.proxy.list_calls("filter"))
    until(lambda: len(world.proxy.list_calls("filter")) >= asked + 3, "the group is asked about again")
    world.proxy.binds_may_pass.set()
    world.wait_bound("g-0", "g-1", "g-2")


def test_another_replica_of_the_extender_binds_what_the_first_one_filtered(world: World) -> None:
    world.node((8, 8, 8))
    world.proxy.binds_may_pass.clear()
    world.group("g", (5, 5, 5))
    until(lambda: len(world.proxy.waiting_binds) == 3, "the Bindings of the group wait")
    (leader,) = [each for each in world.extenders if each.is_ready()]
    leader.kill()
    world.wait_led()
    world.proxy.binds_may_pass.set()
    world.wait_bound("g-0", "g-1", "g-2")
    leader.start(ready=False)


def test_pods_are_evicted_for_all_of_a_gang_or_for_nobody(world: World) -> None:
    """Of three gangs two cannot start: one lacks a card even then, of one the victims have a budget."""
    nodes = {name: world.node((8, 8), zone=name) for name in ("large", "kept", "g")}
    for name in nodes:
        for at in range(2):
            own = {"labels": {"victims-of": name}, "nodeSelector": {ZONE: name}}
            world.pod(f"low-{name}-{at}", 5, priorityClassName="low", **own)
    victims = {name: {f"low-{name}-0", f"low-{name}-1"} for name in nodes}
    world.wait_bound(*itertools.chain.from_iterable(victims.values()))
    # Nobody computes what a budget allows here, which is nothing then.
    world.cluster.make_budget("kept", {"victims-of": "kept"}, minAvailable=1)
    try:
        for name, pods in (("large", 3), ("kept", 2), ("g", 2)):
            world.group(name, [5] * pods, priorityClassName="high", nodeSelector={ZONE: name})
            # The preemptor looks at gangs of one priority in the order of their first refusals.
            until(lambda name=name: world.proxy.list_calls("filter", f"{name}-0"), f"{name} is tried")
        until(lambda: not world.pods().keys() & victims["g"], "room is made for a gang")
        world.set_used(nodes["g"], (8, 8), (0, 0), seen=True)
        world.wait_bound("g-0", "g-1")
        assert world.bound() == {"g-0", "g-1", *victims["large"], *victims["kept"]}
    finally:
        world.api.delete(f"{BUDGETS}/kept")


def test_the_pods_of_a_job_are_bound_together(world: World) -> None:
    """The Job's controller makes a Workload and a PodGroup for it."""
    node = world.node((8, 8), (0, 4))
    world.control.start_controllers()
    template = workload.pod("unused", workload.container(gib=5))
    del template["metadata"]["name"]
    world.api.post(
        "/apis/batch/v1/namespaces/default/jobs",
        {
            "metadata": {"name": "train"},
            "spec": {
                "parallelism": 2,
                "completions": 2,
                "completionMode": "Indexed",
                "scheduling": {"schedulingPolicy": {"gang": {}}},
                "template": {"metadata": template["metadata"], "spec": template["spec"]},
            },
        },
    )
    try:
        until(lambda: len(world.pods()) == 2, "the Job has pods")
        assert all(pod["spec"].get("schedulingGroup") for pod in world.pods().values())
        until(lambda: any(not call.node for call in world.proxy.list_calls("filter")), "its group is tried")
        assert world.bound() == set()
        world.set_used(node, (8, 8), (0, 0))
        until(lambda: len(world.bound()) == 2, "both are bound")
    finally:
        world.api.delete("/apis/batch/v1/namespaces/default/jobs/train?propagationPolicy=Background")
        # Its finalizers on pods, and the one on the group, are taken away by their controllers.
        world.clear()
        world.control.kill("kube-controller-manager")
