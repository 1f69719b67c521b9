"""The page for a namespace's members, who may not list nodes: what the cluster tells, and who shows it.

Pods of other namespaces are sums, as in `gpupack.teams`; The rights that each side needs are in
docs/teams.md.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import msgspec

from allocator.errors import shown
from gpupack import __version__
from gpupack.dashboard import advice
from gpupack.dashboard.advice import PendingPod, SizeFit
from gpupack.dashboard.board import ClusterBoard, find_places
from gpupack.dashboard.page_hub import PageHub
from gpupack.dashboard.queues import explain_no_queues
from gpupack.dashboard.records import CardSums, NodeDetail, NodeTile, PodDetail, sum_cards
from gpupack.dashboard.trend import Trend, make_trend_point
from gpupack.errors import InputError
from gpupack.inventory.objects import make_unknown_node_error
from gpupack.teams.answers import hide_names, name_others
from gpupack.teams.asking import TOKEN_S, ask_as_member, make_member_token
from gpupack.teams.handlers import FIT_PARAMETERS
from gpupack.whatif.cluster import Cluster
from gpupack.whatif.questions import WorkBudget
from kubeapi.bounded import BoundedDict
from kubeapi.client import KubeClient
from kubeapi.errors import UNREADABLE, KubeApiError

KEPT_S: Final = 5.0
"""How long a page is kept for all members of a namespace."""
MOST_KEPT: Final = 200
EVERY_S: Final = 10.0
"""Time between two requests for the page."""
PATIENCE: Final = 20
"""An answer takes at most one part in so many of the time."""


class MemberPage(msgspec.Struct, frozen=True):
    """What the page shows to the members of a namespace.

    Attributes:
        places: Names of the namespace's pods on cards, by node.
    """

    nodes: list[NodeTile]
    places: dict[str, list[str]]
    pending: list[PendingPod]
    more: int
    fits: list[SizeFit]


class MemberPages:
    """Makes the pages in the cluster, in the thread that answers questions."""

    def __init__(self, board: ClusterBoard, clock: Callable[[], float] = time.monotonic) -> None:
        self._board = board
        self._clock = clock
        self._kept: BoundedDict[str, tuple[float, MemberPage]] = BoundedDict(MOST_KEPT)

    def answer_page(
        self, cluster: Cluster, namespace: str, _query: Mapping[str, str], budget: WorkBudget
    ) -> MemberPage:
        kept = self._kept.get(namespace)
        if kept is None or self._clock() >= kept[0]:
            page = self._make_page(cluster, namespace, budget)
            kept = self._clock() + KEPT_S, page
        self._kept[namespace] = kept
        return kept[1]

    def _make_page(self, cluster: Cluster, namespace: str, budget: WorkBudget) -> MemberPage:
        board = self._board
        places: dict[str, list[str]] = {}
        # Copies: the board changes on in its own thread.
        for node, pods in board.pod_memory.copy().items():
            own = sorted({pod.name for pod in pods if pod.namespace == namespace})
            if own:
                places[node] = own
        waiting = [pod for pod in advice.list_waiting_pods(cluster) if pod.metadata.namespace == namespace]
        pending = advice.explain_pods(cluster, waiting, board.find_queued, budget)
        fits = list(advice.count_fit_of_sizes(cluster))
        tiles = [tile for _, tile in sorted(board.tiles.copy().items())]
        texts = _Texts(pending, {tile.name: tile.remark for tile in tiles if tile.remark})
        texts = hide_names(texts, cluster, namespace, self._list_namespaces_now())
        told = [_hide_labels(tile, texts.remarks.get(tile.name, "")) for tile in tiles]
        return MemberPage(told, places, texts.pending, len(waiting) - len(pending), fits)

    def _list_namespaces_now(self) -> set[str]:
        return {namespace for namespace, _ in list(self._board.pods or ())}

    def answer_node(
        self, cluster: Cluster, namespace: str, query: Mapping[str, str], _budget: WorkBudget
    ) -> NodeDetail:
        """Answer `node`, whose name is `name`.

        Raises:
            InputError: there is no such node.
        """
        name = query.get("name", "")
        detail = self._board.make_detail(name)
        if detail is None:
            raise make_unknown_node_error([name])
        texts = hide_names(
            _Texts([], {name: detail.node.remark}), cluster, namespace, self._list_namespaces_now()
        )
        return NodeDetail(
            _hide_labels(detail.node, texts.remarks[name]),
            [msgspec.structs.replace(card, pods=_sum_others(card.pods, namespace)) for card in detail.cards],
            _sum_others(detail.unplaced, namespace),
        )


class _Texts(msgspec.Struct, frozen=True):
    """Texts that may name pods of other namespaces; remarks by node."""

    pending: list[PendingPod]
    remarks: dict[str, str]


def _hide_labels(tile: NodeTile, remark: str) -> NodeTile:
    return msgspec.structs.replace(tile, labels={}, remark=remark)


def _sum_others(pods: Sequence[PodDetail], namespace: str) -> list[PodDetail]:
    """Put one sum in place of the pods of other namespaces."""
    own = [pod for pod in pods if pod.namespace == namespace]
    others = [pod for pod in pods if pod.namespace != namespace]
    if not others:
        return own
    used = [pod.used for pod in others if pod.used is not None]
    total = PodDetail(
        namespace="",
        name=name_others(len(others)),
        uid="",
        units=sum(pod.units for pod in others),
        share="allocated",
        used=sum(used) if len(used) == len(others) else None,
        held="",
        compute=sum(pod.compute for pod in others),
    )
    return [*own, total]


class MemberClient:
    """Asks the process in the cluster as a member, with a new token well before the old one ends."""

    def __init__(self, client: KubeClient, namespace: str) -> None:
        self._client = client
        self._token = ""
        self._made_at = float("-inf")
        self.namespace = namespace

    async def renew_token(self) -> None:
        """Have a new token made where the one there is has lived half its time.

        Raises:
            Forbidden, NotFound: the user is no member.
        """
        if time.monotonic() - self._made_at >= TOKEN_S / 2:
            self._token = await make_member_token(self._client, self.namespace)
            self._made_at = time.monotonic()

    async def ask(self, question: str, query: dict[str, str | int]) -> bytes:
        """Ask; errors are those of `ask_as_member` and `make_member_token`."""
        await self.renew_token()
        return await ask_as_member(self._client, self._token, self.namespace, question, query)


class MemberBoard:
    """Keeps the nodes of the last page; attributes as of `ClusterBoard`."""

    def __init__(self) -> None:
        self.tiles: dict[str, NodeTile] = {}
        self.encoded: dict[str, msgspec.Raw] = {}
        self._changed: set[str] = set()

    def replace(self, tiles: Sequence[NodeTile]) -> None:
        before, self.tiles = self.tiles, {tile.name: tile for tile in tiles}
        self._changed |= before.keys() - self.tiles.keys()
        for name, tile in self.tiles.items():
            if before.get(name) != tile:
                self._changed.add(name)
                self.encoded[name] = msgspec.Raw(msgspec.json.encode(tile))
        for name in before.keys() - self.tiles.keys():
            del self.encoded[name]

    def refresh(self) -> set[str]:
        changed, self._changed = self._changed, set()
        return changed


class MemberDashboard:
    """Keeps up to date what the page shows to a member, and answers the page's questions."""

    def __init__(
        self,
        source: str,
        namespace: str,
        ask: Callable[[str, dict[str, str | int]], Awaitable[bytes]],
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._namespace = namespace
        self._ask = ask
        self._now_s = now_s
        self._places: dict[str, list[str]] = {}
        self._board = MemberBoard()
        self.is_ready = False
        self.hub = PageHub(
            self._board,
            Trend(),
            {
                "about": {"source": source, "version": __version__, "live": True},
                "problems": [],
                "pending": {"pods": [], "more": 0},
                "fits": [],
                "queues": explain_no_queues("Queues are shown to those who may list nodes."),
            },
        )

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            await self.refresh()
            await asyncio.sleep(max(EVERY_S, PATIENCE * (loop.time() - began)))

    async def refresh(self) -> None:
        told = (
            f"You may not list nodes: answered by gpupack in the cluster for namespace {self._namespace}. "
            "Pods of other namespaces are sums."
        )
        try:
            page = msgspec.json.decode(await self._ask("page", {}), type=MemberPage)
        except UNREADABLE as error:
            self.hub.set_part("problems", [f"The answer is not that of this version of gpupack: {error}"])
            return
        except (KubeApiError, InputError) as error:
            said = "The page is not up to date" if self.is_ready else "There is nothing to show"
            self.hub.set_part("problems", [f"{said}: {error}"])
            return
        self._places = page.places
        self._board.replace(page.nodes)
        self.is_ready = True
        self.hub.flush_nodes()
        self.hub.set_part("pending", {"pods": page.pending, "more": page.more})
        self.hub.set_part("fits", page.fits)
        self.hub.set_part("problems", [told])
        sums = sum((sum_cards(tile) for tile in page.nodes), CardSums())
        self.hub.trend.add(make_trend_point(self._now_s(), sums, len(page.pending) + page.more))
        self.hub.announce_point()

    def has_node(self, name: str) -> bool:
        return name in self._board.tiles

    async def describe_node(self, name: str) -> bytes:
        return await self._ask("node", {"name": name})

    def find_nodes_with_pod(self, text: str) -> list[str]:
        places = self._places.items()
        return find_places(
            text, ((node, f"{self._namespace}/{pod}") for node, pods in places for pod in pods)
        )

    async def explain_pod(self, namespace: str, pod: str) -> bytes:
        if namespace != self._namespace:
            raise InputError(f"namespace {shown(namespace)}; allowed: {shown(self._namespace)}")
        return await self._ask("why", {"pod": pod})

    async def count_fit(self, query: Mapping[str, str]) -> bytes:
        # Others would be taken for arguments of the request itself.
        asked = {name: query[name] for name in FIT_PARAMETERS if name in query}
        return await self._ask("fit", {"units": 1, **asked})
