"""The NVML source against a driver whose functions are patched into pynvml."""
# ruff: noqa: N802 (the fake driver's methods are named like NVML's functions)

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
from pytest_mock import MockerFixture

from deviceplugin.errors import GpuError
from deviceplugin.gpus.nvml import NvmlGpus
from deviceplugin.gpus.source import GpuProcess, GpuSource, HealthEvent

MIB = 1 << 20
LOST = pynvml.NVML_ERROR_GPU_IS_LOST
XID_EVENTS = pynvml.nvmlEventTypeXidCriticalError
MIG_EVENTS = pynvml.nvmlEventMigConfigChange
ABSENT = pynvml.NVML_ERROR_FUNCTION_NOT_FOUND


def process(pid: int, used_mib: int | None) -> SimpleNamespace:
    return SimpleNamespace(pid=pid, usedGpuMemory=None if used_mib is None else used_mib * MIB)


@dataclass
class Card:
    """One card as a driver holds it; `errors` maps NVML functions to the codes that they fail with."""

    uuid: str
    total_mib: int = 81559
    reserved_mib: int = 480
    used_mib: int = 0
    bus_id: str = "00000000:1A:00.0"
    minor: int = 3
    numa_mask: int = 2
    compute: list[SimpleNamespace] = field(default_factory=list)
    graphics: list[SimpleNamespace] = field(default_factory=list)
    mps: list[SimpleNamespace] = field(default_factory=list)
    ecc: int = 0
    action: int = 0
    rows: tuple[int, int, int, int] = (0, 0, 0, 0)
    pages: tuple[int, int, int] = (0, 0, 0)
    mig: list["Card"] | None = None
    instance: int = 0
    errors: dict[str, int] = field(default_factory=dict)


