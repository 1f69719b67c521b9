"""A cluster as docs/install.md leaves it: the base applied, every program under the account that it makes."""

from collections.abc import Callable
from pathlib import Path

from tests.cluster.harness import workload
from tests.cluster.harness.admission import scheduler_of
from tests.cluster.harness.cluster import NAMESPACE, Cluster
from tests.cluster.harness.manifests import MANIFESTS, apply_all, build_for
from tests.cluster.harness.polling import until
from tests.cluster.harness.rest import Json
from tests.yaml_text import read_yaml

SCHEDULER = "gpupack-scheduler"
OTHER_NODE = "n2"
"""A node without a kubelet, which is cordoned."""


def start_as_installed(cluster: Cluster, *components: Path) -> None:
    """Apply the base, then run daemon, extender and kube-scheduler as the accounts that it makes."""
    start_with(
        cluster, lambda: apply_all(cluster.api, build_for(cluster.api, MANIFESTS / "base", *components))
    )
    cluster.api.post("/api/v1/nodes", {"metadata": {"name": OTHER_NODE}, "spec": {"unschedulable": True}})
    until(cluster.allocatable, "the kubelet's count of units")


def start_with(cluster: Cluster, install: Callable[[], object]) -> None:
    """Let `install` make the objects, then run daemon, extender and kube-scheduler as their accounts."""
    control = cluster.control
    control.start_without_scheduler()
    install()
    cluster.host.start()
    until(cluster.node_ready, "node ready")
    for account in ("gpupack-node", SCHEDULER):
        cluster.wait_account(account, NAMESPACE)
    cluster.use_account("gpupack-node", bound_node=cluster.node_name)
    scheduler = cluster.use_account(SCHEDULER)
    control.use_scheduler_config(shipped_scheduler_config(cluster, scheduler))
    control.start_scheduler(scheduler)
    cluster.extender.start()
    cluster.daemon.start()
    cluster.wait_account()
    asks = workload.pod("p", workload.container(gib=1))
    until(lambda: scheduler_of(cluster, asks) == SCHEDULER, "the scheduler's name set")


def shipped_scheduler_config(cluster: Cluster, kubeconfig: Path) -> Json:
    """The configuration of the ConfigMap, with this machine's addresses in it."""
    text = cluster.api.get(f"/api/v1/namespaces/{NAMESPACE}/configmaps/{SCHEDULER}")["data"]["scheduler.yaml"]
    config = read_yaml(text)
    config["clientConnection"]["kubeconfig"] = str(kubeconfig)
    (extender,) = config["extenders"]
    extender["urlPrefix"] = cluster.extender.url
    return config


def node_events(cluster: Cluster, reason: str) -> list[str]:
    """Messages of the Events about the node, as `kubectl describe node` finds them."""
    about = ("involvedObject.kind=Node", f"involvedObject.name={cluster.node_name}")
    found = cluster.find_events(*about, f"reason={reason}")
    assert {event["source"]["component"] for event in found} <= {"gpupack-node"}
    return [event["message"] for event in found]


def filter_calls(cluster: Cluster) -> float:
    """How often kube-scheduler has asked the extender for nodes."""
    return cluster.extender.metric('gpupack_extender_request_duration_seconds_count{verb="filter"}')
