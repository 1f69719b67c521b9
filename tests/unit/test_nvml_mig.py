"""MIG instances in the place of their card: memory, processes and XIDs."""

import pytest
from pytest_mock import MockerFixture

from deviceplugin.gpus.nvml import NvmlGpus
from deviceplugin.gpus.source import GpuProcess
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
    mocker.patch("deviceplugin.gpus.nvml_calls.address", side_effect=id)
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
