"""Each accounting rule taken out, one at a time; the model must find a history that breaks the invariant."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from allocator.ledger import Ledger
from allocator.ledger_book import Tracked
from scheduler_plugin.state_rules import Rules, Take


@dataclass(frozen=True)
class Mutant:
    """A rule taken out.

    Attributes:
        name: what is missing.
        target: the shipped class that has the rule.
        method: its method.
        instead: what stands in its place.
    """

    name: str
    target: type
    method: str
    instead: Callable[..., Any]

    def apply(self, monkeypatch: pytest.MonkeyPatch) -> type[Rules]:
        """Take the rule out of the shipped class for the length of a test."""
        assert callable(getattr(self.target, self.method))
        if self.target is Rules:
            return type("Mutant", (Rules,), {self.method: self.instead})
        monkeypatch.setattr(self.target, self.method, self.instead)
        return Rules


def _nothing(*_: object) -> tuple[()]:
    return ()


def _none(*_: object) -> None:
    return None


def _empty(*_: object, **__: object) -> dict[str, int]:
    return {}


def _no(*_: object) -> bool:
    return False


def _yes(*_: object) -> bool:
    return True


def _give_up_at_once(_rules: Rules, take: Take, _now: float) -> bool:
    return take.until is not None


def _admitted(_ledger: Ledger, tracked: Tracked) -> bool:
    return tracked.admitted


MUTANTS = (
    Mutant("extender: a bound pod counts until its node holds it", Rules, "bound", _nothing),
    Mutant("extender: a commitment counts before it is seen bound", Rules, "taken", _nothing),
    Mutant("extender: a pod that vanished unheld leaves a tombstone", Rules, "needs_tombstone", _no),
    Mutant("extender: a tombstone stays until the node has seen the end", Rules, "tombstone_ends", _yes),
    Mutant("extender: claims outlive the Node object", Rules, "keeps_without_node", _no),
    Mutant("extender: a Binding without an answer counts", Rules, "take_ends", _give_up_at_once),
    Mutant("extender: a pod bound without us counts on every card", Rules, "anywhere", _empty),
    Mutant("extender: only the node's own holds confirm", Rules, "holds", _yes),
    Mutant("ledger: PodResources may only add", Ledger, "_rule_list_lacks", _yes),
    Mutant("ledger: a listed name proves nothing without startTime", Ledger, "_rule_words_contain", _yes),
    Mutant(
        "ledger: an owner must be known or proven absent",
        Ledger,
        "_rule_owner_is_known_or_proven_absent",
        _yes,
    ),
    Mutant("ledger: possible owners must have ended", Ledger, "_possible_owners", _nothing),
    Mutant(
        "ledger: admitted pods hold their request",
        Ledger,
        "_rule_admitted_pods_hold_their_request",
        _empty,
    ),
    Mutant("ledger: IDs given out twice count twice", Ledger, "_rule_ids_given_out_twice", _empty),
    Mutant("ledger: swapped pods are reserved for", Ledger, "_rule_reserve", _empty),
    Mutant("ledger: withheld IDs are charged", Ledger, "_rule_withheld_is_charged", _empty),
    Mutant("ledger: words of before the restart stand", Ledger, "_rule_leftover", _empty),
    Mutant("ledger: remembered pods were admitted", Ledger, "_rule_remembered_pods_were_admitted", _none),
    Mutant("ledger: a wrong name ends a guess", Ledger, "_rule_name_contradicts", _none),
    Mutant("ledger: a name suggests an owner", Ledger, "_rule_name_suggests", _none),
    Mutant("ledger: a started pod proves its name", Ledger, "_rule_started_proves", _none),
    Mutant("ledger: reuse proves an init container's IDs", Ledger, "_rule_reuse_proves", _none),
    Mutant("ledger: an admitted pod has a holding", Ledger, "_rule_started_needs_a_holding", _none),
    Mutant("ledger: a guess set right exchanges targets", Ledger, "_rule_exchange_targets", _none),
    Mutant("ledger: IDs on offer serve nobody", Ledger, "_doubt_offered_guesses", _none),
    Mutant("ledger: what finished pods leave behind", Ledger, "containers_ended", _none),
)
