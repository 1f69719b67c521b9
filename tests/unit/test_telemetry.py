"""What cards do: NVML's answers, simulated values, the history of a node, its metrics and its JSON."""

from dataclasses import replace
from typing import Any

import pynvml
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from deviceplugin.gpus.api.source import GpuCard, GpuProcess, GpuSample
from deviceplugin.gpus.api.telemetry import NO_TELEMETRY, CardTelemetry, name_throttle_reasons
from deviceplugin.gpus.nvidia.source import NvmlGpus
from deviceplugin.gpus.simulated.profile import load_profile
from deviceplugin.gpus.simulated.source import SimulatedGpus
from deviceplugin.gpus.simulated.telemetry import simulate_telemetry
from deviceplugin.monitoring.telemetry import FRESH_S, HISTORY_S, TelemetryCollector, TelemetryHistory
from tests.nvml_world import ABSENT, LOST, Card, Driver, driver, gpus

__all__ = ["driver", "gpus"]

UNSUPPORTED = pynvml.NVML_ERROR_NOT_SUPPORTED
TOLD = CardTelemetry(
    utilization_percent=87.0,
    memory_utilization_percent=41.0,
    temperature_c=66.0,
    power_w=402.125,
    power_limit_w=700.0,
    sm_clock_mhz=1755.0,
    memory_clock_mhz=2619.0,
    throttle_reasons=("sw_power_cap", "sw_thermal_slowdown"),
)


def make_busy(card: Card) -> None:
    card.utilization, card.temperature_c, card.power_mw = (87, 41), 66, 402_125
    card.clocks_mhz, card.clocks_reasons = (1755, 2619), 0b100100


# --- NVML -------------------------------------------------------------------------------------------------


def test_a_driver_tells_everything(driver: Driver, gpus: NvmlGpus) -> None:
    make_busy(driver.cards[0])
    gpus.open()
    assert gpus.sample()[0].telemetry == TOLD


@pytest.mark.parametrize(
    ("call", "unknown"),
    [
        ("DeviceGetUtilizationRates", ("utilization_percent", "memory_utilization_percent")),
        ("DeviceGetTemperature", ("temperature_c",)),
        ("DeviceGetPowerUsage", ("power_w",)),
        ("DeviceGetEnforcedPowerLimit", ("power_limit_w",)),
        ("DeviceGetClockInfo", ("sm_clock_mhz", "memory_clock_mhz")),
    ],
)
@pytest.mark.parametrize("code", [UNSUPPORTED, ABSENT])
def test_what_a_driver_does_not_tell_is_unknown_and_not_0(
    driver: Driver, gpus: NvmlGpus, call: str, unknown: tuple[str, ...], code: int
) -> None:
    make_busy(driver.cards[0])
    driver.cards[0].errors[call] = code
    gpus.open()
    sample = gpus.sample()[0]
    assert sample.telemetry == replace(TOLD, **dict.fromkeys(unknown))
    assert (sample.error, set(unknown) & sample.telemetry.to_json().keys()) == (None, set())


def test_an_older_driver_calls_the_reasons_throttle_reasons(driver: Driver, gpus: NvmlGpus) -> None:
    make_busy(driver.cards[0])
    driver.cards[0].errors["DeviceGetCurrentClocksEventReasons"] = ABSENT
    gpus.open()
    assert gpus.sample()[0].telemetry == TOLD
    driver.cards[0].errors["DeviceGetCurrentClocksThrottleReasons"] = UNSUPPORTED
    assert gpus.sample()[0].telemetry.throttle_reasons is None


def test_a_lost_card_does_nothing_that_is_known(driver: Driver, gpus: NvmlGpus) -> None:
    gpus.open()
    driver.cards[0].errors |= dict.fromkeys(("DeviceGetMemoryInfo", "DeviceGetMemoryInfo_v2"), LOST)
    assert gpus.sample()[0].telemetry == NO_TELEMETRY


def test_a_number_that_cannot_be_is_not_told(driver: Driver, gpus: NvmlGpus) -> None:
    driver.cards[0].utilization = (4_294_967_295, 41)
    gpus.open()
    telemetry = gpus.sample()[0].telemetry
    assert (telemetry.utilization_percent, telemetry.memory_utilization_percent) == (None, 41.0)


def test_a_card_in_mig_mode_is_asked_once_and_tells_no_utilization(driver: Driver, gpus: NvmlGpus) -> None:
    card = driver.cards[0]
    make_busy(card)
    card.mig = [Card("MIG-1", instance=1), Card("MIG-2", instance=2)]
    gpus.open()
    driver.calls.clear()
    samples = gpus.sample()
    expected = replace(TOLD, utilization_percent=None, memory_utilization_percent=None)
    assert [sample.telemetry for sample in samples[:2]] == [expected] * 2
    assert driver.calls.count("DeviceGetPowerUsage") == len(driver.cards)


