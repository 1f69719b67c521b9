"""MIG instances in the place of their card: memory, processes and XIDs."""

import pynvml
import pytest
from pytest_mock import MockerFixture

from deviceplugin.gpus.api.source import GpuProcess
from deviceplugin.gpus.nvidia.source import NvmlGpus
from tests.nvml_world import Card, Driver, driver, gpus, process, xid

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
    assert driver.registered == ["GPU-a", "GPU-b"]


@pytest.mark.parametrize(
    ("fields", "uuids"),
    [
        ({"gpuInstanceId": 5}, {"MIG-5"}),
        ({"gpuInstanceId": 0xFFFFFFFF}, {"MIG-1", "MIG-5"}),
        ({}, {"MIG-1", "MIG-5"}),
    ],
)
def test_an_xid_finds_its_mig_instances(
    driver: Driver, gpus: NvmlGpus, mocker: MockerFixture, fields: dict[str, int], uuids: set[str]
) -> None:
    mocker.patch("deviceplugin.gpus.nvidia.nvml_calls.address", side_effect=id)
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
    assert driver.calls.count("Init") == 1
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
