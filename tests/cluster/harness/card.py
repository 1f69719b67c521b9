"""The card of a node whose pods use it through the driver's library: the machine's own, or a simulated one.

Pods get the library and the card by a CDI specification, as NVIDIA's toolkit writes it. Their image has
Python, `tests.hardware.cuda_program` and what `gpupack verify` runs, and nothing of the driver. With a
simulated card the library is the stand-in `tests/cuda_standin.c`, and the simulated driver is told what the
programs have.
"""

import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any, Final

import yaml

from deviceplugin.containers.cdi import make_spec
from deviceplugin.containers.device_nodes import DEVICES
from deviceplugin.gpus.nvidia.cuda_child import LIBRARY
from deviceplugin.gpus.nvidia.mps.options import PROGRAM as MPS_PROGRAM
from deviceplugin.gpus.nvidia.source import NvmlGpus
from deviceplugin.gpus.nvidia.vendor import NVIDIA
from deviceplugin.gpus.simulated.profile import parse_profile
from tests.cluster.harness import dra, growing, images, workload
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.daemons import REPOSITORY
from tests.cluster.harness.polling import until
from tests.cluster.harness.rest import Json
from tests.cluster.harness.views import cgroup_of
from tests.hardware.programs import CHILD, CudaProgram, find_idle_card
from tests.mps_world import make_program
from tests.scripts.bundle import all_libraries

IMAGE: Final = "localhost/gpupack-test-cuda:1"
XID: Final = 31
"""What the driver reports of a program that writes where no memory is."""

DRIVERS_OWN: Final = ("libcuda.so", "libnvidia-")
"""Beginnings of the names of the libraries that a program with CUDA needs of the driver."""

RESERVED_MIB: Final = 512

# Modules of Python's own and of ours, as the programs load them.
_LIST_FILES: Final = """
import json, sys
import tests.hardware.cuda_program
from gpupack.verify import container
from gpupack.__main__ import main
container.run(1, {}, str)
container.serve = lambda *_: sys.exit()
sys.argv = ["gpupack", "verify", "--in-container=1"]
try:
    main()
except SystemExit:
    pass
files = [getattr(module, "__file__", None) for module in sys.modules.values()]
print(json.dumps(sorted(filter(None, files))))
"""
_PYTHON_PATH: Final = f"{REPOSITORY}:{sysconfig.get_path('platlib')}"


