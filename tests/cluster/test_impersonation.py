"""A kubeconfig with `as`: the real API server counts the rights of the user acted as, and records both."""

import json
from pathlib import Path

import pytest

from tests.cluster.harness import Cluster
from tests.cluster.harness import workload as w
from tests.cluster.harness.admission import wait_allowed
from tests.cluster.harness.daemons import run_gpupack

GROUP = "rbac.authorization.k8s.io"


@pytest.fixture(scope="module")
def cluster(make_cluster) -> Cluster:
    cluster = make_cluster(w.cards(8192))
    # The real user may act as anybody, and nothing else. Whoever is in the group may cordon.
    cluster.make_account(
        "actor", [{"apiGroups": [""], "resources": ["users", "groups"], "verbs": ["impersonate"]}]
    )
    cluster.bind_role(
        {"kind": "Group", "apiGroup": GROUP, "name": "gpu-admins"},
        [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "patch"]}],
    )
    actor = {"user": "system:serviceaccount:default:actor"}
    wait_allowed(cluster, actor, "impersonate", "users")
    wait_allowed(cluster, {"groups": ["gpu-admins"]}, "patch", "nodes")
    return cluster


def acting(cluster: Cluster, tmp_path: Path, **user: object) -> Path:
    config = cluster.use_identity("actor", cluster.token("default", "actor")).read_text()
    kubeconfig = json.loads(config)
    kubeconfig["users"][0]["user"].update(user)
    (tmp_path / "kubeconfig").write_text(json.dumps(kubeconfig))
    return tmp_path / "kubeconfig"


def gpupack(kubeconfig: Path, *arguments: str) -> tuple[int, str]:
    done = run_gpupack(kubeconfig, *arguments)
    return done.returncode, done.stdout + done.stderr


def test_the_rights_are_those_of_the_group_acted_as(cluster: Cluster, tmp_path: Path) -> None:
    name = cluster.node_object()["metadata"]["name"]
    status, said = gpupack(acting(cluster, tmp_path), "cordon", name, "--all")
    assert status != 0
    assert "system:serviceaccount:default:actor" in said
    status, said = gpupack(acting(cluster, tmp_path, **{"as": "bob"}), "cordon", name, "--all")
    assert status != 0
    assert '"bob" cannot' in said
    bob = {"as": "bob", "as-groups": ["gpu-admins", "system:authenticated"]}
    status, said = gpupack(acting(cluster, tmp_path, **bob), "cordon", name, "--all")
    assert status == 0, said
