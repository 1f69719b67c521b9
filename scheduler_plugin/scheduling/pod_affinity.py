"""Required pod affinity and anti-affinity, by the rules of kube-scheduler's InterPodAffinity. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from kubeapi.objects import KubeStruct, ObjectMeta, Pod, PodAffinity
from kubeapi.selectors import Expression, Labels, LabelSelector

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


def read_affinity(pod: Pod) -> list[AffinityTerm]:
    return _read_required(pod.spec.affinity.pod_affinity) if pod.spec.affinity is not None else []


def read_anti_affinity(pod: Pod) -> list[AffinityTerm]:
    return _read_required(pod.spec.affinity.pod_anti_affinity) if pod.spec.affinity is not None else []


def _read_required(affinity: PodAffinity | None) -> list[AffinityTerm]:
    """Read terms, skipping malformed ones; those that cannot be evaluated are not `is_readable`."""
    found = []
    raw = None if affinity is None else affinity.required_during_scheduling_ignored_during_execution
    for each in raw or ():
        with suppress(msgspec.MsgspecError, UnicodeError):
            found.append(msgspec.json.decode(each, type=AffinityTerm))
    return found


class Neighbour(NamedTuple):
    """A pod that has a node and has not ended, with the labels of its node."""

    pod: Pod
    labels: Labels


@dataclass(slots=True)
class _Owners:
    """Pods of one namespace with the same required anti-affinity.

    Attributes:
        metadata: Of one of them.
        uids: By node; of those without a node under the empty name.
    """

    metadata: ObjectMeta
    terms: Sequence[AffinityTerm]
    uids: dict[str, set[str]] = field(default_factory=dict)


class ExistingTerm(NamedTuple):
    """A required anti-affinity term of existing pods that means a pod, or may mean it.

    Attributes:
        is_sure: False where labels of the pod's namespace decide, which are not at hand.
        owners: UIDs of the existing pods by node; of those without a node under the empty name.
    """

    term: AffinityTerm
    is_sure: bool
    owners: Mapping[str, AbstractSet[str]]


class ExistingAntiAffinity:
    """The pods that keep others away by required anti-affinity, whether they have a node yet or not.

    kube-scheduler has those with a node in `HavePodsWithRequiredAntiAffinityList`. Whether terms mean a pod
    is asked once for all pods of a namespace that have the same ones.
    """

    def __init__(self, pods: Iterable[Pod] = ()) -> None:
        self._owners: dict[tuple[str, bytes], _Owners] = {}
        self._places: dict[str, tuple[tuple[str, bytes], str]] = {}
        for pod in pods:
            self.apply_pod(pod)

    def apply_pod(self, pod: Pod) -> None:
        """Take a pod's newest version."""
        uid, node = pod.metadata.uid, pod.spec.node_name
        self.remove_pod(uid)
        terms = () if pod.has_ended else read_anti_affinity(pod)
        if terms:
            key = pod.metadata.namespace, msgspec.json.encode(terms)
            owners = self._owners.setdefault(key, _Owners(pod.metadata, terms))
            owners.uids.setdefault(node, set()).add(uid)
            self._places[uid] = key, node

    def apply_change(self, kind: str, pod: Pod) -> None:
        """Take what a watch brings."""
        if kind == "DELETED":
            self.remove_pod(pod.metadata.uid)
        else:
            self.apply_pod(pod)

    def remove_pod(self, uid: str) -> None:
        if uid not in self._places:
            return
        key, node = self._places.pop(uid)
        owners = self._owners[key]
        owners.uids[node].discard(uid)
        if not owners.uids[node]:
            del owners.uids[node]
        if not owners.uids:
            del self._owners[key]

    def replace_pods(self, pods: Iterable[Pod]) -> None:
        self._owners.clear()
        self._places.clear()
        for pod in pods:
            self.apply_pod(pod)

    def find_terms(self, pod: ObjectMeta) -> Iterator[ExistingTerm]:
        """Give the terms that mean a pod."""
        for owners in self._owners.values():
            for term in owners.terms:
                is_meant = term.matches(owners.metadata, pod)
                if is_meant is not False:
                    yield ExistingTerm(term, is_meant is True, owners.uids)