class Driver:
    """Answers for pynvml's functions from plain data."""

    def __init__(self, mocker: MockerFixture) -> None:
        self.cards = [Card("GPU-a"), Card("GPU-b", minor=4, numa_mask=1)]
        self.errors: dict[str, int] = {}
        self.news: list[SimpleNamespace | int] = []
        self.registered: list[str] = []
        self.calls: list[str] = []
        self.heard = threading.Event()
        for name in [
            "Init",
            "Shutdown",
            "EventSetCreate",
            "EventSetFree",
            "EventSetWait_v2",
            "DeviceGetCount",
            "DeviceGetHandleByIndex",
            "DeviceGetUUID",
            "DeviceGetName",
            "DeviceGetMinorNumber",
            "DeviceGetPciInfo",
            "DeviceGetMemoryInfo",
            "DeviceGetMemoryAffinity",
            "DeviceGetMigMode",
            "DeviceGetMaxMigDeviceCount",
            "DeviceGetGpuInstanceId",
            "DeviceGetMigDeviceHandleByIndex",
            "DeviceRegisterEvents",
            "DeviceGetTotalEccErrors",
            "DeviceGetRemappedRows",
            "DeviceGetRetiredPages",
            "DeviceGetRetiredPagesPendingStatus",
            "DeviceGetFieldValues",
            "DeviceGetComputeRunningProcesses_v3",
            "DeviceGetComputeRunningProcesses_v2",
            "DeviceGetGraphicsRunningProcesses_v3",
            "DeviceGetGraphicsRunningProcesses_v2",
            "DeviceGetMPSComputeRunningProcesses_v3",
            "DeviceGetMPSComputeRunningProcesses_v2",
        ]:
            mocker.patch.object(pynvml, f"nvml{name}", self._answer(name))

    def _answer(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(name)
            errors = args[0].errors if args and isinstance(args[0], Card) else self.errors
            key = f"{name}_v2" if kwargs.get("version") else name
            if key in errors:
                raise pynvml.NVMLError(errors[key])
            return getattr(self, name.removesuffix("_v2").removesuffix("_v3"))(*args, **kwargs)

        return call

    def Init(self) -> None: ...
    def Shutdown(self) -> None: ...
    def EventSetFree(self, events: object) -> None: ...

    def EventSetCreate(self) -> object:
        return object()

    def EventSetWait(self, events: object, timeout_ms: int) -> SimpleNamespace:
        if not self.news:
            self.heard.set()
            threading.Event().wait(0.005)
            raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
        news = self.news.pop(0)
        if isinstance(news, int):
            raise pynvml.NVMLError(news)
        return news

    def DeviceGetCount(self) -> int:
        return len(self.cards)

    def DeviceGetHandleByIndex(self, index: int) -> Card:
        card = self.cards[index]
        if "Handle" in card.errors:
            raise pynvml.NVMLError(card.errors["Handle"])
        return card

    def DeviceGetUUID(self, card: Card) -> str:
        return card.uuid

    def DeviceGetName(self, card: Card) -> str:
        return "NVIDIA H100 80GB HBM3"

    def DeviceGetMinorNumber(self, card: Card) -> int:
        return card.minor

    def DeviceGetPciInfo(self, card: Card) -> SimpleNamespace:
        return SimpleNamespace(busId=card.bus_id)

    def DeviceGetMemoryInfo(self, card: Card, version: int | None = None) -> SimpleNamespace:
        v1_used = card.used_mib + (0 if version else card.reserved_mib)
        info = SimpleNamespace(total=card.total_mib * MIB, used=v1_used * MIB)
        if version:
            assert version == pynvml.nvmlMemory_v2
            info.reserved = card.reserved_mib * MIB - 1
        return info

    def DeviceGetMemoryAffinity(self, card: Card, words: int, scope: int) -> list[int]:
        return [card.numa_mask] + [0] * (words - 1)

    def DeviceGetMigMode(self, card: Card) -> list[int]:
        return [int(card.mig is not None)] * 2

    def DeviceGetMaxMigDeviceCount(self, card: Card) -> int:
        return 7

    def DeviceGetMigDeviceHandleByIndex(self, card: Card, index: int) -> Card:
        # NVML numbers the places; a place without an instance is not found.
        for instance in card.mig or ():
            if instance.instance == index:
                return instance
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    def DeviceGetGpuInstanceId(self, card: Card) -> int:
        return card.instance

    def DeviceRegisterEvents(self, card: Card, kinds: int, events: object) -> None:
        assert kinds in (XID_EVENTS | MIG_EVENTS, XID_EVENTS)
        self.registered.append(card.uuid)

    def DeviceGetTotalEccErrors(self, card: Card, kind: int, counter: int) -> int:
        return card.ecc

    def DeviceGetRemappedRows(self, card: Card) -> tuple[int, int, int, int]:
        return card.rows

    def DeviceGetRetiredPages(self, card: Card, cause: int) -> list[int]:
        return list(range(card.pages[cause]))

    def DeviceGetRetiredPagesPendingStatus(self, card: Card) -> int:
        return card.pages[2]

    def DeviceGetFieldValues(self, card: Card, fields: list[int]) -> list[SimpleNamespace]:
        assert fields == [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION]
        return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=card.action))]

    def DeviceGetComputeRunningProcesses(self, card: Card) -> list[SimpleNamespace]:
        return card.compute

    def DeviceGetGraphicsRunningProcesses(self, card: Card) -> list[SimpleNamespace]:
        return card.graphics

    def DeviceGetMPSComputeRunningProcesses(self, card: Card) -> list[SimpleNamespace]:
        return card.mps


@pytest.fixture
def driver(mocker: MockerFixture) -> Driver:
    return Driver(mocker)


@pytest.fixture
def gpus(driver: Driver, tmp_path: Path) -> Iterator[NvmlGpus]:
    source = NvmlGpus(pci_devices=tmp_path)
    yield source
    source.close()


def xid(card: Any, code: int, **fields: int) -> SimpleNamespace:
    return SimpleNamespace(
        device=card, eventType=pynvml.nvmlEventTypeXidCriticalError, eventData=code, **fields
    )


