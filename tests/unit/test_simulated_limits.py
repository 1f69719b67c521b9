"""Simulated memory limits refuse like a driver's, and end with their cgroup."""

from pathlib import Path

import pytest

from deviceplugin.enforcement.limit_plan import WantedLimit
from deviceplugin.enforcement.limit_setter import LimitJob, apply_limits
from deviceplugin.errors import GpuError, LimitError, ProfileError
from deviceplugin.gpus.api.memory_limits import HELD, LimitReading, LimitSupport, MemoryLimits
from deviceplugin.gpus.api.source import GpuProcess
from deviceplugin.gpus.simulated.memory_limits import LimitBehaviour, SimulatedLimits
from deviceplugin.gpus.simulated.profile import load_profile, parse_profile
from deviceplugin.gpus.simulated.source import SimulatedGpus


@pytest.fixture
def limits() -> SimulatedLimits:
    return SimulatedLimits({"GPU-a": 1000, "GPU-b": 1000})


@pytest.fixture
def cgroup(tmp_path: Path) -> Path:
    folder = tmp_path / "pod" / "container"
    folder.mkdir(parents=True)
    return folder


def test_growth_beyond_the_limit_is_refused(limits: SimulatedLimits, cgroup: Path) -> None:
    typed: MemoryLimits = limits
    typed.set("GPU-a", cgroup, 300)
    limits.use("GPU-a", 1, 200, cgroup)
    with pytest.raises(GpuError, match=r"process 2 wants 101 MiB more .* is 300 MiB"):
        limits.use("GPU-a", 2, 101, cgroup / "below")
    limits.use("GPU-a", 2, 100, cgroup)
    assert typed.read("GPU-a", cgroup) == LimitReading(300, 300)
    assert limits.processes("GPU-a") == (GpuProcess(1, 200), GpuProcess(2, 100))
    limits.use("GPU-a", 1, 0, cgroup)
    limits.use("GPU-a", 2, 300, cgroup)
    # Another card, another cgroup, and no cgroup at all have no limit.
    limits.use("GPU-b", 1, 900, cgroup)
    limits.use("GPU-a", 3, 400, cgroup.parent)
    limits.use("GPU-a", 4, 300)
    with pytest.raises(GpuError, match="card GPU-a of 1000"):
        limits.use("GPU-a", 4, 301)


def test_a_limit_below_what_is_used_stops_growth_only(limits: SimulatedLimits, cgroup: Path) -> None:
    limits.use("GPU-a", 1, 500, cgroup)
    limits.set("GPU-a", cgroup, 300)
    assert limits.read("GPU-a", cgroup) == LimitReading(300, 500)
    limits.use("GPU-a", 1, 400, cgroup)
    with pytest.raises(GpuError, match="out of memory"):
        limits.use("GPU-a", 1, 401, cgroup)


def test_a_limit_ends_with_its_cgroup(limits: SimulatedLimits, cgroup: Path) -> None:
    limits.set("GPU-a", cgroup, 300)
    limits.use("GPU-a", 1, 300, cgroup)
    cgroup.rename(cgroup.with_name("kept, so that its inode is not used again"))
    with pytest.raises(LimitError, match="is gone") as gone:
        limits.read("GPU-a", cgroup)
    assert gone.value.kind == "gone"
    with pytest.raises(LimitError, match="is gone"):
        limits.set("GPU-a", cgroup, 300)
    cgroup.mkdir()
    assert limits.read("GPU-a", cgroup).hard_mib is None
    limits.use("GPU-a", 2, 600, cgroup)


@pytest.mark.parametrize("hard_mib", [-1, 0, 99])
def test_a_limit_below_what_is_accepted(limits: SimulatedLimits, cgroup: Path, hard_mib: int) -> None:
    limits.least_mib = 100
    with pytest.raises(LimitError, match=f"limit of {hard_mib} MiB .* allowed: 100 MiB or more") as error:
        limits.set("GPU-a", cgroup, hard_mib)
    assert error.value.kind == "refused"


