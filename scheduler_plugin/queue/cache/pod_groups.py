"""PodGroups of the coscheduling plugin: how large the gangs are that they name. Pure.

Source: https://github.com/kubernetes-sigs/scheduler-plugins, pkg/coscheduling.
"""

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from allocator.names import POD_GANG, POD_GANG_SIZE
from scheduler_plugin.cache.gang_names import read_group_label
from scheduler_plugin.cache.objects import KubeStruct, PodMetadata

_API: Final = "/apis/scheduling.x-k8s.io/v1alpha1"
POD_GROUPS_PATH: Final = f"{_API}/podgroups"


def make_pod_groups_path(namespace: str) -> str:
    """Make the path of a namespace's PodGroups; a name from outside has to be quoted before."""
    return f"{_API}/namespaces/{namespace}/podgroups"


class PodGroupMetadata(KubeStruct):
    """`metadata` of a PodGroup."""

    name: str = ""
    namespace: str = ""
    resource_version: str = ""


class PodGroupSpec(KubeStruct):
    """`spec` of a PodGroup."""

    min_member: int = 0


class PodGroup(KubeStruct):
    """A PodGroup of the API group `scheduling.x-k8s.io`."""

    metadata: PodGroupMetadata = msgspec.field(default_factory=PodGroupMetadata)
    spec: PodGroupSpec = msgspec.field(default_factory=PodGroupSpec)


class GroupedMetadata(PodMetadata):
    """`metadata` of a pod that may belong to a PodGroup.

    Attributes:
        pod_group_size: `minMember` of its PodGroup, written by `PodGroupSizes`; no field of the API.
        pod_groups_fault: Why PodGroups cannot be read, from there too; empty where they can be.
    """

    pod_group_size: int | None = None
    pod_groups_fault: str = ""


def needs_group(metadata: PodMetadata) -> bool:
    """Tell whether a PodGroup says how large a pod's gang is."""
    annotations = metadata.annotations or {}
    return (
        not annotations.get(POD_GANG)
        and POD_GANG_SIZE not in annotations
        and bool(read_group_label(metadata.labels)[1])
    )


def read_group_key(metadata: PodMetadata) -> tuple[str, str]:
    return metadata.namespace, read_group_label(metadata.labels)[1]


class PodGroupSizes:
    """Knows `minMember` of PodGroups, by namespace and name.

    A size outlives its PodGroup as long as a pod names it, so that a running gang keeps its own.

    Attributes:
        fault: Why PodGroups cannot be read; empty where they can be, or the cluster has none.
    """

    def __init__(self, groups: Iterable[PodGroup] = ()) -> None:
        self.fault = ""
        self._sizes: dict[tuple[str, str], int] = {}
        self._deleted: set[tuple[str, str]] = set()
        for group in groups:
            self.put(group)

    @property
    def existing(self) -> set[tuple[str, str]]:
        """Namespaces and names of the PodGroups that were not deleted."""
        return self._sizes.keys() - self._deleted

    def put(self, group: PodGroup) -> bool:
        """Take one that is new or has changed; tell whether its size is another one."""
        key, size = (group.metadata.namespace, group.metadata.name), group.spec.min_member
        changed = self._sizes.get(key) != size
        self._sizes[key] = size
        self._deleted.discard(key)
        return changed

    def delete(self, key: tuple[str, str]) -> None:
        """Mark a PodGroup as deleted; `forget_deleted` drops its size."""
        if key in self._sizes:
            self._deleted.add(key)

    def forget_deleted(self, key: tuple[str, str]) -> None:
        """Drop the size of a PodGroup that no pod names any more, where it was deleted."""
        if key in self._deleted:
            self._deleted.remove(key)
            del self._sizes[key]

    def complete(self, metadata: GroupedMetadata) -> None:
        """Write the size of a pod's gang where its PodGroup says it, and the pod itself does not."""
        if needs_group(metadata):
            metadata.pod_group_size = self._sizes.get(read_group_key(metadata))
            metadata.pod_groups_fault = self.fault


class GroupedPods:
    """Pods whose PodGroup says their gang's size, and the PodGroups: which pods a change of one concerns."""

    def __init__(self) -> None:
        self._sizes = PodGroupSizes()
        self._pods: dict[tuple[str, str], dict[str, Any]] = {}
        self._keys: dict[str, tuple[str, str]] = {}

    @property
    def uids(self) -> set[str]:
        return set(self._keys)

    def complete(self, metadata: GroupedMetadata) -> None:
        """Write the size of a pod's gang, as `PodGroupSizes.complete`."""
        self._sizes.complete(metadata)

    def put_pod(self, pod: Any) -> bool:
        """Take a pod that is new or has changed; tell whether a PodGroup says its gang's size."""
        if not needs_group(pod.metadata):
            self.remove_pod(pod.metadata.uid)
            return False
        uid, key = pod.metadata.uid, read_group_key(pod.metadata)
        if self._keys.get(uid) != key:
            self.remove_pod(uid)
        self._keys[uid] = key
        self._pods.setdefault(key, {})[uid] = pod
        return True

    def remove_pod(self, uid: str) -> None:
        """Drop a pod; the last one takes the size of a deleted PodGroup with it."""
        key = self._keys.pop(uid, None)
        if key is None:
            return
        pods = self._pods[key]
        del pods[uid]
        if not pods:
            del self._pods[key]
            self._sizes.forget_deleted(key)

    def put_group(self, group: PodGroup) -> list[Any]:
        """Take a PodGroup that is new or has changed; return its pods where its size is another one."""
        key = group.metadata.namespace, group.metadata.name
        return list(self._pods.get(key, {}).values()) if self._sizes.put(group) else []

    def delete_group(self, key: tuple[str, str]) -> None:
        """Take the end of a PodGroup; its size goes with the last pod that names it."""
        self._sizes.delete(key)
        if key not in self._pods:
            self._sizes.forget_deleted(key)

    def replace_groups(self, groups: Iterable[PodGroup]) -> list[Any]:
        """Take all PodGroups; return the pods of those whose size is another one."""
        changed, listed = [], set()
        for group in groups:
            listed.add((group.metadata.namespace, group.metadata.name))
            changed += self.put_group(group)
        for key in self._sizes.existing - listed:
            self.delete_group(key)
        return changed

    def set_fault(self, fault: str) -> list[Any]:
        """Take why PodGroups cannot be read, empty where they can be; return all pods where that is new."""
        if fault == self._sizes.fault:
            return []
        self._sizes.fault = fault
        return [pod for pods in self._pods.values() for pod in pods.values()]
