"""Every container's cgroup gets its limit, whoever made it and whenever; never another pod's."""

import shutil
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from pytest_mock import MockerFixture

from deviceplugin.gpus.limits import HELD, Enforcement, Support
from tests.kubelet_world import until
from tests.limits_world import GIB, OTHER, UID, LimitsWorld, identifier


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[LimitsWorld]:
    found = LimitsWorld(tmp_path)
    yield found
    await found.end()


async def test_a_container_that_starts_gets_what_its_pod_was_given(world: LimitsWorld) -> None:
    await world.start()
    world.give(UID, "main", range(3))
    cgroup = world.container("a")
    await world.limited(cgroup, 3)
    assert world.limit(cgroup, "c1") is None


async def test_a_pod_whose_book_is_written_and_not_read_yet(world: LimitsWorld) -> None:
    await world.start()
    world.book.write(UID, frozenset({"c0::0", "c0::1"}))
    await world.limited(world.container("a"), 2)


async def test_what_stood_before_the_daemon_started_is_read_and_not_written(world: LimitsWorld) -> None:
    world.give(UID, "main", range(3))
    right, wrong = world.container("a"), world.container("b")
    world.driver.set("c0", right, 3 * GIB)
    world.driver.set("c0", wrong, 4 * GIB)
    world.driver.sets.clear()
    world.make()
    await world.start()
    await world.limited(wrong, 3)
    assert world.driver.sets == [("c0", wrong.name, 3 * GIB)]


async def test_several_cards_are_limited_each(world: LimitsWorld) -> None:
    await world.start()
    world.give(UID, "main", range(3))
    world.give(UID, "main", range(3, 5), "c1")
    cgroup = world.container("a")
    await world.limited(cgroup, 3)
    await world.limited(cgroup, 2, "c1")


async def test_the_least_of_the_pod_until_it_is_known_whose_cgroup_it_is(world: LimitsWorld) -> None:
    await world.start()
    world.give(UID, "setup", range(1))
    world.give(UID, "main", range(5))
    world.give(UID, "sidecar", range(5, 7))
    sandbox, main, sidecar = world.container("a"), world.container("b"), world.container("c")
    for cgroup in (sandbox, main, sidecar):
        await world.limited(cgroup, 1)
    world.name("b", "main")
    await world.limited(main, 5)
    world.name("c", "sidecar")
    await world.limited(sidecar, 2)
    assert world.limit(sandbox) == GIB


async def test_the_kubelets_link_tells_sooner_than_the_status(world: LimitsWorld) -> None:
    await world.start()
    world.give(UID, "setup", range(1))
    world.give(UID, "main", range(5))
    cgroup = world.container("b")
    await world.limited(cgroup, 1)
    world.link("b", "main")
    await world.limited(cgroup, 5)
    # It goes before the cgroup does, and the status tells of the next container by then.
    (world.logs / f"p_default_main-{identifier('b')}.log").unlink()
    world.names[UID] = {identifier("d"): "main"}
    world.container("d")
    world.account.changed()
    await world.settle()
    assert world.limit(cgroup) == 5 * GIB
    found = {limit.cgroup: limit.container for limit in world.enforcer.limits()}
    assert found[cgroup] == "main"


async def test_links_from_before_the_daemon_started_are_read(world: LimitsWorld) -> None:
    world.give(UID, "setup", range(1))
    world.give(UID, "main", range(5))
    world.link("b", "main")
    (world.logs / "rubbish").touch()
    cgroup = world.container("b")
    await world.start()
    await world.limited(cgroup, 5)


async def test_what_the_toolkit_set_stays_until_the_container_is_known(world: LimitsWorld) -> None:
    world.give(UID, "setup", range(1))
    world.give(UID, "main", range(5))
    cgroup = world.container("b")
    world.driver.set("c0", cgroup, 5 * GIB)
    world.driver.sets.clear()
    await world.start()
    await until(lambda: [limit.in_force for limit in world.enforcer.limits()] == [True])
    assert world.driver.sets == []
    # A pod that set the toolkit's variable to its neighbour's amount has its own in the end.
    world.name("b", "setup")
    await world.limited(cgroup, 1)


