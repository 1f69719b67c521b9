"""Hysteresis: unhealthy at once, healthy after quiet and a good probe, never unhealthy for ever."""

import pytest

from deviceplugin.gpus.api.health import HealthTracker, describe_fault
from deviceplugin.gpus.api.source import GpuSample, HealthEvent
from deviceplugin.gpus.nvidia.vendor import IGNORED_XIDS, NVIDIA, parse_xids
from gpupack.cli.node import node

XID = HealthEvent("GPU-a", healthy=False, reason="XID 79")
MENDED = HealthEvent("GPU-a", healthy=True, reason="mended")
GOOD = GpuSample("GPU-a", 0, ())
LOST = GpuSample("GPU-a", 0, None, error="GPU is lost")


def test_an_unknown_card_is_healthy() -> None:
    assert HealthTracker().find_trouble("GPU-a") is None


@pytest.mark.parametrize("trouble", [XID, LOST], ids=["xid", "lost"])
def test_trouble_counts_at_once_and_for_one_card(trouble: HealthEvent | GpuSample) -> None:
    tracker = HealthTracker()
    changed = (
        tracker.on_event(trouble, 5) if isinstance(trouble, HealthEvent) else tracker.on_sample(trouble, 5)
    )
    assert changed
    assert tracker.find_trouble("GPU-a") in {"XID 79", "GPU is lost"}
    assert tracker.find_trouble("GPU-b") is None


def test_recovery_takes_quiet_and_a_good_sample() -> None:
    tracker = HealthTracker(quiet_s=60)
    tracker.on_event(XID, 100)
    assert not tracker.on_sample(GOOD, 159.9)
    assert tracker.find_trouble("GPU-a") is not None
    assert tracker.on_sample(GOOD, 160)
    assert tracker.find_trouble("GPU-a") is None
    assert not tracker.on_sample(GOOD, 161)


def test_every_trouble_starts_the_quiet_period_anew() -> None:
    tracker = HealthTracker(quiet_s=60)
    tracker.on_event(XID, 0)
    assert tracker.on_sample(LOST, 50)
    assert not tracker.on_sample(LOST, 59)
    assert not tracker.on_sample(GOOD, 110)
    assert tracker.on_sample(GOOD, 119)


def test_a_card_that_is_mended_recovers_with_the_next_good_sample() -> None:
    tracker = HealthTracker(quiet_s=60)
    tracker.on_event(XID, 0)
    assert not tracker.on_event(MENDED, 1)
    assert tracker.find_trouble("GPU-a") is not None
    assert tracker.on_sample(GOOD, 1)
    assert tracker.find_trouble("GPU-a") is None


def test_news_that_a_healthy_card_is_mended_changes_nothing() -> None:
    tracker = HealthTracker()
    assert not tracker.on_event(MENDED, 1)
    assert tracker.find_trouble("GPU-a") is None


def test_the_latest_reason_is_shown() -> None:
    tracker = HealthTracker()
    tracker.on_event(XID, 0)
    assert tracker.on_sample(LOST, 1)
    assert tracker.find_trouble("GPU-a") == "GPU is lost"


def test_xids_are_named_for_people() -> None:
    assert describe_fault(79, NVIDIA) == "XID 79: the card has fallen off the bus"
    assert describe_fault(500, NVIDIA) == "XID 500"
    assert {13, 31, 43, 45, 68, 109} == IGNORED_XIDS


def test_the_command_line_ignores_the_same_xids() -> None:
    (option,) = [each for each in node.params if each.name == "ignored_xids"]
    assert parse_xids(str(option.default)) == IGNORED_XIDS


@pytest.mark.parametrize(
    ("text", "codes"), [("", set()), (" 13, 31 ,31", {13, 31}), ("999", {999}), (",", set())]
)
def test_lists_of_xids(text: str, codes: set[int]) -> None:
    assert parse_xids(text) == codes


@pytest.mark.parametrize("text", ["x", "13;31", "-1", "0", "1000", "1.5", "²"])
def test_lists_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="allowed: whole numbers from 1 to 999"):
        parse_xids(text)
