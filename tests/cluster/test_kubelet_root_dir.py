"""A kubelet with a `--root-dir` of its own, as of k0s: its folder of device plugins stays where it is."""

import pytest

from tests.cluster.harness import Cluster, dra, until
from tests.cluster.harness import workload as w

ELSEWHERE = "elsewhere"


@pytest.fixture(scope="module", params=dra.NODE_KINDS)
def cluster(make_cluster, request) -> Cluster:
    def start(cluster: Cluster) -> None:
        cluster.host.root_dir += f"/{ELSEWHERE}"
        cluster.daemon.flags += ["--kubelet-dir", str(cluster.host.kubelet_dir / ELSEWHERE)]
        dra.start_as(request.param, cluster)

    return make_cluster(w.cards(8192), start=start)


def test_pods_share_a_card(cluster: Cluster) -> None:
    for name in ("one", "two"):
        cluster.run(w.pod(name, w.container(gib=3)))
    until(lambda: [card.used for card in cluster.state().cards] == [6], "both pods in the words")
    folder = cluster.host.kubelet_dir
    assert (folder / ELSEWHERE / "pod-resources" / "kubelet.sock").is_socket()
    assert not (folder / ELSEWHERE / "device-plugins").exists()
    assert not (folder / "pod-resources").exists()
    assert (folder / "device-plugins" / "kubelet.sock").is_socket()
    # With PodResources answered to: else /readyz says so.
    assert cluster.daemon.is_ready()
