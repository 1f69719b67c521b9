"""Whatever the extender binds, the node can admit: shipped modules of node and extender in a model world.

`GPUPACK_UNDERCOUNT_STEPS` sets the number of steps (default 100 000), `GPUPACK_UNDERCOUNT_FIRST_SEED` the
seed of the first history, `GPUPACK_UNDERCOUNT_DENSITY` how much more often trouble comes. The model leaves
out what docs/accounting.md calls outside the invariant.
"""

import os
import re
import shlex
from dataclasses import replace
from random import Random

import pytest

from allocator.ledger import charges
from tests.property.undercount.daemon import ModelDaemon
from tests.property.undercount.extender import ModelExtender
from tests.property.undercount.mutant import Mutant
from tests.property.undercount.mutants import MUTANTS
from tests.property.undercount.scene import ViolationError
from tests.property.undercount.simulation import AGAIN, Simulation, run
from tests.property.undercount.taken_out import none

STEPS = int(os.environ.get("GPUPACK_UNDERCOUNT_STEPS", "100000"))
FIRST_SEED = int(os.environ.get("GPUPACK_UNDERCOUNT_FIRST_SEED", "0"))
DENSITY = float(os.environ.get("GPUPACK_UNDERCOUNT_DENSITY", "1"))
HISTORY = 1500
PARTS = 8

pytestmark = pytest.mark.timeout(0 if STEPS > 100_000 else 300)


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


@pytest.mark.parametrize("part", range(2))
def test_pods_get_the_cards_chosen_for_their_like_where_nothing_goes_wrong(part: int) -> None:
    for seed in range(FIRST_SEED + part, FIRST_SEED + 12, 2):
        run(seed, HISTORY, density=0.0)


@pytest.mark.parametrize("part", range(4))
def test_invariant_holds_whatever_comes_more_often(part: int) -> None:
    events = [action.__name__[1:] for _, action in Simulation(0).actions]
    for seed in range(FIRST_SEED + part, FIRST_SEED + max(40, STEPS // HISTORY // 10), 4):
        random = Random(seed)
        more = {event: random.choice((0.1, 0.3, 3, 4, 8)) for event in events if random.random() < 0.35}
        run(seed, HISTORY, density=1.0 + seed % 3, more=more, percent=0.25 * (seed % 2))


@pytest.mark.parametrize("part", range(4))
def test_invariant_holds_where_half_of_the_pods_ask_for_percent(part: int) -> None:
    for seed in range(FIRST_SEED + part, FIRST_SEED + max(24, STEPS // HISTORY // 10), 4):
        run(seed, HISTORY, density=1.0 + seed % 2, percent=0.5)


def breaks(mutant: Mutant, *, taken_out: bool) -> bool:
    """Whether a mutant's history breaks the invariant, with the rule taken out or in its place."""
    with pytest.MonkeyPatch.context() as patch:
        if not mutant.fresh_words:
            patch.setattr(ModelExtender, "read_words_anew", none)
        if mutant.guessed:
            patch.setattr(ModelDaemon, "taken_up", none)
        rules = [mutant.apply(patch)] if taken_out else []
        try:
            run(
                mutant.seed,
                HISTORY,
                *rules,
                density=mutant.density,
                more=mutant.more,
                percent=mutant.percent,
            )
        except ViolationError:
            return True
    return False


def test_a_history_that_fails_tells_how_to_run_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(charges, "charged", lambda facts: dict.fromkeys(facts.cards, 0))
    with pytest.raises(ViolationError) as first:
        run(1000, HISTORY, density=1.5, more={"publish": 3, "sleep": 0.3}, percent=0.5)
    (note,) = first.value.__notes__
    command = shlex.split(note.removeprefix(AGAIN))
    assert command[:2] == ["python", "-c"]
    with pytest.raises(ViolationError, match=re.escape(str(first.value))):
        exec(command[2], {})


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_rule_is_needed_in_some_history(mutant: Mutant) -> None:
    histories = (mutant, *(replace(mutant, seed=seed) for seed in range(1000, 1100)))
    shows = (one for one in histories if breaks(one, taken_out=True) and not breaks(one, taken_out=False))
    assert next(shows, None) is not None, "no history shows that the rule is needed"
