"""Batch mode that binds, on a real API server: the policies, and pods bound with one write through faults."""

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from allocator.names import BATCH_POOL, BATCH_SCHEDULER, QUEUE_GATE, QUEUE_NAME
from benchmarks.throughput import CARD_GIB, fake_node, watch
from scheduler_plugin.scheduling.batch_eligibility import list_unsupported_fields
from tests.cluster.batch_builders import (
    RESTARTS_ALL,
    UNITS,
    bound,
    check_cards,
    create_all,
    of_batch,
    queued,
    start_fleet,
)
from tests.cluster.conftest import StartQueue
from tests.cluster.harness import ApiError, Cluster, until
from tests.cluster.harness import workload as w
from tests.cluster.harness.cluster import NODES, PODS
from tests.cluster.harness.daemons import QueueController
from tests.cluster.harness.manifests import MANIFESTS, apply_all, build

NODE_COUNT = 20
BURST = 100
AWAY_S = 30.0
GIB = 1 << 30
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
NODE_TERM = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}
POD_TERM = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"a": "b"}}}
SPECS: dict[str, dict[str, Any]] = {
    "plain": {},
    "selector": {"nodeSelector": {"a": "b"}, "tolerations": [{"operator": "Exists"}]},
    "required nodes": {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [NODE_TERM]}}}},
    "volumes": {
        "volumes": [{"name": "v", "emptyDir": {}}, {"name": "c", "configMap": {"name": "c"}}],
        "initContainers": [
            {**w.container("init"), "volumeMounts": [{"name": "v", "mountPath": "/v", "readOnly": True}]}
        ],
    },
    "linux": {"os": {"name": "linux"}},
    "claim": {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]},
    "ephemeral volume": {
        "volumes": [
            {
                "name": "v",
                "ephemeral": {
                    "volumeClaimTemplate": {
                        "spec": {
                            "accessModes": ["ReadWriteOnce"],
                            "resources": {"requests": {"storage": "1Gi"}},
                        }
                    }
                },
            }
        ]
    },
    "csi volume": {"volumes": [{"name": "v", "csi": {"driver": "d.example.com"}}]},
    "pod affinity": {"affinity": {"podAffinity": {REQUIRED: [POD_TERM]}}},
    "anti-affinity": {"affinity": {"podAntiAffinity": {REQUIRED: [POD_TERM]}}},
    "preferred": {
        "affinity": {
            "nodeAffinity": {
                PREFERRED: [
                    {"weight": 1, "preference": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}}
                ]
            }
        }
    },
    "spread": {
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "a", "whenUnsatisfiable": "DoNotSchedule"}
        ]
    },
    "host network": {"hostNetwork": True},
    "foreign gate": {"schedulingGates": [{"name": "example.com/theirs"}]},
    "resource claim": {"resourceClaims": [{"name": "c", "resourceClaimName": "c"}]},
    "windows": {"os": {"name": "windows"}},
    "restarts all": RESTARTS_ALL,
}

TEAM_PODS = "/api/v1/namespaces/team/pods"


def are_in_force(cluster: Cluster) -> bool:
    """Ask whether a queue's pods become those of batch mode, by their label and by their namespace's."""
    made = [
        cluster.api.post(PODS, queued("p"), dryRun="All"),
        cluster.api.post(TEAM_PODS, team_pod(), dryRun="All"),
    ]
    return all(
        spec["schedulerName"] == BATCH_SCHEDULER and BATCH_POOL in spec.get("nodeSelector", {})
        for spec in (pod["spec"] for pod in made)
    )


@pytest.fixture(scope="module")
def policies(make_cluster: Any) -> Cluster:
    def begin(cluster: Cluster) -> None:
        cluster.start_api_server()
        apply_all(cluster.api, build(MANIFESTS / "overlays/queue-batch"))

        namespace = {"metadata": {"name": "team", "labels": {QUEUE_NAME: "a"}}}
        cluster.api.post("/api/v1/namespaces", namespace)

        until(lambda: are_in_force(cluster), "both policies in force")

    cluster: Cluster = make_cluster(with_node=False, start=begin)
    return cluster


@pytest.mark.parametrize("name", SPECS)
def test_a_pod_has_the_scheduler_or_the_gate_as_the_code_says(policies: Cluster, name: str) -> None:
    spec = policies.api.post(PODS, queued("p", **SPECS[name]), dryRun="All")["spec"]
    gates = [gate["name"] for gate in spec.get("schedulingGates", [])]
    is_batch = spec["schedulerName"] == BATCH_SCHEDULER
    assert is_batch is (QUEUE_GATE not in gates)
    assert is_batch is (list_unsupported_fields({**spec, "schedulerName": BATCH_SCHEDULER}) == [])
    assert is_batch is (list(SPECS).index(name) < list(SPECS).index("claim"))


