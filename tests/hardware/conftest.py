"""Tests on a real card of NVIDIA's: `make test-hardware`, as root on a node whose first card is idle."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from deviceplugin.gpus.api.source import GpuCard
from deviceplugin.gpus.nvidia.source import NvmlGpus
from tests.hardware.programs import PodCgroups, find_idle_card


@pytest.fixture(scope="session", autouse=True)
def _hardware() -> None:
    """Skip everything here unless it is asked for: it uses a card that may be somebody's."""
    if os.environ.get("GPUPACK_HARDWARE") != "1":
        pytest.skip("uses a real card: make test-hardware")


@pytest.fixture
def source(_hardware: None) -> Iterator[NvmlGpus]:
    gpus = NvmlGpus()
    gpus.open()
    yield gpus
    gpus.close()


@pytest.fixture
def card(source: NvmlGpus) -> GpuCard:
    """Take the first card, on which nobody may be."""
    return find_idle_card(source)


@pytest.fixture
def cgroups() -> Iterator[PodCgroups]:
    """Make a folder for the cgroups of pods, as a kubelet does; none is left."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text("utf-8").splitlines()]
    roots = [Path(mount[1]) for mount in mounts if mount[2] in ("cgroup2", "cgroup")]
    writable = [root for root in roots if os.access(root, os.W_OK)]
    if not writable:
        pytest.skip("there is no cgroup that this user may write to")
    made = PodCgroups(writable[0])
    yield made
    made.remove()


@pytest.fixture
def nvidia_smi() -> str:
    """Find NVIDIA's program."""
    found = shutil.which("nvidia-smi") or "/usr/local/nvidia/bin/nvidia-smi"
    if not Path(found).exists():
        pytest.skip("there is no nvidia-smi here")
    return found
