#!/usr/bin/env python3
"""Builds gpupack's image without Docker and without a registry: an OCI archive of Debian packages and wheels.

`.ci/image.py FILE.tar` on Debian 12, with apt-get, dpkg-deb, tar and pip. Three layers: Python and its
libraries from Debian, the packages of requirements.lock, gpupack. The image has no shell and no package
manager. The first two layers are kept in the cache by what they are made of. `ctr images import FILE.tar` and
`docker load` take it.
"""

import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = (
    *(
        "python3.11-minimal",
        "libpython3.11-minimal",
        "libpython3.11-stdlib",
        "media-types",
        "netbase",
        "tzdata",
    ),
    *(
        "libc6",
        "libgcc-s1",
        "libstdc++6",
        "zlib1g",
        "libbz2-1.0",
        "liblzma5",
        "libexpat1",
        "libffi8",
        "libuuid1",
    ),
    *("libcrypt1", "libssl3", "ca-certificates"),
)
# Of every file, so that equal content is an equal layer.
TIME = 1_700_000_000
MERGED = ("bin", "lib", "lib64", "sbin")
DROPPED = ("usr/share/doc", "usr/share/man", "usr/share/lintian", "usr/share/bug", "usr/share/zoneinfo/right")
PYTHON = "usr/bin/python3.11"
SITE = "opt/gpupack"
SOURCES = (
    "pyproject.toml",
    "README.md",
    "LICENSE",
    *("allocator", "kubeapi", "deviceplugin", "scheduler_plugin", "gpupack", "standins"),
)
# Of packages: what only their authors need.
UNUSED = ("**/tests", "**/test", "**/*.pyx", "**/*.pxd", "**/*.c", "**/*.h", "**/*.a", "bin")


def main() -> None:
    """Build the image; prints its size."""
    if len(sys.argv) != 2 or sys.argv[1] in {"-h", "--help"}:  # noqa: PLR2004
        sys.exit("usage: .ci/image.py FILE.tar, or --check whether it can be built here")
    if (reason := obstacle()) is not None:
        sys.exit(reason)
    if sys.argv[1] == "--check":
        return
    target = Path(sys.argv[1])
    lock = (ROOT / "requirements.lock").read_bytes()
    recipe = Path(__file__).read_bytes()
    layers = [
        kept("debian", recipe + versions(), debian),
        kept("packages", recipe + lock, packages),
        layer(gpupack),
    ]
    write(target, layers, version())
    print(f"{target}: {sum(map(len, layers)) / 1e6:.1f} MB in {len(layers)} layers")


def obstacle() -> str | None:
    """Why the image cannot be built on this machine, None where it can."""
    release = Path("/etc/os-release")
    if "VERSION_CODENAME=bookworm" not in (release.read_text() if release.exists() else ""):
        return "Debian 12 is needed: the image is made of its packages"
    if sys.version_info[:2] != (3, 11):
        return f"Python 3.11 is needed, as in Debian 12; this is {sys.version.split()[0]}"
    return None


def version() -> str:
    """The product's version."""
    lines = (ROOT / "pyproject.toml").read_text().splitlines()
    return next(line.split('"')[1] for line in lines if line.startswith("version = "))


def versions() -> bytes:
    """What apt would install today, as text."""
    return run("apt-cache", "policy", *PACKAGES)


