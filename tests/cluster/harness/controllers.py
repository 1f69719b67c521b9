"""The real controllers that make gangs, with their CRDs and webhooks, as administrators.

Each has a /tmp of its own, where all of them look for their certificates. Webhooks are served on loopback.
"""

import base64
import json
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.harness import binaries
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.controlplane import free_ports
from tests.cluster.harness.images import SHELL
from tests.cluster.harness.manifests import apply_all, define_kinds, path_of
from tests.cluster.harness.polling import until
from tests.cluster.harness.processes import Process
from tests.cluster.harness.rest import Api, Json
from tests.yaml_text import read_yaml_documents

NAMESPACE = "kubeflow"
CERTIFIED = f"DNS:training-operator-ca,DNS:training-operator.{NAMESPACE}.svc,IP:127.0.0.1"
"""Names in the certificate; without the first two the Training Operator makes another one."""

CONFIGURED = {
    binaries.JOBSET: ("config.jobset.x-k8s.io", "internalCertManagement"),
    binaries.LEADER_WORKER_SET: ("config.lws.x-k8s.io", "internalCertManagement"),
    binaries.TRAINER: ("config.trainer.kubeflow.org", "certManagement"),
}
"""API group of the configuration, and its field that has the controller make certificates."""


@contextmanager
def running(cluster: Cluster, *controllers: binaries.Published) -> Iterator[None]:
    """Run controllers together, each started when the one before it is ready."""
    with ExitStack() as stack:
        for controller in controllers:
            stack.enter_context(_running(cluster, controller))
        yield


@contextmanager
def _running(cluster: Cluster, controller: binaries.Published) -> Iterator[None]:
    files = sorted(controller.folder.glob("*.yaml"))
    manifests: list[Json] = [each for file in files for each in read_yaml_documents(file.read_text()) if each]
    crds = [each for each in manifests if each["kind"] == "CustomResourceDefinition"]
    define_kinds(cluster.api, crds)
    if not controller.package:
        yield
        return
    own = Path(tempfile.mkdtemp(dir=cluster.home, prefix=controller.name))
    certificate = _make_certificate(own / "k8s-webhook-server/serving-certs")
    health, port = free_ports(2)
    hooks = [_make_hook(each, controller, port, certificate) for each in manifests if each not in crds]
    if controller == binaries.TRAINING_OPERATOR:
        _write_secret(cluster.api, own / "k8s-webhook-server/serving-certs")
    _write_kubeconfig(cluster, own / "kubeconfig")
    bind = ["unshare", "-m", "sh", "-c", 'mount --bind "$0" /tmp && exec "$@"', str(own)]
    program = str(controller.folder / controller.name)
    apply_all(cluster.api, hooks)
    process = Process(
        controller.name,
        [*bind, program, *_make_flags(controller, own, health, port)],
        cluster.control.log_dir / f"{controller.name}.log",
        environment={
            "KUBECONFIG": "/tmp/kubeconfig",
            # Of KubeRay: neither waits for what Ray would say.
            "ENABLE_INIT_CONTAINER_INJECTION": "false",
            "ENABLE_PROBES_INJECTION": "false",
        },
    )
    try:
        until(lambda: not process.alive or _is_ready(health), f"{controller.name} ready")
        assert process.alive, process.tail()
        yield
    finally:
        # They would keep the pods of others from being made.
        for hook in hooks:
            cluster.api.delete(path_of(cluster.api, hook))
        process.kill()


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5):
            return True
    except urllib.error.HTTPError as refused:
        refused.close()
        return False


def _make_certificate(folder: Path) -> str:
    """Make one that is its own CA; returns it in base64."""
    folder.mkdir(parents=True)
    subject = ["-x509", "-days", "365", "-subj", "/CN=localhost"]
    names = ["-addext", f"subjectAltName={CERTIFIED}"]
    key, certificate = folder / "tls.key", folder / "tls.crt"
    # The Training Operator reads a key in PKCS #1 only.
    make_key = ["openssl", "genrsa", "-traditional", "-out", str(key), "2048"]
    sign = ["openssl", "req", "-key", str(key), "-out", str(certificate), *subject, *names]
    for command in (make_key, sign):
        subprocess.run(command, check=True, capture_output=True)
    return base64.b64encode(certificate.read_bytes()).decode()


def _make_hook(manifest: Json, controller: binaries.Published, port: int, certificate: str) -> Json:
    """The configuration of webhooks as its own kustomization has it, reached on loopback."""
    kind = manifest["kind"].removesuffix("WebhookConfiguration")
    name = {"Validating": "validator", "Mutating": "mutator"}[kind]
    for hook in manifest["webhooks"]:
        path = hook["clientConfig"]["service"]["path"]
        hook["clientConfig"] = {"url": f"https://127.0.0.1:{port}{path}", "caBundle": certificate}
    # The Training Operator looks for its own by this name.
    return {**manifest, "metadata": {"name": f"{name}.{controller.name}.kubeflow.org"}}


def _write_secret(api: Api, certificates: Path) -> None:
    key, certificate = ((certificates / name).read_text() for name in ("tls.key", "tls.crt"))
    data = {"ca.key": key, "ca.crt": certificate, "tls.key": key, "tls.crt": certificate}
    metadata = {"name": "training-operator-webhook-cert", "namespace": NAMESPACE}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data}
    apply_all(api, [namespace, secret])


def _write_kubeconfig(cluster: Cluster, path: Path) -> None:
    """Write the administrator's, with the CA in it, whose file the controller does not see."""
    config = json.loads(cluster.control.admin_config.read_text())
    server = config["clusters"][0]["cluster"]
    authority = Path(server.pop("certificate-authority")).read_bytes()
    server["certificate-authority-data"] = base64.b64encode(authority).decode()
    path.write_text(json.dumps(config))


def _make_flags(controller: binaries.Published, own: Path, health: int, port: int) -> list[str]:
    probes = f"--health-probe-bind-address=127.0.0.1:{health}"
    if controller == binaries.KUBERAY:
        return ["--enable-leader-election=false", "--metrics-addr=0", probes]
    if controller == binaries.TRAINING_OPERATOR:
        # Instead of a look-up of the master's name, for which there is no DNS here.
        init = {"name": "init", "image": SHELL, "imagePullPolicy": "Never", "command": ["/bin/true"]}
        (own / "init.yaml").write_text(yaml.safe_dump([init]))
        flags = [f"--webhook-server-port={port}", "--metrics-bind-address=0", probes]
        return [*flags, "--pytorch-init-container-template-file=/tmp/init.yaml"]
    group, certificates = CONFIGURED[controller]
    config: dict[str, Any] = {
        "apiVersion": f"{group}/v1alpha1",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": "127.0.0.1", "port": port},
        "leaderElection": {"leaderElect": False},
        certificates: {"enable": False},
    }
    (own / "config.yaml").write_text(yaml.safe_dump(config))
    return ["--config=/tmp/config.yaml"]
