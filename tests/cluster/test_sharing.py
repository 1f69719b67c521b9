"""Pods share two cards of 8 GiB on a real node: every container gets the card that the node's words say.

The pods are the same on nodes of both kinds.
"""

import json
import subprocess

import pytest

from allocator.names import NODE_CARDS
from allocator.records import load_cards
from benchmarks.throughput import fake_node
from deviceplugin.allocation.allocation_service import NOT_OURS
from tests.cluster.harness import Cluster, dra, older, until
from tests.cluster.harness import workload as w
from tests.cluster.harness.admission import add_priority_class, told, wait_quota
from tests.cluster.harness.cluster import NODES, write_status
from tests.cluster.harness.controlplane import COMPUTE, PERCENT, RESOURCE, extender_entry
from tests.cluster.harness.daemons import GPUPACK, REPOSITORY, run_gpupack
from tests.cluster.harness.polling import holds_for
from tests.cluster.harness.rest import ApiError
from tests.cluster.harness.views import granted, grants, wait_agree
from tests.mps_world import make_program

NO_ROOM = "no card with 3 GiB free"


ONLY_DEVICE_PLUGIN = pytest.mark.parametrize("shared", ["device-plugin"], indirect=True)


@pytest.fixture(scope="module", params=dra.NODE_KINDS)
def shared(make_cluster, request) -> Cluster:
    def start(cluster: Cluster) -> None:
        extender = extender_entry(cluster.extender.url, preemptVerb="preempt")
        cluster.control.configure_scheduler(None, extenders=[extender])
        dra.start_as(request.param, cluster)

    return make_cluster(w.cards(8192, 8192), start=start)


@pytest.fixture
def cluster(shared) -> Cluster:
    shared.clear()
    return shared


@pytest.mark.telling
def test_container_names_exactly_the_card_of_the_words(cluster):
    uid = cluster.create(w.pod("one", w.container(gib=5)))
    cluster.wait_running("one")
    state = wait_agree(cluster)
    assert sorted(state.used) == [0, 5]
    (card,) = [card for card in state.cards if card.used]
    environment = cluster.environment("one")
    assert environment["NVIDIA_VISIBLE_DEVICES"] == card.uuid
    assert granted(environment) == {card.uuid: 5}
    assert [card.size for card in state.cards] == [8, 8]
    assert state.holds == {uid}
    until(lambda: cluster.allocation("one"), "allocation annotation")
    assert cluster.allocation("one")["uid"] == uid
    assert cluster.allocation("one")["containers"] == {"main": [[card.uuid, 5]]}


@pytest.mark.telling
def test_fifth_pod_of_3_gib_waits_with_our_reason_and_runs_when_one_leaves(cluster):
    cluster.run(*(w.pod(f"p{number}", w.container(gib=3)) for number in range(4)))
    state = wait_agree(cluster)
    assert state.used == [6, 6]
    cluster.create(w.pod("p4", w.container(gib=3)))
    cluster.wait_event("p4", f"FailedScheduling: 0/1 nodes are available: 1 {NO_ROOM}")
    cluster.wait_event(
        "p4",
        f"WaitingForCards: 0/1 nodes can take 3 GiB: 1 {NO_ROOM}. "
        f"Largest free card: 2 GiB on node {cluster.host.name}; all cards together: 4 GiB.",
    )
    holds_for(lambda: cluster.phase("p4") == "Pending", "p4 pending", 3)
    leaving = grants(cluster, "p2")
    cluster.delete("p2")
    cluster.wait_running("p4")
    (card,) = grants(cluster, "p4")
    told = f"CardsAssigned: Assigned on node {cluster.host.name}: card {int(card[-12:])} ({card[:12]}) 3 GiB"
    cluster.wait_event("p4", told)
    assert grants(cluster, "p4") == leaving
    assert wait_agree(cluster).used == [6, 6]


@pytest.mark.telling
@ONLY_DEVICE_PLUGIN
def test_a_pod_that_another_scheduler_bound_is_told_the_way_out(cluster):
    """The sum has room for it, no card has; all of the plugin's sentence reaches the pod and its Event."""
    cluster.run(*(w.pod(f"p{number}", w.container(gib=5)) for number in range(2)))
    refused_elsewhere(cluster, 6, f"no card has 6 units free; free units by card: [3, 3]; {NOT_OURS}")


