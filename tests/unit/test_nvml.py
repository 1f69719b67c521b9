"""The NVML source through the real pynvml, against a driver of plain data: cards, memory and errors."""

from pathlib import Path
from typing import TYPE_CHECKING

import pynvml
import pytest

from allocator.names import MIB
from deviceplugin.errors import GpuError
from deviceplugin.gpus.api.memory_info import MemoryInfo
from deviceplugin.gpus.nvidia.source import NvmlGpus
from tests.nvml_world import ABSENT, LOST, Driver, driver, gpus, xid

if TYPE_CHECKING:
    from deviceplugin.gpus.api.source import GpuSource

__all__ = ["driver", "gpus"]


def test_enumeration(driver: Driver, gpus: NvmlGpus) -> None:
    source: GpuSource = gpus
    source.open()
    first, second = source.cards()
    assert (first.index, first.uuid, first.model) == (0, "GPU-a", "NVIDIA H100 80GB HBM3")
    assert (first.total_mib, first.reserved_mib, first.schedulable_mib) == (81559, 480, 81079)
    assert (first.numa, first.bus_id, first.minor, first.error) == (1, "0000:1a:00.0", 3, None)
    assert (second.index, second.uuid, second.numa, second.minor) == (1, "GPU-b", 0, 4)


@pytest.mark.parametrize("used_has_reserved", [False, True])
def test_memory_v2_keeps_the_reserved_part_out(
    driver: Driver, gpus: NvmlGpus, used_has_reserved: bool
) -> None:
    """NVIDIA's reference says that `used` has it, its struct that it has not."""
    for card in driver.cards:
        card.used_has_reserved = used_has_reserved
    driver.cards[0].used_mib = 1000
    gpus.open()
    assert [sample.used_mib for sample in gpus.sample()] == [1000, 0]
    driver.cards[0].used_mib = 81079
    assert gpus.sample()[0].used_mib == gpus.cards()[0].schedulable_mib


@pytest.mark.parametrize(
    ("used_has_reserved", "free_mib", "used_mib"),
    [
        (False, 0, 1000),
        (False, 81559, 1000),
        (True, 0, 1480),
        (True, 81559, 1480),
        (True, 79979, 1100),
    ],
)
def test_memory_that_does_not_add_up_is_never_too_little(
    driver: Driver, gpus: NvmlGpus, used_has_reserved: bool, free_mib: int, used_mib: int
) -> None:
    card = driver.cards[0]
    card.used_mib, card.used_has_reserved, card.free_mib = 1000, used_has_reserved, free_mib
    gpus.open()
    assert abs(gpus.sample()[0].used_mib - used_mib) <= 1


@pytest.mark.parametrize(
    ("free", "used", "alone", "counts"),
    [
        (90, 5, 0, True),
        (90, 0, 0, False),
        (60, 35, 30, True),
        (60, 30, 30, False),
        (60, 33, 30, None),
        (0, 5, 5, None),
        (100, 5, 5, None),
    ],
)
def test_whether_used_has_reserved_in_it(free: int, used: int, alone: int, counts: bool | None) -> None:
    """A card of 95 MiB of which the driver keeps 5."""
    info = MemoryInfo(95 * MIB, 5 * MIB, free * MIB, used * MIB)
    assert (info.used_by_processes // MIB, info.counts_reserved) == (alone, counts)


def test_without_a_reserved_part_nothing_says_whether_used_has_it() -> None:
    assert MemoryInfo(95 * MIB, 0, 90 * MIB, 5 * MIB).counts_reserved is None


def test_memory_is_told_as_the_driver_tells_it(driver: Driver, gpus: NvmlGpus) -> None:
    driver.cards[0].used_has_reserved = True
    gpus.open()
    info = gpus.memory_info("GPU-a")
    assert (info.total // MIB, info.used, info.counts_reserved) == (81559, info.reserved, True)
    driver.cards[0].errors = {"DeviceGetMemoryInfo": LOST}
    for uuid, says in (("GPU-a", "GPU is lost"), ("GPU-x", "does not show the card")):
        with pytest.raises(GpuError, match=f"memory of card '{uuid}' cannot be read: .*{says}"):
            gpus.memory_info(uuid)


@pytest.mark.parametrize(
    "code",
    [ABSENT, pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH],
)
def test_old_drivers_without_memory_v2(driver: Driver, gpus: NvmlGpus, code: int) -> None:
    for card in driver.cards:
        card.errors["DeviceGetMemoryInfo_v2"] = code
    gpus.open()
    assert [(card.total_mib, card.reserved_mib) for card in gpus.cards()] == [(81559, 0)] * 2
    assert [sample.used_mib for sample in gpus.sample()] == [480, 480]


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "install the NVIDIA driver.*--gpus simulated"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "modprobe nvidia"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "reboot the node"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "/dev/nvidiactl"),
        (pynvml.NVML_ERROR_UNKNOWN, "dmesg"),
    ],
)
def test_a_missing_driver_is_one_clear_error(driver: Driver, gpus: NvmlGpus, code: int, says: str) -> None:
    driver.errors["Init"] = code
    with pytest.raises(GpuError, match=rf"NVML \(libnvidia-ml.so.1\) cannot start: .*{says}"):
        gpus.open()
    gpus.close()
    assert "Shutdown" not in driver.calls