@pytest.mark.parametrize(
    ("mask", "names"),
    [
        (0, ()),
        (1, ("gpu_idle",)),
        (0b1_1111_1110, name_throttle_reasons(511)[1:]),
        (512 | 4, ("sw_power_cap", "unknown")),
    ],
)
def test_reasons_by_their_bits(mask: int, names: tuple[str, ...]) -> None:
    assert name_throttle_reasons(mask) == names


def test_every_bit_of_nvml_has_its_name() -> None:
    bits = {
        name.removeprefix("nvmlClocksEventReason"): value
        for name, value in vars(pynvml).items()
        if name.startswith("nvmlClocksEventReason") and name.removeprefix("nvmlClocksEventReason") != "All"
    }
    for name, value in bits.items():
        said = "".join(part.capitalize() for each in name_throttle_reasons(value) for part in each.split("_"))
        assert said == {"None": "", "UserDefinedClocks": "ApplicationsClocksSetting"}.get(name, name)


# --- simulated cards --------------------------------------------------------------------------------------


def test_simulated_cards_do_what_runs_on_them() -> None:
    now_s = [0.0]
    source = SimulatedGpus(load_profile("8xh100-80"), clock=lambda: now_s[0])
    source.open()
    uuid = source.cards()[0].uuid
    idle = source.sample()[0].telemetry
    assert (idle.utilization_percent, idle.throttle_reasons) == (0.0, ("gpu_idle",))
    source.set_used(uuid, 4096, [GpuProcess(4242, 4096)])
    busy, other = (sample.telemetry for sample in source.sample()[:2])
    assert other == idle
    for field in ("utilization_percent", "memory_utilization_percent", "temperature_c", "power_w"):
        assert getattr(busy, field) > getattr(idle, field), field
    assert (busy.power_limit_w, busy.throttle_reasons) == (700.0, ())
    now_s[0] = 20.0
    assert source.sample()[0].telemetry != busy
    now_s[0] = 60.0
    assert source.sample()[0].telemetry == busy
    source.set_used(uuid, 0)
    assert source.sample()[0].telemetry == idle


@pytest.mark.parametrize("architecture", ["turing", "ampere", "ada_lovelace", "hopper", "", "unheard of"])
@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_simulated_values_are_plausible(architecture: str, count: int) -> None:
    processes = [GpuProcess(100 + each, 512) for each in range(count)]
    for now_s in range(0, 120, 7):
        found = simulate_telemetry(architecture, processes, float(now_s))
        again = simulate_telemetry(architecture, processes, float(now_s))
        assert found == again
        numbers: dict[str, Any] = found.to_json()
        assert len(numbers) == len(TOLD.to_json())
        assert 0 <= numbers["memory_utilization_percent"] <= numbers["utilization_percent"] <= 100
        assert 30 <= numbers["temperature_c"] <= 85
        assert 0 < numbers["power_w"] <= numbers["power_limit_w"]
        assert ("sw_power_cap" in numbers["throttle_reasons"]) == (numbers["utilization_percent"] >= 95)


def test_simulated_instances_tell_what_their_card_does() -> None:
    source = SimulatedGpus(load_profile("8xa100-40"))
    source.open()
    uuid = source.cards()[0].uuid
    source.partition(uuid, ["3g.20gb", "3g.20gb"])
    first, second = source.cards()[:2]
    idle = source.sample()[0].telemetry
    source.set_used(second.uuid, 1024, [GpuProcess(7, 1024)])
    samples = {sample.uuid: sample.telemetry for sample in source.sample()}
    assert samples[first.uuid] == samples[second.uuid]
    assert samples[first.uuid].utilization_percent is None
    assert (samples[first.uuid].power_w or 0) > (idle.power_w or 0)


# --- the history of a node --------------------------------------------------------------------------------


class Node:
    """A history with a clock that a test turns."""

    def __init__(self, every_s: float = 5.0) -> None:
        self.now_s = 100.0
        self.history = TelemetryHistory(every_s, lambda: self.now_s)
        self.cards = [GpuCard(0, "GPU-a", "NVIDIA H100", 81559, 480, 0, "", 0)]

    def measure(self, *told: CardTelemetry, after_s: float = 5.0) -> None:
        self.now_s += after_s
        samples = [
            GpuSample(card.uuid, 0, (), telemetry=each) for card, each in zip(self.cards, told, strict=True)
        ]
        self.history.add(self.cards, samples)

    def write_metrics(self) -> str:
        registry = CollectorRegistry()
        registry.register(TelemetryCollector(self.history.list_activities))
        return "\n".join(
            line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")
        )


