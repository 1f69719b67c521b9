"""`gpupack migrate` on objects that a real API server has, whoever made them."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from gpupack.cli.app import cli
from tests.cluster.harness import Cluster, binaries
from tests.cluster.harness.daemons import REPOSITORY
from tests.yaml_text import read_yaml

PAGE = REPOSITORY / "docs" / "migration" / "README.md"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
GIB = "gpupack.io/gpu-memory-gib"
ASKS = {"cpu": "2", "nvidia.com/gpu": "2", "nvidia.com/gpumem": "8192"}


@pytest.fixture(scope="module")
def cluster(make_cluster: Any) -> Cluster:
    """Etcd and the API server alone: nothing makes pods of what is stored."""
    made: Cluster = make_cluster(with_node=False, start=Cluster.start_api_server)
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
    migrated = {each["metadata"]["name"]: each for each in read_yaml(done.stdout)["items"]}
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


def test_helm_deletes_the_old_requests_where_the_command_is_its_post_renderer(
    cluster: Cluster, tmp_path: Path
) -> None:
    """With the plugin that docs/migration/README.md shows."""
    (plugin,) = re.findall(
        r"```yaml\n(apiVersion: v1\ntype: postrenderer.*?)```", PAGE.read_text(), re.DOTALL
    )
    for name, text in {
        "plugins/gpupack/plugin.yaml": plugin,
        "chart/Chart.yaml": "apiVersion: v2\nname: chat\nversion: 0.1.0\n",
        "chart/templates/chat.yaml": yaml.safe_dump(deployment("released")),
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    environment = {
        **os.environ,
        "HOME": str(tmp_path),
        "HELM_PLUGINS": str(tmp_path / "plugins"),
        "KUBECONFIG": str(cluster.control.admin_config),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }

    def helm(*arguments: str) -> dict[str, Any]:
        command = [str(binaries.tool("helm")), *arguments, "chat", str(tmp_path / "chart")]
        done = subprocess.run(
            command, env=environment, check=False, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        spec = cluster.api.get(f"{DEPLOYMENTS}/released")["spec"]["template"]["spec"]
        found: dict[str, Any] = spec["containers"][0]["resources"]
        return found

    assert helm("install") == {"limits": ASKS}
    assert helm("upgrade", "--post-renderer=gpupack") == {"limits": {"cpu": "2", GIB: "16"}}
