"""Anything may be killed at any moment: words never say less than containers hold, and every charge ends."""

import asyncio
import os
import signal
import time

import pytest

from gpupack.inventory import NodeRow, build_rows, fetch
from tests.cluster.harness import Cluster, until
from tests.cluster.harness import workload as w
from tests.cluster.harness.cluster import CLOCK_TICK_S
from tests.cluster.harness.controlplane import COMPUTE
from tests.cluster.harness.extender_proxy import ExtenderProxy
from tests.cluster.harness.polling import holds_for
from tests.cluster.harness.views import grants, wait_agree, words_never_below


@pytest.fixture
def two(cluster) -> dict[str, dict[str, int]]:
    """Two running pods of 5 GiB and 60 % of the compute, one a card; their grants by name."""
    cluster.run(*(w.pod(name, w.container(gib=5, limits={COMPUTE: 60})) for name in ("a", "b")))
    wait_agree(cluster)
    return {name: grants(cluster, name) for name in ("a", "b")}


def shown(cluster: Cluster) -> list[NodeRow]:
    """What `gpupack top --pods` shows."""
    return build_rows(asyncio.run(fetch(str(cluster.control.admin_config), pods=True)))


def only_3_gib_fit(cluster: Cluster) -> None:
    """Two more pods of 3 GiB run, a third of 1 GiB finds nothing, the kubelet refused none of them."""
    cluster.run(*(w.pod(name, w.container(gib=3)) for name in ("c", "d")))
    assert wait_agree(cluster).used == [8, 8]
    cluster.create(w.pod("e", w.container(gib=1)))
    cluster.wait_event("e", "Insufficient")


@pytest.mark.telling
def test_kubelet_restart_with_the_api_server_up(cluster, two):
    with words_never_below(cluster, [5, 5]):
        cluster.register_again(cluster.host.restart_kubelet)
        only_3_gib_fit(cluster)
    assert {name: grants(cluster, name) for name in two} == two


@pytest.mark.telling
def test_kubelet_restart_with_the_api_server_away(cluster, two):
    with words_never_below(cluster, [5, 5]):
        cluster.control.kill("kube-apiserver")
        since, before = time.time(), cluster.daemon.metric("gpupack_node_registrations_total")
        cluster.host.restart_kubelet()
        # The kubelet knows no pod yet, but it knows the plugin.
        until(
            lambda: cluster.daemon.metric("gpupack_node_registrations_total") > before,
            "registered with the API server away",
        )
        until(cluster.daemon.is_ready, "the kubelet follows the devices with the API server away")
        holds_for(lambda: cluster.daemon.alive, "gpupack node lives without API server", 5)
        cluster.control.start_api_server()
        cluster.wait_registered(since)
        until(cluster.node_ready, "node ready")
        only_3_gib_fit(cluster)
    assert {name: grants(cluster, name) for name in two} == two


def test_release_after_a_kubelet_restart(cluster, two):
    cluster.register_again(cluster.host.restart_kubelet)
    cluster.delete("a")
    cluster.wait_used([0, 5])
    assert cluster.state().used_by_uuid == two["b"]


@pytest.mark.telling
def test_daemon_killed_and_started_again(cluster, two):
    before = cluster.state()
    for name in two:
        until(lambda name=name: cluster.allocation(name), f"allocation annotation of {name}")
    with words_never_below(cluster, [5, 5]):
        cluster.daemon.kill()
        until(lambda: cluster.allocatable() == 0, "kubelet noticed")
        (row,) = shown(cluster)
        assert (row.ready, row.without_daemon, row.takes_pods) == (True, True, False)
        assert [[(pod.name, pod.units, pod.share) for pod in card.pods] for card in row.cards] in (
            [[("a", 5, "allocated")], [("b", 5, "allocated")]],
            [[("b", 5, "allocated")], [("a", 5, "allocated")]],
        )
        cluster.create(w.pod("waiting", w.container(gib=3, limits={COMPUTE: 30})))
        cluster.wait_event("waiting", "Insufficient gpupack.io/gpu-memory-gib")
        assert {cluster.phase(name) for name in two} == {"Running"}
        cluster.daemon.start()
        cluster.wait_running("waiting")
        assert sorted(wait_agree(cluster).used) == [5, 8]
    until(lambda: shown(cluster)[0].takes_pods, "top shows that a daemon is back")
    assert cluster.state().revision > before.revision
    assert {name: grants(cluster, name) for name in two} == two


