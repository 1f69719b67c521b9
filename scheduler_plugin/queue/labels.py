"""Label selectors and node selectors, by the rules of Kubernetes. Pure.

Sources: metav1.LabelSelector and corev1.NodeSelector of the Kubernetes API.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

Labels = Mapping[str, str]
Operator = Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]


class Expression(msgspec.Struct, frozen=True, rename="camel"):
    """One condition on one label; all conditions of a list must hold."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    def holds(self, value: str | None) -> bool:
        """Whether a label's value, None where there is no such label, satisfies the condition."""
        match self.operator:
            case "In":
                return value in self.values
            case "NotIn":
                return value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
        return self._compares(value)

    def _compares(self, value: str | None) -> bool:
        """Compare as whole numbers; what is none satisfies nothing."""
        try:
            left, right = int(value or ""), int(self.values[0])
        except (ValueError, IndexError):
            return False
        return left > right if self.operator == "Gt" else left < right


class LabelSelector(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Labels that must be there, and conditions; an empty selector matches everything."""

    match_labels: dict[str, str] = {}
    match_expressions: tuple[Expression, ...] = ()

    def matches(self, labels: Labels) -> bool:
        """Whether an object with these labels is selected."""
        return all(labels.get(key) == value for key, value in self.match_labels.items()) and all(
            each.holds(labels.get(each.key)) for each in self.match_expressions
        )


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
        if any(labels.get(key) != value for key, value in self.selector):
            return False
        if self.terms is not None and not any(term.matches(name, labels) for term in self.terms):
            return False
        kept_off = [taint for taint in taints if taint.effect in {"NoSchedule", "NoExecute"}]
        if unschedulable:
            kept_off.append(Taint("node.kubernetes.io/unschedulable", "", "NoSchedule"))
        return all(any(each.stands(taint) for each in self.tolerations) for taint in kept_off)
