"""The other way to install: the extender with TLS and a Lease, for a kube-scheduler that is there."""

import socket
import ssl
import urllib.error
import urllib.request

import pytest

from tests.cluster.harness import Cluster, Extender, dra, until
from tests.cluster.harness import workload as w
from tests.cluster.harness.cluster import NAMESPACE
from tests.cluster.harness.controlplane import free_ports
from tests.cluster.harness.joining import OVERLAY, configure_joined, make_certificate
from tests.cluster.harness.manifests import COMPONENTS, MANIFESTS, apply_all, build
from tests.cluster.harness.views import wait_agree
from tests.yaml_text import read_yaml

LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/gpupack-scheduler"


class Replica(Extender):
    """One replica of the Deployment: its arguments, its account, its certificate."""

    def __init__(self, cluster: Cluster, port: int) -> None:
        self.certificate = make_certificate(cluster)
        (deployment,) = [one for one in build(OVERLAY) if one["kind"] == "Deployment"]
        shipped = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
        ours = ("--http", "--metrics-http", "--tls", "--pod-name")
        arguments = [word for word in shipped[1:] if not word.startswith(ours)]
        kubeconfig = cluster.use_account("gpupack-extender")
        key = self.certificate.with_suffix(".key")
        files = {"tls.crt": self.certificate, "tls.key": key, "ca.crt": self.certificate}
        tls = [
            f"{option}={files[path.rpartition('/')[2]]}"
            for option, _, path in (word.partition("=") for word in shipped if word.startswith("--tls"))
        ]
        super().__init__(kubeconfig, cluster.control.log_dir, port, *arguments, *tls)
        self.url = f"https://127.0.0.1:{port}"

    def http(self, path: str) -> str:
        trust = ssl.create_default_context(cafile=self.certificate)
        with urllib.request.urlopen(self.url + path, timeout=20, context=trust) as answer:
            return str(answer.read(), "utf-8")


def join(cluster: Cluster, replica: Replica) -> None:
    configure_joined(cluster, replica.url, replica.certificate)
    if cluster.serves_claims:
        dra.leave_to_extender(cluster)
    cluster.control.restart_scheduler()


@pytest.fixture(scope="module")
def cluster(make_cluster) -> Cluster:
    cluster = make_cluster(w.cards(8192, 8192))
    cluster.extender.stop()
    apply_all(cluster.api, build(OVERLAY))
    return cluster


@pytest.fixture
def replicas(cluster):
    made = [Replica(cluster, port) for port in free_ports(2)]
    yield made
    for replica in made:
        replica.kill()


def test_beside_an_own_kube_scheduler_that_is_still_there_the_extender_chooses_no_cards(cluster, replicas):
    """As after `kubectl apply -k`, which deletes nothing: with the configuration that is shipped for it."""
    shipped = read_yaml((MANIFESTS / "scheduler" / "scheduler.yaml").read_text())
    cluster.control.configure_scheduler(None, leaderElection=shipped["leaderElection"])
    cluster.control.restart_scheduler()
    machine = socket.gethostname()

    def holder() -> str:
        return str(cluster.api.get(LEASE)["spec"]["holderIdentity"])

    until(lambda: holder().startswith(f"{machine}_"), "the own kube-scheduler leads")
    (extender, _) = replicas
    extender.start(ready=False)
    until(lambda: "not the leader" in extender.why_not_ready(), "the extender's view complete")
    renewals = set[str]()

    def has_tried() -> bool:
        """Who is a candidate tries once every two seconds, as kube-scheduler renews."""
        renewals.add(cluster.api.get(LEASE)["spec"]["renewTime"])
        return len(renewals) > 4

    until(has_tried, "the Lease renewed some times")
    assert "not the leader" in extender.why_not_ready()
    cluster.control.kill("kube-scheduler")
    extender.wait_ready()
    assert not holder().startswith(f"{machine}_")
    extender.stop()


def test_only_the_leader_is_ready_and_another_takes_over(cluster, replicas):
    first, second = replicas
    first.start()
    second.start(ready=False)
    until(lambda: second.http("/healthz"), "second replica alive")
    assert not second.is_ready()
    join(cluster, first)
    cluster.run(w.pod("one", w.container(gib=5)))
    cluster.wait_event("one", "CardsAssigned: Assigned on node")
    with pytest.raises(urllib.error.HTTPError, match="403"):
        first.http("/bind")  # without a client certificate
    holder = cluster.api.get(LEASE)["spec"]["holderIdentity"]
    first.kill()
    second.wait_ready()
    assert cluster.api.get(LEASE)["spec"]["holderIdentity"] != holder
    join(cluster, second)
    cluster.run(w.pod("two", w.container(gib=5)))
    assert wait_agree(cluster).used == [5, 5]


@pytest.mark.nightly
def test_with_dra_an_unchanged_pod_has_its_claim_from_the_joined_extender(make_cluster):
    """With no more rights than the component gives the joined extender's account."""
    cluster = make_cluster(w.cards(8192, 16384), start=dra.start_with_claims)
    cluster.extender.stop()
    apply_all(cluster.api, build(OVERLAY, COMPONENTS / "dra"))
    (port,) = free_ports(1)
    replica = Replica(cluster, port)
    try:
        replica.start()
        join(cluster, replica)
        cluster.run(w.pod("ordinary", w.container(gib=12)))
        (claim,) = cluster.api.get(dra.CLAIMS)["items"]
        assert claim["metadata"]["ownerReferences"][0]["name"] == "ordinary"
        cluster.wait_used([0, 12])
        cluster.delete("ordinary")
        until(lambda: not cluster.api.get(dra.CLAIMS)["items"], "the claim gone with its pod")
    finally:
        replica.kill()
