"""The requests of a client of the API server, which come to one method: what every fake of it begins with."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from kubeapi.errors import KubeApiError, TimedOut, Unreachable


class Binding(NamedTuple):
    """What a pod is bound with."""

    namespace: str
    name: str
    uid: str
    node: str
    annotations: dict[str, str]
    resource_version: str | None
    timeout_s: float


class ApiRequests:
    """What our code takes for a client.

    Attributes:
        asked: Verb and path of each request, in their order.
        bodies: Their bodies, decoded; of a GET the query, of a Binding a `Binding`.
        away: Raised by every request; nothing is done.
        fault: Strikes the next write: "lost", it never arrives, or "late", it is done and nobody hears of it;
            an error is the answer to one that is done.
        content_type: Of the last patch.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.bodies: list[Any] = []
        self.away: KubeApiError | None = None
        self.fault: str | KubeApiError | None = None
        self.content_type = ""

    @property
    def verbs(self) -> list[str]:
        return [verb for verb, _ in self.asked]

    async def get(self, path: str, *, timeout_s: float = 0, **query: Any) -> bytes:
        return await self.ask("get", path, query, timeout_s)

    async def post(self, path: str, body: Any, *, timeout_s: float = 0, **_query: Any) -> bytes:
        return await self.ask("post", path, body, timeout_s)

    async def put(self, path: str, body: Any, *, timeout_s: float = 0, **_query: Any) -> bytes:
        return await self.ask("put", path, body, timeout_s)

    async def patch(self, path: str, body: Any, content_type: str = "", *, timeout_s: float = 0) -> bytes:
        self.content_type = content_type
        return await self.ask("patch", path, body, timeout_s)

    async def bind(
        self,
        namespace: str,
        name: str,
        uid: str,
        node: str,
        annotations: Mapping[str, str],
        resource_version: str | None = None,
        timeout_s: float = 0,
    ) -> None:
        binding = Binding(namespace, name, uid, node, dict(annotations), resource_version, timeout_s)
        await self.ask("bind", f"/api/v1/namespaces/{namespace}/pods/{name}", binding, timeout_s)

    async def ask(self, verb: str, path: str, body: Any, timeout_s: float) -> bytes:
        del timeout_s
        body = json.loads(body) if isinstance(body, bytes) else body
        self.asked.append((verb, path))
        self.bodies.append(body)
        if self.away is not None:
            raise self.away
        fault = None
        if verb != "get":
            fault, self.fault = self.fault, None
        if fault == "lost":
            raise Unreachable("reset", maybe_done=True)
        found = self.answer(verb, path, body)
        if fault == "late":
            raise TimedOut("no answer")
        if isinstance(fault, KubeApiError):
            raise fault
        return found if isinstance(found, bytes) else msgspec.json.encode(found)

    def answer(self, verb: str, path: str, body: Any) -> Any:
        """Carry a request out, and give the answer as bytes or as what is in it."""
        raise NotImplementedError
