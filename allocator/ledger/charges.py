"""What every card is charged with. Each function may only add; none guesses who holds what."""

from collections.abc import Mapping

from allocator.errors import LedgerError, shown
from allocator.ledger.facts import BoundPod, Facts, Units, add
from allocator.request import PodRequest


def of_pod(facts: Facts, uid: str) -> Units:
    """Units by card that one pod is charged with, empty for none.

    The union of its IDs: main containers are given those of init containers again. Besides what is missing of
    a pod that runs, see `_lost`, and what the words had of a pod that the API server has no more.
    """
    held = facts.held.get(uid)
    units = dict(held.units) if held is not None else {}
    bound = facts.pods.get(uid)
    if bound is not None:
        if is_lost(facts, bound):
            add(units, _lost(facts, bound, units))
    elif uid in facts.remembered:
        for uuid, count in _remembered(facts, uid, known=held is not None).items():
            units[uuid] = max(count, units.get(uuid, 0))
    return units


def is_lost(facts: Facts, bound: BoundPod) -> bool:
    """Whether the kubelet has admitted the pod and its book lacks what it was given: the book was lost."""
    return bound.admitted and bool(facts.missing(bound))


def _lost(facts: Facts, bound: BoundPod, held: Units) -> Units:
    """Units by card that a pod whose entries the book lost has beyond those still known.

    By what the node wrote down, else by what the scheduler said, else on every card that could have it.
    """
    pod = bound.pod
    for record in (facts.remembered.get(pod.key), pod.allocation_costs, pod.assigned_costs):
        if record and record.keys() <= facts.cards.keys():
            return {uuid: max(0, units - held.get(uuid, 0)) for uuid, units in record.items()}
    if pod.request.shared and held:
        whole, most = pod.request.demands[0], max(held.values())
        return {uuid: max(0, whole.units_on(facts.cards[uuid].size_units) - most) for uuid in held}
    names = {container.name for container in facts.missing(bound)}
    total: Units = {}
    for demand in pod.request.demands:
        if not names.isdisjoint(demand.containers):
            add(total, facts.eligible(pod.request, demand))
    return total


def _remembered(facts: Facts, uid: str, *, known: bool) -> Units:
    """What the words had of a pod that may still run.

    Every card whole where they did not say which and the book does not show the pod either (`known`).
    """
    units = facts.remembered[uid]
    if units is None:
        return {} if known else {uuid: card.size_units for uuid, card in facts.cards.items()}
    return {uuid: count for uuid, count in units.items() if uuid in facts.cards}


def charged_uids(facts: Facts) -> set[str]:
    """Every UID that may be charged with something."""
    lost = {uid for uid, bound in facts.pods.items() if is_lost(facts, bound)}
    return facts.held.keys() | facts.remembered.keys() | lost


def charged(facts: Facts) -> Units:
    """Units by card that containers hold or may hold; over pods the sum, which may exceed a card's size.

    A kubelet that lost its book, or whose pod was deleted by force, gives out IDs again while a container
    still runs with them: both count.
    """
    total: Units = dict.fromkeys(facts.cards, 0)
    for uid in charged_uids(facts):
        add(total, of_pod(facts, uid))
    for grant in facts.grants:
        add(total, dict(grant.shares))
    return total


def promises(facts: Facts) -> dict[str, Units]:
    """Units by card and UID that pods hold."""
    shares: dict[str, Units] = {uuid: {} for uuid in facts.cards}
    for uid in charged_uids(facts):
        for uuid, count in of_pod(facts, uid).items():
            shares[uuid][uid] = count
    return shares


def booked(facts: Facts, *, percent: bool) -> Units:
    """Units by card that the kubelet has given out, of its resource for percent or of that for units.

    The kubelet's own view is its book, written before it asks again: what it had not written down when
    it restarted it does not know of.
    """
    return facts.of_containers(ids for ids in facts.book.values() if facts.is_share(ids) == percent)


def check_room(facts: Facts, wanted: frozenset[str]) -> None:
    """Refuse IDs that make the kubelet give out more of a card than it has.

    It never gives an ID twice, so it cannot with units alone; it can with percent, and with both.

    Raises:
        LedgerError: it would, or a share is less than one unit.
    """
    if 0 in facts.by_card(wanted).values():
        raise LedgerError(f"Allocate of {len(wanted)} percent: allowed is a share of one unit or more")
    percent = facts.is_share(wanted)
    others = booked(facts, percent=not percent)
    if not percent and not others:
        return
    given = [*facts.book.values(), wanted]
    total = facts.of_containers(ids for ids in given if facts.is_share(ids) == percent)
    add(total, others)
    for uuid in facts.count(wanted):
        if total[uuid] > facts.cards[uuid].size_units:
            raise LedgerError(
                f"Allocate that makes {total[uuid]} units of {shown(uuid)} in use, percent included: "
                f"allowed are {facts.cards[uuid].size_units}"
            )


def complete(facts: Facts, bound: BoundPod) -> bool:
    """Whether `charged` contains all that the pod will ever ask for."""
    return bound.admitted or not facts.missing(bound)


def holds(facts: Facts) -> dict[str, Units]:
    """Units by card and UID (of the API) that the words certainly contain.

    Pods with every container in the book, so that the scheduler may stop counting them; also once they are
    gone, as long as the charge stays, for the daemon after this one.
    """
    found: dict[str, Units] = {}
    for uid in charged_uids(facts):
        bound = facts.pods.get(uid)
        if bound is None:
            if uid in facts.remembered or uid in facts.gone:
                found[uid] = of_pod(facts, uid)
        elif complete(facts, bound):
            found[bound.pod.uid] = of_pod(facts, uid)
    return found


def holds_by_position(facts: Facts) -> dict[str, dict[int, int]]:
    """The same by the card's position in the words."""
    position = {uuid: number for number, uuid in enumerate(facts.cards)}
    return {
        uid: {position[uuid]: count for uuid, count in units.items() if count}
        for uid, units in holds(facts).items()
    }


def in_flight(facts: Facts) -> bool:
    """Whether some pod is on its way from Allocate to `holds`."""
    return bool(facts.grants) or any(
        bound.live and uid in facts.held and not complete(facts, bound) for uid, bound in facts.pods.items()
    )


def assumed(facts: Facts) -> Units:
    """What the scheduler adds to the words by card: bound pods that they do not hold."""
    total: Units = {}
    for bound in facts.pods.values():
        if bound.live and not complete(facts, bound):
            costs = bound.pod.assigned_costs
            if costs is None or not costs.keys() <= facts.cards.keys():
                costs = _anywhere(facts, bound.pod.request)
            add(total, costs)
    return total


def _anywhere(facts: Facts, request: PodRequest) -> Units:
    total: Units = {}
    for demand in request.demands:
        add(total, facts.eligible(request, demand))
    return total


def used(facts: Facts, reserved: Mapping[str, int]) -> tuple[int, ...]:
    """Units of each card in word order as published: never more than its size, all of it while out of use."""
    promised = charged(facts)
    return tuple(
        card.size_units
        if not card.healthy or card.cordoned
        else min(card.size_units, promised[uuid] + reserved.get(uuid, 0) + facts.pressure.get(uuid, 0))
        for uuid, card in facts.cards.items()
    )
