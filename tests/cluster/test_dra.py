"""Cards by ResourceClaims on a real kubelet: `gpupack node --serve dra`, its slices, claims and CDI files."""

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from allocator.names import CLAIM_LABEL, POD_GPU_UUID
from kubeapi.objects import Pod
from scheduler_plugin.binding.pod_claims import claim_of
from scheduler_plugin.cache.pods import read_pod
from scheduler_plugin.preemption.preemptor import REFUSAL_REST_S
from tests.cluster.harness import Cluster, workload
from tests.cluster.harness.admission import add_priority_class
from tests.cluster.harness.cluster import PODS
from tests.cluster.harness.controlplane import COMPUTE, RESOURCE
from tests.cluster.harness.dra import (
    API,
    CLAIMS,
    DRIVER,
    allocate,
    bind_by_hand,
    cdi_files,
    cdi_folder,
    claim,
    claim_pod,
    clear,
    make_template,
    on_card,
    shares,
    slices,
    start_with_claims,
)
from tests.cluster.harness.polling import holds_for, until

SMALL, LARGE = workload.uuid(0), workload.uuid(1)
ON_SMALL = on_card(SMALL)


@pytest.fixture(scope="module")
def started(make_cluster: Any) -> Cluster:
    cluster: Cluster = make_cluster(two_kinds(), start=start_with_claims)
    return cluster


def two_kinds() -> dict[str, Any]:
    """A small card and a large one, of two generations, on two NUMA nodes."""
    profile = workload.cards(16 << 10, 32 << 10)
    roots = []
    for device, name, generation in zip(
        profile["devices"], ("Small GPU", "Large GPU"), ("ampere", "hopper"), strict=True
    ):
        bus = f"0000:{device['index'] + 1}a:00.0"
        device |= {"name": name, "architecture": generation, "pci": {"bus_id": bus}}
        roots.append({"numa_node": device["index"], "devices": [bus]})
    return {**profile, "pcie_topology": {"root_complexes": roots}}


@pytest.fixture
def cluster(started: Cluster) -> Iterator[Cluster]:
    """Both cards are empty: kube-scheduler is offered the small one first."""
    until(lambda: slices(started)[0]["spec"]["devices"][0]["name"] == SMALL.lower(), "the small card first")
    yield started
    clear(started)


def test_a_pod_with_a_claim_gets_its_share_of_a_card(cluster: Cluster) -> None:
    cluster.api.post(CLAIMS, claim("c8", 8))
    cluster.run(claim_pod("p8", "c8"))

    assert shares(cluster, "c8") == [(SMALL.lower(), "8Gi")]
    found = cluster.environment("p8")
    assert found["GPUPACK_MEMORY_MIB"] == "8192"
    assert found["GPUPACK_CARDS"] == f"{SMALL}:8"
    assert found["NVIDIA_VISIBLE_DEVICES"] == SMALL
    cluster.wait_used([8, 0])
    until(lambda: cluster.allocation("p8"), "the pod's allocation")

    cluster.delete("p8")
    cluster.wait_used([0, 0])
    until(lambda: not cdi_files(cluster), "CDI file gone")


def test_the_daemon_and_the_kubelet_restart_under_a_prepared_claim(cluster: Cluster) -> None:
    cluster.api.post(CLAIMS, claim("c20", 20))
    cluster.run(claim_pod("p20", "c20"))
    cluster.wait_used([0, 20])
    file = cdi_files(cluster)

    cluster.daemon.kill()
    (cdi_folder(cluster) / file[0]).unlink()
    cluster.daemon.start()
    assert cdi_files(cluster) == file
    cluster.wait_used([0, 20])

    before = {one["metadata"]["uid"] for one in slices(cluster)}
    cluster.host.restart_kubelet()
    until(lambda: {one["metadata"]["uid"] for one in slices(cluster)} - before, "slices published again")
    cluster.wait_used([0, 20])
    assert cluster.phase("p20") == "Running"
    # The claim that the kubelet prepares now is another one, on what is left of the same card.
    cluster.api.post(CLAIMS, claim("c12", 12, on_card(LARGE)))
    cluster.run(claim_pod("p12", "c12"))
    cluster.wait_used([0, 32])

    cluster.delete("p20")
    cluster.wait_used([0, 12])


