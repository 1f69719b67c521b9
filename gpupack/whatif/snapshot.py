"""Writes the cluster as a trace: nodes.csv and pods.csv for `gpupack simulate`."""

import csv
import hashlib
import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Final

from allocator.names import MIB, QUEUE_NAME
from allocator.request import WHOLE, ContainerRequest, PodRequest
from allocator.texts import count_of
from gpupack.errors import InputError
from gpupack.whatif.cluster import Cluster, read_requested_unit
from gpupack.whatif.unknown_requests import drop_unknown_policies
from kubeapi.metadata import parse_time
from kubeapi.objects import Pod
from scheduler_plugin.cache.charges import NodeRecord
from scheduler_plugin.cache.claim_charges import read_claim, sum_shares
from scheduler_plugin.cache.pods import parse_pod_request, sum_host_requests, sum_other_requests
from scheduler_plugin.simulator.trace import (
    CARD,
    CARD_UNITS_COLUMN,
    COMPUTE_COLUMN,
    COMPUTE_LIMIT_COLUMN,
    CONTAINERS_COLUMN,
    CREATED_COLUMN,
    DELETED_COLUMN,
    GPU_UNITS_COLUMN,
    MODELS_COLUMN,
    NODE_COLUMNS,
    POD_COLUMNS,
    QUEUE_COLUMN,
    SCHEDULED_COLUMN,
)

FILES: Final = ("nodes.csv", "pods.csv")
NODE_HEADER: Final = (*NODE_COLUMNS, CARD_UNITS_COLUMN, COMPUTE_LIMIT_COLUMN)
POD_HEADER: Final = (
    *POD_COLUMNS,
    MODELS_COLUMN,
    QUEUE_COLUMN,
    CREATED_COLUMN,
    SCHEDULED_COLUMN,
    DELETED_COLUMN,
    GPU_UNITS_COLUMN,
    CONTAINERS_COLUMN,
    COMPUTE_COLUMN,
)

_Note = tuple[str, str, str]
"""A sentence in three parts: its beginning for several, its beginning for one, and the rest."""
_SEVERAL_KINDS: Final = (
    "nodes have",
    "node has",
    "cards of several kinds: each kind is written as a node of its own",
)
_LEFT_OUT: Final = (
    "pods are",
    "pod is",
    "left out: what is asked for cannot be given, or is in another unit",
)
_NO_MODEL: Final = (
    "pods admit",
    "pod admits",
    "no model that is there, and in the file any model",
)
_CLAIMS_LEFT_OUT: Final = (
    "ResourceClaims are",
    "ResourceClaim is",
    "left out: of no pod, or of one that also asks by limits",
)
_BY_CLAIMS: Final = (
    "pods with ResourceClaims ask",
    "pod with ResourceClaims asks",
    "in the file by limits for as much, of any model",
)

_DIGEST: Final = 6

Row = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A cluster as two tables.

    Attributes:
        nodes: Rows under `NODE_HEADER` and the names of further resources.
        pods: Rows under `POD_HEADER` and those names, in the order in which they came.
        notes: What the tables do not say as it is, a sentence each.
    """

    nodes: tuple[Row, ...]
    pods: tuple[Row, ...]
    notes: tuple[str, ...]
    others: tuple[str, ...] = ()

    def write(self, folder: Path) -> list[Path]:
        """Write both files into a folder, which is made where it is not there.

        Raises:
            OSError: they cannot be written.
            InputError: there is a file of that name.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except FileExistsError as error:
            raise InputError(f"{folder} is a file; allowed: a folder") from error
        written = []
        for name, header, rows in zip(FILES, (NODE_HEADER, POD_HEADER), (self.nodes, self.pods), strict=True):
            text = StringIO()
            writer = csv.writer(text, lineterminator="\n")
            writer.writerow((*header, *self.others))
            writer.writerows(rows)
            path = folder / name
            path.write_text(text.getvalue(), encoding="utf-8")
            written.append(path)
        return written


