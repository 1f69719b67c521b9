"""The Kubernetes programs the cluster is made of: found in a folder, or built once by Go and kept.

`GPUPACK_KUBE_BIN` or `KUBEBUILDER_ASSETS` name a folder that has them. Otherwise `tests/cluster/kubebin`
is built into the user's cache, in a folder named after its sources and the compiler, so a change of either
builds anew and everything else starts at once.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

SOURCES = Path(__file__).resolve().parent.parent / "kubebin"
KUSTOMIZE = SOURCES.with_name("kustomizebin")
PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
TOOLS = {
    "etcd": "etcd-server",
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "openssl": "openssl",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "mount": "mount",
}
BUSYBOX = Path("/bin/busybox")
BUILD_TIMEOUT_S = 3600


def obstacle() -> str | None:
    """Why no cluster can be started on this machine, in one plain sentence; None if one can."""
    if os.geteuid() != 0:
        return "a real cluster needs root (namespaces, mounts and cgroups)"
    packages = sorted({package for tool, package in TOOLS.items() if shutil.which(tool) is None})
    if not _static_busybox():
        packages.append("busybox-static")
    if packages:
        return f"a real cluster needs these Debian packages: {' '.join(packages)}"
    if _given_folder() is None and shutil.which("go") is None:
        return "the Kubernetes programs must be built and there is no Go (or set GPUPACK_KUBE_BIN)"
    return None


def programs() -> Path:
    """The folder that holds `PROGRAMS`, built if it must be.

    Raises:
        FileNotFoundError: If the folder named by the environment lacks one of them.
        RuntimeError: If the build fails; carries the end of the compiler's output.
    """
    given = _given_folder()
    if given is not None:
        missing = [name for name in PROGRAMS if not os.access(given / name, os.X_OK)]
        if missing:
            raise FileNotFoundError(
                f"{given} (GPUPACK_KUBE_BIN or KUBEBUILDER_ASSETS) lacks {', '.join(missing)}"
            )
        return given
    found = re.search(r"k8s\.io/kubernetes (v\S+)", (SOURCES / "go.mod").read_text())
    assert found is not None, "go.mod names no k8s.io/kubernetes"
    return _build(SOURCES, f"-X k8s.io/component-base/version.gitVersion={found[1]}", PROGRAMS)


def kustomize() -> Path:
    """The program that prints what `kubectl apply -k` applies, built if it must be.

    Raises:
        RuntimeError: If the build fails; carries the end of the compiler's output.
    """
    return _build(KUSTOMIZE) / KUSTOMIZE.name


def _given_folder() -> Path | None:
    named = os.environ.get("GPUPACK_KUBE_BIN") or os.environ.get("KUBEBUILDER_ASSETS")
    return Path(named).resolve() if named else None


def _static_busybox() -> bool:
    try:
        with BUSYBOX.open("rb") as program:
            return b"/ld-linux" not in program.read(4096)
    except OSError:
        return False


def _build(sources: Path, flags: str = "", names: Sequence[str] = ()) -> Path:
    """Build the program of a folder into the cache, under its own name and as links under `names`."""
    environment = dict(os.environ, CGO_ENABLED="0", GOFLAGS="-mod=readonly", GOTOOLCHAIN="local")
    compiler = subprocess.run(
        ["go", "env", "GOVERSION"],
        cwd=sources.parent,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    digest = hashlib.sha256(compiler.encode())
    for name in ("go.mod", "go.sum", "main.go"):
        digest.update((sources / name).read_bytes())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpupack"
    folder = cache / digest.hexdigest()[:16]
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            unfinished = cache / f"{folder.name}.part"
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            _compile(sources, unfinished / sources.name, f"-s -w {flags}".strip(), environment)
            for name in names:
                (unfinished / name).symlink_to(sources.name)
            unfinished.rename(folder)
    return folder


def _compile(sources: Path, target: Path, flags: str, environment: dict[str, str]) -> None:
    built = subprocess.run(
        ["go", "build", "-trimpath", "-ldflags", flags, "-o", str(target), "."],
        cwd=sources,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
    )
    if built.returncode != 0:
        raise RuntimeError(f"go build in {sources} failed with {built.returncode}: {built.stderr[-2000:]}")
