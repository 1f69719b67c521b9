"""Updates, rollbacks and drains of gpupack's Deployments on the real controllers, while pods arrive."""

import base64
import copy
import itertools
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from allocator.names import LEADER_LABEL
from benchmarks.throughput import fake_node
from tests.cluster.harness import Cluster
from tests.cluster.harness import workload as w
from tests.cluster.harness.cluster import NAMESPACE, NODES, PODS
from tests.cluster.harness.daemons import REPOSITORY
from tests.cluster.harness.following import follow
from tests.cluster.harness.joining import OVERLAY, configure_joined, make_certificate
from tests.cluster.harness.manifests import COMPONENTS, MANIFESTS, apply_all, build
from tests.cluster.harness.processpods import ProcessNodes
from tests.cluster.harness.rest import Api, ApiError, Json
from tests.cluster.harness.servicelink import ServiceLink
from tests.cluster.harness.shipped import DEPLOYMENTS, SYSTEM_PODS, previous_checkout

pytestmark = pytest.mark.timeout(600)

LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
EXTENDER, QUEUE, SCHEDULER = "gpupack-extender", "gpupack-queue", "gpupack-scheduler"
ELECTED = {EXTENDER: "gpupack-scheduler-extender", QUEUE: "gpupack-queue"}
"""Deployments whose leader has a label, and their Leases."""
DEPLOYED = {EXTENDER: 2, QUEUE: 2, SCHEDULER: 2, "gpupack-dashboard": 1, "gpupack-autoscale": 2}
DEFAULT = "default-scheduler"


def give_own_lease(one: Any) -> Any:
    """Give the extender a Lease of its own: both forms of the scheduler lead here, as in no installation."""
    if one["metadata"]["name"] != EXTENDER:
        return one
    text = json.dumps(one)
    for place in ('"--lease-name={}"', '"resourceNames": ["{}"]', f'"{LEADER_LABEL}": "{{}}"'):
        text = text.replace(place.format(SCHEDULER), place.format(ELECTED[EXTENDER]))
    return json.loads(text)


