"""Nodes whose pods run as processes of this machine, so that several replicas of a Deployment run as shipped.

What a kubelet would do for gpupack's own pods is done here, for as many nodes as a test wants. Containers
are started with their arguments, volumes and accounts. Each pod listens on an address of its own. Readiness
probes decide the condition Ready. A deleted pod gets its preStop pause, SIGTERM and its grace period. Images,
user IDs and cgroups are left to the tests with the real kubelet (`test_shipped_pods.py`).

Pods on other nodes are said to run as soon as they are bound.

Containers run this checkout, or the one that `ProcessNodes.checkouts` names for their image.

Nothing here runs by itself: `step` does what is due, and `until` steps while it waits.
"""

import base64
import contextlib
import os
import re
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from tests.cluster.harness.binaries import busybox, programs
from tests.cluster.harness.cluster import NODES, Cluster
from tests.cluster.harness.daemons import REPOSITORY
from tests.cluster.harness.polling import until
from tests.cluster.harness.processes import Process
from tests.cluster.harness.rest import ApiError, Json

T = TypeVar("T")

HEARTBEAT_S = 5.0
PROBE_S = 0.5
_NETWORK = f"198.18.{os.getpid() % 250}"
"""Of the range that is kept for benchmarks; EndpointSlices take no loopback addresses."""


@dataclass
class _Running:
    """A pod of gpupack that runs.

    Attributes:
        pod: As it was when it was started.
        address: Its own.
        processes: By container.
        is_ready: What the probes said last.
        probed_at: When they were asked.
        ending_since: When its deletion was seen; None while it is to live.
        told: Containers that got SIGTERM: a second one would mean to end at once.
    """

    pod: Json
    address: str
    processes: dict[str, Process] = field(default_factory=dict)
    is_ready: bool = False
    probed_at: float = 0.0
    ending_since: float | None = None
    told: set[str] = field(default_factory=set)

    @property
    def loopback(self) -> str:
        """Address that containers of this pod alone use among each other."""
        return f"127.{self.address.partition('.')[2]}"


