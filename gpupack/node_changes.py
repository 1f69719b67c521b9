"""Changes a Node that others write, too: read, decide, and write only if it is still the same."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from kubeapi.errors import Conflict, decode_answer
from kubeapi.objects import WritableNode
from kubeapi.paths import make_node_path

if TYPE_CHECKING:
    from kubeapi.client import KubeClient

T = TypeVar("T")

_TRIES: Final = 5
"""How often a change is tried: a Node is written by its kubelet every few seconds."""

_decode: Final = msgspec.json.Decoder(WritableNode).decode


def decode_writable_node(answer: bytes) -> WritableNode:
    return decode_answer(answer, _decode, "a Node")


async def change_node(client: "KubeClient", name: str, change: Callable[[WritableNode], Awaitable[T]]) -> T:
    """Read a Node and hand it to `change`, again if that finds that it has been changed in between.

    Raises:
        NotFound: no Node has the name.
        Conflict: it changed again and again.
    """

    async def change_once() -> T:
        return await change(decode_writable_node(await client.get(make_node_path(name))))

    for _ in range(_TRIES - 1):
        with suppress(Conflict):
            return await change_once()
    return await change_once()
