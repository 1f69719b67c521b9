"""PodGroups of Kubernetes or of the coscheduling plugin, and the pods that name them. Pure.

kube-scheduler places all pods of one of Kubernetes' own PodGroups in one cycle, from Kubernetes 1.37 on. A
PodGroup of the plugin only says how many pods a gang has.

Sources: https://github.com/kubernetes/api, scheduling/v1beta1;
https://github.com/kubernetes-sigs/scheduler-plugins, pkg/coscheduling.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

from allocator.errors import shown
from allocator.names import POD_GANG, POD_GANG_SIZE
from allocator.texts import list_some
from kubeapi.objects import ObjectMeta, PodGroup
from scheduler_plugin.cache.gang_names import read_group_label
from scheduler_plugin.cache.pods import PodRecord

P = TypeVar("P")

GroupKey = tuple[str, str]
"""Namespace and name of a PodGroup."""

KUBERNETES: Final = tuple(f"/apis/scheduling.k8s.io/{version}" for version in ("v1", "v1beta1", "v1alpha3"))
COSCHEDULING: Final = ("/apis/scheduling.x-k8s.io/v1alpha1",)

VALUES_SHOWN: Final = 3
"""Values that a message names of those on which the pods of a gang disagree."""

_NOBODY: Final[Mapping[str, Any]] = MappingProxyType({})


def list_pod_group_paths(apis: Sequence[str], namespace: str = "") -> tuple[str, ...]:
    """List where PodGroups may be served, of one namespace or of all; the first that is served counts."""
    within = f"namespaces/{namespace}/" if namespace else ""
    return tuple(f"{api}/{within}podgroups" for api in apis)


def find_coscheduling_key(metadata: ObjectMeta) -> GroupKey | None:
    """Find the PodGroup of the coscheduling plugin that says the size of a pod's gang; None if none does."""
    annotations = metadata.annotations or {}
    if annotations.get(POD_GANG) or POD_GANG_SIZE in annotations:
        return None
    name = read_group_label(metadata.labels)[1]
    return (metadata.namespace, name) if name else None


class PodGroups(Generic[P]):
    """PodGroups of one API as last seen, and all known pods that name one, whether it exists or not.

    Methods that change PodGroups return the keys of those of which something else is known now.

    Args:
        keeps_deleted: A PodGroup counts after it was deleted, for as long as a pod names it: a running gang
            keeps its size.

    Attributes:
        is_wanted: Some pod has named a PodGroup. Where that never happens nothing need be watched: Kubernetes
            before 1.37, or without its feature gate GenericWorkload, drops the field from pods.
        fault: Why PodGroups cannot be read; empty if they can be, or if none are served.
    """

    def __init__(self, *, keeps_deleted: bool = False) -> None:
        self.is_wanted = False
        self.fault = ""
        self._keeps_deleted = keeps_deleted
        self._groups: dict[GroupKey, PodGroup] = {}
        self._deleted: set[GroupKey] = set()
        self._members: dict[GroupKey, dict[str, P]] = {}
        self._keys: dict[str, GroupKey] = {}

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

    def ends_together(self, key: GroupKey | None, said_size: int = 0) -> bool:
        """Return True unless the pods of a PodGroup are known to be of use without each other.

        kube-controller-manager makes a PodGroup without a gang policy for each Job, if it makes any.

        Args:
            key: None, of a pod without a PodGroup, gives False.
            said_size: Size of the gang by the pods' annotation, which may ask for more than their PodGroup.
                kube-scheduler does not know it, and starts such pods one by one all the same.
        """
        return key is not None and (said_size > 1 or self.get_min_count(key) != 1)

    def explain_missing(self, key: GroupKey) -> str:
        """Say that a PodGroup is not there, or why that is not known; empty if it is."""
        if key in self._groups:
            return ""
        name = shown(key[1])
        return (
            f"PodGroup {name} cannot be read ({self.fault})" if self.fault else f"there is no PodGroup {name}"
        )

    def list_counted(self: "PodGroups[PodRecord]", key: GroupKey) -> list[PodRecord]:
        """List the pods that kube-scheduler counts for a PodGroup."""
        return [pod for pod in self.get_members(key).values() if pod.is_counted_in_group]

    def explain_disagreement(self, key: GroupKey, counted: Collection[PodRecord]) -> str:
        """Say why kube-scheduler starts no pod of a PodGroup whose pods differ; empty if it may."""
        name = f"PodGroup {shown(key[1])}"
        for what, values in (
            ("schedulerName", {pod.scheduler for pod in counted}),
            ("preemptionPolicy", {pod.preemption_policy for pod in counted}),
        ):
            if len(values) > 1:
                disagree = (
                    f"the pods of {name} disagree on {what} ({list_some(sorted(values), VALUES_SHOWN)})"
                )
                return f"{disagree}: kube-scheduler starts none of such a group"
        group = self._groups.get(key)
        own = 0 if group is None else group.spec.priority or 0
        other = next((pod.priority for pod in counted if pod.priority != own), own)
        if other == own:
            return ""
        return f"{name} has priority {own}, and a pod of it {other}: kube-scheduler starts no such group"

    def get_members(self, key: GroupKey) -> Mapping[str, P]:
        """Return the pods that name a PodGroup, by UID: waiting, bound and ended ones."""
        return self._members.get(key, _NOBODY)

    def put_member(self, key: GroupKey | None, uid: str, pod: P) -> None:
        """Add a pod's newest version, which names the PodGroup `key`, or none."""
        if self._keys.get(uid) != key:
            self.remove_member(uid)
        if key is not None:
            self.is_wanted = True
            self._keys[uid] = key
            self._members.setdefault(key, {})[uid] = pod

    def remove_member(self, uid: str) -> None:
        """Remove a pod; with the last pod of a deleted PodGroup that is removed too."""
        key = self._keys.pop(uid, None)
        if key is None:
            return
        members = self._members[key]
        del members[uid]
        if not members:
            del self._members[key]
            if key in self._deleted:
                self._deleted.remove(key)
                del self._groups[key]

    def remove_other_members(self, listed: AbstractSet[str]) -> None:
        for uid in self._keys.keys() - listed:
            self.remove_member(uid)

    def put_group(self, group: PodGroup) -> Collection[GroupKey]:
        before = self._groups.get(group.key)
        self._groups[group.key] = group
        self._deleted.discard(group.key)
        return () if before is not None and before.spec == group.spec else (group.key,)

    def delete_group(self, key: GroupKey) -> Collection[GroupKey]:
        if self._keeps_deleted and key in self._members:
            if key in self._groups:
                self._deleted.add(key)
            return ()
        return () if self._groups.pop(key, None) is None else (key,)

    def replace_groups(self, groups: Iterable[PodGroup]) -> Collection[GroupKey]:
        gone = self._groups.keys() - self._deleted
        changed: list[GroupKey] = []
        for group in groups:
            changed += self.put_group(group)
            gone.discard(group.key)
        for key in gone:
            changed += self.delete_group(key)
        return changed

    def set_fault(self, fault: str) -> Collection[GroupKey]:
        if fault == self.fault:
            return ()
        self.fault = fault
        return list(self._members)
