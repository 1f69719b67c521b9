"""Checks what a node offers gpupack, what gpupack would use, and why not more: `gpupack node --check`.

Every fact is looked up separately, so that a failure hides no other fact; nothing is changed.
"""

import asyncio
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from allocator.texts import count_of
from deviceplugin.allocation.inventory import cards_in_units, check_units
from deviceplugin.card_source import make_source
from deviceplugin.dra.serving import check_no_claims, find_obstacles, find_server_obstacles
from deviceplugin.enforcement.cgroup_watch import describe_watch_problem
from deviceplugin.enforcement.enforcer import BLIND_RESCAN_S
from deviceplugin.enforcement.limit_capability import ask_supports
from deviceplugin.errors import CheckpointError, DeviceListError, DevicePluginError, ProfileError, is_absent
from deviceplugin.gpus.api.check_finding import CheckFinding, Verdict
from deviceplugin.gpus.api.memory_limits import LimitSupport
from deviceplugin.gpus.api.mps import MpsControl
from deviceplugin.gpus.api.provider import RunProgram
from deviceplugin.gpus.api.source import GpuCard, GpuSource
from deviceplugin.host.cgroups import PodCgroups, find_host_pod_parents, in_host_pid_namespace
from deviceplugin.host.inotify import probe_watch
from deviceplugin.kubelet.checkpoint import CheckpointReader
from deviceplugin.option_values import DEVICE_PLUGIN, DRA, MPS, REQUIRE
from deviceplugin.settings import Settings
from kubeapi.client import KubeClient
from kubeapi.errors import KubeApiError

NUMA_MEMORY: Final = (
    "what no process uses does not count; NVreg_CoherentGPUMemoryMode=driver has the driver manage it"
)
TOOL_S: Final = 5.0
INOTIFY: Final = Path("/proc/sys/fs/inotify/max_user_watches")
LEAST_WATCHES: Final = 4096


def check_node(settings: Settings, run: RunProgram | None = None) -> list[CheckFinding]:
    """Check everything.

    Args:
        settings: settings of the daemon that would run here; with `--serve dra` its API server is asked.

    Raises:
        ProfileError: the profile of simulated cards cannot be used.
    """
    return [
        *_cards(settings),
        *_cgroups(settings),
        *_kernel(settings),
        *_toolkit(settings, run or _run),
        *_kubelet(settings),
        *_claims(settings),
    ]


def can_serve(findings: Sequence[CheckFinding]) -> bool:
    return all(finding.verdict != "bad" for finding in findings)


def _cards(settings: Settings) -> Iterator[CheckFinding]:
    try:
        source = make_source(settings)
        source.open()
    except ProfileError:
        raise
    except DevicePluginError as error:
        yield CheckFinding("driver", "bad", "none that can be used", str(error))
        return
    try:
        yield from _driver(source, settings)
        gpus = tuple(source.cards())
        for gpu, card in zip(gpus, cards_in_units(gpus, settings.unit_mib), strict=True):
            yield _card(gpu, card.size_units)
        try:
            check_units(gpus, settings.unit_mib)
        except DeviceListError as error:
            yield CheckFinding("list of devices", "bad", str(error), "no daemon starts")
        for support, uuids in _supports(source, settings).items():
            yield _limits(support, uuids, settings)
        control = settings.provider.make_mps_control(settings.mps_root)
        if settings.sharing == MPS and control is not None:
            yield _mps([gpu.uuid for gpu in gpus], control, settings.mps_root)
    finally:
        source.close()


def _card(gpu: GpuCard, units: int) -> CheckFinding:
    what = f"card {gpu.uuid}"
    if gpu.error is not None:
        return CheckFinding(what, "less", gpu.error, "not offered")
    found = f"{gpu.model}, {gpu.schedulable_mib} MiB for pods"
    if gpu.memory_node is not None and units:
        found += f", NUMA node {gpu.memory_node} of the system"
        return CheckFinding(what, "less", found, f"{units} units; {NUMA_MEMORY}")
    return CheckFinding(what, "ok" if units else "less", found, f"{units} units")


def _driver(source: GpuSource, settings: Settings) -> Iterator[CheckFinding]:
    version = source.driver_version() + (", simulated" if settings.profile is not None else "")
    yield CheckFinding("driver", "ok", version, f"{len(source.cards())} cards")
    for name, there in settings.provider.list_calls(source).items():
        yield CheckFinding(f"call {name}", "ok" if there else "less", "there" if there else "missing")