def run(*command: str | Path, cwd: Path | None = None) -> bytes:
    """What a command prints; its own words where it fails."""
    # Bytecode belongs beside its source, also where the caller keeps its own elsewhere or has none.
    own = {"PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"}
    environment = {name: value for name, value in os.environ.items() if name not in own}
    done = subprocess.run(command, cwd=cwd, env=environment, check=False, capture_output=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: {done.stderr.decode(errors='replace')[-2000:]}")
    return done.stdout


def kept(name: str, made_of: bytes, make: Callable[[Path], None]) -> bytes:
    """A layer from the cache, or made and kept."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpupack"
    file = cache / f"image-{name}-{hashlib.sha256(made_of).hexdigest()[:16]}.tar.gz"
    if not file.exists():
        cache.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_suffix(f".{os.getpid()}")
        unfinished.write_bytes(layer(make))
        unfinished.rename(file)
    return file.read_bytes()


def layer(make: Callable[[Path], None]) -> bytes:
    """A layer of what `make` puts into a folder: sorted, owned by root, all of one time."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        make(folder)
        plain = io.BytesIO()
        with tarfile.open(fileobj=plain, mode="w") as archive:
            for path in sorted(folder.rglob("*")):
                archive.add(path, str(path.relative_to(folder)), recursive=False, filter=_plain)
        return gzip.compress(plain.getvalue(), compresslevel=6, mtime=0)


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = TIME
    return member


def debian(folder: Path) -> None:
    """Python 3.11 and the libraries that it and the wheels need, unpacked without their scripts."""
    for name in MERGED:
        (folder / "usr" / name).mkdir(parents=True)
        (folder / name).symlink_to(f"usr/{name}")
    with tempfile.TemporaryDirectory() as downloads:
        Path(downloads).chmod(0o777)
        run("apt-get", "-qq", "download", *PACKAGES, cwd=Path(downloads))
        for package in sorted(Path(downloads).glob("*.deb")):
            content = subprocess.run(
                ["dpkg-deb", "--fsys-tarfile", package], check=True, capture_output=True
            ).stdout
            subprocess.run(
                ["tar", "-x", "--keep-directory-symlink", "-C", folder],
                input=content,
                check=True,
                capture_output=True,
            )
    authorities = sorted((folder / "usr/share/ca-certificates/mozilla").glob("*.crt"))
    bundle = folder / "etc/ssl/certs/ca-certificates.crt"
    bundle.parent.mkdir(parents=True, exist_ok=True)
    bundle.write_bytes(b"".join(one.read_bytes() for one in authorities))
    (folder / "etc/passwd").write_text(
        "root:x:0:0:root:/:/sbin/nologin\ngpupack:x:65532:65532::/:/sbin/nologin\n"
    )
    (folder / "etc/group").write_text("root:x:0:\ngpupack:x:65532:\n")
    (folder / "etc/nsswitch.conf").write_text("hosts: files dns\n")
    (folder / "usr/bin/python3").symlink_to("python3.11")
    (folder / "tmp").mkdir()
    (folder / "tmp").chmod(0o1777)
    compiled(folder, "usr/lib/python3.11")
    for name in DROPPED:
        shutil.rmtree(folder / name, ignore_errors=True)


def packages(folder: Path) -> None:
    """The packages of requirements.lock."""
    site = folder / SITE
    run(*pip("--require-hashes", "-r", ROOT / "requirements.lock"), "--target", site)
    for pattern in UNUSED:
        for path in list(site.glob(pattern)):
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    compiled(folder, SITE)


def gpupack(folder: Path) -> None:
    """The product as git knows it; copied first, for a build writes beside its sources."""
    with tempfile.TemporaryDirectory() as copy:
        for name in run("git", "-C", ROOT, "ls-files", "-z", *SOURCES).decode().split("\0"):
            if name and (ROOT / name).is_file():
                target = Path(copy) / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / name, target)
        run(*pip("--no-deps", "--no-build-isolation", copy), "--target", folder / SITE)
    shutil.rmtree(folder / SITE / "bin", ignore_errors=True)
    compiled(folder, SITE)


def compiled(folder: Path, inside: str) -> None:
    """Compile what is in a layer, for quicker starts. Nobody changes a source there."""
    run(
        *(sys.executable, "-m", "compileall", "-q", "-s", folder, "-p", "/"),
        *("--invalidation-mode", "unchecked-hash", folder / inside),
    )


def pip(*arguments: str | Path) -> tuple[str | Path, ...]:
    """A call of pip that leaves compiling to us: what it compiles is for the times of files here."""
    return (
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--disable-pip-version-check",
        "--no-compile",
        *arguments,
    )


def write(target: Path, layers: list[bytes], tag: str) -> None:
    """Write an OCI archive."""
    architecture = run("dpkg", "--print-architecture").decode().strip()
    config = {
        "architecture": architecture,
        "os": "linux",
        "config": {
            "User": "65532:65532",
            "Env": [
                "PATH=/usr/bin",
                f"PYTHONPATH=/{SITE}",
                "PYTHONUNBUFFERED=1",
                "PYTHONDONTWRITEBYTECODE=1",
            ],
            "Entrypoint": [f"/{PYTHON}", "-m", "gpupack"],
            "WorkingDir": "/",
            "Labels": {"org.opencontainers.image.title": "gpupack", "org.opencontainers.image.version": tag},
        },
        "rootfs": {"type": "layers", "diff_ids": [digest(gzip.decompress(one)) for one in layers]},
    }
    blobs: dict[str, bytes] = {}

    def blob(content: bytes, media: str) -> dict[str, object]:
        blobs[digest(content)] = content
        return {
            "mediaType": f"application/vnd.oci.image.{media}",
            "digest": digest(content),
            "size": len(content),
        }

    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": blob(dumped(config), "config.v1+json"),
        "layers": [blob(one, "layer.v1.tar+gzip") for one in layers],
    }
    entry = blob(dumped(manifest), "manifest.v1+json")
    name = f"docker.io/library/gpupack:{tag}"
    entry["annotations"] = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": tag}
    entry["platform"] = {"architecture": architecture, "os": "linux"}
    with tarfile.open(target, "w") as archive:
        add(archive, "oci-layout", dumped({"imageLayoutVersion": "1.0.0"}))
        add(archive, "index.json", dumped({"schemaVersion": 2, "manifests": [entry]}))
        for name, content in blobs.items():
            add(archive, f"blobs/{name.replace(':', '/')}", content)


def digest(content: bytes) -> str:
    """The name of a blob."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def dumped(value: object) -> bytes:
    """JSON."""
    return json.dumps(value, sort_keys=True).encode()


def add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    """Add a file to an archive."""
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), 0o644
    archive.addfile(member, io.BytesIO(content))


if __name__ == "__main__":
    main()
