"""The required half of pod affinity and anti-affinity, as pods state it. Pure."""

from collections.abc import Sequence
from typing import Any

import msgspec

from kubeapi.selectors import LabelSelector
from scheduler_plugin.cache.objects import KubeStruct, PodLite


class AffinityTerm(KubeStruct):
    """A required term: which pods, and what makes two nodes near each other."""

    topology_key: str = ""
    label_selector: LabelSelector | None = None
    namespaces: list[str] | None = None
    namespace_selector: dict[str, Any] | None = None
    match_label_keys: list[str] | None = None
    mismatch_label_keys: list[str] | None = None

    @property
    def is_readable(self) -> bool:
        """Whether nodes and pods suffice to tell: labels of namespaces are not at hand."""
        return not (self.namespace_selector or self.match_label_keys or self.mismatch_label_keys)

    def matches(self, owner: PodLite, pod: PodLite) -> bool:
        """Tell whether a pod is one of those that the owner's term means."""
        if self.label_selector is None:
            return False
        named = self.namespaces or ()
        everywhere = self.namespace_selector == {}
        own = self.namespace_selector is None and not named
        namespace = pod.metadata.namespace
        if not (everywhere or namespace in named or (own and namespace == owner.metadata.namespace)):
            return False
        return self.label_selector.matches(pod.metadata.labels or {})


def read_terms(raw: Sequence[msgspec.Raw] | None) -> list[AffinityTerm]:
    """Read terms, without those that cannot be read; `AffinityTerm.is_readable` marks the unchecked ones."""
    found = []
    for each in raw or ():
        try:
            found.append(msgspec.json.decode(each, type=AffinityTerm))
        except msgspec.MsgspecError:
            continue
    return found


def read_affinity(pod: PodLite) -> list[AffinityTerm]:
    affinity = pod.spec.affinity.pod_affinity if pod.spec.affinity is not None else None
    return (
        read_terms(affinity.required_during_scheduling_ignored_during_execution)
        if affinity is not None
        else []
    )


def read_anti_affinity(pod: PodLite) -> list[AffinityTerm]:
    affinity = pod.spec.affinity.pod_anti_affinity if pod.spec.affinity is not None else None
    return (
        read_terms(affinity.required_during_scheduling_ignored_during_execution)
        if affinity is not None
        else []
    )
