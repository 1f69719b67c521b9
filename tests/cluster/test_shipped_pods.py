"""The DaemonSet and the scheduler's Deployment run as pods, with the rights and tokens they ship with."""

import asyncio
import json
import tarfile
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpupack.dashboard.telemetry import NodeCourse, TelemetrySource
from kubeapi.client import KubeClient
from scheduler_plugin.settings import Settings
from tests.cluster.harness import Cluster, shipped, until
from tests.cluster.harness import workload as w
from tests.cluster.harness.admission import is_allowed
from tests.cluster.harness.cluster import NAMESPACE, account
from tests.cluster.harness.controlplane import free_ports
from tests.cluster.harness.daemons import REPOSITORY, run_gpupack
from tests.cluster.harness.manifests import COMPONENTS, MANIFESTS, apply_all, build, named
from tests.cluster.harness.rest import Json
from tests.cluster.harness.shipped import (
    DEPLOYMENTS,
    NODE_PORT,
    OVERLAY,
    REPLICAS,
    SCHEDULER,
    SYSTEM_PODS,
    as_pods_here,
    start_as_pods,
    system_pods,
    wait_ready,
)

# The image is built within the first test's limit, which with nothing cached may take minutes.
pytestmark = pytest.mark.timeout(1200)

DAEMON_SET = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/gpupack-node"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/gpupack-scheduler"
DASHBOARD = "gpupack-dashboard"


@pytest.fixture(scope="module")
def cluster(make_cluster, archive) -> Iterator[Cluster]:
    started: Cluster = make_cluster(start=lambda cluster: start_as_pods(cluster, archive))
    return started


def test_the_image_is_small_and_holds_no_shell(archive: Path) -> None:
    with tarfile.open(archive) as image:
        index = json.load(image.extractfile("index.json"))
        blob = index["manifests"][0]["digest"].replace(":", "/")
        manifest = json.load(image.extractfile(f"blobs/{blob}"))
        sizes = [layer["size"] for layer in manifest["layers"]]
        assert sum(sizes) < 120e6
        names: set[str] = set()
        for layer in manifest["layers"]:
            content = image.extractfile(f"blobs/{layer['digest'].replace(':', '/')}")
            with tarfile.open(fileobj=content, mode="r:gz") as files:
                names |= set(files.getnames())
    assert "opt/gpupack/gpupack/__main__.py" in names
    assert not {name.rpartition("/")[2] for name in names} & {"sh", "dash", "bash", "apt", "dpkg", "pip"}


def _pids(cluster: Cluster, pod: dict, container: str) -> set[int]:
    """The processes of a pod's container."""
    (status,) = [one for one in pod["status"]["containerStatuses"] if one["name"] == container]
    return cluster.host.pids(status["containerID"].partition("://")[2])


@pytest.mark.telling
def test_the_daemon_set_publishes_the_nodes_cards(cluster):
    (daemon,) = wait_ready(cluster, "gpupack-node", 1)
    assert cluster.state().used == [0, 0]
    until(lambda: cluster.allocatable() == sum(card.size for card in cluster.state().cards), "units")
    (status,) = daemon["status"]["containerStatuses"]
    assert status["restartCount"] == 0


def test_prometheus_reads_every_replica_where_no_verb_is_served(cluster):
    for pod in wait_ready(cluster, SCHEDULER, len(REPLICAS)):
        ports = [port for each in pod["spec"]["containers"] for port in each.get("ports", [])]
        (port,) = [port["containerPort"] for port in ports if port["name"] == "metrics"]
        url = f"http://127.0.0.1:{port}"

        def lines(url: str = url) -> list[str]:
            with urllib.request.urlopen(f"{url}/metrics", timeout=20) as answer:
                return answer.read().decode().splitlines()

        until(lambda: 'gpupack_scheduler_nodes{words="readable"} 1.0' in lines(), "the node is known")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{url}/bind", b"{}", timeout=20)


def dashboard_objects() -> list[Json]:
    return named(build(MANIFESTS / "base", COMPONENTS / "dashboard"), DASHBOARD)


