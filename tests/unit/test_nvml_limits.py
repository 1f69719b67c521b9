"""Memory limits by the driver, against a driver of plain data behind the real pynvml."""

from pathlib import Path
from typing import Any

import pynvml
import pytest
from pytest_mock import MockerFixture

from deviceplugin.enforcement.limit_plan import WantedLimit
from deviceplugin.enforcement.limit_setter import LimitJob, apply_limits
from deviceplugin.errors import LimitError
from deviceplugin.gpus.api.memory_limits import HELD, Enforcement, LimitReading, MemoryLimits
from deviceplugin.gpus.nvidia.memory_limits import PROBE, NvmlLimits
from tests.nvml_world import ABSENT, LIMIT_CALLS, MIB, Driver

SET, GET = LIMIT_CALLS


@pytest.fixture
def driver(mocker: MockerFixture) -> Driver:
    made = Driver(mocker)
    made.upgrade()
    return made


def fail(driver: Driver, code: int | None, *calls: str) -> None:
    """Let calls fail on every card, by default both of limits; None mends them."""
    for card in driver.cards:
        card.errors = {} if code is None else dict.fromkeys(calls or LIMIT_CALLS, code)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "cgroup.controllers").write_text("cpu memory\n")
    (tmp_path / "pod").mkdir()
    return tmp_path


@pytest.fixture
def limits(driver: Driver, root: Path) -> NvmlLimits:
    del driver
    return NvmlLimits(find_handle, root)


def find_handle(uuid: str) -> Any:
    return None if uuid == "GPU-x" else pynvml.nvmlDeviceGetHandleByUUID(uuid)


def test_limits_are_bytes_of_the_cgroups_full_path(driver: Driver, limits: NvmlLimits, root: Path) -> None:
    typed: MemoryLimits = limits
    cgroup = root / "pod"
    assert typed.read("GPU-a", cgroup) == LimitReading(None, 0)
    typed.set("GPU-a", cgroup, 8192)
    key = "GPU-a", str(cgroup)
    assert (driver.limits.hard, driver.limits.soft) == ({key: 8192 * MIB}, {key: 0})
    driver.limits.used[key] = 5 * MIB + 1
    assert typed.read("GPU-a", cgroup) == LimitReading(8192, 6)
    assert typed.read("GPU-b", cgroup) == LimitReading(None, 0)
    assert typed.container_envs(8192) == {
        "NVIDIA_GPU_MEMORY_REQUEST": "0",
        "NVIDIA_GPU_MEMORY_LIMIT": "8192",
    }


def test_support_is_proven_by_a_limit_on_a_cgroup_of_our_own_once(
    driver: Driver, limits: NvmlLimits, root: Path
) -> None:
    assert [limits.support("GPU-a") for _ in range(3)] == [HELD] * 3
    assert (list(driver.limits.hard), driver.calls.count(SET)) == ([("GPU-a", str(root / PROBE))], 1)
    assert driver.limits.standing() == {}
    assert not (root / PROBE).exists()
    assert Enforcement.DRIVER.text == str(HELD)


def test_it_is_tried_where_the_pods_are(driver: Driver, root: Path) -> None:
    """With the kernel's dmem controller the cgroups above decide, too."""
    limits = NvmlLimits(find_handle, root, probe_parent=lambda: root / "pod")
    assert limits.support("GPU-a") == HELD
    assert (list(driver.limits.hard), driver.calls.count(SET)) == ([("GPU-a", str(root / "pod" / PROBE))], 1)


@pytest.mark.parametrize(
    ("code", "says", "lasts"),
    [
        (ABSENT, "driver 580.65.06 has no call for memory limits; it takes driver 615", True),
        (pynvml.NVML_ERROR_NOT_SUPPORTED, "driver 580.65.06 does not hold memory limits; it takes", True),
        (pynvml.NVML_ERROR_NO_PERMISSION, "Insufficient Permissions; it takes CAP_SYS_ADMIN", True),
        (pynvml.NVML_ERROR_GPU_IS_LOST, "does not say whether it limits memory: GPU is lost", False),
        (pynvml.NVML_ERROR_UNKNOWN, "does not say whether it limits memory: Unknown Error", False),
        (pynvml.NVML_ERROR_INVALID_ARGUMENT, "does not say whether it limits memory: Invalid", False),
        (pynvml.NVML_ERROR_NOT_FOUND, "does not say whether it limits memory: Not Found", False),
    ],
)
def test_cards_are_accounted_where_the_driver_does_not_hold(
    driver: Driver, limits: NvmlLimits, code: int, says: str, lasts: bool
) -> None:
    driver.version = "580.65.06"
    fail(driver, code)
    support = limits.support("GPU-a")
    assert (support.can_limit, support.is_forbidden) == (False, code == pynvml.NVML_ERROR_NO_PERMISSION)
    assert says in str(support)
    fail(driver, None)
    assert limits.support("GPU-a").can_limit is not lasts


