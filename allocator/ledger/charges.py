"""Charges: what pods have or may have of each card, in units and in percent of its compute.

Where little is known of a pod, the most.
"""

from allocator.ledger.accounts import NodeAccounts
from allocator.ledger.pods import PodAccount, Units, add


def charge_pod(accounts: NodeAccounts, account: PodAccount) -> Units:
    """Return the units by card that one pod is charged with, empty for none.

    On each card the larger of two amounts counts:

    - The union of its IDs: main containers are given those of init containers again.
    - What the node wrote of it, else what the scheduler assigned, else every card that its request may be on.

    The second counts only for a pod that the scheduler does not count, or no longer counts, and whose IDs are
    not all known. That is so after a kubelet has lost its checkpoint. Or the pod was deleted before it was
    served, and the kubelet has not heard of that.
    """
    besides = _besides(accounts, account)
    return {uuid: max(d.get(uuid, 0) for d in (account.units, besides)) for uuid in account.units | besides}


def _besides(accounts: NodeAccounts, account: PodAccount) -> Units:
    """Return the units by card that a pod may have whatever IDs are known of it."""
    if not account.bound:
        return {
            uuid: units
            for uuid, units in (account.previously_published or {}).items()
            if uuid in accounts.cards
        }
    if not account.unserved_containers or (
        not account.admitted and (account.ended_at_s is None or account.pod.terminal)
    ):
        return {}
    for record in (account.previously_published, account.pod.assigned_costs):
        if record and record.keys() <= accounts.cards.keys():
            return record
    total: Units = {}
    for demand in account.pod.request.demands:
        add(total, accounts.eligible_cards(account.pod.request, demand))
    return total


def charge_cards(accounts: NodeAccounts) -> Units:
    """Return the units by card that containers have or may have.

    The sum over pods may exceed a card's size. After a kubelet lost its checkpoint, or a pod was deleted by
    force, it gives out IDs again while a container still runs with them. Both count.
    """
    total: Units = dict.fromkeys(accounts.cards, 0)
    for account in accounts.pods.values():
        add(total, charge_pod(accounts, account))
    return total


def charge_pod_compute(accounts: NodeAccounts, account: PodAccount) -> Units:
    """Return the percent of compute by card that one pod is charged with, as `charge_pod` does its units.

    The compute of the device IDs that claims stand for is in the claims, that of the others in the pod's
    request. Before a list shows the pod its request is unknown: the others count with all that their cards
    give.
    """
    request, claimed = account.pod.request, account.claimed_compute
    if account.bound and not (claimed or request.asks_compute):
        return {}
    besides = _besides(accounts, account)
    if not account.bound:
        unknown = accounts.cards_of(ids - account.claimed_ids for ids in account.charged_ids)
        unknown |= besides.keys() - account.units.keys()
        return claimed | dict.fromkeys(unknown, accounts.compute_limit)
    charge = request.charge_compute(
        accounts.cards_of(ids - account.claimed_ids for ids in account.id_sets(demand.containers))
        for demand in request.demands
    )
    add(charge, claimed)
    if besides and besides == account.pod.assigned_costs and not account.previously_published:
        possible = accounts.assigned_compute(account.pod)
    else:  # on which of these cards which container is, nobody says
        possible = request.charge_compute([besides] * len(request.demands))
    return {uuid: max(d.get(uuid, 0) for d in (charge, possible)) for uuid in charge | possible}


def charge_compute(accounts: NodeAccounts) -> Units:
    """Return the percent of compute by card that containers have or may have."""
    total: Units = dict.fromkeys(accounts.cards, 0)
    for account in accounts.pods.values():
        add(total, charge_pod_compute(accounts, account))
    return total


def promised_compute(accounts: NodeAccounts) -> Units:
    """Return the percent of compute by card that pods have, may have, or were assigned and wait for."""
    total = charge_compute(accounts)
    for account in accounts.pods.values():
        if account.bound and not account.is_complete:
            add(total, accounts.assigned_compute(account.pod))
    return total


def used_compute(accounts: NodeAccounts) -> tuple[int, ...]:
    """Return the percent of compute used of each card as published: all while it is unavailable."""
    total = charge_compute(accounts)
    return tuple(
        accounts.compute_limit
        if not card.healthy or card.is_closed
        else min(accounts.compute_limit, total[uuid])
        for uuid, card in accounts.cards.items()
    )


def offer_compute(accounts: NodeAccounts) -> int:
    """Return the percent of compute that the node offers in all: what its cards give away together.

    More where its pods ask for more, after the limit was lowered or a card is gone. A kubelet that starts
    admits the pods that run there once more, adds up what they ask for, and fails those for which too little
    is offered.
    """
    offered = dict.fromkeys(accounts.cards, 0)
    beyond = 0
    for account in accounts.pods.values():
        charge = charge_pod_compute(accounts, account)
        add(offered, charge)
        if account.is_live and account.is_complete:
            beyond += max(0, account.pod.request.effective_compute - sum(charge.values()))
    return sum(max(accounts.compute_limit, percent) for percent in offered.values()) + beyond


def charge_published_pods(accounts: NodeAccounts) -> dict[str, Units]:
    """Return units by card and UID (of the API) of the pods that the packed words contain for certain.

    The scheduler need not count them any more, and the daemon after this one knows of them. A pod that lives
    and whose card is gone is among them without units: the scheduler would count it on every other card.
    """
    known = (account for account in accounts.pods.values() if account.is_complete)
    return {
        account.pod.uid: units
        for account in known
        if (units := charge_pod(accounts, account)) or account.is_live
    }


def used_units(accounts: NodeAccounts) -> tuple[int, ...]:
    """Return the units of each card as published, in word order: its size while it is unavailable."""
    promised = charge_cards(accounts)
    return tuple(
        card.size_units
        if not card.healthy or card.is_closed
        else min(card.size_units, promised[uuid] + accounts.unaccounted_use.get(uuid, 0))
        for uuid, card in accounts.cards.items()
    )
