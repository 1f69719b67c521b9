"""Cards that change under the NVML source: instances, cards that are lost and back, errors of every kind."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pynvml
import pytest

from deviceplugin.errors import DriverGoneError, GpuError, LimitError
from deviceplugin.gpus.api.source import GONE_S
from deviceplugin.gpus.nvidia.source import AGAIN_S, NvmlGpus
from tests.nvml_library import SYMBOLS
from tests.nvml_world import LIMIT_CALLS, LOST, Card, Driver, driver, xid

__all__ = ["driver"]

CODES = sorted(
    value
    for name, value in vars(pynvml).items()
    if name.startswith("NVML_ERROR_") and isinstance(value, int) and value != pynvml.NVML_SUCCESS
)


@pytest.fixture
def now_s() -> list[float]:
    return [0.0]


@pytest.fixture
def gpus(driver: Driver, tmp_path: Path, now_s: list[float]) -> Iterator[NvmlGpus]:
    source = NvmlGpus(pci_devices=tmp_path, clock=lambda: now_s[0])
    yield source
    source.close()


def uuids(gpus: NvmlGpus) -> list[str]:
    assert [sample.uuid for sample in gpus.sample()] == [card.uuid for card in gpus.cards()]
    return [card.uuid for card in gpus.cards()]


def errors(gpus: NvmlGpus) -> list[str | None]:
    return [sample.error for sample in gpus.sample()]


def test_instances_come_and_go(driver: Driver, gpus: NvmlGpus) -> None:
    gpus.open()
    driver.cards[0].mig = [Card("MIG-1", instance=1), Card("MIG-2", instance=2)]
    assert uuids(gpus) == ["MIG-1", "MIG-2", "GPU-b"]
    assert [card.parent for card in gpus.cards()] == ["GPU-a", "GPU-a", None]
    driver.cards[0].mig = [driver.cards[0].mig[1], Card("MIG-3", total_mib=10240, instance=3)]
    assert uuids(gpus) == ["MIG-2", "MIG-3", "GPU-b"]
    assert errors(gpus) == [None] * 3
    driver.cards[0].mig = []
    assert uuids(gpus) == ["GPU-a", "GPU-b"]
    assert errors(gpus)[0] == "MIG mode is on and there are no instances: create some or turn it off"
    driver.cards[0].mig = None
    assert uuids(gpus) == ["GPU-a", "GPU-b"]
    assert errors(gpus) == [None, None]


def test_the_driver_tells_of_new_instances(driver: Driver, gpus: NvmlGpus) -> None:
    event = xid(driver.cards[0], 0)
    event.kind = pynvml.nvmlEventMigConfigChange
    driver.news = [event]
    gpus.open()
    assert gpus.events(30) == []


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("gone from the count", ""),
        ("no handle", ": GPU is lost"),
        ("no UUID", ": the driver does not tell its UUID"),
    ],
)
def test_a_lost_card_stays_and_the_others_keep_their_places(
    driver: Driver, gpus: NvmlGpus, how: str, says: str
) -> None:
    gpus.open()
    lost = driver.cards[0]
    if how == "gone from the count":
        driver.cards = driver.cards[1:]
    else:
        lost.errors = {"Handle": LOST} if how == "no handle" else {"DeviceGetUUID": LOST}
    before = list(gpus.cards())
    assert errors(gpus) == [f"the driver does not show the card any more{says}", None]
    assert list(gpus.cards()) == before
    driver.cards, lost.errors = [lost, *driver.cards[-1:]], {}
    assert errors(gpus) == [None, None]
    assert list(gpus.cards()) == before


def test_instances_of_a_lost_card_stay(driver: Driver, gpus: NvmlGpus) -> None:
    driver.cards[0].mig = [Card("MIG-1", instance=1)]
    gpus.open()
    for call in (
        "DeviceGetMigMode",
        "DeviceGetMigDeviceHandleByIndex",
        "DeviceGetMaxMigDeviceCount",
        "Handle",
    ):
        driver.cards[0].errors = {call: LOST}
        assert uuids(gpus) == ["MIG-1", "GPU-b"]
    driver.cards[0].errors = {}
    assert errors(gpus) == [None, None]


def test_instances_that_cannot_be_listed_for_a_moment_are_known_by_their_places(
    driver: Driver, gpus: NvmlGpus
) -> None:
    board = driver.cards[0]
    board.mig = [Card("MIG-1", instance=1), Card("MIG-2", instance=2)]
    gpus.open()
    board.errors = {"DeviceGetMaxMigDeviceCount": LOST}
    assert errors(gpus) == ["its MIG instances cannot be listed: GPU is lost"] * 2 + [None]
    driver.news = [xid(board, 79, gpu_instance=2)]
    assert [event.uuid for event in gpus.events(30)] == ["MIG-2"]
    # The card is back, and one of its instances is not yet.
    board.errors, board.mig[1].errors = {}, {"Handle": pynvml.NVML_ERROR_UNKNOWN}
    assert uuids(gpus) == ["MIG-1", "MIG-2", "GPU-b"]
    board.mig[1].errors = {}
    assert errors(gpus) == [None] * 3


def test_the_library_is_started_again_while_a_card_is_lost_and_not_too_often(
    driver: Driver, gpus: NvmlGpus, now_s: list[float]
) -> None:
    gpus.open()
    driver.cards[0].errors["Handle"] = LOST
    starts = []
    for now_s[0] in range(0, 1000, 5):
        gpus.sample()
        starts.append(driver.calls.count("InitWithFlags"))
    assert starts[-1] == 1 + 5  # again after 30, 60, 120, 240 and 480 s more
    assert starts[: int(AGAIN_S) // 5] == [1] * (int(AGAIN_S) // 5)
    driver.cards[0].errors = {}
    assert errors(gpus) == [None, None]
    driver.news = [xid(driver.cards[0], 79)]
    assert [event.uuid for event in gpus.events(30)] == ["GPU-a"]


@pytest.mark.parametrize("tells_zero", [False, True])
def test_a_card_whose_memory_is_never_told_is_told_once_and_left(
    driver: Driver, gpus: NvmlGpus, now_s: list[float], tells_zero: bool
) -> None:
    """An integrated GPU: to start the library again brings nothing, and takes the other cards' samples."""
    none = pynvml.NVML_ERROR_NOT_SUPPORTED
    if tells_zero:
        driver.cards[0].total_mib = driver.cards[0].reserved_mib = 0
    else:
        driver.cards[0].errors = {"DeviceGetMemoryInfo": none}
    gpus.open()
    card = gpus.cards()[0]
    assert (card.uuid, card.schedulable_mib) == ("GPU-a", 0)
    assert "an integrated GPU, which shares the system's" in str(card.error)
    asked = driver.calls.count("DeviceGetMemoryInfo_v2")
    for now_s[0] in range(0, 1000, 5):
        assert [sample.error for sample in gpus.sample()] == [card.error, None]
    assert driver.calls.count("InitWithFlags") == 1
    # Once for each sample of the other card.
    assert driver.calls.count("DeviceGetMemoryInfo_v2") - asked == 200


