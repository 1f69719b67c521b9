"""The programs the cluster is made of: found in a folder, or built once by Go and kept.

`GPUPACK_KUBE_BIN` or `KUBEBUILDER_ASSETS` name a folder that has those of Kubernetes; whatever else of what a
cluster needs is in it goes before the machine's own, so that a folder of `make kube-bundle` needs no Go.
Otherwise `tests/cluster/kubebin` is built for the version picked (`versions.py`). What is built lies in the
user's cache, in a folder named after its sources and the compiler, so a change of either builds anew and
everything else starts at once.

A build takes minutes: `build` makes everything before the first test, so that no test's limit runs meanwhile.
"""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster.harness import versions

KUSTOMIZE = versions.SOURCES.with_name("kustomizebin")
CONTAINERD = versions.SOURCES.with_name("containerdbin")
TOOLBOX = versions.SOURCES.with_name("toolbin")
PROMQL = versions.SOURCES.with_name("promqlbin")
PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
TOOLS = {
    "etcd": "etcd-server",
    "runc": "runc",
    "openssl": "openssl",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "mount": "mount",
}
RUNTIME = ("containerd", "containerd-shim-runc-v2", "ctr")
BUILD_TIMEOUT_S = 3600


@dataclass(frozen=True)
class Published:
    """A program that the Go module proxy has the sources of, kept with manifests of its module.

    Attributes:
        name: Of the program.
        module: With its version.
        package: Within the module; empty where its manifests alone are wanted.
        manifests: Patterns of its CRDs and webhooks, within the module.
    """

    name: str
    module: str
    package: str
    manifests: tuple[str, ...]

    @property
    def folder(self) -> Path:
        """Return the folder that keeps the controller: `GPUPACK_NAME_BIN` where that is set."""
        named = os.environ.get(f"GPUPACK_{self.name.upper().replace('-', '_')}_BIN")
        return Path(named) if named else _cache() / f"{self.name}-{self.module.rpartition('@')[2]}"

    def build(self) -> None:
        """Build it where it is not there."""
        if self.folder.is_dir():
            return
        unfinished = self.folder.with_name(f"{self.folder.name}.part")
        unfinished.mkdir(parents=True, exist_ok=True)
        downloaded = json.loads(_go("mod", "download", "-json", self.module, cwd=unfinished))
        sources = Path(downloaded["Dir"])
        if self.package:
            flags = ["-trimpath", "-ldflags", "-s -w"]
            _go("build", *flags, "-o", str(unfinished / self.name), self.package, cwd=sources)
        for manifest in [path for pattern in self.manifests for path in sources.glob(pattern)]:
            (unfinished / manifest.name).write_bytes(manifest.read_bytes())
        unfinished.rename(self.folder)


KARPENTER = Published(
    # With its kwok provider; later versions ask for a later patch of Go.
    "karpenter",
    "sigs.k8s.io/karpenter@v1.13.0",
    "./kwok",
    ("pkg/apis/crds/*.yaml", "kwok/apis/crds/*.yaml"),
)
JOBSET = Published(
    "jobset",
    "sigs.k8s.io/jobset@v0.10.1",
    ".",
    ("config/components/crd/bases/*.yaml", "config/components/webhook/manifests.yaml"),
)
LEADER_WORKER_SET = Published(
    "lws",
    "sigs.k8s.io/lws@v0.8.0",
    "./cmd",
    ("config/crd/bases/*.yaml", "config/webhook/manifests.yaml"),
)
TRAINING_OPERATOR = Published(
    "training-operator",
    "github.com/kubeflow/training-operator@v1.9.3",
    "./cmd/training-operator.v1",
    ("manifests/base/crds/kubeflow.org_*.yaml", "manifests/base/webhook/manifests.yaml"),
)
POD_GROUPS = Published(
    "scheduler-plugins",
    "sigs.k8s.io/scheduler-plugins@v0.34.1-devel",
    "",
    ("config/crd/bases/*podgroups.yaml",),
)
TRAINER = Published(
    "trainer",
    "github.com/kubeflow/trainer/v2@v2.1.0",
    "./cmd/trainer-controller-manager",
    ("manifests/base/crds/trainer*.yaml", "manifests/base/webhook/manifests.yaml"),
)
KUBERAY = Published(
    "kuberay", "github.com/ray-project/kuberay/ray-operator@v1.5.0", ".", ("config/crd/bases/*.yaml",)
)
CONTROLLERS = (JOBSET, LEADER_WORKER_SET, TRAINING_OPERATOR, POD_GROUPS, TRAINER, KUBERAY)
"""Controllers that make gangs."""


