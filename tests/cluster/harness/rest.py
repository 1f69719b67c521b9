"""The Kubernetes REST API in plain Python values, for tests that look at what the product did."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import urllib3

Json = Any
MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"


class ApiError(Exception):
    """An answer of the API server above 399; `status`, `reason` and `message` are its own."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message


class Api:
    """A client with one identity."""

    def __init__(self, url: str, ca: Path | None, token: str) -> None:
        self.url = url
        self.ca = ca
        self.token = token
        parts = urlsplit(url)
        assert parts.hostname is not None
        # Connections are kept: a test asks 20 times a second, and a handshake costs four times an answer.
        self._pool = urllib3.HTTPSConnectionPool(
            parts.hostname, parts.port, maxsize=4, ca_certs=None if ca is None else str(ca)
        )

    def as_user(self, token: str) -> "Api":
        """The same API server under another bearer token."""
        return Api(self.url, self.ca, token)

    def get(self, path: str, **query: str | int) -> Json:
        return self.call("GET", path, query=query)

    def names(self, path: str, **query: str | int) -> list[str]:
        """The names of the objects of a list."""
        return [str(item["metadata"]["name"]) for item in self.get(path, **query)["items"]]

    def post(self, path: str, body: Json, **query: str | int) -> Json:
        return self.call("POST", path, body, query=query)

    def put(self, path: str, body: Json) -> Json:
        return self.call("PUT", path, body)

    def delete(self, path: str, *, grace_s: int | None = None, body: Json = None) -> Json:
        query = {} if grace_s is None else {"gracePeriodSeconds": grace_s}
        return self.call("DELETE", path, body, query=query)

    def merge(self, path: str, body: Json) -> Json:
        """JSON merge patch."""
        return self.call("PATCH", path, body, content_type=MERGE_PATCH)

    def apply(self, path: str, body: Json, *, dry_run: bool = False) -> Json:
        """Server-side apply; with `dry_run` everything is checked and nothing kept."""
        query = {"fieldManager": "cluster-test", "force": "true", **({"dryRun": "All"} if dry_run else {})}
        return self.call("PATCH", path, body, content_type=APPLY, query=query)

    def call(
        self,
        method: str,
        path: str,
        body: Json = None,
        *,
        content_type: str = "application/json",
        query: Mapping[str, str | int] | None = None,
        timeout_s: float = 30.0,
    ) -> Json:
        """One request; JSON in, JSON out (text where the answer is none).

        Raises:
            ApiError: For an answer above 399.
            OSError: When the server cannot be reached.
        """
        headers = {"Content-Type": content_type}
        answer = self.send(method, path, body, headers=headers, query=query, timeout_s=timeout_s)
        data = answer.data
        try:
            value = json.loads(data)
        except ValueError:
            value = data.decode(errors="replace")
        if answer.status > 399:
            status = value if isinstance(value, dict) else {"message": value}
            raise ApiError(answer.status, status.get("reason", ""), status.get("message", ""))
        return value

    def send(
        self,
        method: str,
        path: str,
        body: Json = None,
        *,
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, str | int] | None = None,
        timeout_s: float = 30.0,
        read: bool = True,
    ) -> urllib3.BaseHTTPResponse:
        """Make one request, and return the answer as it is, whatever its status.

        Args:
            headers: Beside the token, or in its place.
            read: Read the whole body; else the caller reads and closes it.

        Raises:
            OSError: When the server cannot be reached.
        """
        try:
            return self._pool.request(
                method,
                path + (("&" if "?" in path else "?") + urlencode(query) if query else ""),
                None if body is None else json.dumps(body),
                headers={"Authorization": f"Bearer {self.token}", **(headers or {})},
                timeout=timeout_s,
                retries=False,
                preload_content=read,
            )
        except urllib3.exceptions.HTTPError as error:
            raise ConnectionError(f"{method} {path}: {error}") from error