def test_a_machine_without_the_library() -> None:
    source = NvmlGpus()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        with pytest.raises(GpuError, match="libnvidia-ml"):
            source.open()
    else:
        pynvml.nvmlShutdown()
        pytest.skip("this machine has an NVIDIA driver")


def test_no_card_and_no_count_are_errors_and_the_library_is_let_go(driver: Driver, gpus: NvmlGpus) -> None:
    driver.cards = []
    with pytest.raises(GpuError, match="shows no card"):
        gpus.open()
    driver.errors["DeviceGetCount"] = pynvml.NVML_ERROR_UNKNOWN
    with pytest.raises(GpuError, match="cannot count the cards: Unknown Error"):
        gpus.open()
    assert (driver.calls.count("InitWithFlags"), driver.calls.count("Shutdown")) == (2, 2)


def test_a_card_without_a_handle_is_listed_and_the_others_work(driver: Driver, gpus: NvmlGpus) -> None:
    driver.cards[0].errors["Handle"] = LOST
    gpus.open()
    lost, good = gpus.cards()
    assert (lost.uuid, lost.schedulable_mib, lost.error) == ("GPU-unreadable-0", 0, "GPU is lost")
    assert (good.index, good.error) == (1, None)
    assert [sample.error for sample in gpus.sample()] == ["GPU is lost", None]


def test_a_card_without_memory_at_the_start_takes_its_size_later(driver: Driver, gpus: NvmlGpus) -> None:
    driver.cards[1].errors = {"DeviceGetMemoryInfo": LOST}
    gpus.open()
    assert [(card.uuid, card.total_mib) for card in gpus.cards()] == [("GPU-a", 81559), ("GPU-b", 0)]
    assert gpus.cards()[1].error == "memory cannot be read: GPU is lost"
    assert gpus.sample()[1].error == "memory cannot be read: GPU is lost"
    driver.cards[1].errors = {}
    assert gpus.sample()[1].error is None
    assert (gpus.cards()[1].total_mib, gpus.cards()[1].error) == (81559, None)


def test_a_card_without_uuid_stays_unreadable_until_it_has_one(driver: Driver, gpus: NvmlGpus) -> None:
    driver.cards[0].errors["DeviceGetUUID"] = LOST
    gpus.open()
    assert gpus.cards()[0].uuid == "GPU-unreadable-0"
    assert gpus.sample()[0].error == "the driver does not tell its UUID"
    driver.cards[0].errors = {}
    assert (gpus.sample()[0].uuid, gpus.cards()[0].uuid) == ("GPU-a", "GPU-a")


def test_a_card_that_is_lost_later_fails_alone_and_heals(driver: Driver, gpus: NvmlGpus) -> None:
    gpus.open()
    driver.cards[0].errors["DeviceGetMemoryInfo_v2"] = LOST
    assert [sample.error for sample in gpus.sample()] == ["memory cannot be read: GPU is lost", None]
    driver.cards[0].errors = {}
    assert [sample.error for sample in gpus.sample()] == [None, None]