def make_snapshot(
    cluster: Cluster, *, hidden: bool = False, unit_mib: int | None = None, others: Sequence[str] = ()
) -> Snapshot:
    """Write a cluster down as a trace.

    Args:
        hidden: Names of nodes, pods and queues as digests: with a key that nobody keeps, equal ones alike.
        unit_mib: MiB of a unit to count in, as if the daemons ran with that; None: as they do.
    """
    name_of = _make_hider() if hidden else _plain
    scale = _Scale(cluster.unit_mib, unit_mib or cluster.unit_mib)
    notes: Counter[_Note] = Counter()
    models = {model for model in cluster.state.nodes.model_names if model}
    usual = _most_common_card_units(cluster, scale)
    claimed = _read_claims(cluster, notes)
    rows = [
        (*row, *(dict(sum_other_requests(pod)).get(name, 0) for name in others))
        for uid, pod in cluster.pods.items()
        if (row := _pod(cluster, pod, claimed.get(uid), name_of, scale, usual, models, notes))
    ]
    rows.sort(key=lambda row: (row[POD_HEADER.index(CREATED_COLUMN)], row[0]))
    written = tuple(_nodes(cluster, claimed, name_of, scale, notes, others))
    told = tuple(
        f"{count} {one if count == 1 else many} {text}" for (many, one, text), count in sorted(notes.items())
    )
    return Snapshot(written, tuple(rows), told + cluster.list_omissions(named=not hidden), tuple(others))


