"""Claims and ordinary pods on one card: the extender never counts less, a node never gives more.

Shipped modules of node and extender in a model world. `GPUPACK_CLAIMS_STEPS` sets the number of steps, 4 000
by default, `GPUPACK_CLAIMS_FIRST_SEED` the seed of the first history.
"""

import os

import pytest

from scheduler_plugin.cache.charges import ChargeRules
from tests.property.claimed.history import run
from tests.property.claimed.mutants import STEPS, troubled, vanishing
from tests.property.kernel.history import AGAIN, ViolationError

ALL_STEPS = int(os.environ.get("GPUPACK_CLAIMS_STEPS", "4000"))
FIRST_SEED = int(os.environ.get("GPUPACK_CLAIMS_FIRST_SEED", "0"))
PARTS = 2

pytestmark = pytest.mark.timeout(0 if ALL_STEPS > 14_000 else 300)


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
    assert found.value.__notes__[-1].startswith(AGAIN)


@pytest.mark.parametrize("seed", [11, 617, 2611260130, 2611261734])
def test_histories_that_failed_once(seed: int) -> None:
    troubled(seed)


def test_a_pod_whose_claim_another_one_of_its_name_replaced_keeps_no_units() -> None:
    vanishing(2611261701)


@pytest.mark.histories
def test_invariant_holds_where_no_trouble_comes() -> None:
    for seed in range(FIRST_SEED, FIRST_SEED + 10):
        run(seed, STEPS, 0.0)