def test_enumeration(driver: Driver, gpus: NvmlGpus) -> None:
    source: GpuSource = gpus
    source.open()
    first, second = source.cards()
    assert (first.index, first.uuid, first.model) == (0, "GPU-a", "NVIDIA H100 80GB HBM3")
    assert (first.total_mib, first.reserved_mib, first.schedulable_mib) == (81559, 480, 81079)
    assert (first.numa, first.bus_id, first.minor, first.error) == (1, "0000:1a:00.0", 3, None)
    assert (second.index, second.uuid, second.numa, second.minor) == (1, "GPU-b", 0, 4)


def test_memory_v2_keeps_the_reserved_part_out(driver: Driver, gpus: NvmlGpus) -> None:
    driver.cards[0].used_mib = 1000
    gpus.open()
    assert [sample.used_mib for sample in gpus.sample()] == [1000, 0]


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
    assert (driver.calls.count("Init"), driver.calls.count("Shutdown")) == (2, 2)


def test_a_card_without_a_handle_is_listed_and_the_others_work(driver: Driver, gpus: NvmlGpus) -> None:
    driver.cards[0].errors["Handle"] = LOST
    gpus.open()
    lost, good = gpus.cards()
    assert (lost.uuid, lost.schedulable_mib, lost.error) == ("GPU-unreadable-0", 0, "GPU is lost")
    assert (good.index, good.error) == (1, None)
    assert [sample.error for sample in gpus.sample()] == ["GPU is lost", None]


def test_a_card_without_memory_at_the_start_takes_its_size_later(driver: Driver, gpus: NvmlGpus) -> None:
    driver.cards[1].errors = {"DeviceGetMemoryInfo": LOST, "DeviceGetMemoryInfo_v2": LOST}
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


def test_processes_of_all_lists_once_each(driver: Driver, gpus: NvmlGpus) -> None:
    card = driver.cards[0]
    card.compute = [process(30, 100), process(10, None), process(20, 5)]
    card.graphics = [process(30, 90), process(40, 7)]
    card.mps = [process(20, 6), process(50, None)]
    gpus.open()
    assert gpus.sample()[0].processes == (
        GpuProcess(10, None),
        GpuProcess(20, 6),
        GpuProcess(30, 100),
        GpuProcess(40, 7),
        GpuProcess(50, None),
    )
    assert gpus.sample()[1].processes == ()


def test_older_process_lists(driver: Driver, gpus: NvmlGpus) -> None:
    driver.cards[0].compute = [process(1, 2)]
    driver.cards[0].errors["DeviceGetComputeRunningProcesses_v3"] = ABSENT
    driver.cards[1].errors["DeviceGetComputeRunningProcesses_v3"] = ABSENT
    driver.cards[1].errors["DeviceGetComputeRunningProcesses_v2"] = ABSENT
    gpus.open()
    assert [sample.processes for sample in gpus.sample()] == [(GpuProcess(1, 2),), None]


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
    assert [sample.processes for sample in source.sample()] == [(GpuProcess(1, 2),), None]
    source.close()


def test_missing_graphics_and_mps_lists_hide_nothing_else(driver: Driver, gpus: NvmlGpus) -> None:
    driver.cards[0].compute = [process(1, 2)]
    for kind in ("Graphics", "MPSCompute"):
        driver.cards[0].errors[f"DeviceGet{kind}RunningProcesses_v3"] = pynvml.NVML_ERROR_NOT_SUPPORTED
    gpus.open()
    assert gpus.sample()[0].processes == (GpuProcess(1, 2),)


def test_xids_come_as_events_of_their_card(driver: Driver, gpus: NvmlGpus) -> None:
    driver.news = [xid(driver.cards[1], 79)]
    gpus.open()
    assert gpus.events(30) == [HealthEvent("GPU-b", False, "XID 79: the card has fallen off the bus", 79)]
    assert driver.registered == ["GPU-a", "GPU-b"]


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
    other.eventType = pynvml.nvmlEventTypePState
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
    mocker.patch("deviceplugin.gpus.nvml_events.EVENT_WAIT_MS", 1)
    driver.news = [LOST, pynvml.NVML_ERROR_UNKNOWN, xid(driver.cards[0], 79)]
    gpus.open()
    assert [event.uuid for event in gpus.events(30)] == ["GPU-a"]


