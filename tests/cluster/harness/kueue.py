"""The real Kueue, where somebody has built it: its controller without webhooks, for pods."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.controlplane import free_ports
from tests.cluster.harness.manifests import define_kinds
from tests.cluster.harness.processes import Process
from tests.yaml_text import read_yaml

BINARY = os.environ.get("GPUPACK_KUEUE", "")
"""Path of Kueue's program: `go build sigs.k8s.io/kueue/cmd/kueue`."""

SOURCE = os.environ.get("GPUPACK_KUEUE_SOURCE", "")
"""Folder of its Go module, which has its CRDs: `go list -m -f '{{.Dir}}' sigs.k8s.io/kueue`."""

GATE = {"name": "kueue.x-k8s.io/admission"}
MANAGED = "kueue.x-k8s.io/managed"
QUEUE_NAME = "kueue.x-k8s.io/queue-name"
API = "kueue.x-k8s.io/v1beta2"


def obstacle() -> str:
    """Why Kueue cannot be run here, empty for nothing."""
    if not BINARY or not SOURCE:
        return "GPUPACK_KUEUE and GPUPACK_KUEUE_SOURCE do not say where Kueue's program and module are"
    return "" if Path(BINARY).exists() and Path(SOURCE).is_dir() else f"{BINARY} or {SOURCE} does not exist"


def crds() -> list[dict[str, Any]]:
    """Its CRDs with the newest version alone: converting would take its webhooks."""
    found = []
    for path in sorted((Path(SOURCE) / "config/components/crd/bases").glob("*.yaml")):
        one = read_yaml(path.read_text())
        newest = one["spec"]["versions"][-1]
        one["spec"]["versions"] = [{**newest, "served": True, "storage": True}]
        found.append(one)
    return found


def objects(resource: str, units: int) -> list[dict[str, Any]]:
    """A flavor, a ClusterQueue with so many units of a resource, and the LocalQueue `user-queue`."""
    covered = {"name": resource, "nominalQuota": units}
    other = [{"name": name, "nominalQuota": "100G"} for name in ("cpu", "memory")]
    group = {
        "coveredResources": [resource, "cpu", "memory"],
        "flavors": [{"name": "default", "resources": [covered, *other]}],
    }
    return [
        {"apiVersion": API, "kind": "ResourceFlavor", "metadata": {"name": "default"}, "spec": {}},
        {
            "apiVersion": API,
            "kind": "ClusterQueue",
            "metadata": {"name": "all"},
            "spec": {"namespaceSelector": {}, "resourceGroups": [group]},
        },
        {
            "apiVersion": API,
            "kind": "LocalQueue",
            "metadata": {"name": "user-queue", "namespace": "default"},
            "spec": {"clusterQueue": "all"},
        },
    ]


def start(cluster: Cluster, kubeconfig: Path) -> Process:
    """Run it as an administrator, once its kinds are served."""
    define_kinds(cluster.api, crds())
    certs = cluster.home / "kueue-certs"
    certs.mkdir()
    subject = ["-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    files = ["-keyout", str(certs / "tls.key"), "-out", str(certs / "tls.crt")]
    subprocess.run(["openssl", "req", *subject, *files], check=True, capture_output=True)
    # It wants certificates for its metrics in a fixed folder of /etc: it gets an /etc of its own.
    etc = cluster.home / "kueue-etc"
    shutil.copytree("/etc", etc, symlinks=True, ignore_dangling_symlinks=True)
    shutil.copytree(certs, etc / "kueue/metrics/certs")
    health, metrics, webhook = free_ports(3)
    config = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "metrics": {"bindAddress": f"127.0.0.1:{metrics}"},
        "webhook": {"host": "127.0.0.1", "port": webhook, "certDir": str(certs)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "integrations": {"frameworks": ["pod"]},
        "managedJobsNamespaceSelector": {
            "matchExpressions": [
                {
                    "key": "kubernetes.io/metadata.name",
                    "operator": "NotIn",
                    "values": ["kube-system", "kueue-system"],
                }
            ]
        },
    }
    path = cluster.home / "kueue.yaml"
    path.write_text(yaml.safe_dump(config))
    command = [BINARY, f"--config={path}", "--feature-gates=VisibilityOnDemand=false"]
    return Process(
        "kueue",
        ["unshare", "-m", "sh", "-c", 'mount --bind "$0" /etc && exec "$@"', str(etc), *command],
        cluster.control.log_dir / "kueue.log",
        environment={"KUBECONFIG": str(kubeconfig)},
    )


def gated(pod: dict[str, Any], queue: str = "user-queue") -> dict[str, Any]:
    """What Kueue's webhook makes of a pod with its label."""
    labels = pod["metadata"].setdefault("labels", {})
    labels |= {QUEUE_NAME: queue, MANAGED: "true"}
    pod["metadata"]["finalizers"] = [MANAGED]
    pod["spec"].setdefault("schedulingGates", []).append(GATE)
    return pod
