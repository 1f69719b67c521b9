"""Whatever the extender binds, the node can admit: the shipped ledger and extender state against a model world.

`GPUPACK_UNDERCOUNT_STEPS` sets the number of steps (default 100 000; 10 million is a night).
"""

import os

import pytest

from tests.property.undercount.mutants import MUTANTS, Mutant, seeds_that_show
from tests.property.undercount.simulation import Violation, run

STEPS = int(os.environ.get("GPUPACK_UNDERCOUNT_STEPS", "100000"))
HISTORY = 1500
PARTS = 8


@pytest.mark.timeout(0 if STEPS > 100_000 else 300)
@pytest.mark.parametrize("part", range(PARTS))
def test_invariant_holds_in_every_interleaving(part: int) -> None:
    done = 0
    seed = part
    while done < STEPS / PARTS:
        done += run(seed, HISTORY)
        seed += PARTS
    assert done >= STEPS / PARTS


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_rule_is_needed(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = mutant.apply(monkeypatch)
    with pytest.raises(Violation):
        for seed in seeds_that_show(mutant):
            run(seed, HISTORY, rules)
