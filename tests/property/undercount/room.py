"""Whether pods have room, found by trying every way; apart from the code under test."""

from itertools import combinations


def fit(free: tuple[int, ...], demands: tuple[tuple[tuple[int, ...], int], ...]) -> bool:
    """Whether there is a way to serve all demands, each (units by card, different cards), from free units."""
    if not demands:
        return True
    (units, cards), others = demands[0], demands[1:]
    room = [index for index, left in enumerate(free) if left >= units[index]]
    return any(
        fit(tuple(left - units[index] * (index in chosen) for index, left in enumerate(free)), others)
        for chosen in combinations(room, cards)
    )
