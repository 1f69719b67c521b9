"""Each accounting rule taken out, one at a time; the model must find a history that breaks the invariant."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pytest

from scheduler_plugin.state_rules import Rules


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
    instead: Callable[..., object]

    def apply(self, monkeypatch: pytest.MonkeyPatch) -> type[Rules]:
        """Take the rule out of the shipped class for the length of a test."""
        if self.target is Rules:
            return type("Mutant", (Rules,), {self.method: self.instead})
        monkeypatch.setattr(self.target, self.method, self.instead)
        return Rules


def seeds_that_show(mutant: Mutant) -> Iterable[int]:
    """Seeds to try, in order."""
    return range(1000, 1400)


def _nothing(*_: object) -> tuple[()]:
    return ()


def _no(*_: object) -> bool:
    return False


def _yes(*_: object) -> bool:
    return True


MUTANTS = (
    Mutant("extender: a bound pod counts until its node holds it", Rules, "bound", _nothing),
    Mutant("extender: a commitment counts before it is seen bound", Rules, "taken", _nothing),
    Mutant("extender: a pod that vanished unheld leaves a tombstone", Rules, "needs_tombstone", _no),
    Mutant("extender: a tombstone stays until the node has seen the end", Rules, "tombstone_ends", _yes),
    Mutant("extender: assumed pods survive their Node object", Rules, "keeps_without_node", _no),
    Mutant("extender: a Binding without an answer counts until the fence", Rules, "take_ends", lambda _s, take, _n: take.until is not None),
    Mutant("extender: a pod bound without us counts on every card", Rules, "anywhere", lambda *_: {}),
)
