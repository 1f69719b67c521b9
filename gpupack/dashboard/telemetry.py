"""Telemetry of the cards of one node, read from its daemon while a page shows the node."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec

from allocator.names import SYSTEM_NAMESPACE
from gpupack.errors import InputError
from gpupack.inventory.telemetry import MAX_BYTES, ask_daemon, find_daemons, is_possible
from kubeapi.bounded import BoundedDict
from kubeapi.client import KubeClient
from kubeapi.errors import UNREADABLE, KubeApiError, describe_unreachable, shorten
from kubeapi.objects import Pod
from kubeapi.streams import read_at_most

ANSWER_S: Final = 4.0
"""How long one answer serves all pages; daemons measure every five seconds."""
POD_S: Final = 60.0
"""How long the pod of a daemon that answers is not looked up again."""
ASKED_AT_ONCE: Final = 4
"""Daemons that are asked at a time: the way through the API server is also that of our lists and watches."""
MAX_KEPT: Final = 256
TIMEOUT: Final = aiohttp.ClientTimeout(total=5)


OWN_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
"""Where the kubelet writes a pod's own namespace."""


class CardCourse(msgspec.Struct, frozen=True):
    """What one physical card does, and did during the last minutes; see `/telemetry`.

    Attributes:
        cards: UUIDs of what its node lists for it.
        history: columns of equal length, oldest first: `age_s`, and values by name.
    """

    uuid: str
    cards: tuple[str, ...]
    now: dict[str, float | tuple[str, ...]]
    history: dict[str, tuple[float | None, ...]]


class NodeCourse(msgspec.Struct, frozen=True):
    """What the cards of one node do; `error` says why that is not known, empty for known."""

    cards: tuple[CardCourse, ...] = ()
    error: str = ""


class TelemetrySource:
    """Asks node daemons what their cards do, one node at a time.

    Args:
        session: to ask pods directly, at `port`; None: through the API server.
    """

    def __init__(
        self,
        client: KubeClient,
        session: aiohttp.ClientSession | None = None,
        port: int = 0,
        namespace: str = SYSTEM_NAMESPACE,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._session = session
        self._port = port
        self._namespace = namespace
        self._now_s = now_s
        self._pods: BoundedDict[str, tuple[float, Pod]] = BoundedDict(MAX_KEPT)
        self._answers: BoundedDict[str, tuple[float, NodeCourse]] = BoundedDict(MAX_KEPT)
        self._asking: dict[str, asyncio.Task[NodeCourse]] = {}
        self._turns = asyncio.Semaphore(ASKED_AT_ONCE)

    async def fetch(self, node: str) -> NodeCourse:
        """Read the telemetry of a node, once for all concurrent callers, or return a recent answer."""
        kept = self._answers.get(node)
        if kept is not None and self._now_s() - kept[0] < ANSWER_S:
            return kept[1]
        if node not in self._asking:
            task = self._asking[node] = asyncio.create_task(self._fetch(node))
            task.add_done_callback(lambda _: self._asking.pop(node))
        return await asyncio.shield(self._asking[node])

    async def _fetch(self, node: str) -> NodeCourse:
        async with self._turns:
            answer = await self._ask_daemon(node)
        self._answers[node] = self._now_s(), answer
        return answer

    async def _ask_daemon(self, node: str) -> NodeCourse:
        try:
            pod = await self._find_pod(node)
            if pod is None:
                return NodeCourse(error="no pod of the node's daemon runs")
            return _drop_impossible(msgspec.json.decode(await self._read(pod), type=NodeCourse))
        except aiohttp.ClientConnectorError as error:
            why = f"{error.host}:{error.port} does not answer: {describe_unreachable(error)}"
        except UnicodeError:
            why = "the daemon answers something else than JSON"
        except (InputError, KubeApiError, aiohttp.ClientError, TimeoutError, *UNREADABLE) as error:
            why = str(error) or type(error).__name__
        self._pods.pop(node, None)
        return NodeCourse(error=shorten(why))

    async def _find_pod(self, node: str) -> Pod | None:
        kept = self._pods.get(node)
        if kept is not None and self._now_s() - kept[0] < POD_S:
            return kept[1]
        pod = (await find_daemons(self._client, node, self._namespace)).get(node)
        if pod is not None:
            self._pods[node] = self._now_s(), pod
        return pod

    async def _read(self, pod: Pod) -> bytes:
        if self._session is None:
            return await ask_daemon(self._client, pod, "telemetry", history=1)
        host = f"[{pod.status.pod_ip}]" if ":" in pod.status.pod_ip else pod.status.pod_ip
        url = f"http://{host}:{self._port}/telemetry"
        async with self._session.get(url, timeout=TIMEOUT, allow_redirects=False) as answer:
            answer.raise_for_status()
            return await read_at_most(url, answer.content.iter_any(), MAX_BYTES)


def _drop_impossible(course: NodeCourse) -> NodeCourse:
    """Leave out values that no card can have."""
    cards = tuple(
        msgspec.structs.replace(
            card,
            now={
                name: value
                for name, value in card.now.items()
                if not isinstance(value, float) or is_possible(value)
            },
            history={
                name: tuple(value if value is None or is_possible(value) else None for value in column)
                for name, column in card.history.items()
            },
        )
        for card in course.cards
    )
    return msgspec.structs.replace(course, cards=cards)


def read_own_namespace(file: Path = OWN_NAMESPACE) -> str:
    """Read the namespace of the pod that this process runs in, empty outside of pods."""
    try:
        return file.read_text().strip()
    except (OSError, UnicodeError):
        return ""


def explain_no_telemetry(text: str) -> Callable[[str], Any]:
    """Make the stand-in for a source when there is no daemon to ask."""

    async def fetch(_node: str) -> NodeCourse:
        return NodeCourse(error=text)

    return fetch
