"""Files of the node daemon: written in one step, and on the disk before anybody relies on them."""

import errno
import os
import stat
from contextlib import nullcontext
from pathlib import Path

import pytest

from deviceplugin.dra.cdi_files import CdiFiles
from deviceplugin.dra.prepared_claims import PreparedClaims
from deviceplugin.errors import CheckpointError
from deviceplugin.files import make_folder, remove_file, replace_file
from tests.unit.test_claim_status import make_claim


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is synced, renamed and removed, by name and in order."""
    seen: list[str] = []
    sync, replace, unlink = os.fsync, Path.replace, Path.unlink

    def noted_sync(handle: int) -> None:
        seen.append(f"sync {Path(f'/proc/self/fd/{handle}').readlink().name}")
        sync(handle)

    def noted_replace(path: Path, target: Path) -> Path:
        seen.append(f"{path.name} -> {target.name}")
        return replace(path, target)

    def noted_unlink(path: Path, *, missing_ok: bool = False) -> None:
        seen.append(f"unlink {path.name}")
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(Path, "replace", noted_replace)
    monkeypatch.setattr(Path, "unlink", noted_unlink)
    return seen


def test_a_prepared_claim_outlasts_a_loss_of_power(tmp_path: Path, events: list[str]) -> None:
    claims = PreparedClaims(tmp_path / "driver" / "claims", "gpupack.io/gpu-memory-gib")
    claims.load()
    assert events == [f"sync {tmp_path.name}", "sync driver"], "its folder is on the disk"
    events.clear()
    claims.write(make_claim("a"))
    assert events == ["sync .uid-a.json.new", ".uid-a.json.new -> uid-a.json", "sync claims"]
    events.clear()
    claims.erase("uid-a")
    assert events == ["unlink uid-a.json", "unlink .uid-a.json.new", "sync claims"]


def test_prepared_claims_that_cannot_be_read_are_not_none(tmp_path: Path) -> None:
    (tmp_path / "driver").write_text("")
    with pytest.raises(CheckpointError, match=r"claims in .*/driver/claims cannot be read: .*File exists"):
        PreparedClaims(tmp_path / "driver" / "claims", "gpupack.io/gpu-memory-gib").load()
    claims = PreparedClaims(tmp_path / "claims", "gpupack.io/gpu-memory-gib")
    claims.load()
    (tmp_path / "claims" / "uid-a.json").write_text('{"x": ' + "[" * 100_000)
    claims.load()
    assert claims.unread_uids == {"uid-a"}


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path, events: list[str]) -> None:
    make_folder(tmp_path)
    assert events == []


def test_a_file_that_cannot_be_written_keeps_its_old_content(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    replace_file(path, b"old")
    (tmp_path / ".a.json.new").mkdir()
    with pytest.raises(OSError, match="Is a directory"):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"


@pytest.mark.parametrize(("code", "written"), [(errno.EINVAL, True), (errno.EIO, False)])
def test_a_file_system_without_anything_to_write_for_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, *, written: bool
) -> None:
    sync = os.fsync

    def odd(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(code, os.strerror(code))
        sync(handle)

    monkeypatch.setattr(os, "fsync", odd)
    with nullcontext() if written else pytest.raises(OSError, match=os.strerror(code)):
        replace_file(tmp_path / "a.json", b"new")


def test_what_is_not_there_is_removed_already(tmp_path: Path) -> None:
    remove_file(tmp_path / "a.json")
    CdiFiles([tmp_path / "nowhere"]).remove("uid-a")
