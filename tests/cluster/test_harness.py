"""The harness itself: two clusters at once, and nothing of them left when they are gone, however they end."""

import gc
import signal
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.harness import Cluster, binaries, cgroups, until, versions
from tests.cluster.harness import workload as w
from tests.cluster.harness.controlplane import free_ports
from tests.cluster.harness.node import SYSCTLS

HOLD = """
import sys
from tests.cluster.harness import Cluster, workload as w
cluster = Cluster()
cluster.start()
cluster.create(w.pod("p", w.container()))
cluster.wait_running("p")
print(cluster.home, flush=True)
sys.stdin.read()
"""


def traces(home: Path) -> dict[str, list[str]]:
    """Everything on this machine that belongs to the cluster in `home`: processes, mounts, cgroups, files."""
    processes = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            told = (
                (folder / "cmdline").read_bytes()
                + (folder / "cgroup").read_bytes()
                + str((folder / "cwd").readlink()).encode()
            )
        except OSError:
            continue
        if home.name.encode() in told:
            processes.append(f"{folder.name} {(folder / 'comm').read_text().strip()}")
    mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if home.name in line]
    groups = [str(path) for path in cgroups.existing(home.name)]
    files = [str(home)] if home.exists() else []
    return {"processes": processes, "mounts": mounts, "cgroups": groups, "files": files}


def sysctls() -> dict[str, str]:
    return {name: Path("/proc/sys", name).read_text() for name in SYSCTLS if Path("/proc/sys", name).exists()}


def test_two_clusters_at_once_leave_nothing():
    machine_before = sysctls(), Path("/proc/self/mountinfo").read_text()
    with Cluster() as one, Cluster() as other:
        for cluster in (one, other):
            cluster.create(w.pod("p", w.container()))
        uids = [cluster.wait_running("p")["metadata"]["uid"] for cluster in (one, other)]
        assert uids[0] != uids[1]
        seen = traces(one.home)
        assert len(seen["processes"]) > 6, seen
        assert seen["cgroups"]
        homes = one.home, other.home
    for home in homes:
        assert traces(home) == {"processes": [], "mounts": [], "cgroups": [], "files": []}
    assert (sysctls(), Path("/proc/self/mountinfo").read_text()) == machine_before


def test_killed_test_process_takes_its_cluster_along():
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path.cwd()
    )
    with holder:
        assert holder.stdout is not None
        home = Path(holder.stdout.readline().strip())
        assert traces(home)["processes"]
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    until(lambda: not traces(home)["processes"], "all processes gone")
    assert traces(home)["mounts"] == []
    cgroups.remove_orphans()
    assert traces(home) == {"processes": [], "mounts": [], "cgroups": [], "files": []}


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def test_waiting_keeps_no_error_that_was_seen(without_collector):
    """The answer in an HTTPError has a socket: left to the collector it fails the test that runs by then."""
    seen: list[weakref.ref[Exception]] = []

    class RefusedError(Exception):
        def __init__(self) -> None:
            seen.append(weakref.ref(self))

    def probe() -> bool:
        if not seen:
            raise RefusedError
        return True

    until(probe, "the second answer")
    assert [each() for each in seen] == [None]


def test_a_port_is_given_out_once():
    """Whoever was given one listens later: until then nobody else may have it."""
    found = [port for _ in range(40) for port in free_ports(8)]
    assert len(set(found)) == len(found)


def test_missing_program_is_named(tmp_path, monkeypatch):
    (tmp_path / "kubelet").touch(mode=0o755)
    monkeypatch.delenv(versions.VARIABLE, raising=False)
    monkeypatch.setenv("GPUPACK_KUBE_BIN", str(tmp_path))
    with pytest.raises(
        FileNotFoundError, match="lacks kube-apiserver, kube-controller-manager, kube-scheduler"
    ):
        binaries.programs()


def test_programs_may_come_from_a_named_folder(tmp_path, monkeypatch):
    for name in binaries.PROGRAMS:
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.delenv(versions.VARIABLE, raising=False)
    monkeypatch.setenv("GPUPACK_KUBE_BIN", "")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    assert binaries.programs() == tmp_path
