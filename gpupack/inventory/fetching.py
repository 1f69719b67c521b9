"""Fetches the nodes and pods of a cluster from its API server, once."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from allocator.claims import CLAIMS_PATH, ClaimObject
from gpupack.errors import InputError
from gpupack.inventory.objects import NodesAndPods, make_unknown_node_error
from kubeapi.objects import Node, Pod, make_list_decoder
from kubeapi.paths import NODES_PATH, PODS_PATH, make_node_path
from scheduler_plugin.cache.claim_charges import serves_claims

if TYPE_CHECKING:
    from kubeapi.client import KubeClient

T = TypeVar("T")


async def fetch(
    kubeconfig: str | None, names: Sequence[str] = (), *, pods: bool = False, context: str | None = None
) -> NodesAndPods:
    """List the nodes of a cluster, and the pods that have one.

    Args:
        names: names of the nodes to read; empty for all. Each is read by itself, so the right to get a node
            is enough.

    Raises:
        InputError: a name that no node has, or the server answers with something else than nodes or pods.
        KubeApiError: no configuration, no server, or no right to see what was asked for.
    """
    async with await connect(kubeconfig, context) as client:
        if not names:
            nodes = await list_all(client, NODES_PATH, Node, "nodes")
            if not pods:
                return NodesAndPods(nodes)
            bound_pods = await list_all(client, PODS_PATH, Pod, "pods")
            return NodesAndPods(nodes, bound_pods, await list_claims(client, nodes))
        nodes, bound_pods = [], []
        for name in dict.fromkeys(names):
            nodes.append(await _one(client, name))
            if pods:
                bound_pods += await list_all(
                    client, PODS_PATH, Pod, "pods", fieldSelector=f"spec.nodeName={name}"
                )
        return (
            NodesAndPods(nodes, bound_pods, await list_claims(client, nodes)) if pods else NodesAndPods(nodes)
        )


async def connect(kubeconfig: str | None, context: str | None) -> "KubeClient":
    # Imported here: the HTTP client takes longer to load than a file takes to show.
    from kubeapi.client import KubeClient  # noqa: PLC0415
    from kubeapi.credentials import Credentials  # noqa: PLC0415

    return KubeClient(await Credentials.load(kubeconfig, context=context))


async def _one(client: "KubeClient", name: str) -> Node:
    from kubeapi.errors import UNREADABLE, NotFound  # noqa: PLC0415

    if not name:  # its path is that of the list
        raise make_unknown_node_error([name])
    try:
        return msgspec.json.decode(await client.get(make_node_path(name)), type=Node)
    except NotFound as error:
        raise make_unknown_node_error([name]) from error
    except UNREADABLE as error:
        raise InputError(f"{client.server} answers with something else than a node: {error}") from error


async def list_claims(client: "KubeClient", nodes: Iterable[Node]) -> list[ClaimObject] | None:
    """List ResourceClaims where a node serves them; None if they may not be listed."""
    from kubeapi.errors import Forbidden, NotFound  # noqa: PLC0415

    if not any(map(serves_claims, nodes)):
        return []
    try:
        return await list_all(client, CLAIMS_PATH, ClaimObject, "ResourceClaims")
    except (Forbidden, NotFound):
        return None


async def list_all(client: "KubeClient", path: str, kind: type[T], what: str, **params: str) -> list[T]:
    """List all objects of a kind.

    Raises:
        InputError: the server answers with something else.
        KubeApiError: no server, or no right to list them.
    """
    from kubeapi.errors import Gone  # noqa: PLC0415

    try:
        return await _pages(client, path, kind, what, params)
    except Gone:
        # The snapshot went away between two pages; what was read of it must not be mixed with another.
        return await _pages(client, path, kind, what, params)


async def _pages(
    client: "KubeClient", path: str, kind: type[T], what: str, params: dict[str, Any]
) -> list[T]:
    from kubeapi.errors import UNREADABLE  # noqa: PLC0415 - as above

    decode = make_list_decoder(kind)
    items: list[T] = []
    try:
        async for page in client.pages(path, **params):
            items += decode(page).items or ()
    except UNREADABLE as error:
        raise InputError(f"{client.server} lists something else than {what}: {error}") from error
    return items