def test_cards_that_cannot(cgroup: Path) -> None:
    old = SimulatedLimits(
        {"GPU-a": 1000, "MIG-a": 1}, LimitSupport(False, "driver 580 has no call", "driver 615")
    )
    assert not old.support("GPU-a").can_limit
    for call in (lambda: old.set("GPU-a", cgroup, 5), lambda: old.read("GPU-a", cgroup)):
        with pytest.raises(LimitError, match="driver 580 has no call; it takes driver 615") as error:
            call()
        assert error.value.kind == "unsupported"
    new = SimulatedLimits({"GPU-a": 1000, "MIG-a": 1})
    assert new.support("GPU-a") == HELD
    assert "MIG" in new.support("MIG-a").reason
    with pytest.raises(LimitError, match="no such card"):
        new.set("GPU-x", cgroup, 5)
    with pytest.raises(GpuError, match="allowed: GPU-a"):
        new.use("GPU-x", 1, 5)


def test_a_sample_shows_the_processes() -> None:
    gpus = SimulatedGpus(load_profile("2xt4"))
    uuid = gpus.cards()[0].uuid
    gpus.limits.use(uuid, 77, 500)
    sample = gpus.sample()[0]
    assert (sample.used_mib, sample.processes) == (500, (GpuProcess(77, 500),))
    assert gpus.sample()[1].processes == ()


PROFILE = """
version: "1.0"
device_defaults: {{name: T4, memory: {{total_bytes: 17179869184}}}}
devices: [{{index: 0, uuid: GPU-a}}]
limits: {{{}}}
"""
LOOSE = WantedLimit(300, frozenset({300, 200}))


@pytest.mark.parametrize("unset", ["unlimited", "not_found", "not_supported"])
@pytest.mark.parametrize("backend", ["misc", "dmem"])
def test_limits_are_set_in_every_mood_of_the_driver(cgroup: Path, unset: str, backend: str) -> None:
    mood = f"unset: {unset}, backend: {backend}"
    limits = SimulatedGpus(parse_profile("mood", PROFILE.format(mood))).limits
    (outcome,) = apply_limits(limits, "GPU-a", [LimitJob(cgroup, LOOSE)])
    assert (outcome.fault, outcome.was_mib, outcome.reading) == (None, None, LimitReading(300, 0))


@pytest.mark.parametrize("old", [False, True], ids=["as given now", "with a soft limit, as given before"])
def test_cgroups_that_go_leave_nothing_in_those_above(cgroup: Path, old: bool) -> None:
    limits = SimulatedGpus(parse_profile("mood", PROFILE.format("backend: dmem"))).limits
    for _ in range(3):
        envs = dict(limits.container_envs(200))
        if old:
            envs["SIMULATED_GPU_MEMORY_REQUEST"] = "200"
        limits.apply_envs("GPU-a", cgroup, envs)
        assert limits.reserved_mib("GPU-a", cgroup.parent) == (200 if old else 0)
        apply_limits(limits, "GPU-a", [LimitJob(cgroup, LOOSE)])
        assert limits.read("GPU-a", cgroup) == LimitReading(200, 0)
        cgroup.rename(cgroup.with_name("kept, so that its inode is not used again"))
        assert limits.reserved_mib("GPU-a", cgroup.parent) == 0
        cgroup.with_name("kept, so that its inode is not used again").rename(cgroup)


def limits_of(mood: str) -> SimulatedLimits:
    return SimulatedGpus(parse_profile("mood", PROFILE.format(mood))).limits


