"""Simulated GPUs behave as their profile and their owner say."""

import threading

import pytest

from deviceplugin.errors import GpuError
from deviceplugin.gpus.api.source import GpuProcess, GpuSource, HealthEvent
from deviceplugin.gpus.simulated.profile import load_profile, parse_profile
from deviceplugin.gpus.simulated.source import SimulatedGpus

PROFILE = """
version: "1.0"
device_defaults: {name: Card, memory: {total_bytes: 10737418240, reserved_bytes: 1073741824}}
devices:
  - index: 0
    uuid: GPU-a
    memory: {used_bytes: 1048576}
    processes: [{pid: 3, used_memory_mib: 5}, {pid: 4}]
  - {index: 1, uuid: GPU-b, failure: {mode: %s}}
"""


def source(failure: str = "healthy") -> SimulatedGpus:
    return SimulatedGpus(parse_profile("t", PROFILE % failure))


def test_it_is_a_source_of_the_profiles_cards() -> None:
    gpus: GpuSource = source()
    gpus.open()
    assert [(card.uuid, card.schedulable_mib) for card in gpus.cards()] == [("GPU-a", 9216), ("GPU-b", 9216)]
    first, second = gpus.sample()
    assert (first.used_mib, first.processes, first.error) == (
        5,
        (GpuProcess(3, 5), GpuProcess(4, None)),
        None,
    )
    assert (second.used_mib, second.processes, second.error) == (0, (), None)
    assert gpus.events(0) == []
    gpus.close()
    gpus.close()


@pytest.mark.parametrize("has_reserved", [False, True])
def test_what_the_driver_calls_used_may_have_the_reserved_part(has_reserved: bool) -> None:
    text = PROFILE.replace("reserved_bytes", f"used_has_reserved: {has_reserved}, reserved_bytes")
    gpus = SimulatedGpus(parse_profile("t", text % "healthy"))
    gpus.set_used("GPU-b", 100)
    info = gpus.memory_info("GPU-b")
    assert info.counts_reserved is has_reserved
    assert (info.used - info.used_by_processes, info.free) == (has_reserved << 30, (9216 - 100) << 20)
    assert gpus.sample()[1].used_mib == 100
    gpus.set_used("GPU-b", 0)
    assert gpus.sample()[1].used_mib == 0


def test_use_can_be_set() -> None:
    gpus = source()
    gpus.set_used("GPU-b", 9216, [GpuProcess(9, 100)])
    assert gpus.sample()[1].used_mib == 9216
    assert gpus.sample()[1].processes == (GpuProcess(9, 100),)
    gpus.set_used("GPU-b", 0)
    assert (gpus.sample()[1].used_mib, gpus.sample()[1].processes) == (0, ())


@pytest.mark.parametrize("used_mib", [-1, 9217])
def test_no_more_use_than_the_card_has(used_mib: int) -> None:
    with pytest.raises(GpuError, match=f"used {used_mib} MiB; allowed: 0 to 9216 MiB"):
        source().set_used("GPU-b", used_mib)


def test_unknown_cards_and_modes_are_refused() -> None:
    gpus = source()
    for call in (lambda: gpus.set_used("GPU-x", 1), lambda: gpus.fail("GPU-x"), lambda: gpus.heal("GPU-x")):
        with pytest.raises(GpuError, match="'GPU-x'; allowed: GPU-a, GPU-b"):
            call()
    with pytest.raises(GpuError, match="'tired'; allowed: lost, fallen_off_bus, ecc_uncorrectable"):
        gpus.fail("GPU-a", "tired")


@pytest.mark.parametrize("mode", ["lost", "fallen_off_bus"])
def test_a_lost_card_fails_alone_and_heals(mode: str) -> None:
    gpus = source()
    gpus.fail("GPU-a", mode, xid=79)
    first, second = gpus.sample()
    assert first.error is not None
    assert second.error is None
    assert gpus.events(5) == [HealthEvent("GPU-a", False, "XID 79: the card has fallen off the bus", 79)]
    gpus.heal("GPU-a")
    assert gpus.sample()[0].error is None
    assert gpus.events(5) == [HealthEvent("GPU-a", True, "mended")]


def test_ecc_errors_make_news_and_the_samples_go_on() -> None:
    gpus = source()
    gpus.fail("GPU-a", "ecc_uncorrectable")
    gpus.fail("GPU-b", "ecc_uncorrectable", xid=777)
    assert [sample.error for sample in gpus.sample()] == [None, None]
    assert gpus.events(5) == [
        HealthEvent("GPU-a", False, "uncorrectable ECC errors"),
        HealthEvent("GPU-b", False, "XID 777", 777),
    ]


@pytest.mark.parametrize(("ignored", "healthy"), [({31}, None), (set(), False)])
def test_ignored_xids_say_nothing_of_the_card(ignored: set[int], healthy: bool | None) -> None:
    gpus = SimulatedGpus(load_profile("2xt4"), frozenset(ignored))
    gpus.fail(gpus.cards()[0].uuid, "ecc_uncorrectable", xid=31)
    assert [(event.healthy, event.code) for event in gpus.events(0)] == [(healthy, 31)]


def test_a_failure_of_the_profile_trips_after_its_calls_and_once() -> None:
    gpus = source("lost, after_calls: 2, xid: {code: 79}")
    errors = [gpus.sample()[1].error for _ in range(4)]
    assert [error is not None for error in errors] == [False, False, True, True]
    assert [event.uuid for event in gpus.events(0)] == ["GPU-b"]


def test_a_lost_card_without_an_xid_makes_no_news() -> None:
    gpus = source("lost")
    assert gpus.sample()[1].error == "GPU is lost"
    assert gpus.events(0) == []


def test_closing_wakes_the_one_who_waits_for_events() -> None:
    gpus = source()
    gpus.open()
    got: list[object] = []
    waiting = threading.Thread(target=lambda: got.append(list(gpus.events(60))))
    waiting.start()
    gpus.close()
    waiting.join(30)
    assert not waiting.is_alive()
    assert got == [[]]
    gpus.fail("GPU-a", xid=79)
    assert gpus.events(0) == []
