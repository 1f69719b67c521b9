"""MIG instances in the place of their card: memory, processes and XIDs."""

from pathlib import Path

import pynvml
import pytest

from deviceplugin.gpus.api.source import GpuProcess
from deviceplugin.gpus.nvidia.source import NvmlGpus
from tests.nvml_world import MIG_EVENTS, XID_EVENTS, Card, Driver, driver, gpus, process, xid

__all__ = ["driver", "gpus"]


def test_mig_instances_stand_in_for_their_card(driver: Driver, gpus: NvmlGpus) -> None:
    driver.cards[0].mig = [
        Card("MIG-1", total_mib=40448, reserved_mib=40, used_mib=9, instance=1, compute=[process(5, 9)]),
        Card("MIG-5", total_mib=9728, reserved_mib=10, instance=5),
    ]
    gpus.open()
    assert [(card.index, card.uuid, card.schedulable_mib) for card in gpus.cards()] == [
        (0, "MIG-1", 40408),
        (1, "MIG-5", 9718),
        (2, "GPU-b", 81079),
    ]
    assert [(card.minor, card.numa) for card in gpus.cards()] == [(3, 1), (3, 1), (4, 0)]
    first, second, third = gpus.sample()
    assert (first.used_mib, first.processes) == (9, (GpuProcess(5, 9),))
    assert (second.used_mib, second.processes, third.used_mib) == (0, (), 0)
    assert driver.registered == [(uuid, XID_EVENTS | MIG_EVENTS) for uuid in ("GPU-a", "GPU-b")]


@pytest.mark.parametrize(
    ("fields", "uuids"),
    [
        ({"gpu_instance": 5}, {"MIG-5"}),
        ({}, {"MIG-1", "MIG-5"}),
    ],
)
def test_an_xid_finds_its_mig_instances(
    driver: Driver, gpus: NvmlGpus, fields: dict[str, int], uuids: set[str]
) -> None:
    driver.cards[0].mig = [Card("MIG-1", instance=1), Card("MIG-5", instance=5)]
    driver.news = [xid(driver.cards[0], 79, **fields)]
    gpus.open()
    found = list(gpus.events(30))
    while len(found) < len(uuids):
        found += gpus.events(30)
    assert {event.uuid for event in found} == uuids


def test_mig_mode_without_instances_is_shown(driver: Driver, gpus: NvmlGpus) -> None:
    driver.cards[0].mig = []
    gpus.open()
    card = gpus.cards()[0]
    assert (card.uuid, card.schedulable_mib) == ("GPU-a", 0)
    assert card.error == "MIG mode is on and there are no instances: create some or turn it off"
    assert gpus.sample()[0].error == card.error


def test_compute_instances_that_share_memory_are_no_cards(driver: Driver, gpus: NvmlGpus) -> None:
    """1c.3g.40gb three times is one memory of 40 GB, which would be promised three times."""
    parts = [Card(f"MIG-{number}", total_mib=40448, instance=2) for number in (1, 2, 3)]
    alone = Card("MIG-4", total_mib=9728, reserved_mib=0, instance=5)
    driver.cards[0].mig = [*parts, alone]
    driver.mig_places = {part.uuid: place for place, part in enumerate(driver.cards[0].mig)}
    gpus.open()
    cards = gpus.cards()
    assert [(card.uuid, card.schedulable_mib) for card in cards] == [
        ("MIG-1", 0),
        ("MIG-2", 0),
        ("MIG-3", 0),
        ("MIG-4", 9728),
        ("GPU-b", 81079),
    ]
    reason = (
        "3 compute instances share the memory of GPU instance 2: "
        "create one that has all of its compute slices"
    )
    assert [card.error for card in cards] == [reason] * 3 + [None] * 2
    assert [sample.error for sample in gpus.sample()] == [reason] * 3 + [None] * 2
    assert driver.calls.count("InitWithFlags") == 1
    driver.cards[0].mig = [parts[0], alone]
    gpus.sample()
    assert [card.schedulable_mib for card in gpus.cards()] == [39968, 9728, 81079]


def test_instances_whose_memory_may_be_that_of_others_are_no_cards(driver: Driver, gpus: NvmlGpus) -> None:
    unknown = Card("MIG-1", instance=1, errors={"DeviceGetGpuInstanceId": pynvml.NVML_ERROR_UNKNOWN})
    driver.cards[0].mig = [unknown, Card("MIG-5", instance=5)]
    gpus.open()
    assert [card.error is None for card in gpus.cards()] == [False, True, True]
    unknown.errors = {}
    gpus.sample()
    assert [card.error for card in gpus.cards()] == [None] * 3


