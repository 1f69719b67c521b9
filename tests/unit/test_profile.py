"""Profiles of simulated GPUs: the shipped ones have the real sizes, faulty ones name every fault."""

import os
from pathlib import Path

import pytest
import yaml

from deviceplugin.errors import GpuError, ProfileError
from deviceplugin.gpus.api.source import GpuProcess
from deviceplugin.gpus.simulated.profile import (
    SimulatedFailure,
    load_profile,
    parse_profile,
    shipped_profiles,
)
from tests.yaml_text import read_yaml

GOOD = """
version: "1.0"
device_defaults:
  name: "Card"
  memory: {total_bytes: 10737418240, reserved_bytes: 1}
devices:
  - {index: 1, uuid: GPU-b, pci: {bus_id: "00000000:1B:00.0"}}
  - {index: 0, uuid: GPU-a, minor_number: 7, pci: {bus_id: "0000:1a:00.0"}}
pcie_topology:
  root_complexes:
    - {id: "pci0000:00", numa_node: 1, devices: ["0000:1B:00.0"]}
    - {id: "pci0000:80", numa_node: -1, devices: ["0000:1a:00.0"]}
"""


def faults_of(text: str) -> tuple[str, ...]:
    with pytest.raises(ProfileError) as caught:
        parse_profile("t", text)
    assert all("\n" not in fault for fault in caught.value.faults)
    return caught.value.faults


