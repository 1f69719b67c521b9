"""The shipped DaemonSet and Deployment as pods of the real kubelet, without registry or pod network.

What stands for the image is the test image with this machine's interpreter, packages and kube-scheduler
mounted where they are, read-only. Pods share the node's network, so each port of the manifests gets a free
one. All else is as shipped: accounts and their tokens, users, capabilities, read-only root, volumes, probes,
arguments.
"""

import json
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.cluster.harness.binaries import programs
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.daemons import REPOSITORY
from tests.cluster.harness.images import SHELL
from tests.cluster.harness.rest import Json


def as_pods_here(cluster: Cluster, workload: Json, ports: Mapping[str, int]) -> Json:
    """A DaemonSet or Deployment of `manifests/`, changed as far as this machine needs it.

    Args:
        cluster: Where it is to run.
        workload: The object as built.
        ports: A free port for each port that the manifest names.
    """
    made = with_ports(workload, ports)
    spec = made["spec"]["template"]["spec"]
    spec["hostNetwork"] = True
    spec["volumes"] = [
        *spec.get("volumes", []),
        *({"name": name, "hostPath": {"path": path}} for name, path in _paths()),
    ]
    for container in spec["containers"]:
        if container["name"] == "kube-scheduler":
            container["command"][0] = str(programs() / "kube-scheduler")
        else:
            container["command"] = [sys.executable, "-m", "gpupack"]
        container["image"] = SHELL
        container["env"] = [*container.get("env", []), *_environment(cluster)]
        container["volumeMounts"] = [
            *container.get("volumeMounts", []),
            *({"name": name, "mountPath": path, "readOnly": True} for name, path in _paths()),
        ]
    return made


@contextmanager
def readable_by_all() -> Iterator[None]:
    """Let the users of the pods into the folders that they are given; a checkout may be root's alone."""
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in map(Path, dict(_paths()).values())}
    closed = {path: mode for path, mode in modes.items() if mode & 0o005 != 0o005}
    for path, mode in closed.items():
        path.chmod(mode | 0o005)
    try:
        yield
    finally:
        for path, mode in closed.items():
            path.chmod(mode)


def with_ports(one: Json, ports: Mapping[str, int]) -> Json:
    """An object with other port numbers, wherever they stand in it."""
    text = json.dumps(one)
    for shipped, port in ports.items():
        assert shipped in text, f"no port {shipped} in {one['kind']} {one['metadata']['name']}"
        text = text.replace(f'"containerPort": {shipped}', f'"containerPort": {port}').replace(
            f":{shipped}", f":{port}"
        )
        text = text.replace(f"-port={shipped}", f"-port={port}")
    made: Json = json.loads(text)
    return made


def _environment(cluster: Cluster) -> list[dict[str, str]]:
    """What the image sets, and the API server's address, for there is no network of services."""
    server = urlsplit(cluster.control.url)
    values: dict[str, Any] = {
        "PATH": f"{Path(sys.executable).parent}:/bin",
        "PYTHONUNBUFFERED": 1,
        "PYTHONDONTWRITEBYTECODE": 1,
        "KUBERNETES_SERVICE_HOST": server.hostname,
        "KUBERNETES_SERVICE_PORT": server.port,
    }
    return [{"name": name, "value": str(value)} for name, value in values.items()]


def _paths() -> list[tuple[str, str]]:
    """Volume names and folders that a program of this machine needs, none inside another."""
    wanted = [
        Path(path) for path in ("/usr", "/lib", "/lib64", sys.base_prefix, sys.prefix, REPOSITORY, programs())
    ]
    found: list[Path] = []
    for path in sorted({path for path in wanted if path.exists()}, key=lambda path: len(path.parts)):
        if not any(path.is_relative_to(outer) for outer in found):
            found.append(path)
    return [(f"machine-{number}", str(path)) for number, path in enumerate(found)]
