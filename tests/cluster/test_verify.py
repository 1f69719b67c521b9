"""`gpupack verify` in a cluster as it is installed, with no more rights than its page names."""

import json
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpupack.verify import verifier as v
from tests.cluster.harness import Cluster, shipped, until
from tests.cluster.harness.admission import wait_allowed
from tests.cluster.harness.card import SimulatedCard
from tests.cluster.harness.cluster import NAMESPACE
from tests.cluster.harness.daemons import GPUPACK, REPOSITORY, run_gpupack
from tests.cluster.harness.installed import start_as_installed
from tests.cluster.harness.rest import Json
from tests.yaml_text import read_yaml

pytestmark = pytest.mark.timeout(1200)

NAMESPACES = "/api/v1/namespaces"
OURS = f"{NAMESPACES}/gpupack-verify"
PATIENCE = "--timeout=90"
"""Of a run that waits in vain, by far more than what comes about takes."""
PAGE = REPOSITORY / "docs" / "howto" / "verify.md"


@pytest.fixture(scope="module")
def cluster(make_cluster: Any, archive: Path) -> Cluster:
    # The API server reads logs at the kubelet, which it looks for at the node's name.
    cluster: Cluster = make_cluster(
        name="localhost", start=lambda cluster: shipped.start_as_pods(cluster, archive)
    )
    shipped.wait_ready(cluster, "gpupack-node", 1)
    shipped.wait_ready(cluster, shipped.SCHEDULER, len(shipped.REPLICAS))
    until(cluster.allocatable, "the kubelet's count of units")
    return cluster


