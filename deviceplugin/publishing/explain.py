"""Collects what the node daemon knows, for /explain."""

from typing import Any

from allocator.ledger import charges
from allocator.ledger.accounts import NodeAccounts


def explain_node(accounts: NodeAccounts) -> dict[str, Any]:
    """Collect the daemon's state for people, as JSON values."""
    charged_units = charges.charge_cards(accounts)
    compute = dict(zip(accounts.cards, charges.used_compute(accounts), strict=True))
    return {
        "cards": [
            {
                "uuid": uuid,
                "size": card.size_units,
                "used": units,
                "charged": charged_units[uuid],
                "compute": compute[uuid],
                "unaccounted_use": accounts.unaccounted_use.get(uuid, 0),
                "healthy": card.healthy,
                "is_closed": card.is_closed,
            }
            for (uuid, card), units in zip(accounts.cards.items(), charges.used_units(accounts), strict=True)
        ],
        "checkpoint": [
            {"pod": uid, "container": name, "cards": accounts.units_by_card(ids)}
            for uid, account in accounts.pods.items()
            for name, ids in account.checkpoint_ids.items()
        ],
        "pending": [
            {"pod": uid, "container": name, "cards": accounts.units_by_card(ids)}
            for uid, account in accounts.pods.items()
            for name, ids in account.pending_ids.items()
        ],
        "charged": {
            uid: units
            for uid, account in sorted(accounts.pods.items())
            if (units := charges.charge_pod(accounts, account))
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
            for account in accounts.pods.values()
            if account.bound
        ],
    }
