"""Whatever the extender binds, the node can admit: shipped modules of node and extender in a model world.

`GPUPACK_UNDERCOUNT_STEPS` sets the number of steps (default 10 000), `GPUPACK_UNDERCOUNT_FIRST_SEED` the
seed of the first history, `GPUPACK_UNDERCOUNT_DENSITY` how much more often trouble comes. The model leaves
out what docs/accounting.md calls outside the invariant.
"""

import os
import re
import shlex

import pytest

from allocator.ledger import charges
from tests.property.kernel.history import AGAIN, ViolationError
from tests.property.kernel.mutant import Kind
from tests.property.undercount.histories import HISTORY, ODD, calm, compute, dense, mixed, percent
from tests.property.undercount.simulation import run

STEPS = int(os.environ.get("GPUPACK_UNDERCOUNT_STEPS", "10000"))
FIRST_SEED = int(os.environ.get("GPUPACK_UNDERCOUNT_FIRST_SEED", "0"))
DENSITY = float(os.environ.get("GPUPACK_UNDERCOUNT_DENSITY", "1"))
PARTS = 8
OTHERS = max(min(12, STEPS // 2_000), STEPS // HISTORY // 10)
"""Histories of each other kind."""
ODD_ONES = max(1, min(3, STEPS // 15_000), STEPS // HISTORY // 100)
"""Histories of each odd kind."""

pytestmark = pytest.mark.timeout(0 if STEPS > 100_000 else 300)


@pytest.mark.histories
@pytest.mark.parametrize("part", range(PARTS))
def test_invariant_holds_in_every_interleaving(part: int) -> None:
    done = 0
    seed = FIRST_SEED + part
    while done < STEPS / PARTS:
        done += run(seed, HISTORY, density=DENSITY)
        seed += PARTS
    assert done >= STEPS / PARTS


@pytest.mark.histories
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("kind", [dense, mixed, percent, compute])
def test_invariant_holds_whatever_comes_more_often(kind: Kind, part: int) -> None:
    for seed in range(FIRST_SEED + part, FIRST_SEED + OTHERS, 4):
        kind(seed)


@pytest.mark.histories
@pytest.mark.parametrize("name", ODD)
def test_invariant_holds_in_odd_histories(name: str) -> None:
    for seed in range(FIRST_SEED, FIRST_SEED + ODD_ONES):
        ODD[name](seed)


@pytest.mark.histories
@pytest.mark.parametrize("part", range(2))
def test_pods_get_the_cards_chosen_for_them_where_nothing_goes_wrong_and_the_invariant_holds(
    part: int,
) -> None:
    for seed in range(FIRST_SEED + part, FIRST_SEED + OTHERS, 2):
        calm(seed)


def test_a_card_whose_pods_have_more_than_its_size_counts_alike_on_node_and_in_extender() -> None:
    """Pods of another scheduler, whose cards nobody knows any more, count on every card."""
    run(1711198386, 1250, density=2.0)


def test_a_history_that_fails_tells_how_to_run_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(charges, "charge_cards", lambda accounts: dict.fromkeys(accounts.cards, 0))
    with pytest.raises(ViolationError) as first:
        run(1000, HISTORY, density=1.5, more={"publish": 3, "sleep": 0.3}, percent=0.5)
    trace, note = first.value.__notes__
    assert "publishes" in trace
    command = shlex.split(note.removeprefix(AGAIN))
    assert command[:2] == ["python", "-c"]
    with pytest.raises(ViolationError, match=re.escape(str(first.value))):
        exec(command[2], {})