class ProcessNodes:
    """Nodes and the pods on them; a context manager that leaves nothing behind.

    Args:
        names: Nodes to make, for gpupack's own pods.

    Attributes:
        checkouts: Where the code of an image lies, by the image's name; of others in this repository.
    """

    def __init__(self, cluster: Cluster, *names: str) -> None:
        self.names = names
        self.checkouts: dict[str, Path] = {}
        self._cluster = cluster
        self._api = cluster.api
        self._running: dict[str, _Running] = {}
        self._said: set[str] = set()
        self._addresses = 0
        self._beat_at = float("-inf")
        for name in names:
            self._api.post(NODES, {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}})

    def close(self) -> None:
        for running in self._running.values():
            for process in running.processes.values():
                process.kill()
            _address("del", running.address)

    def until(self, probe: Callable[[], T], what: str) -> T:
        """Wait as `polling.until`, while the nodes do their work."""

        def stepped() -> T:
            self.step()
            return probe()

        return until(stepped, what, every_s=0.25)

    def step(self) -> None:
        """Do for every pod and node what is due."""
        now = time.monotonic()
        if now >= self._beat_at + HEARTBEAT_S:
            self._beat_at = now
            self._beat()
        pods = [pod for pod in self._api.get("/api/v1/pods")["items"] if pod["spec"].get("nodeName")]
        for pod in pods:
            uid = pod["metadata"]["uid"]
            is_ours = pod["spec"]["nodeName"] in self.names
            if is_ours and uid not in self._running and "deletionTimestamp" not in pod["metadata"]:
                self._running[uid] = self._start(pod)
            if uid in self._running:
                self._follow(self._running[uid], pod, now)
            elif not is_ours and uid not in self._said:
                self._said.add(uid)
                self._say(pod, is_ready=True)

    # ---- nodes

    def _beat(self) -> None:
        """Say that every node is well, as a kubelet does; else the controllers declare it dead."""
        resources = {"cpu": "64", "memory": "256Gi", "pods": "250"}
        stamp = _now()
        condition = {"type": "Ready", "status": "True", "reason": "Test", "lastHeartbeatTime": stamp}
        for node in self._api.get(NODES)["items"]:
            name = node["metadata"]["name"]
            status: Json = {"conditions": [{**condition, "lastTransitionTime": stamp}]}
            if name in self.names:
                status |= {"capacity": resources, "allocatable": resources}
            self._api.merge(f"{NODES}/{name}/status", {"status": status})

    # ---- pods

    def _start(self, pod: Json) -> _Running:
        self._addresses += 1
        running = _Running(pod, f"{_NETWORK}.{self._addresses}")
        _address("add", running.address)
        for container in pod["spec"]["containers"]:
            self._start_container(running, container)
        return running

    def _start_container(self, running: _Running, container: Json) -> None:
        metadata = running.pod["metadata"]
        name, account = metadata["name"], running.pod["spec"]["serviceAccountName"]
        token = self._cluster.token(metadata["namespace"], account)
        kubeconfig = self._cluster.control.write_kubeconfig(name, token)
        folders = self._folders(running, container, kubeconfig)
        environment = {
            variable["name"]: metadata["name"]
            for variable in container.get("env", [])
            if variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath") == "metadata.name"
        }
        words = [*container.get("command", []), *container.get("args", [])]
        for index, word in enumerate(words):
            for variable, value in environment.items():
                word = word.replace(f"$({variable})", value)  # noqa: PLW2901
            for path, folder in folders.items():
                word = word.replace(path, str(folder))  # noqa: PLW2901
            word = re.sub(r"=:(\d+)$", rf"={running.address}:\1", word)  # noqa: PLW2901
            words[index] = re.sub(r"=127\.0\.0\.1:(\d+)$", rf"={running.loopback}:\1", word)
        if words[0] == "kube-scheduler":
            words[0] = str(programs() / words[0])
            words += [f"--bind-address={running.address}", f"--cert-dir={self._folder(running) / 'certs'}"]
            words += [f"--{whose}-kubeconfig={kubeconfig}" for whose in ("authentication", "authorization")]
        else:
            words = [sys.executable, "-m", "gpupack", *words, f"--kubeconfig={kubeconfig}"]
        log = self._cluster.control.log_dir / f"{name}-{container['name']}.log"
        running.processes[container["name"]] = Process(
            container["name"], words, log, cwd=self._checkout(container), environment=environment
        )

    def _checkout(self, container: Json) -> Path:
        """Where a container's code lies; the working folder comes first where Python looks for modules."""
        return self.checkouts.get(container["image"], REPOSITORY)

    def _folder(self, running: _Running) -> Path:
        folder = self._cluster.home / "pods" / str(running.pod["metadata"]["name"])
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _folders(self, running: _Running, container: Json, kubeconfig: Path) -> dict[str, Path]:
        """Write the container's volumes; folders here by their paths in it."""
        volumes = {volume["name"]: volume for volume in running.pod["spec"].get("volumes", [])}
        namespace = running.pod["metadata"]["namespace"]
        found = {}
        for mount in container.get("volumeMounts", []):
            volume = volumes[mount["name"]]
            if "projected" in volume:
                continue  # the account's token
            folder = self._folder(running) / mount["name"]
            folder.mkdir(exist_ok=True)
            found[mount["mountPath"]] = folder
            if "secret" in volume:
                path = f"/api/v1/namespaces/{namespace}/secrets/{volume['secret']['secretName']}"
                for name, data in self._api.get(path)["data"].items():
                    (folder / name).write_bytes(base64.b64decode(data))
            else:
                path = f"/api/v1/namespaces/{namespace}/configmaps/{volume['configMap']['name']}"
                for name, text in self._api.get(path)["data"].items():
                    here = text.replace("http://127.0.0.1:", f"http://{running.loopback}:")
                    here = here.replace(
                        "clientConnection:\n", f"clientConnection:\n  kubeconfig: {kubeconfig}\n"
                    )
                    (folder / name).write_text(here)
        return found

    def _follow(self, running: _Running, pod: Json, now: float) -> None:
        if "deletionTimestamp" in pod["metadata"]:
            self._end(running, pod, now)
            return
        for container in pod["spec"]["containers"]:
            if not running.processes[container["name"]].alive:
                self._start_container(running, container)
        if now < running.probed_at + PROBE_S:
            return
        running.probed_at = now
        is_ready = all(self._probe(running, container) for container in pod["spec"]["containers"])
        if is_ready != running.is_ready or "podIP" not in pod["status"]:
            running.is_ready = is_ready
            self._say(pod, is_ready=is_ready, address=running.address)

    def _probe(self, running: _Running, container: Json) -> bool:
        asked = container["readinessProbe"]["httpGet"]
        (port,) = [each["containerPort"] for each in container["ports"] if each["name"] == asked["port"]]
        url = f"{asked.get('scheme', 'HTTP').lower()}://{running.address}:{port}{asked['path']}"
        try:
            with urllib.request.urlopen(url, timeout=2, context=ssl._create_unverified_context()):
                return True
        except OSError:
            return False

    def _end(self, running: _Running, pod: Json, now: float) -> None:
        """Let every container end as it wishes, and the pod go when all have."""
        since = running.ending_since = now if running.ending_since is None else running.ending_since
        for container in pod["spec"]["containers"]:
            pause = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
            process = running.processes[container["name"]]
            if now >= since + pod["metadata"]["deletionGracePeriodSeconds"]:
                process.kill()
            elif now >= since + pause and container["name"] not in running.told:
                running.told.add(container["name"])
                process.send(signal.SIGTERM)
        if any(process.alive for process in running.processes.values()):
            return
        metadata = pod["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        self._api.delete(path, body={"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}})
        _address("del", running.address)
        del self._running[metadata["uid"]]

    def _say(self, pod: Json, *, is_ready: bool, address: str = "") -> None:
        """Write a pod's status."""
        metadata, stamp = pod["metadata"], _now()
        ours = {"Initialized": True, "ContainersReady": is_ready, "Ready": is_ready}
        conditions = [one for one in pod["status"].get("conditions", []) if one["type"] not in ours]
        conditions += [
            {"type": kind, "status": str(value), "lastTransitionTime": stamp} for kind, value in ours.items()
        ]
        status: dict[str, Any] = {"phase": "Running", "conditions": conditions}
        if address:
            status |= {"podIP": address, "podIPs": [{"ip": address}]}
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/status"
        with contextlib.suppress(ApiError):
            self._api.merge(path, {"metadata": {"uid": metadata["uid"]}, "status": status})


def _address(verb: str, address: str) -> None:
    command = [str(busybox()), "ip", "addr", verb, f"{address}/32", "dev", "lo"]
    subprocess.run(command, check=verb == "add", capture_output=True)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
