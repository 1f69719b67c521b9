"""Collects what the node daemon knows, for /explain."""

from typing import Any

from allocator.ledger import charges
from allocator.ledger.accounts import NodeAccounts


def explain_node(facts: NodeAccounts) -> dict[str, Any]:
    """Collect the daemon's state for people, as JSON values."""
    promised = charges.charge_cards(facts)
    return {
        "cards": [
            {
                "uuid": uuid,
                "size": card.size_units,
                "used": units,
                "charged": promised[uuid],
                "pressure": facts.unaccounted_use.get(uuid, 0),
                "healthy": card.healthy,
                "cordoned": card.cordoned,
            }
            for (uuid, card), units in zip(facts.cards.items(), charges.used_units(facts), strict=True)
        ],
        "book": [
            {"pod": uid, "container": name, "cards": facts.units_by_card(ids)}
            for uid, one in facts.pods.items()
            for name, ids in one.checkpoint_ids.items()
        ],
        "given": [
            {"pod": uid, "container": name, "cards": facts.units_by_card(ids)}
            for uid, one in facts.pods.items()
            for name, ids in one.pending_ids.items()
        ],
        "charged": {
            uid: units for uid, one in sorted(facts.pods.items()) if (units := charges.charge_pod(facts, one))
        },
        "pods": [
            {
                "uid": one.pod.uid,
                "pod": f"{one.pod.namespace}/{one.pod.name}",
                "assigned": one.pod.assigned,
                "admitted": one.admitted,
                "ran": one.has_run,
                "over": not one.is_live,
                "in_holds": one.is_complete,
            }
            for one in facts.pods.values()
            if one.bound
        ],
    }
