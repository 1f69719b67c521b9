"""Whether pods have room on cards, found by trying every choice; apart from the code under test."""

from collections.abc import Sequence
from itertools import combinations


def fits(
    free: Sequence[int],
    demands: Sequence[tuple[Sequence[int], int, int]],
    *,
    compute_free: Sequence[int] | None = None,
    models: Sequence[str] | None = None,
    apart: bool = False,
) -> bool:
    """Whether there is a way to serve all demands at once.

    Args:
        free: Units free on each card; below 0 where nobody may have any.
        demands: Of each the units that it takes of a card, by card, how many cards, and percent of compute.
        compute_free: Percent of compute free on each card; None if there is enough.
        models: Model of each card, if the cards of a demand must be of one.
        apart: Whether no card may serve two demands.
    """
    if not demands:
        return True
    (units, count, compute), *others = demands
    compute_left = [compute] * len(free) if compute_free is None else compute_free
    room = [
        at
        for at, left in enumerate(free)
        if left >= units[at] and (not compute or compute_left[at] >= compute)
    ]
    for chosen in combinations(room, count):
        if models is not None and len({models[at] for at in chosen}) > 1:
            continue
        then = [
            left if at not in chosen else 0 if apart else left - units[at] for at, left in enumerate(free)
        ]
        rest = (
            None
            if compute_free is None
            else [left - compute * (at in chosen) for at, left in enumerate(compute_free)]
        )
        if fits(then, others, compute_free=rest, models=models, apart=apart):
            return True
    return False
