"""Each accounting rule taken out, one at a time: the model must find a history that breaks the invariant."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest

from allocator.ledger import Ask, Ledger, charges, choice, places, release
from allocator.ledger.facts import Facts
from allocator.ledger.places import Draft
from allocator.ledger.pods import PodFacts
from scheduler_plugin.cluster import published
from scheduler_plugin.cluster.rules import Rules
from scheduler_plugin.cluster.state import ClusterState
from tests.property.undercount.extender import ModelExtender
from tests.property.undercount.taken_out import (
    as_if_nothing_was_remembered,
    begun_is_complete,
    book_is_all,
    dead_whenever_looked,
    empty,
    first_batch_is_known,
    first_list_is_late,
    forgotten_at_once,
    give_up_at_once,
    heard,
    ids_once,
    may_start_until_heard,
    never_out_of_use,
    no,
    no_cgroup_is_dead,
    nobody,
    nobody_uses_up_his_own,
    none,
    nothing,
    one_share,
    over_is_dead,
    own_target_only,
    policy_only,
    steps,
    targets_only,
    without_grants,
    yes,
)


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
        fresh_words: the extender reads words anew before it binds; older words make more histories break.
        listed: the kubelet says which pods it has taken up; where it does not, more histories break.
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
    fresh_words: bool = False
    listed: bool = False

    def apply(self, monkeypatch: pytest.MonkeyPatch) -> type[Rules]:
        """Take the rule out of the shipped code for the length of a test."""
        assert hasattr(self.target, self.method)
        if self.also is not None:
            monkeypatch.setattr(*self.also)
        if self.target is Rules:
            return type("MutantRules", (Rules,), {self.method: self.instead})
        monkeypatch.setattr(self.target, self.method, self.instead)
        return Rules


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
    Mutant("extender: a bound pod counts until its node holds it", Rules, "bound", nothing, seed=1001),
    Mutant("extender: a commitment counts before it is seen bound", Rules, "taken", nothing, seed=1001),
    Mutant(
        "extender: a pod that vanished unheld leaves a tombstone", Rules, "needs_tombstone", no, seed=1017
    ),
    Mutant(
        "extender: a tombstone stays until the node has seen the end",
        Rules,
        "tombstone_ends",
        yes,
        seed=1017,
    ),
    Mutant("extender: claims outlive the Node object", Rules, "keeps_without_node", no, seed=1001),
    Mutant(
        "extender: a Binding without an answer counts", ModelExtender, "_doubt", give_up_at_once, seed=1001
    ),
    Mutant(
        "extender: it reads words anew before it binds",
        ModelExtender,
        "read_words_anew",
        none,
        seed=12101165,
        density=2.0,
        fresh_words=True,
    ),
    Mutant("extender: a pod bound without us counts on every card", Rules, "anywhere", empty, seed=1006),
    Mutant("extender: only the node's own holds confirm", Rules, "holds", yes, seed=1001),
    Mutant(
        "extender: two shapes of one size are never on their way together",
        ClusterState,
        "busy_nodes",
        nobody,
        seed=1021,
    ),
    Mutant(
        "extender: claims on an overfull card count on every card",
        Rules,
        "is_overfull",
        no,
        seed=1051,
    ),
    Mutant(
        "node: what the book showed stays until the pod has ended",
        Ledger,
        "read_book",
        book_is_all,
        seed=1000,
    ),
    Mutant("node: IDs of two pods count for both", charges, "charged", ids_once, seed=1174),
    Mutant(
        "node: an Allocate counts before the book shows it",
        Ledger,
        "allocate",
        forgotten_at_once,
        seed=1579,
        more={**BUSY_WITHOUT_RESTARTS, "read_book": 0.05, "cgroups": 0.3},
    ),
    Mutant("node: a pod that runs without entries is charged", charges, "is_lost", no, seed=2029),
    Mutant(
        "node: what holds said before the start is charged",
        Ledger,
        "remember",
        none,
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
        "node: a pod enters holds with its last container", charges, "complete", begun_is_complete, seed=1001
    ),
    Mutant(
        "node: words reserve for pods served elsewhere", places, "reserved", empty, seed=20258, density=0.3
    ),
    Mutant("node: cgroups must be gone", release, "is_dead", over_is_dead, seed=1115),
    Mutant(
        "node: a look from before the end proves nothing",
        release,
        "is_dead",
        no_cgroup_is_dead,
        seed=7219,
    ),
    Mutant(
        "node: a container about to start gets time",
        release,
        "is_dead",
        dead_whenever_looked,
        seed=7219,
    ),
    Mutant(
        "node: it gets that time from when the kubelet heard of its end",
        release,
        "may_start_until",
        may_start_until_heard,
        seed=16000212,
        fresh_words=True,
    ),
    Mutant("node: a lost book heard of nothing", PodFacts, "may_ask", heard, seed=23000438, fresh_words=True),
    Mutant("node: forgotten goes first", charges, "forgotten", empty, seed=21001363, fresh_words=True),
    Mutant(
        "node: an Allocate that the book never showed may be of who was deleted since",
        release,
        "may_be_of",
        no,
        seed=19004343,
        fresh_words=True,
    ),
    Mutant(
        "node: a pod that is gone keeps its turn",
        release,
        "waits_its_turn",
        no,
        seed=270,
        more=BUSY_WITHOUT_RESTARTS,
    ),
    Mutant(
        "node: who goes elsewhere waits for all pods",
        Ask,
        "is_displaced",
        no,
        seed=495,
        more=OTHERS_BIND_TOO,
    ),
    Mutant("node: the book must lack the pod", release, "is_unlisted", yes, seed=1008),
    Mutant(
        "node: a card out of use is full",
        charges,
        "used",
        never_out_of_use,
        seed=22,
        also=(published, "_out_of_service", nobody),
    ),
    Mutant(
        "node: pods are taken in the order in which the kubelet hears of them",
        Facts,
        "queue",
        lambda facts: [one for one in facts.pods.values() if one.bound],
        seed=900303,
    ),
    Mutant(
        "node: until it asks, a kubelet that restarted takes all pods as one batch",
        Ledger,
        "kubelet_restarted",
        first_batch_is_known,
        seed=40079,
        percent=0.5,
    ),
    Mutant(
        "node: pods of the first list were bound before the first look at the book",
        Ledger,
        "_update",
        first_list_is_late,
        seed=15003238,
        fresh_words=True,
    ),
    Mutant(
        "node: what containers of a pod that is over run with is not given out again",
        release,
        "lingering",
        nothing,
        seed=8004716,
    ),
    Mutant(
        "node: an Allocate of IDs that a pod has already adds only the rest",
        charges,
        "given_again",
        nothing,
        seed=13000000,
        density=2.0,
        more={
            "create": 4,
            "schedule": 8,
            "daemon_hears": 8,
            "recover": 0.3,
            "force_delete": 0.3,
            "restart_extender": 0.3,
            "relist": 3,
            "delete_node": 4,
            "away": 4,
            "tear": 0.1,
        },
        fresh_words=True,
    ),
    Mutant(
        "node: targets are shared by shape",
        places,
        "STEPS",
        steps(Draft.a_target_of_its_pool, own_target_only),
        seed=1011,
        density=0.0,
    ),
    Mutant(
        "node: a place by the card policy",
        places,
        "STEPS",
        steps(Draft.by_the_card_policy),
        seed=197,
    ),
    Mutant(
        "node: the pool knows what was served",
        places,
        "pools",
        targets_only,
        seed=27,
        density=0.0,
    ),
    Mutant(
        "node: the scheduler's card is taken",
        choice,
        "_cards",
        policy_only,
        seed=6015,
    ),
    Mutant(
        "node: where the book is behind, a pod goes on where it was served last",
        choice,
        "_served_on",
        without_grants,
        seed=510231,
    ),
    Mutant(
        "node: who gets cards that nobody waited for has used up his own",
        places,
        "pools",
        nobody_uses_up_his_own,
        seed=500085,
        density=0.0,
    ),
    Mutant(
        "node: who was elsewhere when this daemon started took nobody's place",
        Facts,
        "moves",
        as_if_nothing_was_remembered,
        seed=30118,
        density=2.0,
        more={
            "create": 3,
            "settle_binding": 0.3,
            "kubelet_hears": 8,
            "start": 3,
            "reap": 4,
            "read_book": 3,
            "annotate": 8,
            "view": 3,
            "force_delete": 0.1,
            "restart_extender": 4,
            "relist": 0.1,
            "cordon": 0.3,
            "sleep": 0.1,
        },
        fresh_words=True,
    ),
    Mutant(
        "node: an unknown pod is waited for",
        Ask,
        "is_expected",
        yes,
        seed=1022,
    ),
    Mutant(
        "node: each container's share is rounded down by itself",
        Facts,
        "of_containers",
        one_share,
        seed=1002,
        percent=0.5,
    ),
)
