"""Selectors, taints and tolerations by the rules of Kubernetes. Pure.

Source: metav1.LabelSelector, corev1.NodeSelector and corev1.Toleration of the Kubernetes API.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

Labels = Mapping[str, str]

HOSTNAME: Final = "kubernetes.io/hostname"

REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
"""Field of a pod's affinity; kube-scheduler heeds it, the kubelet does not."""


class Expression(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """A condition on one label; all conditions of a list must hold.

    `Gt` and `Lt` are for node affinity only; no other object has them.
    """

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] | None = None

    def matches(self, value: str | None) -> bool:
        """Whether a label's value, None if there is no such label, satisfies the condition.

        An operator that Kubernetes does not have is satisfied by nothing.
        """
        values = self.values or ()
        match self.operator:
            case "In":
                return value in values
            case "NotIn":
                return value not in values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case "Gt" | "Lt":
                return self._compares(value, values)
        return False

    def _compares(self, value: str | None, values: tuple[str, ...]) -> bool:
        """Compare as whole numbers; other values never match."""
        left, right = parse_int64(value), parse_int64(values[0]) if len(values) == 1 else None
        if left is None or right is None:
            return False
        return left > right if self.operator == "Gt" else left < right


_DIGITS: Final = re.compile(r"[+-]?[0-9]{1,100}")
_INT64: Final = 1 << 63


def parse_int64(text: str | None) -> int | None:
    """Read a whole number of 64 bits as Go's strconv.ParseInt does, without underscores; None: it is none."""
    if text is None or _DIGITS.fullmatch(text) is None:
        return None
    value = int(text)
    return value if -_INT64 <= value < _INT64 else None


class LabelSelector(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Labels that must be there, and conditions; an empty selector matches everything."""

    match_labels: dict[str, str] | None = None
    match_expressions: tuple[Expression, ...] | None = None

    def matches(self, labels: Labels) -> bool:
        return (self.match_labels or {}).items() <= labels.items() and all(
            each.matches(labels.get(each.key)) for each in self.match_expressions or ()
        )

    @property
    def keys(self) -> set[str]:
        """Labels that it asks for."""
        return {*(self.match_labels or ()), *(each.key for each in self.match_expressions or ())}

    def matches_partly(self, labels: Labels) -> bool | None:
        """Whether an object is selected of which some labels alone are known; None: the others decide."""
        known_labels = {key: value for key, value in (self.match_labels or {}).items() if key in labels}
        known = [each for each in self.match_expressions or () if each.key in labels]
        if not LabelSelector(known_labels, tuple(known)).matches(labels):
            return False
        return True if self.keys <= labels.keys() else None


class NodeTerm(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """Conditions of which all must hold: on labels, and on fields (Kubernetes knows `metadata.name`)."""

    match_expressions: tuple[Expression, ...] | None = None
    match_fields: tuple[Expression, ...] | None = None

    @property
    def can_match(self) -> bool:
        """Whether it has conditions: a term without any selects no node."""
        return bool(self.match_expressions or self.match_fields)

    def matches(self, name: str, labels: Labels) -> bool:
        """Whether a node is selected."""
        expressions, fields = self.match_expressions or (), self.match_fields or ()
        if not self.can_match:
            return False
        return all(each.matches(labels.get(each.key)) for each in expressions) and all(
            each.key == "metadata.name" and each.matches(name) for each in fields
        )


def join_terms(
    one: tuple[NodeTerm, ...] | None, other: tuple[NodeTerm, ...] | None
) -> tuple[NodeTerm, ...] | None:
    """Combine two lists of terms into one: (a or b) and (c or d) becomes a list of conjunctions."""
    if one is None or other is None or one == other:
        return one if other is None else other
    return tuple(
        dict.fromkeys(
            NodeTerm(
                (*(first.match_expressions or ()), *(second.match_expressions or ())) or None,
                (*(first.match_fields or ()), *(second.match_fields or ())) or None,
            )
            for first in one
            for second in other
            if first.can_match and second.can_match
        )
    )


class Toleration(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """A toleration of a pod."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: "Taint") -> bool:
        """Return True if it tolerates a taint; operators that are disabled by default tolerate none."""
        if self.effect and self.effect != taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        if self.operator in ("", "Equal"):
            return bool(self.key) and self.value == taint.value
        return self.operator == "Exists"


class Taint(msgspec.Struct, frozen=True, gc=False):
    """Keeps pods off a node."""

    key: str = ""
    value: str = ""
    effect: str = ""


UNSCHEDULABLE: Final = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
"""What stands for a cordon: a pod that tolerates it runs on a cordoned node."""

_REPELLING: Final = frozenset({"NoSchedule", "NoExecute"})


def list_repelling_taints(taints: Sequence[Taint], *, unschedulable: bool) -> list[Taint]:
    """List what a pod has to tolerate to run on a node: its taints, and `UNSCHEDULABLE` while it is cordoned.

    Kubernetes removes that taint a moment after a cordon has ended, and kube-scheduler respects it until
    then.
    """
    found = [taint for taint in taints if taint.effect in _REPELLING]
    return [*found, UNSCHEDULABLE] if unschedulable and UNSCHEDULABLE not in found else found


class NodeRules(msgspec.Struct, frozen=True, gc=False):
    """A pod's constraints on nodes. Hashable, equal for equal constraints.

    Attributes:
        selector: Labels of `spec.nodeSelector`, sorted.
        terms: Terms of the required node affinity, one of which must hold; None: no such affinity.
    """

    selector: tuple[tuple[str, str], ...] = ()
    terms: tuple[NodeTerm, ...] | None = None
    tolerations: tuple[Toleration, ...] = ()

    def tolerates(self, taint: Taint) -> bool:
        return any(each.tolerates(taint) for each in self.tolerations)

    def selects_node(self, name: str, labels: Labels) -> bool:
        """Tell whether the node selector and the required node affinity select a node."""
        if any(labels.get(key) != value for key, value in self.selector):
            return False
        return self.terms is None or any(term.matches(name, labels) for term in self.terms)


class NodeTraits(NamedTuple):
    """The labels, taints and state of a node, without its amounts."""

    name: str
    unschedulable: bool
    labels: Labels
    taints: Sequence[Taint]