class MachineCard:
    """NVIDIA's driver and the machine's first card, which must be idle and the only one.

    Attributes:
        profile: what `Cluster` takes for it.
        uuid: of the card.
    """

    profile: dict[str, Any] | str = "nvml"

    def __init__(self) -> None:
        source = NvmlGpus()
        source.open()
        try:
            cards = source.cards()
            assert len(cards) == 1, f"this node has {len(cards)} cards; allowed: 1"
            self._card = find_idle_card(source)
        finally:
            source.close()
        self.uuid = self._card.uuid
        ctypes.CDLL(LIBRARY)
        maps = Path("/proc/self/maps").read_text("utf-8")
        loaded = re.search(rf"(/\S+)/{re.escape(Path(LIBRARY).stem)}\S*$", maps, re.MULTILINE)
        assert loaded is not None, f"{LIBRARY} was loaded from nowhere"
        self.libraries = Path(loaded[1])

    def prepare(self, cluster: Cluster) -> None:
        """Write what the node's runtime and its daemon need to know of the card, before they start."""
        path = dra.cdi_folder(cluster) / "nvidia.yaml"
        path.parent.mkdir()
        toolkit = shutil.which("nvidia-ctk")
        if toolkit is not None and isinstance(self.profile, str):
            command = [toolkit, "cdi", "generate", f"--output={path}"]
            subprocess.run(command, check=True, capture_output=True, text=True)
        else:
            path.write_text(json.dumps(self._specification()))
        cluster.daemon.flags = self.flags(cluster)

    def flags(self, cluster: Cluster) -> list[str]:
        """Options of `gpupack node`. Nothing holds pods to their shares: they are to use more."""
        cdi = str(dra.cdi_folder(cluster))
        return ["--device-list-strategy=envvar,cdi-cri", f"--cdi-dirs={cdi}", "--memory-limits=off"]

    def mps_options(self, cluster: Cluster) -> list[str] | None:
        """Options of `gpupack mps`; None where it cannot run."""
        del cluster
        return [] if shutil.which(MPS_PROGRAM) else None

    def load_image(self, cluster: Cluster) -> None:
        """Bring the image of the programs to the node."""
        archive = cluster.home / "cuda.tar"
        library = next(self.libraries.glob(f"{LIBRARY}*"))
        images.write_archive(
            archive,
            [IMAGE],
            {str(path): path for path in _program_files(library)},
            # As the image of gpupack, for the pods of `gpupack verify`.
            Entrypoint=[*_python(), "-m", "gpupack"],
            Env=["PATH=/bin", f"PYTHONPATH={_PYTHON_PATH}", f"LD_LIBRARY_PATH={self.libraries}"],
            User="65532:65532",
        )
        cluster.host.ctr("images", "import", str(archive))

    def use(self, program: "PodProgram", used_mib: int) -> bool:
        """Let a pod's program have so much of the card, which it was given; whether the card allows it."""
        del program, used_mib
        return True

    def report_fault(self, cluster: Cluster) -> None:
        """Report the mistake of a program."""

    def remember(self) -> None:
        """Know again what programs have, after the daemon was started again."""

    def _specification(self) -> Json:
        """Describe the card and the driver's libraries as NVIDIA's toolkit does."""
        spec = {**make_spec([self._card], NVIDIA, DEVICES), "kind": NVIDIA.cdi_kind}
        paths = [path for path in self.libraries.glob("*.so*") if path.name.startswith(DRIVERS_OWN)]
        mounts = [
            {
                "hostPath": str(path.resolve()),
                "containerPath": str(path),
                "options": ["ro", "nosuid", "rbind"],
            }
            for path in sorted(paths)
        ]
        return {**spec, "containerEdits": {"mounts": mounts, "env": self._variables()}}

    def _variables(self) -> list[str]:
        return []


class SimulatedCard(MachineCard):
    """A simulated card, and a stand-in for the driver's library.

    Args:
        folder: for the library.
    """

    def __init__(self, folder: Path, gib: int = 24) -> None:
        self.profile = workload.cards((gib << 10) + RESERVED_MIB, reserved_mib=RESERVED_MIB)
        self._card = parse_profile("card", yaml.safe_dump(self.profile)).cards[0].card
        self.uuid = self._card.uuid
        self.libraries = folder / "driver"
        self.libraries.mkdir()
        source = REPOSITORY / "tests" / "cuda_standin.c"
        compiler = shutil.which("cc")
        assert compiler is not None, "the stand-in for the driver's library needs a C compiler (cc)"
        made = [compiler, "-shared", "-fPIC", "-o", str(self.libraries / LIBRARY), str(source)]
        subprocess.run(made, check=True)
        self._used_mib: dict[PodProgram, int] = {}

    def prepare(self, cluster: Cluster) -> None:
        super().prepare(cluster)
        self._door = cluster.home / "door"
        cluster.daemon.module = growing.MODULE
        cluster.daemon.environment = {growing.DOOR: str(self._door)}

    def mps_options(self, cluster: Cluster) -> list[str] | None:
        program = make_program(cluster.home)
        return [f"--control-program={program}", *cluster.daemon.gpus]

    def use(self, program: "PodProgram", used_mib: int) -> bool:
        self._used_mib[program] = used_mib
        try:
            return growing.grow(self._door, self.uuid, program.pid, used_mib, program.cgroup) == ""
        except ConnectionRefusedError:
            # The simulated driver is away with the daemon; see `remember`.
            return True

    def report_fault(self, cluster: Cluster) -> None:
        profile = cluster.daemon.profile
        draft = profile.with_suffix(".new")
        assert isinstance(self.profile, dict)
        draft.write_text(yaml.safe_dump({**self.profile, "script": [{"at_s": 0, "card": 0, "xid": XID}]}))
        draft.rename(profile)

    def remember(self) -> None:
        for program, used_mib in self._used_mib.items():
            if program.cgroup.is_dir():
                self.use(program, used_mib)

    def _variables(self) -> list[str]:
        # Where NVIDIA's hook would have the library found.
        path = f"LD_LIBRARY_PATH={self.libraries}"
        return [path, f"STANDIN_CARD={self.uuid}", f"STANDIN_CARD_MIB={self._card.schedulable_mib}"]


