"""Required pod affinity and anti-affinity, by the rules of kube-scheduler's InterPodAffinity. Pure."""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from kubeapi.objects import KubeStruct, ObjectMeta, Pod
from kubeapi.selectors import Labels, LabelSelector

AFFINITY: Final = "affinity"
ANTI_AFFINITY: Final = "anti-affinity"
OTHERS_ANTI_AFFINITY: Final = "anti-affinity of another pod"

NAMESPACE_LABEL: Final = "kubernetes.io/metadata.name"
"""The label that every namespace has: its own name."""


class AffinityTerm(KubeStruct):
    """A required term: which pods, and what makes two nodes near each other.

    The API server writes what `matchLabelKeys` and `mismatchLabelKeys` mean into the label selector.
    """

    topology_key: str = ""
    label_selector: LabelSelector | None = None
    namespaces: list[str] | None = None
    namespace_selector: LabelSelector | None = None

    @property
    def is_readable(self) -> bool:
        """Whether nodes and pods suffice to tell: of a namespace's labels only its name is at hand."""
        return self.namespace_selector is None or self.namespace_selector.keys <= {NAMESPACE_LABEL}

    def matches(self, owner: ObjectMeta, pod: ObjectMeta) -> bool | None:
        """Tell whether the owner's term means a pod; None: labels of its namespace decide."""
        if self.label_selector is None or not self.label_selector.matches(pod.labels or {}):
            return False
        namespace, selector = pod.namespace, self.namespace_selector
        if selector is None and not self.namespaces:
            return namespace == owner.namespace
        if namespace in (self.namespaces or ()):
            return True
        if selector is None:
            return False
        return selector.matches_partly({NAMESPACE_LABEL: namespace})


def read_terms(raw: Sequence[msgspec.Raw] | None) -> list[AffinityTerm]:
    """Read terms, skipping malformed ones; those that cannot be evaluated are not `is_readable`."""
    found = []
    for each in raw or ():
        try:
            found.append(msgspec.json.decode(each, type=AffinityTerm))
        except msgspec.MsgspecError:
            continue
    return found


def read_affinity(pod: Pod) -> list[AffinityTerm]:
    """The terms of a pod that wants others near."""
    affinity = pod.spec.affinity.pod_affinity if pod.spec.affinity is not None else None
    return (
        read_terms(affinity.required_during_scheduling_ignored_during_execution)
        if affinity is not None
        else []
    )


def read_anti_affinity(pod: Pod) -> list[AffinityTerm]:
    """The terms of a pod that wants others far."""
    affinity = pod.spec.affinity.pod_anti_affinity if pod.spec.affinity is not None else None
    return (
        read_terms(affinity.required_during_scheduling_ignored_during_execution)
        if affinity is not None
        else []
    )


class Neighbour(NamedTuple):
    """A pod that has a node and has not ended.

    Attributes:
        labels: Labels of its node.
        shuns: Its required anti-affinity terms.
    """

    pod: Pod
    labels: Labels
    shuns: Sequence[AffinityTerm] = ()


class PodAffinityFilter:
    """What one pod and the pods of the cluster say of each other.

    Args:
        neighbours: Pods of the cluster; looked at only if the pod wants others near or far.
        shunning: Those of them that want others far.

    Attributes:
        is_undecided: Whether labels of a namespace, which are not at hand, would tell whether another pod's
            anti-affinity means this one; it counts as if it did not.
        matters: Whether any term of anybody could keep the pod off a node.
    """

    def __init__(self, pod: Pod, neighbours: Iterable[Neighbour], shunning: Iterable[Neighbour]) -> None:
        self.is_undecided = False
        self._near = read_affinity(pod)
        if not all(term.is_readable for term in self._near):
            # One pod must match all of them: what the others say is worth nothing.
            self._near = []
        far = [term for term in read_anti_affinity(pod) if term.is_readable]
        self._near_at: set[tuple[str, str]] = set()
        self._far_from: set[tuple[str, str]] = set()
        self._shunned_at: set[tuple[str, str]] = set()
        for other, labels, _ in neighbours if self._near or far else ():
            if self._near and all(term.matches(pod.metadata, other.metadata) for term in self._near):
                self._near_at |= _list_topology(self._near, labels)
            self._far_from |= _list_topology(
                [term for term in far if term.matches(pod.metadata, other.metadata)], labels
            )
        for other, labels, shuns in shunning:
            for term in shuns:
                found = term.matches(other.metadata, pod.metadata)
                self.is_undecided |= found is None
                if found:
                    self._shunned_at |= _list_topology([term], labels)
        # The first of a group whose pods want to be near each other may begin anywhere.
        self._begins = not self._near_at and all(
            term.matches(pod.metadata, pod.metadata) for term in self._near
        )
        self.matters = bool(self._near or self._far_from or self._shunned_at)

    def find_refusal(self, labels: Labels) -> str:
        """Find what keeps the pod off a node with these labels: a constant of those above; empty: nothing."""
        for term in self._near:
            value = labels.get(term.topology_key)
            if value is None or not (self._begins or (term.topology_key, value) in self._near_at):
                return AFFINITY
        for keeps_off, where in ((ANTI_AFFINITY, self._far_from), (OTHERS_ANTI_AFFINITY, self._shunned_at)):
            if any(labels.get(key) == value for key, value in where):
                return keeps_off
        return ""


def are_near(terms: Iterable[AffinityTerm], labels: Labels, others: Labels) -> bool:
    """Tell whether two nodes with these labels are near each other, as any of the terms has it."""
    return any(others.get(key) == value for key, value in _list_topology(terms, labels))


def _list_topology(terms: Iterable[AffinityTerm], labels: Labels) -> set[tuple[str, str]]:
    """List the labels by which terms name the place of a node; one without the label is at no such place."""
    return {(key, labels[key]) for key in (term.topology_key for term in terms) if key in labels}