def test_what_the_driver_need_not_tell(driver: Driver, gpus: NvmlGpus) -> None:
    unsupported = pynvml.NVML_ERROR_NOT_SUPPORTED
    for name in (
        "Name",
        "MinorNumber",
        "PciInfo",
        "MemoryAffinity",
        "MigMode",
        "TotalEccErrors",
        "FieldValues",
    ):
        driver.cards[0].errors[f"DeviceGet{name}"] = unsupported
    gpus.open()
    card = gpus.cards()[0]
    assert (card.model, card.minor, card.bus_id, card.numa, card.error) == ("", -1, "", None, None)
    assert gpus.sample()[0].error is None


@pytest.mark.parametrize(
    ("mask", "kernel", "numa"),
    [(1, None, 0), (1 << 5, "2\n", 5), (3, "1\n", 1), (0, "-1\n", None), (0, None, None), (0, "x", None)],
)
def test_numa_from_the_driver_else_the_kernel(
    driver: Driver, gpus: NvmlGpus, tmp_path: Path, mask: int, kernel: str | None, numa: int | None
) -> None:
    driver.cards[0].numa_mask = mask
    if kernel is not None:
        (tmp_path / "0000:1a:00.0").mkdir()
        (tmp_path / "0000:1a:00.0" / "numa_node").write_text(kernel)
    gpus.open()
    assert gpus.cards()[0].numa == numa


@pytest.mark.parametrize(
    ("told", "cpus", "coherent", "found"),
    [
        pytest.param(1, "\n", False, 1, id="GH200: a node without CPUs"),
        pytest.param(1, "0-71\n", True, None, id="a library that names the nearest node"),
        pytest.param(1, None, True, 1, id="the kernel does not show it, the addressing mode does"),
        pytest.param(1, None, False, None, id="neither shows it"),
        pytest.param(None, "\n", True, None, id="GH200 whose driver manages the memory"),
        pytest.param(0xFFFFFFFF, "\n", True, None, id="no node"),
    ],
)
def test_memory_that_is_a_numa_node_of_the_system(
    driver: Driver, tmp_path: Path, told: int | None, cpus: str | None, coherent: bool, found: int | None
) -> None:
    card = driver.cards[0]
    card.memory_node, card.coherent = told, coherent
    if cpus is not None:
        (tmp_path / "node1").mkdir()
        (tmp_path / "node1" / "cpulist").write_text(cpus)
    gpus = NvmlGpus(pci_devices=tmp_path, numa_nodes=tmp_path)
    gpus.open()
    assert [each.memory_node for each in gpus.cards()] == [found, None]
    assert [sample.keeps_pages for sample in gpus.sample()] == [found is not None, False]
    gpus.close()


def test_it_can_be_opened_again(driver: Driver, gpus: NvmlGpus) -> None:
    gpus.open()
    gpus.close()
    driver.news = [xid(driver.cards[0], 79)]
    gpus.open()
    assert [event.uuid for event in gpus.events(30)] == ["GPU-a"]
    assert len(gpus.cards()) == 2


@pytest.mark.parametrize(("action", "error"), [(0, None), (1, "a GPU reset"), (2, "a reboot"), (3, None)])
def test_what_the_driver_asks_for(driver: Driver, gpus: NvmlGpus, action: int, error: str | None) -> None:
    driver.cards[0].action = action
    gpus.open()
    found = gpus.sample()[0].error
    assert (found is None) if error is None else (found is not None and error in found)


def test_new_uncorrectable_ecc_errors_are_trouble_once(driver: Driver, gpus: NvmlGpus) -> None:
    driver.cards[0].ecc = 3
    gpus.open()
    assert gpus.sample()[0].error is None
    driver.cards[0].ecc = 4
    assert gpus.sample()[0].error == "uncorrectable ECC errors: 4, 3 at the last look"
    assert gpus.sample()[0].error is None
    driver.cards[0].ecc = 0
    assert gpus.sample()[0].error is None


@pytest.mark.parametrize("call", ["DeviceGetMemoryInfo", "DeviceGetTotalEccErrors"])
def test_ecc_errors_that_come_while_the_card_cannot_be_read_are_new(
    driver: Driver, gpus: NvmlGpus, call: str
) -> None:
    driver.cards[0].ecc = 3
    gpus.open()
    gpus.sample()
    driver.cards[0].ecc, driver.cards[0].errors = 4, {call: pynvml.NVML_ERROR_UNKNOWN}
    gpus.sample()
    driver.cards[0].errors = {}
    assert gpus.sample()[0].error == "uncorrectable ECC errors: 4, 3 at the last look"
    assert gpus.sample()[0].error is None
