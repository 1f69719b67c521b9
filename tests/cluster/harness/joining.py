"""What a kube-scheduler needs to call the extender: a certificate, and a part of its configuration."""

from pathlib import Path
from typing import Any

from tests import certificates
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.manifests import MANIFESTS
from tests.yaml_text import read_yaml

OVERLAY = MANIFESTS / "overlays" / "join-existing-scheduler"


def make_certificate(cluster: Cluster) -> Path:
    """Write the certificate of the extender's Service if there is none yet; its key has the ending .key."""
    folder, names = cluster.home / "extender-tls", ("IP:127.0.0.1", "DNS:gpupack-extender.gpupack-system.svc")
    if not folder.exists():
        certificates.make_certificate(folder, *names)
    return folder / "tls.crt"


def configure_joined(cluster: Cluster, url: str, certificate: Path, **overrides: Any) -> None:
    """Merge the overlay's fragment into kube-scheduler's configuration, the address being this machine's."""
    fragment = read_yaml((OVERLAY / "extenders.yaml").read_text())
    (extender,) = fragment["extenders"]
    extender["urlPrefix"] = url
    extender["tlsConfig"]["caFile"] = str(certificate)
    extender["tlsConfig"]["certFile"] = str(certificate)
    extender["tlsConfig"]["keyFile"] = str(certificate.with_suffix(".key"))
    cluster.control.configure_scheduler(None, **fragment, **overrides)
