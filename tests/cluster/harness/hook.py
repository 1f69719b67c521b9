"""An admission webhook of the tests: it sees a write before the API server does it, and lets it pass."""

import base64
import json
import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final, Self

from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.joining import make_certificate
from tests.cluster.harness.rest import Json

PATH: Final = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
RULES: Final = (
    ("CREATE", "resource.k8s.io", "resourceclaims"),
    ("UPDATE", "resource.k8s.io", "resourceclaims/status"),
    ("UPDATE", "", "pods/status"),
    ("CREATE", "", "pods/binding"),
)


class Hook:
    """Calls `seen` with each write to claims, pods' statuses and Bindings; a context manager.

    Args:
        cluster: whose API server asks.
        seen: is given the request of an AdmissionReview; what it raises is no answer, and the write goes on.
    """

    def __init__(self, cluster: Cluster, seen: Callable[[Json], None]) -> None:
        self._cluster = cluster
        certificate = make_certificate(cluster)
        self._certificate: Path = certificate
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(seen))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, certificate.with_suffix(".key"))
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        url = f"https://127.0.0.1:{self._server.server_address[1]}/"
        webhook = {
            "name": "hook.gpupack.io",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "failurePolicy": "Ignore",
            "timeoutSeconds": 5,
            "clientConfig": {"url": url, "caBundle": _base64(self._certificate)},
            "rules": [
                {"operations": [verb], "apiGroups": [group], "apiVersions": ["*"], "resources": [resource]}
                for verb, group, resource in RULES
            ],
        }
        self._cluster.api.post(PATH, {"metadata": {"name": "hook"}, "webhooks": [webhook]})
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.api.delete(f"{PATH}/hook")
        self._server.shutdown()
        self._server.server_close()


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def _handler(seen: Callable[[Json], None]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            seen(review["request"])
            review["response"] = {"uid": review.pop("request")["uid"], "allowed": True}
            body = json.dumps(review).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing on stderr."""

    return Handler
