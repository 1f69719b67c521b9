"""The API server as those need it who read and write objects one by one."""

from collections.abc import Mapping, Sequence
from typing import Protocol

Body = bytes | Mapping[str, object] | Sequence[Mapping[str, object]]


class ObjectApi(Protocol):
    """Reads and writes objects; `kubeapi.client.KubeClient` has it, with more."""

    async def get(self, path: str, *, timeout_s: float = ..., **params: str | int) -> bytes: ...

    async def post(self, path: str, body: Body, *, timeout_s: float = ...) -> bytes: ...

    async def put(self, path: str, body: Body, *, timeout_s: float = ...) -> bytes: ...

    async def patch(
        self, path: str, body: Body, content_type: str = ..., *, timeout_s: float = ...
    ) -> bytes: ...

    async def delete(self, path: str, body: Body | None = ..., *, timeout_s: float = ...) -> bytes: ...