@pytest.mark.parametrize("fails", ["EventSetCreate", "DeviceRegisterEvents"])
def test_without_events_health_rests_on_the_samples(driver: Driver, gpus: NvmlGpus, fails: str) -> None:
    unsupported = pynvml.NVML_ERROR_NOT_SUPPORTED
    driver.errors[fails] = unsupported
    for card in driver.cards:
        card.errors[fails] = unsupported
    gpus.open()
    assert gpus.events(0) == []
    assert "EventSetWait_v2" not in driver.calls
    assert [sample.error for sample in gpus.sample()] == [None, None]


def test_closing_ends_the_watching_and_lets_the_library_go(driver: Driver, gpus: NvmlGpus) -> None:
    gpus.open()
    assert driver.heard.wait(30)
    gpus.close()
    gpus.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "nvml-events"]
    assert driver.calls[-2:] == ["EventSetFree", "Shutdown"]


def test_it_can_be_opened_again(driver: Driver, gpus: NvmlGpus) -> None:
    gpus.open()
    gpus.close()
    driver.news = [xid(driver.cards[0], 79)]
    gpus.open()
    assert [event.uuid for event in gpus.events(30)] == ["GPU-a"]
    assert len(gpus.cards()) == 2


def test_mig_instances_stand_in_for_their_card(driver: Driver, gpus: NvmlGpus) -> None:
    driver.cards[0].mig = [
        Card("MIG-1", total_mib=40448, reserved_mib=40, used_mib=9, instance=1, compute=[process(5, 9)]),
        Card("MIG-5", total_mib=9728, reserved_mib=10, instance=5),
    ]
    gpus.open()
    assert [(card.index, card.uuid, card.schedulable_mib) for card in gpus.cards()] == [
        (0, "MIG-1", 40408),
        (1, "MIG-5", 9718),
        (2, "GPU-b", 81079),
    ]
    assert [(card.minor, card.numa) for card in gpus.cards()] == [(3, 1), (3, 1), (4, 0)]
    first, second, third = gpus.sample()
    assert (first.used_mib, first.processes) == (9, (GpuProcess(5, 9),))
    assert (second.used_mib, second.processes, third.used_mib) == (0, (), 0)
    assert driver.registered == ["GPU-a", "GPU-b"]


@pytest.mark.parametrize(
    ("fields", "uuids"),
    [
        ({"gpuInstanceId": 5}, {"MIG-5"}),
        ({"gpuInstanceId": 0xFFFFFFFF}, {"MIG-1", "MIG-5"}),
        ({}, {"MIG-1", "MIG-5"}),
    ],
)
def test_an_xid_finds_its_mig_instances(
    driver: Driver, gpus: NvmlGpus, mocker: MockerFixture, fields: dict[str, int], uuids: set[str]
) -> None:
    mocker.patch("deviceplugin.gpus.nvml_calls.address", side_effect=id)
    driver.cards[0].mig = [Card("MIG-1", instance=1), Card("MIG-5", instance=5)]
    driver.news = [xid(driver.cards[0], 79, **fields)]
    gpus.open()
    found = list(gpus.events(30))
    while len(found) < len(uuids):
        found += gpus.events(30)
    assert {event.uuid for event in found} == uuids


def test_mig_mode_without_instances_is_shown(driver: Driver, gpus: NvmlGpus) -> None:
    driver.cards[0].mig = []
    gpus.open()
    card = gpus.cards()[0]
    assert (card.uuid, card.schedulable_mib) == ("GPU-a", 0)
    assert card.error == "MIG mode is on and there are no instances: create some or turn it off"
    assert gpus.sample()[0].error == card.error


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
