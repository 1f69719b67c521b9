"""Behind the queue over-commit is as impossible as before, and nobody is forgotten, whatever happens.

The shipped queue with its feed and writer, twice, beside the shipped extender and node daemons of the model
in `undercount`: pods are born gated and are admitted by one of two replicas, with requests that are late,
lost or unanswered, a lost Lease, restarts, take-backs and evictions, and everything that troubles a node.
`GPUPACK_QUEUE_HISTORIES` sets the number of histories of each kind, `GPUPACK_QUEUE_FIRST_SEED` the seed of
the first.
"""

import os

import pytest

from tests.property.queued.mutants import STEPS
from tests.property.queued.simulation import run

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
