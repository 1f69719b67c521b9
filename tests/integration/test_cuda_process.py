"""A process that uses memory of a card in a real cgroup: how it begins, what it is told, and that it ends."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest
from pytest_mock import MockerFixture

from deviceplugin.errors import GpuError
from deviceplugin.gpus.nvidia.cuda_process import COMMAND, CudaProcess
from deviceplugin.gpus.nvidia.proving import NvmlProvable
from deviceplugin.gpus.nvidia.source import NvmlGpus
from deviceplugin.proof.scratch import NAME, ScratchCgroup
from tests.nvml_world import Card, Driver, process
from tests.proof_world import found, prove, results

MIB = 1 << 20
ECHO = """
import sys
for line in sys.stdin:
    print({answer}, flush=True)
"""


def program(answer: str) -> list[str]:
    return [sys.executable, "-c", ECHO.format(answer=answer)]


@pytest.fixture
def cgroup(tmp_path: Path) -> Path:
    """Make a folder with the file that the kernel has in each cgroup."""
    (tmp_path / "cgroup.procs").touch()
    return tmp_path


@pytest.fixture
def kernels() -> Iterator[Path]:
    """Make a cgroup of version 2 for tests; nothing may be left in it."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    roots = [Path(mount[1]) for mount in mounts if mount[2] == "cgroup2" and os.access(mount[1], os.W_OK)]
    if not roots:
        pytest.skip("this machine shows no cgroup v2 that this user may write to")
    parent = roots[0] / f"gpupack-test-{os.getpid()}"
    parent.mkdir()
    yield parent
    parent.rmdir()


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Build a libcuda of a card of 9 000 MiB that heeds the limit in a file; return that file."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("this machine has no C compiler (cc)")
    folder = tmp_path / "lib"
    folder.mkdir()
    source = Path(__file__).parents[1] / "cuda_standin.c"
    made = [compiler, "-shared", "-fPIC", "-o", str(folder / "libcuda.so.1"), str(source)]
    subprocess.run(made, check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))
    monkeypatch.setenv("STANDIN_CARD_MIB", "9000")
    monkeypatch.setenv("STANDIN_LIMIT", str(tmp_path / "limit"))
    monkeypatch.setenv("STANDIN_USED", str(tmp_path / "used"))
    return tmp_path / "limit"


def test_it_is_in_its_cgroup_and_sees_one_card_before_it_is_told_anything(
    cgroup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=1G")
    user = CudaProcess("GPU-a", cgroup, program('\'{"total_mib": 5, "given": false}\''))
    assert (cgroup / "cgroup.procs").read_text() == str(user.pid)
    assert (user.start(), user.allocate(9)) == (5, False)
    variables = Path(f"/proc/{user.pid}/environ").read_text().split("\0")
    assert sorted(each for each in variables if each.startswith("CUDA_")) == [
        "CUDA_MPS_PIPE_DIRECTORY=/nonexistent",
        "CUDA_VISIBLE_DEVICES=GPU-a",
    ]
    user.end()
    user.end()
    assert not Path(f"/proc/{user.pid}").exists()


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ('\'{"error": "cuInit: CUDA_ERROR_NO_DEVICE (100)"}\'', "start: cuInit: CUDA_ERROR_NO_DEVICE"),
        ("'rubbish'", "start: rubbish"),
        ("'[]'", "start: .."),
        ("exit()", "start: the process has ended"),
        ("__import__('time').sleep(600)", "start: no answer within 1 s"),
    ],
)
def test_what_it_says_otherwise_is_an_error(cgroup: Path, answer: str, says: str) -> None:
    user = CudaProcess("GPU-a", cgroup, program(answer), answer_s=1 if "sleep" in answer else 60)
    try:
        with pytest.raises(GpuError, match=f"^{says.replace('(', '.').replace(')', '.')}"):
            user.start()
    finally:
        user.end()