def test_a_pod_goes_to_the_nodes_of_batch_mode_beside_its_own_rules(policies: Cluster) -> None:
    """The API server adds tolerations of its own to every pod."""
    own = {"key": "team", "operator": "Equal", "value": "a", "effect": "NoExecute", "tolerationSeconds": 7}
    pool = {"key": BATCH_POOL, "operator": "Exists", "effect": "NoSchedule"}
    found = policies.api.post(PODS, queued("p"), dryRun="All")["spec"]
    added = found["tolerations"]
    assert found["nodeSelector"] == {BATCH_POOL: "true"}
    assert pool in added
    pod = queued("p", nodeSelector={"a": "b"}, tolerations=[own])
    found = policies.api.post(PODS, pod, dryRun="All")["spec"]
    assert found["nodeSelector"] == {"a": "b", BATCH_POOL: "true"}
    assert own in found["tolerations"]
    assert [each for each in found["tolerations"] if each not in added] == [own]
    assert len(found["tolerations"]) == len(added) + 1
    left = policies.api.post(PODS, queued("p", hostNetwork=True), dryRun="All")["spec"]
    assert "nodeSelector" not in left
    assert pool not in left["tolerations"]


def test_on_shared_nodes_a_pods_rules_are_its_own(policies: Cluster) -> None:
    components = [MANIFESTS / "components" / name for name in ("queue", "queue-batch")]
    shared = build(MANIFESTS / "base", *components)
    own = build(MANIFESTS / "overlays/queue-batch")

    def is_free() -> bool:
        spec = policies.api.post(PODS, queued("p"), dryRun="All")["spec"]
        return spec["schedulerName"] == BATCH_SCHEDULER and "nodeSelector" not in spec

    try:
        apply_all(policies.api, shared)
        until(is_free, "the other policy in force")
    finally:
        apply_all(policies.api, own)
        until(lambda: are_in_force(policies), "both policies in force again")


def team_pod(**spec: Any) -> dict[str, Any]:
    """A pod of the namespace that names a queue."""
    return w.pod("p", w.container(gib=8), namespace="team", **spec)


def test_pods_that_get_their_queue_from_their_namespace_are_treated_alike(policies: Cluster) -> None:
    def ask(**spec: Any) -> dict[str, Any]:
        found: dict[str, Any] = policies.api.post(TEAM_PODS, team_pod(**spec), dryRun="All")
        return found

    pod = ask()
    assert pod["metadata"]["labels"] == {QUEUE_NAME: "a"}
    assert pod["spec"]["schedulerName"] == BATCH_SCHEDULER
    assert pod["spec"]["nodeSelector"] == {BATCH_POOL: "true"}
    assert "schedulingGates" not in pod["spec"]
    pod = ask(hostNetwork=True)
    assert pod["metadata"]["labels"] == {QUEUE_NAME: "a"}
    assert pod["spec"]["schedulingGates"] == [{"name": QUEUE_GATE}]


@pytest.fixture(scope="module")
def fleet(make_cluster: Any) -> Cluster:
    def begin(cluster: Cluster) -> None:
        start_fleet(cluster, NODE_COUNT)
        cluster.extender.flags = ["--commit"]
        cluster.extender.start()

    cluster: Cluster = make_cluster(with_node=False, start=begin)
    return cluster


@pytest.fixture(scope="module")
def queue(fleet: Cluster, start_queue: StartQueue) -> QueueController:
    config = "mode: batch\nqueues: [{name: a}]\n"
    return start_queue(fleet, config, "--committer", fleet.extender.url, is_admin=True)


def requests(fleet: Cluster, verb: str, subresource: str) -> int:
    """How many requests of a kind about pods the API server has carried out since it started."""
    wanted = {f'verb="{verb}"', f'subresource="{subresource}"', 'resource="pods"', 'code="20'}
    lines = str(fleet.api.get("/metrics")).splitlines()
    found = [line for line in lines if line.startswith("apiserver_request_total{")]
    return sum(int(line.split()[-1]) for line in found if all(part in line for part in wanted))


def writes(fleet: Cluster, since: str, names: set[str]) -> Counter[str]:
    """How often each of these pods was written until all of them were bound."""
    found: Counter[str] = Counter()
    unbound = set(names)
    for event in watch(fleet.api, PODS, since):
        name = event["object"]["metadata"]["name"]
        if name not in names:
            continue
        found[name] += event["type"] == "MODIFIED"
        if event["object"]["spec"].get("nodeName"):
            unbound.discard(name)
        if not unbound:
            break
    return found