def shares(name, percent, **spec):
    return w.pod(name, w.container(gib=2, limits={COMPUTE: percent} if percent else {}), **spec)


@pytest.mark.telling
@ONLY_DEVICE_PLUGIN
def test_shares_of_compute_are_kept_apart_also_while_the_daemon_is_of_an_older_version(cluster):
    """kube-scheduler leaves the resource to gpupack, which counts it by card."""
    cluster.run(*(shares(name, 60) for name in ("first", "second")))
    assert grants(cluster, "first").keys() != grants(cluster, "second").keys()
    wait_agree(cluster)
    assert cluster.state().compute == [60, 60]
    no_words = "no compute of its cards published by the node"
    cluster.api.post(NODES, fake_node(0, compute=False))
    try:
        known = 'gpupack_scheduler_nodes{words="readable"}'
        until(lambda: cluster.extender.metric(known) == 2, "the scheduler knows the older node")
        cluster.create(shares("third", 60))
        short = "no card with 2 GiB and 60 percent of compute free: compute is short"
        cluster.wait_event("third", f"0/2 nodes are available: 1 {short}, 1 {no_words}")
    finally:
        cluster.api.delete(f"{NODES}/node-00000")

    module = cluster.daemon.module
    cluster.daemon.stop()
    try:
        cluster.daemon.module = older.MODULE
        # While the Node has no sum of GPU memory kube-scheduler's own check refuses a pod.
        cluster.register_again(cluster.daemon.start)
        cluster.create(shares("fourth", 10))
        cluster.wait_event("fourth", f"0/1 nodes are available: 1 {no_words}")
        cluster.run(shares("plain", 0))
    finally:
        cluster.daemon.module = module
    cluster.register_again(cluster.daemon.kill, cluster.daemon.start)
    until(lambda: min(cluster.state().compute) == 60, "what runs is charged as before")
    assert cluster.phase("third") == "Pending"
    add_priority_class(cluster, "urgent", 20)
    cluster.create(shares("urgent", 60, priorityClassName="urgent"))
    cluster.delete("plain")
    cluster.wait_running("urgent")
    cluster.wait_running("fourth")
    until(lambda: cluster.exists("first") != cluster.exists("second"), "one of them evicted")
    assert sorted(wait_agree(cluster).compute) == [60, 70]
    cluster.delete("urgent")
    cluster.wait_running("third")


@pytest.mark.telling
@ONLY_DEVICE_PLUGIN
def test_quota_and_limit_range_count_shares_of_compute(cluster):
    for name in ("first", "second"):
        cluster.create(shares(name, 60))
    limit = {"type": "Container", "max": {COMPUTE: "70"}}
    for kind, spec in (
        ("resourcequotas", {"hard": {f"requests.{COMPUTE}": "150"}}),
        ("limitranges", {"limits": [limit]}),
    ):
        path = f"/api/v1/namespaces/default/{kind}"
        cluster.api.post(path, {"metadata": {"name": "compute"}, "spec": spec})
    try:
        wait_quota(cluster, shares("third", 40))
        assert f"used: requests.{COMPUTE}=120, limited: requests.{COMPUTE}=150" in told(
            cluster, shares("third", 40)
        )
        until(lambda: f"maximum {COMPUTE} usage per Container is 70" in told(cluster, shares("p", 71)), "max")
        assert f"requested: requests.{COMPUTE}=70" in told(cluster, shares("p", 0)), "max is the default, too"
    finally:
        for kind in ("resourcequotas", "limitranges"):
            cluster.api.delete(f"/api/v1/namespaces/default/{kind}/compute")


def refused_elsewhere(cluster: Cluster, gib: int, sentence: str) -> None:
    """A pod that another scheduler binds is refused with this sentence, in its status and an Event."""
    cluster.create(w.pod("astray", w.container(gib=gib), schedulerName="other"))
    cluster.bind("astray")
    cluster.wait_phase("astray", "Failed")
    status = cluster.pod("astray")["status"]
    assert status["reason"] == "UnexpectedAdmissionError"
    assert status["message"].endswith(f"desc = {sentence}, which is unexpected")
    assert sentence in cluster.wait_event("astray", "UnexpectedAdmissionError")


