"""What stands in the place of an accounting rule that a mutant takes out."""

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from allocator.ledger import Ask, Ledger, charges, choice, places, release
from allocator.ledger.facts import Facts
from allocator.ledger.places import Draft
from allocator.ledger.pods import Grant, Mark, Pod, PodFacts, Units, add, shape
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


_RESTARTED = Ledger.kubelet_restarted


def first_batch_is_known(ledger: Ledger) -> None:
    """Who comes into view after the restart is taken to come after all others."""
    _RESTARTED(ledger)
    ledger.facts.asked = ledger.facts.restarted


_UPDATE = Ledger._update


def first_list_is_late(ledger: Ledger, pod: Pod, at: Mark) -> None:
    """Pods of the first list are taken to be bound after all that the first look at the book showed."""
    _UPDATE(ledger, pod, at)
    one = ledger.facts.pods.get(pod.key)
    if one is not None and one.bound and ledger.facts.view is None and not one.seen.order:
        ledger.facts.put(replace(one, seen=at))


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


def own_target_only(draft: Draft, one: places.Waiting) -> None:
    own = draft.facts.target(one.owner.pod, one.demand)
    pool = draft.pools[one.shape]
    draft.pools[one.shape] = Counter({target: n for target, n in pool.items() if target == own})
    Draft.a_target_of_its_pool(draft, one)
    draft.pools[one.shape] = pool


def steps(step: Callable[..., None], *instead: Callable[..., None]) -> tuple[Callable[..., None], ...]:
    return tuple(new for each in places.STEPS for new in (instead if each is step else (each,)))


def targets_only(facts: Facts) -> Any:
    """A pool that does not know who was served where."""
    bare = Facts.of(list(facts.cards.values()), facts.policy)
    for one in facts.pods.values():
        bare.put(replace(one, book={}, ids={}, units={}))
    return _POOLS(bare)


def nobody_uses_up_his_own(facts: Facts) -> Any:
    left: Any = defaultdict(Counter)
    for one in sorted(facts.pods.values(), key=lambda one: one.turn):
        for demand in one.pod.request.demands if one.bound else ():
            pool, target = left[shape(one.pod.request, demand)], facts.target(one.pod, demand)
            pool.update([target] if target is not None else [])
            pool.subtract([tuple(sorted(facts.by_card(one.ids_of(demand.containers))))])
    return left


def whatever_is_offered(facts: Facts) -> Units:
    """What the kubelet offers is free, whatever may run with it."""
    return {uuid: card.size_units for uuid, card in facts.cards.items()}


def others_first(draft: Draft, one: places.Waiting) -> None:
    """A target of its pool, its own last."""
    own, target = draft.facts.target(one.owner.pod, one.demand), Facts.target
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Facts, "target", lambda *of: None if target(*of) == own else target(*of))
        Draft.a_target_of_its_pool(draft, one)


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


_HOLDS = charges.holds


def holds_the_living(facts: Facts) -> dict[str, Units]:
    gone = {one.pod.uid for one in facts.open.values() if one.over is not None}
    return {uid: units for uid, units in _HOLDS(facts).items() if uid not in gone}


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


_MOVES = Facts.moves


def as_if_nothing_was_remembered(facts: Facts, one: PodFacts) -> Any:
    return _MOVES(facts, replace(one, remembered=None))


_MAY_ASK = PodFacts.may_ask.fget


@property
def heard(one: PodFacts) -> bool:
    """The kubelet is taken to have heard of the end of every pod that its book lacks."""
    return bool(_MAY_ASK and _MAY_ASK(replace(one, unlisted=None)))


_MAY_BE_OF = Ask._may_be_of


def of_any_pod(ask: Ask, one: PodFacts) -> bool:
    """Whatever the kubelet says of the pods that it has taken up."""
    return _MAY_BE_OF(replace(ask, taken_up=None), one)


_POOLS = places.pools


def gone_pods_left(facts: Facts) -> Any:
    """A pod leaves its pool when it is over, whatever its containers have."""
    return _POOLS(replace(facts, open={uid: one for uid, one in facts.open.items() if one.over is None}))


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
