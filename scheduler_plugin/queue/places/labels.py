"""Which nodes a pod may run on: node selectors, taints and tolerations, by the rules of Kubernetes. Pure.

Source: corev1.NodeSelector of the Kubernetes API.
"""

from collections.abc import Sequence

import msgspec

from scheduler_plugin.cluster.labels import Expression, Labels


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
