"""Pods that wait for cards, and the reason with its numbers, for people. Pure.

kube-scheduler's own message has the reason without numbers (`placement.reasons`): it is written into the pod,
and a change there would queue the pod again at once. What is said here goes into Events, logs and metrics.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from allocator.names import PLACEHOLDER_LABEL
from scheduler_plugin.cache.arrays import RowArray
from scheduler_plugin.cache.objects import Metadata
from scheduler_plugin.cache.pods import PodRecord
from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.scheduling.available import offered, say_widened, widened
from scheduler_plugin.scheduling.reasons import FilterReason, amount, demanded, event_text, memory
from scheduler_plugin.scheduling.request import Query, units_by_card

TELL_AGAIN_S: Final = 1800.0
"""A reason that lasts is told again after so long: Kubernetes keeps an Event for an hour, by default."""

INVALID: Final = "invalid_request"
NOT_REFUSED: Final = "not_refused"

_SPARE: Final = 1000
_SHOWN: Final = 12


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why no node will do for a pod.

    Attributes:
        metadata: Of the pod.
        counts: Nodes by what is wrong with them; empty where the request itself is wrong.
        query: What the pod asks for.
        rows: The nodes that are known of those that kube-scheduler asked about.
        problem: What is wrong with the request, in words.
    """

    metadata: Metadata
    counts: Mapping[FilterReason, int] = field(default_factory=dict)
    query: Query | None = None
    rows: RowArray | None = None
    problem: str = ""

    @property
    def cause(self) -> frozenset[FilterReason] | str:
        """What does not change while only numbers do."""
        return self.problem or frozenset(self.counts)

    @property
    def label(self) -> str:
        """The cause in one word: of the nodes that come closest to taking the pod."""
        return INVALID if self.problem else min(self.counts).metric_label

    def text(self, state: ClusterState) -> str:
        """Say it with the numbers of this moment."""
        if self.query is None or self.rows is None:
            return self.problem
        demands = self.query.request.demands
        nodes = sum(self.counts.values())
        why = ", ".join(
            f"{count} {event_text(reason, demands, state.unit_mib)}"
            for reason, count in sorted(self.counts.items(), key=lambda item: (-item[1], item[0]))
        )
        wanted = demanded(demands, state.unit_mib)
        more = _free(state, self.query, self.rows)
        if len(state.reservations):
            more += " Some are kept for pods that others were evicted for."
        if FilterReason.NO_SUCH_CARD in self.counts:
            selector = self.query.request.selector
            rows = np.arange(len(state.nodes.names))
            has = offered(state.nodes, selector, rows, _SHOWN) or "no card whose model is known"
            more = f"The pod's {selector}; the cluster has {has}"
            more += f"{say_widened(widened(state.nodes, selector, rows))}."
        return f"0/{nodes} nodes can take {wanted}: {why}. {more}"


def _free(state: ClusterState, query: Query, rows: RowArray) -> str:
    """The largest free card and the sum of what is free, of the cards that the pod admits."""
    nodes = state.nodes
    rows = rows[nodes.usable[rows]]
    free = nodes.free[rows]
    if query.ask.admits is not None:
        free = np.where(query.ask.admits[rows], free, 0)
    if not free.size or not free.any():
        return "No card that the pod may use has anything free."
    row, card = np.unravel_index(int(free.argmax()), free.shape)
    largest = memory(int(free[row, card]), state.unit_mib)
    text = (
        f"Largest free card: {largest} on node {nodes.names[int(rows[row])]}; "
        f"all cards together: {memory(int(free.sum()), state.unit_mib)}"
    )
    demands = query.request.demands
    most, units = max(
        zip(demands, units_by_card(nodes, query, rows), strict=True),
        key=lambda pair: (pair[0].cards, pair[0].per_card),
    )
    if most.cards > 1:
        counts = np.count_nonzero((free >= units) & (nodes.size[rows] > 0), axis=1)
        text += f"; cards with {amount(most, state.unit_mib)} free on one node: {int(counts.max())}"
    return f"{text}."


@dataclass(slots=True)
class WaitingPod:
    """A pod that waits.

    Attributes:
        pod: Namespace and name.
        cause: See `Refusal.cause`.
        label: See `Refusal.label`.
        since: When it was refused first, in seconds.
        told: When its cause was told, in seconds.
    """

    pod: str
    cause: frozenset[FilterReason] | str
    label: str
    since: float
    told: float


class Waiting:
    """The pods that wait, by UID.

    Args:
        pods: Every known pod by UID.
    """

    def __init__(self, pods: Mapping[str, PodRecord]) -> None:
        self._pods = pods
        self._waiting: dict[str, WaitingPod] = {}

    def refused(self, refusal: Refusal, now: float) -> bool:
        """Note a refusal; tell whether people should hear of it: it is new, another one, or lasts."""
        uid = refusal.metadata.uid
        cause = refusal.cause
        known = self._waiting.get(uid)
        if known is None:
            self._forget_strangers()
            name = f"{refusal.metadata.namespace}/{refusal.metadata.name}"
            self._waiting[uid] = WaitingPod(name, cause, refusal.label, now, now)
            return True
        if known.cause == cause and now - known.told < TELL_AGAIN_S:
            return False
        known.cause, known.label, known.told = cause, refusal.label, now
        return True

    def ended(self, uid: str) -> WaitingPod | None:
        """Forget a pod; None when it did not wait."""
        return self._waiting.pop(uid, None)

    def by_reason(self) -> Counter[str]:
        """Count the pods that wait, and those that have no node either but were not refused by us."""
        self._forget_strangers(spare=0)
        counts = Counter(pod.label for pod in self._waiting.values())
        counts[NOT_REFUSED] = sum(
            1
            for uid, pod in self._pods.items()
            if not pod.node
            and not pod.ended
            and (pod.charged or pod.error)
            and uid not in self._waiting
            and PLACEHOLDER_LABEL not in pod.labels
        )
        return counts

    def _forget_strangers(self, spare: int = _SPARE) -> None:
        """Forget those that are not known, bound or requeued: nothing tells of the end of one never seen."""
        if len(self._waiting) <= len(self._pods) + spare and spare:
            return
        known = ((uid, self._pods.get(uid)) for uid in self._waiting)
        for uid in [uid for uid, pod in known if pod is None or pod.node or pod.is_gated]:
            del self._waiting[uid]
