"""Programs that use a real card as a container's processes do: in a pod's cgroup, namespaces of their own."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

from deviceplugin.errors import GpuError
from deviceplugin.gpus.api.container_grant import Mount
from deviceplugin.gpus.api.source import GpuCard
from deviceplugin.gpus.nvidia.mps.folder import SHM
from deviceplugin.gpus.nvidia.source import NvmlGpus

CHILD: Final = (sys.executable, str(Path(__file__).with_name("cuda_program.py")))
CONTAINER_ID: Final = "c" * 64

Report = Callable[[str, object], None]
"""Takes what was measured, and its figure, for the end of the run; see the fixture `report`."""

IDLE_MIB: Final = 1024

# $0: the cgroup, or nothing.
_IN_CGROUP: Final = 'if [ -n "$0" ]; then echo $$ >"$0/cgroup.procs" || exit; fi; exec "$@"'
MPS_CAPABILITIES: Final = "+setuid,+setgid,+chown,+dac_override,+kill"
"""manifests/components/mps/daemonset.yaml"""

_NAMESPACES: Final = ("unshare", "--mount", "--pid", "--ipc", "--fork", "--kill-child", "--mount-proc", "--")


def find_idle_card(source: NvmlGpus) -> GpuCard:
    """Take the first card, on which nobody may be.

    Raises:
        GpuError: it cannot be used.
    """
    first = source.cards()[0]
    if first.error is not None:
        raise GpuError(first.error)
    used_mib = source.sample()[0].used_mib
    assert used_mib <= IDLE_MIB, f"the first card must be idle; {used_mib} MiB are in use"
    return first


class PodCgroups:
    """Cgroups as a kubelet with the driver cgroupfs makes them.

    Args:
        root: a hierarchy of cgroups, of version 1 or 2.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._made: list[Path] = []

    def add(self, uid: str) -> Path:
        container = self.root / "kubepods" / f"pod{uid}" / CONTAINER_ID
        for folder in (container.parents[1], container.parent, container):
            if not folder.exists():
                folder.mkdir()
                self._made.append(folder)
        return container

    def remove(self) -> None:
        """Remove what was made; the kernel takes a moment after the last process has ended."""
        for folder in reversed(self._made):
            end_s = time.monotonic() + 10
            while folder.exists():
                try:
                    folder.rmdir()
                except OSError:
                    assert time.monotonic() < end_s, f"{folder} is still in use"
                    time.sleep(0.05)


class CudaProgram:
    """A process that has memory of a card, told line by line what to do; see `cuda_program`.

    Attributes:
        pid: PID of the process, or of what began it in namespaces of its own.
    """

    def __init__(self, pid: int, into: "IO[str]", out: "IO[str]") -> None:
        self.pid = pid
        self._into, self._out = into, out

    def ask(self, line: str) -> dict[str, Any]:
        """Send a line; the answer."""
        self._into.write(f"{line}\n")
        self._into.flush()
        answer = self._out.readline()
        assert answer, f"{line}: the process ended"
        return dict(json.loads(answer))

    def start(self) -> int:
        """Make a context; MiB of the card as it is told there."""
        said = self.ask("start")
        assert "total_mib" in said, said
        return int(said["total_mib"])

    def fill(self, most_mib: int, piece_mib: int = 256) -> int:
        """Have memory until it is refused, or so much is had; MiB."""
        had_mib = 0
        while had_mib < most_mib:
            said = self.ask(f"allocate {piece_mib}")
            assert "given" in said, said
            if not said["given"]:
                break
            had_mib += piece_mib
        return had_mib


def mps_command(root: Path, *options: str) -> list[str]:
    """Return a command that runs `gpupack mps` with the rights and mounts of its DaemonSet, and no more.

    The folder and what clients have as /dev/shm are made.
    """
    (root / SHM).mkdir(parents=True, exist_ok=True)
    in_the_daemonset = f"""
mount --bind {root} {root} && mount --bind {root / SHM} /dev/shm && mount -o remount,bind,ro / &&
exec setpriv --bounding-set=-all,{MPS_CAPABILITIES} --inh-caps=-all --no-new-privs -- "$@"
"""
    command = [sys.executable, "-m", "gpupack", "mps", "--root", str(root), *options]
    return ["unshare", "--mount", "--", "sh", "-c", in_the_daemonset, "sh", *command]


def _pipe(pipe: "IO[str] | None") -> "IO[str]":
    assert pipe is not None
    return pipe


@contextmanager
def run_cuda(
    envs: Mapping[str, str],
    cgroup: Path | None = None,
    mounts: Sequence[Mount] = (),
    user: int = 0,
) -> Iterator[CudaProgram]:
    """Run a program that uses a card; it ends with the `with`.

    Args:
        envs: what the container was given.
        cgroup: of the container; None for a process of the host, of no pod.
        mounts: what the container was given.
        user: ID of the user whose program it is.
    """
    command = [*CHILD]
    if user:
        ids = (f"--reuid={user}", f"--regid={user}", "--clear-groups")
        command = ["setpriv", *ids, "--no-new-privs", "--", *command]
    if cgroup is not None:
        bind = "".join(f"mount --bind '{each.host_path}' '{each.container_path}' && " for each in mounts)
        command = [*_NAMESPACES, "sh", "-c", f'{bind}exec "$@"', "sh", *command]
    # A container runtime would show the container these cards alone.
    visible = {"CUDA_VISIBLE_DEVICES": envs["NVIDIA_VISIBLE_DEVICES"]}
    process = subprocess.Popen(
        ["sh", "-c", _IN_CGROUP, str(cgroup or ""), *command],
        env={**os.environ, **envs, **visible},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield CudaProgram(process.pid, _pipe(process.stdin), _pipe(process.stdout))
        finally:
            process.kill()
