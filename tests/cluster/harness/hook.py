"""An admission webhook of the tests: it sees a write before the API server does it, and lets it pass."""

import base64
import json
from collections.abc import Callable
from typing import Final, Self

from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.joining import make_certificate
from tests.cluster.harness.post_server import PostServer
from tests.cluster.harness.rest import Json

PATH: Final = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
RULES: Final = (
    ("CREATE", "resource.k8s.io", "resourceclaims"),
    ("UPDATE", "resource.k8s.io", "resourceclaims/status"),
    ("UPDATE", "", "pods/status"),
    ("CREATE", "", "pods/binding"),
)


class Hook(PostServer):
    """Calls `seen` with each write to claims, pods' statuses and Bindings; a context manager.

    Args:
        seen: is given the request of an AdmissionReview; what it raises is no answer, and the write goes on.
    """

    def __init__(self, cluster: Cluster, seen: Callable[[Json], None]) -> None:
        def answer(_path: str, body: bytes) -> tuple[int, bytes]:
            review = json.loads(body)
            seen(review["request"])
            review["response"] = {"uid": review.pop("request")["uid"], "allowed": True}
            return 200, json.dumps(review).encode()

        self._cluster, self._certificate = cluster, make_certificate(cluster)
        super().__init__(answer, self._certificate)

    def __enter__(self) -> Self:
        bundle = base64.b64encode(self._certificate.read_bytes()).decode()
        webhook = {
            "name": "hook.gpupack.io",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "failurePolicy": "Ignore",
            "timeoutSeconds": 5,
            "clientConfig": {"url": f"{self.url}/", "caBundle": bundle},
            "rules": [
                {"operations": [verb], "apiGroups": [group], "apiVersions": ["*"], "resources": [resource]}
                for verb, group, resource in RULES
            ],
        }
        self._cluster.api.post(PATH, {"metadata": {"name": "hook"}, "webhooks": [webhook]})
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.api.delete(f"{PATH}/hook")
        self.stop()