def test_a_right_to_read_limits_is_none_to_set_them(driver: Driver, limits: NvmlLimits) -> None:
    """As in a pod whose capabilities are dropped: every read works, and no container is ever limited."""
    fail(driver, pynvml.NVML_ERROR_NO_PERMISSION, SET)
    support = limits.support("GPU-a")
    assert (support.can_limit, support.is_forbidden) == (False, True)
    assert "CAP_SYS_ADMIN" in str(support)


def test_a_right_that_is_missing_after_all_is_told(driver: Driver, limits: NvmlLimits, root: Path) -> None:
    assert limits.support("GPU-a") == HELD
    fail(driver, pynvml.NVML_ERROR_NO_PERMISSION, SET)
    (outcome,) = apply_limits(limits, "GPU-a", [LimitJob(root / "pod", EIGHT)])
    assert outcome.fault == "forbidden"
    assert limits.support("GPU-a").is_forbidden
    assert limits.support("GPU-b").is_forbidden


@pytest.mark.parametrize("unset", [None, pynvml.NVML_ERROR_NOT_FOUND])
def test_a_limit_that_is_taken_and_not_kept_proves_nothing(
    driver: Driver, limits: NvmlLimits, unset: int | None
) -> None:
    driver.limits.unset, driver.limits.keeps = unset, False
    support = limits.support("GPU-a")
    assert (support.can_limit, support.is_forbidden) == (False, False)
    assert support.reason.endswith("and there was none")
    driver.limits.keeps = True
    assert limits.support("GPU-a") == HELD


def test_no_driver_holds_limits_on_mig_instances(driver: Driver, limits: NvmlLimits) -> None:
    assert str(limits.support("MIG-a")) == "the driver holds no limits on MIG instances"
    assert driver.calls.count(GET) == 0


@pytest.mark.parametrize("code", [None, ABSENT, pynvml.NVML_ERROR_NO_PERMISSION])
def test_cgroup_v1_is_no_place_for_limits(
    driver: Driver, limits: NvmlLimits, root: Path, code: int | None
) -> None:
    """A driver without the call is the longer way to limits, so it is named first."""
    (root / "cgroup.controllers").unlink()
    fail(driver, code)
    support = limits.support("GPU-a")
    assert (support.can_limit, driver.calls.count(SET), (root / PROBE).exists()) == (False, 0, False)
    assert ("has no call" if code == ABSENT else "cgroup v1") in support.reason
    assert ("driver 615" if code == ABSENT else "cgroup v2") in support.since


def test_bindings_that_lack_the_call(driver: Driver, limits: NvmlLimits, mocker: MockerFixture) -> None:
    mocker.patch.object(pynvml, "nvmlDeviceSetMemoryLimits_v1")
    del pynvml.nvmlDeviceSetMemoryLimits_v1
    assert "nvidia-ml-py 13.615" in str(limits.support("GPU-a"))


def test_a_card_without_a_handle_is_asked_again(limits: NvmlLimits) -> None:
    support = limits.support("GPU-x")
    assert (support.can_limit, support.since) == (False, "")
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
        (pynvml.NVML_ERROR_NO_PERMISSION, "forbidden"),
        (424242, "failed"),
    ],
)
def test_errors_name_the_limit_the_card_and_the_cgroup(
    driver: Driver, limits: NvmlLimits, root: Path, code: int, kind: str
) -> None:
    fail(driver, code)
    with pytest.raises(LimitError, match=rf"limit of 5 MiB on card GPU-a for cgroup {root}/pod: ") as error:
        limits.set("GPU-a", root / "pod", 5)
    assert error.value.kind == kind
    assert not limits.support("GPU-a").can_limit
    fail(driver, None)
    assert limits.support("GPU-a").can_limit is (kind not in {"unsupported", "forbidden"})


def test_a_cgroup_that_is_gone_whatever_the_driver_says(
    driver: Driver, limits: NvmlLimits, root: Path
) -> None:
    fail(driver, pynvml.NVML_ERROR_INVALID_ARGUMENT)
    for call in (lambda: limits.set("GPU-a", root / "x", 5), lambda: limits.read("GPU-a", root / "x")):
        with pytest.raises(LimitError, match="the cgroup is gone") as error:
            call()
        assert error.value.kind == "gone"


@pytest.mark.parametrize("hard_mib", [0, -1])
def test_no_limit_is_no_limit_to_set(driver: Driver, limits: NvmlLimits, root: Path, hard_mib: int) -> None:
    with pytest.raises(LimitError, match=f"limit of {hard_mib} MiB .* allowed: 1 MiB or more"):
        limits.set("GPU-a", root / "pod", hard_mib)
    assert driver.limits.hard == {}


EIGHT = WantedLimit(8192, frozenset({8192}))
# What `nvmlDeviceGetMemoryLimits_v1` may answer where no limit is set, None for a reading without one.
UNSET = pytest.mark.parametrize(
    "unset",
    [None, pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_NOT_SUPPORTED],
    ids=["unlimited", "not found", "not supported"],
)


