"""XIDs as events of their card, and the thread that waits for them."""

import threading

import pynvml
import pytest
from pytest_mock import MockerFixture

from deviceplugin.gpus.api.source import HealthEvent
from deviceplugin.gpus.nvidia.source import NvmlGpus
from tests.nvml_world import LOST, MIG_EVENTS, XID_EVENTS, Card, Driver, driver, gpus, xid

__all__ = ["driver", "gpus"]


def test_xids_come_as_events_of_their_card(driver: Driver, gpus: NvmlGpus) -> None:
    driver.news = [xid(driver.cards[1], 79)]
    gpus.open()
    assert gpus.events(30) == [HealthEvent("GPU-b", False, "XID 79: the card has fallen off the bus", 79)]
    assert driver.registered == [(uuid, XID_EVENTS | MIG_EVENTS) for uuid in ("GPU-a", "GPU-b")]


def test_xids_of_applications_say_nothing_of_the_card(driver: Driver, gpus: NvmlGpus) -> None:
    applications = (13, 31, 43, 45, 68, 109)
    driver.news = [xid(driver.cards[0], code) for code in (*applications, 94)]
    gpus.open()
    found = list(gpus.events(30))
    while len(found) < 7:
        found += gpus.events(30)
    assert found[:6] == [HealthEvent("GPU-a", None, f"XID {code}", code) for code in applications]
    assert found[6:] == [HealthEvent("GPU-a", False, "XID 94: contained memory error", 94)]


def test_which_xids_are_ignored_can_be_chosen(driver: Driver) -> None:
    source = NvmlGpus(frozenset({94}))
    driver.news = [xid(driver.cards[0], 94), xid(driver.cards[0], 31)]
    source.open()
    found = list(source.events(30))
    while len(found) < 2:
        found += source.events(30)
    assert [(event.code, event.healthy) for event in found] == [(94, None), (31, False)]
    source.close()


def test_other_kinds_of_events_are_passed_over(driver: Driver, gpus: NvmlGpus) -> None:
    other = xid(driver.cards[0], 79)
    other.kind = pynvml.nvmlEventTypePState
    driver.news = [other, xid(driver.cards[0], 48)]
    gpus.open()
    assert [event.reason for event in gpus.events(30)] == ["XID 48: double-bit ECC error"]


def test_an_xid_of_a_card_that_cannot_be_named_concerns_all(driver: Driver, gpus: NvmlGpus) -> None:
    driver.news = [xid(Card("GPU-x", errors={"DeviceGetUUID": LOST}), 79)]
    gpus.open()
    found = list(gpus.events(30))
    while len(found) < 2:
        found += gpus.events(30)
    assert {event.uuid for event in found} == {"GPU-a", "GPU-b"}


def test_watching_survives_a_lost_card(driver: Driver, gpus: NvmlGpus, mocker: MockerFixture) -> None:
    mocker.patch("deviceplugin.gpus.nvidia.events.EVENT_WAIT_MS", 1)
    driver.news = [LOST, pynvml.NVML_ERROR_UNKNOWN, xid(driver.cards[0], 79)]
    gpus.open()
    assert [event.uuid for event in gpus.events(30)] == ["GPU-a"]


@pytest.mark.parametrize("fails", ["EventSetCreate", "DeviceRegisterEvents"])
def test_without_events_health_rests_on_the_samples_and_that_is_said_once(
    driver: Driver, gpus: NvmlGpus, fails: str, capsys: pytest.CaptureFixture[str]
) -> None:
    unsupported = pynvml.NVML_ERROR_NOT_SUPPORTED
    driver.errors[fails] = unsupported
    for card in driver.cards:
        card.errors[fails] = unsupported
    gpus.open()
    assert gpus.events(0) == []
    assert "EventSetWait_v2" not in driver.calls
    assert [sample.error for sample in gpus.sample()] == [None, None]
    gpus.detach()
    gpus.sample()
    said = capsys.readouterr().out
    assert said.count("driver tells no errors of cards by itself") == said.count("Not Supported") == 1


def test_closing_ends_the_watching_and_lets_the_library_go(driver: Driver, gpus: NvmlGpus) -> None:
    gpus.open()
    assert driver.heard.wait(30)
    gpus.close()
    gpus.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "nvml-events"]
    assert driver.calls[-2:] == ["EventSetFree", "Shutdown"]
