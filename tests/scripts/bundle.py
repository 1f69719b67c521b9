"""Packs the programs of a cluster for a machine without Go, registries and network: `make kube-bundle`.

Each archive stays below a size, so that it goes where large files do not. All of them are unpacked into one
folder, which `GPUPACK_KUBE_BIN` names:

    kubebin, and kube-apiserver and so on, links to it    containerd, its shim, ctr
    etcd, runc, busybox, openssl                          lib: libraries that not every machine has
    wheels: Python's packages of the tests

The images of the tests are made of busybox where they are needed.
"""

import argparse
import gzip
import itertools
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement

from tests.cluster.harness import binaries

MOST_BYTES: Final = 60_000_000
NAME: Final = "kube-bundle-{}.tar.gz"
TOOLS: Final = ("etcd", "runc", "openssl", "busybox")
LIBRARIES: Final = "lib"
LOCK: Final = Path(__file__).parents[2] / "requirements-dev.lock"

_GLIBC: Final = re.compile(r"(ld-linux.*|lib(c|m|dl|rt|pthread|resolv)\.so.*)")
_WITH_LIBRARIES: Final = f"""#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
LD_LIBRARY_PATH="$here/{LIBRARIES}" exec "$here/{{}}" "$@"
"""
_END: Final = gzip.compress(bytes(2 * tarfile.BLOCKSIZE))


def needed_libraries(program: Path) -> list[Path]:
    """List the libraries that a program loads, as the machine's loader finds them, but for those of glibc."""
    return [path for path in all_libraries(program) if not _GLIBC.fullmatch(path.name)]


def all_libraries(*programs: Path) -> list[Path]:
    """List all libraries that programs or libraries load, the loader itself included."""
    done = subprocess.run(["ldd", *programs], check=False, capture_output=True, text=True)
    return [Path(found[1]) for found in re.finditer(r"(/\S+) \(0x", done.stdout)]


def list_members(
    programs: Path, runtime: Path, tools: Mapping[str, Path]
) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    """List what the folder has.

    Args:
        programs: folder of Kubernetes' programs, which may be links to one.
        runtime: folder of the container runtime.
        tools: other programs by name; the libraries that they need come along.
    """
    for name in binaries.PROGRAMS:
        path = programs / name
        yield _link(name, path.readlink().name) if path.is_symlink() else _file(name, path)
    for path in {(programs / name).resolve() for name in binaries.PROGRAMS if (programs / name).is_symlink()}:
        yield _file(path.name, path)
    for name in binaries.RUNTIME:
        yield _file(name, runtime / name)
    libraries: dict[str, Path] = {}
    for name, path in tools.items():
        needed = needed_libraries(path)
        libraries.update({each.name: each for each in needed})
        if needed:
            yield _file(f".{name}", path)
            yield _member(name, _WITH_LIBRARIES.format(f".{name}").encode(), 0o755)
        else:
            yield _file(name, path)
    for name, path in libraries.items():
        yield _file(f"{LIBRARIES}/{name}", path)


def requirements_for(lock: str, python: str) -> str:
    """Keep what a lock file requires with a version of Python on this platform.

    pip downloads for another version, but goes by the markers of its own.
    """
    environment = {"python_version": python, "python_full_version": f"{python}.0"}
    kept = []
    for block in re.split(r"^(?=\S)", lock, flags=re.MULTILINE):
        first, _, hashes = block.partition("\n")
        text = first.rstrip(" \\")
        marker = Requirement(text).marker if text else None
        if text and (marker is None or marker.evaluate(environment)):
            kept.append(f"{text.partition(';')[0].strip()} \\\n{hashes}")
    return "".join(kept)


def download_wheels(target: Path, python: str) -> list[Path]:
    """Download Python's packages of the tests; the wheels."""
    with tempfile.TemporaryDirectory() as folder:
        requirements = Path(folder) / "requirements.txt"
        requirements.write_text(requirements_for(LOCK.read_text("utf-8"), python))
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        command += ["--require-hashes", "--no-deps", "--only-binary=:all:", "--python-version", python]
        subprocess.run([*command, "-r", str(requirements), "-d", str(target)], check=True)
    return sorted(target.glob("*.whl"))


def pack(members: Iterable[tuple[tarfile.TarInfo, bytes]], most_bytes: int) -> list[bytes]:
    """Pack files into archives of at most so many bytes each.

    Raises:
        ValueError: one file is larger by itself.
    """
    archives: list[bytes] = []
    for info, content in members:
        # Compressed files that follow each other are a compressed file: of each one its size is known.
        padded = info.tobuf() + content + bytes(-len(content) % tarfile.BLOCKSIZE)
        piece = gzip.compress(padded, compresslevel=6)
        if len(piece) + len(_END) > most_bytes:
            raise ValueError(f"{info.name} takes {len(piece)} bytes; allowed: {most_bytes - len(_END)}")
        for at, archive in enumerate(archives):
            if len(archive) + len(piece) + len(_END) <= most_bytes:
                archives[at] = archive + piece
                break
        else:
            archives.append(piece)
    return [archive + _END for archive in archives]


def main() -> int:
    """Write the archives into a folder, and print their names."""
    parser = argparse.ArgumentParser(prog="python -m tests.scripts.bundle", description=__doc__)
    parser.add_argument("target", type=Path, help="a folder, which is emptied")
    parser.add_argument("--python", default=f"{sys.version_info[0]}.{sys.version_info[1]}", help="as in 3.12")
    options = parser.parse_args()
    reason = binaries.obstacle()
    if reason is not None:
        parser.error(reason)
    shutil.rmtree(options.target, ignore_errors=True)
    options.target.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as folder:
        wheels = download_wheels(Path(folder), options.python)
        packages = (_file(f"wheels/{path.name}", path) for path in wheels)
        tools = {name: Path(path) for name in TOOLS if (path := binaries.find(name))}
        programs = list_members(binaries.programs(), binaries.containerd(), tools)
        members = itertools.chain(programs, packages)
        for number, archive in enumerate(pack(members, MOST_BYTES), start=1):
            path = options.target / NAME.format(number)
            path.write_bytes(archive)
            sys.stdout.write(f"{path}  {len(archive) / 1e6:.1f} MB\n")
    return 0


def _file(name: str, path: Path) -> tuple[tarfile.TarInfo, bytes]:
    return _member(name, path.read_bytes(), path.stat().st_mode & 0o777)


def _member(name: str, content: bytes, mode: int) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), mode
    return info, content


def _link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, target
    return info, b""


if __name__ == "__main__":
    sys.exit(main())
