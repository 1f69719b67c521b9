"""The queue on a real cluster: from the gate to a running container, in every mode, through restarts."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from tests.cluster.conftest import StartQueue
from tests.cluster.harness import Cluster, dra, kueue, until
from tests.cluster.harness import workload as w
from tests.cluster.harness.admission import refused_patch, wait_quota
from tests.cluster.harness.cluster import BUDGETS, PODS, account
from tests.cluster.harness.controlplane import ADMIN_TOKEN, PERCENT
from tests.cluster.harness.daemons import REPOSITORY, QueueController
from tests.cluster.harness.manifests import (
    COMPONENTS,
    MANIFESTS,
    apply_all,
    apply_rights,
    build,
    named,
    path_of,
)
from tests.cluster.harness.polling import holds_for
from tests.cluster.harness.rest import JSON_PATCH, Api, ApiError
from tests.yaml_text import read_yaml

GATE = "gpupack.io/queue"
QUEUE_NAME = "gpupack.io/queue-name"
REQUEUED = "gpupack.io/requeued"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
TWO = "queues: [{name: a, weight: 3}, {name: b}]\n"


@pytest.fixture(scope="module", params=dra.NODE_KINDS)
def shared(make_cluster: Any, request: pytest.FixtureRequest) -> Cluster:
    cluster: Cluster = make_cluster(w.cards(8192, 8192), start=partial(dra.start_as, request.param))
    apply_rights(cluster.api, MANIFESTS / "namespace")
    return cluster


@pytest.fixture(scope="module")
def running(shared: Cluster, start_queue: StartQueue) -> QueueController:
    """The queue with the rights of its own manifests, on a node that serves claims with that to read them."""
    apply_rights(shared.api, COMPONENTS / "queue")
    if shared.serves_claims:
        of_claims = build(COMPONENTS / "dra")
        apply_all(shared.api, named(of_claims, "gpupack-claims-view"))
    return start_queue(shared, TWO, "--leader-elect", "--lease-namespace", "gpupack-system")


@pytest.fixture
def cluster(shared: Cluster, running: QueueController) -> Cluster:
    shared.clear()
    running.config.write_text(TWO)
    running.revive()
    until(lambda: not running.status()["pods"] and used(running) == 0, "an empty queue")
    until(lambda: is_two(running), "the configuration in force")
    return shared


def is_two(running: QueueController) -> bool:
    status = running.status()
    queues = {(queue["name"], queue["weight"], queue["nominal"], queue["stop"]) for queue in status["queues"]}
    return status["mode"] == "gate" and queues == {("a", 3, None, "None"), ("b", 1, None, "None")}


def used(running: QueueController) -> int:
    return sum(queue["used"] for queue in running.status()["queues"])


def wears_gate(cluster: Cluster, name: str) -> bool:
    return bool(cluster.pod(name)["spec"].get("schedulingGates"))


@pytest.mark.telling
def test_from_the_gate_to_a_running_container(cluster: Cluster, running: QueueController) -> None:
    """Four of five fit; the fifth waits with its gate, and runs when one ends."""
    for number in range(5):
        cluster.create(w.gated(f"p{number}", 3))
    until(lambda: [p["reason"] for p in running.status()["pods"]] == ["NoRoom"], "one waits for room")
    (waiting,) = [pod["name"] for pod in running.status()["pods"]]
    others = [f"p{number}" for number in range(5) if f"p{number}" != waiting]
    for name in others:
        cluster.wait_running(name)
    assert cluster.wait_used([6, 6])
    why = "it needs 3 units on one card; the largest free card has 2"
    assert why in cluster.wait_event(waiting, "NoRoom")
    assert "Admitted" in cluster.wait_event(others[0], "admitted from queue a for node n1")
    holds_for(lambda: wears_gate(cluster, waiting), "the gate stays", 1)
    cluster.delete(others[0])
    cluster.wait_running(waiting)


def test_what_a_claim_has_counts_in_the_quota_of_its_pods_queue(
    cluster: Cluster, running: QueueController
) -> None:
    """A pod that asks by limits waits for it, runs once the claim is let go, and counts once by its own."""
    if not cluster.serves_claims:
        pytest.skip("the node serves no claims")
    running.config.write_text("queues: [{name: a, nominalQuota: 8}, {name: b}]\n")
    until(lambda: [queue["nominal"] for queue in running.status()["queues"]] == [8, None], "the quota")
    cluster.api.post(dra.CLAIMS, dra.claim("six", 6))
    cluster.run(dra.claim_pod("by-claim", "six", labels={QUEUE_NAME: "a"}))
    until(lambda: used(running) == 6, "the claim in the quota")
    cluster.create(w.gated("waits", 4))
    why = "it needs 4 units; queue a uses 6 units, 6 of them by claims, of its quota of 8"
    assert why in cluster.wait_event("waits", "Quota")
    holds_for(lambda: wears_gate(cluster, "waits"), "the gate stays", 1)
    cluster.delete("by-claim")
    cluster.wait_running("waits")
    until(lambda: used(running) == 4, "its quota alone")
    cluster.api.delete(f"{dra.CLAIMS}/six")


def is_requeued(cluster: Cluster, name: str) -> bool:
    return REQUEUED in (cluster.pod(name)["metadata"].get("annotations") or {})


@pytest.mark.telling
def test_what_kube_scheduler_cannot_place_waits_again(cluster: Cluster, running: QueueController) -> None:
    """Its anti-affinity keeps it from the only node, which the queue does not look at."""
    cluster.run(w.gated("neighbour", 1, "b"))
    term = {"labelSelector": {"matchLabels": {QUEUE_NAME: "b"}}, "topologyKey": "kubernetes.io/hostname"}
    cluster.create(w.gated("quiet", 3, affinity={"podAntiAffinity": {REQUIRED: [term]}}))
    until(lambda: is_requeued(cluster, "quiet") and used(running) == 1, "its quota back")
    until(lambda: [pod["reason"] for pod in running.status()["pods"]] == ["HeldBack"], "it is held back")
    cluster.delete("neighbour")
    while REQUEUED in ((pod := cluster.pod("quiet"))["metadata"].get("annotations") or {}):
        assert not pod["spec"].get("nodeName"), "it was bound before its turn"
    cluster.wait_running("quiet")
    until(lambda: used(running) == 3, "its quota alone")


@pytest.mark.telling
def test_batch_mode_fixes_the_node_and_a_restart_loses_nothing(
    cluster: Cluster, running: QueueController
) -> None:
    """The queue is killed while pods wait; its successor releases the rest and nobody twice."""
    running.config.write_text(f"{TWO}mode: batch\n")
    until(lambda: running.status()["mode"] == "batch", "the new mode")
    for number in range(3):
        cluster.create(w.gated(f"p{number}", 8, "ab"[number % 2]))
    names = [f"p{number}" for number in range(3)]
    until(lambda: sum(wears_gate(cluster, name) for name in names) == 1, "two released")
    assert used(running) == 16
    running.kill()
    (waiting,) = [name for name in names if wears_gate(cluster, name)]
    released = [name for name in names if name != waiting]
    for name in released:
        cluster.wait_running(name)
        terms = cluster.pod(name)["spec"]["affinity"]["nodeAffinity"]
        (term,) = terms[REQUIRED]["nodeSelectorTerms"]
        assert term["matchFields"] == [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]
    running.start(ready=False)
    running.wait_ready()
    assert wears_gate(cluster, waiting)
    cluster.delete(released[0])
    cluster.wait_running(waiting)


def test_a_second_stage_waits_for_the_pods_that_a_job_is_still_to_make(
    cluster: Cluster, running: QueueController
) -> None:
    """The Job makes its two pods one after the other; the node that has their data is named for them."""
    notes = {"gpupack.io/job": "j"}
    cluster.create(w.gated("reduce", 1, annotations=notes))
    until(lambda: [p["reason"] for p in running.status()["pods"]] == ["FirstStage"], "no first stage")
    label = {"metadata": {"labels": {"data.gpupack.io/d": ""}}}
    cluster.api.merge("/api/v1/nodes/n1", label)
    pod = w.gated("map", 1, annotations={**notes, "gpupack.io/data": "d"})
    pod["spec"]["containers"] = [w.container(gib=1, command=["sh", "-c", "sleep 1"])]
    template = {
        "metadata": {key: pod["metadata"][key] for key in ("labels", "annotations")},
        "spec": pod["spec"],
    }
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "maps"},
        "spec": {"completions": 2, "parallelism": 1, "suspend": True, "template": template},
    }
    jobs = "/apis/batch/v1/namespaces/default/jobs"
    cluster.api.post(jobs, job)
    lacks = "Job default/maps has 0 of 2 pods that succeeded"
    until(lambda: any(lacks in pod["message"] for pod in running.status()["pods"]), "its Job is known")
    cluster.api.merge(f"{jobs}/maps", {"spec": {"suspend": False}})
    cluster.wait_running("reduce")
    until(lambda: cluster.api.get(f"{jobs}/maps")["status"].get("succeeded") == 2, "its Job has both")
    maps = [pod for pod in cluster.api.get(PODS)["items"] if pod["metadata"]["name"].startswith("maps")]
    assert [pod["status"]["phase"] for pod in maps] == ["Succeeded"] * 2
    for each in maps:
        terms = each["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
        assert terms == [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]
    assert "affinity" not in cluster.pod("reduce")["spec"]
    cluster.api.delete(f"{jobs}/maps", body={"propagationPolicy": "Background"})
    cluster.api.merge("/api/v1/nodes/n1", {"metadata": {"labels": {"data.gpupack.io/d": None}}})


def test_reclaim_by_eviction_for_a_pod_and_for_a_gang(cluster: Cluster, running: QueueController) -> None:
    """The youngest go, unless a PodDisruptionBudget keeps them, and no more than needed."""
    running.config.write_text(
        "reclaim: evict\n"
        "queues: [{name: a, cohort: x, nominalQuota: 12}, {name: b, cohort: x, nominalQuota: 4}]"
    )
    until(lambda: {q["nominal"] for q in running.status()["queues"]} == {12, 4}, "the new quotas")
    for number in range(3):
        cluster.create(w.gated(f"b{number}", 4, "b"))
    # Pods are dated in whole seconds, and the last one is to be the youngest.
    second = time.time() + 1
    until(lambda: time.time() > second, "the next second")
    young = w.gated("b3", 4, "b")
    young["metadata"]["labels"]["keep"] = "it"
    cluster.create(young)
    for number in range(4):
        cluster.wait_running(f"b{number}")

    def left() -> list[int]:
        return [number for number in range(4) if cluster.exists(f"b{number}")]

    with protected(cluster, {"keep": "it"}):
        cluster.run(w.gated("a0", 4))
        assert len(left()) == 3
        assert "violate the pod's disruption budget" in cluster.wait_event("b3", "NotRemoved")
        gang = {"gpupack.io/gang": "g", "gpupack.io/gang-size": "2"}
        cluster.create(w.gated("g0", 4, annotations=gang))
        until(lambda: [p["reason"] for p in running.status()["pods"]] == ["GangIncomplete"], "half a gang")
        assert len(left()) == 3, "nobody goes for half a gang"
        cluster.create(w.gated("g1", 4, annotations=gang))
        cluster.wait_running("g0")
        cluster.wait_running("g1")
        assert left() == [3]


@pytest.mark.telling
def test_batch_mode_names_the_node_in_every_form_of_affinity(
    cluster: Cluster, running: QueueController
) -> None:
    """A term without conditions selects no node, and the API server lets nobody put the node into it."""
    running.config.write_text(f"{TWO}mode: batch\n")
    until(lambda: running.status()["mode"] == "batch", "the new mode")

    def required(terms: list[Any]) -> dict[str, Any]:
        return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}

    with pytest.raises(ApiError, match="must have at least one node selector term"):
        cluster.create(w.gated("none", 2, affinity=required([])))
    anywhere = {"matchExpressions": [{"key": "no-such-label", "operator": "DoesNotExist"}]}
    cluster.create(w.gated("empty", 2, affinity={}))
    cluster.create(w.gated("nodes", 2, affinity={"nodeAffinity": {}}))
    cluster.create(w.gated("terms", 2, "later", affinity=required([{}, anywhere])))
    here = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
    path = f"/spec/affinity/nodeAffinity/{REQUIRED}/nodeSelectorTerms"
    every_term = [
        {"op": "add", "path": f"{path}/{at}/matchFields", "value": here["matchFields"]} for at in (0, 1)
    ]
    with pytest.raises(ApiError, match=r"nodeSelectorTerms\[0\]: Invalid value") as refused:
        cluster.api.call("PATCH", f"{PODS}/terms", every_term, content_type=JSON_PATCH)
    assert refused.value.status == 422
    cluster.api.merge(f"{PODS}/terms", {"metadata": {"labels": {QUEUE_NAME: "a"}}})
    for name, terms in (("empty", [here]), ("nodes", [here]), ("terms", [{}, {**anywhere, **here}])):
        cluster.wait_running(name)
        assert cluster.pod(name)["spec"]["affinity"] == required(terms)


@pytest.mark.telling
def test_a_released_pod_keeps_the_label_of_its_queue(cluster: Cluster, running: QueueController) -> None:
    """And one that waits keeps its gate, for whoever has the role `edit`: else quotas could be escaped."""
    apply_all(cluster.api, policies_of("Validating"))
    cluster.make_account("user")
    cluster.grant_role("ClusterRole", "edit", "default", account("user"))
    user = cluster.as_account("user", "default")
    cluster.create(w.gated("waits", 2, "later"))
    cluster.create(w.gated("released", 2, "a"))
    marked = w.gated("marked", 2, "later") | {"spec": w.pod_spec([w.container(gib=2)])}
    marked["metadata"]["annotations"] = {REQUEUED: "true"}
    cluster.create(marked)
    until(lambda: not wears_gate(cluster, "released"), "its release")

    def denied(name: str, queue: str | None, api: Api = user, **more: str) -> str:
        return refused_patch(api, name, {"metadata": {"labels": {QUEUE_NAME: queue, **more}}})

    stays = 'label gpupack.io/queue-name of pod default/released stays "a"'
    until(lambda: stays in denied("released", "b"), "the policy in force")
    assert denied("released", None)
    assert denied("released", "a", mine="1") == ""
    assert denied("waits", "b") == denied("marked", "b") == denied("released", "b", cluster.api) == ""
    ungate = [{"op": "remove", "path": "/spec/schedulingGates"}]
    with pytest.raises(ApiError, match=r"scheduling gate .* stays: the queue takes it away"):
        user.call("PATCH", f"{PODS}/waits", ungate, content_type=JSON_PATCH)
    cluster.create(w.pod("unqueued", w.container(gib=2), schedulerName="none"))
    assert "stays absent" in denied("unqueued", "b"), "nor can the quota of others be used up"
    delete_policies(cluster, "Validating")


@pytest.mark.telling
def test_the_policy_puts_the_gate_on_pods_of_a_queue(cluster: Cluster, running: QueueController) -> None:
    """By the pod's label, or that of its namespace; other pods are left alone."""
    if cluster.api.get("/version")["minor"] in {"34", "35"}:
        pytest.skip("MutatingAdmissionPolicy is not on by default here")
    apply_all(cluster.api, policies_of("Mutating"))
    labelled = w.queued("labelled", 3)
    until(lambda: _born(cluster, labelled)[0] == [{"name": GATE}], "the policy in force")
    cluster.run(labelled)
    assert not _born(cluster, w.pod("plain", w.container(gib=3)))[0]
    share = w.pod("share", w.container(limits={PERCENT: 50}), labels={QUEUE_NAME: "a"})
    assert _born(cluster, share)[0] == [{"name": GATE}]
    space = {"metadata": {"name": "team", "labels": {QUEUE_NAME: "b"}}}
    cluster.api.post("/api/v1/namespaces", space)
    pod = w.pod("inside", w.container(gib=3), namespace="team")
    wanted = ([{"name": GATE}], {QUEUE_NAME: "b"})
    until(lambda: _born(cluster, pod) == wanted, "the namespace's queue")
    delete_policies(cluster, "Mutating")


