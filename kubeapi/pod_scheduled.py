"""Writes the condition `PodScheduled` of a pod, as every scheduler does."""

from collections.abc import Mapping
from typing import Any, Final

from kubeapi.errors import shorten
from kubeapi.metadata import format_time
from kubeapi.object_api import ObjectApi
from kubeapi.objects import SCHEDULED
from kubeapi.paths import STRATEGIC_PATCH, make_pod_path

LONGEST: Final = 1024  # characters of a message


def make_refusal(reason: str, message: str, now: float) -> dict[str, str]:
    """Make the condition of a pod that is not scheduled.

    Args:
        reason: With `Unschedulable` cluster autoscalers look for a node to add.
        now: Seconds since the epoch.
    """
    return {
        "status": "False",
        "reason": reason,
        "message": shorten(message, LONGEST),
        "lastTransitionTime": format_time(now),
    }


async def write_scheduled(
    api: ObjectApi,
    namespace: str,
    name: str,
    condition: Mapping[str, str],
    *,
    uid: str | None = None,
    timeout_s: float,
) -> None:
    """Write fields of the condition, which a strategic merge patch finds by its type.

    Args:
        uid: The pod that is meant; None: whichever has the name.

    Raises:
        Conflict: cause "uid", another pod has the name now.
        KubeApiError: the write failed.
    """
    body: dict[str, Any] = {"status": {"conditions": [{"type": SCHEDULED, **condition}]}}
    if uid is not None:
        body["metadata"] = {"uid": uid}
    path = f"{make_pod_path(namespace, name)}/status"
    await api.patch(path, body, STRATEGIC_PATCH, timeout_s=timeout_s)
