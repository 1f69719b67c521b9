"""Where the kernel watches no more folders, limits come by the quick look, and people are told."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from deviceplugin.enforcement.cgroup_watch import describe_watch_problem
from deviceplugin.host.inotify import Inotify, probe_watch
from tests.limits_world import OTHER, UID, LimitsWorld, identifier
from tests.waiting import until

SOON_S = 0.01


@pytest.fixture
async def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LimitsWorld:
    """An enforcer that looks by itself only where it must: everything once an hour."""
    monkeypatch.setattr("deviceplugin.enforcement.enforcer.BLIND_RESCAN_S", SOON_S)
    return LimitsWorld(tmp_path)


class FullKernel:
    """Lets the kernel refuse to watch more than so many folders."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, most: int, code: int = errno.ENOSPC) -> None:
        self.most = most
        self.tries = 0
        real = Inotify.watch

        def watch(inotify: Inotify, folder: Path, *, written: bool = False) -> None:
            self.tries += 1
            if folder not in inotify.folders and len(inotify.folders) >= self.most and folder.is_dir():
                raise OSError(code, os.strerror(code), str(folder))
            real(inotify, folder, written=written)

        monkeypatch.setattr(Inotify, "watch", watch)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.ENOMEM])
@pytest.mark.parametrize("most", range(6))
async def test_without_watches_left_new_containers_are_looked_for(
    quick: LimitsWorld, monkeypatch: pytest.MonkeyPatch, most: int, code: int
) -> None:
    """Of `logs`, three holders and two pods so many are watched."""
    FullKernel(monkeypatch, most, code)
    await quick.start()
    for uid, letter in ((UID, "a"), (OTHER, "b")):
        quick.give(uid, "main", [0, 1] if uid == UID else [2, 3, 4])
        quick.pod(uid)
        await quick.settle()
        await quick.limited(quick.container(letter, uid), 2 if uid == UID else 3)
    assert quick.enforcer.problem
    await quick.end()


