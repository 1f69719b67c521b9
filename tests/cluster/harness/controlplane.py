"""etcd, kube-apiserver, kube-controller-manager and kube-scheduler on loopback ports."""

import base64
import functools
import itertools
import json
import os
import random
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.cluster.harness import binaries, versions
from tests.cluster.harness.polling import until
from tests.cluster.harness.processes import Process
from tests.cluster.harness.rest import Api

ADMIN_TOKEN = "admin-token"
NODE_TOKEN = "node-token"
RESOURCE = "gpupack.io/gpu-memory-gib"
PERCENT = "gpupack.io/gpu-percent"
COMPUTE = "gpupack.io/gpu-compute-percent"
PROFILES = ("default-scheduler", "gpupack-scheduler")


PORTS: Final = range(20_000, 32_000)
"""Below those that Linux gives to clients (from 32768): a port is taken some time after it was found free."""

PORTS_A_WORKER: Final = 750


def free_ports(count: int) -> list[int]:
    """TCP ports of the loopback interface that nobody listens on now, and that were not given out before.

    Who was given one listens some seconds later. Workers of pytest-xdist, which run beside each other, choose
    from ranges of their own.
    """
    return list(itertools.islice((port for port in _ports() if _is_free(port)), count))


@functools.cache
def _ports() -> Iterator[int]:
    """All ports of this worker, again and again, beginning somewhere."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first = worker * PORTS_A_WORKER % len(PORTS)
    ports = PORTS[first : first + PORTS_A_WORKER]
    return itertools.cycle(random.sample(ports, len(ports)))


def _is_free(port: int) -> bool:
    with socket.socket() as one:
        try:
            one.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


class ControlPlane:
    """One control plane; its parts can be killed and started again on the same ports and the same data.

    Attributes:
        without_admission: Admission plug-ins that the API server's next start leaves out.
        with_pod_groups: Whether the parts that start from now on know Kubernetes' own PodGroups.
    """

    def __init__(self, home: Path, programs: Path, node_name: str, extender_url: str | None) -> None:
        """Prepare folders and configuration; nothing runs yet.

        Args:
            node_name: The node that the kubelet's token stands for.
            extender_url: Where kube-scheduler finds the extender; None leaves it out.
        """
        self._home = home
        self._programs = programs
        self._etcd, self._peer, self._api, self._controllers, self._scheduler = free_ports(5)
        self.log_dir = home / "log"
        self.certificates = home / "certs"
        for folder in (self.log_dir, self.certificates):
            folder.mkdir(exist_ok=True)
        self.running: dict[str, Process] = {}
        self.without_admission: list[str] = []
        self.with_pod_groups = False
        self.url = f"https://127.0.0.1:{self._api}"
        self.ca = self.certificates / "apiserver.crt"
        self.api = Api(self.url, self.ca, ADMIN_TOKEN)
        self._tokens = home / "tokens.csv"
        self._tokens.write_text(
            f"{ADMIN_TOKEN},admin,admin,system:masters\n{NODE_TOKEN},system:node:{node_name},node,system:nodes\n"
        )
        self.admin_config = self.write_kubeconfig("admin", ADMIN_TOKEN)
        self.node_config = self.write_kubeconfig("node", NODE_TOKEN)
        self.scheduler_config = home / "scheduler.yaml"
        self.configure_scheduler(extender_url)
        self._signing_key = home / "service-account.key"
        openssl = binaries.find("openssl")
        assert openssl is not None
        subprocess.run(
            [openssl, "genrsa", "-out", str(self._signing_key), "2048"], check=True, capture_output=True
        )

    def write_kubeconfig(self, name: str, token: str, server: str = "") -> Path:
        """A kubeconfig for one bearer token; verifies the API server's certificate.

        Args:
            server: Where the API server is reached, if not where it listens.
        """
        path = self._home / f"{name}.kubeconfig"
        cluster = {"server": server or self.url, "certificate-authority": str(self.ca)}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        }
        path.write_text(json.dumps(config))
        return path

    def configure_scheduler(self, extender_url: str | None, **overrides: Any) -> None:
        """Write KubeSchedulerConfiguration; both profiles are alike, so a pod may name either or none."""
        extenders = {} if extender_url is None else {"extenders": [extender_entry(extender_url)]}
        self.write_scheduler_config(self.scheduler_config, **{**overrides, **extenders})

    def write_scheduler_config(self, path: Path, **overrides: Any) -> None:
        """Write KubeSchedulerConfiguration into a file."""
        config: dict[str, Any] = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {"kubeconfig": str(self.admin_config), "qps": 2000, "burst": 4000},
            "leaderElection": {"leaderElect": False},
            "percentageOfNodesToScore": 100,
            "profiles": [{"schedulerName": name} for name in PROFILES],
            **overrides,
        }
        path.write_text(json.dumps(config))

    def use_scheduler_config(self, config: dict[str, Any]) -> None:
        """Write a KubeSchedulerConfiguration for the next start of kube-scheduler."""
        self.scheduler_config.write_text(json.dumps(config))

    def start(self) -> None:
        """Start everything; returns when the API server is ready."""
        self.start_without_scheduler()
        self.start_scheduler()

    def start_without_scheduler(self) -> None:
        self.start_etcd()
        self.start_api_server()
        self.start_controllers()

    def start_without_controllers(self) -> None:
        """Start etcd and the API server only: controllers would declare nodes without a kubelet dead."""
        self.without_admission = ["ServiceAccount", "TaintNodesByCondition"]
        self.start_etcd()
        self.start_api_server()

    def start_etcd(self) -> None:
        client, peer = f"http://127.0.0.1:{self._etcd}", f"http://127.0.0.1:{self._peer}"
        self._start(
            "etcd",
            [
                binaries.find("etcd") or "etcd",
                "--data-dir",
                str(self._home / "etcd"),
                "--unsafe-no-fsync",
                "--logger",
                "zap",
            ],
            {
                "listen-client-urls": client,
                "advertise-client-urls": client,
                "listen-peer-urls": peer,
                "initial-advertise-peer-urls": peer,
                "initial-cluster": f"default={peer}",
            },
        )

    def copy_etcd(self) -> Path:
        """Copy etcd's data as a snapshot would have it; etcd and the API server are away for a moment."""
        copy = self._home / "etcd-copy"
        self._without_etcd(lambda: shutil.copytree(self._home / "etcd", copy))
        return copy

    def restore_etcd(self, copy: Path) -> None:
        """Put a copy in the place of etcd's data, the revisions of then included."""

        def restore() -> None:
            shutil.rmtree(self._home / "etcd")
            shutil.copytree(copy, self._home / "etcd")

        self._without_etcd(restore)

    def _without_etcd(self, work: Callable[[], object]) -> None:
        for name in ("kube-apiserver", "etcd"):
            self.kill(name)
        work()
        self.start_etcd()
        self.start_api_server()

    def compact_etcd(self) -> None:
        """Forget all history up to now, as etcd does for an API server every five minutes."""
        some_key = base64.b64encode(b"/registry").decode()
        now = self._ask_etcd("range", {"key": some_key})["header"]["revision"]
        self._ask_etcd("compaction", {"revision": now, "physical": True})

    def _ask_etcd(self, verb: str, body: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._etcd}/v3/kv/{verb}", json.dumps(body).encode()
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            found: dict[str, Any] = json.loads(answer.read())
            return found

    def start_api_server(self, wait: bool = True) -> None:
        """Start kube-apiserver; with `wait` return when it is ready."""
        self._start(
            "kube-apiserver",
            [str(self._programs / "kube-apiserver")],
            {
                "etcd-servers": f"http://127.0.0.1:{self._etcd}",
                "secure-port": self._api,
                "bind-address": "127.0.0.1",
                "advertise-address": "127.0.0.1",
                "endpoint-reconciler-type": "none",
                "cert-dir": self.certificates,
                "service-account-issuer": "https://kubernetes.default.svc",
                "service-account-signing-key-file": self._signing_key,
                "service-account-key-file": self._signing_key,
                "service-cluster-ip-range": "10.0.0.0/16",
                "token-auth-file": self._tokens,
                "authorization-mode": "Node,RBAC",
                "enable-admission-plugins": "NodeRestriction",
                "disable-admission-plugins": ",".join(self.without_admission),
                "allow-privileged": "true",
                **versions.API_SERVER_FLAGS.get(versions.minor_of(self._programs), {}),
                **(versions.POD_GROUP_APIS if self.with_pod_groups else {}),
            },
        )
        if wait:
            self.wait_ready()

    def wait_ready(self) -> None:
        """Return once the API server answers /readyz with ok.

        Raises:
            AssertionError: If it ended or did not get ready within two minutes; shows its log.
        """
        server = self.running["kube-apiserver"]

        def ready() -> bool:
            return not server.alive or self.api.call("GET", "/readyz", timeout_s=5) == "ok"

        until(ready, "kube-apiserver ready")
        assert server.alive, server.tail()

    def start_controllers(self) -> None:
        self._start(
            "kube-controller-manager",
            [str(self._programs / "kube-controller-manager")],
            {
                **self._client_flags(self._controllers, self.admin_config),
                "kubeconfig": self.admin_config,
                "leader-elect": "false",
                "service-account-private-key-file": self._signing_key,
                "root-ca-file": self.ca,
                "allocate-node-cidrs": "false",
                # A kubelet that a test freezes, or a machine under load, makes no node NotReady.
                "node-monitor-grace-period": "5m",
            },
        )

    def start_scheduler(self, kubeconfig: Path | None = None) -> None:
        """Start kube-scheduler; `kubeconfig` is whom it asks about its own callers."""
        flags = self._client_flags(self._scheduler, kubeconfig or self.admin_config)
        command = [str(self._programs / "kube-scheduler")]
        self._start("kube-scheduler", command, {**flags, "config": self.scheduler_config, "v": 3})

    def restart_scheduler(self) -> None:
        """Kill kube-scheduler if it runs, and start it with the configuration as it is now."""
        if "kube-scheduler" in self.running:
            self.kill("kube-scheduler")
        self.start_scheduler()

    def start_second_scheduler(self, name: str) -> None:
        """Start another kube-scheduler with the configuration of the first, for pods that name it."""
        config = json.loads(self.scheduler_config.read_text()) | {"profiles": [{"schedulerName": name}]}
        path = self._home / f"{name}.yaml"
        path.write_text(json.dumps(config))
        (port,) = free_ports(1)
        command = [str(self._programs / "kube-scheduler")]
        flags = self._client_flags(port, self.admin_config)
        self._start(f"kube-scheduler-{name}", command, {**flags, "config": path, "v": 3})

    def kill(self, name: str) -> None:
        self.running.pop(name).kill()

    def stop(self) -> None:
        """End everything at once, clients first; none of it has anything to save."""
        for name in reversed(list(self.running)):
            self.kill(name)

    def _client_flags(self, port: int, kubeconfig: Path) -> dict[str, object]:
        return {
            "bind-address": "127.0.0.1",
            "secure-port": port,
            "cert-dir": self.certificates,
            "authentication-kubeconfig": kubeconfig,
            "authorization-kubeconfig": kubeconfig,
        }

    def _start(self, name: str, command: Sequence[str], flags: Mapping[str, object]) -> None:
        if self.with_pod_groups and name != "etcd":
            flags = {**flags, **versions.POD_GROUP_GATES}
        arguments = [f"--{flag}={value}" for flag, value in flags.items()]
        self.running[name] = Process(
            name, [*command, *arguments], self.log_dir / f"{name}.log", cwd=self._home
        )


def extender_entry(url: str, **more: Any) -> dict[str, Any]:
    """The `extenders` entry of KubeSchedulerConfiguration that joins gpupack's extender."""
    return {
        "urlPrefix": url,
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "bindVerb": "bind",
        "weight": 1000,
        "enableHTTPS": False,
        "httpTimeout": "10s",
        "nodeCacheCapable": True,
        "ignorable": False,
        "managedResources": [
            {"name": name, "ignoredByScheduler": name == COMPUTE} for name in (RESOURCE, PERCENT, COMPUTE)
        ],
        **more,
    }
