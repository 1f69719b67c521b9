"""Behind the queue over-commit is as impossible as before, and nobody is forgotten, whatever happens.

The shipped queue with its feed and writer, twice, beside the shipped extender and node daemons of the model
in `undercount`: pods are born gated and are admitted by one of two replicas, with requests that are late,
lost or unanswered, a lost Lease, restarts, take-backs and evictions, and everything that troubles a node.
`GPUPACK_QUEUE_HISTORIES` sets the number of histories of each kind, `GPUPACK_QUEUE_FIRST_SEED` the seed of
the first.
"""

import os
from dataclasses import dataclass
from typing import Any

import pytest

from scheduler_plugin.cache.charges import AssumedPod, ChargeRules
from scheduler_plugin.cache.pods import PodRecord
from scheduler_plugin.queue.scheduler.queue import Queue, QueueChargeRules
from tests.property.queued.replica import Replica
from tests.property.queued.simulation import run
from tests.property.undercount.scene import ViolationError

STEPS = 400
HISTORIES = int(os.environ.get("GPUPACK_QUEUE_HISTORIES", "2"))
FIRST_SEED = int(os.environ.get("GPUPACK_QUEUE_FIRST_SEED", "0"))
SEEDS = range(FIRST_SEED, FIRST_SEED + HISTORIES)


@pytest.mark.histories
@pytest.mark.parametrize("mode", ["gate", "batch"])
@pytest.mark.parametrize("density", [0.5, 2.0])
def test_what_is_released_fits_and_all_are_served(mode: str, density: float) -> None:
    for seed in SEEDS:
        run(seed, STEPS, mode=mode, density=density)


@pytest.mark.histories
def test_pods_that_ask_for_percent_are_released_and_served() -> None:
    for seed in SEEDS:
        run(seed, STEPS, percent=0.5)


@pytest.mark.histories
@pytest.mark.parametrize("mode", ["gate", "batch"])
def test_gangs_among_other_pods(mode: str) -> None:
    """Half of the pods are of one: some gangs have a pod too many, some are bound half and removed."""
    served = [run(seed, STEPS, mode=mode, gangs=0.5).served for seed in SEEDS]
    # A few random seeds may have none.
    assert any(served) or FIRST_SEED, "no gang was ever bound whole"


@pytest.mark.histories
@pytest.mark.parametrize("mode", ["gate", "batch"])
def test_pods_that_nobody_makes_again(mode: str) -> None:
    """None is removed: what is taken back waits in its queue again."""
    for seed in SEEDS:
        run(seed, STEPS, mode=mode, gangs=0.3, bare=True)


@pytest.mark.histories
@pytest.mark.parametrize("mode", ["gate", "batch"])
def test_pods_whose_labels_are_taken_away(mode: str) -> None:
    """They count in the queue of their namespace all the same, for a process that starts anew too."""
    for seed in SEEDS:
        run(seed, STEPS, mode=mode, density=2.0, tenants=True)


class NoFence(Replica):
    """A new leader decides at once: it does not know what the one before has sent."""

    fence = False


class Forgetful(QueueChargeRules):
    """What was admitted loses its room when anything about the pod changes."""

    def is_binding_stale(self, assumed: AssumedPod, pod: PodRecord) -> bool:
        return ChargeRules.is_binding_stale(self, assumed, pod)


class ForgetsReleases(Replica):
    """With that rule."""

    rules = Forgetful


@dataclass(frozen=True)
class Mutant:
    """A precaution taken out, and a history that shows that it is needed."""

    name: str
    seed: int
    replica: type[Replica] = Replica
    patch: tuple[Any, ...] = ()
    density: float = 2.0


MUTANTS = (
    Mutant("no fence between two leaders", 1767, NoFence, density=6.0),
    Mutant("what was released keeps no room", 1, ForgetsReleases),
    Mutant("releases of another process take no room", 1018, patch=(Queue, "_place_again", lambda *_: True)),
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_precaution_is_needed_in_some_history(mutant: Mutant) -> None:
    seeds = (mutant.seed, *range(1000, 1100))
    shows = (
        seed
        for seed in seeds
        if breaks(mutant, seed, taken_out=True) and not breaks(mutant, seed, taken_out=False)
    )
    assert next(shows, None) is not None, "no history shows that it is needed"


def breaks(mutant: Mutant, seed: int, *, taken_out: bool) -> bool:
    """Whether a history breaks a promise, with the precaution taken out or in its place."""
    with pytest.MonkeyPatch.context() as patch:
        if taken_out and mutant.patch:
            patch.setattr(*mutant.patch)
        replica = mutant.replica if taken_out else Replica
        try:
            run(seed, STEPS, density=mutant.density, replica=replica)
        except ViolationError:
            return True
    return False
