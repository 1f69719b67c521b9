"""`gpupack advise --apply` on real parts: a pod moves to the other card, and the one that waited starts."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from allocator.names import NODE_CORDON
from tests.cluster.harness import Cluster, until
from tests.cluster.harness import workload as w
from tests.cluster.harness.admission import wait_allowed
from tests.cluster.harness.cluster import BUDGETS, PODS
from tests.cluster.harness.daemons import REPOSITORY, run_gpupack
from tests.cluster.harness.manifests import apply_all
from tests.yaml_text import read_yaml_documents

REPLICA_SETS = "/apis/apps/v1/namespaces/default/replicasets"


@pytest.fixture(scope="module")
def cluster(make_cluster: Any) -> Cluster:
    """Two cards of 16 GiB, each with a pod of a ReplicaSet: `first` has 8 GiB, `second` 6."""
    cluster: Cluster = make_cluster(w.cards(16384, 16384))
    for name, gib, card in (("first", 8, 0), ("second", 6, 1)):
        template = w.pod("x", w.container(gib=gib))
        labels = {"app": name}
        body = {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "metadata": {"name": name},
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {
                        "labels": labels,
                        "annotations": {"gpupack.io/card-policy": "least-used"},
                    },
                    "spec": {**template["spec"], "restartPolicy": "Always"},
                },
            },
        }
        cluster.api.post(REPLICA_SETS, body)
        cluster.wait_used([8, 0] if card == 0 else [8, 6])
        until(lambda name=name: running(cluster, name), f"{name} runs")
    return cluster


def running(cluster: Cluster, app: str) -> list[str]:
    """Names of the pods of an application that run."""
    items = cluster.api.get(PODS)["items"]
    return [
        pod["metadata"]["name"]
        for pod in items
        if pod["metadata"].get("labels", {}).get("app") == app
        and pod["status"].get("phase") == "Running"
        and "deletionTimestamp" not in pod["metadata"]
    ]


@pytest.fixture(scope="module")
def kubeconfig(cluster: Cluster) -> Path:
    """With the rights that docs/ask.md gives its CronJob."""
    text = (REPOSITORY / "docs/ask.md").read_text()
    (example,) = [each for each in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "CronJob" in each]
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpupack-system"}}
    apply_all(cluster.api, [namespace, *read_yaml_documents(example)])
    account = {"user": "system:serviceaccount:gpupack-system:gpupack-defragment"}
    wait_allowed(cluster, account, "list", "nodes")
    return cluster.use_account("gpupack-defragment")


def advise(kubeconfig: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ("advise", "--for", "12", "--apply", *arguments, "--timeout", "120")
    return run_gpupack(kubeconfig, *command)


def cordoned(cluster: Cluster) -> str:
    return cluster.node_object()["metadata"]["annotations"].get(NODE_CORDON, "")


def test_a_dry_run_evicts_nobody(cluster: Cluster, kubeconfig: Path) -> None:
    before = running(cluster, "first") + running(cluster, "second")
    done = advise(kubeconfig, "--dry-run", "-o", "json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["state"], len(answer["made"])) == ("dry-run", 1)
    assert running(cluster, "first") + running(cluster, "second") == before
    assert cordoned(cluster) == ""


def test_a_budget_stops_it_and_the_card_is_given_back(cluster: Cluster, kubeconfig: Path) -> None:
    for app in ("first", "second"):
        cluster.make_budget(app, {"app": app}, minAvailable=1)

    def is_counted() -> bool:
        items = cluster.api.get(BUDGETS)["items"]
        return len(items) == 2 and all(item.get("status", {}).get("currentHealthy") == 1 for item in items)

    until(is_counted, "budgets are counted")
    before = running(cluster, "first") + running(cluster, "second")
    done = advise(kubeconfig)
    assert "no list of moves was found that lets another one start" in done.stdout
    assert done.returncode == 0, done.stderr
    assert running(cluster, "first") + running(cluster, "second") == before
    for app in ("first", "second"):
        cluster.api.delete(f"{BUDGETS}/{app}")


def test_the_pod_moves_and_the_one_that_waited_starts(cluster: Cluster, kubeconfig: Path) -> None:
    cluster.create(w.pod("waits", w.container(gib=12)))
    cluster.wait_event("waits", "FailedScheduling")
    done = advise(kubeconfig)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 move was made." in done.stdout
    cluster.wait_running("waits")
    # A move is made when the successor has a node.
    for app in ("first", "second"):
        until(lambda app=app: running(cluster, app), f"{app} runs")
    until(lambda: sorted(cluster.state().used) == [12, 14], "both cards are used as planned")
    assert cordoned(cluster) == ""
