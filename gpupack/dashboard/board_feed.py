"""Feeds the board from a cluster's watches."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from allocator.claims import CLAIMS_PATH, ClaimObject, make_claims_path
from gpupack.dashboard.board import ClusterBoard
from gpupack.inventory.fetching import NODES_PATH, PODS_PATH
from gpupack.whatif.objects import KubeNode, KubePod
from kubeapi.client import KubeClient
from kubeapi.errors import KubeApiError
from kubeapi.paths import quote_segment
from kubeapi.reflect import Kind, Reflector, Sink
from scheduler_plugin.queue.cache.pod_groups import POD_GROUPS_PATH, PodGroup, make_pod_groups_path
from scheduler_plugin.queue.controller.watching import watch_pod_groups

T = TypeVar("T")

WATCH_S: Final = 120
"""A watch ends after so long, which is also when silence is noticed."""


class _BoardSink(Sink[T]):
    """Gives objects of one kind to the board.

    Args:
        put: takes one that is new or has changed.
        changed: called after every change.
    """

    def __init__(
        self,
        replace: Callable[[Sequence[T]], None],
        put: Callable[[T], None],
        drop: Callable[[T], None],
        changed: Callable[[], None],
    ) -> None:
        self._replace = replace
        self._put = put
        self._drop = drop
        self._changed = changed
        self._error: KubeApiError | None = None
        self._failed_after: float | None = None
        self.reflector: Reflector[T] | None = None
        self.listed = False

    @property
    def error(self) -> KubeApiError | None:
        """Fault that keeps the objects from being up to date; None once the server answers again."""
        contact = self.reflector.last_contact if self.reflector is not None else None
        return self._error if contact == self._failed_after else None

    def replace(self, items: Sequence[T], _resource_version: str) -> None:
        self._error, self.listed = None, True
        self._replace(items)
        self._changed()

    def event(self, kind: Kind, item: T, _resource_version: str) -> None:
        (self._drop if kind == "DELETED" else self._put)(item)
        self._changed()

    def disconnected(self, error: KubeApiError) -> None:
        self._error = error
        self._failed_after = self.reflector.last_contact if self.reflector is not None else None
        self._changed()


class _GroupSink(_BoardSink[PodGroup]):
    """Gives PodGroups to the board, or why they cannot be read."""

    def __init__(self, board: ClusterBoard, changed: Callable[[], None]) -> None:
        super().__init__(board.replace_groups, board.put_group, board.drop_group, changed)
        self._board = board
        self.fault = ""

    def note_fault(self, fault: str) -> None:
        self.fault = fault
        self._board.set_groups_fault(fault)
        self._changed()


class BoardFeed:
    """Keeps a board up to date with a cluster.

    Args:
        namespace: whose pods to read, None for all.
        changed: called after every change, also of what cannot be read.
    """

    def __init__(
        self, client: KubeClient, board: ClusterBoard, namespace: str | None, changed: Callable[[], None]
    ) -> None:
        self._namespace = namespace
        self._nodes: _BoardSink[KubeNode] = _BoardSink(
            board.replace_nodes, board.put_node, board.drop_node, self._nodes_changed
        )
        self._pods: _BoardSink[KubePod] = _BoardSink(
            board.replace_pods,
            board.put_pod,
            board.drop_pod,
            self._pods_changed,
        )
        self._board = board
        self._changed = changed
        self._claims_wanted = asyncio.Event()
        self._claims: _BoardSink[ClaimObject] = _BoardSink(
            board.replace_claims, board.put_claim, board.drop_claim, changed
        )
        self._groups_wanted = asyncio.Event()
        self._groups = _GroupSink(board, changed)
        self._client = client
        self._groups_path = make_pod_groups_path(quote_segment(namespace)) if namespace else POD_GROUPS_PATH
        path = f"/api/v1/namespaces/{quote_segment(namespace)}/pods" if namespace else PODS_PATH
        claims = make_claims_path(quote_segment(namespace)) if namespace else CLAIMS_PATH
        self._nodes.reflector = Reflector(client, NODES_PATH, KubeNode, self._nodes, watch_s=WATCH_S)
        self._pods.reflector = Reflector(client, path, KubePod, self._pods, watch_s=WATCH_S)
        self._claims.reflector = Reflector(client, claims, ClaimObject, self._claims, watch_s=WATCH_S)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for reflector in (self._nodes.reflector, self._pods.reflector):
                if reflector is not None:
                    group.create_task(reflector.run())
            group.create_task(self._follow_claims())
            group.create_task(self._follow_groups())

    def _nodes_changed(self) -> None:
        if self._board.serves_claims:
            self._claims_wanted.set()
        self._changed()

    def _pods_changed(self) -> None:
        if self._board.names_groups:
            self._groups_wanted.set()
        self._changed()

    async def _follow_groups(self) -> None:
        """Follow PodGroups once a pod names one."""
        await self._groups_wanted.wait()
        await watch_pod_groups(self._client, self._groups, path=self._groups_path)

    async def _follow_claims(self) -> None:
        """Follow ResourceClaims once a node serves them; without the right to, cards look emptier."""
        await self._claims_wanted.wait()
        if self._claims.reflector is not None:
            await self._claims.reflector.run()

    @property
    def is_synced(self) -> bool:
        """Whether the nodes are there, and the pods are or cannot be had."""
        return self._nodes.listed and (self._pods.listed or self._pods.error is not None)

    @property
    def is_failing(self) -> bool:
        return self._nodes.error is not None or self._pods.error is not None

    def list_problems(self) -> list[str]:
        """List why the page does not show the current cluster, a sentence each."""
        found = []
        where = f" in namespace {self._namespace}" if self._namespace else ""
        for sink, what, loss in (
            (self._nodes, "nodes", "there are no cards to show"),
            (self._pods, f"pods{where}", "cards are shown without their pods"),
            (self._claims, f"claims{where}", "cards are shown without those that wait for their node"),
        ):
            if sink.error is not None:
                said = "are not up to date" if sink.listed else f"cannot be read, so {loss}"
                found.append(f"{what.capitalize()} {said}: {sink.error}")
        if self._groups.fault:
            loss = "pods whose gangs' sizes they say are asked about one by one"
            found.append(f"PodGroups{where} cannot be read, so {loss}: {self._groups.fault}")
        if self._namespace:
            found.append(f"Only pods of namespace {self._namespace} are read: others on a card have no name.")
        return found
