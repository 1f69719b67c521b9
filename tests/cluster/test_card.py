"""gpupack as installed, and pods that use a card: `make test-hardware CLUSTER=1` on the machine's own card.

Everywhere else the card is simulated, and a stand-in is the driver's library. All else is the same.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from benchmarks.machine import cpu_s, resident_mib
from gpupack.verify import verifier as v
from tests.cluster.harness import Cluster, dra, until
from tests.cluster.harness import workload as w
from tests.cluster.harness.card import IMAGE, XID, MachineCard, PodProgram, SimulatedCard, program_pod
from tests.cluster.harness.daemons import REPOSITORY
from tests.cluster.harness.installed import SCHEDULER, start_as_installed
from tests.cluster.harness.manifests import COMPONENTS, MANIFESTS, apply_all, build
from tests.cluster.harness.rest import Json
from tests.cluster.harness.views import grants, memory, wait_agree, words_never_below
from tests.hardware.programs import Report, mps_command

pytestmark = pytest.mark.timeout(900)

CONTEXT_MIB = 1024
"""A context takes less."""

OVER_USE_MIB = 3 * 1024

Run = Callable[[Json], PodProgram]


@pytest.fixture(scope="module")
def card(tmp_path_factory):
    if os.environ.get("GPUPACK_HARDWARE") == "1":
        return MachineCard()
    return SimulatedCard(tmp_path_factory.mktemp("card"))


@pytest.fixture(scope="module")
def installed(make_cluster, card) -> Cluster:
    def start(cluster: Cluster) -> None:
        card.prepare(cluster)
        cluster.daemon.flags += ["--evict-over-use-after-s=1"]
        cluster.extender.flags = ["--shortlist=1"]
        start_as_installed(cluster, COMPONENTS / "evict-over-use")
        card.load_image(cluster)

    # The API server reads logs at the kubelet, which it looks for at the node's name.
    return make_cluster(card.profile, name="localhost", start=start)


@pytest.fixture
def cluster(installed) -> Cluster:
    installed.clear()
    return installed


@pytest.fixture
def run(cluster, card) -> Iterator[Run]:
    """Create a pod and return its program, which has a context."""
    programs: list[PodProgram] = []

    def start(pod: Json) -> PodProgram:
        name = pod["metadata"]["name"]
        cluster.create(pod)
        cluster.wait_running(name)
        programs.append(PodProgram(card, cluster, name))
        programs[-1].start()
        return programs[-1]

    yield start
    for program in programs:
        program.close()


def restart_daemon(cluster: Cluster, card: MachineCard, *options: str) -> None:
    """Let the node daemon run with these options beside those that the card needs."""
    cluster.daemon.stop()
    cluster.daemon.flags = [*card.flags(cluster), *options]
    cluster.register_again(cluster.daemon.start)
    card.remember()


def command(*arguments: str) -> str:
    line = [sys.executable, "-m", "gpupack", *arguments]
    done = subprocess.run(line, cwd=REPOSITORY, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def size_gib(cluster: Cluster) -> int:
    (one,) = cluster.state().cards
    return one.size


def uses(cluster: Cluster, name: str, mib: int) -> None:
    """Wait until a pod's use is told, which is what its program has, and its context."""
    until(
        lambda: mib <= memory(cluster)[name, "main"]["used_mib"] < mib + CONTEXT_MIB, f"{name} uses {mib} MiB"
    )


