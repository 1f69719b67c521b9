"""Every container's cgroup gets its limit, whoever made it and whenever; never another pod's."""

import shutil
from pathlib import Path

import pytest

from tests.limits_world import GIB, OTHER, UID, LimitsWorld, identifier, world
from tests.waiting import until

__all__ = ["world"]


async def test_a_container_that_starts_gets_what_its_pod_was_given(world: LimitsWorld) -> None:
    await world.start()
    cgroup = await world.limited_container(3)
    assert world.limit(cgroup, "c1") is None


async def test_a_pod_whose_checkpoint_is_written_and_not_read_yet(world: LimitsWorld) -> None:
    await world.start()
    world.checkpoint.write(UID, frozenset({"c0::0", "c0::1"}))
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
    world.account.notify_subscribers()
    await world.settle()
    assert world.limit(cgroup) == 5 * GIB
    found = {limit.cgroup: limit.container for limit in world.enforcer.list_limits()}
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
    await until(lambda: [limit.is_in_force for limit in world.enforcer.list_limits()] == [True])
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
    await until(lambda: not list(world.enforcer.list_limits()))


async def test_a_container_that_starts_again_has_a_new_cgroup(world: LimitsWorld) -> None:
    await world.start()
    first = await world.limited_container(5)
    shutil.rmtree(first)
    await until(lambda: not list(world.enforcer.list_limits()))
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
    await world.limited_container(5)
    world.over(UID)
    await until(lambda: not list(world.enforcer.list_limits()))


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
    monkeypatch.setattr("deviceplugin.host.inotify.Inotify.open", _no_instances)
    world = LimitsWorld(tmp_path, rescan_s=0.01)
    await world.start()
    await world.limited_container(5)
    await world.end()


def _no_instances(_self: object) -> None:
    raise OSError(24, "Too many open files")


async def test_a_limit_is_set_also_where_others_read_first_what_was_granted(world: LimitsWorld) -> None:
    await world.start()
    world.give(UID, "main", range(3))
    world.granted_memory.read()
    await world.limited(world.container("a"), 3)


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
    kept = (
        enforcer._uids,
        enforcer._unnamed,
        enforcer._logged,
        enforcer._dirty,
        world.granted_memory.read(),
    )
    await until(lambda: not any(kept))
    assert enforcer._watch.folders == {world.logs, *enforcer._holders}