def _supports(source: GpuSource, settings: Settings) -> dict[LimitSupport, list[str]]:
    uuids = [card.uuid for card in source.cards()]
    found: dict[LimitSupport, list[str]] = {}
    for uuid, support in ask_supports(source.limits, settings.memory_limits, uuids).items():
        found.setdefault(support, []).append(uuid)
    return found


def _limits(support: LimitSupport, uuids: list[str], settings: Settings) -> CheckFinding:
    what = f"memory of {count_of(len(uuids), 'card')}"
    if support.can_limit:
        simulated = ", simulated as the cards are" if settings.profile is not None else ""
        return CheckFinding(what, "ok", str(support), f"every container's share is its limit{simulated}")
    if settings.memory_limits == REQUIRE:
        return CheckFinding(what, "bad", str(support), "not offered: --memory-limits require")
    return CheckFinding(what, "less", str(support), "accounted: counted and told, not refused")


def _mps(uuids: Sequence[str], control: MpsControl, root: Path) -> CheckFinding:
    try:
        states = [state for uuid in uuids if (state := control.read_state(uuid)) is not None]
    except OSError as error:
        return CheckFinding("MPS", "less", str(error), "whether it answers cannot be read")
    found = f"answers for {len(states)} of {len(uuids)} cards in {root}"
    if len(states) < len(uuids):
        return CheckFinding(
            "MPS", "less", found, "the others are accounted: gpupack mps runs it, docs/mps.md"
        )
    uses = "limits each process where the driver does not limit containers"
    if all(state.has_namespaces for state in states):
        uses = "limits the compute that containers ask for, and their memory where the driver does not"
    return CheckFinding("MPS", "ok", found, uses)


def _cgroups(settings: Settings) -> Iterator[CheckFinding]:
    root = settings.cgroup_root
    try:
        controllers = (root / "cgroup.controllers").read_text("ascii").split()
    except OSError as error:
        if not is_absent(error):
            yield CheckFinding("cgroups", "bad", str(error), "no charge of a pod would end")
            return
        known = root.is_dir() and any(root.iterdir())
        found = f"v1 at {root}" if known else f"nothing at {root}"
        yield CheckFinding("cgroups", "less", found, settings.provider.without_cgroup_v2)
    else:
        yield CheckFinding("cgroups", "ok", f"v2 at {root}")
        dmem = "dmem" in controllers
        uses = "limits by the kernel" if dmem else "limits inside the driver; the kernel has it from 6.14 on"
        yield CheckFinding("dmem controller", "ok", "there" if dmem else "none", uses)
    try:
        parents = find_host_pod_parents(root)
    except OSError as error:
        yield CheckFinding("pods' cgroups", "bad", str(error), "no charge of a pod would end")
        return
    if not parents:
        yield CheckFinding("pods' cgroups", "less", "no kubepods folder", "none yet")
    for parent in parents:
        driver = "systemd" if parent.name.endswith(".slice") else "cgroupfs"
        yield CheckFinding("pods' cgroups", "ok", f"{parent}, named by {driver}")


def _kernel(settings: Settings) -> Iterator[CheckFinding]:
    yield CheckFinding("kernel", "ok", platform.release())
    yield _watches()
    root = os.geteuid() == 0
    yield CheckFinding(
        "user", "ok" if root else "bad", f"uid {os.geteuid()}", "" if root else "root is needed"
    )
    administrator, lacks = has_capability(CAP_SYS_ADMIN), settings.provider.without_administrator
    yield CheckFinding(
        "capability",
        "ok" if administrator or not lacks else "less",
        "CAP_SYS_ADMIN" if administrator else "no CAP_SYS_ADMIN",
        "" if administrator else lacks,
    )
    host = in_host_pid_namespace()
    yield CheckFinding(
        "pid namespace",
        "ok" if host else "less",
        "the host's" if host else "its own",
        "processes are told apart by pod" if host else "use is measured by card only: hostPID is missing",
    )
    logs = settings.container_logs
    yield CheckFinding(
        "container logs",
        "ok" if logs.is_dir() else "less",
        str(logs) if logs.is_dir() else f"no {logs}",
        "" if logs.is_dir() else "which container a cgroup is, is known a second later",
    )


