"""A Service as kube-proxy has it: each new connection goes to one of its ready endpoints and stays there."""

import random
import socket

from tests.cluster.harness.rest import Api, ApiError
from tests.cluster.harness.slowlink import SlowLink


class ServiceLink(SlowLink):
    """The address of a Service with one port; it refuses connections while there is no ready endpoint."""

    def __init__(self, api: Api, namespace: str, name: str) -> None:
        self._api = api
        self._path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
        self._selector = f"kubernetes.io/service-name={name}"
        super().__init__(f"https://{name}.{namespace}.svc:443")

    def endpoints(self) -> list[tuple[str, int]]:
        """Addresses and ports of the ready endpoints."""
        slices = self._api.get(self._path, labelSelector=self._selector)["items"]
        return [
            (endpoint["addresses"][0], each["ports"][0]["port"])
            for each in slices
            for endpoint in each["endpoints"] or []
            if endpoint["conditions"].get("ready")
        ]

    def _connect(self) -> socket.socket:
        try:
            found = self.endpoints()
        except ApiError as error:
            raise ConnectionRefusedError from error
        if not found:
            raise ConnectionRefusedError
        return socket.create_connection(random.choice(found), timeout=5)