@pytest.mark.telling
def test_a_gated_pod_counts_against_a_resource_quota_from_its_creation(
    cluster: Cluster, running: QueueController
) -> None:
    """The example of docs/queue.md: who waits in the queue has used its namespace's quota already."""
    text = (REPOSITORY / "docs" / "queue.md").read_text()
    found = re.search(r"```yaml\n(apiVersion: v1\nkind: ResourceQuota\n.*?)```", text, re.DOTALL)
    assert found is not None
    quota = read_yaml(found[1])
    quota["spec"]["hard"] = {"requests.gpupack.io/gpu-memory-gib": "6"}
    running.config.write_text("queues: [{name: a, stopPolicy: Hold}, {name: b}]\n")
    until(lambda: {q["stop"] for q in running.status()["queues"]} == {"Hold", "None"}, "a is held")
    path = "/api/v1/namespaces/default/resourcequotas"
    quota["metadata"]["namespace"] = "default"
    cluster.api.post(path, quota)
    name = quota["metadata"]["name"]
    try:
        until(lambda: cluster.api.get(f"{path}/{name}")["status"].get("hard"), "the quota counts")
        wait_quota(cluster, w.gated("large", 7))
        cluster.create(w.gated("p0", 3))
        cluster.create(w.gated("p1", 3))
        with pytest.raises(ApiError, match="exceeded quota"):
            cluster.create(w.gated("p2", 3))
        assert wears_gate(cluster, "p0")
        used = cluster.api.get(f"{path}/{name}")["status"]["used"]
        assert used == {"requests.gpupack.io/gpu-memory-gib": "6"}
    finally:
        cluster.api.delete(f"{path}/{name}")


