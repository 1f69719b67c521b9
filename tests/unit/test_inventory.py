"""Cards in units, and the units that no kubelet could take."""

from dataclasses import replace

import pytest

from allocator.ids import device_id
from deviceplugin.allocation.inventory import (
    card_records,
    cards_in_units,
    check_units,
    list_bytes,
    smallest_unit,
)
from deviceplugin.errors import DeviceListError
from deviceplugin.gpus.api.source import GpuCard
from deviceplugin.kubelet.plugin_service import encode_device_list


def gpu(index: int, total_mib: int, reserved_mib: int = 0, error: str | None = None) -> GpuCard:
    return GpuCard(
        index=index,
        uuid=f"GPU-0000000{index}-0000-0000-0000-000000000000",
        model="Card",
        total_mib=total_mib,
        reserved_mib=reserved_mib,
        numa=1,
        bus_id="",
        minor=index,
        error=error,
    )


def test_what_is_reserved_or_left_over_is_nobodys():
    assert [card.size_units for card in cards_in_units([gpu(0, 81559, 480), gpu(1, 1023)], 1024)] == [79, 0]


def test_a_card_that_cannot_be_read_keeps_its_place_without_units():
    good, bad = cards_in_units([gpu(0, 8192), gpu(1, 8192, error="lost")], 1024)
    assert (good.size_units, good.healthy, good.numa) == (8, True, 1)
    assert (bad.size_units, bad.healthy) == (0, False)


def test_records_describe_cards_as_they_are_now():
    gpus = [gpu(0, 8192, 192), gpu(1, 4096, error="lost")]
    told = card_records(cards_in_units(gpus, 1024), gpus)
    assert [(record.index, record.mib, record.healthy) for record in told] == [
        (0, 8000, True),
        (1, 4096, False),
    ]


def test_a_record_names_the_card_of_an_instance():
    gpus = [gpu(0, 8192), replace(gpu(1, 8192), parent="GPU-x")]
    told = card_records(cards_in_units(gpus, 1024), gpus)
    assert [record.parent for record in told] == ["", "GPU-x"]


@pytest.mark.parametrize("size", [0, 1, 9, 10, 11, 99, 100, 101, 1234])
def test_the_list_weighs_what_its_message_weighs_when_all_is_unhealthy(size):
    (card,) = cards_in_units([gpu(0, size)], 1)
    message = encode_device_list({device_id(card.uuid, slot): False for slot in range(size)})
    assert list_bytes([card]) == message.ByteSize()


def test_gib_units_pass():
    check_units([gpu(i, 81920) for i in range(8)], 1024)


def test_mib_units_of_large_cards_are_refused_with_the_unit_that_fits():
    gpus = [gpu(i, 81920) for i in range(8)]
    unit_mib = smallest_unit(gpus)
    with pytest.raises(DeviceListError, match=f"unit of 1 MiB.*units of {unit_mib} MiB or more"):
        check_units(gpus, 1)
    check_units(gpus, unit_mib)
    cards = cards_in_units(gpus, unit_mib)
    listed = {device_id(card.uuid, slot): False for card in cards for slot in range(card.size_units)}
    assert encode_device_list(listed).ByteSize() <= 4 * 1024 * 1024
    assert encode_device_list(dict.fromkeys(listed, True)).ByteSize() < encode_device_list(listed).ByteSize()
    with pytest.raises(DeviceListError):
        check_units(gpus, unit_mib - 1)


def test_no_cards_need_no_room():
    assert smallest_unit([]) == 1
