"""Batch mode that binds, with two replicas: the leader is killed, or loses the Lease, in a burst."""

import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests.cluster.batch_builders import bound, check_cards, create_all, of_batch, start_fleet, watch_nodes
from tests.cluster.harness import Cluster, until
from tests.cluster.harness.cluster import PODS
from tests.cluster.harness.replicas import Replica

NODE_COUNT = 20
BURST = 300
QUEUES = "mode: batch\nqueues: [{name: a}]\n"


@pytest.fixture(scope="module")
def cluster(make_cluster: Any) -> Cluster:
    made: Cluster = make_cluster(with_node=False, start=partial(start_fleet, count=NODE_COUNT))
    return made


@pytest.fixture
def replicas(cluster: Cluster) -> Iterator[tuple[Replica, Replica]]:
    number = len(list(cluster.home.glob("one-*")))
    first, second = (Replica(cluster, f"{name}-{number}", QUEUES) for name in ("one", "two"))
    cluster.delete_pods()
    try:
        first.start()
        until(first.leads, "the first one leads")
        second.start()
        until(first.queue.is_ready, "the first one's queue works")
        yield first, second
    finally:
        first.kill()
        second.kill()


def test_a_leader_that_is_killed_with_a_call_under_way_loses_and_doubles_nothing(
    cluster: Cluster, replicas: tuple[Replica, Replica]
) -> None:
    """The API server stands still meanwhile: what was sent takes effect once the leader is dead."""
    first, second = replicas
    server = cluster.control.running["kube-apiserver"]
    with watch_nodes(cluster.api) as seen:
        first.queue.kill()
        create_all(cluster, "burst", BURST)
        first.queue.start(ready=False)
        until(lambda: first.bound() > 5, "some pods bound", every_s=0.01)
        server.freeze()
        time.sleep(0.3)
        done = first.bound()
        first.kill()
        server.thaw()
        until(lambda: len(bound(cluster, "burst")) == BURST, "all pods bound")
        until(lambda: len(seen) == BURST, "all pods seen bound")
    assert {len(nodes) for nodes in seen.values()} == {1}
    assert done < BURST
    assert done + second.bound() <= BURST
    check_cards(cluster)


def test_a_lease_that_goes_to_another_one_in_a_burst_loses_and_doubles_nothing(
    cluster: Cluster, replicas: tuple[Replica, Replica]
) -> None:
    """Extender and queue of the one before live on; pods keep coming all the time."""
    first, second = replicas
    created = 0
    ended = threading.Event()

    def create() -> None:
        nonlocal created
        while not ended.wait(0.1):
            cluster.api.post(PODS, of_batch(f"steady-{created:04d}", 4))
            created += 1

    with watch_nodes(cluster.api) as seen:
        creator = threading.Thread(target=create)
        creator.start()
        try:
            until(lambda: len(bound(cluster, "steady")) > 5, "some pods bound")
            first.kill_kube_scheduler()
            until(second.leads, "the second one leads")
            before = first.bound()
            until(lambda: second.bound() > 5, "the second one binds")
            assert first.bound() == before, "the first one binds no more"
        finally:
            ended.set()
            creator.join()
        until(lambda: len(bound(cluster, "steady")) == created, "all pods bound")
        until(lambda: len(seen) == created, "all pods seen bound")
    assert {len(nodes) for nodes in seen.values()} == {1}
    assert first.bound() + second.bound() == created
    check_cards(cluster)