class PodAffinityFilter:
    """What one pod and the pods of the cluster say of each other.

    Args:
        neighbours: Pods of the cluster; looked at only if the pod wants others near or far.
        existing: Those that want others far.
        node_labels: Labels of the nodes by name; a pod on any other node does not count.
        gone: UIDs of pods that do not count either.

    Attributes:
        is_undecided: Whether labels of a namespace, which are not at hand, would tell whether another pod's
            anti-affinity means this one; it counts as if it did not.
        matters: Whether any term of anybody could keep the pod off a node.
        begins: Whether the pod wants others near that match it, too, and none of them runs.
    """

    def __init__(
        self,
        pod: Pod,
        neighbours: Iterable[Neighbour],
        existing: ExistingAntiAffinity,
        node_labels: Mapping[str, Labels],
        gone: AbstractSet[str] = frozenset(),
    ) -> None:
        self.is_undecided = False
        self._near = read_affinity(pod)
        if not all(term.is_readable for term in self._near):
            # One pod must match all of them: what the others say is worth nothing.
            self._near = []
        far = [term for term in read_anti_affinity(pod) if term.is_readable]
        self._near_at: set[tuple[str, str]] = set()
        self._far_from: set[tuple[str, str]] = set()
        self._kept_off_at: set[tuple[str, str]] = set()
        for other, labels in neighbours if self._near or far else ():
            if self._near and all(term.matches(pod.metadata, other.metadata) for term in self._near):
                self._near_at |= _list_topology(self._near, labels)
            self._far_from |= _list_topology(
                [term for term in far if term.matches(pod.metadata, other.metadata)], labels
            )
        for term, is_sure, owners in existing.find_terms(pod.metadata):
            nodes = [node for node, uids in owners.items() if node in node_labels and not uids <= gone]
            self.is_undecided |= bool(nodes) and not is_sure
            for node in nodes if is_sure else ():
                self._kept_off_at |= _list_topology([term], node_labels[node])
        # The first of a group whose pods want to be near each other may begin anywhere.
        self.begins = (
            bool(self._near)
            and not self._near_at
            and all(term.matches(pod.metadata, pod.metadata) for term in self._near)
        )
        self.matters = bool(self._near or self._far_from or self._kept_off_at)

    def find_refusal(self, labels: Labels) -> str:
        """Find what keeps the pod off a node with these labels: a constant of those above; empty: nothing."""
        for term in self._near:
            value = labels.get(term.topology_key)
            if value is None or not (self.begins or (term.topology_key, value) in self._near_at):
                return AFFINITY
        for keeps_off, where in ((ANTI_AFFINITY, self._far_from), (OTHERS_ANTI_AFFINITY, self._kept_off_at)):
            if any(labels.get(key) == value for key, value in where):
                return keeps_off
        return ""

    def list_conditions(self) -> list[Expression]:
        """List conditions on the labels of a node which hold exactly where `find_refusal` finds nothing."""
        keys = dict.fromkeys(term.topology_key for term in self._near)
        found = [
            Expression(key, "Exists")
            if self.begins
            else Expression(key, "In", _list_values(self._near_at, key))
            for key in keys
        ]
        away = self._far_from | self._kept_off_at
        return found + [
            Expression(key, "NotIn", _list_values(away, key)) for key in sorted({key for key, _ in away})
        ]


def _list_values(places: Iterable[tuple[str, str]], key: str) -> tuple[str, ...]:
    return tuple(sorted(value for at, value in places if at == key))


def _list_topology(terms: Iterable[AffinityTerm], labels: Labels) -> set[tuple[str, str]]:
    """List the labels by which terms name the place of a node; one without the label is at no such place."""
    return {(key, labels[key]) for key in (term.topology_key for term in terms) if key in labels}