@pytest.mark.telling
@ONLY_DEVICE_PLUGIN
def test_who_takes_exactly_what_is_left_has_it_and_not_what_a_share_took(cluster):
    """The kubelet offers units of which percent were given out; main gets its init container's, unasked."""
    uids = {cluster.create(w.pod("first", w.container(gib=8)))}
    cluster.wait_running("first")
    init = w.container("prepare", 8, ("/bin/true",))
    uids.add(cluster.create(w.pod("last", w.container(gib=8), init=[init])))
    cluster.wait_running("last")
    state = wait_agree(cluster)
    assert (state.used, state.holds) == ([8, 8], uids)
    (left,) = grants(cluster, "last")
    cluster.delete("last")
    cluster.wait_used([0 if card.uuid == left else 8 for card in state.cards])
    cluster.run(w.pod("half", w.container(limits={PERCENT: 50})))
    free = [4 if card.uuid == left else 0 for card in wait_agree(cluster).cards]
    refused_elsewhere(cluster, 8, f"no card has 8 units free; free units by card: {free}; {NOT_OURS}")
    assert grants(cluster, "half") == {left: 4}


def test_finished_pod_gives_its_units_back(cluster):
    cluster.create(w.pod("brief", w.container(gib=8, command=("/bin/true",))))
    cluster.wait_phase("brief", "Succeeded")
    cluster.wait_used([0, 0])


@pytest.mark.telling
def test_init_container_and_main_share_one_card_and_cost_the_larger(cluster):
    init = w.container("prepare", 4, w.SHOW_ENVIRONMENT)
    uid = cluster.create(w.pod("initial", w.container(gib=2), init=[init]))
    cluster.wait_running("initial")
    state = cluster.wait_used([4, 0])
    (card,) = [card.uuid for card in state.cards if card.used]

    def prepared() -> dict[str, int]:
        lines = cluster.output("initial", "prepare").splitlines()
        return granted(dict(line.split("=", 1) for line in lines))

    # The runtime may write a container's output after it has said that the container ended.
    assert until(prepared, "what the init container wrote") == {card: 4}
    # By claims all containers of such a pod have its effective units.
    assert granted(cluster.environment("initial")) == {card: 4 if cluster.serves_claims else 2}
    until(lambda: uid in cluster.state().holds, "held")
    # What the init container held is not given to others: 4 units fit beside it, 5 do not.
    cluster.run(w.pod("beside", w.container(gib=8)), w.pod("second", w.container(gib=4)))
    assert grants(cluster, "second") == {card: 4}
    cluster.wait_used([8, 8])
    cluster.delete("initial")
    cluster.wait_used([4, 8])


def test_sidecar_keeps_its_own_units(cluster):
    sidecar = w.container("proxy", 3, sidecar=True)
    cluster.run(w.pod("assisted", w.container(gib=6), init=[sidecar]))
    proxy, main = (granted(cluster.environment("assisted", name)) for name in ("proxy", "main"))
    assert sum(proxy.values()) == 3
    assert sum(main.values()) == 6
    assert set(proxy) != set(main)
    assert wait_agree(cluster).used_by_uuid == {**proxy, **main}


@pytest.mark.telling
def test_sidecar_beside_an_init_container(cluster):
    # The init container runs while the sidecar does: 2 + 4 beats the 2 + 3 of later.
    sidecar = w.container("proxy", 2, sidecar=True)
    init = w.container("prepare", 4, w.SHOW_ENVIRONMENT)
    cluster.run(w.pod("mixed", w.container(gib=3), init=[sidecar, init]))
    state = cluster.wait_used([6, 0])
    (card,) = [card.uuid for card in state.cards if card.used]
    proxy, main = (6, 6) if cluster.serves_claims else (2, 3)
    assert granted(cluster.environment("mixed", "proxy")) == {card: proxy}
    assert granted(cluster.environment("mixed")) == {card: main}


