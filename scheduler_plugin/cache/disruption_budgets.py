"""PodDisruptionBudgets: how many of the pods that an application counts on may be evicted now."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from kubeapi.objects import PodDisruptionBudget
from scheduler_plugin.cache.pods import PodRecord

BUDGETS_PATH: Final = "/apis/policy/v1/poddisruptionbudgets"


@dataclass(frozen=True, slots=True)
class EvictionAllowance:
    """What a PodDisruptionBudget still allows.

    Attributes:
        allowed: Pods that may be evicted now.
        disrupted: Names of pods that were evicted a moment ago; they are counted already.
        covers_all: Whether its selector is empty, and so covers all pods of its namespace.
    """

    namespace: str
    name: str
    allowed: int
    disrupted: frozenset[str] = frozenset()
    covers_all: bool = False


class DisruptionBudgets:
    """Keeps PodDisruptionBudgets up to date as the sink of a reflector.

    Attributes:
        synced: True once they have been listed; before that nothing is known of them.
    """

    def __init__(self) -> None:
        self.synced = False
        self._budgets: dict[str, dict[str, PodDisruptionBudget]] = {}

    def list_covering(self, pod: PodRecord) -> list[EvictionAllowance]:
        """List the budgets that cover a pod; the API server evicts no pod that more than one covers."""
        return [
            EvictionAllowance(
                pod.namespace,
                name,
                max(0, budget.status.disruptions_allowed),
                frozenset(budget.status.disrupted_pods or ()),
                not budget.spec.selector.keys,
            )
            for name, budget in self._budgets.get(pod.namespace, {}).items()
            if budget.spec.selector is not None and budget.spec.selector.matches(pod.labels)
        ]

    def replace(self, items: Sequence[PodDisruptionBudget], _resource_version: str) -> None:
        self._budgets = {}
        for item in items:
            self._put(item)
        self.synced = True

    def event(self, kind: str, item: PodDisruptionBudget, _resource_version: str) -> None:
        if kind == "DELETED":
            self._budgets.get(item.metadata.namespace, {}).pop(item.metadata.name, None)
        else:
            self._put(item)

    def bookmark(self, resource_version: str) -> None: ...

    def disconnected(self, error: Exception) -> None:
        """Do nothing, because the API server checks each eviction itself."""

    def _put(self, item: PodDisruptionBudget) -> None:
        self._budgets.setdefault(item.metadata.namespace, {})[item.metadata.name] = item


def keeps_budgets(budgets: DisruptionBudgets, victims: Iterable[PodRecord]) -> bool:
    taken: dict[tuple[str, str], int] = {}
    for victim in victims:
        covering = budgets.list_covering(victim)
        if len(covering) > 1:
            return False
        for budget in covering:
            key = (budget.namespace, budget.name)
            taken[key] = taken.get(key, 0) + 1
            if taken[key] > budget.allowed:
                return False
    return True


def find_violations(budgets: DisruptionBudgets, pods: Iterable[PodRecord]) -> frozenset[str]:
    """Find the UIDs of the pods whose end would violate a budget, as kube-scheduler counts violations.

    The count differs from `keeps_budgets`, because kube-scheduler deletes its victims without the eviction
    API. A pod covered by several budgets violates none of them as long as each allows it. An empty selector
    covers nothing here, and no budget covers a pod without labels.

    Args:
        pods: Pods in the order in which they use up what the budgets allow.
    """
    taken: dict[tuple[str, str], int] = {}
    found: set[str] = set()
    for pod in pods:
        for budget in budgets.list_covering(pod):
            if pod.name in budget.disrupted or budget.covers_all or not pod.labels:
                continue
            key = (budget.namespace, budget.name)
            taken[key] = taken.get(key, 0) + 1
            if taken[key] > budget.allowed:
                found.add(pod.uid)
    return frozenset(found)