class PodProgram(CudaProgram):
    """The program of a pod that runs."""

    def __init__(self, card: MachineCard, cluster: Cluster, name: str) -> None:
        folder = _talk_folder(cluster, name)
        into = until(lambda: os.open(folder / "in", os.O_WRONLY | os.O_NONBLOCK), f"program of {name} reads")
        os.set_blocking(into, True)
        self.cgroup = cgroup_of(cluster, name, "main")
        self._card, self._cluster, self._used_mib = card, cluster, 0
        pid = max(int(each) for each in (self.cgroup / "cgroup.procs").read_text().split())
        super().__init__(pid, os.fdopen(into, "w"), (folder / "out").open())

    def ask(self, line: str) -> dict[str, Any]:
        said = super().ask(line)
        word, *rest = line.split()
        if said.get("given"):
            self._used_mib += int(rest[0])
            said["given"] = self._card.use(self, self._used_mib)
        elif word == "fault":
            self._card.report_fault(self._cluster)
        return said

    def close(self) -> None:
        """End the talk; the program ends with it."""
        for pipe in (self._into, self._out):
            pipe.close()


def program_pod(card: MachineCard, cluster: Cluster, name: str, gib: int | None = None, **spec: Any) -> Json:
    """A pod whose program does what it is told through pipes, see `PodProgram`."""
    folder = _talk_folder(cluster, name)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for pipe in ("in", "out"):
        os.mkfifo(folder / pipe)
    command = f"{' '.join(_python())} {CHILD[1]} </talk/in >/talk/out"
    container = workload.container(gib=gib, command=("/bin/sh", "-c", f"trap exit TERM; {command} & wait"))
    container |= {"image": IMAGE, "volumeMounts": [{"name": "talk", "mountPath": "/talk"}]}
    volumes = [{"name": "talk", "hostPath": {"path": str(folder), "type": "Directory"}}]
    return workload.pod(name, container, volumes=volumes, securityContext={"runAsUser": 0}, **spec)


def _talk_folder(cluster: Cluster, name: str) -> Path:
    return cluster.home / "talk" / name


def _python() -> list[str]:
    """The interpreter itself, not that of a virtual environment, which finds its library by its own place."""
    return [os.path.realpath(sys.executable), "-S", "-B"]


def _program_files(library: Path) -> set[Path]:
    """List what the programs need to run in an empty folder, but for the driver's libraries.

    Args:
        library: the driver's, whose own needs the program has, too.
    """
    python, *_ = command = _python()
    # Of the environment nothing else may count: the pod has another one.
    environment = {"PYTHONPATH": _PYTHON_PATH}
    done = subprocess.run(
        [*command, "-c", _LIST_FILES], check=True, capture_output=True, text=True, env=environment, cwd="/"
    )
    files = [Path(path) for path in json.loads(done.stdout)]
    programs = [Path(python), library, *(path for path in files if ".so" in path.suffixes)]
    needed = {Path(os.path.normpath(path)) for path in all_libraries(*programs)}
    return {Path(python), *files, *(path for path in needed if not path.name.startswith(DRIVERS_OWN))}