def test_the_dashboard_is_read_through_the_api_server_with_few_rights(cluster):
    (port,) = free_ports(1)
    for one in dashboard_objects():
        ports = {"8913": port, "8911": NODE_PORT[0]}
        deployed = as_pods_here(cluster, one, ports) if one["kind"] == "Deployment" else one
        apply_all(cluster.api, [deployed])
    wait_ready(cluster, "gpupack-node", 1)
    (pod,) = wait_ready(cluster, DASHBOARD, 1)
    proxy = f"{SYSTEM_PODS}/{pod['metadata']['name']}:{port}/proxy"
    answer = cluster.api.send("GET", f"{proxy}/")
    assert 'src="static/app.js"' in answer.data.decode()
    assert "script-src 'self'" in answer.headers["Content-Security-Policy"]
    answer = cluster.api.send("GET", f"{proxy}/static/app.js")
    assert answer.headers["Content-Type"].startswith("text/javascript")
    until(lambda: cluster.state().used == [0, 0], "the node's words")

    def first_event() -> list[int]:
        # It comes although the stream goes on.
        with cluster.api.send("GET", f"{proxy}/api/events", read=False) as answer:
            assert answer.readline() == b"event: whole\n"
            shown = json.loads(answer.readline().removeprefix(b"data: "))
        assert shown["problems"] == []
        return [len(node["cards"]) for node in shown["nodes"]]

    until(lambda: first_event() == [2], "the page has the node's cards")
    course = cluster.api.get(f"{proxy}/api/telemetry", name=cluster.node_name)
    assert course["error"] == ""
    assert [card["now"]["temperature_c"] > 0 for card in course["cards"]] == [True, True]
    user = {"user": f"system:serviceaccount:{NAMESPACE}:{DASHBOARD}", "groups": ["system:authenticated"]}
    for verb, resource, allowed in (
        ("watch", "pods", True), ("list", "nodes", True), ("get", "secrets", False),
        ("list", "events", False), ("delete", "pods", False), ("patch", "nodes", False),
        ("get", "services/proxy", False),
    ):  # fmt: skip
        assert is_allowed(cluster, user, verb, resource) is allowed, (verb, resource)


