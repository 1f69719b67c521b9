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
                "unaccounted_use": facts.unaccounted_use.get(uuid, 0),
                "healthy": card.healthy,
                "cordoned": card.cordoned,
            }
            for (uuid, card), units in zip(facts.cards.items(), charges.used_units(facts), strict=True)
        ],
        "checkpoint": [
            {"pod": uid, "container": name, "cards": facts.units_by_card(ids)}
            for uid, account in facts.pods.items()
            for name, ids in account.checkpoint_ids.items()
        ],
        "pending": [
            {"pod": uid, "container": name, "cards": facts.units_by_card(ids)}
            for uid, account in facts.pods.items()
            for name, ids in account.pending_ids.items()
        ],
        "charged": {
            uid: units
            for uid, account in sorted(facts.pods.items())
            if (units := charges.charge_pod(facts, account))
        },
        "pods": [
            {
                "uid": account.pod.uid,
                "pod": f"{account.pod.namespace}/{account.pod.name}",
                "assigned": account.pod.assigned,
                "admitted": account.admitted,
                "has_run": account.has_run,
                "is_live": account.is_live,
                "in_holds": account.is_complete,
            }
            for account in facts.pods.values()
            if account.bound
        ],
    }