async def test_a_container_without_memory_of_its_own(world: LimitsWorld) -> None:
    await world.start()
    world.give(UID, "main", range(5))
    cgroup = world.container("b")
    await world.limited(cgroup, 5)
    world.name("b", "logger")
    await until(lambda: not list(world.enforcer.limits()))


async def test_a_container_that_starts_again_has_a_new_cgroup(world: LimitsWorld) -> None:
    await world.start()
    world.give(UID, "main", range(5))
    first = world.container("a")
    await world.limited(first, 5)
    shutil.rmtree(first)
    await until(lambda: not list(world.enforcer.limits()))
    await world.limited(world.container("b"), 5)


async def test_another_pods_cgroups_are_left_alone(world: LimitsWorld) -> None:
    await world.start()
    world.give(UID, "main", range(5))
    other = world.container("a", OTHER)
    world.name("a", "main")
    await world.limited(world.container("b"), 5)
    await world.settle()
    assert world.limit(other) is None
    assert {cgroup for _, cgroup, _ in world.driver.sets} == {identifier("b")}


async def test_a_pod_that_is_over_is_forgotten(world: LimitsWorld) -> None:
    await world.start()
    world.give(UID, "main", range(5))
    cgroup = world.container("a")
    await world.limited(cgroup, 5)
    world.over(UID)
    await until(lambda: not list(world.enforcer.limits()))


FORMS = [
    pytest.param("", "kubepods/pod{uid}/{id}", id="cgroupfs, guaranteed"),
    pytest.param("", "kubepods/besteffort/pod{uid}/{id}", id="cgroupfs, containerd"),
    pytest.param("", "kubepods/burstable/pod{uid}/crio-{id}", id="cgroupfs, CRI-O"),
    pytest.param(
        "",
        "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{slice}.slice/cri-containerd-{id}.scope",
        id="systemd, containerd",
    ),
    pytest.param(
        "",
        "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{slice}.slice/crio-{id}.scope",
        id="systemd, CRI-O, below a parent",
    ),
    pytest.param("", "kubepods.slice/kubepods-pod{slice}.slice/docker-{id}.scope", id="systemd, Docker"),
    pytest.param("memory", "kubepods/burstable/pod{uid}/{id}", id="v1"),
]


@pytest.mark.parametrize("early", [True, False], ids=["before", "after"])
@pytest.mark.parametrize(("hierarchy", "form"), FORMS)
async def test_every_naming_of_cgroups(world: LimitsWorld, hierarchy: str, form: str, early: bool) -> None:
    shutil.rmtree(world.root)
    world.root.mkdir()
    if not hierarchy:
        (world.root / "cgroup.controllers").touch()
    path = world.root / hierarchy / form.format(uid=UID, slice=UID.replace("-", "_"), id=identifier("a"))
    path.parent.parent.mkdir(parents=True)
    world.give(UID, "main", range(5))
    if early:
        path.mkdir(parents=True)
    await world.start()
    path.mkdir(parents=True, exist_ok=True)
    monitor = path.with_name(f"crio-conmon-{identifier('a')}.scope")
    monitor.mkdir()
    await world.limited(path, 5)
    assert world.limit(monitor) is None


async def test_where_the_kernel_tells_of_nothing_it_is_looked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deviceplugin.node.inotify.Inotify.open", _no_instances)
    world = LimitsWorld(tmp_path, rescan_s=0.01)
    await world.start()
    world.give(UID, "main", range(5))
    await world.limited(world.container("a"), 5)
    await world.end()


def _no_instances(_self: object) -> None:
    raise OSError(24, "Too many open files")


# Trouble


async def test_a_limit_that_somebody_changed_is_set_again(tmp_path: Path) -> None:
    world = LimitsWorld(tmp_path, rescan_s=0.01)
    await world.start()
    world.give(UID, "main", range(5))
    cgroup = world.container("a")
    await world.limited(cgroup, 5)
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
    mocker.patch("deviceplugin.node.limits.RETRY_S", 0.0)
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
    world.account.changed()
    await world.settle()
    assert world.limit(cgroup) is None
    ((uid, container, problem),) = world.told
    assert (uid, container) == (UID, "main")
    assert "limit of 1024 MiB on card c0: allowed are 2048 MiB or more" in problem


