"""`gpupack uninstall` beside a real kubelet, with no more rights than its help names."""

import pytest

from allocator.names import PERCENT_RESOURCE
from tests.cluster.harness import Cluster, until
from tests.cluster.harness import workload as w
from tests.cluster.harness.controlplane import COMPUTE, RESOURCE
from tests.cluster.harness.daemons import run_gpupack

RIGHTS = [
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
    {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]},
]
"""As in docs/install.md."""


@pytest.fixture
def cluster(make_cluster) -> Cluster:
    return make_cluster(w.cards(8192, 8192))


def ours(cluster: Cluster) -> set[str]:
    node = cluster.node_object()
    found = {*node["status"]["capacity"], *node["status"]["allocatable"], *node["metadata"]["annotations"]}
    return {name for name in found if name.startswith("gpupack.io/")}


def test_it_leaves_nothing_and_gpupack_comes_back(cluster: Cluster) -> None:
    kubeconfig = cluster.make_account("cleaner", RIGHTS)

    def uninstall(*arguments: str) -> tuple[int, str]:
        done = run_gpupack(kubeconfig, "uninstall", *arguments)
        return done.returncode, done.stdout + done.stderr

    cluster.run(w.pod("holder", w.container(gib=5)))
    # Before its units are seen they cannot be seen to be let go.
    cluster.wait_used([0, 5])
    status, said = uninstall()
    assert status == 1
    assert "stays as it is: 1 pod there holds GPU memory: default/holder" in said
    cluster.delete("holder")
    cluster.wait_used([0, 0])
    assert cluster.daemon.stop() == 0

    before = ours(cluster)
    assert {
        "gpupack.io/packed-layout",
        "gpupack.io/holds",
        "gpupack.io/cards",
        RESOURCE,
        PERCENT_RESOURCE,
        COMPUTE,
    } <= before
    status, said = uninstall("--dry-run")
    assert status == 0
    assert all(name in said for name in before)
    assert ours(cluster) == before
    status, said = uninstall()
    assert status == 0, said
    # The kubelet remembers the plugin and its resources for five minutes, and nothing else of ours.
    until(lambda: ours(cluster) == {RESOURCE, PERCENT_RESOURCE}, "the kubelet writes them again")
    assert "five minutes" in said

    cluster.daemon.start()
    until(lambda: before <= ours(cluster), "installed again")
    cluster.run(w.pod("next", w.container(gib=5)))
    until(lambda: sorted(cluster.state().used) == [0, 5], "the words have the pod")
