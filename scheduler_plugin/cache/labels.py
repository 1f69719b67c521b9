"""Label selectors by the rules of Kubernetes. Pure.

Source: metav1.LabelSelector and corev1.NodeSelectorRequirement of the Kubernetes API.
"""

from collections.abc import Mapping

import msgspec

Labels = Mapping[str, str]


class Expression(msgspec.Struct, frozen=True, rename="camel"):
    """One condition on one label; all conditions of a list must hold.

    `Gt` and `Lt` are for node affinity only; no other object has them.
    """

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] | None = None

    def holds(self, value: str | None) -> bool:
        """Whether a label's value, None where there is no such label, satisfies the condition.

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
        """Compare as whole numbers; what is none satisfies nothing."""
        try:
            left, right = int(value or ""), int(values[0])
        except (ValueError, IndexError):
            return False
        return left > right if self.operator == "Gt" else left < right


class LabelSelector(msgspec.Struct, frozen=True, rename="camel"):
    """Labels that must be there, and conditions; an empty selector matches everything."""

    match_labels: dict[str, str] | None = None
    match_expressions: tuple[Expression, ...] | None = None

    def matches(self, labels: Labels) -> bool:
        """Whether an object with these labels is selected."""
        return (self.match_labels or {}).items() <= labels.items() and all(
            each.holds(labels.get(each.key)) for each in self.match_expressions or ()
        )
