"""Whatever the extender binds, the node can admit: shipped modules of node and extender in a model world.

`GPUPACK_UNDERCOUNT_STEPS` sets the number of steps (default 100 000), `GPUPACK_UNDERCOUNT_FIRST_SEED` the
seed of the first history, `GPUPACK_UNDERCOUNT_DENSITY` how much more often trouble comes. The model leaves
out what docs/accounting.md calls outside the invariant.
"""

import os

import pytest

from allocator.errors import LedgerError
from tests.property.undercount.mutants import MUTANTS, Mutant
from tests.property.undercount.scene import ViolationError
from tests.property.undercount.simulation import run

STEPS = int(os.environ.get("GPUPACK_UNDERCOUNT_STEPS", "100000"))
FIRST_SEED = int(os.environ.get("GPUPACK_UNDERCOUNT_FIRST_SEED", "0"))
DENSITY = float(os.environ.get("GPUPACK_UNDERCOUNT_DENSITY", "1"))
HISTORY = 1500
PARTS = 8
BY_HISTORY = [mutant for mutant in MUTANTS if mutant.case is None]
BY_CASE = [mutant for mutant in MUTANTS if mutant.case is not None]


@pytest.mark.timeout(0 if STEPS > 100_000 else 300)
@pytest.mark.parametrize("part", range(PARTS))
def test_invariant_holds_in_every_interleaving(part: int) -> None:
    done = 0
    seed = FIRST_SEED + part
    while done < STEPS / PARTS:
        done += run(seed, HISTORY, density=DENSITY)
        seed += PARTS
    assert done >= STEPS / PARTS


@pytest.mark.parametrize("part", range(4))
def test_invariant_holds_where_trouble_comes_twice_as_often(part: int) -> None:
    for seed in range(FIRST_SEED + part, FIRST_SEED + 40, 4):
        run(seed, HISTORY, density=2.0)


@pytest.mark.parametrize("part", range(4))
def test_invariant_holds_where_half_of_the_pods_ask_for_percent(part: int) -> None:
    for seed in range(FIRST_SEED + part, FIRST_SEED + max(24, STEPS // HISTORY // 10), 4):
        run(seed, HISTORY, density=1.0 + seed % 2, percent=0.5)


def breaks(seed: int, density: float, mutant: Mutant | None, percent: float = 0.0) -> bool:
    """Whether a history breaks the invariant, with a rule taken out or with all of them in."""
    with pytest.MonkeyPatch.context() as patch:
        rules = [mutant.apply(patch)] if mutant is not None else []
        try:
            run(seed, HISTORY, *rules, density=density, percent=percent)
        except ViolationError:
            return True
    return False


@pytest.mark.parametrize("mutant", BY_HISTORY, ids=lambda mutant: mutant.name)
def test_every_rule_is_needed_in_some_history(mutant: Mutant) -> None:
    seeds = ((mutant.seed, mutant.density), *((seed, 1.0) for seed in range(1000, 1100)))
    shows = (
        seed
        for seed, density in seeds
        if breaks(seed, density, mutant, mutant.percent) and not breaks(seed, density, None, mutant.percent)
    )
    assert next(shows, None) is not None, "no history shows that the rule is needed"


@pytest.mark.parametrize("mutant", BY_CASE, ids=lambda mutant: mutant.name)
def test_rules_for_which_no_history_was_found_are_needed_in_a_case(
    mutant: Mutant, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = mutant.case
    assert case is not None
    case()
    mutant.apply(monkeypatch)
    with pytest.raises((AssertionError, LedgerError)):
        case()