def obstacle() -> str | None:
    """Why no cluster can be started on this machine, in one plain sentence; None if one can."""
    if os.geteuid() != 0:
        return "a real cluster needs root (namespaces, mounts and cgroups)"
    packages = sorted({package for tool, package in TOOLS.items() if find(tool) is None})
    if not _is_static(busybox()):
        packages.append("busybox-static")
    if packages:
        return f"a real cluster needs these Debian packages: {' '.join(packages)}"
    if not _has_go() and _bundle() is None:
        return "the programs of a real cluster must be built and there is no Go"
    return None


def find(tool: str) -> str | None:
    """The path of a tool: in the folder named by the environment, else on the machine."""
    return shutil.which(tool, path=search_path())


def search_path() -> str:
    folders = [str(folder) for folder in (_given_folder(),) if folder is not None]
    return ":".join([*folders, os.environ.get("PATH", os.defpath)])


def busybox() -> Path:
    return Path(find("busybox") or "/bin/busybox")


def build() -> None:
    """Build whatever is not built yet, which takes minutes; without Go only what every cluster is made of.

    Raises:
        FileNotFoundError: If the folder named by the environment lacks a program.
        RuntimeError: If a build fails; carries the end of the compiler's output.
        ValueError: If the environment names an unknown Kubernetes version, or a version and a folder.
    """
    programs()
    containerd()
    if not _has_go():
        return
    kustomize()
    tool("helm")
    promql()
    if os.environ.get("GPUPACK_KARPENTER") == "1":
        KARPENTER.build()
    if os.environ.get("GPUPACK_CONTROLLERS") == "1":
        for controller in CONTROLLERS:
            controller.build()


def skip_before(first: str, what: str) -> None:
    """Skip a test where Kubernetes is older than a minor version, from which on it has something."""
    minor = versions.minor_of(programs())
    if [int(part) for part in minor.split(".")] < [int(part) for part in first.split(".")]:
        pytest.skip(f"Kubernetes {minor} has no {what}; {first} has")


def programs() -> Path:
    """The folder that holds `PROGRAMS`, built if it must be.

    Raises:
        FileNotFoundError: If the folder named by the environment lacks one of them.
        RuntimeError: If the build fails; carries the end of the compiler's output.
        ValueError: If the environment names an unknown Kubernetes version, or a version and a folder.
    """
    given = _given_folder()
    if given is not None:
        if os.environ.get(versions.VARIABLE):
            raise ValueError(
                f"{given} has one version of Kubernetes: set KUBE_VERSION or the folder, not both"
            )
        missing = [name for name in PROGRAMS if not os.access(given / name, os.X_OK)]
        if missing:
            raise FileNotFoundError(
                f"{given} (GPUPACK_KUBE_BIN or KUBEBUILDER_ASSETS) lacks {', '.join(missing)}"
            )
        return given
    version = versions.picked()
    flags = f"-s -w -X k8s.io/component-base/version.gitVersion=v{version.number}"

    def compile_all(folder: Path) -> None:
        modules = f"-modfile={version.modules / 'go.mod'}"
        _go("build", modules, "-trimpath", "-ldflags", flags, "-o", f"{folder}/", ".", cwd=versions.SOURCES)
        for name in PROGRAMS:
            (folder / name).symlink_to(versions.SOURCES.name)

    return _kept([*_module_files(version.modules), versions.SOURCES / "main.go"], compile_all)