@pytest.mark.telling
def test_pods_with_different_shares_use_one_card_and_are_told_apart(cluster, card, run, report: Report):
    began_s, used_s = time.monotonic(), cpu_s(cluster.daemon.pid)
    small, large = size_gib(cluster) // 6, size_gib(cluster) // 3
    programs = {
        name: run(program_pod(card, cluster, name, gib)) for name, gib in (("a", small), ("b", large))
    }
    for name, gib in (("a", small), ("b", large)):
        assert programs[name].ask("uuid")["uuid"] == card.uuid
        assert grants(cluster, name) == {card.uuid: gib}
        assert programs[name].fill(gib << 9) == gib << 9
    uses(cluster, "a", small << 9)
    uses(cluster, "b", large << 9)
    assert wait_agree(cluster).used == [small + large]

    # What does not fit waits, with the numbers, and starts when one ends.
    too_much, free = size_gib(cluster) - large, size_gib(cluster) - small - large
    cluster.create(program_pod(card, cluster, "c", too_much))
    cluster.wait_event("c", "1 Insufficient gpupack.io/gpu-memory-gib")
    said = command("why", "c", f"--kubeconfig={cluster.control.admin_config}")
    assert f"{free} GiB" in said, said
    uid = cluster.pod("a")["metadata"]["uid"]
    ended_s = time.monotonic()
    cluster.delete("a")
    until(lambda: uid not in cluster.state().holds, "the units of the pod that ended are free")
    report(
        "from a pod's deletion until its Node shows the memory as free, s",
        round(time.monotonic() - ended_s, 2),
    )
    cluster.wait_running("c")
    report("from that deletion until the pod that waited runs, s", round(time.monotonic() - ended_s, 2))
    assert wait_agree(cluster).used == [large + too_much]
    uses(cluster, "b", large << 9)

    request = "gpupack_node_kubelet_request_duration_seconds"
    (took_s,) = cluster.daemon.samples(f"{request}_sum", method="Allocate")
    (count,) = cluster.daemon.samples(f"{request}_count", method="Allocate")
    report("Allocate in the daemon, ms", round(took_s / count * 1000, 2))
    share = (cpu_s(cluster.daemon.pid) - used_s) / (time.monotonic() - began_s)
    report("processor time of the node daemon meanwhile, % of one", round(share * 100, 1))
    report("resident memory of the node daemon, MiB", round(resident_mib(cluster.daemon.pid)))


@pytest.mark.nightly
def test_over_use_is_told_and_evicted(cluster, card, run):
    run(program_pod(card, cluster, "modest", 2)).fill(1024)
    greedy = run(program_pod(card, cluster, "greedy", 2))
    uid = cluster.pod("greedy")["metadata"]["uid"]
    greedy.fill(2 * 1024 + OVER_USE_MIB)
    cluster.wait_gone("greedy")

    def is_told() -> bool:
        told = {event.partition(":")[0] for event in cluster.events_of(uid)}
        return told >= {"GPUMemoryOverUse", "GPUMemoryEvicted"}

    until(is_told, "over-use and eviction told")
    cluster.wait_used([2])
    uses(cluster, "modest", 1024)


@pytest.mark.nightly
def test_a_mistake_of_a_pods_program_leaves_the_card_healthy(cluster, card, run):
    other = run(program_pod(card, cluster, "other", 2))
    faulty = run(program_pod(card, cluster, "faulty", 2))
    assert "ILLEGAL_ADDRESS" in faulty.ask("fault")["error"]
    counted = "gpupack_card_xid_errors_total"
    until(lambda: sum(cluster.daemon.samples(counted, uuid=card.uuid, code=str(XID))) >= 1, "the XID counts")
    assert cluster.daemon.samples("gpupack_card_healthy", uuid=card.uuid) == [1]
    assert other.fill(1024) == 1024
    cluster.delete("faulty")
    assert run(program_pod(card, cluster, "next", size_gib(cluster) - 2)).fill(1024) == 1024


