"""What stands in the place of an accounting rule that a mutant takes out."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from allocator.ledger import Ask, Ledger, charges, choice, places, release
from allocator.ledger.facts import Facts
from allocator.ledger.pods import Grant, PodFacts, Units, add
from allocator.request import Demand
from tests.property.undercount.extender import ModelExtender


def nothing(*_: object, **__: object) -> tuple[()]:
    return ()


def none(*_: object, **__: object) -> None:
    return None


def empty(*_: object, **__: object) -> dict[str, int]:
    return {}


def nobody(*_: object) -> set[str]:
    return set()


def no(*_: object, **__: object) -> bool:
    return False


never = property(no)


def yes(*_: object, **__: object) -> bool:
    return True


# Who holds what.

_READ_BOOK = Ledger.read_book


def book_is_all(ledger: Ledger, entries: Any, now_s: float) -> None:
    _READ_BOOK(ledger, entries, now_s)
    for one in list(ledger.facts.pods.values()):
        ledger.facts.put(replace(one, ids=one.book, units=ledger.facts.of_containers(one.book.values())))


def ids_once(facts: Facts, but: PodFacts | None = None) -> Units:
    """Over pods the union, as over the containers of one."""
    pods = [one for one in facts.pods.values() if one is not but]
    ids = frozenset().union(*(one.ids_of(one.ids) for one in pods), *(g.ids for g in facts.grants))
    total = {**dict.fromkeys(facts.cards, 0), **facts.by_card(ids)}
    for one in pods:
        add(total, {u: n - one.units.get(u, 0) for u, n in charges.of_pod(facts, one).items()})
    return total


_CHARGED = charges.charged


def charged_with_all(facts: Facts, but: PodFacts | None = None) -> Units:
    """Also with what the pod has that is to get devices."""
    del but
    return _CHARGED(facts)


_ALLOCATE = Ledger.allocate


def forgotten_at_once(ledger: Ledger, ids: Any, now_s: float) -> Any:
    """Only the book tells of an Allocate."""
    grant = _ALLOCATE(ledger, ids, now_s)
    ledger.facts.grants.remove(grant)
    return grant


_USED = charges.used


def never_out_of_use(facts: Facts, reserved: Any) -> tuple[int, ...]:
    cards = facts.cards
    facts.cards = {uuid: replace(card, healthy=True, cordoned=False) for uuid, card in cards.items()}
    try:
        return _USED(facts, reserved)
    finally:
        facts.cards = cards


_COMPLETE = charges.complete


def begun_is_complete(one: PodFacts) -> bool:
    return _COMPLETE(one) or one.since is not None


# When a charge ends.


def over_is_dead(one: PodFacts) -> bool:
    object.__setattr__(one, "death", one.death or one.over)
    return one.over is not None


def no_cgroup_is_dead(one: PodFacts) -> bool:
    return one.over is not None and one.death is not None


def dead_whenever_looked(one: PodFacts) -> bool:
    return one.over is not None and one.death is not None and one.death.order >= one.over.order


def may_start_until_heard(one: PodFacts) -> float:
    """The kubelet is taken to hear of every end at once."""
    return _MAY_START_UNTIL(replace(one, unlisted=None))


_MAY_START_UNTIL = release.may_start_until


# Where pods will be served.


def steps(step: Callable[..., None], *instead: Callable[..., None]) -> tuple[Callable[..., None], ...]:
    return tuple(new for each in places.STEPS for new in (instead if each is step else (each,)))


_ROUNDS = choice._rounds


def nobodys_place(*of: Any) -> tuple[Units, ...]:
    """No container gets what a bound pod waits for."""
    return _ROUNDS(*of)[:-1]


def all_of_a_demand(wanted: tuple[Demand, Demand], rounds: Any) -> Any:
    """A container that fits only without the rest of its demand is refused."""
    return itertools.product(wanted[:1], rounds)


_WRITTEN_DOWN = charges._written_down


def said_before_written(facts: Facts, one: PodFacts) -> Units:
    """What the scheduler said goes before what the node wrote down."""
    said = one.bound and one.pod.assigned_costs
    return _WRITTEN_DOWN(facts, replace(one, remembered=None) if said else one)


_BY_POLICY = places.by_policy


def never_on_cordoned(facts: Facts, room: Any, *of: Any) -> tuple[str, ...] | None:
    return _BY_POLICY(facts, {u: n for u, n in room.items() if not facts.cards[u].cordoned}, *of)


def ids_add_up(ledger: Ledger, entries: Any, now_s: float) -> None:
    """What a container was given before it was given others counts too."""
    before = {uid: one.ids for uid, one in ledger.facts.pods.items()}
    _READ_BOOK(ledger, entries, now_s)
    for uid, one in list(ledger.facts.pods.items()):
        kept = {name: one.ids.get(name, frozenset()) | ids for name, ids in before.get(uid, {}).items()}
        ids = {**one.ids, **kept}
        ledger.facts.put(replace(one, ids=ids, units=ledger.facts.of_containers(ids.values())))


def void_after_a_time(facts: Facts, grant: Grant, now_s: float) -> bool:
    """However often the book was written without it."""
    old = now_s >= grant.at.at_s + release.LOST_GRANT_S
    return old and not any(release.may_be_of(grant, one) for one in facts.open.values())


_MAY_ASK = PodFacts.may_ask.fget


@property
def heard(one: PodFacts) -> bool:
    """The kubelet is taken to have heard of the end of every pod that its book lacks."""
    return bool(_MAY_ASK and _MAY_ASK(replace(one, unlisted=None)))


_MAY_BE_OF = Ask._may_be_of


def of_any_pod(ask: Ask, one: PodFacts) -> bool:
    """Whatever the kubelet says of the pods that it has taken up."""
    return _MAY_BE_OF(replace(ask, taken_up=None), one)


_BELONGS_ON = choice._belongs_on


def without_grants(facts: Facts, *of: Any) -> tuple[str, ...]:
    kept, facts.grants = facts.grants, []
    try:
        return _BELONGS_ON(facts, *of)
    finally:
        facts.grants = kept


_CARDS = choice._cards


def policy_only(ask: Ask) -> tuple[str, ...]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ask, "whose", none)
        return _CARDS(ask)


def one_share(facts: Facts, sets: Any) -> Units:
    """The share of a pod is rounded down, not that of each container."""
    return facts.by_card(frozenset().union(*sets))


def give_up_at_once(extender: ModelExtender, binding: Any) -> None:
    extender._roll_back(binding.commitment)
