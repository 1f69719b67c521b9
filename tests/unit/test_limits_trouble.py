"""Limits where the driver fails, hangs or refuses, and where somebody changes or removes what was limited."""

import threading
from pathlib import Path

from pytest_mock import MockerFixture

from tests.limits_world import GIB, OTHER, UID, LimitsWorld, world
from tests.waiting import until

__all__ = ["world"]


async def test_a_limit_that_somebody_changed_is_set_again(tmp_path: Path) -> None:
    world = LimitsWorld(tmp_path, rescan_s=0.01)
    await world.start()
    cgroup = await world.limited_container(5)
    world.driver.set("c0", cgroup, 7 * GIB)
    await world.limited(cgroup, 5)
    await until(lambda: world.enforcer.repaired)
    await world.end()


async def test_a_driver_that_fails_for_a_moment_is_asked_again(world: LimitsWorld) -> None:
    await world.start()
    world.driver.failing["c0"] = "busy"
    world.give(UID, "main", range(5))
    world.give(UID, "main", range(2), "c1")
    cgroup = world.container("a")
    await world.limited(cgroup, 2, "c1")
    await until(lambda: world.enforcer.faults >= 2)
    assert world.told == []
    world.driver.failing.clear()
    await world.limited(cgroup, 5)


async def test_a_driver_that_goes_on_failing_is_told_of_once(
    world: LimitsWorld, mocker: MockerFixture
) -> None:
    mocker.patch("deviceplugin.enforcement.enforcer.RETRY_S", 0.0)
    await world.start()
    world.driver.failing["c0"] = "the driver is busy"
    world.give(UID, "main", range(5))
    world.container("a")
    world.name("a", "main")
    await until(lambda: world.enforcer.faults >= 12)
    assert world.told == [(UID, "main", "the driver is busy")]


async def test_a_limit_below_what_the_driver_accepts_is_told_of_once(world: LimitsWorld) -> None:
    world.driver.least_mib = 2 * GIB
    await world.start()
    world.give(UID, "main", range(1))
    world.give(OTHER, "main", range(5, 8))
    cgroup, other = world.container("a"), world.container("b", OTHER)
    world.name("a", "main")
    await world.limited(other, 3)
    await until(lambda: world.told)
    world.account.notify_subscribers()
    await world.settle()
    assert world.limit(cgroup) is None
    ((uid, container, problem),) = world.told
    assert (uid, container) == (UID, "main")
    assert "limit of 1024 MiB on card c0; allowed: 2048 MiB or more" in problem


async def test_a_driver_that_takes_a_limit_and_does_not_keep_it(world: LimitsWorld) -> None:
    await world.start()
    world.driver.deaf = True
    world.give(UID, "main", range(5))
    cgroup = world.container("a")
    await until(lambda: world.enforcer.faults)
    (limit,) = world.enforcer.list_limits()
    assert not limit.is_in_force
    assert limit.outcome is not None
    assert limit.outcome.problem.endswith("was set, and there is none")
    world.driver.deaf = False
    await world.limited(cgroup, 5)


async def test_a_cgroup_that_vanishes_while_its_limit_is_set(world: LimitsWorld) -> None:
    await world.start()
    world.give(UID, "main", range(5))
    original = world.driver.set

    def vanish(uuid: str, cgroup: Path, hard_mib: int) -> None:
        cgroup.rmdir()
        original(uuid, cgroup, hard_mib)

    world.driver.set = vanish  # type: ignore[method-assign]
    world.container("a")
    await until(lambda: world.driver.sets and not list(world.enforcer.list_limits()))
    world.driver.set = original  # type: ignore[method-assign]
    await world.limited(world.container("b"), 5)
    assert (world.enforcer.faults, world.told) == (0, [])


async def test_a_call_that_hangs_holds_up_its_own_card_alone(world: LimitsWorld) -> None:
    answers, answered = threading.Event(), []
    original = world.driver.set

    def hang(uuid: str, cgroup: Path, hard_mib: int) -> None:
        if uuid == "c0":
            answered.append(answers.wait(60))
        original(uuid, cgroup, hard_mib)

    world.driver.set = hang  # type: ignore[method-assign]
    await world.start()
    world.give(UID, "main", range(5))
    world.give(OTHER, "main", range(3), "c1")
    stuck, free = world.container("a"), world.container("b", OTHER)
    await world.limited(free, 3, "c1")
    assert world.limit(stuck) is None
    # The end does not wait for it either.
    await world.end()
    assert answered == []
    answers.set()


async def test_an_answer_of_the_driver_that_nobody_expects_is_counted_told_and_tried_again(
    world: LimitsWorld, mocker: MockerFixture
) -> None:
    await world.start()
    bad = mocker.patch.object(world.driver, "set", side_effect=RuntimeError("boom"))
    world.give(UID, "main", range(3))
    cgroup = world.container("a")
    world.name("a", "main")
    await until(lambda: world.told)
    ((_, container, problem),) = world.told
    assert (container, problem.endswith("RuntimeError: boom")) == ("main", True)
    assert world.enforcer.faults >= 5
    mocker.stop(bad)
    await world.limited(cgroup, 3)