def test_two_containers_each_get_their_card(cluster):
    cluster.run(w.pod("pair", w.container("first", 5), w.container("second", 6)))
    first, second = (granted(cluster.environment("pair", name)) for name in ("first", "second"))
    assert list(first.values()) == [5]
    assert list(second.values()) == [6]
    assert set(first) != set(second)
    assert wait_agree(cluster).used_by_uuid == {**first, **second}
    until(lambda: cluster.allocation("pair"), "allocation annotation")
    containers = cluster.allocation("pair")["containers"]
    assert {name: dict(map(tuple, cards)) for name, cards in containers.items()} == {
        "first": first,
        "second": second,
    }


def test_two_cards_for_one_pod_wait_until_both_have_room(cluster):
    cluster.run(w.pod("filler", w.container(gib=6)))
    cluster.create(w.pod("wide", w.container(gib=6), annotations={"gpupack.io/cards": "2"}))
    cluster.wait_event("wide", "FailedScheduling")
    cluster.delete("filler")
    cluster.wait_running("wide")
    state = wait_agree(cluster)
    assert state.used == [3, 3]
    assert granted(cluster.environment("wide")) == {card.uuid: 3 for card in state.cards}


def test_a_pod_of_high_priority_has_the_card_of_one_that_is_evicted(cluster):
    """Both cards have 2 GiB free: of their pods the cheaper one goes, and leaves a whole card."""
    for name, priority in (("cheap", 1), ("dear", 5), ("dearest", 10)):
        add_priority_class(cluster, name, priority)
    for name in ("dear", "cheap"):
        cluster.run(w.pod(name, w.container(gib=6), priorityClassName=name))
    card = grants(cluster, "cheap")
    cluster.create(w.pod("urgent", w.container(gib=8), priorityClassName="dearest"))
    cluster.wait_running("urgent")
    assert set(grants(cluster, "urgent")) == set(card)
    assert not cluster.exists("cheap")
    assert cluster.phase("dear") == "Running"
    assert wait_agree(cluster).used_by_uuid == {**grants(cluster, "dear"), **dict.fromkeys(card, 8)}


def test_a_card_that_is_cordoned_gets_no_pod_until_it_is_given_back(cluster):
    def command(name):
        return run_gpupack(cluster.control.admin_config, name, cluster.host.name, "0").stdout

    node = cluster.host.name
    first, second = (card.uuid for card in cluster.state().cards)
    assert command("cordon") == f"node/{node} card 0 {first} cordoned\n"
    cluster.wait_used([8, 0])
    known = 'gpupack_scheduler_gpu_memory_bytes{kind="used"}'
    until(lambda: cluster.extender.metric(known) == 8 << 30, "the scheduler knows")
    for name in ("one", "two"):
        cluster.create(w.pod(name, w.container(gib=5)))
    (placed,) = until(lambda: [name for name in ("one", "two") if cluster.node_of(name)], "a pod")
    cluster.wait_running(placed)
    assert set(grants(cluster, placed)) == {second}
    (waits,) = {"one", "two"} - {placed}
    cluster.wait_event(waits, "FailedScheduling")
    assert command("uncordon") == f"node/{node} card 0 {first} uncordoned\n"
    cluster.wait_running(waits)
    assert set(grants(cluster, waits)) == {first}


@pytest.mark.telling
@ONLY_DEVICE_PLUGIN
def test_a_runtime_that_knows_cdi_is_given_the_cards_of_our_specification(cluster):
    """No toolkit here: containerd finds the card in the file that the daemon writes."""
    folder = cluster.home / "run" / "cdi"
    folder.mkdir()
    flags = cluster.daemon.flags
    try:
        for number, strategies in enumerate(("cdi-annotations", "envvar,cdi-annotations,cdi-cri")):
            cluster.daemon.stop()
            cluster.daemon.flags = [f"--device-list-strategy={strategies}", f"--cdi-dirs={folder}"]
            cluster.daemon.start()
            cluster.run(w.pod(f"p{number}", w.container(gib=5)))
            environment = cluster.environment(f"p{number}")
            uuid = environment["GPUPACK_CARDS"].partition(":")[0]
            index = [card.uuid for card in cluster.state().cards].index(uuid)
            assert environment[f"GPUPACK_CDI_CARD_{index}"] == uuid
            assert len([name for name in environment if name.startswith("GPUPACK_CDI")]) == 1
            assert environment["NVIDIA_VISIBLE_DEVICES"] == (uuid if "envvar" in strategies else "void")
    finally:
        cluster.daemon.kill()
        cluster.daemon.flags = flags
        cluster.daemon.start()