def test_daemon_restart_republishes_nothing(cluster, two):
    before = cluster.state()
    cluster.register_again(cluster.daemon.kill, cluster.daemon.start)
    holds_for(lambda: cluster.state().revision == before.revision, "words not published again", 5)
    assert two


def test_pod_deleted_while_the_daemon_is_down(cluster, two):
    cluster.daemon.kill()
    cluster.delete("a")
    cluster.daemon.start()
    assert cluster.wait_used([0, 5]).used_by_uuid == two["b"]


def test_daemon_and_kubelet_killed_together(cluster, two):
    with words_never_below(cluster, [5, 5]):
        cluster.daemon.kill()
        cluster.host.kill_kubelet()
        cluster.register_again(lambda: cluster.daemon.start(ready=False), cluster.host.start_kubelet)
        only_3_gib_fit(cluster)
    assert {name: grants(cluster, name) for name in two} == two


@pytest.mark.telling
def test_init_container_charge_survives_a_daemon_restart(cluster):
    init = w.container("prepare", 6, ("/bin/true",))
    cluster.run(w.pod("initial", w.container(gib=2), init=[init]))
    cluster.wait_used([6, 0])
    with words_never_below(cluster, cluster.state().used):
        cluster.register_again(cluster.daemon.kill, cluster.daemon.start)
        cluster.register_again(cluster.host.restart_kubelet)
    cluster.delete("initial")
    cluster.wait_used([0, 0])


def test_extender_restart_between_filter_and_bind(cluster):
    proxy = ExtenderProxy(cluster.extender.url)
    try:
        cluster.control.configure_scheduler(proxy.url)
        cluster.control.restart_scheduler()
        proxy.binds_may_pass.clear()
        cluster.create(w.pod("caught", w.container(gib=8)))
        until(lambda: proxy.waiting_binds == {"caught"}, "the call to bind it waits")
        cluster.extender.kill()
        cluster.extender.start()
        proxy.binds_may_pass.set()
        cluster.wait_running("caught")
        cluster.run(w.pod("other", w.container(gib=8)))
        assert wait_agree(cluster).used == [8, 8]
        assert set(grants(cluster, "caught")) != set(grants(cluster, "other"))
        assert len(proxy.list_calls("filter")) >= 2
    finally:
        proxy.stop()
        cluster.control.configure_scheduler(cluster.extender.url)
        cluster.control.restart_scheduler()


def test_extender_away_stops_only_pods_that_ask(cluster):
    cluster.extender.kill()
    cluster.create(w.pod("asking", w.container(gib=3)))
    cluster.run(w.pod("plain", w.container()))
    assert cluster.phase("asking") == "Pending"
    cluster.extender.start()
    cluster.wait_running("asking")


def test_a_pod_that_waits_outlives_the_extender_that_refused_it(cluster):
    # Nothing that kube-scheduler could see changes when the room comes free: the node says nothing.
    with cluster.host.frozen_kubelet():
        os.kill(cluster.daemon.pid, signal.SIGSTOP)
        try:
            for name in ("a", "b"):
                cluster.create(w.pod(name, w.container(gib=8)))
            cluster.wait_bound("a", "b")
            cluster.delete("a")
            cluster.create(w.pod("waits", w.container(gib=8)))
            cluster.wait_event("waits", "no card with 8 GiB free")
            holds_for(lambda: not cluster.node_of("waits"), "kube-scheduler asks no more", 4)
            cluster.extender.kill()
            cluster.extender.start()
            cluster.wait_bound("waits")
        finally:
            os.kill(cluster.daemon.pid, signal.SIGCONT)
    cluster.wait_running("waits")
    wait_agree(cluster)  # the next test may not begin with words from before


