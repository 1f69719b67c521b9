"""Unschedulable pods, and the reasons with their numbers, for people. Pure.

kube-scheduler's own message has the reasons without numbers (`scheduling.reasons`), because that message is
written into the pod, and a change there would requeue the pod at once. The texts made here go into Events,
logs and metrics.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from allocator.quantity import format_memory
from kubeapi.objects import ObjectMeta
from scheduler_plugin.cache.arrays import RowArray
from scheduler_plugin.cache.pods import PodRecord
from scheduler_plugin.cache.state import ClusterState
from scheduler_plugin.scheduling.available import describe_available, explain_widened, widen_patterns
from scheduler_plugin.scheduling.filtering import get_usable_units
from scheduler_plugin.scheduling.reasons import FilterReason, format_amount, format_demands, format_event_text
from scheduler_plugin.scheduling.request import SchedulingRequest, compute_units_by_card, with_compute

REPEAT_AFTER_S: Final = 1800.0
"""A lasting reason is reported again after so long: Kubernetes keeps an Event for an hour, by default."""

INVALID: Final = "invalid_request"
NOT_REFUSED: Final = "not_refused"

_MAX_UNKNOWN: Final = 1000
_MAX_NAMES: Final = 12


@dataclass(frozen=True, slots=True)
class UnschedulablePod:
    """A pod that no node can take, with the reasons.

    Attributes:
        counts: Number of nodes by reason; empty if the request itself is invalid.
        rows: Rows of the nodes that kube-scheduler asked about.
        problem: What is wrong with the request, in words.
    """

    metadata: ObjectMeta
    counts: Mapping[FilterReason, int] = field(default_factory=dict)
    request: SchedulingRequest | None = None
    rows: RowArray | None = None
    problem: str = ""

    @property
    def cause(self) -> frozenset[FilterReason] | str:
        """The reasons without numbers: they change less often."""
        return self.problem or frozenset(self.counts)

    @property
    def label(self) -> str:
        """The cause in one word: the reason of the nodes that come closest to taking the pod."""
        return INVALID if self.problem else min(self.counts).metric_label

    def list_reasons(self, state: ClusterState) -> list[str]:
        """List the reasons as kube-scheduler's message has them, without numbers of nodes."""
        if self.request is None:
            return [self.problem]
        asked = self.request.request
        return [
            format_event_text(reason, asked.demands, state.unit_mib, asked.rules) for reason in self.counts
        ]

    def format_text(self, state: ClusterState) -> str:
        if self.request is None or self.rows is None:
            return self.problem
        demands = self.request.request.demands
        nodes = sum(self.counts.values())
        why = ", ".join(
            f"{count} {format_event_text(reason, demands, state.unit_mib, self.request.request.rules)}"
            for reason, count in sorted(self.counts.items(), key=lambda item: (-item[1], item[0]))
        )
        wanted = format_demands(demands, state.unit_mib)
        more = _format_free(state, self.request, self.rows)
        if len(state.reservations):
            more += " Some are kept for pods that others were evicted for."
        if FilterReason.NO_SUCH_CARD in self.counts:
            selector = self.request.request.selector
            rows = np.arange(len(state.nodes.names))
            has = (
                describe_available(state.nodes, selector, rows, _MAX_NAMES) or "no card whose model is known"
            )
            more = f"The pod's {selector}; the cluster has {has}"
            more += f"{explain_widened(widen_patterns(state.nodes, selector, rows))}."
        return f"0/{nodes} nodes can take {wanted}: {why}. {more}"


def _format_free(state: ClusterState, query: SchedulingRequest, rows: RowArray) -> str:
    """Format the largest free card and the sum of free units, of the cards that the pod may use.

    They are those that it admits, with the compute that each of its demands asks for at least.
    """
    nodes, query = state.nodes, with_compute(state.nodes, query)
    least = query.policy_request.least_compute
    compute = f"{least} percent of compute"
    rows = rows[nodes.usable[rows]]
    free = get_usable_units(nodes, query.policy_request, rows)
    if not free.size or not free.any():
        return f"No card that the pod may use has {f'memory and {compute}' if least else 'anything'} free."
    row, card = np.unravel_index(int(free.argmax()), free.shape)
    largest, node = format_memory(int(free[row, card]), state.unit_mib), nodes.names[int(rows[row])]
    text = (
        f"Largest free card{f' with {compute}' if least else ''}: {largest} on node {node}; "
        f"all {'such ' if least else ''}cards together: {format_memory(int(free.sum()), state.unit_mib)}"
    )
    demands = query.request.demands
    most, units = max(
        zip(demands, compute_units_by_card(nodes, query, rows), strict=True),
        key=lambda pair: (pair[0].cards, pair[0].per_card),
    )
    if most.cards > 1:
        counts = np.count_nonzero((free >= units) & (nodes.size[rows] > 0), axis=1)
        text += f"; cards with {format_amount(most, state.unit_mib)} free on one node: {int(counts.max())}"
    return f"{text}."


@dataclass(slots=True)
class ReportedPod:
    """An unschedulable pod that has been reported; see `UnschedulablePod`. Times are seconds."""

    pod: str
    cause: frozenset[FilterReason] | str
    label: str
    since: float
    reported_at: float


class UnschedulablePods:
    """The pods that were refused and wait, by UID."""

    def __init__(self, pods: Mapping[str, PodRecord]) -> None:
        self._pods = pods
        self._reported: dict[str, ReportedPod] = {}

    def record_refusal(self, refusal: UnschedulablePod, now: float) -> bool:
        """Record a refusal; return True if it should be reported: it is new, has changed, or lasts."""
        uid = refusal.metadata.uid
        cause = refusal.cause
        known = self._reported.get(uid)
        if known is None:
            if len(self._reported) > len(self._pods) + _MAX_UNKNOWN:
                self._remove_unknown()
            name = refusal.metadata.full_name
            self._reported[uid] = ReportedPod(name, cause, refusal.label, now, now)
            return True
        if known.cause == cause and now - known.reported_at < REPEAT_AFTER_S:
            return False
        known.cause, known.label, known.reported_at = cause, refusal.label, now
        return True

    def has_refused(self, uid: str) -> bool:
        return uid in self._reported

    def remove_pod(self, uid: str) -> ReportedPod | None:
        return self._reported.pop(uid, None)

    def count_by_reason(self) -> Counter[str]:
        """Count the waiting pods by reason, including pods without a node that we have not refused."""
        self._remove_unknown()
        counts = Counter(pod.label for pod in self._reported.values())
        counts[NOT_REFUSED] = sum(
            pod.is_waiting and pod.asks_for_cards and uid not in self._reported
            for uid, pod in self._pods.items()
        )
        return counts

    def _remove_unknown(self) -> None:
        """Remove pods that are unknown or not refused any more: a pod never seen has no deletion event."""
        known = ((uid, self._pods.get(uid)) for uid in self._reported)
        for uid in [uid for uid, pod in known if pod is None or not pod.can_be_scheduled]:
            del self._reported[uid]
