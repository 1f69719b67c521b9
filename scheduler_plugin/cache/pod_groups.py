"""Kubernetes' own PodGroups, and the pods that name them. Pure.

kube-scheduler places all pods of a PodGroup in one cycle, from Kubernetes 1.37 on.

Source: https://github.com/kubernetes/api, scheduling/v1beta1.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from allocator.errors import shown
from kubeapi.objects import PodGroup
from scheduler_plugin.cache.pods import PodRecord

GroupKey = tuple[str, str]
"""Namespace and name of a PodGroup."""

_API: Final = "/apis/scheduling.k8s.io"
_VERSIONS: Final = ("v1", "v1beta1", "v1alpha3")

_NOBODY: Final[Mapping[str, PodRecord]] = MappingProxyType({})


def list_pod_group_paths(namespace: str = "") -> tuple[str, ...]:
    """List where PodGroups may be served, of one namespace or of all; the first that is served counts.

    A name from outside has to be quoted before.
    """
    within = f"namespaces/{namespace}/" if namespace else ""
    return tuple(f"{_API}/{version}/{within}podgroups" for version in _VERSIONS)


class PodGroups:
    """PodGroups as last seen, and all known pods that name one, whether it exists or not.

    Attributes:
        is_wanted: Some pod has named a PodGroup. Where that never happens nothing is watched: Kubernetes
            before 1.37, or without its feature gate GenericWorkload, drops the field from pods.
        fault: Why PodGroups cannot be read; empty if they can be, or if none are served.
    """

    def __init__(self) -> None:
        self.is_wanted = False
        self.fault = ""
        self._groups: dict[GroupKey, PodGroup] = {}
        self._members: dict[GroupKey, dict[str, PodRecord]] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def get_group(self, key: GroupKey) -> PodGroup | None:
        return self._groups.get(key)

    def list_groups(self) -> list[PodGroup]:
        return list(self._groups.values())

    def get_min_count(self, key: GroupKey) -> int:
        """Return how many of a PodGroup's pods start together, at least; 0 if it is not known.

        In a group whose policy is another than gang each pod starts for itself.
        """
        group = self._groups.get(key)
        return 0 if group is None else max(1, group.spec.min_count)

    def has_topology(self, key: GroupKey | None) -> bool:
        """Return True if a PodGroup says which labels of nodes its pods must share."""
        group = self._groups.get(key) if key is not None else None
        constraints = None if group is None else group.spec.scheduling_constraints
        return constraints is not None and bool(constraints.topology)

    def ends_together(self, key: GroupKey | None) -> bool:
        """Return True unless the pods of a PodGroup are known to be of use without each other.

        kube-controller-manager makes a PodGroup without a gang policy for each Job, if it makes any.

        Args:
            key: None, of a pod without a PodGroup, gives False.
        """
        return key is not None and self.get_min_count(key) != 1

    def explain_missing(self, key: GroupKey) -> str:
        """Say that a PodGroup is not there, or why that is not known; empty if it is."""
        if key in self._groups:
            return ""
        name = shown(key[1])
        return (
            f"PodGroup {name} cannot be read ({self.fault})" if self.fault else f"there is no PodGroup {name}"
        )

    def explain_priority(self, key: GroupKey, priorities: Iterable[int]) -> str:
        """Say that kube-scheduler starts no pod of a PodGroup for the priority of one; empty if it may."""
        group = self._groups.get(key)
        own = 0 if group is None else group.spec.priority or 0
        other = next((priority for priority in priorities if priority != own), own)
        if other == own:
            return ""
        named = f"PodGroup {shown(key[1])} has priority {own}, and a pod of it {other}"
        return f"{named}: kube-scheduler starts no such group"

    def get_members(self, key: GroupKey) -> Mapping[str, PodRecord]:
        """Return the pods that name a PodGroup, by UID: waiting, bound and ended ones."""
        return self._members.get(key, _NOBODY)

    def put_member(self, pod: PodRecord) -> None:
        """Add a pod's newest version; do nothing for a pod without a PodGroup."""
        if pod.scheduling_group is not None:
            self.is_wanted = True
            self._members.setdefault(pod.scheduling_group, {})[pod.uid] = pod

    def remove_member(self, pod: PodRecord) -> None:
        if pod.scheduling_group is None:
            return
        members = self._members.get(pod.scheduling_group, {})
        members.pop(pod.uid, None)
        if not members:
            self._members.pop(pod.scheduling_group, None)

    def put_group(self, group: PodGroup) -> None:
        self._groups[group.key] = group

    def delete_group(self, key: GroupKey) -> None:
        self._groups.pop(key, None)

    def set_fault(self, fault: str) -> None:
        self.fault = fault

    def replace_groups(self, groups: Iterable[PodGroup]) -> None:
        self._groups = {group.key: group for group in groups}
