"""The node's side: containerd, the kubelet and every container, in mount and pid namespaces of their own.

Inside, /var/lib is a tmpfs, /var/lib/kubelet, /var/log and /run are folders of the cluster, and the sysctls
that the kubelet writes are files of ours, so the machine stays as it was. Killing the pid namespace's init
ends everything in it, which `unshare` waits for, and the last process takes the mounts along.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from tests.cluster.harness import binaries, cgroups, images
from tests.cluster.harness.polling import PATIENCE_S, until
from tests.cluster.harness.processes import Process

SYSCTLS = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1000000,
    "kernel/keys/root_maxbytes": 25000000,
}
NO_NETWORK = """#!/bin/sh
# A pod network that connects nothing: an empty namespace and an address on paper.
case "$CNI_COMMAND" in
ADD)
  printf '{"cniVersion":"0.4.0","interfaces":[{"name":"%s","sandbox":"%s"}],' "$CNI_IFNAME" "$CNI_NETNS"
  printf '"ips":[{"version":"4","interface":0,"address":"10.88.0.2/24"}]}' ;;
VERSION)
  printf '{"cniVersion":"0.4.0","supportedVersions":["0.3.1","0.4.0"]}' ;;
esac
"""
INIT = "import signal, time; signal.signal(signal.SIGCHLD, signal.SIG_IGN)\nwhile True: time.sleep(3600)"


class NodeSide:
    """One node; `kubelet_dir` and the sockets in it are host paths, usable from outside the namespaces."""

    def __init__(self, home: Path, programs: Path, name: str, kubeconfig: Path, port: int) -> None:
        """Prepare folders and configuration; nothing runs yet."""
        self.name = name
        self.cgroup = f"{cgroups.PREFIX}{home.name.removeprefix(cgroups.PREFIX)}"
        self.running: dict[str, Process] = {}
        self._home = home
        self._programs = programs
        self._containerd = binaries.containerd()
        self._kubeconfig = kubeconfig
        self._port = port
        self._init_pid = 0
        self.log_dir = home / "log"
        self.kubelet_dir = home / "kubelet"
        self.root_dir = "/var/lib/kubelet"
        self.device_plugin_dir = self.kubelet_dir / "device-plugins"
        self.pod_resources_socket = self.kubelet_dir / "pod-resources" / "kubelet.sock"
        self.pod_logs = home / "varlog" / "pods"
        self._containerd_socket = home / "c.sock"
        for folder in (
            "log",
            "kubelet",
            "varlog",
            "run",
            "sysctl",
            "volumes",
            "cni/bin",
            "cni/conf",
            "containerd",
        ):
            (home / folder).mkdir(parents=True, exist_ok=True)
        self._write_containerd_config()
        self._write_kubelet_config()
        images.write_archive(home / "image.tar")

    # ---- life

    def start(self) -> None:
        """Start containerd and the kubelet; returns when the image is in."""
        cgroups.create(self.cgroup)
        self._enter_namespaces()
        self._start(
            "containerd", [str(self._containerd / "containerd"), "-c", str(self._home / "containerd.toml")]
        )
        until(lambda: self.ctr("version"), "containerd answers")
        self.ctr("images", "import", str(self._home / "image.tar"))
        self.start_kubelet()

    def start_kubelet(self) -> None:
        self._start(
            "kubelet",
            [
                str(self._programs / "kubelet"),
                f"--config={self._home / 'kubelet.json'}",
                f"--kubeconfig={self._kubeconfig}",
                f"--hostname-override={self.name}",
                f"--root-dir={self.root_dir}",
                f"--cert-dir={self.kubelet_dir / 'pki'}",
                "-v=2",
            ],
        )

    def kill_kubelet(self) -> None:
        """SIGKILL the kubelet; its containers run on."""
        self.running.pop("kubelet").kill()

    def restart_kubelet(self) -> None:
        self.kill_kubelet()
        self.start_kubelet()

    @contextmanager
    def frozen_kubelet(self) -> Iterator[None]:
        """SIGSTOP to the kubelet, and SIGCONT in the end."""
        kubelet = self.running["kubelet"]
        kubelet.freeze()
        try:
            yield
        finally:
            kubelet.thaw()

    def stop(self) -> None:
        """End everything at once, containers included, and remove the cgroups."""
        for name in ("kubelet", "containerd", "namespaces"):
            if name in self.running:
                self.running.pop(name).kill()
        cgroups.remove(self.cgroup)

    # ---- looking inside

    def ctr(self, *arguments: str) -> str:
        """containerd's own command line on the kubelet's containers.

        Raises:
            subprocess.CalledProcessError: If it fails.
        """
        command = [
            str(self._containerd / "ctr"),
            "-a",
            str(self._containerd_socket),
            "-n",
            "k8s.io",
            *arguments,
        ]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE_S).stdout

    def environment(self, container_id: str) -> dict[str, str]:
        """The environment of the oldest process of a running container, from the host's /proc."""

        def read() -> dict[str, str]:
            first = min(self.pids(container_id))
            words = Path(f"/proc/{first}/environ").read_bytes().split(b"\0")
            found = dict(word.decode().split("=", 1) for word in words if b"=" in word)
            # Until the container's program has replaced it, this is the runtime's own process.
            return {} if any(name.startswith("_LIBCONTAINER") for name in found) else found

        return until(read, f"environment of container {container_id}")

    def pids(self, container_id: str) -> set[int]:
        """Host pids of a container's processes; empty once it has ended."""
        return cgroups.container_pids(self.cgroup, container_id)

    def log_of(self, pod_uid: str, container: str) -> str:
        """Everything a container wrote, all its runs, without the runtime's time stamps."""
        runs = sorted(self.pod_logs.glob(f"*_{pod_uid}/{container}/*.log"))
        lines = [line for run in runs for line in run.read_text().splitlines()]
        return "".join(line.split(" ", 3)[3] + "\n" for line in lines)

    def has_taken_devices(self, resource: str, healthy: int, after: float) -> bool:
        """Whether the kubelet's last word on a plugin's list of devices is so many healthy ones.

        By its log: its checkpoint may not show the list. Lists of two plugins that come together are
        written together, and the older of the two writes may be the one that stays.

        Args:
            after: `time.time()`; what the kubelet logged earlier means nothing.
        """
        said = re.compile(
            rf'^I(?P<at>\d{{4}} [\d:.]+).*"Processed device updates for resource".*"{re.escape(resource)}"'
            r".* healthyCount=(?P<healthy>\d+)",
            re.MULTILINE,
        )
        *_, last = [None, *said.finditer((self.log_dir / "kubelet.log").read_text(errors="replace"))]
        if last is None or int(last["healthy"]) != healthy:
            return False
        then = datetime.strptime(f"{datetime.now():%Y}{last['at']}", "%Y%m%d %H:%M:%S.%f")  # noqa: DTZ005, DTZ007 - its clock is ours
        return then.timestamp() > after

    # ---- parts

    def _enter_namespaces(self) -> None:
        ready = self._home / "namespaces.ready"
        binds = {"kubelet": "/var/lib/kubelet", "varlog": "/var/log", "run": "/run"}
        steps = ["mount --make-rshared /", "mount -t tmpfs tmpfs /var/lib", "mkdir /var/lib/kubelet"]
        steps += [f"mount --bind {self._home / source} {target}" for source, target in binds.items()]
        for name, value in SYSCTLS.items():
            if Path("/proc/sys", name).exists():
                file = self._home / "sysctl" / name.replace("/", ".")
                file.write_text(f"{value}\n")
                steps.append(f"mount --bind {file} /proc/sys/{name}")
        steps += [f"touch {ready}", 'exec "$0" -c "$1"']
        command = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child=KILL"]
        command += ["--mount-proc", "sh", "-ec", "\n".join(steps), sys.executable, INIT]
        process = Process("namespaces", command, self.log_dir / "namespaces.log", forks=True)
        self.running["namespaces"] = process
        until(ready.exists, "namespaces of the node", every_s=0.01)
        self._init_pid = process.pid

    def _start(self, name: str, command: list[str]) -> None:
        log = self.log_dir / f"{name}.log"
        # The shim of this containerd, not one that Debian may have brought.
        path = f"{self._containerd}:{os.environ['PATH']}"
        self.running[name] = Process(
            name, command, log, enter_pid=self._init_pid, environment={"PATH": path}, cwd=self._home
        )

    def _write_containerd_config(self) -> None:
        plugin = self._home / "cni" / "bin" / "nothing"
        for path in (plugin, plugin.with_name("loopback")):
            path.write_text(NO_NETWORK)
            path.chmod(0o755)
        network = {"cniVersion": "0.4.0", "name": "nothing", "plugins": [{"type": "nothing"}]}
        (self._home / "cni" / "conf" / "10-nothing.conflist").write_text(json.dumps(network))
        snapshotters = [
            f"snapshotter.v1.{name}" for name in ("blockfile", "btrfs", "devmapper", "erofs", "zfs")
        ]
        unused = [*snapshotters, "tracing.processor.v1.otlp", "internal.v1.tracing"]
        (self._home / "containerd.toml").write_text(f"""version = 3
root = "{self._home}/containerd/root"
state = "{self._home}/containerd/state"
disabled_plugins = {json.dumps([f"io.containerd.{name}" for name in unused])}

[grpc]
address = "{self._containerd_socket}"

[plugins."io.containerd.internal.v1.opt"]
path = "{self._home}/containerd/opt"

[plugins."io.containerd.nri.v1.nri"]
disable = true

[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{images.PAUSE}"

[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true
disable_apparmor = true

[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{self._home}/cni/bin"]
conf_dir = "{self._home}/cni/conf"

[plugins."io.containerd.grpc.v1.cri"]
stream_server_address = "127.0.0.1"
""")

    def _write_kubelet_config(self) -> None:
        config = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": "127.0.0.1",
            "port": self._port,
            "readOnlyPort": 0,
            "healthzPort": 0,
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.cgroup}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "enforceNodeAllocatable": [],
            "localStorageCapacityIsolation": False,
            "evictionHard": {"memory.available": "50Mi"},
            "containerRuntimeEndpoint": f"unix://{self._containerd_socket}",
            "resolvConf": "",
            "nodeStatusUpdateFrequency": "1s",
            # A pod whose claims the driver refused is tried again then: by default after a minute or more.
            "syncFrequency": "2s",
            "makeIPTablesUtilChains": False,
            "volumePluginDir": str(self._home / "volumes"),
            "oomScoreAdj": 0,
        }
        (self._home / "kubelet.json").write_text(json.dumps(config))