def test_the_mounts_of_mps_of_the_driver_and_of_cards_names_arrive_on_a_real_runtime(cluster):
    """The control daemon is a stand-in; what the runtime makes of the grant is not."""
    driver = cluster.home / "driver"
    (driver / "lib64").mkdir(parents=True)
    root = cluster.home / "mps"
    program = make_program(cluster.home)
    command = [*GPUPACK, "mps", f"--root={root}", f"--control-program={program}", *cluster.daemon.gpus]
    flags = cluster.daemon.flags
    cluster.daemon.stop()
    with subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.DEVNULL) as mps:
        try:
            cluster.daemon.flags = [*flags, "--sharing=mps", f"--mps-root={root}", "--memory-limits=off"]
            cluster.daemon.flags += ["--device-list-strategy=volume-mounts", f"--driver-dir={driver}"]
            cluster.daemon.start()
            looks = (
                "touch /dev/shm/from-the-container; ls /var/run/nvidia-container-devices /usr/local/nvidia"
            )
            looks += " /run/gpupack/mps; exec sleep 1000"
            until(lambda: {card.held for card in cards_of(cluster)} == {"mps"}, "MPS on both cards")
            cluster.run(w.pod("client", w.container(gib=5, command=["sh", "-c", looks])))
            assert cluster.environment("client")["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=5G"
            uuid = cluster.environment("client")["GPUPACK_CARDS"].partition(":")[0]
            expected = {"control", "lib64", uuid}
            until(lambda: expected <= set(cluster.output("client", "main").split()), f"the names {expected}")
            assert cluster.environment("client")["NVIDIA_VISIBLE_DEVICES"] == "void"
            assert (root / "shm" / "from-the-container").exists()
        finally:
            mps.terminate()
            cluster.daemon.kill()
            cluster.daemon.flags = flags
            cluster.daemon.start()


def cards_of(cluster):
    return load_cards(cluster.node_object()["metadata"]["annotations"][NODE_CARDS])


@pytest.mark.telling
def test_whole_cards_and_shares_beside_gib_are_exact_under_a_quota(cluster):
    quotas = "/api/v1/namespaces/default/resourcequotas"
    hard = {f"requests.{PERCENT}": "150"}

    def percent_pod(name, percent):
        return w.pod(name, w.container(limits={PERCENT: percent}))

    def create(name, percent):
        cluster.create(percent_pod(name, percent))

    cluster.create(w.pod("memory", w.container(gib=4)))
    cluster.api.post(quotas, {"metadata": {"name": "cards"}, "spec": {"hard": hard}})
    try:
        until(lambda: cluster.api.get(f"{quotas}/cards").get("status", {}).get("hard") == hard, "quota")
        wait_quota(cluster, percent_pod("large", 200))
        cluster.wait_running("memory")
        (card,) = grants(cluster, "memory")
        create("whole", 100)
        cluster.wait_running("whole")
        (other,) = {card.uuid for card in cluster.state().cards} - {card}
        assert grants(cluster, "whole") == {other: 8}
        create("half", 50)
        cluster.wait_running("half")
        assert grants(cluster, "half") == {card: 4}
        assert wait_agree(cluster).used == [8, 8]
        with pytest.raises(ApiError, match="exceeded quota"):
            create("denied", 1)
    finally:
        cluster.api.delete(f"{quotas}/cards")
    until(lambda: told(cluster, percent_pod("next", 50)) == "", "no quota")
    create("next", 50)
    cluster.wait_event("next", "no card with 50 percent free")
    cluster.daemon.kill()
    cluster.daemon.start()
    assert wait_agree(cluster).used == [8, 8]
    cluster.delete("memory")
    cluster.wait_running("next")
    assert grants(cluster, "next") == {card: 4}
    assert wait_agree(cluster).used == [8, 8]


@pytest.mark.nightly
def test_after_a_reboot_the_kubelet_may_come_long_before_the_daemon(cluster):
    """By claims a pod that was bound before waits and runs; with the device plugin it fails for good."""
    cluster.host.running["kubelet"].freeze()
    cluster.create(w.pod("early", w.container(gib=5)))
    cluster.wait_bound("early")
    cluster.daemon.kill()
    cluster.host.running["kubelet"].thaw()
    cluster.host.restart_kubelet()
    if cluster.serves_claims:
        cluster.wait_event("early", "FailedPrepareDynamicResources")
        assert cluster.phase("early") == "Pending"
        cluster.daemon.start()
        cluster.wait_running("early")
        until(lambda: dra.slices(cluster), "slices published again")
        assert wait_agree(cluster).used_by_uuid == grants(cluster, "early")
    else:
        cluster.wait_phase("early", "Failed")
        cluster.daemon.start()
        cluster.run(w.pod("later", w.container(gib=5)))
        status = cluster.pod("early")["status"]
        assert (status["phase"], status.get("reason")) == ("Failed", "UnexpectedAdmissionError"), status


def test_copied_allocation_and_assigned_annotations_mean_nothing(cluster):
    cluster.run(w.pod("original", w.container(gib=6)))
    until(lambda: cluster.allocation("original"), "allocation annotation")
    copied = {
        key: value
        for key, value in cluster.pod("original")["metadata"]["annotations"].items()
        if key in ("gpupack.io/allocation", "gpupack.io/assigned")
    }
    assert len(copied) == 2
    cluster.run(w.pod("copy", w.container(gib=6), annotations=copied))
    state = wait_agree(cluster)
    assert state.used == [6, 6]
    assert set(grants(cluster, "copy")) != set(grants(cluster, "original"))
    uid = cluster.pod("copy")["metadata"]["uid"]
    until(lambda: cluster.allocation("copy")["uid"] == uid, "own allocation annotation")
    assert json.loads(cluster.pod("copy")["metadata"]["annotations"]["gpupack.io/assigned"]) == {
        "main": [[uuid, units] for uuid, units in grants(cluster, "copy").items()]
    }


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        ("cards", "zwei"),
        ("cards", "0"),
        ("cards", "-1"),
        ("cards", "1000"),
        ("cards", "3"),
        ("node-policy", "fullest"),
        ("card-policy", "fullest"),
    ],
)
def test_rubbish_annotation_is_told_in_the_event_and_harms_nobody(cluster, annotation, value):
    cluster.create(w.pod("rubbish", w.container(gib=4), annotations={f"gpupack.io/{annotation}": value}))
    cluster.run(w.pod("neighbour", w.container(gib=4)))
    event = cluster.wait_event("rubbish", "FailedScheduling")
    assert annotation in event or "divide" in event, event
    assert value in event, event
    assert cluster.phase("rubbish") == "Pending"