def test_a_pod_with_kueues_gate_waits_for_both(cluster: Cluster, running: QueueController) -> None:
    """Kueue takes its own gate away when it admits a pod; ours is taken away after that, never Kueue's."""
    pod = w.gated("both", 3)
    pod["spec"]["schedulingGates"].append(kueue.GATE)
    cluster.create(pod)
    assert "it waits for the scheduling gates kueue.x-k8s.io/admission" in cluster.wait_event(
        "both", "Refused"
    )
    assert cluster.pod("both")["spec"]["schedulingGates"] == [{"name": GATE}, kueue.GATE]
    labels = {kueue.QUEUE_NAME: "user-queue"}
    cluster.create(w.pod("kueues", w.container(gib=3), labels=labels, schedulingGates=[kueue.GATE]))
    patch = [
        {"op": "test", "path": "/spec/schedulingGates/1/name", "value": kueue.GATE["name"]},
        {"op": "remove", "path": "/spec/schedulingGates/1"},
    ]
    cluster.api.call("PATCH", f"{PODS}/both", patch, content_type=JSON_PATCH)
    cluster.wait_running("both")
    assert cluster.pod("kueues")["spec"]["schedulingGates"] == [kueue.GATE], "it is none of this queue's"


@pytest.mark.skipif(bool(kueue.obstacle()), reason=kueue.obstacle())
def test_beside_the_real_kueue(cluster: Cluster, running: QueueController) -> None:
    """One queue a pod: each queue releases its own pods, and a pod with both gates needs both."""
    process = kueue.start(cluster, cluster.use_identity("kueue", ADMIN_TOKEN))
    try:
        apply_all(cluster.api, kueue.objects("gpupack.io/gpu-memory-gib", 6))
        for number in range(3):
            cluster.create(kueue.gated(w.pod(f"k{number}", w.container(gib=3))))
        cluster.create(w.gated("ours", 3))
        cluster.create(kueue.gated(w.gated("both", 3)))
        cluster.wait_running("ours")
        names = [f"k{number}" for number in range(3)]
        until(lambda: sum(wears_gate(cluster, name) for name in names) == 1, "Kueue admits two of three")
        (waiting,) = [name for name in names if wears_gate(cluster, name)]
        assert cluster.pod("both")["spec"]["schedulingGates"] == [{"name": GATE}, kueue.GATE]
        for name in names:
            if name != waiting:
                cluster.wait_running(name)
                cluster.delete(name)
        cluster.wait_running(waiting)
        cluster.wait_running("both")
    finally:
        process.kill()


def _born(cluster: Cluster, pod: dict[str, Any]) -> tuple[Any, Any]:
    """Gates and labels with which the API server would create a pod."""
    path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods"
    made = cluster.api.post(path, pod, dryRun="All")
    return made["spec"].get("schedulingGates"), made["metadata"].get("labels")


def policies_of(prefix: str) -> list[dict[str, Any]]:
    kind = f"{prefix}AdmissionPolicy"
    return [each for each in build(COMPONENTS / "queue") if each["kind"].startswith(kind)]


def delete_policies(cluster: Cluster, prefix: str) -> None:
    for each in policies_of(prefix):
        cluster.api.delete(path_of(cluster.api, each))


@contextmanager
def protected(cluster: Cluster, labels: dict[str, str]) -> Iterator[None]:
    """A PodDisruptionBudget that allows no eviction of one pod."""
    cluster.make_budget("none", labels, minAvailable=1)
    path = f"{BUDGETS}/none"
    try:
        until(lambda: cluster.api.get(path)["status"].get("currentHealthy") == 1, "it counts")
        yield
    finally:
        cluster.api.delete(path)
