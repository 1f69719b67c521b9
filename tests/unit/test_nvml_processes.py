"""Which processes use a card: what the driver lists, and what it does not show."""

from pathlib import Path

import pynvml
import pytest

from deviceplugin.gpus.api.source import GpuProcess
from deviceplugin.gpus.nvidia.source import NvmlGpus
from tests.nvml_world import ABSENT, Driver, driver, gpus, process

__all__ = ["driver", "gpus"]


def test_processes_of_all_lists_once_each(driver: Driver, gpus: NvmlGpus) -> None:
    card = driver.cards[0]
    card.compute = [process(30, 100), process(10, None), process(20, 5)]
    card.graphics = [process(30, 90), process(40, 7)]
    card.mps = [process(20, 6), process(50, None)]
    gpus.open()
    assert gpus.sample()[0].processes == (
        GpuProcess(10, None, 0),
        GpuProcess(20, 6, 0),
        GpuProcess(30, 100, 0),
        GpuProcess(40, 7, 0),
        GpuProcess(50, None, 0),
    )
    assert gpus.sample()[1].processes == ()


def test_what_one_list_tells_of_a_process_stands_whatever_another_leaves_out(
    driver: Driver, gpus: NvmlGpus
) -> None:
    card = driver.cards[0]
    card.compute = [process(10, None), process(20, 5)]
    card.graphics = [process(10, 5), process(20, None)]
    gpus.open()
    assert gpus.sample()[0].processes == (GpuProcess(10, 5, 0), GpuProcess(20, 5, 0))


def test_processes_tell_how_busy_they_kept_the_card_since_the_last_measurement(
    driver: Driver, gpus: NvmlGpus
) -> None:
    card = driver.cards[0]
    card.compute = [process(1, 2), process(2, 2), process(3, 2)]
    card.busy = [(1, 1_000, 20), (1, 2_000, 41), (2, 2_000, 70), (3, 1_000, 4_000_000_000)]
    gpus.open()

    def busy() -> list[int | None]:
        return [each.compute_percent for each in gpus.sample()[0].processes or ()]

    assert busy() == [30, 70, 0], "4 000 000 000 is no percent"
    card.busy.append((2, 3_000, 10))
    assert busy() == [0, 10, 0]
    assert busy() == [0, 0, 0]


def test_a_card_that_does_not_tell_how_busy_processes_keep_it_says_so_once(
    driver: Driver, gpus: NvmlGpus, capsys: pytest.CaptureFixture[str]
) -> None:
    card = driver.cards[0]
    card.compute = [process(1, 2)]
    card.errors["DeviceGetProcessUtilization"] = pynvml.NVML_ERROR_NOT_SUPPORTED
    gpus.open()
    assert [gpus.sample()[0].processes for _ in range(2)] == [(GpuProcess(1, 2),)] * 2
    assert capsys.readouterr().out.count("does not tell what compute") == 1


def test_older_process_lists(driver: Driver, gpus: NvmlGpus) -> None:
    driver.cards[0].compute = [process(1, 2)]
    driver.cards[0].errors["DeviceGetComputeRunningProcesses_v3"] = ABSENT
    driver.cards[1].errors["DeviceGetComputeRunningProcesses_v3"] = ABSENT
    driver.cards[1].errors["DeviceGetComputeRunningProcesses_v2"] = ABSENT
    gpus.open()
    assert [sample.processes for sample in gpus.sample()] == [(GpuProcess(1, 2, 0),), None]


@pytest.mark.parametrize("hidden", ["no right", "pid 0"])
def test_processes_that_cannot_be_told(driver: Driver, gpus: NvmlGpus, hidden: str) -> None:
    driver.cards[0].compute = [process(0, 5)]
    if hidden == "no right":
        driver.cards[0].errors["DeviceGetComputeRunningProcesses_v3"] = pynvml.NVML_ERROR_NO_PERMISSION
    gpus.open()
    sample = gpus.sample()[0]
    assert (sample.processes, sample.error) == (None, None)


def test_an_empty_list_says_nothing_where_the_driver_hides_processes(driver: Driver, tmp_path: Path) -> None:
    source = NvmlGpus(pci_devices=tmp_path, sees_processes=False)
    driver.cards[0].compute = [process(1, 2)]
    source.open()
    assert [sample.processes for sample in source.sample()] == [(GpuProcess(1, 2, 0),), None]
    source.close()


def test_missing_graphics_and_mps_lists_hide_nothing_else(driver: Driver, gpus: NvmlGpus) -> None:
    driver.cards[0].compute = [process(1, 2)]
    for kind in ("Graphics", "MPSCompute"):
        driver.cards[0].errors[f"DeviceGet{kind}RunningProcesses_v3"] = pynvml.NVML_ERROR_NOT_SUPPORTED
    gpus.open()
    assert gpus.sample()[0].processes == (GpuProcess(1, 2, 0),)
