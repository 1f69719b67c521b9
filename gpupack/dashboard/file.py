"""Nodes and pods from what kubectl wrote to a file."""

from collections.abc import Sequence

import msgspec

from gpupack.dashboard.objects import SeenPod
from gpupack.errors import InputError
from gpupack.top import load_nodes
from gpupack.top.objects import Node


class _Kind(msgspec.Struct):
    kind: str = ""


class _List(msgspec.Struct):
    items: list[msgspec.Raw]


def load(raw: bytes) -> tuple[Sequence[Node], list[SeenPod] | None]:
    """Read nodes, and pods where there are any: a page without pods is still a page.

    Raises:
        InputError: it holds something else.
    """
    try:
        nodes = load_nodes(raw, pods=True).nodes
    except InputError:
        return load_nodes(raw).nodes, None
    if not nodes:
        raise InputError(
            "the input holds no nodes: allowed is the output of `kubectl get nodes,pods -A -o json`"
        )
    items = msgspec.json.decode(raw, type=_List).items
    pods = [item for item in items if msgspec.json.decode(item, type=_Kind).kind == "Pod"]
    return nodes, [msgspec.json.decode(item, type=SeenPod) for item in pods]
