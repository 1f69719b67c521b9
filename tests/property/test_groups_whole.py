"""No PodGroup is bound in part while it could be whole, and no card is held for longer than is promised.

Shipped modules of the extender in a model world. `GPUPACK_GROUPS_STEPS` sets the number of steps, 6 000 by
default, `GPUPACK_GROUPS_FIRST_SEED` the seed of the first history.
"""

import os

import pytest

from scheduler_plugin.cache.group_holds import GroupHolds
from tests.property.grouped.history import run
from tests.property.grouped.mutants import STEPS, quiet, troubled
from tests.property.kernel.history import AGAIN, ViolationError

ALL_STEPS = int(os.environ.get("GPUPACK_GROUPS_STEPS", "6000"))
FIRST_SEED = int(os.environ.get("GPUPACK_GROUPS_FIRST_SEED", "0"))

pytestmark = pytest.mark.timeout(0 if ALL_STEPS > 12_000 else 300)


@pytest.mark.histories
@pytest.mark.parametrize("kind", [quiet, troubled])
def test_groups_are_bound_whole_and_cards_held_no_longer_than_promised(kind) -> None:
    for seed in range(FIRST_SEED, FIRST_SEED + ALL_STEPS // STEPS // 2):
        kind(seed)


def test_a_history_that_fails_tells_how_to_run_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GroupHolds, "hold", lambda *_: None)
    with pytest.raises(ViolationError) as found:
        [run(seed, STEPS, 0.0) for seed in range(20)]
    assert found.value.__notes__[-1].startswith(AGAIN)