def test_a_slice_that_somebody_deletes_or_changes_is_published_again(cluster: Cluster) -> None:
    (before,) = slices(cluster)
    path = f"{API}/resourceslices"
    cluster.api.delete(f"{path}/{before['metadata']['name']}")
    until(
        lambda: {one["metadata"]["uid"] for one in slices(cluster)} - {before["metadata"]["uid"]}, "a slice"
    )

    def devices() -> list[Any]:
        """List the devices by name: the daemon offers those first that pods have begun to fill."""
        (one,) = slices(cluster)
        return sorted(one["spec"]["devices"], key=lambda device: device["name"])

    whole = sorted(before["spec"]["devices"], key=lambda device: device["name"])
    assert devices() == whole

    def change() -> Any:
        (one,) = slices(cluster)
        spec = {**one["spec"], "devices": one["spec"]["devices"][:1]}
        return cluster.api.put(f"{path}/{one['metadata']['name']}", {**one, "spec": spec})

    until(change, "a change that meets none of the daemon")
    until(lambda: devices() == whole, "all of its devices")


def test_a_claim_that_was_allocated_by_hand_waits_for_room_and_then_runs(cluster: Cluster) -> None:
    cluster.api.post(CLAIMS, claim("c10", 10, ON_SMALL))
    cluster.run(claim_pod("p10", "c10"))

    bind_by_hand(cluster, "late", 10, SMALL.lower())
    event = cluster.wait_event("late", "has 16 units, of which other pods have 10")
    assert "10 more are not there" in event
    assert cluster.phase("late") == "Pending"
    cluster.wait_used([10, 0])

    cluster.delete("p10")
    cluster.wait_running("late")
    cluster.wait_used([10, 0])


def test_cordoned_cards_take_no_claims(cluster: Cluster) -> None:
    cordon = {"metadata": {"annotations": {"gpupack.io/cordon": SMALL}}}
    cluster.api.merge(f"/api/v1/nodes/{cluster.node_name}", cordon)

    def taints() -> list[str]:
        devices = slices(cluster)[0]["spec"]["devices"]
        return [taint["key"] for one in devices for taint in one.get("taints", [])]

    try:
        until(lambda: taints() == ["gpupack.io/cordoned"], "the cordoned card's taint")
        cluster.api.post(CLAIMS, claim("c4", 4))
        cluster.run(claim_pod("p4", "c4"))
        assert shares(cluster, "c4") == [(LARGE.lower(), "4Gi")]
    finally:
        uncordon = {"metadata": {"annotations": {"gpupack.io/cordon": None}}}
        cluster.api.merge(f"/api/v1/nodes/{cluster.node_name}", uncordon)
    until(lambda: not taints(), "no taint")


def test_a_claim_that_names_no_amount_has_a_whole_card(cluster: Cluster) -> None:
    whole = claim("whole", 1)
    del whole["spec"]["devices"]["requests"][0]["exactly"]["capacity"]
    cluster.api.post(CLAIMS, whole)
    cluster.run(claim_pod("pw", "whole"))
    assert shares(cluster, "whole") == [(SMALL.lower(), "16Gi")]
    cluster.wait_used([16, 0])


def assigned(cluster: Cluster, name: str) -> dict[str, list[list[Any]]]:
    found: dict[str, list[list[Any]]] = json.loads(
        cluster.pod(name)["metadata"]["annotations"]["gpupack.io/assigned"]
    )
    return found


