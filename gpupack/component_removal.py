"""`gpupack uninstall --component`: takes out a component that is not applied any more.

`kubectl apply -k` without the component takes back what it changed in other objects, and deletes nothing.
What it brought is found by its label. What its processes wrote on pods and Nodes goes once they have ended.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import suppress
from typing import Final

from allocator.names import NODE_HOST, POD_REQUEUED, QUEUE_GATE
from gpupack.components import COMPONENT_LABEL, COMPONENTS, FIRST, LAST, PART_OF, add_dependents
from gpupack.inventory.fetching import list_all
from gpupack.inventory.telemetry import is_node_daemon
from gpupack.uninstall import (
    CLAIMS_HIDDEN,
    CleanOutcome,
    InstalledPod,
    Traces,
    Uninstaller,
    describe_holders,
    find_kept_marks,
)
from kubeapi.client import KubeClient
from kubeapi.errors import Conflict, KubeApiError, NotFound
from kubeapi.objects import KubeObject, WritableNode
from kubeapi.paths import STRATEGIC_PATCH, make_pod_path, quote_segment
from scheduler_plugin.cache.pods import is_held_by_queue

ENDING_S: Final = 120.0
"""How long pods of workloads may take to end; their grace period is 30 seconds."""
POLL_S: Final = 0.5


class ComponentRemover:
    """Takes components out of one cluster.

    Args:
        client: may list and delete everything that a component brings, and list pods and resourceclaims. For
            `queue` it may patch pods; for `autoscale` delete pods, list and get nodes, patch nodes/status.
        force: also where pods hold GPU memory that need the component to go on.
    """

    def __init__(
        self,
        client: KubeClient,
        *,
        dry_run: bool = False,
        force: bool = False,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._client = client
        self._dry_run = dry_run
        self._force = force
        self._clock = clock
        self._sleep = sleep
        self._uninstaller = Uninstaller(client, dry_run=dry_run, find=find_marks_of_autoscale)

    async def remove(self, components: Collection[str]) -> AsyncIterator[CleanOutcome]:
        """Take out components, and those that go with them.

        Raises:
            KubeApiError: the API server refused; what was reported before that is gone.
        """
        names = []
        pods = await self._uninstaller.list_pods()
        for name in add_dependents(components):
            if why := self._explain_kept(name, pods):
                yield CleanOutcome(f"component {name}", why=why)
            else:
                names.append(name)
        if not names:
            return
        selector = f"{PART_OF},{COMPONENT_LABEL} in ({','.join(names)})"
        for resources in (FIRST, LAST):
            paths = []
            for resource in resources:
                async for path, outcome in self._delete(resource, selector):
                    paths.append(path)
                    yield outcome
            if not await self._are_gone(paths):
                why = f"something of that has not ended in {ENDING_S:g} s; run the command again then"
                yield CleanOutcome(f"the rest of {', '.join(names)}", why=why)
                return
        async for outcome in self._clean_pods_and_nodes(names):
            yield outcome

    def _explain_kept(self, component: str, pods: Collection[InstalledPod]) -> str:
        """Say why a component must not go: pods would lose their cards; empty if it may."""
        daemon = COMPONENTS[component].daemon
        if self._force or not daemon:
            return ""
        here = {pod.spec.node_name for pod in pods if is_node_daemon(pod, (daemon,))}
        if here and self._uninstaller.claims_hidden:
            return CLAIMS_HIDDEN
        there = [pod for pod in pods if pod.spec.node_name in here - {""}]
        return describe_holders(there, f"on nodes of {daemon}")

    async def _delete(self, resource: str, selector: str) -> AsyncIterator[tuple[str, CleanOutcome]]:
        """Delete what a selector finds, if the API server has the resource; yields paths and outcomes."""
        group, _, plural = resource.rpartition("/")
        try:
            found = await list_all(self._client, resource, KubeObject, plural, labelSelector=selector)
        except NotFound:
            return
        for each in found:
            namespace, name = each.metadata.namespace, each.metadata.name
            where = f"/namespaces/{quote_segment(namespace)}" if namespace else ""
            path = f"{group}{where}/{plural}/{quote_segment(name)}"
            if not self._dry_run:
                # So a workload is there until its pods are gone.
                options = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Foreground"}
                try:
                    await self._client.delete(path, options)
                except NotFound:
                    continue
            yield (
                path,
                CleanOutcome(f"{plural} {namespace}/{name}" if namespace else f"{plural} {name}", "it"),
            )

    async def _are_gone(self, paths: Collection[str]) -> bool:
        """Wait until objects are gone, workloads with their pods."""
        ends = self._clock() + ENDING_S
        for path in () if self._dry_run else paths:
            while True:
                try:
                    await self._client.get(path)
                except NotFound:
                    break
                except KubeApiError as error:
                    if not error.is_passing:
                        raise
                if self._clock() >= ends:
                    return False
                await self._sleep(POLL_S)
        return True

    async def _clean_pods_and_nodes(self, components: Collection[str]) -> AsyncIterator[CleanOutcome]:
        """Take off what the processes of components wrote, and name the pods that only they would bind."""
        pods = [pod for pod in await self._uninstaller.list_pods() if not pod.has_ended]
        if "queue" in components:
            for pod in pods:
                if is_held_by_queue(pod):
                    yield await self._release(pod)
        if "autoscale" in components:
            for outcome in await self._uninstaller.remove_placeholders(pods):
                yield outcome
            async for outcome in self._uninstaller.clean_nodes(await self._uninstaller.list_nodes(), ()):
                yield outcome
        schedulers = {COMPONENTS[name].scheduler for name in components} - {""}
        for pod in pods:
            if pod.spec.scheduler_name in schedulers and not pod.spec.node_name:
                why = f"only {pod.spec.scheduler_name} binds it; delete it, and its controller makes another"
                yield CleanOutcome(f"pod {pod.full_name}", why=why)

    async def _release(self, pod: InstalledPod) -> CleanOutcome:
        """Let a pod go that waits in a queue."""
        if not self._dry_run:
            patch = {
                "metadata": {"uid": pod.metadata.uid, "annotations": {POD_REQUEUED: None}},
                "spec": {"schedulingGates": [{"$patch": "delete", "name": QUEUE_GATE}]},
            }
            path = make_pod_path(pod.metadata.namespace, pod.metadata.name)
            try:
                with suppress(NotFound):
                    await self._client.patch(path, patch, STRATEGIC_PATCH)
            except Conflict as error:
                if error.cause != "uid":
                    raise
                why = "another pod has its name meanwhile; run the command again"
                return CleanOutcome(f"pod {pod.full_name}", why=why)
        return CleanOutcome(f"pod {pod.full_name}", "what made it wait in its queue")


def find_marks_of_autoscale(node: WritableNode) -> Traces:
    """Find what `gpupack autoscale` wrote on a Node."""
    labels = (NODE_HOST,) if NODE_HOST in (node.metadata.labels or {}) else ()
    return Traces((), find_kept_marks(node.metadata.annotations or {}), labels, ())
