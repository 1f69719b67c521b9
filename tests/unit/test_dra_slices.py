"""Cards as devices of ResourceSlices: names, versions, capacity, order, and what counts as a difference."""

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from allocator.cards import Card
from allocator.ids import device_names
from allocator.ledger import Ledger
from deviceplugin.allocation.ledger_service import LedgerService
from deviceplugin.dra.resource_slices import (
    MOST_DEVICES,
    describe_device,
    differs,
    format_version,
    make_slices,
    order_by_room,
)
from deviceplugin.dra.slice_publisher import SlicePublisher
from deviceplugin.gpus.api.source import GpuCard

UUID = "GPU-8a1b2c3d-0000-4000-8000-000000000001"
CARD = Card(0, UUID, "NVIDIA H100 80GB HBM3", 79, 0)
GPU = GpuCard(0, UUID, CARD.model, 81559, 551, None, "", 0)
OWNER = {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u"}


def describe(
    card: Card = CARD, gpu: GpuCard = GPU, driver: str | None = "580.65.06", *, overused: bool = False
) -> dict[str, Any]:
    return describe_device("gpu-1", card, gpu, 1024, driver, overused=overused)


@pytest.mark.parametrize(
    ("uuids", "names"),
    [
        ([UUID], [UUID.lower()]),
        (["MIG-41b3/1/0"], ["mig-41b3-1-0"]),
        (["A_b", "a.B"], ["a-b", "a-b-1"]),
        (["9" * 60], ["9" * 60]),
    ],
    ids=["GPU", "old MIG", "alike", "long"],
)
def test_devices_have_names_that_are_dns_labels(uuids: list[str], names: list[str]) -> None:
    found = device_names(uuids)
    assert list(found.values()) == names
    assert all(re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name) for name in found.values())


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("580.65.06", "580.65.6"),
        ("570.00", "570.0.0"),
        ("615", "615.0.0"),
        ("570.00-rc1", None),
        ("1.2.3.4", None),
        ("", None),
    ],
)
def test_a_driver_version_is_a_semantic_one(text: str, version: str | None) -> None:
    assert format_version(text) == version


def test_a_card_has_its_size_as_capacity_whatever_is_used() -> None:
    capacity = {"value": "79Gi", "requestPolicy": {"default": "79Gi"}}
    capacity["requestPolicy"] |= {"validRange": {"min": "1Gi", "max": "79Gi", "step": "1Gi"}}  # type: ignore[operator]
    for used in (0, 40, 79):
        assert describe(replace(CARD, used_units=used))["capacity"]["memory"] == capacity


def test_a_card_of_one_unit_has_one_valid_amount() -> None:
    capacity = describe(replace(CARD, size_units=1))["capacity"]["memory"]
    assert capacity["requestPolicy"] == {"default": "1Gi", "validValues": ["1Gi"]}


@pytest.mark.parametrize(
    ("limit", "value", "most"),
    [(100, "100", "100"), (1000, "1k", "100"), (50, "50", "50"), (1, "1", "1")],
    ids=["whole", "shares overlap", "less than whole", "least"],
)
def test_a_card_gives_away_its_compute_and_a_claim_that_names_none_has_none(
    limit: int, value: str, most: str
) -> None:
    capacity = describe(replace(CARD, compute_limit=limit, compute_used=1))["capacity"]["compute"]
    policy = {"default": "0", "validRange": {"min": "0", "max": most, "step": "1"}}
    assert capacity == {"value": value, "requestPolicy": policy}


@pytest.mark.parametrize(
    ("changes", "taints", "health"),
    [
        ({}, None, "healthy"),
        ({"is_closed": True}, ["gpupack.io/closed"], "healthy"),
        ({"healthy": False}, ["gpupack.io/unhealthy"], "unhealthy"),
        ({"healthy": False, "is_closed": True}, ["gpupack.io/unhealthy"], "unhealthy"),
    ],
)
def test_cards_that_take_no_pods_are_tainted(
    changes: dict[str, bool], taints: list[str] | None, health: str
) -> None:
    device = describe(replace(CARD, **changes))
    assert device.get("taints") == (taints and [{"key": taints[0], "effect": "NoSchedule"}])
    assert device["attributes"]["health"] == {"string": health}