def test_an_unchanged_pod_runs_with_the_card_that_the_extender_chose(cluster: Cluster) -> None:
    cluster.run(workload.pod("ordinary", workload.container(gib=20)))
    assert assigned(cluster, "ordinary") == {"main": [[LARGE, 20]]}
    found = cluster.environment("ordinary")
    assert (found["GPUPACK_CARDS"], found["GPUPACK_MEMORY_MIB"]) == (f"{LARGE}:20", "20480")
    cluster.wait_used([0, 20])
    # kube-scheduler counts the share when it allocates a claim.
    cluster.api.post(CLAIMS, claim("c14", 14))
    cluster.run(claim_pod("p14", "c14"))
    assert shares(cluster, "c14") == [(SMALL.lower(), "14Gi")]
    cluster.wait_used([14, 20])

    cluster.delete("ordinary")
    cluster.wait_used([14, 0])
    until(lambda: cluster.api.names(CLAIMS) == ["c14"], "its claim gone")


def test_percent_init_containers_sidecars_and_two_cards_by_claims(cluster: Cluster) -> None:
    percent = workload.container(limits={"gpupack.io/gpu-percent": "50"})
    cluster.create(workload.pod("half", percent))
    two = {"gpupack.io/cards": "2", "gpupack.io/mixed-models": "true"}
    cluster.create(workload.pod("wide", workload.container(gib=8), annotations=two))
    first = workload.container("setup", 4, ["/bin/true"])
    helper = workload.container("helper", 1, sidecar=True)
    cluster.create(workload.pod("init", workload.container(gib=2), init=[first, helper]))
    for name in ("half", "wide", "init"):
        cluster.wait_running(name)
    for name in ("half", "wide"):
        (cards,) = assigned(cluster, name).values()
        assert cluster.environment(name)["GPUPACK_CARDS"] == ",".join(
            f"{uuid}:{units}" for uuid, units in cards
        )
    (card,) = {uuid for cards in assigned(cluster, "init").values() for uuid, _ in cards}
    for container in ("main", "helper"):
        assert cluster.environment("init", container)["GPUPACK_CARDS"] == f"{card}:4"
    total = sum(
        units for name in ("half", "wide") for cards in assigned(cluster, name).values() for _, units in cards
    )
    until(lambda: sum(cluster.state().used) == total + 4, "units of all")


def test_a_pod_whose_claim_did_not_land_is_refused_and_never_runs_bare(cluster: Cluster) -> None:
    cluster.create(workload.pod("bare", workload.container(gib=1), schedulerName="nobody"))
    cluster.bind("bare")
    cluster.wait_phase("bare", "Failed")
    status = cluster.pod("bare")["status"]
    assert status["reason"] == "OutOfgpupack.io/gpu-memory-gib", status
    assert not status.get("containerStatuses")


def leave_behind(cluster: Cluster, name: str, writes: int) -> str:
    """Write what an extender that was killed after so many writes leaves; returns the claim's name."""
    pod = msgspec.json.decode(json.dumps(cluster.pod(name)), type=Pod)
    record = read_pod(pod, RESOURCE)
    sizes = {SMALL: 16, LARGE: 32}
    left = claim_of(record, cluster.node_name, sizes, {"main": ((SMALL, 16),)}, 1024)
    made = cluster.api.post(CLAIMS, left.body)
    if writes > 1:
        allocation = {"allocationTimestamp": "2026-01-01T00:00:00Z", **left.allocation}
        reserved = [{"resource": "pods", "name": name, "uid": record.uid}]
        made["status"] = {"allocation": allocation, "reservedFor": reserved}
        cluster.api.put(f"{CLAIMS}/{left.name}/status", made)
    if writes > 2:
        status = {"resourceClaimName": left.name, "requestMappings": left.mappings}
        cluster.api.merge(f"{PODS}/{name}/status", {"status": {"extendedResourceClaimStatus": status}})
    return left.name


