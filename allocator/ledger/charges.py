"""What every card is charged with. Of a pod of which little is known: the most that it may have."""

from allocator.ledger.facts import Facts
from allocator.ledger.pods import PodFacts, Units, add


def of_pod(facts: Facts, one: PodFacts) -> Units:
    """Units by card that one pod is charged with, empty for none.

    The union of its IDs: main containers are given those of init containers again. A pod that the scheduler
    does not count, or no more, and of which not all IDs are known, is on those cards too where the node wrote
    that it is, or else the scheduler said so, where that is more: the kubelet has lost its book, or the pod
    was deleted before it was served and the kubelet has not heard of it.
    """
    besides = _besides(facts, one)
    return {uuid: max(d.get(uuid, 0) for d in (one.units, besides)) for uuid in one.units | besides}


def _besides(facts: Facts, one: PodFacts) -> Units:
    """Units by card that a pod may have whatever IDs are known of it."""
    if not one.bound:
        return {uuid: units for uuid, units in (one.remembered or {}).items() if uuid in facts.cards}
    if not one.missing or (not one.admitted and (one.over is None or one.pod.terminal)):
        return {}
    for record in (one.remembered, one.pod.assigned_costs):
        if record and record.keys() <= facts.cards.keys():
            return record
    total: Units = {}
    for demand in one.pod.request.demands:
        add(total, facts.eligible(one.pod.request, demand))
    return total


def charged(facts: Facts) -> Units:
    """Units by card that containers hold or may hold.

    Over pods the sum, which may exceed a card's size: a kubelet that lost its book, or whose pod was deleted
    by force, gives out IDs again while a container still runs with them. Both count.
    """
    total: Units = dict.fromkeys(facts.cards, 0)
    for one in facts.pods.values():
        add(total, of_pod(facts, one))
    return total


def holds(facts: Facts) -> dict[str, Units]:
    """Units by card and UID (of the API) of the pods that the words contain for certain.

    The scheduler need not count them any more, and the daemon after this one knows of them. A pod that lives
    and whose card is gone is among them without units: the scheduler would count it on every other card.
    """
    known = (one for one in facts.pods.values() if one.complete)
    return {one.pod.uid: units for one in known if (units := of_pod(facts, one)) or one.live}


def used(facts: Facts) -> tuple[int, ...]:
    """Units of each card in word order as published: never more than its size, all of it while out of use."""
    promised = charged(facts)
    return tuple(
        card.size_units
        if not card.healthy or card.cordoned
        else min(card.size_units, promised[uuid] + facts.pressure.get(uuid, 0))
        for uuid, card in facts.cards.items()
    )