def test_what_cards_do_is_asked_through_the_api_server_with_the_rights_that_are_named(cluster):
    """`gpupack top -o wide`, and the drawer of a dashboard outside the cluster."""
    wait_ready(cluster, "gpupack-node", 1)
    # What the dashboard's own account has; docs/top.md and docs/dashboard.md name the rest.
    (role,) = [one for one in dashboard_objects() if one["kind"] == "ClusterRole"]
    kubeconfig = cluster.make_account("reader", role["rules"])

    def top(*arguments: str) -> str:
        done = run_gpupack(kubeconfig, "top", *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    async def drawer() -> NodeCourse:
        async with await KubeClient.connect(str(kubeconfig)) as client:
            return await TelemetrySource(client).fetch(cluster.node_name)

    # The authorizer has a view of its own of roles.
    until(lambda: 'cannot get resource "pods/proxy"' in top("-o", "wide"), "the rights in force")
    assert 'cannot get resource "pods/proxy"' in asyncio.run(drawer()).error

    right = [{"apiGroups": [""], "resources": ["pods/proxy"], "verbs": ["get"]}]
    cluster.bind_role(account("reader"), right, NAMESPACE)
    shown = until(
        lambda: (text := top("-o", "wide")) and "is not known" not in text and text, "what cards do"
    )
    assert "UTIL" in shown.splitlines()[0]
    (node,) = json.loads(top("-o", "json", "--telemetry"))
    assert [card["telemetry"]["temperature_c"] > 0 for card in node["cards"]] == [True, True]
    course = asyncio.run(drawer())
    assert course.error == ""
    assert [card.now["temperature_c"] for card in course.cards] == [
        card["telemetry"]["temperature_c"] for card in node["cards"]
    ]


@pytest.mark.telling
def test_pods_share_cards_and_the_standby_takes_over(cluster):
    pods = wait_ready(cluster, SCHEDULER, len(REPLICAS))
    cluster.run(w.pod("one", w.container(gib=8), schedulerName=SCHEDULER))
    cluster.wait_event("one", "CardsAssigned: Assigned on node")
    cluster.wait_used([0, 8])
    environment = cluster.environment("one")
    cards = {card.uuid: card.used for card in cluster.state().cards}
    assert cards[environment["NVIDIA_VISIBLE_DEVICES"]] == 8

    holder = cluster.api.get(LEASE)["spec"]["holderIdentity"]
    (leader,) = [
        pod
        for pod in pods
        if "successfully acquired lease"
        in cluster.host.log_of(pod["metadata"]["uid"], "kube-scheduler").lower()
    ]
    cluster.api.delete(f"{DEPLOYMENTS}/{SCHEDULER}-{leader['metadata']['labels']['replica']}")
    cluster.api.delete(f"{SYSTEM_PODS}/{leader['metadata']['name']}")
    until(lambda: not _pids(cluster, leader, "gpupack"), "the leader's extender ended")
    ended = datetime.now(UTC)
    assert _pids(cluster, leader, "kube-scheduler")
    assert cluster.api.get(LEASE)["spec"]["holderIdentity"] == holder
    cluster.run(w.pod("two", w.container(gib=8), schedulerName=SCHEDULER))
    lease = cluster.api.get(LEASE)["spec"]
    assert lease["holderIdentity"] != holder
    # Longer than the extender that ended would have waited for the answer to a Binding.
    assert (datetime.fromisoformat(lease["acquireTime"]) - ended).total_seconds() > Settings().bind_timeout_s
    cluster.wait_used([8, 8])


def test_a_new_daemon_pod_knows_what_runs(cluster):
    before = cluster.state()
    (daemon,) = wait_ready(cluster, "gpupack-node", 1)
    cluster.api.delete(f"{SYSTEM_PODS}/{daemon['metadata']['name']}")

    def another() -> bool:
        uids = {pod["metadata"]["uid"] for pod in system_pods(cluster, "gpupack-node")}
        return bool(uids) and daemon["metadata"]["uid"] not in uids

    until(another, "another pod of the DaemonSet")
    wait_ready(cluster, "gpupack-node", 1)
    assert cluster.state().used == before.used
    cluster.delete("one")
    cluster.wait_used([0, 8])


def apply_node(cluster: Cluster, checkout: Path, image: str) -> None:
    """Apply the node's manifests of a checkout, and wait as `kubectl rollout status` does."""
    for one in named(build(checkout / OVERLAY), "gpupack-node"):
        if one["kind"] == "DaemonSet":
            one = as_pods_here(cluster, one, {"8911": NODE_PORT[0]})  # noqa: PLW2901
            one["spec"]["template"]["spec"]["containers"][0]["image"] = image
        apply_all(cluster.api, [one])

    def is_through() -> bool:
        one = cluster.api.get(DAEMON_SET)
        status = one["status"]
        counts = [status.get(key, 0) for key in ("updatedNumberScheduled", "numberAvailable")]
        assert (status["observedGeneration"], counts) == (one["metadata"]["generation"], [1, 1]), status
        return True

    until(is_through, f"DaemonSet of {image} rolled out")


@pytest.mark.nightly
def test_the_daemon_set_is_updated_and_rolled_back_while_pods_arrive(cluster, archive, tmp_path):
    """From this commit to the one before it and forth again, with the image of each."""
    checkout = shipped.previous_checkout(tmp_path / "previous")
    shipped.build_image(tmp_path / "image.tar", checkout)
    previous = shipped.import_as(cluster, tmp_path / "image.tar", checkout, "previous")
    this = shipped.import_as(cluster, archive, REPOSITORY, "this")
    state = cluster.state()
    charged = sum(state.used)
    room = sum(card.size for card in state.cards) - charged
    stop, names = threading.Event(), []

    def create() -> None:
        while len(names) < room and not stop.wait(2):
            names.append(f"arriving-{len(names)}")
            cluster.create(w.pod(names[-1], w.container(gib=1), schedulerName=SCHEDULER))

    creating = threading.Thread(target=create)
    creating.start()
    try:
        apply_node(cluster, checkout, previous)
        apply_node(cluster, REPOSITORY, this)
    finally:
        stop.set()
        creating.join()
    assert names
    for name in names:
        cluster.wait_running(name)
    until(lambda: sum(cluster.state().used) == charged + len(names), "the words count every pod once")
    (daemon,) = wait_ready(cluster, "gpupack-node", 1)
    assert daemon["spec"]["containers"][0]["image"] == this