@pytest.mark.parametrize(
    ("name", "sizes", "units"),
    [
        ("8xa100-40", [(40960, 518)] * 8, [39] * 8),
        ("8xh100-80", [(81559, 480)] * 8, [79] * 8),
        ("8xh200", [(143771, 480)] * 8, [139] * 8),
        ("4xl40s", [(46068, 609)] * 4, [44] * 4),
        ("2xt4", [(15360, 448)] * 2, [14] * 2),
        ("mixed", [(40960, 518), (40960, 518), (46068, 609), (15360, 448)], [39, 39, 44, 14]),
    ],
)
def test_shipped_profiles_have_the_real_sizes(
    name: str, sizes: list[tuple[int, int]], units: list[int]
) -> None:
    cards = [simulated.card for simulated in load_profile(name).cards]
    assert [(card.total_mib, card.reserved_mib) for card in cards] == sizes
    assert [card.schedulable_mib // 1024 for card in cards] == units
    assert [card.index for card in cards] == list(range(len(sizes)))


def test_all_shipped_profiles_are_listed_and_their_uuids_are_unique() -> None:
    assert shipped_profiles() == ("2xt4", "4xl40s", "8xa100-40", "8xh100-80", "8xh200", "mixed")
    uuids = [simulated.card.uuid for name in shipped_profiles() for simulated in load_profile(name).cards]
    assert len(set(uuids)) == len(uuids)
    assert {len(uuid) for uuid in uuids} == {40}


def test_cards_come_by_index_with_rounding_against_the_user() -> None:
    first, second = (simulated.card for simulated in parse_profile("t", GOOD).cards)
    assert (first.uuid, first.index, first.minor, first.numa) == ("GPU-a", 0, 7, None)
    assert (second.uuid, second.index, second.minor, second.numa) == ("GPU-b", 1, 1, 1)
    assert second.bus_id == "0000:1b:00.0"
    assert (first.total_mib, first.reserved_mib, first.schedulable_mib) == (10240, 1, 10239)


def test_devices_override_the_defaults_field_by_field() -> None:
    document = read_yaml(GOOD)
    document["device_defaults"]["failure"] = {"mode": "lost"}
    document["device_defaults"]["processes"] = [{"pid": 5}]
    document["devices"][0] |= {
        "name": "Other",
        "memory": {"used_bytes": 1048577},
        "processes": [{"pid": 7, "type": "C", "used_memory_mib": 3, "compute_percent": 40}],
        "failure": {"mode": "ecc_uncorrectable", "after_calls": 4, "xid": {"code": 94}},
    }
    document["devices"][1]["failure"] = {"mode": "healthy"}
    first, second = parse_profile("t", yaml.safe_dump(document)).cards
    assert (first.used_mib, first.processes, first.failure) == (0, (GpuProcess(5, None),), None)
    assert second.card.model == "Other"
    assert second.card.total_mib == 10240
    assert (second.used_mib, second.processes) == (2, (GpuProcess(7, 3, 40),))
    assert second.failure == SimulatedFailure("ecc_uncorrectable", 4, 94)


def test_a_bare_failure_trips_at_once() -> None:
    document = read_yaml(GOOD)
    document["device_defaults"]["failure"] = {"mode": "lost"}
    assert parse_profile("t", yaml.safe_dump(document)).cards[0].failure == SimulatedFailure("lost", 0, None)


@pytest.mark.parametrize("version", ["'1.0'", "1.0", "1", "'1'"])
def test_versions_that_are_read(version: str) -> None:
    assert len(parse_profile("t", GOOD.replace('"1.0"', version)).cards) == 2


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ('version: "1.0"', "version: 2", "version: 2; allowed: 1.0"),
        ('version: "1.0"', "version: true", "version: expected `int | float | str`, got `bool`"),
        ('version: "1.0"', "", "profile: object missing required field `version`"),
        ('  name: "Card"\n', "", "devices[0].name: missing, there and in device_defaults"),
        ('name: "Card"', "name: 5", "device_defaults.name: expected `str | null`, got `int`"),
        ("total_bytes: 10737418240, ", "", "devices[0].memory.total_bytes: missing, there and in dev"),
        ("10737418240", "-5", "device_defaults.memory.total_bytes: expected `int` >= 1048576"),
        ("10737418240", "1e10", "device_defaults.memory.total_bytes: expected `int | null`, got `str`"),
        ("10737418240", "true", "device_defaults.memory.total_bytes: expected `int | null`, got `bool`"),
        ("10737418240", "99999999999999999", "total_bytes: expected `int` <= 17592186044416"),
        (
            "reserved_bytes: 1",
            "reserved_bytes: 10737418240",
            "devices[0].memory: 10737418240 bytes reserved and 0 used do not fit into 10737418240",
        ),
        (
            "reserved_bytes: 1",
            "used_bytes: 10737418241",
            "devices[1].memory: 0 bytes reserved and 10737418241 used do not fit into 10737418240",
        ),
        ("GPU-b", "GPU-a", "devices.uuid: GPU-a stands twice"),
        ("GPU-b", "card1", "devices[0].uuid: expected `str` matching regex '^[A-Z]{2,4}-"),
        ("GPU-b", "GPU-" + "x" * 49, "devices[0].uuid: expected `str` matching regex"),
        ('name: "Card"', r'name: "x\ud800"', "not YAML: while parsing a quoted scalar"),
        ("uuid: GPU-b, ", "", "devices[0]: object missing required field `uuid`"),
        ("index: 1", "index: 0", "devices.index: 0 stands twice"),
        ("index: 1", "index: 2", "devices[0].index: 2; allowed: 0 to 1"),
        ("index: 1, ", "", "devices[0]: object missing required field `index`"),
        ("minor_number: 7", "minor_number: -1", "devices[1].minor_number: expected `int` >= 0"),
        ("00000000:1B:00.0", "0000:1a:00.0", "devices.pci.bus_id: 0000:1a:00.0 stands twice"),
        ("00000000:1B:00.0", "1B", "devices[0].pci.bus_id: expected `str` matching regex"),
        ('["0000:1B:00.0"]', '["0000:1a:00.0"]', "pcie_topology: 0000:1a:00.0 stands twice"),
        ('["0000:1B:00.0"]', '["0000:77:00.0"]', "pcie_topology: 0000:77:00.0; allowed: the devices'"),
        ('["0000:1B:00.0"]', "7", "pcie_topology.root_complexes[0].devices: expected `array`, got `int`"),
        ('["0000:1B:00.0"]', "[7]", "pcie_topology.root_complexes[0].devices[0]: expected `str`"),
        ("numa_node: 1,", "numa_node: x,", "pcie_topology.root_complexes[0].numa_node: expected `int`"),
        (
            "  name:",
            "  mig: {mode_current: enabled}\n  name:",
            "devices[0].mig: Card of 10239 MiB; allow",
        ),
        ("  name:", "  processes: 3\n  name:", "device_defaults.processes: expected `array | null`"),
        ("  name:", "  processes: [{pid: 0}]\n  name:", "device_defaults.processes[0].pid: expected `int`"),
        (
            "  name:",
            "  processes: [{pid: 1, used_memory_mib: -1}]\n  name:",
            "device_defaults.processes[0].used_memory_mib: expected `int` >= 0",
        ),
        ("  name:", "  failure: {mode: tired}\n  name:", "device_defaults.failure.mode: invalid enum value"),
        (
            "  name:",
            "  failure: {mode: lost, after_calls: -1}\n  name:",
            "device_defaults.failure.after_calls: expected `int` >= 0",
        ),
        (
            "  name:",
            "  failure: {mode: lost, xid: {code: 0}}\n  name:",
            "device_defaults.failure.xid.code: expected `int` >= 1",
        ),
        ("  name:", "  failure: {mode: lost, xid: 79}\n  name:", "device_defaults.failure.xid: expected `ob"),
        ("  name:", "  failure: lost\n  name:", "device_defaults.failure: expected `object | null`"),
    ],
)
def test_a_fault_is_named_with_its_path(old: str, new: str, fault: str) -> None:
    assert old in GOOD
    faults = faults_of(GOOD.replace(old, new))
    assert any(found.startswith(fault) or fault in found for found in faults), faults


