"""Names of gangs: of PodGroups, of annotations and of groups of a LeaderWorkerSet. Pure.

Sources: https://github.com/kubernetes/api, scheduling/v1beta1, for Kubernetes' own PodGroups;
https://github.com/kubernetes-sigs/scheduler-plugins, pkg/coscheduling, for those of its plugin;
https://github.com/kubernetes-sigs/lws, api/leaderworkerset/v1.
"""

import re
from collections.abc import Mapping
from typing import Final

from allocator.names import POD_GANG, POD_GANG_SIZE
from kubeapi.objects import Pod

GROUP_LABELS: Final = ("scheduling.x-k8s.io/pod-group", "pod-group.scheduling.sigs.k8s.io")
"""Labels that name a pod's PodGroup; the first one counts where a pod has both."""

WORKER_GROUP_LABELS: Final = ("leaderworkerset.sigs.k8s.io/name", "leaderworkerset.sigs.k8s.io/group-index")
"""Labels that name a pod's LeaderWorkerSet, and its group in it."""

MAX_GANG: Final = 1024
_SIZE: Final = re.compile(r"[1-9][0-9]{0,3}")


def parse_gang_size(text: str | None) -> int:
    """Parse the number of pods of a gang; 0 if it is not a whole number from 1 to `MAX_GANG`."""
    size = int(text) if text is not None and _SIZE.fullmatch(text) else 0
    return size if size <= MAX_GANG else 0


def read_group_label(labels: Mapping[str, str] | None) -> tuple[str, str]:
    """Read the label that names a pod's PodGroup: its key and value; both empty if there is none."""
    if labels:
        for key in GROUP_LABELS:
            if name := labels.get(key):
                return key, name
    return "", ""


def read_worker_group(labels: Mapping[str, str] | None) -> str:
    """Read the group of a LeaderWorkerSet that a pod belongs to, as its leader is called; empty for none."""
    if not labels:
        return ""
    of_set, index = labels.get(WORKER_GROUP_LABELS[0]), labels.get(WORKER_GROUP_LABELS[1])
    return f"{of_set}-{index}" if of_set and index else ""


def read_gang_name(pod: Pod) -> str:
    """Read the name of a pod's gang: of its PodGroup, its annotation, else labels; empty if it has none."""
    if pod.scheduling_group is not None:
        return pod.scheduling_group[1]
    noted, labels = pod.metadata.annotations or {}, pod.metadata.labels
    name = noted.get(POD_GANG) or read_group_label(labels)[1]
    # The groups of a LeaderWorkerSet are gangs for those who ask for it.
    return name or (read_worker_group(labels) if POD_GANG_SIZE in noted else "")


def read_gang_key(pod: Pod) -> tuple[str, str] | None:
    """Read the key shared by pods that start, move and end together; None for a pod on its own.

    It is the namespace and the name of the PodGroup, the gang, or the group of a LeaderWorkerSet, which
    recreates all pods of a group when one of them is gone.
    """
    name = read_gang_name(pod) or read_worker_group(pod.metadata.labels)
    return (pod.metadata.namespace, name) if name else None
