"""A container image made by hand: a static busybox and links to it, as a docker archive."""

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.cluster.harness.binaries import busybox

PAUSE = "localhost/gpupack-test-pause:1"
SHELL = "localhost/gpupack-test-shell:1"
APPLETS = ("cat", "echo", "env", "false", "kill", "ls", "ps", "sh", "sleep", "test", "touch", "true")


def write_archive(
    target: Path,
    names: Sequence[str] = (PAUSE, SHELL),
    files: Mapping[str, Path] | None = None,
    **settings: object,
) -> None:
    """Write one image; without a command it sleeps for ever.

    Args:
        files: What is in it beside busybox, by the path there.
        settings: Of the image's configuration, such as User.
    """
    layer = _layer(files or {})
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Env": ["PATH=/bin"], "Cmd": ["/bin/sleep", "2147483647"], **settings},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
        }
    ).encode()
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = [{"Config": config_name, "RepoTags": list(names), "Layers": ["layer.tar"]}]
    with tarfile.open(target, "w") as archive:
        _add(archive, config_name, config)
        _add(archive, "layer.tar", layer)
        _add(archive, "manifest.json", json.dumps(manifest).encode())


def _layer(files: Mapping[str, Path]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as layer:
        for name in ("bin", "dev", "etc", "proc", "sys", "tmp"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            layer.addfile(folder)
        _add(layer, "bin/busybox", busybox().read_bytes(), mode=0o755)
        for applet in APPLETS:
            link = tarfile.TarInfo(f"bin/{applet}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            layer.addfile(link)
        for place, path in files.items():
            _add(layer, place.lstrip("/"), path.read_bytes(), path.stat().st_mode & 0o777)
    return buffer.getvalue()


def _add(archive: tarfile.TarFile, name: str, data: bytes, mode: int = 0o644) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(data), mode
    archive.addfile(member, io.BytesIO(data))