def test_a_cgroup_that_takes_no_process(tmp_path: Path) -> None:
    """The kernel keeps a container's processes in its cgroup."""
    with pytest.raises(GpuError, match=r"cannot be put into cgroup .*: No such file or directory; run"):
        CudaProcess("GPU-a", tmp_path)
    with pytest.raises(GpuError, match=r"cannot be begun: .*No such file"):
        CudaProcess("GPU-a", tmp_path, ["/no/such/program"])


def test_it_ends_with_whoever_began_it(cgroup: Path) -> None:
    began = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from deviceplugin.gpus.nvidia.cuda_process import CudaProcess\n"
        f"user = CudaProcess('GPU-a', Path({str(cgroup)!r}))\n"
        "print(user.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", began], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert Path(f"/proc/{pid}").exists()
    parent.kill()
    parent.communicate()
    deadline = time.monotonic() + 30
    while Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_it_uses_memory_through_the_drivers_library(cgroup: Path, library: Path) -> None:
    del library
    user = CudaProcess("GPU-a", cgroup)
    assert (user.start(), user.allocate(8700), user.allocate(1)) == (9000, True, False)
    user.end()
    other = CudaProcess("GPU-b", cgroup)
    with pytest.raises(GpuError, match=r"start: cuInit: CUDA_ERROR_NO_DEVICE \(100\)"):
        other.start()
    other.end()


def test_without_the_library_it_says_so(cgroup: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    user = CudaProcess("GPU-a", cgroup, COMMAND)
    with pytest.raises(GpuError, match=r"start: libcuda.so.1: cannot open shared object file|CUDA_ERROR"):
        user.start()
    user.end()


@pytest.mark.parametrize("unset", [None, pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_NOT_SUPPORTED])
@pytest.mark.parametrize("refuses", [True, False], ids=["as documented", "a limit that binds nobody"])
def test_a_whole_proof_on_the_kernels_cgroups(
    mocker: MockerFixture, kernels: Path, library: Path, unset: int | None, refuses: bool
) -> None:
    """NVML on plain data, a libcuda that asks the kernel where it is, real processes and cgroups."""

    class Kernel(Driver):
        def DeviceSetMemoryLimits_v1(self, card: Card, wanted: Any) -> None:  # noqa: N802
            super().DeviceSetMemoryLimits_v1(card, wanted)
            if refuses:
                library.write_text(f"/{Path(wanted.nameSpace).name} {wanted.hardLimit // MIB}")

        def DeviceGetMemoryLimits_v1(self, card: Card, found: Any) -> None:  # noqa: N802
            super().DeviceGetMemoryLimits_v1(card, found)
            if used.exists() and str(probe) == found.nameSpace:
                found.currentUsed = int(used.read_text()) * MIB
                self.cards[0].compute = [process(watched[0], int(used.read_text()))]

    driver = Kernel(mocker)
    driver.upgrade()
    driver.cards = [Card("GPU-a", total_mib=9480)]
    driver.limits.unset = unset
    used = library.with_name("used")
    probe = kernels / NAME

    class Watched(NvmlProvable):
        def memory_user(self, uuid: str, cgroup: Path) -> CudaProcess:
            user = super().memory_user(uuid, cgroup)
            watched.append(user.pid)
            return user

    watched: list[int] = []

    source = NvmlGpus(pci_devices=library.parent, cgroup_root=kernels, probe_parent=lambda: kernels)
    source.open()
    proofs = prove(source, kernels, Watched(source), ScratchCgroup(kernels))
    said = results(proofs)
    assert "limit refuses" in said, proofs
    if refuses:
        assert {name for name, result in said.items() if result not in {"proven", "measured"}} == set()
        assert found(proofs, "limit refuses").startswith("1664 MiB were given in pieces of 128")
        assert found(proofs, "use is counted").startswith("1964 MiB")
        assert said["more without the limit"] == "proven"
    else:
        assert said["limit refuses"] == said["size that a process is told"] == "refuted"
    assert said["undone"] == "proven"
    assert not probe.exists()
    assert not Path(f"/proc/{watched[0]}").exists()
    source.close()
