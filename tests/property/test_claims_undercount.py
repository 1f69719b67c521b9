"""Claims and ordinary pods on one card: the extender never counts less, a node never gives more.

Shipped modules of node and extender in a model world. `GPUPACK_CLAIMS_STEPS` sets the number of steps, 8 000
by default, `GPUPACK_CLAIMS_FIRST_SEED` the seed of the first history.
"""

import os
from pathlib import Path

import pytest

from scheduler_plugin.cache.charges import ChargeRules
from tests.property.claimed.history import AGAIN, run
from tests.property.claimed.mutants import MUTANTS, STEPS, troubled, vanishing
from tests.property.proven import Record
from tests.property.undercount.mutant import Mutant
from tests.property.undercount.scene import ViolationError

ALL_STEPS = int(os.environ.get("GPUPACK_CLAIMS_STEPS", "8000"))
FIRST_SEED = int(os.environ.get("GPUPACK_CLAIMS_FIRST_SEED", "0"))
PARTS = 2
PROVEN = Record(Path(__file__).parent / "claimed", MUTANTS)

pytestmark = pytest.mark.timeout(0 if ALL_STEPS > 28_000 else 300)


@pytest.mark.histories
@pytest.mark.parametrize("part", range(PARTS))
def test_invariant_holds_for_claims_and_ordinary_pods(part: int) -> None:
    for seed in range(FIRST_SEED + part, FIRST_SEED + ALL_STEPS // STEPS, PARTS):
        troubled(seed)
        vanishing(seed)


def test_a_history_that_fails_tells_how_to_run_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChargeRules, "charges_of_claims", lambda *_: ())
    with pytest.raises(ViolationError) as found:
        run(0, STEPS)
    assert found.value.__notes__[0].startswith(AGAIN)


@pytest.mark.parametrize("seed", [11, 617, 2611260130, 2611261734])
def test_histories_that_failed_once(seed: int) -> None:
    troubled(seed)


def test_a_pod_whose_claim_another_one_of_its_name_replaced_keeps_no_units() -> None:
    vanishing(2611261701)


@pytest.mark.histories
def test_invariant_holds_where_no_trouble_comes() -> None:
    for seed in range(FIRST_SEED, FIRST_SEED + 10):
        run(seed, STEPS, 0.0)


def breaks(mutant: Mutant, seed: int, *, taken_out: bool) -> bool:
    """Whether a history breaks, with the rule taken out or in its place."""
    with pytest.MonkeyPatch.context() as patch:
        if taken_out:
            mutant.take_out(patch)
        try:
            mutant.kind(seed)
        except (ViolationError, KeyError):
            return True
    return False


@pytest.mark.mutants
@pytest.mark.parametrize("mutant", PROVEN.pending(), ids=lambda mutant: mutant.name)
def test_every_rule_of_claims_is_needed_in_some_history(mutant: Mutant) -> None:
    PROVEN.prove(mutant, range(1000, 1100), breaks)
