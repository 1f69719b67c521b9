"""Evicting pods, and saying which node is kept for a pod that waits: what a preemptor writes."""

from kubeapi.object_api import ObjectApi
from kubeapi.paths import make_pod_path

WRITE_S = 10.0
"""Time-out of one of these requests."""


async def evict_pod(
    api: ObjectApi,
    namespace: str,
    name: str,
    uid: str,
    *,
    dry_run: bool = False,
    timeout_s: float = WRITE_S,
) -> None:
    """Evict exactly the pod with that UID; its grace period is its own.

    Raises:
        NotFound: no such pod.
        Conflict: cause "uid", another pod has the name now.
        BudgetRefused: a PodDisruptionBudget does not allow it now.
        Invalid: more than one PodDisruptionBudget covers the pod.
        KubeApiError: see errors.py.
    """
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": namespace},
        "deleteOptions": {"preconditions": {"uid": uid}, **({"dryRun": ["All"]} if dry_run else {})},
    }
    await api.post(f"{make_pod_path(namespace, name)}/eviction", body, timeout_s=timeout_s)


def make_immediate_deletion(uid: str) -> dict[str, object]:
    """Make DeleteOptions that end exactly the pod with that UID, without a grace period."""
    return {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "gracePeriodSeconds": 0,
        "preconditions": {"uid": uid},
    }


async def nominate_node(api: ObjectApi, namespace: str, name: str, uid: str, node: str) -> bytes:
    """Say which node is kept for exactly the pod with that UID; return the pod as it is then.

    Args:
        node: for status.nominatedNodeName; empty takes it back.

    Raises:
        NotFound: no such pod.
        Conflict: cause "uid", another pod has the name now.
        KubeApiError: see errors.py.
    """
    body = {"metadata": {"uid": uid}, "status": {"nominatedNodeName": node or None}}
    return await api.patch(f"{make_pod_path(namespace, name)}/status", body, timeout_s=WRITE_S)
