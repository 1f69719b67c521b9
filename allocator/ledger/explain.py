"""What people are shown: who got which cards, and everything that the node knows."""

from typing import Any

from allocator.ledger import charges, places
from allocator.ledger.facts import BoundPod, Facts
from allocator.records import Assignment
from allocator.request import WHOLE, Demand


def allocation(facts: Facts, bound: BoundPod) -> Assignment | None:
    """What each container of a pod got; None where a card is not known."""
    pod = bound.pod
    shares: dict[str, tuple[tuple[str, int], ...]] = {}
    for demand in pod.request.demands:
        counts = facts.by_card(facts.ids_of(pod.key, demand.containers))
        if not counts or (len(counts) > 1 and pod.request.shared):
            return None
        cards = [uuid for uuid in facts.cards if uuid in counts]
        for container in pod.request.containers:
            if container.name in demand.containers:
                each = Demand((), container.units // len(cards), 1, pod.request.percent, WHOLE)
                shares[container.name] = tuple(
                    (uuid, each.units_on(facts.cards[uuid].size_units)) for uuid in cards
                )
    return shares


def allocations(facts: Facts) -> dict[str, Assignment]:
    """What the containers of held, unfinished pods got, by UID; without pods whose cards are unknown."""
    found = {
        bound.pod.uid: allocation(facts, bound)
        for bound in facts.pods.values()
        if bound.live and not facts.missing(bound)
    }
    return {uid: assignment for uid, assignment in found.items() if assignment is not None}


def explain(facts: Facts) -> dict[str, Any]:
    """Everything of interest to a person, as JSON values."""
    reserve = places.reserved(facts)
    promised = charges.charged(facts)
    return {
        "cards": [
            {
                "uuid": uuid,
                "size": card.size_units,
                "used": units,
                "charged": promised[uuid],
                "reserved": reserve.get(uuid, 0),
                "pressure": facts.pressure.get(uuid, 0),
                "healthy": card.healthy,
                "cordoned": card.cordoned,
            }
            for (uuid, card), units in zip(facts.cards.items(), charges.used(facts, reserve), strict=True)
        ],
        "book": [
            {"pod": slot.uid, "container": slot.container, "cards": facts.by_card(ids)}
            for slot, ids in facts.book.items()
        ],
        "granted": [{"cards": dict(grant.shares), "writes": grant.writes} for grant in facts.grants],
        "charged": {uid: charges.of_pod(facts, uid) for uid in sorted(charges.charged_uids(facts))},
        "pods": [
            {
                "uid": bound.pod.uid,
                "pod": f"{bound.pod.namespace}/{bound.pod.name}",
                "assigned": bound.pod.assigned,
                "admitted": bound.admitted,
                "ran": bound.pod.key in facts.lived,
                "over": not bound.live,
                "in_holds": charges.complete(facts, bound),
            }
            for bound in facts.queue()
        ],
    }