def containerd() -> Path:
    """The folder that holds containerd 2, its shim and `ctr`, built if it must be.

    The kubelet asks its runtime for the cgroup driver; from 1.37 on it does not start with one that cannot
    answer, such as Debian's containerd 1.6.

    Raises:
        RuntimeError: If the build fails; carries the end of the compiler's output.
    """
    return _bundle() or _kept_tools(CONTAINERD)


def tool(name: str) -> Path:
    """Helm or actionlint, built if it must be.

    Raises:
        RuntimeError: If the build fails; carries the end of the compiler's output.
    """
    return _kept_tools(TOOLBOX) / name


def kustomize() -> Path:
    """The program that prints what `kubectl apply -k` applies, built if it must be.

    Raises:
        RuntimeError: If the build fails; carries the end of the compiler's output.
    """
    return _kept_program(KUSTOMIZE)


def promql() -> Path:
    """The program that names the PromQL expressions that Prometheus would refuse, built if it must be.

    Raises:
        RuntimeError: If the build fails; carries the end of the compiler's output.
    """
    return _kept_program(PROMQL)


def autoscaler() -> Path | None:
    """The folder with Cluster Autoscaler and its external clouds' proto; None where none is named.

    Its module is on no proxy that everybody can reach, so nothing here builds it.
    """
    named = os.environ.get("GPUPACK_AUTOSCALER_BIN")
    return Path(named) if named else None


def skip_without_autoscaler() -> None:
    if autoscaler() is None:
        pytest.skip("GPUPACK_AUTOSCALER_BIN names no folder with cluster-autoscaler and externalgrpc.proto")


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpupack"


def _kept_tools(sources: Path) -> Path:
    """The folder with the tools that a go.mod names."""

    def compile_all(folder: Path) -> None:
        _go("build", "-trimpath", "-ldflags", "-s -w", "-o", f"{folder}/", "tool", cwd=sources)

    return _kept(_module_files(sources), compile_all)


def _kept_program(sources: Path) -> Path:
    """The program of a folder with one main.go."""

    def compile_all(folder: Path) -> None:
        _go("build", "-trimpath", "-ldflags", "-s -w", "-o", f"{folder}/", ".", cwd=sources)

    return _kept([*_module_files(sources), sources / "main.go"], compile_all) / sources.name


def _given_folder() -> Path | None:
    named = os.environ.get("GPUPACK_KUBE_BIN") or os.environ.get("KUBEBUILDER_ASSETS")
    return Path(named).resolve() if named else None


def _bundle() -> Path | None:
    """The folder named by the environment where it has the container runtime, too."""
    given = _given_folder()
    whole = given is not None and all(os.access(given / name, os.X_OK) for name in RUNTIME)
    return given if whole else None


def _has_go() -> bool:
    return shutil.which("go") is not None


def _is_static(program: Path) -> bool:
    try:
        with program.open("rb") as content:
            return b"/ld-linux" not in content.read(4096)
    except OSError:
        return False


def _module_files(folder: Path) -> list[Path]:
    return [folder / "go.mod", folder / "go.sum"]


def _kept(sources: Sequence[Path], compile_all: Callable[[Path], None]) -> Path:
    """The folder of the cache for what `compile_all` makes of the sources; made by it if it is not there."""
    digest = hashlib.sha256(_go("env", "GOVERSION", cwd=versions.SOURCES).strip().encode())
    for source in sources:
        digest.update(source.read_bytes())
    cache = _cache()
    folder = cache / digest.hexdigest()[:16]
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            unfinished = cache / f"{folder.name}.part"
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            compile_all(unfinished)
            unfinished.rename(folder)
    return folder


def _go(*arguments: str, cwd: Path) -> str:
    """What the go command prints.

    Raises:
        RuntimeError: If it fails; carries the end of what it wrote on stderr.
    """
    done = subprocess.run(
        ["go", *arguments],
        cwd=cwd,
        env=dict(os.environ, CGO_ENABLED="0", GOFLAGS="-mod=readonly", GOTOOLCHAIN="local"),
        check=False,
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
    )
    if done.returncode != 0:
        told = done.stderr[-2000:]
        raise RuntimeError(f"go {arguments[0]} in {cwd} failed with {done.returncode}: {told}")
    return done.stdout
