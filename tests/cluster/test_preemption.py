"""Preemption on the real kube-scheduler: a sum that becomes free is no card that becomes free."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from allocator.names import POD_ASSIGNED, POD_CONTAINERS
from tests.cluster.harness import Api, Cluster, until, workload
from tests.cluster.harness.admission import add_priority_class
from tests.cluster.harness.cluster import PODS, publish_node
from tests.cluster.harness.controlplane import extender_entry
from tests.cluster.harness.manifests import MANIFESTS, apply_rights
from tests.cluster.harness.recording_extender import RecordingExtender
from tests.cluster_builders import node_object, uuid

NODE = "fake"
RUNNING = {"a": (0, 1), "b": (1, 1), "c": (0, 5), "d": (1, 4)}
"""Card and priority of four pods of 4 GiB on two cards of 8 GiB."""


@pytest.fixture(scope="module")
def cluster(make_cluster: Any) -> Cluster:
    """A cluster without kube-scheduler so far."""
    cluster: Cluster = make_cluster(with_node=False, start=Cluster.start_api_server)
    api = cluster.api
    for priority in (1, 2, 3, 4, 5, 10, 20):
        add_priority_class(cluster, f"p{priority}", priority)
    held = [run(api, "n1", "guarded", 0, 1, app="guarded"), run(api, "n1", "cheap", 1, 2)]
    publish(api, "n1", (4, 4), held)
    publish(api, "n2", (4, 4), [run(api, "n2", "dear", 0, 3), run(api, "n2", "dearer", 1, 4)])
    return cluster


@pytest.fixture(scope="module")
def scheduled(cluster: Cluster) -> Cluster:
    """The cluster with kube-scheduler and the extender, which has the rights that we ship.

    Both know the budgets from the beginning. No controller computes their status here, so no disruption is
    allowed.
    """
    for name in ("guarded", "kept"):
        cluster.make_budget(name, {"app": name}, maxUnavailable=0)
    schedule_with(cluster, cluster.extender.url)
    apply_rights(cluster.api, MANIFESTS / "base")
    cluster.use_account("gpupack-scheduler")
    cluster.extender.start()
    return cluster


def schedule_with(cluster: Cluster, extender_url: str) -> None:
    """Start kube-scheduler with an extender that has the verb preempt."""
    cluster.control.configure_scheduler(None, extenders=[extender_entry(extender_url, preemptVerb="preempt")])
    cluster.control.restart_scheduler()


def run(api: Api, node: str, name: str, card: int, priority: int, **labels: str) -> str:
    """A pod that runs, on its card; returns its UID."""
    assigned = {POD_ASSIGNED: json.dumps({"main": [[uuid(node, card), 4]]})}
    spec = {"nodeName": node, "priorityClassName": f"p{priority}"}
    made = workload.pod(name, workload.container(gib=4), labels=labels, annotations=assigned, **spec)
    return str(api.post(PODS, made)["metadata"]["uid"])


def newest(api: Api) -> int:
    """The newest version of pods, as a daemon that has seen all of them knows it."""
    return int(api.get(PODS)["metadata"]["resourceVersion"])


def publish(api: Api, node: str, used: tuple[int, ...], held: list[str]) -> None:
    """What the node's daemon would publish, of cards of 8 GiB."""
    made = node_object(node, (8,) * len(used), used, holds=held, seen=newest(api))
    publish_node(api, made, labels={"node": node})


def wait_known(cluster: Cluster, nodes: int) -> None:
    """Return once the extender knows of all pods and so many nodes."""
    found = {'gpupack_scheduler_nodes{words="readable"}': nodes}
    found["gpupack_scheduler_pods"] = len(cluster.api.get(PODS)["items"])
    until(lambda: all(cluster.extender.metric(name) == found[name] for name in found), f"{found} known")


def wait_preempted(cluster: Cluster, victim: str, node: str) -> None:
    """Wait for kube-scheduler's event about a victim.

    The preemptor's status is no witness: kube-scheduler clears the nominated node at the next attempt, which
    finds nobody left to evict.
    """

    def preempted() -> bool:
        found = cluster.find_events("reason=Preempted", f"involvedObject.name={victim}")
        return any(each["message"].endswith(f" on node {node}") for each in found)

    until(preempted, f"an event that {victim} was preempted on {node}")


def names(api: Api) -> set[str]:
    return {item["metadata"]["name"] for item in api.get(PODS)["items"] if not gone(item)}


def gone(item: Any) -> bool:
    return "deletionTimestamp" in item["metadata"]


@pytest.fixture
def refuser() -> Iterator[RecordingExtender]:
    refuser = RecordingExtender()
    yield refuser
    refuser.stop()


@pytest.mark.telling
def test_kube_scheduler_itself_sees_no_need_on_a_fragmented_node(
    cluster: Cluster, refuser: RecordingExtender
) -> None:
    """Why we evict pods ourselves (kubernetes#135486).

    Fails with the first kube-scheduler that asks the extender; until then nothing else can be done.
    """
    api = cluster.api
    before = names(api)
    schedule_with(cluster, refuser.url)
    api.post(PODS, workload.pod("alone", workload.container(gib=8), priorityClassName="p10"))
    said = until(lambda: cluster.scheduled("alone").get("message", ""), "the pod refused")
    cluster.control.kill("kube-scheduler")
    assert 'expected at least one victim pod on node "n1"' in said
    assert refuser.asked == {"/filter"}
    assert names(api) == before | {"alone"}
    api.delete(f"{PODS}/alone")


