"""Folders are watched by the kernel: what appears is told at once, and a lost event is no lost news."""

import asyncio
import os
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deviceplugin.host.inotify import Inotify
from tests.waiting import until


class Watch:
    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []
        self.lost = 0
        self.inotify = Inotify(lambda folder, name: self.seen.append((folder.name, name)), self.lose)
        self.inotify.open()

    def lose(self) -> None:
        self.lost += 1


@pytest.fixture
async def watch() -> AsyncIterator[Watch]:
    found = Watch()
    yield found
    found.inotify.close()
    found.inotify.close()


async def test_what_appears_and_disappears_is_told(watch: Watch, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        watch.inotify.watch(tmp_path / name)
        watch.inotify.watch(tmp_path / name)
    (tmp_path / "a" / "container with blanks").mkdir()
    await until(lambda: watch.seen == [("a", "container with blanks")])
    (tmp_path / "b" / "link").symlink_to("/nowhere")
    (tmp_path / "a" / "container with blanks").rmdir()
    await until(lambda: watch.seen[1:] == [("b", "link"), ("a", "container with blanks")])


async def test_a_folder_that_is_not_watched_any_more(watch: Watch, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        watch.inotify.watch(tmp_path / name)
    watch.inotify.unwatch(tmp_path / "a")
    watch.inotify.unwatch(tmp_path / "never")
    (tmp_path / "a" / "x").mkdir()
    (tmp_path / "b" / "y").mkdir()
    await until(lambda: watch.seen)
    assert watch.seen == [("b", "y")]


async def test_a_folder_that_is_made_again_is_watched_again(watch: Watch, tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    watch.inotify.watch(folder)
    folder.rename(tmp_path / "old")
    folder.mkdir()
    watch.inotify.watch(folder)
    (tmp_path / "old" / "x").mkdir()
    (folder / "y").mkdir()
    await until(lambda: watch.seen)
    assert watch.seen == [("a", "y")]


async def test_a_folder_that_is_gone(watch: Watch, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="none"):
        watch.inotify.watch(tmp_path / "none")
    (tmp_path / "a").mkdir()
    watch.inotify.watch(tmp_path / "a")
    (tmp_path / "a").rmdir()
    # The kernel ends the watch by itself; its number may be used again.
    await until(lambda: not watch.inotify._folders)
    (tmp_path / "a").mkdir()
    watch.inotify.watch(tmp_path / "a")
    (tmp_path / "a" / "x").mkdir()
    await until(lambda: watch.seen == [("a", "x")])


async def test_lost_events_are_said_to_be_lost(tmp_path: Path) -> None:
    watch = Watch()
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    asyncio.get_running_loop().remove_reader(watch.inotify._fd)
    os.close(watch.inotify._fd)
    watch.inotify._fd = reading
    watch.inotify._read()
    os.write(writing, struct.pack("iIII", -1, 0x4000, 0, 0) + struct.pack("iIII16s", 77, 0x100, 0, 16, b"x"))
    watch.inotify._read()
    assert (watch.lost, watch.seen) == (1, [])
    os.close(writing)
    watch.inotify.close()


async def test_a_kernel_that_has_no_instance_left(monkeypatch: pytest.MonkeyPatch) -> None:
    inotify = Inotify(lambda *_: None, lambda: None)
    monkeypatch.setattr(inotify, "_libc", Full())
    with pytest.raises(OSError, match="inotify"):
        inotify.open()


class Full:
    """A C library whose kernel refuses."""

    def inotify_init1(self, _flags: int) -> int:
        return -1
