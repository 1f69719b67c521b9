"""What every card is charged with. Each function may only add; none guesses who holds what."""

from collections.abc import Mapping

from allocator.errors import LedgerError, shown
from allocator.ledger.facts import Facts
from allocator.ledger.pods import Grant, PodFacts, Units, add
from allocator.request import PodRequest


def is_lost(one: PodFacts) -> bool:
    """Whether the kubelet has admitted the pod and its book lacks what it was given: the book was lost."""
    return one.admitted is not None and bool(one.missing)


def is_charged(one: PodFacts) -> bool:
    """Whether a pod may be charged with something."""
    return one.since is not None or one.remembered is not None or is_lost(one)


def complete(one: PodFacts) -> bool:
    """Whether `charged` contains all that the pod will ever ask for."""
    return one.admitted is not None or not one.missing


def of_pod(facts: Facts, one: PodFacts) -> Units:
    """Units by card that one pod is charged with, empty for none.

    The union of its IDs: main containers are given those of init containers again. What the book has not
    shown of a pod that runs, or that only the words had, is on those cards too where that is more.
    """
    units = dict(one.units)
    if is_lost(one) or not one.bound:
        for uuid, count in _written_down(facts, one).items():
            units[uuid] = max(count, units.get(uuid, 0))
    return units


def _written_down(facts: Facts, one: PodFacts) -> Units:
    """Units by card that a pod has if not by the book.

    By what the node wrote down, else by what the scheduler said, else on every card that could have it.
    """
    if not one.bound:
        return {uuid: units for uuid, units in (one.remembered or {}).items() if uuid in facts.cards}
    for record in (one.remembered, one.pod.assigned_costs):
        if record and record.keys() <= facts.cards.keys():
            return record
    return anywhere(facts, one.pod.request)


def anywhere(facts: Facts, request: PodRequest) -> Units:
    """Units by card of a pod that may have any cards it could take."""
    total: Units = {}
    for demand in request.demands:
        add(total, facts.eligible(request, demand))
    return total


def charged(facts: Facts, but: PodFacts | None = None) -> Units:
    """Units by card that containers hold or may hold; over pods the sum, which may exceed a card's size.

    Of one pod that asks for devices only those in the kubelet's book, where that is wanted.

    A kubelet that lost its book, or whose pod was deleted by force, gives out IDs again while a container
    still runs with them: both count.
    """
    total: Units = dict.fromkeys(facts.cards, 0)
    for units in (
        *facts.settled.units,
        *(of_pod(facts, one) for one in facts.open.values() if one is not but),
    ):
        add(total, units)
    for grant in facts.grants:
        add(total, of_grant(facts, grant))
    if but is not None:
        add(total, facts.of_containers(but.book.values()))
    return total


def of_grant(facts: Facts, grant: Grant) -> Units:
    """Units by card that an Allocate adds which the book does not show yet."""
    for one in facts.open.values():
        if grant in given_again(facts, one):
            before = facts.of_containers(one.book.values())
            after = facts.of_containers((*one.book.values(), grant.ids))
            return {uuid: units - before.get(uuid, 0) for uuid, units in after.items()}
    return dict(grant.shares)


def forgotten(facts: Facts) -> Units:
    """Units by card of Allocates that the kubelet has forgotten: it started since, and its book lacks them.

    Most were of the pod that it asks for again now; of others the containers may run.
    """
    total: Units = {}
    for grant in facts.grants:
        if grant.at.order < facts.restarted:
            add(total, of_grant(facts, grant))
    return total


def given_again(facts: Facts, one: PodFacts) -> list[Grant]:
    """Allocates of a pod that the book does not show yet: main containers get IDs of init containers again.

    As long as not all of a pod has been served, what the book shows of it is given to nobody else.
    """
    if not one.live or not one.missing:
        return []
    has = one.ids_of(one.book)
    return [grant for grant in facts.grants if not has.isdisjoint(grant.ids)]


def booked(facts: Facts, *, percent: bool, wanted: frozenset[str] = frozenset()) -> Units:
    """Units by card that the kubelet has given out, of its resource for percent or of that for units.

    The kubelet's own view is its book, written before it asks again: what it had not written down when
    it restarted it does not know of. `wanted` counts like the IDs of one container more.
    """
    given = [wanted, *(ids for one in facts.open.values() for ids in one.book.values())]
    again = any(not facts.settled.ids.keys().isdisjoint(ids) for ids in given)
    if again:
        given = [wanted, *(ids for one in facts.pods.values() for ids in one.book.values())]
    total = facts.of_containers(ids for ids in given if facts.is_share(ids) == percent)
    if not again:
        add(total, facts.settled.units[percent])
    return total


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
    total = booked(facts, percent=percent, wanted=wanted)
    add(total, others)
    for uuid in facts.count(wanted):
        if total[uuid] > facts.cards[uuid].size_units:
            raise LedgerError(
                f"Allocate that makes {total[uuid]} units of {shown(uuid)} in use, percent included: "
                f"allowed are {facts.cards[uuid].size_units}"
            )


def holds(facts: Facts) -> dict[str, Units]:
    """Units by card and UID (of the API) that the words certainly contain.

    Pods with every container in the book, so that the scheduler may stop counting them; also once they are
    gone, as long as the charge stays, for the daemon after this one.
    """
    found = {share.uid: share.units for share in facts.settled.shares.values()}
    for one in facts.open.values():
        known = complete(one) if one.bound else one.remembered is not None or one.over is not None
        if known and is_charged(one):
            found[one.pod.uid] = of_pod(facts, one)
    return found


def assumed(facts: Facts) -> Units:
    """What the scheduler adds to the words by card: bound pods that they do not hold."""
    total: Units = {}
    for one in facts.open.values():
        if one.live and not complete(one):
            costs = one.pod.assigned_costs
            if costs is None or not costs.keys() <= facts.cards.keys():
                costs = anywhere(facts, one.pod.request)
            add(total, costs)
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