@UNSET
def test_a_limit_that_was_never_set_is_set(
    driver: Driver, limits: NvmlLimits, root: Path, unset: int | None
) -> None:
    driver.limits.unset = unset
    assert limits.support("GPU-a") == HELD
    (outcome,) = apply_limits(limits, "GPU-a", [LimitJob(root / "pod", EIGHT)])
    assert (outcome.fault, outcome.was_mib, outcome.reading) == (None, None, LimitReading(8192, 0))
    assert driver.limits.hard["GPU-a", str(root / "pod")] == 8192 * MIB
    assert limits.support("GPU-a") == HELD
    assert not (root / PROBE).exists()


@UNSET
def test_a_limit_that_is_not_there_after_it_was_set_does_not_hold(
    driver: Driver, limits: NvmlLimits, root: Path, unset: int | None
) -> None:
    driver.limits.unset, driver.limits.keeps = unset, False
    (outcome,) = apply_limits(limits, "GPU-a", [LimitJob(root / "pod", EIGHT)])
    assert outcome.fault == "failed"
    assert f"for cgroup {root}/pod was set, and there is none" in outcome.problem


def test_where_no_cgroup_can_be_made_nothing_is_proven(
    driver: Driver, limits: NvmlLimits, root: Path
) -> None:
    (root / PROBE).write_text("in the way")
    support = limits.support("GPU-a")
    assert (support.can_limit, driver.calls.count(SET)) == (False, 0)
    assert "cannot be tried" in support.reason
    (root / PROBE).unlink()
    assert limits.support("GPU-a") == HELD


def test_a_soft_limit_of_the_toolkit_is_ended_before_its_cgroup_is(
    driver: Driver, limits: NvmlLimits, root: Path
) -> None:
    """Deleted with its soft limit a cgroup leaves its part in all cgroups above."""
    for value in limits.container_envs(8192).values():
        assert value in {"0", "8192"}
    for soft_mib in (8192, 100):
        asked = pynvml.c_nvmlSetMemoryLimits_v1_t(
            nameSpace=str(root / "pod").encode(), softLimit=soft_mib * MIB, hardLimit=8192 * MIB
        )
        pynvml.nvmlDeviceSetMemoryLimits_v1(find_handle("GPU-a"), asked)
        assert driver.limits.reserved[str(root)] == soft_mib * MIB
        (outcome,) = apply_limits(limits, "GPU-a", [LimitJob(root / "pod", EIGHT)])
        assert (outcome.fault, outcome.reading) == (None, LimitReading(8192, 0))
        assert driver.limits.reserved[str(root)] == 0
    sets = driver.calls.count(SET)
    apply_limits(limits, "GPU-a", [LimitJob(root / "pod", EIGHT)])
    assert driver.calls.count(SET) == sets


@UNSET
def test_the_limit_of_a_cgroup_above_is_not_taken_for_its_own(
    driver: Driver, limits: NvmlLimits, root: Path, unset: int | None
) -> None:
    driver.limits.unset, driver.limits.inherits = unset, True
    limits.set("GPU-a", root, 8192)
    assert limits.read("GPU-a", root / "pod") == LimitReading(8192, 0)
    (outcome,) = apply_limits(limits, "GPU-a", [LimitJob(root / "pod", EIGHT)])
    assert (outcome.fault, ("GPU-a", str(root / "pod")) in driver.limits.hard) == (None, True)


def test_a_cgroup_for_which_the_kernels_controller_is_not_enabled(
    driver: Driver, limits: NvmlLimits, root: Path
) -> None:
    """To set a limit there is "Not Found", and a read tells that of a cgroup above."""
    driver.limits.files = driver.limits.inherits = True
    (root / "dmem.max").touch()
    limits.set("GPU-a", root, 8192)
    (outcome,) = apply_limits(limits, "GPU-a", [LimitJob(root / "pod", EIGHT)])
    lacks = "Not Found; it has no dmem.max: +dmem is missing in cgroup.subtree_control of a cgroup above"
    assert (outcome.fault, outcome.problem.endswith(lacks)) == ("failed", True)
    support = limits.support("GPU-a")
    assert (support.can_limit, lacks in support.reason) == (False, True)
    driver.limits.files = False
    assert limits.support("GPU-a") == HELD


@UNSET
def test_a_limit_that_is_taken_back(
    driver: Driver, limits: NvmlLimits, root: Path, unset: int | None
) -> None:
    driver.limits.unset = unset
    limits.set("GPU-a", root / "pod", 8192)
    limits.clear("GPU-a", root / "pod")
    assert driver.limits.standing() == {}
    if unset is None:
        assert limits.read("GPU-a", root / "pod") == LimitReading(None, 0)
    else:
        with pytest.raises(LimitError, match="there is none"):
            limits.read("GPU-a", root / "pod")