REFUSED = pynvml.NVML_ERROR_NO_PERMISSION
REFUSALS = pytest.mark.parametrize("call", ["Handle", "DeviceGetUUID"])


@REFUSALS
def test_an_instance_that_is_refused_is_trouble_of_its_own(driver: Driver, gpus: NvmlGpus, call: str) -> None:
    """It was made after our container, which has no access to it: its siblings come and go as they do."""
    first, second = Card("MIG-1", instance=1), Card("MIG-2", total_mib=10240, instance=2)
    driver.cards[0].mig = [first, second]
    gpus.open()
    made_later = Card("MIG-3", total_mib=20480, instance=3, errors={call: REFUSED})
    driver.cards[0].mig = [second, made_later]
    gpus.sample()
    cards = gpus.cards()
    assert [(card.uuid, card.total_mib) for card in cards] == [
        ("MIG-2", 10240),
        ("MIG-unreadable-0-3", 0),
        ("GPU-b", 81559),
    ]
    assert (cards[1].parent, cards[1].minor) == ("GPU-a", 3)
    said = str(cards[1].error)
    assert said.startswith("the driver refuses the MIG instance in place 3: Insufficient Permissions")
    assert "NVIDIA_MIG_MONITOR_DEVICES=all and CAP_SYS_ADMIN" in said
    assert [sample.error for sample in gpus.sample()] == [None, said, None]
    made_later.errors = {}
    assert [sample.uuid for sample in gpus.sample()] == ["MIG-2", "MIG-3", "GPU-b"]
    assert [card.error for card in gpus.cards()] == [None] * 3


@REFUSALS
@pytest.mark.parametrize("code", [REFUSED, pynvml.NVML_ERROR_UNKNOWN])
def test_an_instance_that_is_refused_later_stays_what_it_was(
    driver: Driver, gpus: NvmlGpus, call: str, code: int
) -> None:
    first, second = Card("MIG-1", instance=1), Card("MIG-2", total_mib=10240, instance=2)
    driver.cards[0].mig = [first, second]
    gpus.open()
    known = list(gpus.cards())
    second.errors = {call: code}
    assert [sample.error is None for sample in gpus.sample()] == [True, False, True]
    assert list(gpus.cards()) == known
    second.errors = {}
    assert [sample.error for sample in gpus.sample()] == [None] * 3
    # In the place of one that is gone another one may be that is refused.
    driver.cards[0].mig = [Card("MIG-1", instance=2), Card("MIG-9", instance=1, errors={call: code})]
    gpus.sample()
    assert [card.uuid for card in gpus.cards()] == ["MIG-unreadable-0-1", "MIG-1", "GPU-b"]


def test_where_all_instances_are_refused_the_card_says_so(driver: Driver, gpus: NvmlGpus) -> None:
    driver.cards[0].mig = [Card(f"MIG-{n}", instance=n, errors={"Handle": REFUSED}) for n in (1, 2)]
    gpus.open()
    said = str(gpus.cards()[0].error)
    assert said.startswith("its MIG instances cannot be listed: Insufficient Permissions; the daemon's")
    assert [card.uuid for card in gpus.cards()] == ["GPU-a", "GPU-b"]


def test_an_instance_whose_memory_is_refused_is_trouble_of_its_own(driver: Driver, gpus: NvmlGpus) -> None:
    refused = {"DeviceGetMemoryInfo": REFUSED, "DeviceGetMemoryInfo_v2": REFUSED}
    driver.cards[0].mig = [Card("MIG-1", instance=1), Card("MIG-2", instance=2)]
    gpus.open()
    driver.cards[0].mig = [driver.cards[0].mig[0], Card("MIG-3", instance=3, errors=refused)]
    gpus.sample()
    assert [(card.uuid, card.error is None) for card in gpus.cards()] == [
        ("MIG-1", True),
        ("MIG-3", False),
        ("GPU-b", True),
    ]


def test_what_is_refused_for_want_of_a_right_starts_no_library_again(driver: Driver, tmp_path: Path) -> None:
    """It would say the same, and the other cards are not measured meanwhile."""
    now_s = [0.0]
    gpus = NvmlGpus(pci_devices=tmp_path, clock=lambda: now_s[0])
    driver.cards[0].mig = [Card("MIG-1", instance=1), Card("MIG-2", instance=2, errors={"Handle": REFUSED})]
    gpus.open()
    for now_s[0] in range(0, 1000, 5):
        assert [sample.error is None for sample in gpus.sample()] == [True, False, True]
    assert driver.calls.count("InitWithFlags") == 1
    gpus.close()