def test_a_driver_that_is_loaded_again_is_taken_up(driver: Driver, gpus: NvmlGpus) -> None:
    gpus.open()
    driver.errors["DeviceGetCount"] = pynvml.NVML_ERROR_UNINITIALIZED
    with pytest.raises(GpuError, match="cannot count the cards"):
        gpus.sample()
    driver.errors = {"Init": pynvml.NVML_ERROR_DRIVER_NOT_LOADED}
    with pytest.raises(GpuError, match="modprobe nvidia"):
        gpus.sample()
    assert [card.uuid for card in gpus.cards()] == ["GPU-a", "GPU-b"]
    driver.errors = {}
    assert errors(gpus) == [None, None]


def unload(driver: Driver, gpus: NvmlGpus) -> None:
    """Let the driver be taken out while the source is open."""
    driver.errors = {
        "DeviceGetCount": pynvml.NVML_ERROR_UNINITIALIZED,
        "Init": pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    }
    with pytest.raises(GpuError, match="cannot count the cards"):
        gpus.sample()


def test_a_driver_that_was_exchanged_ends_the_process(driver: Driver, gpus: NvmlGpus) -> None:
    """The library in this process stays that of the driver before: no try ever succeeds."""
    gpus.open()
    unload(driver, gpus)
    driver.errors = {"Init": pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH}
    with pytest.raises(DriverGoneError, match=r"NVML/RM version mismatch; this process ends, and"):
        gpus.sample()