def test_every_part_names_its_fault() -> None:
    faults = faults_of(
        """
version: 3
device_defaults: {name: Card, memory: {total_bytes: 0}}
devices: [{index: -1, uuid: GPU-a}, {index: 0, uuid: GPU-a}, 4]
"""
    )
    assert faults == (
        "version: 3; allowed: 1.0",
        "device_defaults.memory.total_bytes: expected `int` >= 1048576",
        "devices[0].index: expected `int` >= 0",
        "devices[2]: expected `object`, got `int`",
    )


def test_what_does_not_fit_together_is_named_at_once() -> None:
    faults = faults_of(GOOD.replace("index: 1", "index: 9").replace("GPU-b", "GPU-a").replace("Card", "C"))
    assert faults == ("devices[0].index: 9; allowed: 0 to 1", "devices.uuid: GPU-a stands twice")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "profile: expected `object`, got `null`"),
        ("[]", "profile: expected `object`, got `array`"),
        ("version: '1.0'\ndevices: []", "devices: expected `array` of length >= 1"),
        (f"version: 1\ndevices: [{'{}, ' * 65}]", "devices: expected `array` of length <= 64"),
        ("a: [", "not YAML: while parsing"),
        ("\x00", "not YAML: "),
        ("[" * 500, "line 1: nested deeper than 64 levels"),
        ("device_defaults: !!python/object:os.system {}", "not YAML: could not determine a constructor"),
        ("version: !!int ''", "not YAML: string index out of range"),
        ("version: !!bool maybe", "not YAML: 'maybe'"),
        (f"? {'{a: b}'}\n: c", "not YAML: while constructing a mapping"),
    ],
)
def test_documents_that_are_no_profile(text: str, fault: str) -> None:
    assert any(fault in found for found in faults_of(text))


def test_values_are_not_repeated_at_length() -> None:
    assert max(map(len, faults_of(GOOD.replace("GPU-b", "x" * 10_000)))) < 200


def test_a_profile_of_the_users_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(GOOD)
    assert [simulated.card.uuid for simulated in load_profile(str(file)).cards] == ["GPU-a", "GPU-b"]


@pytest.mark.parametrize("kind", ["absent", "folder", "binary", "nul"])
def test_unreadable_files_are_one_clear_error(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    if kind == "folder":
        file.mkdir()
    elif kind == "binary":
        file.write_bytes(b"\xff\xfe\x00")
    name = "a\0b" if kind == "nul" else str(file)
    with pytest.raises(GpuError, match=r"profile .*cannot be read: .*allowed: .*8xh200"):
        load_profile(name)


@pytest.mark.parametrize(
    ("name", "units"), [("a100", [39] * 8), ("h100", [79] * 8), ("l40s", [47] * 8), ("t4", [15] * 4)]
)
def test_profiles_of_nvml_mock_load(name: str, units: list[int]) -> None:
    folder = os.environ.get("GPUPACK_NVML_MOCK")
    if not folder:
        pytest.skip("GPUPACK_NVML_MOCK names no folder with nvml-mock and its profiles")
    cards = [simulated.card for simulated in load_profile(f"{folder}/profiles/{name}.yaml").cards]
    assert [card.schedulable_mib // 1024 for card in cards] == units
    assert all(card.numa is not None and card.bus_id for card in cards)
