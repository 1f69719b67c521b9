"""Tests the driver's answers about a real card against NVIDIA's own program and against processes."""

import json
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from deviceplugin.gpus.api.source import GpuCard, GpuSample, HealthEvent
from deviceplugin.gpus.nvidia.source import NvmlGpus
from tests.hardware.programs import Report, run_cuda

MOST_S = 60.0
PIECE_MIB = 1024
# Measured on an H100: 7 to 9 MiB.
UNTOLD_MIB = 32

LIST_PROCESSES = """
import json, sys
from deviceplugin.gpus.nvidia.source import NvmlGpus
from deviceplugin.host.cgroups import in_host_pid_namespace
gpus = NvmlGpus(sees_processes=in_host_pid_namespace())
gpus.open()
sample = gpus.sample()[0]
print(json.dumps([sample.used_mib, sample.processes]))
"""


def query(nvidia_smi: str, card: GpuCard, *fields: str) -> list[str]:
    """Ask NVIDIA's program about the card."""
    command = [
        nvidia_smi,
        f"--query-gpu={','.join(fields)}",
        "--format=csv,noheader,nounits",
        "-i",
        card.uuid,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [value.strip() for value in done.stdout.split(",")]


def measure(source: NvmlGpus, card: GpuCard) -> GpuSample:
    found = next(sample for sample in source.sample() if sample.uuid == card.uuid)
    assert found.error is None
    return found


def open_devices() -> list[str]:
    """Device nodes of the driver that this process has open."""
    targets = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            targets.append(str(entry.readlink()))
        except OSError:
            continue
    return [target for target in targets if target.startswith("/dev/nvidia")]


def test_the_card_is_the_one_that_nvidia_smi_shows(source: NvmlGpus, card: GpuCard, nvidia_smi: str) -> None:
    name, total, reserved, bus_id, driver = query(
        nvidia_smi, card, "name", "memory.total", "memory.reserved", "pci.bus_id", "driver_version"
    )
    assert (card.model, card.total_mib, card.bus_id) == (name, int(total), bus_id.lower()[4:])
    assert abs(card.reserved_mib - int(reserved)) <= 1
    assert source.driver_version() == driver
    assert card.architecture


def test_what_a_card_does_is_what_nvidia_smi_shows(
    source: NvmlGpus, card: GpuCard, nvidia_smi: str, report: Report
) -> None:
    times_ms = []
    for _ in range(100):
        began_s = time.perf_counter()
        told = measure(source, card).telemetry
        times_ms.append((time.perf_counter() - began_s) * 1000)
    report("one measurement, ms", round(statistics.median(times_ms), 2))
    temperature, limit, power = query(nvidia_smi, card, "temperature.gpu", "power.limit", "power.draw")
    assert told.power_limit_w == pytest.approx(float(limit), abs=0.01)
    assert told.temperature_c == pytest.approx(float(temperature), abs=5)
    assert told.power_w == pytest.approx(float(power), rel=0.5)
    assert told.sm_clock_mhz
    assert told.memory_clock_mhz
    assert told.utilization_percent is not None
    assert told.throttle_reasons is not None


@pytest.mark.parametrize("programs", [1, 4, 16])
def test_what_processes_use_adds_up_to_what_the_card_uses(
    source: NvmlGpus, card: GpuCard, programs: int, report: Report
) -> None:
    before_mib = measure(source, card).used_mib
    with ExitStack() as stack:
        running = [
            stack.enter_context(run_cuda({"NVIDIA_VISIBLE_DEVICES": card.uuid})) for _ in range(programs)
        ]
        for program in running:
            assert program.start() <= card.total_mib
            assert program.fill(PIECE_MIB) == PIECE_MIB
        sample = measure(source, card)
        by_pid = {process.pid: process.used_mib or 0 for process in sample.processes or ()}
        assert set(by_pid) == {program.pid for program in running}
        assert min(by_pid.values()) >= PIECE_MIB
        report("context of a process, MiB", max(by_pid.values()) - PIECE_MIB)
        # What no process is told to use, a node publishes as used by others beyond 256 MiB.
        untold_mib = sample.used_mib - sum(by_pid.values())
        report(f"beside what {programs} processes are told to use, MiB", untold_mib)
        assert 0 <= untold_mib <= before_mib + UNTOLD_MIB * programs
    end_s = time.monotonic() + MOST_S
    while measure(source, card).used_mib > before_mib + UNTOLD_MIB:
        assert time.monotonic() < end_s
        time.sleep(0.2)


def test_another_pid_namespace_is_told_of_no_process(source: NvmlGpus, card: GpuCard) -> None:
    with run_cuda({"NVIDIA_VISIBLE_DEVICES": card.uuid}) as program:
        program.start()
        assert program.fill(PIECE_MIB) == PIECE_MIB
        inside = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", LIST_PROCESSES]
        done = subprocess.run(inside, stdout=subprocess.PIPE, text=True, check=True)
        used_mib, processes = json.loads(done.stdout)
        assert used_mib >= PIECE_MIB
        assert processes is None
        assert measure(source, card).processes


def test_a_program_with_a_mistake_leaves_the_card_healthy(source: NvmlGpus, card: GpuCard) -> None:
    with run_cuda({"NVIDIA_VISIBLE_DEVICES": card.uuid}) as program:
        program.start()
        said = program.ask("fault")
        assert "ILLEGAL_ADDRESS" in str(said.get("error")), said
        news: list[HealthEvent] = []
        end_s = time.monotonic() + MOST_S
        while not news:
            assert time.monotonic() < end_s
            news += [event for event in source.events(1.0) if event.code is not None]
    assert {(event.uuid, event.code, event.healthy) for event in news} == {(card.uuid, 31, None)}
    assert measure(source, card).error is None


def test_a_driver_that_is_let_go_is_not_open_any_more(source: NvmlGpus, card: GpuCard) -> None:
    assert open_devices()
    source.detach()
    assert open_devices() == []
    assert measure(source, card).uuid == card.uuid
