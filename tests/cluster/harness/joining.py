"""What a kube-scheduler needs to call the extender: a certificate, and a part of its configuration."""

import subprocess
from pathlib import Path
from typing import Any

from tests.cluster.harness import binaries
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.manifests import MANIFESTS
from tests.yaml_text import read_yaml

OVERLAY = MANIFESTS / "overlays" / "join-existing-scheduler"


def make_certificate(cluster: Cluster) -> Path:
    """Write a certificate of the extender's Service; its key has the ending .key."""
    openssl = binaries.find("openssl")
    assert openssl is not None
    names = "subjectAltName=IP:127.0.0.1,DNS:gpupack-extender.gpupack-system.svc"
    key, certificate = (cluster.home / f"extender.{end}" for end in ("key", "crt"))
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test"]
    command += ["-addext", names, "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    return certificate


def configure_joined(cluster: Cluster, url: str, certificate: Path, **overrides: Any) -> None:
    """Merge the overlay's fragment into kube-scheduler's configuration, the address being this machine's."""
    fragment = read_yaml((OVERLAY / "extenders.yaml").read_text())
    (extender,) = fragment["extenders"]
    extender["urlPrefix"] = url
    extender["tlsConfig"]["caFile"] = str(certificate)
    extender["tlsConfig"]["certFile"] = str(certificate)
    extender["tlsConfig"]["keyFile"] = str(certificate.with_suffix(".key"))
    cluster.control.configure_scheduler(None, **fragment, **overrides)
