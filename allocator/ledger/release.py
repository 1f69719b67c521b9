"""Decides when a charge ends: the API shows the pod's end, and checkpoint and cgroups lack the pod."""

from typing import Final

from allocator.ledger.pods import PodAccount

CGROUP_GRACE_S: Final = 10.0
"""Longest time between a pod's end and the cgroup of a container that the kubelet was about to start."""


def can_release(account: PodAccount) -> bool:
    """Tell whether the pod's units may be given to another pod.

    Three conditions must hold:

    1. The pod has ended in the API.
    2. The kubelet's checkpoint lacks it. A kubelet that restarts admits pods against the checkpoint. A
       kubelet that has not heard of the end may still start the pod.
    3. A probe of the cgroups that began after both found none.

    A pod that never ran gets `CGROUP_GRACE_S` more: the kubelet may be about to start its container.
    """
    return not account.checkpoint_ids and are_cgroups_gone(
        account, 0.0 if account.has_run else CGROUP_GRACE_S
    )


def are_cgroups_gone(account: PodAccount, after_s: float = 0.0) -> bool:
    """Tell whether a probe begun `after_s` after the newest evidence of the pod's end found no cgroup."""
    return (
        account.ended_at_s is not None
        and account.cgroups_gone_at_s is not None
        and account.cgroups_gone_at_s >= account.ended_at_s + after_s
    )


def needs_checkpoint_purge(account: PodAccount) -> bool:
    """Tell whether the checkpoint has a pod of which nothing runs, so that the kubelet should purge it."""
    return bool(account.checkpoint_ids) and are_cgroups_gone(account)
