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
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from tests.cluster.harness.binaries import programs
from tests.cluster.harness.cluster import NAMESPACE, Cluster
from tests.cluster.harness.controlplane import free_ports
from tests.cluster.harness.daemons import REPOSITORY
from tests.cluster.harness.images import SHELL
from tests.cluster.harness.manifests import apply_all, build_for
from tests.cluster.harness.polling import until
from tests.cluster.harness.rest import Json

IMAGE = Path(".ci/image.py")
SYSTEM_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
DEPLOYMENTS = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
SCHEDULER = "gpupack-scheduler"
REPLICAS = ("one", "two")
OVERLAY = Path("manifests/overlays/simulated-gpus")
NODE_PORT = free_ports(1)
"""Of the daemon; one cluster with shipped pods runs at a time."""


def as_pods_here(cluster: Cluster, workload: Json, ports: Mapping[str, int]) -> Json:
    """A DaemonSet or Deployment of `manifests/`, changed as far as this machine needs it.

    Args:
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


def make_programs_readable() -> None:
    """Let the users of the pods into the folder of kube-scheduler, which may be root's alone.

    It stays so: pods of another worker's cluster may need it longer than those of this one.
    """
    programs().chmod(stat.S_IMODE(programs().stat().st_mode) | 0o005)


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


def start_as_pods(cluster: Cluster, archive: Path) -> None:
    """Apply the overlay for nodes without GPUs; another scheduler places gpupack's own pods."""
    make_programs_readable()
    control = cluster.control
    control.configure_scheduler(None, profiles=[{"schedulerName": "default-scheduler"}])
    control.start()
    cluster.host.start()
    cluster.host.ctr("images", "import", str(archive))
    until(cluster.node_ready, "node ready")
    cluster.wait_account()
    objects = build_for(cluster.api, REPOSITORY / OVERLAY)
    others = free_ports(6)
    for one in objects:
        match one["kind"]:
            case "DaemonSet":
                apply_all(cluster.api, [as_pods_here(cluster, one, {"8911": NODE_PORT[0]})])
            case "Deployment":
                deployment = one
            case "ConfigMap" if one["metadata"]["name"] == SCHEDULER:
                configuration = one
            case _:
                apply_all(cluster.api, [one])
    for number, replica in enumerate(REPLICAS):
        extender_port, https_port, metrics_port = others[3 * number : 3 * number + 3]
        config = with_ports(configuration, {"8910": extender_port})
        config["metadata"]["name"] = f"{SCHEDULER}-{replica}"
        ports = {"8910": extender_port, "10259": https_port, "8912": metrics_port}
        made = as_pods_here(cluster, deployment, ports)
        apply_all(cluster.api, [config, _replica(made, replica)])


def _replica(deployment: Json, name: str) -> Json:
    """One replica as a Deployment of its own: two of one would want the same ports of the only node."""
    deployment["metadata"]["name"] = f"{SCHEDULER}-{name}"
    deployment["spec"]["replicas"] = 1
    for labels in (
        deployment["spec"]["selector"]["matchLabels"],
        deployment["spec"]["template"]["metadata"]["labels"],
    ):
        labels["replica"] = name
    for volume in deployment["spec"]["template"]["spec"]["volumes"]:
        if "configMap" in volume:
            volume["configMap"]["name"] = f"{SCHEDULER}-{name}"
    return deployment


def system_pods(cluster: Cluster, name: str) -> list[Json]:
    """Living pods of a workload of gpupack."""
    found = cluster.api.get(SYSTEM_PODS, labelSelector=f"app.kubernetes.io/name={name}")["items"]
    return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]


def wait_ready(cluster: Cluster, name: str, count: int) -> list[Json]:
    """Return a workload's pods once the kubelet's probes have found all of them ready.

    Raises:
        AssertionError: With what the containers said.
    """

    def ready() -> list[Json]:
        pods = system_pods(cluster, name)
        conditions = [one for pod in pods for one in pod["status"].get("conditions", [])]
        good = [one for one in conditions if one["type"] == "Ready" and one["status"] == "True"]
        return pods if len(pods) == len(good) == count else []

    try:
        return until(ready, f"{count} pods of {name} ready")
    except AssertionError as error:
        pods = system_pods(cluster, name)
        states = json.dumps([pod["status"].get("containerStatuses") for pod in pods])
        logs = [
            cluster.host.log_of(pod["metadata"]["uid"], container["name"])[-2000:]
            for pod in pods
            for container in pod["spec"]["containers"]
        ]
        raise AssertionError("\n".join([str(error), states, *logs])) from error