@pytest.mark.parametrize("writes", [1, 2, 3], ids=["created", "allocated", "named"])
def test_what_a_killed_extender_left_is_put_right_when_the_pod_is_bound(
    cluster: Cluster, writes: int
) -> None:
    gate = {"schedulingGates": [{"name": "test/gate"}]}
    cluster.create(workload.pod("again", workload.container(gib=20), **gate))
    name = leave_behind(cluster, "again", writes)
    cluster.api.merge(f"{PODS}/again", {"spec": {"schedulingGates": None}})
    cluster.wait_running("again")
    assert cluster.environment("again")["GPUPACK_CARDS"] == f"{LARGE}:20"
    assert cluster.api.names(CLAIMS) == [name]
    assert shares(cluster, name) == [(LARGE.lower(), "20Gi")]
    cluster.wait_used([0, 20])


def test_a_new_extender_takes_back_what_was_allocated_to_a_pod_that_is_not_bound(cluster: Cluster) -> None:
    gate = {"schedulingGates": [{"name": "test/gate"}]}
    cluster.create(workload.pod("left", workload.container(gib=16), **gate))
    name = leave_behind(cluster, "left", 3)
    cluster.extender.kill()
    cluster.extender.start()
    until(lambda: not cluster.api.get(f"{CLAIMS}/{name}").get("status", {}).get("allocation"), "deallocated")
    # kube-scheduler gives the card to a claim.
    cluster.api.post(CLAIMS, claim("c16", 16, ON_SMALL))
    cluster.run(claim_pod("p16", "c16"))


