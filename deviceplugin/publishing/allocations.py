"""Writes what containers got into the `allocation` annotation of their pod."""

from allocator.ledger import PodAccount
from allocator.ledger.accounts import NodeAccounts
from allocator.records import Assignment


def list_allocations(facts: NodeAccounts) -> dict[str, Assignment]:
    """Units by card and container of living pods that have all they asked for, by UID of the API.

    Without pods of which a card is not known, or of which a share is less than a unit on a smaller card.
    """
    served = [
        account for account in facts.pods.values() if account.is_live and not account.unserved_containers
    ]
    return {account.pod.uid: found for account in served if (found := _of_pod(facts, account)) is not None}


def _of_pod(facts: NodeAccounts, account: PodAccount) -> Assignment | None:
    request = account.pod.request
    shares: dict[str, tuple[tuple[str, int], ...]] = {}
    for container in request.containers:
        demand = request.demand_of(container.name)
        cards = facts.units_of_containers(account.id_sets(demand.containers))
        if len(cards) != demand.cards:
            return None
        units = {uuid: request.units_of(container, facts.cards[uuid].size_units) for uuid in cards}
        if not all(units.values()):
            return None
        shares[container.name] = tuple(units.items())
    return shares
