"""Faults on a node of claims: whatever fails, no card has more than there is, and no pod is lost."""

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.harness import Cluster, until, workload
from tests.cluster.harness.controlplane import ADMIN_TOKEN
from tests.cluster.harness.dra import (
    CLAIMS,
    bind_by_hand,
    cdi_files,
    claim,
    claim_pod,
    clear,
    on_card,
    shares,
    start_with_claims,
)
from tests.cluster.harness.hook import Hook
from tests.cluster.harness.polling import holds_for
from tests.cluster.harness.rest import Json
from tests.cluster.harness.slowlink import SlowLink

pytestmark = pytest.mark.nightly

SMALL, LARGE = workload.uuid(0), workload.uuid(1)
ON_SMALL = on_card(SMALL)


@pytest.fixture(scope="module")
def link(make_cluster: Any) -> Iterator[tuple[Cluster, SlowLink]]:
    """A cluster whose daemon reaches the API server by a connection that can be held up."""
    links: list[SlowLink] = []

    def start(cluster: Cluster) -> None:
        links.append(SlowLink(cluster.control.url))
        cluster.control.write_kubeconfig("gpupack-node", ADMIN_TOKEN, links[0].url)
        start_with_claims(cluster)

    cluster: Cluster = make_cluster(workload.cards(16 << 10, 32 << 10), start=start)
    yield cluster, links[0]
    links[0].stop()


@pytest.fixture
def cluster(link: tuple[Cluster, SlowLink]) -> Iterator[Cluster]:
    yield link[0]
    clear(link[0])


def test_the_daemon_cannot_read_claims_for_a_while(cluster: Cluster, link: tuple[Cluster, SlowLink]) -> None:
    """A claim and an ordinary pod come meanwhile: they wait, are told why, and run."""
    _, slow = link
    slow.hold()
    try:
        cluster.api.post(CLAIMS, claim("c4", 4, ON_SMALL))
        cluster.create(claim_pod("p4", "c4"))
        cluster.create(workload.pod("ordinary", workload.container(gib=20)))
        cluster.wait_event("p4", "cannot be read")
        cluster.wait_event("ordinary", "cannot be read")
        assert {cluster.phase(name) for name in ("p4", "ordinary")} == {"Pending"}
    finally:
        slow.flow()
    for name in ("p4", "ordinary"):
        cluster.wait_running(name)
    cluster.wait_used([4, 20])


def test_the_api_server_is_away_while_claims_are_prepared(cluster: Cluster) -> None:
    names = [f"a{number}" for number in range(6)]
    for number, name in enumerate(names):
        if number % 2:
            cluster.create(workload.pod(name, workload.container(gib=3)))
        else:
            cluster.api.post(CLAIMS, claim(f"of-{name}", 3))
            cluster.create(claim_pod(name, f"of-{name}"))
    until(lambda: any(map(cluster.node_of, names)), "one is bound")
    cluster.control.kill("kube-apiserver")
    holds_for(lambda: cluster.daemon.alive and cluster.extender.alive, "both live on", 6)
    cluster.control.start_api_server()
    for name in names:
        cluster.wait_running(name)
    until(lambda: sum(cluster.state().used) == 18, "units of all")


def test_a_claim_that_is_deleted_by_force_counts_on_while_its_pod_runs(cluster: Cluster) -> None:
    """kube-scheduler gives its share to others; the node knows better, and says so."""
    cluster.api.post(CLAIMS, claim("forced", 12, ON_SMALL))
    cluster.run(claim_pod("runs", "forced"))
    cluster.api.merge(f"{CLAIMS}/forced", {"metadata": {"finalizers": None}})
    cluster.api.delete(f"{CLAIMS}/forced", grace_s=0)
    until(lambda: not cluster.api.names(CLAIMS), "the claim gone")
    cluster.api.post(CLAIMS, claim("late", 12, ON_SMALL))
    cluster.create(claim_pod("waits", "late"))
    told = cluster.wait_event("waits", "has 16 units, of which other pods have 12")
    assert "12 more are not there" in told
    cluster.run(workload.pod("beside", workload.container(gib=20)))
    cluster.wait_used([12, 20])
    assert cluster.environment("runs")["GPUPACK_CARDS"] == f"{SMALL}:12"

    # Not even a daemon that starts anew forgets it.
    cluster.daemon.kill()
    cluster.daemon.start()
    cluster.wait_used([12, 20])
    cluster.delete("runs")
    cluster.wait_running("waits")
    cluster.wait_used([12, 20])


def test_a_full_card_is_refused_to_a_claim_allocated_by_hand_and_to_no_other(cluster: Cluster) -> None:
    """While one claim waits for room, claims of other cards are prepared."""
    cluster.run(workload.pod("full", workload.container(gib=32)))
    bind_by_hand(cluster, "late", 1, LARGE.lower())
    cluster.run(workload.pod("other", workload.container(gib=4)))
    cluster.wait_event("late", "has 32 units, of which other pods have 32")
    cluster.wait_used([4, 32])
    assert cluster.phase("late") == "Pending"


def is_write(request: Json, number: int) -> bool:
    """Whether a request is this one of the four writes for a pod."""
    resource = request["resource"]["resource"], request.get("subResource", "")
    made, before = request["object"], request.get("oldObject") or {}
    if number == 0:
        return resource == ("resourceclaims", "")
    if number == 1:
        return resource == ("resourceclaims", "status") and bool((made.get("status") or {}).get("allocation"))
    if number == 2:
        named = "extendedResourceClaimStatus"
        return (
            resource == ("pods", "status")
            and named in made["status"]
            and named not in before.get("status", {})
        )
    return resource == ("pods", "binding")


@pytest.mark.parametrize("number", range(4), ids=["claim", "allocation", "status", "binding"])
def test_the_extender_is_killed_as_it_writes(cluster: Cluster, number: int) -> None:
    """Each write gets through, and nobody is there to make the next one."""
    killed: list[int] = []
    heard: list[Json] = []

    def seen(request: Json) -> None:
        heard.append(request)
        if not killed and not request.get("dryRun") and is_write(request, number):
            killed.append(cluster.extender.pid)
            os.kill(cluster.extender.pid, signal.SIGKILL)

    def is_heeded() -> bool:
        """The API server takes a moment to heed a new webhook."""
        cluster.api.post(CLAIMS, claim("probe", 1), dryRun="All")
        return bool(heard)

    with Hook(cluster, seen):
        until(is_heeded, "the webhook in force")
        cluster.create(workload.pod("again", workload.container(gib=20)))
        until(lambda: killed, "the extender killed")
    cluster.extender.kill()
    cluster.extender.start()
    cluster.wait_running("again")
    assert cluster.environment("again")["GPUPACK_CARDS"] == f"{LARGE}:20"
    (name,) = cluster.api.names(CLAIMS)
    assert shares(cluster, name) == [(LARGE.lower(), "20Gi")]
    cluster.wait_used([0, 20])
    cluster.delete("again")
    until(lambda: not cluster.api.names(CLAIMS), "the claim gone with its pod")
    until(lambda: not cdi_files(cluster), "CDI file gone")
