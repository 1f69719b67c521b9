"""What people are shown: everything that the node knows."""

from typing import Any

from allocator.ledger import charges
from allocator.ledger.facts import Facts


def explain(facts: Facts) -> dict[str, Any]:
    """Everything of interest to a person, as JSON values."""
    promised = charges.charged(facts)
    return {
        "cards": [
            {
                "uuid": uuid,
                "size": card.size_units,
                "used": units,
                "charged": promised[uuid],
                "pressure": facts.pressure.get(uuid, 0),
                "healthy": card.healthy,
                "cordoned": card.cordoned,
            }
            for (uuid, card), units in zip(facts.cards.items(), charges.used(facts), strict=True)
        ],
        "book": [
            {"pod": uid, "container": name, "cards": facts.by_card(ids)}
            for uid, one in facts.pods.items()
            for name, ids in one.book.items()
        ],
        "given": [
            {"pod": uid, "container": name, "cards": facts.by_card(ids)}
            for uid, one in facts.pods.items()
            for name, ids in one.given.items()
        ],
        "charged": {
            uid: units for uid, one in sorted(facts.pods.items()) if (units := charges.of_pod(facts, one))
        },
        "pods": [
            {
                "uid": one.pod.uid,
                "pod": f"{one.pod.namespace}/{one.pod.name}",
                "assigned": one.pod.assigned,
                "admitted": one.admitted,
                "ran": one.ran,
                "over": not one.live,
                "in_holds": one.complete,
            }
            for one in facts.pods.values()
            if one.bound
        ],
    }
