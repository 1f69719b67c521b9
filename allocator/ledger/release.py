"""When a charge ends: its pod is over in the API, the kubelet's book lacks it, and its cgroups are gone."""

from typing import Final

from allocator.ledger.pods import PodFacts

SETTLE_S: Final = 10.0
"""A container that the kubelet is about to start has its cgroup by then, and it has heard of a pod's end."""


def is_over(one: PodFacts) -> bool:
    """Whether nothing of a pod runs any more, nor will.

    A kubelet that restarts admits its first pods against the book as it finds it: what stands there is not
    free, whatever has ended. And as long as it stands there the kubelet may not have heard of the end, or
    have waited with the start until then, as for a network that was not ready.
    """
    return not one.book and is_gone(one, 0.0 if one.ran else SETTLE_S)


def is_gone(one: PodFacts, after_s: float = 0.0) -> bool:
    """Whether a look at the cgroups, begun `after_s` after all that was heard of its end, found nothing."""
    return one.over is not None and one.death is not None and one.death >= one.over + after_s


def is_stale(one: PodFacts) -> bool:
    """Whether the kubelet should be made to clean its book and to write it: nothing of the pod runs."""
    return bool(one.book) and is_gone(one)
