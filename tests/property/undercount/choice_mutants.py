"""Rules of who asks and of what the kubelet is told, taken out one at a time."""

from allocator.ledger import choice

from .histories import dense, forgetful, heard_late, mixed, percent
from .mutant import Mutant

CHOICE_MUTANTS = (
    Mutant(
        "node: the kubelet asks for a pod that it has taken up",
        choice,
        "return self.taken_up is None or",
        "return True or",
        dense,
        1000,
    ),
    Mutant(
        "node: a container that starts again asks last",
        choice,
        "(one.ran, not one.live",
        "(not one.live",
        forgetful,
        2012,
    ),
    Mutant(
        "node: who lives asks before who is gone",
        choice,
        "one.ran, not one.live, one",
        "one.ran, one",
        heard_late,
        9054,
    ),
    Mutant(
        "node: who has been served does not ask",
        choice,
        "container.name not in one.has and",
        "container.name not in one.book and",
        forgetful,
        2016,
    ),
    Mutant(
        "node: an unknown pod is waited for",
        choice,
        "        found = self.whose()\n        if found is None or found[0].ran",
        "        return True\n        found = self.whose()\n        if found is None or found[0].ran",
        forgetful,
        2037,
    ),
    Mutant(
        "node: the scheduler's card is taken",
        choice,
        "else facts.target(one.pod, demand)",
        "else ()",
        mixed,
        1000,
    ),
    Mutant(
        "node: what is charged is not given out again",
        choice,
        "card.size_units - taken[uuid])",
        "card.size_units)",
        mixed,
        1005,
    ),
    Mutant(
        "node: the charge of the pod that asks is no hindrance",
        choice,
        "if pod is not one]",
        "]",
        percent,
        1000,
    ),
)