class Installed:
    """A cluster with both forms of the scheduler, each with its own node of cards, and the rest.

    Attributes:
        cluster: The control plane.
        cards: The node with cards, by the scheduler of the pods that come there.
        nodes: Those of gpupack's own pods.
        links: The Services that lead to a leader, by name.
        deployments: As shipped, by name.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.api = cluster.api
        self.cards = {DEFAULT: self._make_cards(0), SCHEDULER: self._make_cards(1)}
        self.nodes = ProcessNodes(cluster, "one", "two")
        self.deployments: dict[str, Any] = {}
        self.links = {name: ServiceLink(self.api, NAMESPACE, name) for name in ELECTED}
        self._numbers = itertools.count()
        self._arrived_at = float("-inf")
        self._install()

    def close(self) -> None:
        for link in self.links.values():
            link.stop()
        self.nodes.close()

    def _make_cards(self, index: int) -> str:
        """Make a node with cards, which takes no other pods; returns its name."""
        node = fake_node(index)
        node["spec"] = {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]}
        self.api.post(NODES, node)
        return str(node["metadata"]["name"])

    def _install(self) -> None:
        certificate = make_certificate(self.cluster)
        configure_joined(
            self.cluster, self.links[EXTENDER].url, certificate, profiles=[{"schedulerName": DEFAULT}]
        )
        self.cluster.control.start_scheduler()
        key = certificate.with_suffix(".key")
        files = {"tls.crt": certificate, "tls.key": key, "ca.crt": certificate}
        data = {name: base64.b64encode(path.read_bytes()).decode() for name, path in files.items()}
        metadata = {"name": "gpupack-extender-tls", "namespace": NAMESPACE}
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}
        deployments = self.apply(REPOSITORY, secret)
        self.deployments = {one["metadata"]["name"]: one for one in deployments}

    def apply(self, checkout: Path, *more: Any, image: str = "") -> list[Any]:
        """Apply the manifests of a checkout.

        Args:
            checkout: Where they lie.
            image: To run in place of the one that the manifests name.

        Returns:
            The Deployments, as built.
        """
        manifests = checkout / MANIFESTS.relative_to(REPOSITORY)
        components = [
            manifests / COMPONENTS.relative_to(MANIFESTS) / name
            for name in ("queue", "dashboard", "autoscale")
        ]
        objects = map(give_own_lease, build(manifests / OVERLAY.relative_to(MANIFESTS), *components))
        deployments = []
        for one in [*objects, *build(manifests / "scheduler"), *more]:
            if one["kind"] == "Deployment":
                deployments.append(one)
                for container in one["spec"]["template"]["spec"]["containers"]:
                    if image and container["name"] == "gpupack":
                        container["image"] = image
            elif one["metadata"]["name"] == "gpupack-admission":
                one["data"]["schedulerNames"] = f"{DEFAULT},{SCHEDULER}"
                apply_all(self.api, [one])
            elif "AdmissionPolicy" not in one["kind"]:
                apply_all(self.api, [one])
        apply_all(self.api, deployments)
        return deployments

    def arrive(self) -> None:
        """Let pods come, one of each kind a second."""
        if time.monotonic() < self._arrived_at + 1:
            return
        self._arrived_at = time.monotonic()
        number = next(self._numbers)
        for kind, scheduler in (("joined", DEFAULT), ("queued", DEFAULT), ("own", SCHEDULER)):
            name = f"{kind}-{number}"
            spec = {
                "schedulerName": scheduler,
                "nodeSelector": {"kubernetes.io/hostname": self.cards[scheduler]},
                "tolerations": [{"operator": "Exists"}],
            }
            queued = kind == "queued"
            made = w.gated(name, 1, "default", **spec) if queued else w.pod(name, w.container(gib=1), **spec)
            self.cluster.create(made)

    def wait(self, probe: Callable[[], object], what: str) -> None:
        """Wait while pods arrive and nodes work."""

        def arriving() -> object:
            self.arrive()
            return probe()

        self.nodes.until(arriving, what)

    def settled(self) -> bool:
        """Whether every Deployment is what `kubectl rollout status` waits for."""
        found = {each["metadata"]["name"]: each for each in self.api.get(DEPLOYMENTS)["items"]}
        wrong = {}
        for name, replicas in DEPLOYED.items():
            one, status = found[name], found[name]["status"]
            counts = [status.get(key, 0) for key in ("updatedReplicas", "replicas", "availableReplicas")]
            is_seen = status.get("observedGeneration") == one["metadata"]["generation"]
            if not (is_seen and counts == [replicas] * 3):
                wrong[name] = counts
        assert not wrong, f"updated, all, available: {wrong}"
        return True

    def leaders(self) -> dict[str, str]:
        """The pod that leads, by Deployment, as its Service finds it."""
        found = {}
        for name, lease in ELECTED.items():
            holder = self.api.get(f"{LEASES}/{lease}")["spec"]["holderIdentity"]
            assert holder, f"nobody holds {lease}"
            selector = f"app.kubernetes.io/name={name},{LEADER_LABEL}={lease}"
            (pod,) = self.api.get(SYSTEM_PODS, labelSelector=selector)["items"]
            assert "deletionTimestamp" not in pod["metadata"], f"{name}: the former leader still ends"
            addresses = [address for address, _ in self.links[name].endpoints()]
            assert addresses == [pod["status"]["podIP"]]
            found[name] = str(pod["metadata"]["name"])
        return found

    def transitions(self) -> dict[str, int]:
        """How often each leader has changed."""
        return {
            name: int(self.api.get(f"{LEASES}/{lease}")["spec"].get("leaseTransitions", 0))
            for name, lease in ELECTED.items()
        }

    def all_started(self) -> bool:
        """Whether every pod that arrived runs."""
        pods = self.api.get(PODS)["items"]
        waiting = [pod["metadata"]["name"] for pod in pods if pod["status"]["phase"] != "Running"]
        assert not waiting, waiting
        return True


@pytest.fixture(scope="module")
def installed(make_cluster) -> Iterator[Installed]:
    def start(cluster: Cluster) -> None:
        cluster.control.start_without_scheduler()
        cluster.wait_account()

    made = Installed(make_cluster(with_node=False, start=start))
    yield made
    made.close()


@pytest.fixture(autouse=True)
def every_pod_runs_and_no_lease_runs_out(installed: Installed) -> Iterator[None]:
    """Look at all pods that came during a test, and let the next one begin with none."""
    with watch_holders(installed.api) as holders:
        yield
        installed.nodes.until(installed.all_started, "every pod runs")
    came = {pod["metadata"]["name"].partition("-")[0] for pod in installed.api.get(PODS)["items"]}
    assert came == {"joined", "queued", "own"}
    for lease, one_by_one in holders.items():
        assert not [pair for pair in pairwise(one_by_one) if all(pair)], f"{lease} was not given up"
    installed.api.delete(PODS, grace_s=0)
    installed.nodes.until(lambda: not installed.api.names(PODS), "no pods")


@contextmanager
def watch_holders(api: Api) -> Iterator[dict[str, list[str]]]:
    """Who holds each Lease from now on, in turn; nobody, the empty name, once it was given up."""
    holders: dict[str, list[str]] = {}

    def note(lease: Json) -> None:
        seen = holders.setdefault(lease["metadata"]["name"], [])
        holder = lease["spec"].get("holderIdentity", "")
        if seen[-1:] != [holder]:
            seen.append(holder)

    follow(api, LEASES, note)
    yield holders


def change(installed: Installed, revision: str) -> None:
    """Apply every Deployment with another pod template."""
    for shipped in installed.deployments.values():
        one = copy.deepcopy(shipped)
        annotations = one["spec"]["template"]["metadata"].setdefault("annotations", {})
        annotations["test/revision"] = revision
        apply_all(installed.api, [one])


def wait_available(installed: Installed) -> None:
    """Wait until the first install is done: this test may be the first one that is run."""
    installed.nodes.until(installed.settled, "all replicas available")
    installed.nodes.until(installed.leaders, "both Services have one endpoint, the leader")


def test_a_first_install_becomes_available(installed: Installed) -> None:
    wait_available(installed)
    installed.arrive()


def test_an_update_ends_and_changes_the_leader_once(installed: Installed) -> None:
    wait_available(installed)
    before, former = installed.transitions(), installed.leaders()
    change(installed, "2")
    installed.wait(installed.settled, "the update is through")
    installed.wait(installed.leaders, "there is a leader")
    assert installed.transitions() == {name: count + 1 for name, count in before.items()}
    assert all(installed.leaders()[name] != former[name] for name in ELECTED)


@pytest.mark.nightly
def test_a_rollback_ends(installed: Installed) -> None:
    wait_available(installed)
    change(installed, "2")
    installed.wait(installed.settled, "there is something to go back from")
    installed.wait(installed.leaders, "there is a leader")
    before = installed.transitions()
    apply_all(installed.api, [*installed.deployments.values()])
    installed.wait(installed.settled, "the rollback is through")
    installed.wait(installed.leaders, "there is a leader")
    assert installed.transitions() == {name: count + 1 for name, count in before.items()}


@pytest.mark.nightly
def test_to_the_commit_before_and_forth_again(installed: Installed, tmp_path: Path) -> None:
    """Manifests and code of both; the DaemonSet's turn is in `test_shipped_pods.py`."""
    checkout = previous_checkout(tmp_path / "previous")
    previous = "gpupack:previous"
    installed.nodes.checkouts[previous] = checkout
    wait_available(installed)
    for at, image in ((checkout, previous), (REPOSITORY, "")):
        installed.apply(at, image=image)
        installed.wait(installed.settled, f"the Deployments of {at} are through")
        installed.wait(installed.leaders, "there is a leader")
        pods = installed.api.get(SYSTEM_PODS)["items"]
        living = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
        images = {pod["spec"]["containers"][-1]["image"] for pod in living}
        assert (images == {previous}) is bool(image), images


