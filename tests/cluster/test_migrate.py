"""`gpupack migrate` on objects that a real API server has, whoever made them."""

import json
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from gpupack.cli.app import cli
from tests.cluster.harness import Cluster

DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
GIB = "gpupack.io/gpu-memory-gib"
ASKS = {"cpu": "2", "nvidia.com/gpu": "2", "nvidia.com/gpumem": "8192"}


@pytest.fixture(scope="module")
def cluster(make_cluster: Any) -> Cluster:
    """Etcd and the API server alone: nothing makes pods of what is stored."""
    made: Cluster = make_cluster(with_node=False, start=lambda each: each.control.start_without_controllers())
    return made


def deployment(name: str) -> dict[str, Any]:
    container = {"name": "chat", "image": "example.invalid/none", "resources": {"limits": ASKS}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}, "annotations": {"nvidia.com/use-gputype": "L40S"}},
                "spec": {"schedulerName": "hami-scheduler", "containers": [container]},
            },
        },
    }


def make(cluster: Cluster, origin: str) -> None:
    body = deployment(origin)
    if origin == "server-side":
        cluster.api.apply(f"{DEPLOYMENTS}/{origin}", body)
        return
    if origin == "client-side":
        body["metadata"]["annotations"] = {LAST_APPLIED: json.dumps(body)}
    if origin == "helm":
        body["metadata"]["labels"] = {"app.kubernetes.io/managed-by": "Helm"}
        body["metadata"]["annotations"] = {"meta.helm.sh/release-name": "chat"}
    cluster.api.post(DEPLOYMENTS, body, fieldManager=origin)
    if origin == "operator":
        written = cluster.api.get(f"{DEPLOYMENTS}/{origin}")
        written["spec"]["replicas"] = 2
        cluster.api.put(f"{DEPLOYMENTS}/{origin}", written)


ORIGINS = ["create", "client-side", "server-side", "helm", "operator"]


def test_replace_leaves_nothing_of_the_old_requests_whoever_made_the_object(cluster: Cluster) -> None:
    for origin in ORIGINS:
        make(cluster, origin)
    # As `kubectl get -o yaml` prints them.
    items = [
        {"apiVersion": "apps/v1", "kind": "Deployment", **each}
        for each in cluster.api.get(DEPLOYMENTS)["items"]
    ]
    text = yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": items})
    done = CliRunner().invoke(cli, ["migrate", "-f", "-", "--strict"], input=text)
    assert done.exit_code == 0, done.stderr
    assert "Helm's release chat will write it again" in done.stderr
    migrated = {each["metadata"]["name"]: each for each in yaml.safe_load(done.stdout)["items"]}
    assert sorted(migrated) == sorted(ORIGINS)

    # Why the page does not say `apply`: another manager's fields stay.
    applied = {**migrated["helm"], "metadata": {"name": "helm"}, "status": {}}
    kept = cluster.api.apply(f"{DEPLOYMENTS}/helm", applied, dry_run=True)
    assert "nvidia.com/gpumem" in json.dumps(kept["spec"])

    for name, body in migrated.items():
        cluster.api.put(f"{DEPLOYMENTS}/{name}", body)
        template = cluster.api.get(f"{DEPLOYMENTS}/{name}")["spec"]["template"]
        (container,) = template["spec"]["containers"]
        assert container["resources"] == {"limits": {"cpu": "2", GIB: "16"}}, name
        assert template["metadata"]["annotations"] == {
            "gpupack.io/cards": "2",
            "gpupack.io/gpu-model": "*L40S*",
        }
        assert template["spec"]["schedulerName"] == "gpupack-scheduler"