def test_a_driver_that_stays_unloaded_ends_the_process(
    driver: Driver, gpus: NvmlGpus, now_s: list[float]
) -> None:
    gpus.open()
    unload(driver, gpus)
    for now_s[0] in range(0, int(GONE_S), 5):
        with pytest.raises(GpuError, match="modprobe nvidia"):
            gpus.sample()
    now_s[0] = GONE_S
    with pytest.raises(DriverGoneError, match="Driver Not Loaded; this process ends"):
        gpus.sample()


def test_a_driver_that_is_away_again_and_again_is_not_away_for_long(
    driver: Driver, gpus: NvmlGpus, now_s: list[float]
) -> None:
    gpus.open()
    for now_s[0] in range(0, 5 * int(GONE_S), int(GONE_S) - 1):
        unload(driver, gpus)
        with pytest.raises(GpuError, match="modprobe nvidia"):
            gpus.sample()
        driver.errors = {}
        assert errors(gpus) == [None, None]


def test_a_driver_of_another_version_that_starts_ends_the_process(driver: Driver, gpus: NvmlGpus) -> None:
    gpus.open()
    unload(driver, gpus)
    # A version that is not told is no other one.
    driver.errors = {"SystemGetDriverVersion": pynvml.NVML_ERROR_UNKNOWN}
    assert errors(gpus) == [None, None]
    assert gpus.driver_version() == "580.65.06"
    unload(driver, gpus)
    driver.errors, driver.version = {}, "615.10.01"
    with pytest.raises(DriverGoneError, match=r"the driver was version 580\.65\.06 and is 615\.10\.01; this"):
        gpus.sample()
    # Another process begins with what is there.
    gpus.close()
    gpus.open()
    assert errors(gpus) == [None, None]


@pytest.mark.parametrize(
    "code", [pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, pynvml.NVML_ERROR_DRIVER_NOT_LOADED]
)
def test_a_driver_that_never_worked_is_no_exchanged_one(driver: Driver, gpus: NvmlGpus, code: int) -> None:
    driver.errors = {"Init": code}
    with pytest.raises(GpuError) as error:
        gpus.open()
    assert not isinstance(error.value, DriverGoneError)


def test_while_the_driver_is_let_go_others_may_change_what_nobody_may_use(
    driver: Driver, gpus: NvmlGpus
) -> None:
    gpus.open()
    parts = [Card("MIG-1", instance=1), Card("MIG-2", instance=2)]
    with pytest.raises(pynvml.NVMLError_InUse):
        driver.set_mig_mode(driver.cards[0], parts)
    before = list(gpus.cards())
    gpus.detach()
    gpus.detach()
    assert (driver.opened, list(gpus.cards())) == (0, before)
    assert gpus._handle_of("GPU-a") is None
    driver.set_mig_mode(driver.cards[0], parts)
    assert uuids(gpus) == ["MIG-1", "MIG-2", "GPU-b"]
    assert (driver.opened, errors(gpus)) == (1, [None] * 3)
    driver.news = [xid(driver.cards[1], 79)]
    assert [event.uuid for event in gpus.events(30)] == ["GPU-b"]
    gpus.close()
    assert driver.opened == 0


def test_no_handle_outlasts_the_library_that_gave_it(driver: Driver, gpus: NvmlGpus) -> None:
    """Limits are set from threads of their own, also while the library is started again."""
    gpus.open()
    assert pynvml.nvmlDeviceGetUUID(gpus._handle_of("GPU-a")) == "GPU-a"
    unload(driver, gpus)
    assert gpus._handle_of("GPU-a") is None
    with pytest.raises(LimitError, match="does not show the card now"):
        gpus.limits.set("GPU-a", Path("/x"), 1024)


WHOLE = {"Init", "DeviceGetCount", "EventSetCreate"}
NOT_SERVING = {*LIMIT_CALLS, "DeviceCreateGpuInstance", "DeviceGetGpuInstanceProfileInfo"}
PER_CARD = {name for name in dir(Driver) if name.startswith("Device")} - NOT_SERVING
PER_CARD = PER_CARD - {"DeviceGetHandleByIndex"} | {"DeviceGetMemoryInfo_v2", "Handle"}