def is_evicted(api: Api, name: str) -> bool:
    """Evict a pod as `kubectl drain` does, which asks again where its disruption budget refuses."""
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    try:
        api.post(f"{SYSTEM_PODS}/{name}/eviction", eviction)
    except ApiError as error:
        if error.status not in {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.NOT_FOUND}:
            raise
        return error.status == HTTPStatus.NOT_FOUND
    return True


@pytest.mark.nightly
@pytest.mark.parametrize("turn", [1, 2])
def test_a_drain_of_a_node(installed: Installed, turn: int) -> None:
    """What is on a node comes up on the other, and in the second turn on the first again.

    Of two replicas on one node the second is evicted once the first is available elsewhere.
    """
    wait_available(installed)
    (node, _), *_ = Counter(
        pod["spec"]["nodeName"] for pod in installed.api.get(SYSTEM_PODS)["items"]
    ).most_common()
    path = f"{NODES}/{node}"
    installed.api.merge(path, {"spec": {"unschedulable": True}})
    names = partial(installed.api.names, SYSTEM_PODS, fieldSelector=f"spec.nodeName={node}")
    found = names()
    assert found, turn
    for name in found:
        installed.wait(lambda name=name: is_evicted(installed.api, name), f"{name} may be evicted")
    installed.wait(lambda: not names(), f"nothing is left on node {node}")
    installed.wait(installed.settled, "all replicas available")
    installed.wait(installed.leaders, "there is a leader")
    installed.api.merge(path, {"spec": {"unschedulable": None}})