def test_a_burst_of_a_hundred_pods_is_bound_by_one_write_a_pod(
    fleet: Cluster, queue: QueueController
) -> None:
    """As a burst of the two-tier method, without a kube-scheduler: three accounts agree."""
    queue.kill()
    create_all(fleet, "burst", BURST)
    names = set(fleet.api.names(PODS))
    since = fleet.api.get(PODS, limit=1)["metadata"]["resourceVersion"]
    patched = {part: requests(fleet, "PATCH", part) for part in ("", "status")}
    posted = requests(fleet, "POST", "binding")
    queue.start()
    assert writes(fleet, since, names) == dict.fromkeys(names, 1)
    # A request is counted after its answer, which others may see before.
    until(lambda: requests(fleet, "POST", "binding") - posted >= BURST, "all Bindings counted")
    assert requests(fleet, "POST", "binding") - posted == BURST
    assert {part: requests(fleet, "PATCH", part) for part in ("", "status")} == patched
    check_cards(fleet)
    wanted = BURST * UNITS
    assumed = 'gpupack_scheduler_gpu_memory_bytes{kind="assumed"}'
    until(lambda: fleet.extender.metric(assumed) == wanted * GIB, "the scheduler's account")
    until(lambda: queue.status()["queues"][0]["used"] == wanted, "the queue's account")
    outcome = 'gpupack_extender_batch_pods_total{outcome="bound"}'
    until(lambda: fleet.extender.metric(outcome) == BURST, "the scheduler's count of pods")


def kill_committer(fleet: Cluster, _queue: QueueController) -> None:
    """The next process waits for what the one before may have sent, and lists the pods."""
    fleet.extender.kill()
    fleet.extender.start()


def kill_queue(_fleet: Cluster, queue: QueueController) -> None:
    queue.kill()
    queue.start()


def take_api_server_away(fleet: Cluster, _queue: QueueController) -> None:
    """Some Bindings get no answer: they may have been done, and are not sent to another node."""
    fleet.control.kill("kube-apiserver")
    time.sleep(AWAY_S)
    fleet.control.start_api_server()


@pytest.mark.parametrize("fault", [kill_committer, kill_queue, take_api_server_away])
def test_a_fault_in_a_batch_loses_and_doubles_nothing(
    fleet: Cluster, queue: QueueController, fault: Callable[[Cluster, QueueController], None]
) -> None:
    prefix = fault.__name__.replace("_", "-")
    create_all(fleet, prefix, 120)
    until(lambda: len(bound(fleet, prefix)) > 5, "some pods bound")
    fault(fleet, queue)
    until(lambda: len(bound(fleet, prefix)) == 120, "all pods bound")
    check_cards(fleet)


def test_nodes_that_go_in_a_batch_get_no_pod(fleet: Cluster, queue: QueueController) -> None:
    gone = [f"node-{number:05d}" for number in range(4)]
    create_all(fleet, "nodes", 60)
    for node in gone:
        fleet.api.delete(f"{NODES}/{node}")
    known = 'gpupack_scheduler_nodes{words="readable"}'
    until(lambda: fleet.extender.metric(known) == NODE_COUNT - len(gone), "the scheduler knows")
    create_all(fleet, "later", 40)
    until(lambda: len(bound(fleet, "nodes")) == 60, "all pods bound")
    until(lambda: len(bound(fleet, "later")) == 40, "all later pods bound")
    assert not {pod["spec"]["nodeName"] for pod in bound(fleet, "later")} & set(gone)
    check_cards(fleet)


def test_who_waits_says_why_and_is_bound_when_there_is_room(fleet: Cluster, queue: QueueController) -> None:
    fleet.api.post(PODS, of_batch("large", CARD_GIB + 1))
    fleet.api.post(PODS, of_batch("odd", 1, hostNetwork=True))

    until(lambda: fleet.scheduled("large").get("reason") == "Unschedulable", "the condition")
    until(lambda: "hostNetwork" in fleet.scheduled("odd").get("message", ""), "the field named")
    assert not bound(fleet, "odd")


def test_a_pod_waits_while_its_nodes_take_no_more_pods(fleet: Cluster, queue: QueueController) -> None:
    """The cards of these nodes are free, but they have their maximum of pods."""
    full = [fake_node(number) for number in range(900, 906)]
    for node in full:
        node["metadata"]["labels"] |= {"group": "full"}
        for amounts in (node["status"]["capacity"], node["status"]["allocatable"]):
            amounts["pods"] = "0"
        fleet.api.post(NODES, node)
    fleet.api.post(PODS, of_batch("beyond", 1, nodeSelector={"group": "full"}))

    until(lambda: "number of pods" in fleet.scheduled("beyond").get("message", ""), "the reason")
    until(lambda: fleet.scheduled("beyond").get("reason") == "Unschedulable", "what autoscalers look for")
    last = fake_node(999)
    last["metadata"]["labels"] |= {"group": "full"}
    fleet.api.post(NODES, last)
    until(lambda: len(bound(fleet, "beyond")) == 1, "bound on the node with room")


def test_the_api_server_refuses_a_gated_pod(fleet: Cluster) -> None:
    """Why the way is chosen when a pod is created."""
    fleet.api.post(PODS, queued("gated", 1, schedulingGates=[{"name": "example.com/g"}]))
    with pytest.raises(ApiError, match="schedulingGates"):
        fleet.bind("gated")