def fail(driver: Driver, name: str, code: int | None) -> None:
    """Let a call, of whatever version, fail for the whole library or for the first card; None mends it."""
    broken = {} if code is None else {name: code}
    driver.errors = {key: value for key, value in broken.items() if key in WHOLE}
    for card in (driver.cards[0], *(driver.cards[0].mig or ())):
        card.errors = broken


NEEDED = {f"nvml{name}" for name in ("InitWithFlags", "DeviceGetCount_v2")}
OF_EVERY_CARD = {f"nvml{name}" for name in ("DeviceGetHandleByIndex_v2", "DeviceGetUUID")}
OF_INSTANCES = {f"nvmlDeviceGet{name}" for name in ("MigDeviceHandleByIndex", "MaxMigDeviceCount")}


@pytest.mark.parametrize("symbol", sorted(SYMBOLS.keys() - NEEDED))
def test_a_library_without_a_symbol(driver: Driver, gpus: NvmlGpus, symbol: str) -> None:
    """Whatever an older driver lacks, no call ends in a traceback, and cards that can be named work."""
    driver.missing.add(symbol)
    driver.cards[0].mig = [Card("MIG-1", instance=1)]
    gpus.open()
    told = errors(gpus)
    gpus.events(0)
    if symbol in OF_EVERY_CARD:
        assert all(told)
    else:
        assert told[-1] is None
        assert (told[0] is not None) == (symbol in OF_INSTANCES)


@pytest.mark.parametrize("symbol", sorted(NEEDED))
def test_a_library_that_cannot_list_cards_is_refused(driver: Driver, gpus: NvmlGpus, symbol: str) -> None:
    driver.missing.add(symbol)
    with pytest.raises(GpuError, match="Function Not Found"):
        gpus.open()


@pytest.mark.parametrize("code", CODES)
def test_every_error_of_every_call_is_data_or_one_line(driver: Driver, gpus: NvmlGpus, code: int) -> None:
    """Never anything but GpuError, the other card works on, and all is as before once it is over."""
    driver.cards[0].mig = [Card("MIG-1", instance=1)]
    gpus.open()
    known = list(gpus.cards())
    for name in sorted(WHOLE | PER_CARD):
        fail(driver, name, code)
        _one_line(lambda: _others_work(gpus))
        fail(driver, name, None)
        assert gpus.sample()[-1].error is None, name
        assert list(gpus.cards()) == known, name


@pytest.mark.parametrize("code", CODES)
def test_every_error_of_every_call_at_the_start(driver: Driver, gpus: NvmlGpus, code: int) -> None:
    driver.cards[0].mig = [Card("MIG-1", instance=1)]
    # Without events there is no thread to wait for.
    for name in sorted(WHOLE | PER_CARD - {"DeviceRegisterEvents"}):
        fail(driver, name, code)
        driver.errors["EventSetCreate"] = code
        _one_line(gpus.open)
        fail(driver, name, None)
        gpus.close()


def _others_work(gpus: NvmlGpus) -> None:
    assert gpus.sample()[-1].error is None


def _one_line(call: Callable[[], object]) -> None:
    try:
        call()
    except GpuError as error:
        assert "\n" not in str(error)  # noqa: PT017


def test_memory_errors_are_counted_and_a_failed_remapping_is_trouble(driver: Driver, gpus: NvmlGpus) -> None:
    driver.cards[0].rows, driver.cards[0].pages, driver.cards[0].ecc = (1, 2, 1, 0), (3, 4, 1), 5
    gpus.open()
    sample = gpus.sample()[0]
    assert sample.error is None
    assert sample.memory_errors == {
        "ecc_uncorrected": 5,
        "rows_remapped_corrected": 1,
        "rows_remapped_uncorrected": 2,
        "row_remap_pending": 1,
        "row_remap_failed": 0,
        "pages_retired_corrected": 3,
        "pages_retired_uncorrected": 4,
        "page_retirement_pending": 1,
    }
    driver.cards[0].rows = (1, 2, 0, 1)
    assert errors(gpus)[0] == "memory row remapping failed: the card is to be replaced"
    driver.cards[0].ecc = 6
    assert "uncorrectable ECC errors: 6, 5" in str(errors(gpus)[0])
