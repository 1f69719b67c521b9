"""PodGroups of the coscheduling plugin, as far as they say how many pods start together. Pure.

Source: https://github.com/kubernetes-sigs/scheduler-plugins, pkg/coscheduling.
"""

from collections.abc import Container, Iterable, Mapping
from typing import Final

import msgspec

from allocator.names import POD_GANG, POD_GANG_SIZE
from scheduler_plugin.cache.objects import KubeStruct, PodMetadata

POD_GROUPS_PATH: Final = "/apis/scheduling.x-k8s.io/v1alpha1/podgroups"

GROUP_LABELS: Final = ("scheduling.x-k8s.io/pod-group", "pod-group.scheduling.sigs.k8s.io")
"""Labels that name a pod's PodGroup; the first one counts where a pod has both."""


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
    """

    pod_group_size: int | None = None


def read_group_label(labels: Mapping[str, str] | None) -> tuple[str, str]:
    """Read the label that names a pod's PodGroup: its key and value; both empty where there is none."""
    for key in GROUP_LABELS:
        if name := (labels or {}).get(key):
            return key, name
    return "", ""


def read_gang_name(metadata: PodMetadata) -> str:
    """Read the name of a pod's gang: of its annotation, else of its label; empty where it has none."""
    return (metadata.annotations or {}).get(POD_GANG) or read_group_label(metadata.labels)[1]


def needs_group(metadata: PodMetadata) -> bool:
    """Tell whether a PodGroup says how large a pod's gang is."""
    annotations = metadata.annotations or {}
    return (
        not annotations.get(POD_GANG)
        and POD_GANG_SIZE not in annotations
        and bool(read_group_label(metadata.labels)[1])
    )


def read_group_key(metadata: PodMetadata) -> tuple[str, str]:
    """Read namespace and name of a pod's PodGroup."""
    return metadata.namespace, read_group_label(metadata.labels)[1]


class PodGroupSizes:
    """Knows `minMember` of PodGroups, by namespace and name."""

    def __init__(self, groups: Iterable[PodGroup] = ()) -> None:
        self._sizes: dict[tuple[str, str], int] = {}
        for group in groups:
            self.put(group)

    def put(self, group: PodGroup) -> bool:
        """Take one that is new or has changed; tell whether its size is another one."""
        key, size = (group.metadata.namespace, group.metadata.name), group.spec.min_member
        changed = self._sizes.get(key) != size
        self._sizes[key] = size
        return changed

    def forget_unused(self, used: Container[tuple[str, str]]) -> None:
        """Drop the sizes of PodGroups that no pod names."""
        self._sizes = {key: size for key, size in self._sizes.items() if key in used}

    def complete(self, metadata: GroupedMetadata) -> None:
        """Write the size of a pod's gang where its PodGroup says it, and the pod itself does not."""
        if needs_group(metadata):
            metadata.pod_group_size = self._sizes.get(read_group_key(metadata))