@pytest.fixture(scope="module")
def account(cluster: Cluster) -> Path:
    """A kubeconfig of an account with the rights that the page names."""
    (text,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    return make_account(cluster, "verifier", read_yaml(text)["rules"])


def make_account(cluster: Cluster, name: str, rules: list[Json]) -> Path:
    kubeconfig = cluster.make_account(name, rules)
    wait_allowed(cluster, {"user": f"system:serviceaccount:default:{name}"}, "list", "nodes")
    return kubeconfig


def verify(kubeconfig: Path, *arguments: str) -> tuple[int, Json, str]:
    """Run the command; returns its exit status, its report, and what it said on the way."""
    done = run_gpupack(kubeconfig, "verify", "-o", "json", *arguments)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr


def results(report: Json) -> dict[str, str]:
    return {proof["what"]: proof["result"] for proof in report["proofs"]}


def is_there(cluster: Cluster) -> bool:
    return "gpupack-verify" in cluster.api.names(NAMESPACES)


@pytest.fixture(scope="module")
def unscheduled(cluster: Cluster) -> Cluster:
    """Take the scheduler and its extender away; the tests that need them come first."""
    for name in shipped.REPLICAS:
        cluster.api.merge(f"{shipped.DEPLOYMENTS}/{shipped.SCHEDULER}-{name}", {"spec": {"replicas": 0}})
    label = f"app.kubernetes.io/name={shipped.SCHEDULER}"
    # One that is ending goes on placing pods.
    until(lambda: not cluster.api.get(shipped.SYSTEM_PODS, labelSelector=label)["items"], "no scheduler")
    return cluster


@pytest.mark.telling
def test_sharing_is_shown_also_with_a_new_daemon_and_nothing_is_left(cluster: Cluster, account: Path) -> None:
    before = {pod["metadata"]["uid"] for pod in shipped.system_pods(cluster, "gpupack-node")}
    status, report, said = verify(account, "--restart-daemon")
    assert status == 0, (report, said)
    simulated = {v.USED: "unproven", v.HELD: "unproven"}
    assert results(report) == {**dict.fromkeys(v.STEPS, "proven"), **simulated}, said
    assert report["simulated"] is True
    assert {finding["verdict"] for finding in report["findings"]} == {"ok"}
    for number, what in enumerate(v.STEPS, 1):
        assert f"{number}/{len(v.STEPS)} {what}" in said
    found = {proof["what"]: proof["found"] for proof in report["proofs"]}
    (card,) = report["cards"]
    assert found[v.SHARED] == f"each was given 2048 MiB of {card['uuid']}"
    assert "no healthy card of" in found[v.WAITS]
    assert "asks for gpupack.io/gpu-memory-gib: 8Gi" in found[v.REFUSED]
    (daemon,) = shipped.wait_ready(cluster, "gpupack-node", 1)
    assert daemon["metadata"]["uid"] not in before
    assert not is_there(cluster)


def test_a_namespace_that_exists_is_left_alone(cluster: Cluster, account: Path) -> None:
    cluster.api.post(NAMESPACES, {"metadata": {"name": "gpupack-verify"}})
    try:
        status, report, said = verify(account)
        assert (status, report) == (2, None)
        assert "namespace gpupack-verify exists" in said
        assert is_there(cluster)
    finally:
        cluster.api.delete(OURS)
        until(lambda: not is_there(cluster), "the namespace is gone")


def test_without_a_right_nothing_is_created(cluster: Cluster) -> None:
    """Who could create a namespace and not remove it does not create it."""
    rules = [
        {"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["*"]},
        {"apiGroups": [""], "resources": ["pods/log", "namespaces"], "verbs": ["get", "create"]},
    ]
    status, report, said = verify(make_account(cluster, "weak", rules))
    assert (status, report["proofs"]) == (1, []), said
    missing = {each["found"]: each["verdict"] for each in report["findings"] if each["what"] == "rights"}
    assert missing["no right to delete namespaces"] == "bad"
    assert missing["no right to list events in gpupack-verify"] == "less"
    assert not is_there(cluster)


@pytest.mark.nightly
def test_an_image_that_cannot_be_had_is_told_and_undone(cluster: Cluster, account: Path) -> None:
    status, report, said = verify(account, "--image=localhost/nowhere:1")
    assert status == 1, said
    (shared,) = [proof for proof in report["proofs"] if proof["what"] == v.SHARED]
    assert (shared["result"], "localhost/nowhere:1" in shared["found"]) == ("unproven", True)
    assert results(report)[v.WAITS] == "proven"
    assert results(report)[v.REMOVED] == "proven"
    assert not is_there(cluster)


@pytest.mark.nightly
def test_without_a_scheduler_it_says_so_and_undoes_it(unscheduled: Cluster, account: Path) -> None:
    status, report, said = verify(account, PATIENCE)
    assert status == 1, said
    (shared,) = [proof for proof in report["proofs"] if proof["what"] == v.SHARED]
    assert shared["result"] == "refuted"
    assert "no scheduler has said anything of it" in shared["found"]
    assert results(report)[v.REMOVED] == "proven"
    assert not is_there(unscheduled)


@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.nightly)],
    ids=lambda each: each.name,
)
def test_interrupted_it_undoes_what_it_did(
    unscheduled: Cluster, account: Path, number: signal.Signals
) -> None:
    """Pods that nobody schedules keep it waiting in the step that is interrupted."""
    with subprocess.Popen(
        [*GPUPACK, "verify", f"--kubeconfig={account}", "--output=json", "--timeout=3600"],
        cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as run:  # fmt: skip
        try:
            until(lambda: len(unscheduled.api.get(f"{OURS}/pods")["items"]) == 2, "two pods wait")
            run.send_signal(number)
            run.send_signal(number)
            out, said = run.communicate(timeout=150)
        finally:
            run.kill()
    assert run.returncode == 130, said
    report = json.loads(out)
    assert report["interrupted"] is True
    assert results(report)[v.REMOVED] == "proven"
    assert not is_there(unscheduled)


def test_without_a_daemon_nothing_is_tried(cluster: Cluster, account: Path) -> None:
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/gpupack-node"
    cluster.api.merge(path, {"spec": {"template": {"spec": {"nodeSelector": {"no": "node"}}}}})
    until(lambda: not shipped.system_pods(cluster, "gpupack-node"), "no daemon")
    # A daemon that ends calls its cards full first.
    until(lambda: all(card.used == card.size for card in cluster.state().cards), "full cards")
    status, report, said = verify(account)
    assert (status, report["proofs"]) == (1, []), said
    (cards,) = [finding for finding in report["findings"] if finding["what"] == "cards"]
    assert cards["verdict"] == "bad"
    assert "daemon" in cards["uses"]
    assert not is_there(cluster)


@pytest.mark.nightly
def test_cuda_is_tried_where_nothing_says_that_cards_are_simulated_and_an_extender_is_missed(
    make_cluster: Any, archive: Path, tmp_path: Path
) -> None:
    """A stand-in is the driver's library."""
    card = SimulatedCard(tmp_path)

    def start(cluster: Cluster) -> None:
        card.prepare(cluster)
        start_as_installed(cluster)

    cluster = make_cluster(card.profile, name="localhost", start=start)
    image = shipped.import_as(cluster, archive, REPOSITORY, "verified")
    status, report, said = verify(cluster.control.admin_config, f"--image={image}")
    assert status == 0, said
    found = {proof["what"]: (proof["result"], proof["found"]) for proof in report["proofs"]}
    size_mib = 24 << 10
    told = f"CUDA sees this card, of {size_mib} MiB, and gave 1024 MiB"
    assert found[v.USED] == ("proven", told), said
    assert found[v.HELD][0] == "unproven", "without the daemon's pod its metrics cannot be read"
    # The node has one card: kube-scheduler's sum refuses the pod already.
    result, reason = found[v.WAITS]
    assert (result, "Insufficient gpupack.io/gpu-memory-gib" in reason) == ("proven", True), reason

    cluster.extender.kill()
    status, report, said = verify(cluster.control.admin_config, f"--image={image}", PATIENCE)
    assert status == 1, said
    (shared,) = [proof for proof in report["proofs"] if proof["what"] == v.SHARED]
    assert shared["result"] == "refuted"
    assert f"{cluster.extender.url}/filter" in shared["found"]
    assert not is_there(cluster)
