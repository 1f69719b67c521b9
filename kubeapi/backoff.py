"""Computes how long to wait before the next attempt. Pure but for the random source, which is given."""

import random
from collections.abc import Callable


class Backoff:
    """Doubling delays with a cap, each drawn from its upper half so that clients do not march in step.

    The n-th delay (from 0) lies in `[d/2, d]`, `d = min(cap_s, base_s * 2**n)`.
    """

    def __init__(
        self,
        base_s: float = 0.5,
        cap_s: float = 15.0,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        """Set the range.

        Args:
            base_s: first delay at most, above 0.
            cap_s: longest delay, at least base_s.

        Raises:
            ValueError: not 0 < base_s <= cap_s.
        """
        if not 0 < base_s <= cap_s:
            raise ValueError(f"back-off from {base_s} s to {cap_s} s: expected 0 < base <= cap")
        self._base_s = base_s
        self._cap_s = cap_s
        self._uniform = uniform
        self.failures = 0

    def failed(self, at_least_s: float | None = None) -> float:
        """Count a failure.

        Args:
            at_least_s: what the server asked for (Retry-After); heeded up to the cap.

        Returns:
            Seconds to wait now.
        """
        # The exponent is bounded: an outage of days must not build an integer of thousands of digits.
        delay_s = min(self._cap_s, self._base_s * 2 ** min(self.failures, 32))
        self.failures += 1
        drawn_s = self._uniform(delay_s / 2, delay_s)
        return max(drawn_s, min(at_least_s or 0.0, self._cap_s))

    def reset(self) -> None:
        self.failures = 0