def _watches() -> CheckFinding:
    """Try whether a new cgroup would be seen at once: what is left of a limit stands nowhere."""
    what, late = "inotify watches", f"new cgroups are looked for every {BLIND_RESCAN_S:g} s"
    try:
        watches = int(INOTIFY.read_text("ascii"))
        probe_watch(INOTIFY.parent)
    except (OSError, ValueError) as error:
        problem = describe_watch_problem(error) if isinstance(error, OSError) else str(error)
        return CheckFinding(what, "less", problem, late)
    if watches < LEAST_WATCHES:
        return CheckFinding(what, "less", str(watches), "a pod needs one: raise fs.inotify.max_user_watches")
    return CheckFinding(what, "ok", str(watches), "new cgroups are seen at once")


def _toolkit(settings: Settings, run: RunProgram) -> Iterator[CheckFinding]:
    yield from settings.provider.check_tools(run)
    for folder in settings.cdi_dirs:
        files = sorted(path.name for path in folder.glob("*")) if folder.is_dir() else None
        found = "none" if files is None else ", ".join(files) or "empty"
        yield CheckFinding(f"CDI in {folder}", "ok", found[:256])


def _kubelet(settings: Settings) -> Iterator[CheckFinding]:
    folder = settings.device_plugin_dir
    if not folder.is_dir():
        yield CheckFinding("kubelet", "bad", f"no folder {folder}", "--device-plugin-dir names the kubelet's")
        return
    serves = (folder / "kubelet.sock").is_socket()
    yield CheckFinding(
        "kubelet", "ok" if serves else "bad", f"{'serves' if serves else 'does not serve'} in {folder}"
    )
    try:
        checkpoint = CheckpointReader(folder).read()
    except CheckpointError as error:
        yield CheckFinding("kubelet's checkpoint", "bad", str(error))
    else:
        entries = len(list(checkpoint.entries)) if checkpoint is not None else 0
        yield CheckFinding(
            "kubelet's checkpoint", "ok", "none yet" if checkpoint is None else f"{entries} entries"
        )
    socket = settings.pod_resources_socket
    if not socket.is_socket():
        lost = "pods of one size may be mixed up; --kubelet-dir is the kubelet's --root-dir"
        yield CheckFinding("kubelet's PodResources", "less", f"no socket {socket}", lost)


def _claims(settings: Settings) -> Iterator[CheckFinding]:
    cgroups = PodCgroups(settings.cgroup_root)
    if settings.serve == DEVICE_PLUGIN:
        try:
            check_no_claims(settings, cgroups)
        except DevicePluginError as error:
            yield CheckFinding("prepared claims", "bad", str(error), "no daemon starts")
    what, obstacles, unknown = "claims (--serve dra)", find_obstacles(settings, cgroups), ""
    if settings.serve == DRA:
        try:
            obstacles += asyncio.run(_find_server_obstacles(settings))
        except KubeApiError as error:
            unknown = f"what the API server can do is not known: {error}"
    uses = "served with --serve dra, from Kubernetes 1.36 on"
    if obstacles:
        verdict: Verdict = "bad" if settings.serve == DRA else "less"
        yield CheckFinding(what, verdict, "; ".join(obstacles), "not served")
    elif unknown:
        yield CheckFinding(what, "less", unknown, uses)
    else:
        where = (
            f"sockets in {settings.kubelet_dir / 'plugins_registry'}, CDI files in {settings.cdi_dirs[-1]}"
        )
        yield CheckFinding(what, "ok", where, uses)


async def _find_server_obstacles(settings: Settings) -> list[str]:
    async with await KubeClient.connect(settings.kubeconfig, user_agent="gpupack-node") as client:
        return await find_server_obstacles(client)


def _run(command: list[str]) -> str | None:
    path = shutil.which(command[0])
    if path is None:
        return None
    try:
        done = subprocess.run(  # noqa: S603 - a fixed program, no user's text
            [path, *command[1:]], capture_output=True, text=True, timeout=TOOL_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


CAP_SYS_ADMIN: Final = 21
"""Its number in the kernel's linux/capability.h."""

_EFFECTIVE: Final = "CapEff:"


def has_capability(number: int, status: Path = Path("/proc/self/status")) -> bool:
    """Return True where the capability is effective; False if that cannot be read."""
    try:
        lines = status.read_text("ascii", "replace").splitlines()
    except OSError:
        return False
    found = [line.removeprefix(_EFFECTIVE).strip() for line in lines if line.startswith(_EFFECTIVE)]
    try:
        return bool(int(found[0], 16) >> number & 1)
    except (IndexError, ValueError):
        return False