async def test_a_quick_look_is_at_all_pods_at_once(
    quick: LimitsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node has hundreds: a pause after each few of them would be the longer part."""
    monkeypatch.setattr("deviceplugin.enforcement.enforcer.SLICE_S", 3600.0)
    FullKernel(monkeypatch, 0)
    await quick.start()
    uids = [f"{number}{UID[1:]}" for number in range(8)]
    for number, uid in enumerate(uids):
        quick.give(uid, "main", [number])
        quick.pod(uid)
    await quick.settle()
    for letter, uid in zip("abcdef12", uids, strict=True):
        await quick.limited(quick.container(letter, uid), 1)
    await quick.end()


async def test_the_checkpoint_is_read_at_each_quick_look(
    quick: LimitsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kubelet's folder may be unwatched too, and is looked at once a second then."""
    FullKernel(monkeypatch, 0)
    await quick.start()
    quick.checkpoint.write(UID, frozenset({"c0::0", "c0::1"}))
    await quick.limited(quick.container("a"), 2)
    await quick.end()


async def test_links_to_logs_are_read_where_they_are_not_watched(
    quick: LimitsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    FullKernel(monkeypatch, 0)
    await quick.start()
    quick.give(UID, "setup", range(1))
    quick.give(UID, "main", range(5))
    sandbox, main = quick.container("a"), quick.container("b")
    await quick.limited(main, 1)
    quick.link("b", "main")
    await quick.limited(main, 5)
    (quick.logs / f"p_default_main-{identifier('b')}.log").unlink()
    await until(lambda: quick.enforcer._logged == {})
    assert quick.limit(sandbox) == 1024
    await quick.end()


async def test_what_is_wrong_is_said_once_and_ends_with_free_watches(
    quick: LimitsWorld, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kernel = FullKernel(monkeypatch, 2)
    await quick.start()
    quick.give(UID, "main", range(2))
    await quick.limited(quick.container("a"), 2)
    tries = kernel.tries
    await until(lambda: kernel.tries > tries + 20)
    assert quick.enforcer.problem == describe_watch_problem(OSError(errno.ENOSPC, ""))
    kernel.most = 100
    await until(lambda: quick.enforcer.problem is None)
    # From now on the kernel tells: nothing is looked for by itself for an hour.
    await quick.settle()
    tries = kernel.tries
    await quick.limited(quick.container("b"), 2)
    assert kernel.tries <= tries + 4
    said = capsys.readouterr().out
    assert (
        said.count("new cgroups are looked for") == said.count("the kernel tells of new cgroups again") == 1
    )
    assert "fs.inotify.max_user_watches" in said
    await quick.end()


async def test_the_drivers_limits_are_not_read_at_each_quick_look(
    quick: LimitsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = FullKernel(monkeypatch, 0)
    await quick.start()
    quick.give(UID, "main", range(2))
    cgroup = quick.container("a")
    await until(lambda: any(limit.is_in_force for limit in quick.enforcer.list_limits()))
    reads, tries = quick.driver.reads, kernel.tries
    await until(lambda: kernel.tries > tries + 20)
    assert quick.driver.reads == reads
    assert quick.limit(cgroup) is not None
    await quick.end()


async def test_an_instance_that_comes_free_is_taken(
    quick: LimitsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Inotify, "open", _no_instances)
        await quick.start()
        quick.give(UID, "main", range(5))
        await quick.limited(quick.container("a"), 5)
        assert "max_user_instances" in str(quick.enforcer.problem)
    await until(lambda: quick.enforcer.problem is None)
    await quick.limited(quick.container("b"), 5)
    await quick.end()


def _no_instances(_self: object) -> None:
    raise OSError(errno.EMFILE, "Too many open files")


async def test_cgroups_that_cannot_be_read_keep_their_limits(
    quick: LimitsWorld, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a file descriptor left a pod's folder looks empty; its limits are not forgotten for that."""
    await quick.start()
    quick.give(UID, "main", range(2))
    await quick.limited(quick.container("a"), 2)
    await until(lambda: any(limit.is_in_force for limit in quick.enforcer.list_limits()))
    kept = list(quick.enforcer.list_limits())
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", _no_descriptors)
        quick.container("b")
        await until(lambda: quick.enforcer.problem is not None)
        for _ in range(3):
            quick.enforcer._rescans.wake()
            await quick.settle()
        assert list(quick.enforcer.list_limits()) == kept
    await until(lambda: quick.enforcer.problem is None)
    await until(lambda: quick.limit(quick.pod() / identifier("b")) == 2 * 1024)
    assert capsys.readouterr().out.count("cgroups cannot be read") == 1
    await quick.end()


def _no_descriptors(path: object) -> None:
    raise OSError(errno.EMFILE, "Too many open files", str(path))


REAL_LIMIT = """
import asyncio, ctypes, os, sys
from pathlib import Path

if ctypes.CDLL(None, use_errno=True).unshare(0x10000000):
    sys.exit(77)
limits = Path("/proc/sys/user")
try:
    (limits / sys.argv[2]).write_text(sys.argv[3])
except OSError:
    sys.exit(77)

from deviceplugin.host.inotify import probe_watch
from deviceplugin.enforcement.cgroup_watch import CgroupWatch

async def main():
    root, seen = Path(sys.argv[1]), []
    for name in "abc":
        (root / name).mkdir()
    watch = CgroupWatch(lambda folder, name: seen.append(name), lambda: None)
    assert all(watch.watch(root / name) for name in "abc")
    print("=", watch.problem)
    try:
        probe_watch(root)
    except OSError as error:
        print("=", error)
    (root / "c").rmdir()
    watch.unwatch(root / "c")
    watch.retry()
    print("=", watch.problem)
    (root / "b" / "new").mkdir()
    # The kernel has the event ready before mkdir returns, so one turn of the loop reads it.
    for _ in range(10):
        await asyncio.sleep(0)
    print("=", seen)
    watch.close()

asyncio.run(main())
"""


def in_narrow_kernel(tmp_path: Path, name: str, most: int) -> list[str]:
    """Run `REAL_LIMIT` where the kernel really refuses, in a user namespace of its own."""
    command = [sys.executable, "-c", REAL_LIMIT, str(tmp_path), name, str(most)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 77:
        pytest.skip("no user namespace may be made here")
    assert done.returncode == 0, done.stderr
    return [line.removeprefix("= ") for line in done.stdout.splitlines() if line.startswith("= ")]


def test_the_kernels_own_limit_of_watches(tmp_path: Path) -> None:
    problem, probe, after, seen = in_narrow_kernel(tmp_path, "max_inotify_watches", 2)
    assert "fs.inotify.max_user_watches" in problem
    assert "No space left on device" in probe
    assert (after, seen) == ("None", "['new']")


def test_the_kernels_own_limit_of_instances(tmp_path: Path) -> None:
    problem, probe, after, seen = in_narrow_kernel(tmp_path, "max_inotify_instances", 0)
    assert "fs.inotify.max_user_instances" in problem
    assert "Too many open files" in probe
    assert "fs.inotify.max_user_instances" in after
    assert seen == "[]"


def test_a_folder_that_can_be_watched_is_left_unwatched(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    probe_watch(tmp_path)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    with pytest.raises(FileNotFoundError):
        probe_watch(tmp_path / "none")
    assert len(list(Path("/proc/self/fd").iterdir())) == before
