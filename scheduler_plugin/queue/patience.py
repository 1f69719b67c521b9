"""How long a pod that fits nowhere waits before cards are kept free for it. Pure."""

from collections.abc import Callable, Iterable
from typing import Final

AGAIN_S: Final = 10.0
"""The age of all pods that run changes slowly: it is looked at so often."""


def patience_s(age_s: float, least_s: float, most_s: float) -> float:
    """Find for how long a pod waits before cards are kept for it.

    Pods that run will go on, on average, for about as long as they have run. So long cards that are kept
    stand idle, while one after the other becomes free; keeping them for a pod that has not waited as long
    takes more from others than it gives. Where pods run for minutes that is soon, where for days it is days.

    Args:
        age_s: For how many seconds the pods that run have run, on average.
        least_s: In any case so long, seconds.
        most_s: Never longer, but for `least_s`.
    """
    return max(least_s, min(age_s, most_s))


class MeanAge:
    """The mean age of the pods that run, by units of GPU memory."""

    def __init__(self) -> None:
        self._at = float("-inf")
        self._found_s = 0.0

    def look(self, ages: Callable[[], Iterable[tuple[int, float]]], now: float) -> float:
        """Seconds, of a moment ago at most.

        Args:
            ages: Tells the units of each pod that runs, and for how many seconds it has.
            now: Seconds.
        """
        if now - self._at >= AGAIN_S:
            units = total = 0.0
            for weight, age_s in ages():
                units += weight
                total += weight * max(0.0, age_s)
            self._at, self._found_s = now, total / units if units else 0.0
        return self._found_s
