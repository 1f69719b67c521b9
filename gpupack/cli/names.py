"""Names that a shell proposes for arguments: nodes, pods and queues of the cluster that is asked.

A proposal is a help and no answer. Without a cluster, without the right to list, or after `DEADLINE_S`
nothing is proposed, and no error is shown.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Final

import click

from allocator.names import QUEUE_SERVICE, SYSTEM_NAMESPACE
from kubeapi.paths import NODES_PATH, make_collection_path

if TYPE_CHECKING:
    from kubeapi.client import KubeClient

DEADLINE_S: Final = 3.0
MOST: Final = 500
"""Names that are proposed at most; a shell shows no more."""


def complete_nodes(context: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    return _matching(incomplete, _ask_cluster(context, lambda client: _names(client, NODES_PATH)))


def complete_pods(context: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Propose pods of the namespace that the command asks about; NAMESPACE/ gives those of another."""
    named, slash, _ = incomplete.rpartition("/")

    async def names(client: "KubeClient") -> list[str]:

        namespace = named or context.params.get("namespace") or client.namespace or "default"
        found = await _names(client, make_collection_path(namespace, "pods"))
        return [f"{named}{slash}{name}" for name in found]

    return _matching(incomplete, _ask_cluster(context, names))


def complete_queues(context: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    async def names(_client: "KubeClient") -> list[str]:
        from gpupack import queuestatus

        options = context.params
        if url := options.get("url"):
            raw = await queuestatus.fetch_from(url)
        else:
            raw = await queuestatus.fetch(
                options.get("kubeconfig"),
                options.get("context"),
                options.get("namespace") or SYSTEM_NAMESPACE,
                options.get("service") or QUEUE_SERVICE,
            )
        return [queue.name for queue in queuestatus.read(raw).queues]

    return _matching(incomplete, _ask_cluster(context, names))


def _matching(incomplete: str, names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if name.startswith(incomplete))


def _ask_cluster(
    context: click.Context, names: "Callable[[KubeClient], Coroutine[Any, Any, list[str]]]"
) -> list[str]:
    from gpupack.inventory.fetching import connect
    from gpupack.logs import configure

    async def work() -> list[str]:
        async with asyncio.timeout(DEADLINE_S):
            async with await connect(
                context.params.get("kubeconfig"), context.params.get("context")
            ) as client:
                return await names(client)

    configure("critical")  # a log line would stand in the middle of the command line
    try:
        return asyncio.run(work())
    except Exception:  # noqa: BLE001 - whatever it is, the shell goes on without proposals
        return []


async def _names(client: "KubeClient", path: str) -> list[str]:
    from kubeapi.objects import KubeObject, make_list_decoder

    raw = await client.get(path, limit=str(MOST))
    return [item.metadata.name for item in make_list_decoder(KubeObject)(raw).items or ()]
