"""PodDisruptionBudgets: how many of the pods that an application counts on may be evicted now."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from kubeapi.selectors import LabelSelector
from scheduler_plugin.cache.objects import Metadata, Struct
from scheduler_plugin.cache.pods import PodRecord

BUDGETS_PATH: Final = "/apis/policy/v1/poddisruptionbudgets"


class BudgetSpec(Struct):
    """`spec` of a PodDisruptionBudget."""

    selector: LabelSelector | None = None


class BudgetStatus(Struct):
    """`status` of a PodDisruptionBudget.

    Attributes:
        disruptions_allowed: Pods that may be evicted now.
        disrupted_pods: By name, when each pod was evicted whose end the controller has not seen yet.
    """

    disruptions_allowed: int = 0
    disrupted_pods: dict[str, str] | None = None


class BudgetLite(Struct):
    """A PodDisruptionBudget."""

    metadata: Metadata = msgspec.field(default_factory=Metadata)
    spec: BudgetSpec = msgspec.field(default_factory=BudgetSpec)
    status: BudgetStatus = msgspec.field(default_factory=BudgetStatus)


@dataclass(frozen=True, slots=True)
class Budget:
    """What is left of a budget.

    Attributes:
        namespace: Of the PodDisruptionBudget and of the pods that it counts.
        name: Of the PodDisruptionBudget.
        allowed: Pods that may be evicted now.
        disrupted: Names of pods that were evicted a moment ago; they are counted already.
    """

    namespace: str
    name: str
    allowed: int
    disrupted: frozenset[str] = frozenset()


class Budgets:
    """All PodDisruptionBudgets, kept up to date as the sink of a reflector.

    Attributes:
        synced: They have been listed once; before that nothing is known of them.
    """

    def __init__(self) -> None:
        self.synced = False
        self._known: dict[str, dict[str, BudgetLite]] = {}

    def covering(self, pod: PodRecord) -> list[Budget]:
        """The budgets that count a pod; the API server evicts no pod that more than one counts."""
        return [
            Budget(
                pod.namespace,
                name,
                max(0, budget.status.disruptions_allowed),
                frozenset(budget.status.disrupted_pods or ()),
            )
            for name, budget in self._known.get(pod.namespace, {}).items()
            if budget.spec.selector is not None and budget.spec.selector.matches(pod.labels)
        ]

    def replace(self, items: Sequence[BudgetLite], _resource_version: str) -> None:
        """Take a complete list."""
        self._known = {}
        for item in items:
            self._put(item)
        self.synced = True

    def event(self, kind: str, item: BudgetLite, _resource_version: str) -> None:
        """Take one change."""
        if kind == "DELETED":
            self._known.get(item.metadata.namespace, {}).pop(item.metadata.name, None)
        else:
            self._put(item)

    def bookmark(self, resource_version: str) -> None:
        """Nothing changed."""

    def disconnected(self, error: Exception) -> None:
        """Nothing to do: what an old view allows, the API server still refuses."""

    def _put(self, item: BudgetLite) -> None:
        self._known.setdefault(item.metadata.namespace, {})[item.metadata.name] = item


def within(budgets: Budgets, victims: Iterable[PodRecord]) -> bool:
    """Tell whether evicting these pods keeps every budget."""
    taken: dict[tuple[str, str], int] = {}
    for victim in victims:
        covering = budgets.covering(victim)
        if len(covering) > 1:
            return False
        for budget in covering:
            key = (budget.namespace, budget.name)
            taken[key] = taken.get(key, 0) + 1
            if taken[key] > budget.allowed:
                return False
    return True


def violating(budgets: Budgets, pods: Iterable[PodRecord]) -> frozenset[str]:
    """Find the pods whose end would violate a budget, as kube-scheduler counts them.

    The count differs from `within`: kube-scheduler deletes its victims and does not ask the eviction API.
    A pod that several budgets count violates none of them while each allows it. An empty selector counts
    all pods of its namespace, as for the API server; kube-scheduler takes it for one that counts none.

    Args:
        budgets: All of them.
        pods: In this order they use up what the budgets allow.

    Returns:
        UIDs.
    """
    taken: dict[tuple[str, str], int] = {}
    found: set[str] = set()
    for pod in pods:
        for budget in budgets.covering(pod):
            if pod.name in budget.disrupted:
                continue
            key = (budget.namespace, budget.name)
            taken[key] = taken.get(key, 0) + 1
            if taken[key] > budget.allowed:
                found.add(pod.uid)
    return frozenset(found)