@pytest.mark.telling
def test_a_pod_gets_a_card_of_a_fragmented_node(scheduled: Cluster) -> None:
    api = scheduled.api
    before = names(api)
    api.post(PODS, workload.pod("needy", workload.container(gib=8), priorityClassName="p10"))
    until(lambda: len(names(api)) == len(before), "a victim evicted")
    # Of smaller priority than all others is only one that its budget protects.
    assert names(api) == before - {"cheap"} | {"needy"}
    until(lambda: api.get(f"{PODS}/needy")["status"].get("nominatedNodeName") == "n1", "its node kept")
    publish(api, "n1", (4, 0), [api.get(f"{PODS}/guarded")["metadata"]["uid"]])
    scheduled.wait_bound("needy")
    annotations = api.get(f"{PODS}/needy")["metadata"]["annotations"]
    assert json.loads(annotations[POD_ASSIGNED]) == {"main": [[uuid("n1", 1), 8]]}
    scheduled.wait_event("needy", "Nominated: Keeping GPU memory on node n1 for it: evicting default/cheap")

    def preempted() -> list[str]:
        return [each["involvedObject"]["name"] for each in scheduled.find_events("reason=Preempted")]

    until(lambda: preempted() == ["cheap"], "the event of the victim")
    assert names(api) == before - {"cheap"} | {"needy"}


def test_victims_are_those_that_share_a_card(scheduled: Cluster) -> None:
    api = scheduled.api
    before = names(api)
    publish(api, NODE, (8, 8), [run(api, NODE, name, *where) for name, where in RUNNING.items()])
    wait_known(scheduled, 3)
    api.post(PODS, workload.pod("urgent", workload.container(gib=8), priorityClassName="p10"))
    until(lambda: len(names(api)) == len(before) + 3, "two victims evicted")
    # By sums alone it would have been the two of the smallest priority, a and b, and no card free. And of the
    # fragmented node nobody, as kube-scheduler preempts for the pod.
    assert names(api) == before | {"a", "c", "urgent"}
    wait_preempted(scheduled, "b", NODE)
    publish(api, NODE, (8, 0), [api.get(f"{PODS}/{name}")["metadata"]["uid"] for name in ("a", "c")])
    scheduled.wait_bound("urgent")
    annotations = api.get(f"{PODS}/urgent")["metadata"]["annotations"]
    assert json.loads(annotations[POD_ASSIGNED]) == {"main": [[uuid(NODE, 1), 8]]}


def test_where_evicting_frees_no_card_nobody_is_evicted(scheduled: Cluster) -> None:
    api = scheduled.api
    before = names(api)
    # The 16 GiB of both cards would do, 12 GiB of one card are not there.
    api.post(PODS, workload.pod("large", workload.container(gib=12), priorityClassName="p20"))
    until(lambda: "0/3 nodes are available" in scheduled.scheduled("large").get("message", ""), "refused")
    assert names(api) == before | {"large"}


def test_a_guarded_pod_is_spared_where_others_will_do(scheduled: Cluster) -> None:
    api = scheduled.api
    running = {"x": (1, 1), "w": (1, 3), "z": (2, 1), "v": (2, 4)}
    held = [run(api, "n4", name, *where) for name, where in running.items()]
    held += [run(api, "n4", name, 0, 1, app="kept") for name in ("kept1", "kept2")]
    publish(api, "n4", (8, 8, 8), held)
    wait_known(scheduled, 4)
    before = names(api)
    # By sums alone kube-scheduler's victims are x and z, of two cards. Two pods of the smallest priority
    # would free the first card, but a budget protects them.
    wanted = workload.pod(
        "wanted", workload.container(gib=8), priorityClassName="p10", nodeSelector={"node": "n4"}
    )
    api.post(PODS, wanted)
    until(lambda: len(names(api)) == len(before) - 1, "two victims evicted")
    assert names(api) == before - {"x", "w"} | {"wanted"}
    wait_preempted(scheduled, "x", "n4")


def test_a_second_card_for_containers_that_want_cards_of_their_own(scheduled: Cluster) -> None:
    """The sum is there, and on one card too: only the pod's own rule keeps it off the node."""
    api = scheduled.api
    publish(api, "n5", (0, 8), [run(api, "n5", "later", 1, 2), run(api, "n5", "first", 1, 1)])
    wait_known(scheduled, 5)
    before = names(api)
    apart = workload.pod(
        "apart",
        workload.container("x", gib=4),
        workload.container("y", gib=4),
        annotations={POD_CONTAINERS: "apart"},
        priorityClassName="p10",
        nodeSelector={"node": "n5"},
    )
    api.post(PODS, apart)
    until(lambda: len(names(api)) == len(before), "a victim evicted")
    assert names(api) == before - {"first"} | {"apart"}