@dataclass(frozen=True, slots=True)
class _Scale:
    """From units as they are to units of another size: cards are rounded down, requests up."""

    now_mib: int
    then_mib: int

    def card(self, units: int) -> int:
        return units * self.now_mib // self.then_mib

    def asked(self, units: int) -> int:
        return -(-units * self.now_mib // self.then_mib)


def _plain(_kind: str, name: str) -> str:
    return name


def _make_hider() -> Callable[[str, str], str]:
    key = secrets.token_bytes(16)

    def hide(kind: str, name: str) -> str:
        digest = hashlib.blake2b(name.encode(), key=key, digest_size=_DIGEST).hexdigest()
        return f"{kind}-{digest}" if name else ""

    return hide


def _most_common_card_units(cluster: Cluster, scale: _Scale) -> int:
    sizes = cluster.state.nodes.size
    counts = Counter(sizes[sizes > 0].tolist())
    return max(1, scale.card(max(counts, key=lambda size: (counts[size], size)))) if counts else 1


def _read_claims(cluster: Cluster, notes: Counter[_Note]) -> dict[str, PodRequest]:
    """Read what pods have by claims as if they asked for it by limits, a container for each share, by UID.

    A claim that several pods share is the first one's.
    """
    shares: dict[str, list[ContainerRequest]] = {}
    for claim in cluster.claims.values():
        allocated = read_claim(claim, cluster.unit_mib)
        uid = next((uid for uid in claim.pods if uid in cluster.pods), None)
        if not allocated:
            continue
        if uid is None or read_requested_unit(cluster.pods[uid]) is not None:
            notes[_CLAIMS_LEFT_OUT] += 1
            continue
        for node, mine in allocated.items():
            record = cluster.state.node_records.get(node, NodeRecord(node))
            for share in mine.shares:
                cards = sum_shares((share,), record.uuids, record.sizes)
                units = max((units for units, _ in cards.values()), default=share.units or 0)
                compute = min(share.compute, WHOLE)
                asking = shares.setdefault(uid, [])
                asking += [ContainerRequest(str(len(asking)), units, "main", compute)] if units else []
    if shares:
        notes[_BY_CLAIMS] = len(shares)
    return {uid: PodRequest(tuple(asking)) for uid, asking in shares.items() if asking}


def _nodes(
    cluster: Cluster,
    claimed: Mapping[str, PodRequest],
    name_of: Callable[[str, str], str],
    scale: _Scale,
    notes: Counter[_Note],
    others: Sequence[str],
) -> list[Row]:
    """Make a row for each node with cards; one whose cards differ in model or size becomes several."""
    arrays = cluster.state.nodes
    besides = _free_beside_written_pods(cluster, claimed, others)
    rows: list[Row] = []
    for name in arrays.index.sorted_names:
        row = arrays.rows[name]
        count = int(arrays.cards[row])
        if not arrays.usable[row] or not count:
            continue
        kinds = Counter(
            (arrays.model_names[model] if model >= 0 else "", scale.card(size))
            for model, size in zip(
                arrays.model[row, :count].tolist(), arrays.size[row, :count].tolist(), strict=True
            )
        )
        if len(kinds) > 1:
            notes[_SEVERAL_KINDS] += 1
        cpu, memory, *left = besides[name]
        for number, ((model, size), cards) in enumerate(sorted(kinds.items())):
            if size:
                shown = name_of("node", name) + (f"-{number}" if len(kinds) > 1 else "")
                part = [max(0, amount) * cards // count for amount in (cpu, memory, *left)]
                rows.append((shown, *part[:2], cards, model, size, int(arrays.compute_limit[row]), *part[2:]))
    return rows


def _free_beside_written_pods(
    cluster: Cluster, claimed: Mapping[str, PodRequest], others: Sequence[str]
) -> dict[str, list[int]]:
    """Count what pods without a row leave of every node: thousandths of a core, MiB, further resources."""
    left = {name: cluster.state.node_records[name].capacity for name in cluster.state.nodes.rows}
    for uid, record in cluster.state.pods.items():
        is_written = record.request is not None or uid in claimed
        if record.node in left and not record.ended and not is_written and uid in cluster.pods:
            left[record.node] = left[record.node].subtract(record.amounts)
    return {
        node: [amounts.cpu_milli, amounts.memory_bytes // MIB, *(amounts.get(name) for name in others)]
        for node, amounts in left.items()
    }


def _pod(
    cluster: Cluster,
    pod: Pod,
    claimed: PodRequest | None,
    name_of: Callable[[str, str], str],
    scale: _Scale,
    usual: int,
    models: set[str],
    notes: Counter[_Note],
) -> Row | None:
    """Make the row of a pod, None if it asks for no cards that can be given; `claimed` is from its claims."""
    if claimed is None and read_requested_unit(pod) is None:
        return None
    request = claimed or parse_pod_request(drop_unknown_policies(pod), cluster.state.resource).request
    if request is None:
        notes[_LEFT_OUT] += 1
        return None
    cards, units, milli = _cards(request, scale, usual)
    cpu, memory = sum_host_requests(pod)
    created = _whole_seconds(pod.metadata.creation_timestamp or "")
    ended = _ended(pod)
    spec = ""
    if not request.selector.admits_all:
        spec = "|".join(sorted(model for model in models if request.selector.admits_model(model)))
        if not spec:
            notes[_NO_MODEL] += 1
    started = _whole_seconds(pod.status.start_time)
    return (
        name_of("pod", pod.full_name),
        cpu,
        -(-memory // MIB),
        cards,
        milli,
        spec,
        name_of("queue", pod.metadata.get_label(QUEUE_NAME) or ""),
        created,
        max(started, created) if started else "",
        max(ended, started, created) if ended else "",
        units,
        "apart" if request.rules.apart else "",
        "|".join(str(demand.compute) for demand in request.demands) if request.asks_compute else "",
    )


def _cards(request: PodRequest, scale: _Scale, usual: int) -> tuple[int, str | int, int]:
    """Count the cards of all containers, what each asks of them, and thousandths of a usual card.

    A pod with several containers has the mean of their thousandths: together they are what all cards have.
    """
    demands = request.demands
    cards = sum(demand.cards for demand in demands)
    if request.percent:
        percent = "|".join(f"{demand.per_card}%" for demand in demands)
        milli = sum(demand.per_card * demand.cards for demand in demands) * CARD // WHOLE // cards
        return cards, percent, min(CARD, max(1, milli))
    units = [scale.asked(demand.per_card) for demand in demands]
    total = sum(each * demand.cards for each, demand in zip(units, demands, strict=True))
    amounts: str | int = units[0] if len(units) == 1 else "|".join(map(str, units))
    return cards, amounts, min(CARD, max(1, total * CARD // usual // cards))


def _ended(pod: Pod) -> int:
    """Return when a pod ended, in seconds; 0 if it runs or that is unknown."""
    if not pod.has_ended:
        return 0
    times = [
        _whole_seconds(each.state.terminated.finished_at)
        for each in pod.status.container_statuses or ()
        if each.state is not None and each.state.terminated is not None
    ]
    return max(times, default=0)


def _whole_seconds(time: str | None) -> int:
    return max(0, int(parse_time(time) or 0))


def describe_snapshot(snapshot: Snapshot, written: Sequence[Path]) -> list[str]:
    nodes, pods = count_of(len(snapshot.nodes), "node"), count_of(len(snapshot.pods), "pod")
    return [f"wrote {written[0]} ({nodes}) and {written[1]} ({pods})", *snapshot.notes]