def test_metrics_have_their_units() -> None:
    node = Node()
    node.measure(TOLD)
    labels = 'model="NVIDIA H100",uuid="GPU-a"'
    reasons = [
        "gpu_idle 0",
        "applications_clocks_setting 0",
        "sw_power_cap 1",
        "hw_slowdown 0",
        "sync_boost 0",
    ]
    reasons += ["sw_thermal_slowdown 1", "hw_thermal_slowdown 0", "hw_power_brake_slowdown 0"]
    reasons += ["display_clock_setting 0", "unknown 0"]
    assert node.write_metrics().splitlines() == [
        f"gpupack_card_utilization_ratio{{{labels}}} 0.87",
        f"gpupack_card_memory_utilization_ratio{{{labels}}} 0.41",
        f"gpupack_card_temperature_celsius{{{labels}}} 66.0",
        f"gpupack_card_power_watts{{{labels}}} 402.125",
        f"gpupack_card_power_limit_watts{{{labels}}} 700.0",
        f"gpupack_card_sm_clock_hertz{{{labels}}} 1.755e+09",
        f"gpupack_card_memory_clock_hertz{{{labels}}} 2.619e+09",
        *(
            f'gpupack_card_clocks_event_reason{{model="NVIDIA H100",reason="{name}",uuid="GPU-a"}} {value}.0'
            for name, value in (each.split() for each in reasons)
        ),
    ]


def test_what_is_unknown_has_no_sample() -> None:
    node = Node()
    node.measure(CardTelemetry(temperature_c=0.0))
    assert node.write_metrics() == 'gpupack_card_temperature_celsius{model="NVIDIA H100",uuid="GPU-a"} 0.0'
    node.measure(NO_TELEMETRY)
    assert node.write_metrics() == ""


def test_old_measurements_say_nothing_of_now() -> None:
    node = Node()
    node.measure(TOLD)
    node.now_s += FRESH_S + 1
    assert node.write_metrics() == ""
    assert node.history.explain(history=False)["cards"][0]["now"] == {}


def test_a_card_in_mig_mode_has_one_sample() -> None:
    node = Node()
    node.cards = [
        replace(node.cards[0], index=at, uuid=f"MIG-{at}", model="NVIDIA A100 MIG 3g.20gb", parent="GPU-a")
        for at in range(2)
    ]
    node.measure(NO_TELEMETRY, CardTelemetry(power_w=90.0))
    assert node.write_metrics() == 'gpupack_card_power_watts{model="NVIDIA A100",uuid="GPU-a"} 90.0'
    (told,) = node.history.explain(history=False)["cards"]
    assert (told["uuid"], told["cards"]) == ("GPU-a", ("MIG-0", "MIG-1"))


def test_json_of_the_course() -> None:
    node = Node()
    node.measure(CardTelemetry(power_w=90.0, throttle_reasons=("gpu_idle",)))
    node.measure(NO_TELEMETRY)
    node.measure(CardTelemetry(power_w=95.5, power_limit_w=700.0, throttle_reasons=()))
    node.now_s += 1
    assert node.history.explain(history=True) == {
        "cards": [
            {
                "uuid": "GPU-a",
                "model": "NVIDIA H100",
                "cards": ("GPU-a",),
                "now": {"power_w": 95.5, "power_limit_w": 700.0, "throttle_reasons": []},
                "history": {"age_s": [11.0, 6.0, 1.0], "power_w": [90.0, None, 95.5]},
            }
        ]
    }


def test_the_history_is_bounded_also_while_news_come() -> None:
    node = Node()
    for _ in range(500):
        node.measure(TOLD)
    (told,) = node.history.explain(history=True)["cards"]
    assert len(told["history"]["age_s"]) == HISTORY_S / 5
    for _ in range(50):
        node.measure(TOLD, after_s=0.5)
    ages = node.history.explain(history=True)["cards"][0]["history"]["age_s"]
    assert len(ages) == HISTORY_S / 5
    assert ages[0] > HISTORY_S * 0.9


def test_a_card_that_is_gone_is_forgotten() -> None:
    node = Node()
    node.measure(TOLD)
    node.cards = [replace(node.cards[0], uuid="GPU-b")]
    node.measure(CardTelemetry(power_w=1.0))
    (told,) = node.history.explain(history=True)["cards"]
    assert (told["uuid"], told["history"]["age_s"]) == ("GPU-b", [0.0])