async def test_a_driver_that_takes_a_limit_and_does_not_keep_it(world: LimitsWorld) -> None:
    await world.start()
    world.driver.deaf = True
    world.give(UID, "main", range(5))
    cgroup = world.container("a")
    await until(lambda: world.enforcer.faults)
    (limit,) = world.enforcer.limits()
    assert not limit.in_force
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
    await until(lambda: world.driver.sets and not list(world.enforcer.limits()))
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


# What the driver can


async def test_a_driver_that_cannot_is_left_alone(world: LimitsWorld) -> None:
    world.driver.say(Support(False, "driver 580 has no call", "driver 615"))
    await world.start()
    world.give(UID, "main", range(5))
    world.container("a")
    await world.settle()
    assert (world.driver.sets, world.supports.enforcement("c0")) == ([], Enforcement.ACCOUNTED)
    assert world.supports.container_envs({"c0": 5}) == {}
    world.supports.fallback = lambda _: Enforcement.MPS
    assert world.supports.enforcement("c0") is Enforcement.MPS


async def test_off_asks_the_driver_for_nothing(tmp_path: Path) -> None:
    world = LimitsWorld(tmp_path, mode="off")
    world.give(UID, "main", range(5))
    world.container("a")
    await world.start()
    await world.settle()
    await world.end()
    assert (world.driver.reads, world.supports.enforcement("c0")) == (0, Enforcement.ACCOUNTED)
    assert str(world.supports.of("c0")) == "--memory-limits off"
    assert world.supports.container_envs({"c0": 5}) == {}


async def test_the_toolkits_variables_are_those_of_the_smallest_share(world: LimitsWorld) -> None:
    assert world.account.limit_envs({"c0": 5}) == {}
    await world.start()
    envs = world.account.limit_envs({"c0": 5, "c1": 4})
    assert set(envs.values()) == {"4"}
    assert len(envs) == 2
    assert world.account.limit_envs({}) == {}


async def test_require_offers_only_cards_that_are_held(tmp_path: Path) -> None:
    world = LimitsWorld(tmp_path, mode="require")
    assert not any(world.account.devices().values())
    assert world.account.ledger.used() == (8, 8)
    world.driver.say(Support(False, "driver 580 has no call", "driver 615"))
    await world.start()
    assert not any(world.account.devices().values())
    assert world.account.why_not("c0::0") == (
        "--memory-limits require, and driver 580 has no call; it takes driver 615"
    )
    world.driver.say(Support(True))
    await world.supports.ask()
    assert all(world.account.devices().values())
    assert world.account.ledger.used() == (0, 0)
    # Health and limits are two things.
    world.account.ledger.set_healthy("c0", False)
    await world.supports.ask()
    assert world.account.ledger.used() == (8, 0)
    await world.end()


async def test_nothing_is_kept_of_pods_that_came_and_went(world: LimitsWorld) -> None:
    await world.start()
    for number in range(30):
        uid = f"{number:08x}-1b2d-4c3e-9f00-aabbccddeeff"
        world.give(uid, "main", [number % 8])
        cgroup = world.container("a", uid)
        await world.limited(cgroup, 1)
        world.link("a", "main")
        (world.logs / f"p_default_main-{identifier('a')}.log").unlink()
        world.over(uid)
    enforcer = world.enforcer
    await until(lambda: not enforcer._pods)
    kept = (enforcer._uids, enforcer._unnamed, enforcer._logged, enforcer._dirty, enforcer._shares.all())
    await until(lambda: not any(kept))
    assert set(enforcer._inotify._numbers) == {world.logs, *enforcer._holders}


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


async def test_a_question_that_fails_is_no_and_is_asked_again(
    world: LimitsWorld, mocker: MockerFixture
) -> None:
    bad = mocker.patch.object(world.driver, "support", side_effect=[RuntimeError("boom"), HELD])
    await world.supports.begin()
    assert [world.supports.of(card).held for card in ("c0", "c1")] == [False, True]
    assert "RuntimeError: boom" in world.supports.of("c0").reason
    mocker.stop(bad)
    await world.supports.ask()
    assert world.supports.of("c0").held
