"""Each accounting rule taken out, one at a time: the model must find a history that breaks the invariant."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

import pytest

from allocator.ledger import Ledger, charges, choice, places, release
from allocator.ledger.facts import BoundPod, Facts, Units, add
from scheduler_plugin.cluster import published
from scheduler_plugin.cluster.rules import Rules
from scheduler_plugin.cluster.state import ClusterState
from tests.property.undercount.extender import ModelExtender


@dataclass(frozen=True)
class Mutant:
    """A rule taken out.

    Attributes:
        name: the rule.
        target: where the shipped code has it.
        method: the function.
        instead: what stands in its place.
        seed: a history that breaks without it; others are tried when this one does not.
        density: of that history.
        more: events that come more often in it.
        percent: how many of its pods ask for percent of cards.
        also: the same rule at its second place, where extender and node both keep it.
    """

    name: str
    target: type | ModuleType
    method: str
    instead: Any
    seed: int = 1000
    density: float = 1.0
    more: Mapping[str, float] = field(default_factory=dict)
    percent: float = 0.0
    also: tuple[ModuleType, str, Any] | None = None

    def apply(self, monkeypatch: pytest.MonkeyPatch) -> type[Rules]:
        """Take the rule out of the shipped code for the length of a test."""
        assert hasattr(self.target, self.method)
        if self.also is not None:
            monkeypatch.setattr(*self.also)
        if self.target is Rules:
            return type("MutantRules", (Rules,), {self.method: self.instead})
        monkeypatch.setattr(self.target, self.method, self.instead)
        return Rules


def _nothing(*_: object, **__: object) -> tuple[()]:
    return ()


def _none(*_: object, **__: object) -> None:
    return None


def _empty(*_: object, **__: object) -> dict[str, int]:
    return {}


def _nobody(*_: object) -> set[str]:
    return set()


def _no(*_: object, **__: object) -> bool:
    return False


def _yes(*_: object, **__: object) -> bool:
    return True


# Who holds what.

_READ_BOOK = Ledger.read_book


def _book_is_all(ledger: Ledger, entries: Any, now_s: float) -> None:
    _READ_BOOK(ledger, entries, now_s)
    facts = ledger.facts
    for uid, held in facts.held.items():
        held.ids = {name: ids for name, ids in held.ids.items() if (uid, name) in facts.book}
        held.units = facts.by_card(held.union)


def _ids_once(facts: Facts) -> Units:
    """Over pods the union, as over the containers of one."""
    ids = frozenset().union(*(held.union for held in facts.held.values()), *(g.ids for g in facts.grants))
    total = {**dict.fromkeys(facts.cards, 0), **facts.by_card(ids)}
    for uid in charges.charged_uids(facts):
        held = facts.held.get(uid)
        known = facts.by_card(held.union) if held is not None else {}
        add(total, {u: n - known.get(u, 0) for u, n in charges.of_pod(facts, uid).items()})
    return total


_CHARGED = charges.charged


def _no_grants(facts: Facts) -> Units:
    kept, facts.grants = facts.grants, []
    try:
        return _CHARGED(facts)
    finally:
        facts.grants = kept


_USED = charges.used


def _never_out_of_use(facts: Facts, reserved: Any) -> tuple[int, ...]:
    cards = facts.cards
    facts.cards = {uuid: replace(card, healthy=True, cordoned=False) for uuid, card in cards.items()}
    try:
        return _USED(facts, reserved)
    finally:
        facts.cards = cards


_COMPLETE = charges.complete


def _begun_is_complete(facts: Facts, bound: BoundPod) -> bool:
    return _COMPLETE(facts, bound) or bound.pod.key in facts.held


def _remember_uids_only(ledger: Ledger, _holds: object) -> None:
    ledger.facts.remembered = {}


_RESTARTED = Ledger.kubelet_restarted


def _first_batch_is_known(ledger: Ledger) -> None:
    """Who comes into view after the restart is taken to come after all others."""
    _RESTARTED(ledger)
    ledger.facts.asked = ledger.facts.restarted


# When a charge ends.

_IS_DEAD = release.is_dead


def _over_is_dead(facts: Facts, uid: str) -> bool:
    over = release.over_since(facts, uid)
    if over is not None:
        facts.deaths.setdefault(uid, over)
    return over is not None


def _no_cgroup_is_dead(facts: Facts, uid: str) -> bool:
    return release.over_since(facts, uid) is not None and uid in facts.deaths


def _dead_whenever_looked(facts: Facts, uid: str) -> bool:
    over, death = release.over_since(facts, uid), facts.deaths.get(uid)
    return over is not None and death is not None and death.order >= over.order


_DOUBTFUL = Ledger.doubtful


def _forget_at_once(ledger: Ledger, uid: str, now_s: float) -> None:
    """The end of a pod ends its charge."""
    bound = next((b for b in ledger.facts.pods.values() if b.pod.uid == uid), None)
    if bound is not None:
        ledger.facts.held.pop(bound.pod.key, None)
        ledger._forget(bound.pod.key)
    ledger.settle(now_s)


# Where pods will be served.


def _own_target_only(draft: places.Draft, one: places.Waiting) -> None:
    if one.target is not None:
        draft.take(one, one.target)


def _steps(step: Callable[..., None], *instead: Callable[..., None]) -> tuple[Callable[..., None], ...]:
    return tuple(new for each in places.STEPS for new in (instead if each is step else (each,)))


def _targets_only(facts: Facts) -> Any:
    """A pool that does not know who was served where."""
    held, facts.held = facts.held, {}
    try:
        return _POOLS(facts)
    finally:
        facts.held = held


_POOLS = places.pools
_ASKING = choice.asking
_CARDS = choice._cards


def _policy_only(facts: Facts, slot: Any, offered: frozenset[str], size: int) -> tuple[str, ...]:
    del slot
    return _CARDS(facts, None, offered, size)


def _one_share(facts: Facts, sets: Any) -> Units:
    """The share of a pod is rounded down, not that of each container."""
    return facts.by_card(frozenset().union(*sets))


def _give_up_at_once(extender: ModelExtender, binding: Any) -> None:
    extender._roll_back(binding.commitment)


BUSY_WITHOUT_RESTARTS = {
    **dict.fromkeys(("create", "publish"), 2.0),
    **dict.fromkeys(("schedule", "settle_binding", "extender_hears", "daemon_hears", "admit"), 3.0),
    "force_delete": 8.0,
    "run": 4.0,
    "kubelet_hears": 0.15,
    "sleep": 0.2,
    "finish": 0.3,
    **dict.fromkeys(("stop_daemon", "restart_kubelet", "restart_extender", "away", "delete_node"), 0.0),
}
"""Pods come, are deleted and come again quickly, the kubelet hears of it late, and nobody restarts."""

OTHERS_BIND_TOO = {
    "daemon_hears": 0.3,
    "view": 0.1,
    "bookmark": 0.2,
    "publish": 3.0,
    "foreign": 10.0,
    "cordon": 4.0,
    "admit": 0.5,
    **dict.fromkeys(
        (
            "force_delete",
            "stop_daemon",
            "tear",
            "fall_sick",
            "pressure",
            "restart_extender",
            "sleep",
            "away",
            "delete_node",
        ),
        0.0,
    ),
}
"""Other schedulers bind pods, cards are cordoned, and the daemon hears of pods late."""

MUTANTS = (
    Mutant("extender: a bound pod counts until its node holds it", Rules, "bound", _nothing, seed=1000),
    Mutant("extender: a commitment counts before it is seen bound", Rules, "taken", _nothing, seed=1001),
    Mutant(
        "extender: a pod that vanished unheld leaves a tombstone", Rules, "needs_tombstone", _no, seed=1000
    ),
    Mutant(
        "extender: a tombstone stays until the node has seen the end",
        Rules,
        "tombstone_ends",
        _yes,
        seed=1000,
    ),
    Mutant("extender: claims outlive the Node object", Rules, "keeps_without_node", _no, seed=1001),
    Mutant(
        "extender: a Binding without an answer counts", ModelExtender, "_doubt", _give_up_at_once, seed=1001
    ),
    Mutant("extender: a pod bound without us counts on every card", Rules, "anywhere", _empty, seed=1006),
    Mutant("extender: only the node's own holds confirm", Rules, "holds", _yes, seed=1000),
    Mutant(
        "extender: two shapes of one size are never on their way together",
        ClusterState,
        "busy_nodes",
        _nobody,
        seed=1021,
    ),
    Mutant(
        "extender: claims on an overfull card count on every card",
        Rules,
        "is_overfull",
        _no,
        seed=119,
    ),
    Mutant(
        "node: what the book showed stays until the pod has ended",
        Ledger,
        "read_book",
        _book_is_all,
        seed=1000,
    ),
    Mutant("node: IDs of two pods count for both", charges, "charged", _ids_once, seed=1174),
    Mutant("node: an Allocate counts before the book shows it", charges, "charged", _no_grants, seed=1040),
    Mutant("node: a pod that runs without entries is charged", charges, "is_lost", _no, seed=2029),
    Mutant(
        "node: what holds said before the start is charged",
        Ledger,
        "remember",
        _remember_uids_only,
        seed=6,
        more={
            "stop_daemon": 4.0,
            "restart_kubelet": 4.0,
            "force_delete": 2.0,
            "tear": 3.0,
            "reap": 0.1,
            "recover": 0.5,
        },
    ),
    Mutant(
        "node: a pod enters holds with its last container", charges, "complete", _begun_is_complete, seed=1001
    ),
    Mutant("node: words reserve for pods served elsewhere", places, "reserved", _empty, seed=1418),
    Mutant("node: cgroups must be gone", release, "is_dead", _over_is_dead, seed=1115),
    Mutant(
        "node: a look from before the end proves nothing",
        release,
        "is_dead",
        _no_cgroup_is_dead,
        seed=50,
    ),
    Mutant(
        "node: a container about to start gets time",
        release,
        "is_dead",
        _dead_whenever_looked,
        seed=7219,
    ),
    Mutant(
        "node: a pod that is gone keeps its turn",
        release,
        "waits_its_turn",
        _no,
        seed=270,
        more=BUSY_WITHOUT_RESTARTS,
    ),
    Mutant(
        "node: who goes elsewhere waits for all pods",
        choice,
        "is_displaced",
        _no,
        seed=495,
        more=OTHERS_BIND_TOO,
    ),
    Mutant("node: the book must lack the pod", release, "is_unlisted", _yes, seed=1008),
    Mutant(
        "node: a card out of use is full",
        charges,
        "used",
        _never_out_of_use,
        seed=22,
        also=(published, "_out_of_service", _nobody),
    ),
    Mutant(
        "node: pods are taken in the order in which the kubelet hears of them",
        Facts,
        "queue",
        lambda facts: list(facts.pods.values()),
        seed=900303,
    ),
    Mutant(
        "node: until it asks, a kubelet that restarted takes all pods as one batch",
        Ledger,
        "kubelet_restarted",
        _first_batch_is_known,
        seed=40079,
        percent=0.5,
    ),
    Mutant(
        "node: targets are shared by shape",
        places,
        "STEPS",
        _steps(places._a_target_of_its_pool, _own_target_only),
        seed=12,
        density=0.0,
    ),
    Mutant(
        "node: a place by the card policy",
        places,
        "STEPS",
        _steps(places._by_the_card_policy),
        seed=197,
    ),
    Mutant(
        "node: the pool knows what was served",
        places,
        "pools",
        _targets_only,
        seed=27,
        density=0.0,
    ),
    Mutant(
        "node: the scheduler's card is taken",
        choice,
        "_cards",
        _policy_only,
        seed=6015,
    ),
    Mutant(
        "node: an unknown pod is waited for",
        choice,
        "is_expected",
        _yes,
        seed=109,
    ),
    Mutant(
        "node: each container's share is rounded down by itself",
        Facts,
        "of_containers",
        _one_share,
        seed=1002,
        percent=0.5,
    ),
)
