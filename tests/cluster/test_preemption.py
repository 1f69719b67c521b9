"""kube-scheduler's preemption with our verb: a sum that becomes free is no card that becomes free."""

import json
from typing import Any

import pytest

from allocator.names import NODE_HOLDS, POD_ASSIGNED
from tests.cluster.harness import Api, ApiError, Cluster, until, workload
from tests.cluster.harness.controlplane import RESOURCE
from tests.cluster_builders import node_object, uuid

PODS = "/api/v1/namespaces/default/pods"
NODE = "fake"
RUNNING = {"a": (0, 1), "b": (1, 1), "c": (0, 5), "d": (1, 4)}
"""Card and priority of four pods of 4 GiB on two cards of 8 GiB."""


@pytest.fixture(scope="module")
def cluster(make_cluster: Any) -> Cluster:
    cluster: Cluster = make_cluster(
        with_node=False, start=lambda cluster: cluster.control.start_without_controllers()
    )
    api = cluster.api
    for priority in (1, 4, 5, 10, 20):
        api.post(
            "/apis/scheduling.k8s.io/v1/priorityclasses",
            {"metadata": {"name": f"p{priority}"}, "value": priority},
        )
    publish(api, (8, 8), [made["metadata"]["uid"] for made in (run(api, name) for name in RUNNING)])
    cluster.control.configure_scheduler(cluster.extender.url)
    config = json.loads(cluster.control.scheduler_config.read_text())
    config["extenders"][0]["preemptVerb"] = "preempt"
    cluster.control.use_scheduler_config(config)
    cluster.extender.start()
    cluster.control.start_scheduler()
    return cluster


def run(api: Api, name: str) -> Any:
    """A pod that runs, on its card."""
    card, priority = RUNNING[name]
    assigned = {POD_ASSIGNED: json.dumps({"main": [[uuid(NODE, card), 4]]})}
    container = workload.container(gib=4)
    return api.post(
        PODS,
        workload.pod(name, container, annotations=assigned, nodeName=NODE, priorityClassName=f"p{priority}"),
    )


def newest(api: Api) -> int:
    """The newest version of pods, as a daemon that has seen all of them knows it."""
    return int(api.get(PODS)["metadata"]["resourceVersion"])


def publish(api: Api, used: tuple[int, int], held: list[str]) -> None:
    """What the node's daemon would publish."""
    made: Any = node_object(NODE, (8, 8), used, holds=held, seen=newest(api))
    del made["metadata"]["resourceVersion"]
    amounts = {**made["status"]["allocatable"], RESOURCE: "16"}
    status = {
        "capacity": amounts,
        "allocatable": amounts,
        "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "fake"}],
    }
    try:
        api.post("/api/v1/nodes", {"metadata": made["metadata"], "status": status})
    except ApiError as error:
        if error.status != 409:
            raise
        annotations = {NODE_HOLDS: made["metadata"]["annotations"][NODE_HOLDS]}
        api.merge(
            f"/api/v1/nodes/{NODE}/status", {"metadata": {"annotations": annotations}, "status": status}
        )


def names(api: Api) -> set[str]:
    return {item["metadata"]["name"] for item in api.get(PODS)["items"] if not gone(item)}


def gone(item: Any) -> bool:
    return "deletionTimestamp" in item["metadata"]


def test_victims_are_those_that_share_a_card(cluster: Cluster) -> None:
    api = cluster.api
    api.post(PODS, workload.pod("urgent", workload.container(gib=8), priorityClassName="p10"))
    until(lambda: len(names(api)) == 3, "two victims evicted", 30)
    # By sums alone it would have been the two of the smallest priority, a and b, and no card free.
    assert names(api) == {"a", "c", "urgent"}
    assert api.get(f"{PODS}/urgent")["status"]["nominatedNodeName"] == NODE
    publish(api, (8, 0), [api.get(f"{PODS}/{name}")["metadata"]["uid"] for name in ("a", "c")])
    until(lambda: api.get(f"{PODS}/urgent")["spec"].get("nodeName"), "the pod bound", 30)
    annotations = api.get(f"{PODS}/urgent")["metadata"]["annotations"]
    assert json.loads(annotations[POD_ASSIGNED]) == {"main": [[uuid(NODE, 1), 8]]}


def test_where_evicting_frees_no_card_nobody_is_evicted(cluster: Cluster) -> None:
    api = cluster.api
    before = names(api)
    # The 16 GiB of both cards would do, 12 GiB of one card are not there.
    api.post(PODS, workload.pod("large", workload.container(gib=12), priorityClassName="p20"))

    def refused() -> str | None:
        conditions = api.get(f"{PODS}/large")["status"].get("conditions", [])
        return next((each["message"] for each in conditions if each["type"] == "PodScheduled"), None)

    assert "0/1 nodes are available" in until(refused, "the pod refused", 30)
    assert names(api) == before | {"large"}