def test_kubelet_frozen_while_pods_are_bound(cluster):
    # Three pods bound before any is admitted: the extender alone must know what is left.
    with cluster.host.frozen_kubelet():
        for number in range(3):
            cluster.create(w.pod(f"p{number}", w.container(gib=5)))
        until(lambda: sum(bool(cluster.node_of(f"p{n}")) for n in range(3)) == 2, "two bound")
        (left,) = [f"p{n}" for n in range(3) if not cluster.node_of(f"p{n}")]
        cluster.wait_event(left, "no card with 5 GiB free")
    for number in range(3):
        if f"p{number}" != left:
            cluster.wait_running(f"p{number}")
    assert wait_agree(cluster).used == [5, 5]


@pytest.mark.telling
@pytest.mark.parametrize("times", [1, pytest.param(3, marks=pytest.mark.nightly)])
def test_daemon_restarted_while_the_kubelet_is_frozen(cluster, times):
    # It sees the old stream's end and the new registration at once, in either order: nightly three times.
    for _ in range(times):
        with cluster.host.frozen_kubelet():
            cluster.daemon.kill()
            restarted = time.time()
            cluster.daemon.start(ready=False)
            until(lambda since=restarted: own_sockets_since(cluster, since), "a socket of the new daemon")
        cluster.wait_registered(restarted)
        # It notices the end of this one as well, and takes the next.
        cluster.daemon.kill()
        until(lambda: cluster.allocatable() == 0, "no units without a daemon")
        cluster.register_again(lambda: cluster.daemon.start(ready=False))
    cluster.run(w.pod("one", w.container(gib=5)))


def own_sockets_since(cluster: Cluster, after: float) -> bool:
    sockets = cluster.host.device_plugin_dir.glob("gpupack*.sock")
    return any(path.stat().st_mtime > after - CLOCK_TICK_S for path in sockets)


@pytest.mark.telling
def test_node_object_deleted_and_made_again(cluster, two):
    before = cluster.state()
    cluster.api.delete(f"/api/v1/nodes/{cluster.node_name}")
    cluster.host.restart_kubelet()
    until(cluster.cards, "words on the new Node")
    until(cluster.node_ready, "node ready")
    after = cluster.state()
    assert after.revision > before.revision
    assert all(have >= 5 for have in after.used)
    if all(cluster.exists(name) for name in two):
        assert after.used_by_uuid == {**two["a"], **two["b"]}
    cluster.run(w.pod("c", w.container(gib=3)))
    uuid = cluster.environment("c")["NVIDIA_VISIBLE_DEVICES"]
    until(lambda: cluster.state().used_by_uuid[uuid] >= 3, "words hold the new pod")
    cluster.clear()


def test_nothing_is_bound_where_the_device_plugin_is_gone(cluster):
    def found() -> dict[str, str]:
        call = {"Pod": w.pod("asks", w.container(gib=1)), "NodeNames": [cluster.node_name]}
        return cluster.extender.call("filter", call)["FailedAndUnresolvableNodes"]

    since = time.time()
    cluster.daemon.kill()
    reason = "the node's kubelet has no gpupack device plugin at the moment"
    until(lambda: found() == {cluster.node_name: reason}, "the extender refuses the node")
    assert cluster.state().used == [0, 0], "the words offer cards all the while"
    cluster.daemon.start()
    cluster.wait_registered(since)
    until(lambda: not found(), "the extender offers the node again")
    cluster.run(w.pod("a", w.container(gib=5)))