def test_corrupt_words_of_a_node_exclude_that_node_only(cluster):
    words = {"gpupack.io/packed-layout": "1", "gpupack.io/packed-size-0": "99", RESOURCE: "99"}
    resources = {"cpu": "8", "memory": "8Gi", "pods": "110", **words}
    cluster.api.post(NODES, {"metadata": {"name": "corrupt"}, "spec": {}})
    try:
        cluster.api.merge(f"{NODES}/corrupt", {"spec": {"taints": None}})
        write_status(cluster.api, "corrupt", resources)
        names = [f"p{number}" for number in range(3)]
        for name in names:
            cluster.create(w.pod(name, w.container(gib=5)))
        until(lambda: [cluster.phase(name) for name in names].count("Running") == 2, "two run")
        (waiting,) = [name for name in names if cluster.phase(name) == "Pending"]
        assert not cluster.node_of(waiting)
        cluster.wait_event(waiting, "no card with 5 GiB free")
    finally:
        cluster.api.delete(f"{NODES}/corrupt")


def test_a_request_beyond_the_nodes_sum_waits_with_numbers(cluster):
    """kube-scheduler rules the node out by its sum; only where nodes serve claims it asks the extender."""
    cluster.create(w.pod("huge", w.container(gib=99)))
    ruled_out = "no healthy card of 99 GiB" if cluster.serves_claims else f"Insufficient {RESOURCE}"
    cluster.wait_event("huge", f"FailedScheduling: 0/1 nodes are available: 1 {ruled_out}")
    cluster.wait_event("huge", "WaitingForCards: 0/1 nodes can take 99 GiB: 1 no healthy card of 99 GiB")
