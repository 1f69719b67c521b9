"""Which nodes a pod may run on: node selectors, taints and tolerations, by the rules of Kubernetes. Pure.

Source: corev1.NodeSelector of the Kubernetes API.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from scheduler_plugin.cache.labels import Expression, Labels


class NodeTerm(msgspec.Struct, frozen=True, rename="camel"):
    """Conditions of which all must hold: on labels, and on fields (Kubernetes knows `metadata.name`)."""

    match_expressions: tuple[Expression, ...] | None = None
    match_fields: tuple[Expression, ...] | None = None

    def matches(self, name: str, labels: Labels) -> bool:
        """Whether a node is selected; an empty term selects none."""
        expressions, fields = self.match_expressions or (), self.match_fields or ()
        if not expressions and not fields:
            return False
        return all(each.holds(labels.get(each.key)) for each in expressions) and all(
            each.key == "metadata.name" and each.holds(name) for each in fields
        )


class Toleration(msgspec.Struct, frozen=True, rename="camel"):
    """A taint that a pod stands."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""

    def stands(self, taint: "Taint") -> bool:
        """Whether it covers a taint."""
        if self.effect and self.effect != taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        return self.operator == "Exists" or (bool(self.key) and self.value == taint.value)


class Taint(msgspec.Struct, frozen=True):
    """What keeps pods off a node."""

    key: str = ""
    value: str = ""
    effect: str = ""


UNSCHEDULABLE: Final = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
"""What stands for a cordon: a pod that tolerates it runs on a cordoned node."""

_KEEPS_OFF: Final = frozenset({"NoSchedule", "NoExecute"})


def taints_that_keep_off(taints: Sequence[Taint], *, unschedulable: bool) -> list[Taint]:
    """List what a pod has to tolerate to run on a node: its taints, and `UNSCHEDULABLE` while it is cordoned.

    Kubernetes takes that taint away a moment after a cordon has ended: kube-scheduler looks at it until then.
    """
    found = [taint for taint in taints if taint.effect in _KEEPS_OFF]
    return [*found, UNSCHEDULABLE] if unschedulable and UNSCHEDULABLE not in found else found


class NodeRules(msgspec.Struct, frozen=True):
    """What a pod says of the nodes that it may run on. Hashable, equal for equal rules.

    Attributes:
        selector: Of `spec.nodeSelector`, sorted.
        terms: Of the required node affinity, one of which must hold; None: no such affinity.
        tolerations: Of the pod.
    """

    selector: tuple[tuple[str, str], ...] = ()
    terms: tuple[NodeTerm, ...] | None = None
    tolerations: tuple[Toleration, ...] = ()

    def allow(self, name: str, labels: Labels, taints: Sequence[Taint], *, unschedulable: bool) -> bool:
        """Whether NodeAffinity, TaintToleration and NodeUnschedulable of kube-scheduler allow a node."""
        return self.select(name, labels) and all(
            any(each.stands(taint) for each in self.tolerations)
            for taint in taints_that_keep_off(taints, unschedulable=unschedulable)
        )

    def select(self, name: str, labels: Labels) -> bool:
        """Tell whether the node selector and the required node affinity select a node."""
        if any(labels.get(key) != value for key, value in self.selector):
            return False
        return self.terms is None or any(term.matches(name, labels) for term in self.terms)
