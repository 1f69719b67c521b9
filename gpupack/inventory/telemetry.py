"""Asks node daemons through the API server what their cards do.

None of this is written to Nodes: it changes every few seconds, and no scheduling decision uses it.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Final

import msgspec

from allocator.names import DAEMON_NAMES
from deviceplugin.gpus.api.telemetry import CardTelemetry
from gpupack.inventory.fetching import list_all
from gpupack.inventory.records import NodeRow
from kubeapi.objects import KubeObject, Pod
from kubeapi.paths import make_collection_path, make_pod_path

if TYPE_CHECKING:
    from kubeapi.client import KubeClient

TIMEOUT_S: Final = 5.0
AT_A_TIME: Final = 32
NAME_LABEL: Final = "app.kubernetes.io/name"
MAX_BYTES: Final = 4 * 2**20
"""Bytes of an answer that are read, by far more than a node's cards need."""
MOST: Final = 1e6
"""Largest value of a card that is believed, whatever its unit; those below 0 are not believed either."""


class _DaemonCard(msgspec.Struct):
    cards: tuple[str, ...]
    now: CardTelemetry


class _DaemonAnswer(msgspec.Struct):
    cards: tuple[_DaemonCard, ...]


@dataclass(frozen=True, slots=True)
class TelemetryByNode:
    """What the cards of some nodes do.

    Attributes:
        problem: why some of it is not known, one sentence; empty for nothing.
    """

    cards: Mapping[str, Mapping[str, CardTelemetry]] = field(default_factory=dict)
    problem: str = ""


async def find_daemons(client: "KubeClient", node: str, namespace: str) -> dict[str, Pod]:
    """Find the running pods of node daemons, by node.

    A user who may create a pod may give it any label and owner. So only pods in the namespace of the
    installation are believed. Where a node has several it is the oldest that is not terminating.

    Raises:
        InputError: the server answers with something else.
        KubeApiError: no right to list them, or no server.
    """
    params = {"labelSelector": f"{NAME_LABEL} in ({','.join(DAEMON_NAMES)})"}
    if node:
        params["fieldSelector"] = f"spec.nodeName={node}"
    path = make_collection_path(namespace, "pods")
    pods = await list_all(client, path, Pod, "pods", **params)
    found: dict[str, Pod] = {}
    for pod in sorted(pods, key=_rank_pod):
        if pod.spec.node_name and pod.status.phase == "Running" and is_node_daemon(pod):
            found.setdefault(pod.spec.node_name, pod)
    return found


def is_node_daemon(pod: Pod, names: Collection[str] = DAEMON_NAMES) -> bool:
    """Whether a pod has the label of a node daemon and belongs to a DaemonSet, in whatever namespace."""
    return pod.is_of_daemon_set and pod.metadata.get_label(NAME_LABEL) in names


def _rank_pod(pod: Pod) -> tuple[bool, float, str]:
    metadata = pod.metadata
    return metadata.is_terminating, metadata.created_at, metadata.name


async def ask_daemon(client: "KubeClient", pod: KubeObject, page: str, **params: int) -> bytes:
    """Ask a node daemon for a page, such as `telemetry`, which needs the right to `get` pods/proxy.

    The API server chooses the first port of the pod, which is the daemon's only one.

    Raises:
        KubeApiError: there is no way to it, it has no such page, or it answers more than `MAX_BYTES`.
    """
    path = f"{make_pod_path(pod.metadata.namespace, pod.metadata.name)}/proxy/{page}"
    return await client.get_at_most(path, MAX_BYTES, timeout_s=TIMEOUT_S, **params)


async def fetch_telemetry(client: "KubeClient", nodes: Collection[str], namespace: str) -> TelemetryByNode:
    """Ask the daemons of some nodes what their cards do. What fails is said, and takes nothing else down."""
    from gpupack.errors import InputError  # noqa: PLC0415
    from kubeapi.errors import UNREADABLE, KubeApiError  # noqa: PLC0415

    if not nodes:
        return TelemetryByNode()
    try:
        daemons = await find_daemons(client, next(iter(nodes)) if len(nodes) == 1 else "", namespace)
    except (InputError, KubeApiError, *UNREADABLE) as error:
        return TelemetryByNode(problem=f"what cards do is not known: {error}")
    gate, problems = asyncio.Semaphore(AT_A_TIME), []
    by_node: dict[str, Mapping[str, CardTelemetry]] = {}

    async def ask(node: str) -> None:
        pod = daemons.get(node)
        if pod is None:
            problems.append((node, "no pod of its daemon runs"))
            return
        try:
            async with gate:
                body = await ask_daemon(client, pod, "telemetry", history=0)
            by_node[node] = read_answer(body)
        except (KubeApiError, *UNREADABLE) as error:
            problems.append((node, str(error) or type(error).__name__))

    await asyncio.gather(*(ask(node) for node in nodes))
    return TelemetryByNode(by_node, _describe_problems(problems))


def read_answer(body: bytes) -> dict[str, CardTelemetry]:
    """Read what a daemon answers, by the UUID of a card or MIG instance; values that cannot be are left out.

    Raises:
        MsgspecError: it is something else. `kubeapi.errors.UNREADABLE` has all that may be raised.
    """
    answer = msgspec.json.decode(body, type=_DaemonAnswer)
    return {uuid: _drop_impossible(card.now) for card in answer.cards for uuid in card.cards}


def is_possible(value: float) -> bool:
    return 0 <= value <= MOST


def _drop_impossible(told: CardTelemetry) -> CardTelemetry:
    values = ((each.name, getattr(told, each.name)) for each in fields(told))
    wrong = [name for name, value in values if isinstance(value, float) and not is_possible(value)]
    return replace(told, **dict.fromkeys(wrong)) if wrong else told


def _describe_problems(problems: Sequence[tuple[str, str]]) -> str:
    from kubeapi.errors import make_printable, shorten  # noqa: PLC0415

    if not problems:
        return ""
    node, why = min(problems)
    more = f" and {len(problems) - 1} more nodes" if len(problems) > 1 else ""
    return f"what cards do is not known of {make_printable(f'{node}{more}: {shorten(why)}')}"


def add_telemetry(rows: Sequence[NodeRow], telemetry: TelemetryByNode) -> list[NodeRow]:
    return [_add_to_node(row, telemetry.cards.get(row.node, {})) for row in rows]


def _add_to_node(row: NodeRow, cards: Mapping[str, CardTelemetry]) -> NodeRow:
    if not cards:
        return row
    return replace(
        row, cards=tuple(replace(card, telemetry=cards.get(card.uuid or "")) for card in row.cards)
    )