@pytest.mark.parametrize("has_slices", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_pods_that_come_while_the_daemon_is_away_wait_and_run(cluster: Cluster, has_slices: bool) -> None:
    """After half a minute the kubelet deletes the slices: a claim then waits for its allocation, too."""
    cluster.daemon.kill()
    if not has_slices:
        until(lambda: not slices(cluster), "slices gone")
    cluster.create(workload.pod("waits", workload.container(gib=20)))
    cluster.api.post(CLAIMS, claim("c8", 8))
    cluster.create(claim_pod("p8", "c8"))
    cluster.wait_bound(*(("waits", "p8") if has_slices else ("waits",)))
    if not has_slices:
        cluster.wait_event("p8", "FailedScheduling")
    cluster.wait_event("waits", "FailedPrepareDynamicResources")
    assert {cluster.phase(name) for name in ("waits", "p8")} == {"Pending"}
    cluster.daemon.start()
    for name in ("waits", "p8"):
        cluster.wait_running(name)
    until(lambda: sum(cluster.state().used) == 28, "units of both")


def test_claims_from_a_template_and_a_claim_that_containers_share(cluster: Cluster) -> None:
    template = make_template(cluster, "six", 6)
    both = [workload.container(name) for name in ("one", "two")]
    try:
        for name in ("a", "b"):
            cluster.create(claim_pod(name, "six", *both, from_template=True))
        for name in ("a", "b"):
            cluster.wait_running(name)
            (card,) = {cluster.environment(name, one)["GPUPACK_CARDS"] for one in ("one", "two")}
            assert card in {f"{SMALL}:6", f"{LARGE}:6"}
        until(lambda: sum(cluster.state().used) == 12, "units of both")
        for name in ("a", "b"):
            cluster.delete(name)
        until(lambda: not cluster.api.names(CLAIMS), "claims gone with their pods")
    finally:
        cluster.api.delete(template, grace_s=0)


def test_a_claim_that_pods_share_counts_once_until_the_last_one_has_ended(cluster: Cluster) -> None:
    cluster.api.post(CLAIMS, claim("shared", 10))
    for name in ("first", "second"):
        cluster.run(claim_pod(name, "shared"))
    cluster.wait_used([10, 0])
    cluster.delete("first")
    assert cluster.environment("second")["GPUPACK_CARDS"] == f"{SMALL}:10"
    until(
        lambda: cluster.state().holds == {cluster.pod("second")["metadata"]["uid"]}, "it is the other pod's"
    )
    cluster.wait_used([10, 0])
    path = f"{CLAIMS}/shared"
    until(lambda: cluster.api.get(path)["status"]["devices"][0]["data"]["pod"] == "second", "its status")
    cluster.delete("second")
    cluster.wait_used([0, 0])


def test_of_a_prioritized_list_the_first_that_there_is(cluster: Cluster) -> None:
    listed = claim("listed", 1)
    (request,) = listed["spec"]["devices"]["requests"]
    exactly = request.pop("exactly")
    request["firstAvailable"] = [
        {"name": name, **exactly, "capacity": {"requests": {"memory": amount}}}
        for name, amount in (("more", "40Gi"), ("less", "20Gi"))
    ]
    cluster.api.post(CLAIMS, listed)
    cluster.run(claim_pod("picks", "listed"))
    assert shares(cluster, "listed") == [(LARGE.lower(), "20Gi")]
    assert cluster.environment("picks")["GPUPACK_CARDS"] == f"{LARGE}:20"
    cluster.wait_used([0, 20])


ATTRIBUTE = f'device.attributes["{DRIVER}"]'
SELECTORS = {
    "model": (f'{ATTRIBUTE}.model.startsWith("Large")', LARGE),
    "uuid": (ON_SMALL, SMALL),
    "memory": (f'device.capacity["{DRIVER}"].memory.compareTo(quantity("20Gi")) >= 0', LARGE),
    "architecture": (f'{ATTRIBUTE}.architecture in ["hopper", "blackwell"]', LARGE),
    "driver": (f'{ATTRIBUTE}.driverVersion.compareTo(semver("570.0.0")) >= 0', SMALL),
    "numa": (f"{ATTRIBUTE}.numaNode == 1", LARGE),
    "health": (f'{ATTRIBUTE}.health == "healthy" && {ATTRIBUTE}.type == "gpu"', SMALL),
}


def test_selectors_on_what_a_card_is(cluster: Cluster) -> None:
    for name, (cel, _) in SELECTORS.items():
        cluster.api.post(CLAIMS, claim(name, 1, cel))
    cluster.api.post(CLAIMS, claim("old", 1, f'{ATTRIBUTE}.driverVersion.compareTo(semver("570.0.0")) < 0'))
    container = workload.container()
    container["resources"] = {"claims": [{"name": name} for name in SELECTORS]}
    claims = [{"name": name, "resourceClaimName": name} for name in SELECTORS]
    cluster.create(workload.pod("picky", container, resourceClaims=claims))
    cluster.create(claim_pod("none", "old"))
    cluster.wait_running("picky")
    found = {name: shares(cluster, name) for name in SELECTORS}
    assert found == {name: [(card.lower(), "1Gi")] for name, (_, card) in SELECTORS.items()}
    cluster.wait_used([3, 4])
    assert not cluster.node_of("none")


def test_claims_and_ordinary_pods_fill_one_card_together(cluster: Cluster) -> None:
    # Its claims look as if the extender had written them.
    template = make_template(cluster, "small-six", 6, ON_SMALL, labels={CLAIM_LABEL: "true"})
    try:
        cluster.create(claim_pod("made", "small-six", from_template=True))
        cluster.api.post(CLAIMS, claim("shared", 5, ON_SMALL))
        for name in ("first", "second"):
            cluster.create(claim_pod(name, "shared"))
        # Bound: their claims are allocated, and the node may not have prepared them yet.
        cluster.wait_bound("made", "first", "second")
        cluster.create(workload.pod("fills", workload.container(gib=5)))
        cluster.create(workload.pod("other", workload.container(gib=6)))
        for name in ("made", "first", "second", "fills", "other"):
            cluster.wait_running(name)
        assert assigned(cluster, "other") == {"main": [[LARGE, 6]]}
        cluster.wait_used([16, 6] if assigned(cluster, "fills") == {"main": [[SMALL, 5]]} else [11, 11])
    finally:
        cluster.api.delete(template, grace_s=0)


def test_shares_of_compute_by_claims_and_by_limits_fill_one_card_and_no_more(cluster: Cluster) -> None:
    def asks(name: str, compute: int) -> Any:
        container = workload.container(gib=2, limits={COMPUTE: compute})
        return workload.pod(name, container, annotations={POD_GPU_UUID: SMALL})

    for name, compute in (("most", 60), ("plain", None), ("second", 50)):
        cluster.api.post(CLAIMS, claim(name, 2, ON_SMALL, compute=compute))
    cluster.create(claim_pod("most", "most"))
    cluster.create(claim_pod("plain", "plain"))
    for name in ("most", "plain"):
        cluster.wait_running(name)
    until(lambda: cluster.state().compute == [60, 0], "the compute of the claims in the words")
    # Both schedulers count what claims have: kube-scheduler for a claim, the extender for a pod by limits.
    cluster.create(claim_pod("second", "second"))
    cluster.wait_event("second", "cannot allocate all claims")
    cluster.create(asks("too-much", 50))
    cluster.wait_event("too-much", "no card with 2 GiB and 50 percent of compute free: compute is short")
    cluster.run(asks("beside", 30))
    until(lambda: cluster.state().compute == [90, 0], "the compute of the limits besides")
    # And what pods have by limits counts for a claim.
    cluster.api.post(CLAIMS, claim("small", 2, ON_SMALL, compute=20))
    cluster.create(claim_pod("small", "small"))
    cluster.wait_event("small", "cannot allocate all claims")
    cluster.delete("small")
    cluster.delete("too-much")
    cluster.delete("most")
    cluster.wait_running("second")
    until(lambda: cluster.state().compute == [80, 0], "what was free is the next one's")


def test_pods_that_ask_by_limits_are_evicted_for_a_more_important_one_and_pods_with_claims_are_not(
    cluster: Cluster,
) -> None:
    """The pod with a claim has less priority than the one that goes."""
    for name, priority in (("low", 1), ("middle", 5), ("high", 10)):
        add_priority_class(cluster, name, priority)
    cluster.api.post(CLAIMS, claim("kept", 20, on_card(LARGE)))
    cluster.run(claim_pod("kept", "kept", priorityClassName="low"))
    cluster.run(workload.pod("goes", workload.container(gib=14), priorityClassName="middle"))
    assert assigned(cluster, "goes") == {"main": [[SMALL, 14]]}
    cluster.run(workload.pod("urgent", workload.container(gib=16), priorityClassName="high"))
    assert assigned(cluster, "urgent") == {"main": [[SMALL, 16]]}
    assert not cluster.exists("goes")
    cluster.create(workload.pod("in-vain", workload.container(gib=20), priorityClassName="high"))
    cluster.wait_event("in-vain", "FailedScheduling")
    # Twice as long as a refused pod rests before others are evicted for it.
    holds_for(
        lambda: "deletionTimestamp" not in cluster.pod("kept")["metadata"], "it runs on", 2 * REFUSAL_REST_S
    )


def test_a_container_may_ask_by_limits_and_use_a_claim(cluster: Cluster) -> None:
    cluster.api.post(CLAIMS, claim("c8", 8, ON_SMALL))
    cluster.run(claim_pod("both", "c8", workload.container(gib=20)))
    cluster.wait_used([8, 20])
    cluster.run(workload.pod("fits", workload.container(gib=12)))
    assert assigned(cluster, "fits") == {"main": [[LARGE, 12]]}
    cluster.wait_used([8, 32])


def test_a_claim_allocated_by_hand_counts_for_the_extender_though_no_pod_has_it(cluster: Cluster) -> None:
    cluster.api.post(CLAIMS, claim("by-hand", 20))
    allocate(cluster, "by-hand", LARGE.lower(), 20)
    cluster.run(workload.pod("fits", workload.container(gib=12)))
    cluster.create(workload.pod("does-not-fit", workload.container(gib=17)))
    cluster.wait_event("does-not-fit", "FailedScheduling")
    cluster.wait_used([12, 0] if assigned(cluster, "fits") == {"main": [[SMALL, 12]]} else [0, 12])
    assert not cluster.node_of("does-not-fit")
    cluster.api.delete(f"{CLAIMS}/by-hand", grace_s=0)
    cluster.wait_running("does-not-fit")
    assert assigned(cluster, "does-not-fit") == {"main": [[LARGE, 17]]}
