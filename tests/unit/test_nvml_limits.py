"""Memory limits by the driver, against a driver whose two functions are patched into pynvml."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pynvml
import pytest
from pytest_mock import MockerFixture

from deviceplugin.errors import LimitError
from deviceplugin.gpus.limits import HELD, Enforcement, LimitReading, MemoryLimits
from deviceplugin.gpus.nvml_limits import NvmlLimits

MIB = 1 << 20
UNLIMITED = pynvml.NVML_DEVICE_MEMORY_LIMIT_MAX
ABSENT = pynvml.NVML_ERROR_FUNCTION_NOT_FOUND


@dataclass
class Driver:
    """Keeps limits by handle and cgroup, in bytes; `error` fails every call."""

    hard: dict[tuple[str, str], int] = field(default_factory=dict)
    soft: dict[tuple[str, str], int] = field(default_factory=dict)
    used: dict[tuple[str, str], int] = field(default_factory=dict)
    error: int | None = None
    reads: int = 0

    def set(self, handle: str, wanted: Any) -> None:
        self._fail()
        key = handle, wanted.nameSpace
        self.hard[key], self.soft[key] = wanted.hardLimit, wanted.softLimit

    def get(self, handle: str, found: Any) -> None:
        self.reads += 1
        self._fail()
        key = handle, found.nameSpace
        found.hardLimit = self.hard.get(key, UNLIMITED)
        found.currentUsed = self.used.get(key, 0)

    def _fail(self) -> None:
        if self.error is not None:
            raise pynvml.NVMLError(self.error)


@pytest.fixture
def driver(mocker: MockerFixture) -> Driver:
    found = Driver()
    mocker.patch.object(pynvml, "nvmlDeviceSetMemoryLimits_v1", found.set)
    mocker.patch.object(pynvml, "nvmlDeviceGetMemoryLimits_v1", found.get)
    mocker.patch.object(pynvml, "nvmlSystemGetDriverVersion", return_value="580.65.06")
    return found


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "cgroup.controllers").write_text("cpu memory\n")
    (tmp_path / "pod").mkdir()
    return tmp_path


@pytest.fixture
def limits(driver: Driver, root: Path) -> NvmlLimits:
    del driver
    handles = {"GPU-a": "handle a", "GPU-b": "handle b", "MIG-a": "handle m"}
    return NvmlLimits(handles.get, root)


def test_limits_are_bytes_of_the_cgroups_full_path(driver: Driver, limits: NvmlLimits, root: Path) -> None:
    typed: MemoryLimits = limits
    cgroup = root / "pod"
    assert typed.read("GPU-a", cgroup) == LimitReading(None, 0)
    typed.set("GPU-a", cgroup, 8192)
    key = "handle a", str(cgroup)
    assert (driver.hard, driver.soft) == ({key: 8192 * MIB}, {key: 0})
    driver.used[key] = 5 * MIB + 1
    assert typed.read("GPU-a", cgroup) == LimitReading(8192, 6)
    assert typed.read("GPU-b", cgroup) == LimitReading(None, 0)
    assert typed.container_envs(8192) == {
        "NVIDIA_GPU_MEMORY_REQUEST": "8192",
        "NVIDIA_GPU_MEMORY_LIMIT": "8192",
    }


def test_support_is_asked_once(driver: Driver, limits: NvmlLimits) -> None:
    assert [limits.support("GPU-a") for _ in range(3)] == [HELD] * 3
    assert driver.reads == 1
    assert driver.hard == {}
    assert Enforcement.DRIVER.text == str(HELD)


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_INVALID_ARGUMENT, pynvml.NVML_ERROR_NOT_FOUND])
def test_a_driver_that_only_dislikes_the_cgroup_has_the_call(
    driver: Driver, limits: NvmlLimits, code: int
) -> None:
    driver.error = code
    assert limits.support("GPU-a") == HELD


@pytest.mark.parametrize(
    ("code", "says", "lasts"),
    [
        (ABSENT, "driver 580.65.06 has no call for memory limits; it takes driver 615", True),
        (pynvml.NVML_ERROR_NOT_SUPPORTED, "driver 580.65.06 does not hold memory limits; it takes", True),
        (pynvml.NVML_ERROR_NO_PERMISSION, "run as root", False),
        (pynvml.NVML_ERROR_GPU_IS_LOST, "does not say whether it limits memory: GPU is lost", False),
        (pynvml.NVML_ERROR_UNKNOWN, "does not say whether it limits memory: Unknown Error", False),
    ],
)
def test_cards_are_accounted_where_the_driver_does_not_hold(
    driver: Driver, limits: NvmlLimits, code: int, says: str, lasts: bool
) -> None:
    driver.error = code
    support = limits.support("GPU-a")
    assert not support.held
    assert says in str(support)
    driver.error = None
    assert limits.support("GPU-a").held is not lasts


def test_no_driver_holds_limits_on_mig_instances(driver: Driver, limits: NvmlLimits) -> None:
    assert str(limits.support("MIG-a")) == "the driver holds no limits on MIG instances"
    assert driver.reads == 0


def test_cgroup_v1_is_no_place_for_limits(driver: Driver, limits: NvmlLimits, root: Path) -> None:
    (root / "cgroup.controllers").unlink()
    support = limits.support("GPU-a")
    assert not support.held
    assert "cgroup v1" in support.reason
    assert "cgroup v2" in support.since


def test_bindings_that_lack_the_call(driver: Driver, limits: NvmlLimits, mocker: MockerFixture) -> None:
    mocker.patch.object(pynvml, "nvmlDeviceSetMemoryLimits_v1")
    del pynvml.nvmlDeviceSetMemoryLimits_v1
    assert "nvidia-ml-py 13.615" in str(limits.support("GPU-a"))


def test_a_card_without_a_handle_is_asked_again(limits: NvmlLimits) -> None:
    support = limits.support("GPU-x")
    assert (support.held, support.since) == (False, "")
    with pytest.raises(LimitError, match="does not show the card now") as error:
        limits.set("GPU-x", Path("/"), 5)
    assert error.value.kind == "failed"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (pynvml.NVML_ERROR_INVALID_ARGUMENT, "refused"),
        (ABSENT, "unsupported"),
        (pynvml.NVML_ERROR_NOT_SUPPORTED, "unsupported"),
        (pynvml.NVML_ERROR_GPU_IS_LOST, "failed"),
        (pynvml.NVML_ERROR_UNKNOWN, "failed"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "failed"),
        (424242, "failed"),
    ],
)
def test_errors_name_the_limit_the_card_and_the_cgroup(
    driver: Driver, limits: NvmlLimits, root: Path, code: int, kind: str
) -> None:
    driver.error = code
    with pytest.raises(LimitError, match=rf"limit of 5 MiB on card GPU-a for cgroup {root}/pod: ") as error:
        limits.set("GPU-a", root / "pod", 5)
    assert error.value.kind == kind
    assert limits.support("GPU-a").held is (kind == "refused")


def test_a_cgroup_that_is_gone_whatever_the_driver_says(
    driver: Driver, limits: NvmlLimits, root: Path
) -> None:
    driver.error = pynvml.NVML_ERROR_INVALID_ARGUMENT
    for call in (lambda: limits.set("GPU-a", root / "x", 5), lambda: limits.read("GPU-a", root / "x")):
        with pytest.raises(LimitError, match="the cgroup is gone") as error:
            call()
        assert error.value.kind == "gone"


@pytest.mark.parametrize("hard_mib", [0, -1])
def test_no_limit_is_no_limit_to_set(driver: Driver, limits: NvmlLimits, root: Path, hard_mib: int) -> None:
    with pytest.raises(LimitError, match=f"limit of {hard_mib} MiB .* allowed are 1 MiB or more"):
        limits.set("GPU-a", root / "pod", hard_mib)
    assert driver.hard == {}
