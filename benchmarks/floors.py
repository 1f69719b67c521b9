"""A client that decides nothing and sends the writes that each pod needs: what no scheduler can save.

That client takes the gate away and names a node, each in turn, as `gpupack queue` does in batch mode. With
`bind` it sends the Binding too. For a pod without a gate it sends the Binding alone.
"""

import asyncio
from collections.abc import Iterator, Sequence
from threading import Thread
from typing import Any, Self

import uvloop

from allocator.names import QUEUE_GATE, QUEUE_NAME
from kubeapi.client import CONNECTIONS, KubeClient
from kubeapi.paths import JSON_PATCH, make_pod_path
from kubeapi.posting import make_post_client
from scheduler_plugin.queue.cache.node_pins import make_node_affinity


class BareClient:
    """Sends the writes beside the caller; a context manager that waits for their end.

    Args:
        kubeconfig: Path.
        pods: Pods that wait, as the API server lists them.
        nodes: Names of nodes with room.
        bind: Send the Bindings too.
    """

    def __init__(self, kubeconfig: str, pods: Sequence[Any], nodes: Sequence[str], *, bind: bool) -> None:
        self._kubeconfig = kubeconfig
        self._work = [(pod, nodes[number % len(nodes)]) for number, pod in enumerate(pods)]
        self._bind = bind
        self._thread = Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._send_all())

    async def _send_all(self) -> None:
        async with await KubeClient.connect(self._kubeconfig, posts=make_post_client) as client:
            work = iter(self._work)
            await asyncio.gather(*(self._send(client, work) for _ in range(CONNECTIONS)))

    async def _send(self, client: KubeClient, work: Iterator[tuple[Any, str]]) -> None:
        for pod, node in work:
            meta = pod["metadata"]
            namespace, name, uid = meta["namespace"], meta["name"], meta["uid"]
            if pod["spec"].get("schedulingGates"):
                await client.patch(
                    make_pod_path(namespace, name), release(uid, meta["labels"][QUEUE_NAME], node), JSON_PATCH
                )
            if self._bind:
                await client.bind(namespace, name, uid, node, {})


def release(uid: str, queue: str, node: str) -> Any:
    """The patch that takes the gate of a pod of a queue away and names its node; the pod has no affinity."""
    return [
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "test", "path": f"/metadata/labels/{QUEUE_NAME.replace('/', '~1')}", "value": queue},
        {"op": "test", "path": "/spec/schedulingGates", "value": [{"name": QUEUE_GATE}]},
        {"op": "remove", "path": "/spec/schedulingGates"},
        {"op": "add", "path": "/spec/affinity", "value": {"nodeAffinity": make_node_affinity([node])}},
    ]
