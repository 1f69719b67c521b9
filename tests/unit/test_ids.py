"""Device IDs."""

import pytest

from allocator.errors import DeviceIdError
from allocator.ids import device_id, is_card_uuid, parse_device_id, percent_id

UUID = "GPU-8f2c1c9e-0f53-4a6e-9a0b-1d2e3f405060"


@pytest.mark.parametrize(
    ("uuid", "slot", "text"),
    [
        (UUID, 0, f"{UUID}::0"),
        (UUID, 79, f"{UUID}::79"),
        (f"MIG-{UUID[4:]}", 3, f"MIG-{UUID[4:]}::3"),
        (f"MIG-{UUID}/7/0", 9, f"MIG-{UUID}/7/0::9"),
        ("a" * 60, 1, "a" * 60 + "::1"),
    ],
)
def test_round_trip(uuid, slot, text):
    assert device_id(uuid, slot) == text
    assert parse_device_id(text) == (uuid, slot)
    assert len(text) <= 63


@pytest.mark.parametrize(
    ("uuid", "slot", "problem"),
    [
        ("", 0, 'card UUID ""'),
        ("GPU 1", 0, 'card UUID "GPU 1"'),
        ("GPU:1", 0, 'card UUID "GPU:1"'),
        ("GPU,1", 0, 'card UUID "GPU,1"'),
        ("-GPU", 0, 'card UUID "-GPU"'),
        ("GPU\n", 0, r'card UUID "GPU\\n"'),
        ("a" * 61, 0, "card UUID"),
        (UUID, -1, f"number -1 of card {UUID}; allowed: 0 or more"),
        ("a" * 60, 10, "has 64 characters; allowed: 63"),
    ],
)
def test_impossible_ids(uuid, slot, problem):
    with pytest.raises(DeviceIdError, match=problem):
        device_id(uuid, slot)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "::",
        UUID,
        f"{UUID}::",
        f"{UUID}::-1",
        f"{UUID}::01",
        f"{UUID}::1 ",
        f"{UUID}::1\n",
        f"{UUID}::٣",
        f"{UUID}::1::2",
        f"{UUID}:1",
        "::1",
        "a" * 60 + "::10",
        f"{UUID}::" + "9" * 5000,
    ],
)
def test_foreign_ids(text):
    with pytest.raises(DeviceIdError, match="allowed: <card uuid>::<number>") as caught:
        parse_device_id(text)
    assert len(str(caught.value)) < 160


def test_uuids():
    assert is_card_uuid(UUID)
    assert not is_card_uuid("a::b")


def as_dcgm_exporter_reads(text):
    """Which card or instance it looks up for an ID, and its label `vgpu`: docs/howto/gpu-operator.md."""
    if text.startswith("MIG-"):
        return text.partition("::")[0], text.split("::")[1]
    if "/vgpu" in text:
        return text.split("/vgpu")[0], text.split("/vgpu")[1]
    return text.split("::")[0], text.split("::")[1]


@pytest.mark.parametrize("uuid", [UUID, f"MIG-{UUID[4:]}"])
@pytest.mark.parametrize("make", [device_id, percent_id])
def test_dcgm_exporter_finds_the_card_and_tells_its_units_apart(uuid, make):
    read = [as_dcgm_exporter_reads(make(uuid, number)) for number in range(80)]
    assert {card for card, _ in read} == {uuid}
    assert len({unit for _, unit in read}) == 80