@pytest.mark.parametrize("unset", ["unlimited", "not_found", "not_supported"])
def test_the_limit_of_a_cgroup_above_is_not_taken_for_one_of_its_own(cgroup: Path, unset: str) -> None:
    """With `misc` a read tells the nearest limit above, which holds all that are below it together."""
    limits = limits_of(f"unset: {unset}, backend: misc")
    limits.set("GPU-a", cgroup.parent, 300)
    pair = [cgroup, cgroup.with_name("other")]
    pair[1].mkdir()
    assert [limits.read("GPU-a", each).hard_mib for each in pair] == [300, 300]
    outcomes = apply_limits(limits, "GPU-a", [LimitJob(each, LOOSE) for each in pair])
    assert [outcome.fault for outcome in outcomes] == [None, None]
    for pid, each in enumerate(pair):
        limits.use("GPU-a", pid, 300, each)
        with pytest.raises(GpuError, match=f"the limit of cgroup {each} is 300"):
            limits.use("GPU-a", pid, 301, each)
    limits.use("GPU-a", 9, 300, cgroup.parent)
    assert limits.read("GPU-a", cgroup.parent) == LimitReading(300, 300)


@pytest.mark.parametrize(("backend", "fits"), [("misc", True), ("dmem", False)])
def test_limits_nest_with_dmem_only(cgroup: Path, backend: str, fits: bool) -> None:
    limits = limits_of(f"backend: {backend}")
    limits.set("GPU-a", cgroup.parent, 100)
    limits.set("GPU-a", cgroup, 300)
    if fits:
        limits.use("GPU-a", 1, 300, cgroup)
    else:
        with pytest.raises(GpuError, match=f"the limit of cgroup {cgroup.parent} is 100 MiB"):
            limits.use("GPU-a", 1, 300, cgroup)


def test_without_the_kernels_files_no_limit_is_set_and_none_is_believed(cgroup: Path) -> None:
    """Some runtimes do not enable dmem for containers; what is read there is the limit of a cgroup above."""
    limits = limits_of("backend: dmem, files: true")
    (cgroup.parent / "dmem.max").touch()
    limits.set("GPU-a", cgroup.parent, 300)
    (outcome,) = apply_limits(limits, "GPU-a", [LimitJob(cgroup, LOOSE)])
    assert (outcome.fault, outcome.reading) == ("failed", LimitReading(300, 0))
    assert "+dmem is missing in cgroup.subtree_control" in outcome.problem
    (cgroup / "dmem.max").touch()
    (outcome,) = apply_limits(limits, "GPU-a", [LimitJob(cgroup, LOOSE)])
    assert (outcome.fault, outcome.was_mib, outcome.reading) == (None, None, LimitReading(300, 0))


def test_a_limit_that_the_driver_rounds_up_is_not_the_promise(cgroup: Path) -> None:
    """NVIDIA's example sets 8000 MiB and reads 8192."""
    limits = limits_of("step_mib: 64")
    (outcome,) = apply_limits(limits, "GPU-a", [LimitJob(cgroup, LOOSE)])
    assert (outcome.fault, outcome.reading) == ("failed", LimitReading(320, 0))
    assert outcome.problem.endswith("was set, and it is 320 MiB")


def test_a_process_without_the_right_reads_limits_and_sets_none(cgroup: Path) -> None:
    limits = SimulatedGpus(parse_profile("mood", PROFILE.format("set: no_permission"))).limits
    support = limits.support("GPU-a")
    assert (support.can_limit, support.is_forbidden) == (False, True)
    assert limits.read("GPU-a", cgroup) == LimitReading(None, 0)
    (outcome,) = apply_limits(limits, "GPU-a", [LimitJob(cgroup, LOOSE)])
    assert (outcome.fault, outcome.reading) == ("forbidden", LimitReading(None, 0))


def test_a_right_that_is_missing_after_all_is_known_once_a_limit_is_refused(cgroup: Path) -> None:
    limits = SimulatedGpus(parse_profile("mood", PROFILE.format(""))).limits
    assert limits.support("GPU-a") == HELD
    limits.behaviour = LimitBehaviour(set="no_permission")
    assert limits.support("GPU-a") == HELD
    apply_limits(limits, "GPU-a", [LimitJob(cgroup, LOOSE)])
    assert limits.support("GPU-a").is_forbidden


def test_a_mood_that_no_driver_has_is_a_fault_of_the_profile() -> None:
    with pytest.raises(ProfileError, match=r"limits\.unset: .*'empty'"):
        parse_profile("mood", PROFILE.format("unset: empty"))
