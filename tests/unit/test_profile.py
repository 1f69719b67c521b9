"""Profiles of simulated GPUs: the shipped ones have the real sizes, faulty ones name every fault."""

import os
import reprlib
from pathlib import Path

import pytest
import yaml

from deviceplugin.errors import GpuError, ProfileError
from deviceplugin.gpus.profile import Failure, load_profile, parse_profile, shipped_profiles
from deviceplugin.gpus.source import GpuProcess

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
    document = yaml.safe_load(GOOD)
    document["device_defaults"]["failure"] = {"mode": "lost"}
    document["device_defaults"]["processes"] = [{"pid": 5}]
    document["devices"][0] |= {
        "name": "Other",
        "memory": {"used_bytes": 1048577},
        "processes": [{"pid": 7, "type": "C", "used_memory_mib": 3}],
        "failure": {"mode": "ecc_uncorrectable", "after_calls": 4, "xid": {"code": 94}},
    }
    document["devices"][1]["failure"] = {"mode": "healthy"}
    first, second = parse_profile("t", yaml.safe_dump(document)).cards
    assert (first.used_mib, first.processes, first.failure) == (0, (GpuProcess(5, None),), None)
    assert second.card.model == "Other"
    assert second.card.total_mib == 10240
    assert (second.used_mib, second.processes) == (2, (GpuProcess(7, 3),))
    assert second.failure == Failure("ecc_uncorrectable", 4, 94)


def test_a_bare_failure_trips_at_once() -> None:
    document = yaml.safe_load(GOOD)
    document["device_defaults"]["failure"] = {"mode": "lost"}
    assert parse_profile("t", yaml.safe_dump(document)).cards[0].failure == Failure("lost", 0, None)


@pytest.mark.parametrize("version", ["'1.0'", "1.0", "1", "'1'"])
def test_versions_that_are_read(version: str) -> None:
    assert len(parse_profile("t", GOOD.replace('"1.0"', version)).cards) == 2


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ('version: "1.0"', "version: 2", "version: 2; allowed is 1.0"),
        ('version: "1.0"', "version: true", "version: True; allowed is 1.0"),
        ('version: "1.0"', "", "version: missing; allowed is 1.0"),
        ('  name: "Card"\n', "", "devices[0].name: missing; allowed is text"),
        ('name: "Card"', "name: 5", "device_defaults.name: 5; allowed is text"),
        (
            "total_bytes: 10737418240, ",
            "",
            "devices[0].memory.total_bytes: missing; allowed are whole numbers",
        ),
        (
            "10737418240",
            "-5",
            "device_defaults.memory.total_bytes: -5; allowed are whole numbers from 1048576",
        ),
        ("10737418240", "1e10", "device_defaults.memory.total_bytes: '1e10'; allowed are whole numbers"),
        ("10737418240", "true", "device_defaults.memory.total_bytes: True; allowed are whole numbers"),
        ("10737418240", "99999999999999999", "allowed are whole numbers from 1048576 to 17592186044416"),
        ("reserved_bytes: 1", "reserved_bytes: 10737418240", "device_defaults.memory.reserved_bytes: 107"),
        ("reserved_bytes: 1", "used_bytes: 10737418241", "device_defaults.memory.used_bytes: 1073"),
        ("GPU-b", "GPU-a", "devices[1].uuid: 'GPU-a'; already that of devices[0]"),
        ("GPU-b", "card1", "devices[0].uuid: 'card1'; allowed are GPU- and at most 48"),
        ('name: "Card"', r'name: "x\ud800"', r"device_defaults.name: 'x\ud800'; allowed is text"),
        ("GPU-b", "GPU-" + "x" * 49, "allowed are GPU- and at most 48"),
        ("uuid: GPU-b, ", "", "devices[0].uuid: missing; allowed is text"),
        ("index: 1", "index: 0", "devices[1].index: 0; already that of devices[0]"),
        ("index: 1", "index: 2", "devices[0].index: 2; allowed are whole numbers from 0 to 1"),
        ("index: 1, ", "", "devices[0].index: missing; allowed are whole numbers from 0 to 1"),
        ("minor_number: 7", "minor_number: -1", "devices[1].minor_number: -1; allowed"),
        (
            "00000000:1B:00.0",
            "0000:1a:00.0",
            "devices[1].pci.bus_id: '0000:1a:00.0'; already that of devices[0]",
        ),
        ("00000000:1B:00.0", "1B", "devices[0].pci.bus_id: '1B'; allowed is a PCI address"),
        ('["0000:1B:00.0"]', '["0000:1a:00.0"]', "already in pcie_topology.root_complexes[0].devices[0]"),
        (
            '["0000:1B:00.0"]',
            '["0000:77:00.0"]',
            "pcie_topology.root_complexes[0].devices[0]: '0000:77:00.0'",
        ),
        ('["0000:1B:00.0"]', "7", "pcie_topology.root_complexes[0].devices: 7; allowed is a list"),
        ('["0000:1B:00.0"]', "[7]", "pcie_topology.root_complexes[0].devices[0]: 7; allowed is text"),
        ("numa_node: 1,", "numa_node: x,", "pcie_topology.root_complexes[0].numa_node: 'x'; allowed"),
        ("  name:", "  mig: {mode_current: enabled}\n  name:", "device_defaults.mig.mode_current: 'enabled'"),
        ("  name:", "  processes: 3\n  name:", "device_defaults.processes: 3; allowed is a list"),
        ("  name:", "  processes: [{pid: 0}]\n  name:", "device_defaults.processes[0].pid: 0; allowed"),
        (
            "  name:",
            "  processes: [{pid: 1, used_memory_mib: -1}]\n  name:",
            "processes[0].used_memory_mib: -1;",
        ),
        (
            "  name:",
            "  failure: {mode: tired}\n  name:",
            "device_defaults.failure.mode: 'tired'; allowed are healthy,",
        ),
        (
            "  name:",
            "  failure: {mode: lost, after_calls: -1}\n  name:",
            "device_defaults.failure.after_calls: -1;",
        ),
        (
            "  name:",
            "  failure: {mode: lost, xid: {code: 0}}\n  name:",
            "device_defaults.failure.xid.code: 0;",
        ),
        (
            "  name:",
            "  failure: {mode: lost, xid: 79}\n  name:",
            "device_defaults.failure.xid: 79; allowed is a map",
        ),
        ("  name:", "  failure: lost\n  name:", "device_defaults.failure: 'lost'; allowed is a mapping"),
    ],
)
def test_a_fault_is_named_with_its_path(old: str, new: str, fault: str) -> None:
    assert old in GOOD
    faults = faults_of(GOOD.replace(old, new))
    assert any(fault in found for found in faults), faults


