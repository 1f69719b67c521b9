"""Whatever the extender binds, the node can admit: shipped modules of node and extender in a model world.

`GPUPACK_UNDERCOUNT_STEPS` sets the number of steps (default 100 000; 10 million take ten minutes of a core,
half with `-n 2`). The model leaves out what docs/accounting.md calls outside the invariant.
"""

import os

import pytest

from tests.property.undercount.mutants import MUTANTS, Mutant
from tests.property.undercount.scene import ViolationError
from tests.property.undercount.simulation import run

STEPS = int(os.environ.get("GPUPACK_UNDERCOUNT_STEPS", "100000"))
HISTORY = 1500
PARTS = 8
MUTANT_SEEDS = range(1000, 1400)


@pytest.mark.timeout(0 if STEPS > 100_000 else 300)
@pytest.mark.parametrize("part", range(PARTS))
def test_invariant_holds_in_every_interleaving(part: int) -> None:
    done = 0
    seed = part
    while done < STEPS / PARTS:
        done += run(seed, HISTORY)
        seed += PARTS
    assert done >= STEPS / PARTS


def breaks(seed: int, mutant: Mutant | None) -> bool:
    """Whether a history breaks the invariant, with a rule taken out or with all of them in."""
    with pytest.MonkeyPatch.context() as patch:
        try:
            if mutant is None:
                run(seed, HISTORY)
            else:
                run(seed, HISTORY, mutant.apply(patch))
        except ViolationError:
            return True
    return False


HISTORIES = [mutant for mutant in MUTANTS if mutant.case is None]
CASES = [mutant for mutant in MUTANTS if mutant.case is not None]


@pytest.mark.parametrize("mutant", HISTORIES, ids=lambda mutant: mutant.name)
def test_every_rule_is_needed_in_some_history(mutant: Mutant) -> None:
    seeds = (mutant.seed, *MUTANT_SEEDS)
    shows = (seed for seed in seeds if breaks(seed, mutant) and not breaks(seed, None))
    assert next(shows, None) is not None, "no history shows that the rule is needed"


@pytest.mark.parametrize("mutant", CASES, ids=lambda mutant: mutant.name)
def test_every_rule_is_needed_in_its_case(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    case = mutant.case
    assert case is not None
    case()
    mutant.apply(monkeypatch)
    with pytest.raises(AssertionError):
        case()
