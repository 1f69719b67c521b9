"""Nothing in the node's core names a vendor, and another vendor's names reach containers and people."""

import re
from pathlib import Path

import pytest

from deviceplugin.errors import ProfileError
from deviceplugin.gpus.api.vendor import Vendor
from deviceplugin.gpus.nvidia.vendor import NVIDIA
from deviceplugin.gpus.simulated.profile import parse_profile
from deviceplugin.gpus.simulated.source import SimulatedGpus

ROOT = Path(__file__).parents[2]
CORE = (
    "allocator",
    "deviceplugin/allocation",
    "deviceplugin/enforcement",
    "deviceplugin/monitoring",
    "deviceplugin/publishing",
    "deviceplugin/kubelet",
)
NAMES = re.compile(r"nvidia|cuda|\bnvml|\bxids?\b|\bmig\b|mig-", re.IGNORECASE)
PROFILE = """
version: "1.0"
vendor: {domain: example.com, visible_devices: EXAMPLE_CARDS, fault: ERR}
device_defaults: {name: Card, memory: {total_bytes: 10737418240}}
devices: [{index: 0, uuid: EX-1}]
"""


@pytest.mark.parametrize("folder", CORE)
def test_the_core_names_no_vendor(folder: str) -> None:
    sources = [path for path in (ROOT / folder).rglob("*.py") if "wire" not in path.parts]
    assert sources
    named = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sources
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if NAMES.search(line)
    ]
    assert not named


def test_a_container_is_told_its_cards_as_the_vendor_does() -> None:
    assert NVIDIA.make_visible_env(["GPU-a", "GPU-b"]) == {"NVIDIA_VISIBLE_DEVICES": "GPU-a,GPU-b"}
    assert NVIDIA.make_visible_env([]) == {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert Vendor("gpu.invalid", "GPU_VISIBLE_DEVICES", "fault").make_visible_env([]) == {}


def test_a_profile_brings_its_vendor() -> None:
    gpus = SimulatedGpus(parse_profile("t", PROFILE))
    assert gpus.vendor == Vendor("example.com", "EXAMPLE_CARDS", "ERR")
    gpus.fail("EX-1", "ecc_uncorrectable", xid=79)
    assert [event.reason for event in gpus.events(0)] == ["ERR 79"]


def test_the_vendor_of_a_profile_is_checked() -> None:
    wrong = PROFILE.replace("example.com", "Example").replace("EXAMPLE_CARDS", "x-y").replace("ERR", "E 1")
    with pytest.raises(ProfileError) as caught:
        parse_profile("t", wrong)
    assert [fault.partition(";")[0] for fault in caught.value.faults] == [
        "vendor.domain: 'Example'",
        "vendor.visible_devices: 'x-y'",
        "vendor.fault: 'E 1'",
    ]
