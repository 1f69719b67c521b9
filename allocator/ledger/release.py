"""When a charge ends: its pod is over in the API, its cgroups are gone, and the kubelet's book lacks it."""

from typing import Final

from allocator.ledger import charges
from allocator.ledger.facts import Facts, Grant, Mark, Slot

SETTLE_S: Final = 10.0
"""A container that the kubelet is about to start has its cgroup by then."""

LOST_GRANT_S: Final = 2.0
"""The book shows an Allocate within milliseconds; after so long the kubelet is made to write it again."""

WRITES: Final = 2
"""Writes of the book that must lack an Allocate: an older copy may overwrite a newer one, once."""


def over_since(facts: Facts, uid: str) -> Mark | None:
    """Tell since when the API server shows that a pod is over; None while it may live."""
    bound = facts.pods.get(uid)
    return bound.gone if bound is not None else facts.gone.get(uid)


def is_dead(facts: Facts, uid: str) -> bool:
    """Whether nothing of the pod runs any more, nor will.

    A pod that is over and has no cgroup may be one whose containers the kubelet is about to start: where
    none was ever seen, some time must pass before the look.
    """
    over, death = over_since(facts, uid), facts.deaths.get(uid)
    if over is None or death is None or death.order < over.order:
        return False
    if uid in facts.lived:
        return True
    held = facts.held.get(uid)
    began = max(over.at_s, held.since.at_s if held is not None else over.at_s)
    return death.at_s >= began + SETTLE_S


def is_unlisted(facts: Facts, uid: str) -> bool:
    """Whether the kubelet's book had no entry of the pod any more when its cgroups were looked for.

    A kubelet that restarts admits its first pods against the book as it finds it: what stands there is not
    free, whatever has ended. And as long as it stands there the kubelet may not have heard of the end.
    """
    if any(slot.uid == uid for slot in facts.book):
        return False
    unlisted = facts.unlisted.get(uid)
    return unlisted is None or facts.deaths[uid].order > unlisted.order


def releasable(facts: Facts) -> set[str]:
    """UIDs whose charge ends now."""
    return {uid for uid in charges.charged_uids(facts) if is_dead(facts, uid) and is_unlisted(facts, uid)}


def grants_not_in_book(facts: Facts) -> list[Grant]:
    """Take a write of the book: an Allocate ends when it shows it, or was written so often without it."""
    by_ids: dict[frozenset[str], set[Slot]] = {}
    for slot, ids in facts.book.items():
        by_ids.setdefault(ids, set()).add(slot)
    for grant in facts.grants:
        grant.writes += 1
        grant.before &= by_ids.get(grant.ids, set())
    return [grant for grant in facts.grants if not by_ids.get(grant.ids, set()) - grant.before]


def stale(facts: Facts, now_s: float) -> bool:
    """Whether the kubelet should be made to clean its book and to write it."""
    return any(is_dead(facts, slot.uid) for slot in facts.book) or any(
        now_s >= grant.at.at_s + LOST_GRANT_S for grant in facts.grants
    )


def unsettled(facts: Facts) -> bool:
    """Whether something ends without any event: see `Ledger.unsettled`."""
    uids = charges.charged_uids(facts) | facts.pods.keys()
    return bool(facts.grants) or any(over_since(facts, uid) is not None for uid in uids)


def waits_its_turn(facts: Facts, uid: str, now_s: float) -> bool:
    """Whether the kubelet may still ask for a pod that is gone and has nothing.

    It hears of a deletion before it hears of any pod that was bound after it. One that failed it has refused.
    """
    bound = facts.pods[uid]
    if bound.gone is None or bound.pod.terminal or uid in facts.held:
        return False
    later = any(
        uid in facts.held and other.seen.order > bound.gone.order for uid, other in facts.pods.items()
    )
    return not later and now_s < bound.gone.at_s + SETTLE_S