@pytest.mark.parametrize(("closed", "key"), [(False, "over-used"), (True, "closed")])
def test_a_card_of_which_others_leave_nothing_is_tainted(closed: bool, key: str) -> None:
    device = describe(replace(CARD, is_closed=closed), overused=True)
    assert device["taints"] == [{"key": f"gpupack.io/{key}", "effect": "NoSchedule"}]


def published_taints(ledger: Ledger) -> list[str]:
    """Return the keys of the taints with which the ledger's one card is published."""
    publisher = SlicePublisher(
        cast("Any", None),
        LedgerService(ledger, lambda: None, "gpupack.io/gpu-memory-gib"),
        cast("Any", SimpleNamespace(node=None)),
        lambda: [GPU],
        node_name="n1",
        unit_mib=1024,
        card_policy="most-used",
        driver=lambda: None,
        ready=lambda: True,
        gap_s=0,
    )
    (found,) = publisher.wanted()
    (device,) = found["spec"]["devices"]
    return [taint["key"] for taint in device.get("taints", [])]


@pytest.mark.parametrize(
    ("others", "tainted"), [(0, False), (1, False), (79, True)], ids=["nobody", "a little", "everything"]
)
async def test_a_card_that_others_fill_is_published_as_over_used(others: int, tainted: bool) -> None:
    ledger = Ledger([CARD])
    ledger.set_unaccounted_use({UUID: others})
    assert published_taints(ledger) == ["gpupack.io/over-used"] * tainted


@pytest.mark.parametrize(
    ("why", "key"), [("cordoned", "cordoned"), ("client_limit", "closed"), ("detached", "closed")]
)
async def test_only_a_card_that_people_keep_free_is_published_as_cordoned(why: Any, key: str) -> None:
    ledger = Ledger([CARD])
    ledger.set_unavailable(why, {UUID})
    assert published_taints(ledger) == [f"gpupack.io/{key}"]


def test_what_is_not_known_of_a_card_is_no_attribute() -> None:
    known = describe(replace(CARD, numa=1), replace(GPU, parent="GPU-x", architecture="hopper"))["attributes"]
    assert known["architecture"] == {"string": "hopper"}
    assert (known["numaNode"], known["type"]) == ({"int": 1}, {"string": "mig"})
    assert known["driverVersion"] == {"version": "580.65.6"}
    unknown = describe(driver=None)["attributes"]
    assert not {"numaNode", "driverVersion", "architecture"} & unknown.keys()


def test_the_first_device_that_fits_is_the_one_of_the_policy() -> None:
    cards = [replace(CARD, index=at, uuid=f"c{at}", used_units=used) for at, used in enumerate((10, 70, 0))]
    assert [card.uuid for card in order_by_room(cards)] == ["c1", "c0", "c2"]
    assert [card.uuid for card in order_by_room(cards, fullest_first=False)] == ["c2", "c0", "c1"]


def test_many_devices_are_several_slices_of_one_pool() -> None:
    made = make_slices("n1", [{"name": f"d{at}"} for at in range(MOST_DEVICES + 1)], OWNER)
    assert [len(one["spec"]["devices"]) for one in made] == [MOST_DEVICES, 1]
    assert all(one["spec"]["pool"] == {"name": "n1", "resourceSliceCount": 2} for one in made)
    assert [one["spec"]["devices"] for one in make_slices("n1", [], OWNER)] == [[]]


def test_defaults_of_the_api_server_are_no_difference() -> None:
    (wanted,) = make_slices("n1", [describe(replace(CARD, is_closed=True)), {"name": "b"}], OWNER)
    (found,) = make_slices("n1", [describe(replace(CARD, is_closed=True)), {"name": "b"}], OWNER)
    found["spec"]["pool"]["generation"] = 7
    found["spec"]["devices"][0]["taints"][0]["timeAdded"] = "2026-01-01T00:00:00Z"
    assert not differs(wanted, found)

    found["spec"]["devices"].reverse()
    assert differs(wanted, found)
    assert differs(
        make_slices("n1", [describe()], OWNER)[0], make_slices("n1", [describe(driver="1.2.3")], OWNER)[0]
    )


def test_a_taint_that_is_to_go_is_a_difference() -> None:
    (wanted,) = make_slices("n1", [describe()], OWNER)
    (found,) = make_slices("n1", [describe(replace(CARD, is_closed=True))], OWNER)
    assert differs(wanted, found)
