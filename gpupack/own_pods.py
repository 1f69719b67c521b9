"""How gpupack's own pods are found: those of node daemons, and the placeholders of autoscale."""

from typing import Final

from allocator.names import PLACEHOLDER_LABEL, PLACEHOLDER_SCHEDULER
from kubeapi.objects import Pod

DAEMON_NAMES: Final = ("gpupack-node", "gpupack-node-dra")
"""Label `app.kubernetes.io/name` of the node daemons' pods."""


def is_placeholder(pod: Pod) -> bool:
    """Tell whether a pod is one of ours that asks a cluster autoscaler for a node, and never runs."""
    return (
        PLACEHOLDER_LABEL in (pod.metadata.labels or {}) and pod.spec.scheduler_name == PLACEHOLDER_SCHEDULER
    )
