"""Names come again, UIDs do not: charges follow pods by UID and end with them."""

import pytest

from tests.cluster.harness import Cluster, until
from tests.cluster.harness import workload as w
from tests.cluster.harness.polling import holds_for
from tests.cluster.harness.views import grants, wait_agree

pytestmark = pytest.mark.telling

STATEFUL_SETS = "/apis/apps/v1/namespaces/default/statefulsets"


def whole_node_is_usable(cluster: Cluster) -> None:
    """Both cards can be filled to the last unit, so nothing is charged any more."""
    cluster.run(*(w.pod(name, w.container(gib=8)) for name in ("left", "right")))
    assert wait_agree(cluster).used == [8, 8]


def test_pod_force_deleted_between_bind_and_admission(cluster):
    with cluster.host.frozen_kubelet():
        cluster.create(w.pod("brief", w.container(gib=8)))
        cluster.wait_bound("brief")
        cluster.delete("brief", grace_s=0)
        cluster.create(w.pod("next", w.container(gib=8)))
        cluster.wait_bound("next")
    cluster.wait_running("next")
    cluster.delete("next")
    whole_node_is_usable(cluster)


def test_pod_re_created_under_its_name_between_bind_and_admission(cluster):
    with cluster.host.frozen_kubelet():
        first = cluster.create(w.pod("same", w.container(gib=6)))
        cluster.wait_bound("same")
        cluster.delete("same", grace_s=0)
        second = cluster.create(w.pod("same", w.container(gib=6)))
        cluster.wait_bound("same")
    cluster.wait_running("same")
    # The kubelet may have run the first one for a moment: it counts until its containers are gone.
    until(lambda: cluster.state().holds == {second}, "the second pod alone is held")
    wait_agree(cluster)
    assert first != second
    cluster.delete("same")
    whole_node_is_usable(cluster)


@pytest.mark.parametrize("grace_s", [0, 1])
def test_stateful_set_pod_comes_again_under_its_name(cluster, grace_s):
    template = w.pod_spec([w.container(gib=5)], restartPolicy="Always")
    labels = {"app": "store"}
    cluster.api.post(
        STATEFUL_SETS,
        {
            "metadata": {"name": "store"},
            "spec": {
                "serviceName": "store",
                "replicas": 2,
                "podManagementPolicy": "Parallel",
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": template},
            },
        },
    )
    try:
        until(lambda: cluster.exists("store-0") and cluster.exists("store-1"), "pods of the set")
        uids = [cluster.wait_running(name)["metadata"]["uid"] for name in ("store-0", "store-1")]
        wait_agree(cluster)
        other = grants(cluster, "store-1")
        cluster.delete("store-0", grace_s=grace_s, wait=False)
        until(lambda: cluster.pod("store-0")["metadata"]["uid"] != uids[0], "a new store-0")
        new = cluster.wait_running("store-0")["metadata"]["uid"]
        state = wait_agree(cluster)
        assert state.used == [5, 5]
        assert state.holds == {new, uids[1]}
        assert grants(cluster, "store-1") == other
        until(lambda: cluster.allocation("store-0")["uid"] == new, "allocation of the new pod")
    finally:
        cluster.api.delete(f"{STATEFUL_SETS}/store")
        until(lambda: not cluster.exists("store-0") and not cluster.exists("store-1"), "set gone")


def test_force_deleted_running_pod_is_charged_until_its_container_ended(cluster):
    # With a grace period the container outlives its object: SIGTERM means nothing to it.
    stubborn = w.container(gib=8, command=("/bin/sh", "-c", "trap '' TERM; while true; do sleep 1; done"))
    pod = w.pod("stubborn", stubborn, terminationGracePeriodSeconds=6)
    uid = cluster.create(pod)
    status = cluster.wait_running("stubborn")["status"]
    container_id = status["containerStatuses"][0]["containerID"].partition("://")[2]
    card = next(iter(grants(cluster, "stubborn")))
    cluster.wait_used([0, 8])
    cluster.api.delete("/api/v1/namespaces/default/pods/stubborn", grace_s=0)
    cluster.wait_gone("stubborn")

    def charged_while_it_runs() -> bool:
        runs = bool(cluster.host.pids(container_id))
        used = cluster.state().used_by_uuid.get(card, 0)
        return used == 8 or not runs or not cluster.host.pids(container_id)

    holds_for(charged_while_it_runs, "charged while its container runs", 5)
    cluster.wait_used([0, 0])
    until(lambda: uid not in cluster.state().holds, "held no more")