def test_all_faults_come_at_once_and_each_once() -> None:
    faults = faults_of(
        """
version: 3
device_defaults: {name: Card, memory: {total_bytes: 0}}
devices: [{index: 9, uuid: GPU-a}, {index: 0, uuid: GPU-a}, 4]
"""
    )
    assert faults == (
        "version: 3; allowed is 1.0",
        "device_defaults.memory.total_bytes: 0; allowed are whole numbers from 1048576 to 17592186044416",
        "devices[0].index: 9; allowed are whole numbers from 0 to 2",
        "devices[2]: 4; allowed is a mapping",
        "devices[2].index: missing; allowed are whole numbers from 0 to 2",
        "devices[2].uuid: missing; allowed is text",
        "devices[1].uuid: 'GPU-a'; already that of devices[0]",
    )


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "devices: missing; allowed is a list"),
        ("[]", "profile: []; allowed is a mapping"),
        ("version: '1.0'\ndevices: []", "devices: '0 entries'; allowed are 1 to 64"),
        (f"version: 1\ndevices: [{'{}, ' * 65}]", "devices: '65 entries'; allowed are 1 to 64"),
        ("a: [", "not YAML: while parsing"),
        ("\x00", "not YAML: "),
        ("[" * 5000, "not YAML: "),
        ("device_defaults: !!python/object:os.system {}", "not YAML: could not determine a constructor"),
        ("a: &a [x]\nb: *a", "not YAML: found an alias (allowed are none) in"),
        ("a: &a [*a]", "not YAML: found an alias "),
        ("a: &a {b: c}\nd: {<<: *a}", "not YAML: found an alias "),
        (f"version: 0x{'f' * 9000}", "not YAML: found a number of 9002 characters (allowed are 64) in"),
        (f"version: {'9' * 5000}", "not YAML: found a number of 5000 characters (allowed are 64) in"),
        (f"version: '1.0'\ndevices: {'1:' * 400}1.0", "not YAML: found a number of 803 characters "),
        ("version: !!int ''", "not YAML: string index out of range"),
        ("version: !!bool maybe", "not YAML: 'maybe'"),
        (f"? {'{a: b}'}\n: c", "not YAML: while constructing a mapping"),
    ],
)
def test_documents_that_are_no_profile(text: str, fault: str) -> None:
    assert any(fault in found for found in faults_of(text))


def test_long_values_are_cut() -> None:
    assert max(map(len, faults_of(GOOD.replace("GPU-b", "x" * 10_000)))) < 200


@pytest.mark.parametrize("value", ["x" * 10_000, "[x, " * 90 + "]" * 90, f"[{'[x, y], ' * 9000}]"])
def test_large_values_are_cut_before_they_are_written(value: str, mocker) -> None:
    written = mocker.spy(reprlib.Repr, "repr1")
    faults = faults_of(f"version: 1\ndevices: []\npcie_topology: {value}")
    assert max(map(len, faults)) < 200
    assert 0 < written.call_count < 100


def test_more_faults_than_anybody_reads_are_counted() -> None:
    faults = faults_of(f"version: 1\ndevices: []\npcie_topology: {{root_complexes: [{'x, ' * 500}]}}")
    assert len(faults) == 33
    assert faults[-1] == "and 1469 more faults"


def test_more_processes_than_a_card_can_have_are_one_fault() -> None:
    processes = "  processes: [" + "{pid: 1}, " * 1025 + "]\n"
    faults = faults_of(GOOD.replace("  name:", f"{processes}  name:"))
    assert faults == ("device_defaults.processes: '1025 entries'; allowed are up to 1024",)


def test_a_profile_of_the_users_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(GOOD)
    assert [simulated.card.uuid for simulated in load_profile(str(file)).cards] == ["GPU-a", "GPU-b"]


@pytest.mark.parametrize("kind", ["absent", "folder", "binary", "large", "nul"])
def test_unreadable_files_are_one_clear_error(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    if kind == "folder":
        file.mkdir()
    elif kind == "binary":
        file.write_bytes(b"\xff\xfe\x00")
    elif kind == "large":
        file.write_bytes(b"#" * ((1 << 18) + 1))
    name = "a\0b" if kind == "nul" else str(file)
    with pytest.raises(
        GpuError, match=r"profile .*(cannot be read: .*allowed are .*8xh200|larger than 262144)"
    ):
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