@pytest.mark.telling
def test_a_killed_daemon_and_a_restarted_kubelet_lose_nothing_under_load(cluster, card, run):
    shares = {"a": 4, "b": 6}
    programs = {name: run(program_pod(card, cluster, name, gib)) for name, gib in shares.items()}
    for program in programs.values():
        program.fill(1024)
    wait_agree(cluster)
    with words_never_below(cluster, [10]):
        cluster.daemon.kill()
        until(lambda: cluster.allocatable() == 0, "the kubelet noticed")
        for number in range(3):
            cluster.create(w.pod(f"load-{number}", w.container(gib=1)))
        assert all(program.fill(1024) == 1024 for program in programs.values())
        cluster.daemon.start()
        card.remember()
        for number in range(3):
            cluster.wait_running(f"load-{number}")
        cluster.register_again(cluster.host.restart_kubelet)
        assert all(program.fill(1024) == 1024 for program in programs.values())
        cluster.run(w.pod("after", w.container(gib=1)))
    for name, gib in shares.items():
        uses(cluster, name, 3 * 1024)
        assert grants(cluster, name) == {card.uuid: gib}
    assert wait_agree(cluster).used == [14]


@pytest.mark.nightly
def test_mps_limits_the_memory_and_the_multiprocessors_of_pods(cluster, card, run):
    options = card.mps_options(cluster)
    if options is None:
        pytest.skip("there is no program of MPS here")
    root = cluster.home / "mps"
    with subprocess.Popen(mps_command(root, *options), cwd=REPOSITORY, stderr=subprocess.DEVNULL) as mps:
        try:
            restart_daemon(cluster, card, "--sharing=mps", f"--mps-root={root}", "--mps-threads")
            held = "gpupack_card_memory_held"
            until(lambda: cluster.daemon.samples(held, uuid=card.uuid, by="mps") == [1], "MPS answers")
            small = run(program_pod(card, cluster, "small", 4))
            large = run(program_pod(card, cluster, "large", size_gib(cluster) // 2))
            assert 2 * 1024 <= small.fill(8 * 1024) <= 4 * 1024
            assert large.fill(6 * 1024) == 6 * 1024
            assert small.ask("multiprocessors")["count"] < large.ask("multiprocessors")["count"]
            cluster.clear()
        finally:
            mps.terminate()


def test_the_node_proves_its_card(cluster):
    """`gpupack node --check --prove` beside the daemon, on an idle card."""
    folder = str(cluster.host.device_plugin_dir)
    said = command(
        "node", "--check", "--prove", *cluster.daemon.gpus, "--device-plugin-dir", folder, "-o", "json"
    )
    results = {proof["what"]: proof["result"] for proof in json.loads(said)["proofs"]}
    assert results["an idle card is empty"] == "proven"
    assert "refuted" not in results.values()


@pytest.mark.nightly
def test_the_cluster_verifies_itself(cluster):
    """The daemon is no pod here, so its metrics, and what holds memory, are left out."""
    report = json.loads(
        command("verify", f"--kubeconfig={cluster.control.admin_config}", f"--image={IMAGE}", "-o", "json")
    )
    results = {proof["what"]: proof["result"] for proof in report["proofs"]}
    shown = (v.REFUSED, v.SHARED, v.WAITS, v.EVENT, v.FREED, v.REMOVED)
    assert [results[what] for what in shown] == ["proven"] * len(shown), report


def test_claims_share_the_same_card(cluster, card, run):
    dra.skip_without_shares()
    apply_all(cluster.api, build(MANIFESTS / "base", COMPONENTS / "dra"))
    cluster.serves_claims = True
    cluster.daemon.stop()
    cluster.daemon.flags = [*card.flags(cluster), "--serve=dra"]
    cluster.daemon.start()
    until(lambda: dra.slices(cluster), "slices")
    shares = {"claimed-a": 3, "claimed-b": 5}
    programs = {}
    for name, gib in shares.items():
        cluster.api.post(dra.CLAIMS, dra.claim(name, gib))
        pod = program_pod(card, cluster, name, resourceClaims=[{"name": "card", "resourceClaimName": name}])
        pod["spec"]["containers"][0]["resources"] = {"claims": [{"name": "card"}]}
        pod["spec"]["schedulerName"] = SCHEDULER
        programs[name] = run(pod)
        assert programs[name].ask("uuid")["uuid"] == card.uuid
        programs[name].fill(1024)
    for name in shares:
        uses(cluster, name, 1024)
    cluster.wait_used([8])
    dra.clear(cluster)
