"""The archives of `make kube-bundle`: how they are cut, and that what is in them runs elsewhere."""

import io
import subprocess
import tarfile
from pathlib import Path

import pytest
from pytest_mock import MockerFixture

from tests.cluster.harness import binaries
from tests.scripts import bundle

LOCK = """\
one==1.0 \\
    --hash=sha256:aa \\
    --hash=sha256:bb
two==1.0 ; python_full_version < '3.12' \\
    --hash=sha256:cc
two==2.0 ; python_full_version >= '3.12' \\
    --hash=sha256:dd
three==1.0 ; sys_platform == 'win32' \\
    --hash=sha256:ee
"""


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Make programs that say where they look for libraries; those of Kubernetes are one."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for name in ("kubebin", *binaries.RUNTIME, "runc", "etcd"):
        (folder / name).write_text('#!/bin/sh\necho "$LD_LIBRARY_PATH"\n')
        (folder / name).chmod(0o755)
    for name in binaries.PROGRAMS:
        (folder / name).symlink_to("kubebin")
    return folder


def unpack(archives: list[bytes], folder: Path) -> None:
    for archive in archives:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as opened:
            opened.extractall(folder, filter="fully_trusted")


def test_no_archive_is_larger_than_allowed_and_all_of_it_is_in_them(tmp_path: Path, programs: Path) -> None:
    members = [*bundle.list_members(programs, programs, {})]
    (whole,) = bundle.pack(members, 1 << 20)
    most = len(whole) // 2
    parts = bundle.pack(members, most)
    assert len(parts) > 1
    assert max(map(len, parts)) <= most
    unpack(parts, tmp_path / "there")
    assert {path.name for path in (tmp_path / "there").iterdir()} == {info.name for info, _ in members}
    assert (tmp_path / "there" / "kubelet").readlink() == Path("kubebin")
    with pytest.raises(ValueError, match=r"^\S+ takes \d+ bytes; allowed: \d+$"):
        bundle.pack(members, 100)


def test_programs_find_the_libraries_that_came_along(
    tmp_path: Path, programs: Path, mocker: MockerFixture
) -> None:
    library = tmp_path / "libseccomp.so.2"
    library.write_text("a library")
    mocker.patch.object(bundle, "needed_libraries", lambda path: [library] if path.name == "runc" else [])
    tools = {name: programs / name for name in ("runc", "etcd")}
    there = tmp_path / "there"
    unpack(bundle.pack(bundle.list_members(programs, programs, tools), 1 << 20), there)

    def told(name: str) -> str:
        done = subprocess.run(
            [there / name], check=True, capture_output=True, text=True, env={"PATH": "/bin:/usr/bin"}
        )
        return done.stdout.strip()

    assert told("runc") == str(there / "lib")
    assert (there / "lib" / library.name).read_text() == "a library"
    assert told("etcd") == ""


def test_the_requirements_are_those_of_the_python_there() -> None:
    first = "one==1.0 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\n"
    assert bundle.requirements_for(LOCK, "3.11") == f"{first}two==1.0 \\\n    --hash=sha256:cc\n"
    assert bundle.requirements_for(LOCK, "3.13") == f"{first}two==2.0 \\\n    --hash=sha256:dd\n"


def test_a_folder_of_a_bundle_needs_no_go(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUPACK_KUBE_BIN", str(programs))
    monkeypatch.delenv("GPUPACK_KUBE_VERSION", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    binaries.build()
    assert binaries.programs() == binaries.containerd() == programs
    assert binaries.find("runc") == str(programs / "runc")
    assert "Go" not in (binaries.obstacle() or "")
