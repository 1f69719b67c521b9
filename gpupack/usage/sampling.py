"""Adds up what pods have, from moment to moment."""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from gpupack.usage.records import Period, PodUse

PERIOD_S: Final = 300.0
GAP_S: Final = 60.0
"""After a longer silence (a laptop that slept) nothing is known of the time between."""

MAX_POD_USES: Final = 300_000
"""1 000 pods for a day; some 60 MiB."""

_REPLICA_LABELS: Final = frozenset(
    {
        "pod-template-hash",
        "controller-revision-hash",
        "pod-template-generation",
        "statefulset.kubernetes.io/pod-name",
        "apps.kubernetes.io/pod-index",
        "batch.kubernetes.io/job-completion-index",
        "batch.kubernetes.io/controller-uid",
        "controller-uid",
    }
)


class PodMemory(NamedTuple):
    """What a pod has at one moment; amounts in MiB, `used` None if nobody measured it."""

    namespace: str
    name: str
    uid: str
    promised: int
    used: int | None


class UsageSampler:
    """Adds up, and gives out a period at a time."""

    def __init__(self, now_s: float) -> None:
        self._start = self._last = now_s
        self._sampled_s = 0.0
        self._pods: dict[str, tuple[PodMemory, float, float | None, float]] = {}

    def sample(self, now_s: float, memories: Iterable[PodMemory]) -> None:
        """Take a sample; what it shows counts for the whole time since the last sample.

        Args:
            now_s: where it goes back, nothing is counted.
        """
        elapsed = now_s - self._last
        self._last = now_s
        if not 0 < elapsed <= GAP_S:
            if not self._pods:
                self._start = now_s
            return
        self._sampled_s += elapsed
        for memory in memories:
            _, promised, used, measured = self._pods.get(memory.uid, (memory, 0.0, None, 0.0))
            amount = memory.promised * elapsed
            if memory.used is not None:
                used, measured = (used or 0.0) + memory.used * elapsed, measured + amount
            self._pods[memory.uid] = (memory, promised + amount, used, measured)

    def is_due(self, now_s: float) -> bool:
        return not 0 <= now_s - self._start < PERIOD_S

    def end_period(self, now_s: float, labels: Mapping[str, Mapping[str, str]]) -> Period:
        """End the period and begin the next; the labels of pods are by UID."""
        period = self.peek_period(now_s, labels)
        self._start, self._sampled_s, self._pods = now_s, 0.0, {}
        return period

    def peek_period(self, now_s: float, labels: Mapping[str, Mapping[str, str]]) -> Period:
        pods = [
            PodUse(
                memory.namespace,
                memory.name,
                uid,
                drop_replica_labels(labels.get(uid, {})),
                round(promised, 1),
                None if used is None else round(used, 1),
                round(measured, 1),
            )
            for uid, (memory, promised, used, measured) in self._pods.items()
        ]
        return Period(round(self._start, 1), round(now_s, 1), round(self._sampled_s, 1), pods)


class SampledPeriods:
    """Keeps as many periods as `max_pod_uses` allows; the oldest go first."""

    def __init__(self, max_pod_uses: int = MAX_POD_USES) -> None:
        self._max = max_pod_uses
        self._periods: deque[Period] = deque()
        self._uses = 0

    def add(self, period: Period) -> None:
        self._periods.append(period)
        self._uses += 1 + len(period.pods)
        while self._uses > self._max and len(self._periods) > 1:
            self._uses -= 1 + len(self._periods.popleft().pods)

    def list_periods(self) -> list[Period]:
        return list(self._periods)


def drop_replica_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Leave out labels that differ from one replica to the next."""
    return {key: value for key, value in labels.items() if key not in _REPLICA_LABELS}
