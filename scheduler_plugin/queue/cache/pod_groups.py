"""PodGroups of the coscheduling plugin, which say how many pods a gang has. Pure.

Source: https://github.com/kubernetes-sigs/scheduler-plugins, pkg/coscheduling.
"""

from collections.abc import Iterable
from typing import Final

from allocator.names import POD_GANG, POD_GANG_SIZE
from kubeapi.objects import ObjectMeta, Pod, PodGroup
from scheduler_plugin.cache.gang_names import read_group_label

_API: Final = "/apis/scheduling.x-k8s.io/v1alpha1"
POD_GROUPS_PATH: Final = f"{_API}/podgroups"


def make_pod_groups_path(namespace: str) -> str:
    """Make the path of a namespace's PodGroups; a name from outside has to be quoted before."""
    return f"{_API}/namespaces/{namespace}/podgroups"


def needs_group(metadata: ObjectMeta) -> bool:
    """Return True if the size of the pod's gang comes from a PodGroup."""
    annotations = metadata.annotations or {}
    return (
        not annotations.get(POD_GANG)
        and POD_GANG_SIZE not in annotations
        and bool(read_group_label(metadata.labels)[1])
    )


def read_group_key(metadata: ObjectMeta) -> tuple[str, str]:
    return metadata.namespace, read_group_label(metadata.labels)[1]


class PodGroupSizes:
    """Knows `minMember` of PodGroups, by namespace and name.

    A size is kept after its PodGroup is deleted for as long as a pod names it, so that a running gang keeps
    its size.

    Attributes:
        fault: Why PodGroups cannot be read; empty if they can be, or the cluster has none.
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
        """Add or update a PodGroup; return True if its size has changed."""
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
        """Drop the size of a deleted PodGroup that no pod names any more."""
        if key in self._deleted:
            self._deleted.remove(key)
            del self._sizes[key]

    def get_size(self, metadata: ObjectMeta) -> int | None:
        """Return the size of a pod's gang from its PodGroup; None if none is known, or the pod states one."""
        return self._sizes.get(read_group_key(metadata)) if needs_group(metadata) else None


class GroupedPods:
    """Pods that get their gang's size from a PodGroup, so that a change of a PodGroup reaches its pods.

    Args:
        sizes: The sizes, which are kept up to date here.
    """

    def __init__(self, sizes: PodGroupSizes) -> None:
        self._sizes = sizes
        self._pods: dict[tuple[str, str], dict[str, Pod]] = {}
        self._keys: dict[str, tuple[str, str]] = {}

    @property
    def uids(self) -> set[str]:
        return set(self._keys)

    def put_pod(self, pod: Pod) -> bool:
        """Add or update a pod; return True if a PodGroup gives its gang's size."""
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
        """Drop a pod; with the last pod of a deleted PodGroup its size is dropped too."""
        key = self._keys.pop(uid, None)
        if key is None:
            return
        pods = self._pods[key]
        del pods[uid]
        if not pods:
            del self._pods[key]
            self._sizes.forget_deleted(key)

    def put_group(self, group: PodGroup) -> list[Pod]:
        """Add or update a PodGroup; return its pods if its size has changed."""
        key = group.metadata.namespace, group.metadata.name
        return list(self._pods.get(key, {}).values()) if self._sizes.put(group) else []

    def delete_group(self, key: tuple[str, str]) -> None:
        """Delete a PodGroup; its size is kept until the last pod that names it is gone."""
        self._sizes.delete(key)
        if key not in self._pods:
            self._sizes.forget_deleted(key)

    def replace_groups(self, groups: Iterable[PodGroup]) -> list[Pod]:
        """Replace all PodGroups; return the pods of those whose size has changed."""
        changed, listed = [], set()
        for group in groups:
            listed.add((group.metadata.namespace, group.metadata.name))
            changed += self.put_group(group)
        for key in self._sizes.existing - listed:
            self.delete_group(key)
        return changed

    def set_fault(self, fault: str) -> list[Pod]:
        """Set why PodGroups cannot be read, empty if they can; return all pods if that has changed."""
        if fault == self._sizes.fault:
            return []
        self._sizes.fault = fault
        return [pod for pods in self._pods.values() for pod in pods.values()]
