"""The weight of a list of devices, against the encoder itself, and the lists that are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.errors import DeviceListError
from deviceplugin.kubelet.devicelist import (
    MAX_MESSAGE_BYTES,
    check_device_ids,
    first_repeated,
    fitting_devices,
    weigh_bytes,
)
from deviceplugin.kubelet.service import device_list


@given(st.lists(st.integers(1, 63), max_size=50))
def test_weight_equals_the_encoded_size(lengths: list[int]) -> None:
    ids = {("x" * length)[:-1] + chr(97 + index % 26): False for index, length in enumerate(lengths)}
    assert sum(weigh_bytes(len(identifier)) for identifier in ids) == device_list(ids).ByteSize()


def test_healthy_lists_weigh_no_more() -> None:
    ids = [f"GPU-{index:040}::{index % 10}" for index in range(100)]
    assert device_list(dict.fromkeys(ids, True)).ByteSize() < sum(weigh_bytes(len(each)) for each in ids)


def ids_of(count: int, length: int = 46) -> list[str]:
    return [f"{index:0{length}}" for index in range(count)]


def test_the_measured_sizes() -> None:
    check_device_ids(ids_of(50_000))
    with pytest.raises(DeviceListError, match="80000 devices make a message of 4880000 bytes: allowed are"):
        check_device_ids(ids_of(80_000))


def test_the_limit_is_exact_and_the_message_names_it() -> None:
    fits = fitting_devices(46)
    assert fits * weigh_bytes(46) <= MAX_MESSAGE_BYTES < (fits + 1) * weigh_bytes(46)
    check_device_ids(ids_of(fits))
    with pytest.raises(DeviceListError, match=f"which {fits} devices with IDs of 46 characters fit into"):
        check_device_ids(ids_of(fits + 1))


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([""], 'device ID "": allowed are 1 to 63'),
        (["x" * 64], "allowed are 1 to 63"),
        (["ä"], "ASCII"),
        (["a", "b", "a"], 'device ID "a" stands twice'),
    ],
    ids=["empty", "long", "not-ascii", "twice"],
)
def test_refused(ids: list[str], message: str) -> None:
    with pytest.raises(DeviceListError, match=message):
        check_device_ids(ids)


def test_first_repeated() -> None:
    assert first_repeated([]) is None
    assert first_repeated(["a", "b"]) is None
    assert first_repeated(["a", "b", "c", "b", "a"]) == "b"
