"""The lock on the device plugin folder: one holder, and none once that is gone."""

import os
import subprocess
import sys

import pytest

from deviceplugin.kubelet.folder_lock import FolderLock, find_holder

HOLD = """
import sys, pathlib
from deviceplugin.kubelet.folder_lock import FolderLock
lock = FolderLock(pathlib.Path(sys.argv[1]))
print(lock.acquire(), flush=True)
sys.stdin.read()
"""


def test_one_holder_at_a_time(tmp_path):
    first, second = FolderLock(tmp_path), FolderLock(tmp_path)
    assert first.find_holder_pid() is None
    assert first.acquire()
    assert first.acquire()
    assert not second.acquire()
    assert second.find_holder_pid() == os.getpid()
    first.release()
    assert second.acquire()
    assert not first.acquire()
    second.release()
    assert list(tmp_path.iterdir()) == []


def test_a_killed_holder_leaves_no_lock(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout.readline() == "True\n"
        lock = FolderLock(tmp_path)
        assert not lock.acquire()
        assert lock.find_holder_pid() == process.pid
        process.kill()
        process.wait()
        assert lock.acquire()
        lock.release()


def test_a_folder_that_cannot_be_locked_stops_nobody(tmp_path):
    assert FolderLock(tmp_path / "none").acquire()


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("1: FLOCK  ADVISORY  WRITE 4242 fe:01:77 0 EOF", 4242),
        ("1: FLOCK  ADVISORY  WRITE 0 fe:01:77 0 EOF", None),
        ("1: FLOCK  ADVISORY  WRITE 4242 fe:01:78 0 EOF", None),
        ("1: POSIX  ADVISORY  WRITE 4242 fe:01:77 0 EOF", None),
        ("1: -> FLOCK  ADVISORY  WRITE 4242 fe:01:77 0 EOF", None),
        ("rubbish", None),
    ],
)
def test_the_holder_is_read_from_the_kernels_list(line, found):
    assert find_holder(f"0: LEASE\n{line}\n", os.makedev(0xFE, 1), 77) == found
