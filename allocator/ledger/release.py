"""When a charge ends: its pod is over in the API, its cgroups are gone, and the kubelet's book lacks it."""

from typing import Final

from allocator.ledger.facts import Facts
from allocator.ledger.pods import Mark, PodFacts

SETTLE_S: Final = 10.0
"""A container that the kubelet is about to start has its cgroup by then, and it has heard of a pod's end."""


def is_over(one: PodFacts) -> bool:
    """Whether nothing of a pod runs any more, nor will.

    A kubelet that restarts admits its first pods against the book as it finds it: what stands there is not
    free, whatever has ended. And as long as it stands there the kubelet may not have heard of the end.
    """
    look = last_look(one)
    if look is None or one.book or (one.unlisted is not None and look.order <= one.unlisted.order):
        return False
    return one.ran or look.at_s >= may_start_until(one)


def last_look(one: PodFacts) -> Mark | None:
    """When a look at the cgroups began that found nothing of a pod after it was over; None if none did."""
    found = one.over is not None and one.death is not None and one.death.order >= one.over.order
    return one.death if found else None


def may_start_until(one: PodFacts) -> float:
    """When the first container of a pod that is over has its cgroup at the latest, in seconds.

    The kubelet may hear of the end late, and may have waited with the start until then, as for a network that
    was not ready. Once its book lacks the pod it has heard.
    """
    return SETTLE_S + max(mark.at_s for mark in (one.over, one.unlisted) if mark is not None)


def lingering(facts: Facts) -> list[PodFacts]:
    """Pods that are over and whose containers may run on, whatever of it the kubelet offers again."""
    return [one for one in facts.pods.values() if one.over is not None and (one.units or one.remembered)]


def is_stale(facts: Facts, one: PodFacts) -> bool:
    """Whether the kubelet should be made to clean its book and to write it.

    It has entries of a pod that ended, or lacks some of a pod that was admitted and was not written since
    that was known: it may be an older copy, put over a newer one.
    """
    if one.over is not None:
        return bool(one.book) and last_look(one) is not None
    behind = any(container.name not in one.book for container in one.pod.request.containers)
    return behind and one.admitted is not None and one.admitted.order > facts.read
