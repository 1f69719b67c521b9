"""When a charge ends: its pod is over in the API, its cgroups are gone, and the kubelet's book lacks it."""

from typing import Final

from allocator.ledger import charges
from allocator.ledger.facts import Facts
from allocator.ledger.pods import Grant, Mark, PodFacts

SETTLE_S: Final = 10.0
"""A container that the kubelet is about to start has its cgroup by then."""

LOST_GRANT_S: Final = 2.0
"""The book shows an Allocate within milliseconds; after so long the kubelet is made to write it again."""

WRITES: Final = 2
"""Writes of the book that must lack an Allocate: an older copy may overwrite a newer one, once."""


def is_dead(one: PodFacts) -> bool:
    """Whether nothing of the pod runs any more, nor will.

    A pod that is over and has no cgroup may be one whose containers the kubelet is about to start: where
    none was ever seen, some time must pass before the look, see `may_start_until`.
    """
    look = last_look(one)
    return look is not None and (one.ran or look.at_s >= may_start_until(one))


def last_look(one: PodFacts) -> Mark | None:
    """When a look at the cgroups began that found nothing of a pod after it was over; None if none did."""
    found = one.over is not None and one.death is not None and one.death.order >= one.over.order
    return one.death if found else None


def may_start_until(one: PodFacts) -> float:
    """When the first container of a pod that is over has its cgroup at the latest, in seconds.

    The kubelet may hear of the end late, and may have waited with the start until then, as for a network that
    was not ready. Once its book lacks the pod it has heard.
    """
    return SETTLE_S + max(mark.at_s for mark in (one.over, one.since, one.unlisted) if mark is not None)


def is_unlisted(one: PodFacts) -> bool:
    """Whether the kubelet's book had no entry of the pod any more when its cgroups were looked for.

    A kubelet that restarts admits its first pods against the book as it finds it: what stands there is not
    free, whatever has ended. And as long as it stands there the kubelet may not have heard of the end.
    """
    if one.book or one.death is None:
        return False
    return one.unlisted is None or one.death.order > one.unlisted.order


def is_over(facts: Facts, one: PodFacts, now_s: float) -> bool:
    """Whether nothing more can come of a pod: its charge ends now, or it has none and its turn is past."""
    if charges.is_charged(one):
        return is_dead(one) and is_unlisted(one)
    if one.over is None or any(may_be_of(grant, one) for grant in facts.grants):
        return False
    return not waits_its_turn(one, now_s)


def is_void(facts: Facts, grant: Grant, now_s: float) -> bool:
    """Whether nothing comes of an Allocate: the book never shows it, and nobody is about to run with it."""
    if grant.writes < WRITES or now_s < grant.at.at_s + LOST_GRANT_S:
        return False
    return not any(may_be_of(grant, one) for one in facts.open.values())


def may_be_of(grant: Grant, one: PodFacts) -> bool:
    """Whether an Allocate that the book does not show may be of a pod that was deleted since.

    The kubelet may have dropped the entry before anybody read it, and started the containers all the same.
    Once one of them was seen the pod is charged itself; one that failed the kubelet has refused.
    """
    if one.over is None or not one.bound or one.since is not None or one.ran or one.pod.terminal:
        return False
    look = last_look(one)
    return look is None or look.at_s < max(one.over.at_s, grant.at.at_s) + SETTLE_S


def lingering(facts: Facts) -> list[PodFacts]:
    """Pods that are over and whose containers may run on, whatever of it the kubelet offers again.

    Those that were seen to run, and those that the book had when it was read last: the kubelet drops them
    before it asks, and writes its book after that.
    """
    return [
        one
        for one in facts.open.values()
        if one.over is not None and (one.ran or one.book) and not is_dead(one)
    ]


def waits_its_turn(one: PodFacts, now_s: float) -> bool:
    """Whether the kubelet may still ask for a pod that is gone; one that failed it has refused."""
    return one.over is not None and not one.pod.terminal and now_s < one.over.at_s + SETTLE_S


def stale(facts: Facts, now_s: float) -> bool:
    """Whether the kubelet should be made to clean its book and to write it.

    A daemon that starts need not ask: the kubelet answers its first list of devices with a write. But it may
    read an older copy, which lacks some containers of a pod that the kubelet has admitted.
    """
    return any((one.book and last_look(one)) or is_behind(facts, one) for one in facts.open.values()) or any(
        grant.writes < WRITES and now_s >= grant.at.at_s + LOST_GRANT_S for grant in facts.grants
    )


def is_behind(facts: Facts, one: PodFacts) -> bool:
    """Whether the book has only a part of an admitted pod, and was not written since that was known."""
    return bool(one.book and one.missing) and one.admitted is not None and one.admitted.order > facts.read
