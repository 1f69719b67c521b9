"""Writes what was planned: placeholder pods, their condition, and annotations and labels of Nodes.

No write does harm when it is done twice. Names of placeholders follow from what they ask for. A deletion
names a UID, and a patch of a Node its version. What fails is done again in the next pass.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import structlog

from allocator.names import NODE_HOST, PLACEHOLDER_FOR
from gpupack.autoscale.placeholders import MESSAGE, Changes
from gpupack.autoscale.scale_down import NodeChange
from kubeapi.errors import Conflict, KubeApiError, NotFound
from kubeapi.eviction import make_immediate_deletion
from kubeapi.object_api import ObjectApi
from kubeapi.objects import Node
from kubeapi.paths import make_collection_path, make_node_path, make_pod_path
from kubeapi.pod_scheduled import make_refusal, write_scheduled

NODES_EACH_PASS: Final = 100
"""Nodes that are annotated, or labelled, in one pass: thousands must not be written at once."""

log = structlog.get_logger(__name__)


class Writer:
    """Writes for as long as this process may.

    Args:
        may: Whether this process still leads; asked before each request.

    Attributes:
        failed: Writes that the API server refused, or did not answer, by what they were.
        trouble: The last refusal, in words; empty after a pass without one.
    """

    def __init__(self, api: ObjectApi, namespace: str, may: Callable[[], bool], timeout_s: float) -> None:
        self._api = api
        self._namespace = namespace
        self._may = may
        self._timeout_s = timeout_s
        self.failed: Counter[str] = Counter()
        self.trouble = ""

    async def write_labels(self, values: Mapping[str, str]) -> None:
        """Label the nodes that placeholders keep out, by name; this begins a pass."""
        self.trouble = ""
        for name, value in list(values.items())[:NODES_EACH_PASS]:
            body = {"metadata": {"labels": {NODE_HOST: value}}}
            await self._do("label", name, self._patch(make_node_path(name), body))

    async def write_placeholders(self, changes: Changes) -> None:
        """Delete, create, mark and rename placeholders.

        Unneeded placeholders are deleted first, so that there are never more than planned.
        """
        for pod in changes.delete:
            name = pod.metadata.name
            await self._do("delete", name, self._delete(name, make_immediate_deletion(pod.metadata.uid)))
        for name, placeholder in changes.create.items():
            number = int(name.rpartition("-")[2])
            if await self._do("create", name, self._create(placeholder.manifest(self._namespace, number))):
                await self._do("mark", name, self._mark(name))
        for name in changes.mark:
            await self._do("mark", name, self._mark(name))
        for name, stands_for in changes.rename.items():
            body = {"metadata": {"annotations": {PLACEHOLDER_FOR: stands_for}}}
            await self._do("rename", name, self._patch(make_pod_path(self._namespace, name), body))

    async def write_nodes(self, changes: Iterable[NodeChange], nodes: Mapping[str, Node]) -> None:
        """Write annotations of Nodes, each on the resourceVersion that the decision was based on."""
        for change in list(changes)[:NODES_EACH_PASS]:
            node = nodes.get(change.name)
            if node is None:
                continue
            body = change.patch(node.metadata.resource_version)
            await self._do("node", change.name, self._patch(make_node_path(change.name), body))

    async def _delete(self, name: str, options: Any) -> None:
        await self._api.delete(make_pod_path(self._namespace, name), options, timeout_s=self._timeout_s)

    async def _create(self, manifest: Any) -> None:
        path = make_collection_path(self._namespace, "pods")
        await self._api.post(path, manifest, timeout_s=self._timeout_s)

    async def _mark(self, name: str) -> None:
        condition = make_refusal("Unschedulable", MESSAGE, time.time())
        await write_scheduled(self._api, self._namespace, name, condition, timeout_s=self._timeout_s)

    async def _patch(self, path: str, body: Any) -> None:
        await self._api.patch(path, body, timeout_s=self._timeout_s)

    async def _do(self, what: str, name: str, work: Any) -> bool:
        if not self._may():
            work.close()
            return False
        try:
            await work
        except (NotFound, Conflict) as error:
            # Somebody was faster; the watch brings what is there now.
            log.debug("not written", what=what, name=name, error=str(error))
            return False
        except KubeApiError as error:
            self.failed[what] += 1
            self.trouble = f"{what} {name}: {error}"
            log.warning("not written", what=what, name=name, error=str(error))
            return False
        log.info("written", what=what, name=name)
        return True
