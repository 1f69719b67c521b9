"""The shipped DaemonSet and Deployment as pods of the real kubelet, without registry or pod network.

gpupack runs from its image, as `.ci/image.py` builds it. What stands for kube-scheduler's is the test image
with the program mounted, read-only. Pods share the node's network, so each port of the manifests gets a free
one. All else is as shipped: accounts and their tokens, users, capabilities, read-only root, volumes, probes,
arguments.
"""

import json
import stat
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from tests.cluster.harness.binaries import programs
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.daemons import REPOSITORY
from tests.cluster.harness.images import SHELL
from tests.cluster.harness.rest import Json

IMAGE = Path(".ci/image.py")


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
    for container in spec["containers"]:
        container["env"] = [*container.get("env", []), *_environment(cluster)]
        if container["name"] == "kube-scheduler":
            container["command"][0] = str(programs() / "kube-scheduler")
            container["image"] = SHELL
            volume = {"name": "programs", "hostPath": {"path": str(programs())}}
            mount = {"name": "programs", "mountPath": str(programs()), "readOnly": True}
            spec["volumes"] = [*spec.get("volumes", []), volume]
            container["volumeMounts"] = [*container.get("volumeMounts", []), mount]
    return made


def obstacle() -> str | None:
    """Why gpupack's image cannot be built on this machine, None where it can."""
    done = subprocess.run(
        [sys.executable, REPOSITORY / IMAGE, "--check"], check=False, capture_output=True, text=True
    )
    return done.stderr.strip() if done.returncode else None


def build_image(target: Path, sources: Path = REPOSITORY) -> None:
    """Write gpupack's image as an archive; the first time takes a minute.

    Args:
        target: The archive.
        sources: A checkout.

    Raises:
        AssertionError: If it cannot be built; carries why.
    """
    command = [sys.executable, sources / IMAGE, target]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr


def previous_checkout(folder: Path) -> Path:
    """Write the commit before this one into a folder; in a clone without history this one stands for it."""
    archive = folder.with_suffix(".tar")
    folder.mkdir()
    command = ["git", "archive", "--output", str(archive), "HEAD~1"]
    if subprocess.run(command, cwd=REPOSITORY, check=False, capture_output=True).returncode:
        return REPOSITORY
    with tarfile.open(archive) as files:
        files.extractall(folder, filter="data")
    # The image takes the files that git knows.
    for step in (["init", "-q"], ["add", "--all"]):
        subprocess.run(["git", *step], cwd=folder, check=True, capture_output=True)
    return folder


def import_as(cluster: Cluster, archive: Path, checkout: Path, tag: str) -> str:
    """Bring an image of a checkout to the node under a tag of its own; returns its name."""
    cluster.host.ctr("images", "import", str(archive))
    version = tomllib.loads((checkout / "pyproject.toml").read_text())["project"]["version"]
    repository = "docker.io/library/gpupack"
    cluster.host.ctr("images", "tag", "--force", f"{repository}:{version}", f"{repository}:{tag}")
    return f"{repository}:{tag}"


@contextmanager
def readable_by_all() -> Iterator[None]:
    """Let the users of the pods into the folder of kube-scheduler; a checkout may be root's alone."""
    mode = stat.S_IMODE(programs().stat().st_mode)
    programs().chmod(mode | 0o005)
    try:
        yield
    finally:
        programs().chmod(mode)


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
    """The API server's address, for there is no network of services."""
    server = urlsplit(cluster.control.url)
    values = {"KUBERNETES_SERVICE_HOST": server.hostname, "KUBERNETES_SERVICE_PORT": server.port}
    return [{"name": name, "value": str(value)} for name, value in values.items()]
