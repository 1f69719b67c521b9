"""A token bucket: a burst at once, then one token at a time. Pure but for the clock, which is given."""

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from kubeapi.bounded import BoundedDict

K = TypeVar("K", bound=Hashable)


class TokenBucket:
    """Full at the beginning; a token comes back every `refill_s` seconds.

    Args:
        burst: tokens it holds at most, at least 1.
        refill_s: seconds for one token, above 0.

    Raises:
        ValueError: burst or refill_s is out of range.
    """

    __slots__ = ("_burst", "_clock", "_refill_s", "_seen_at", "_tokens")

    def __init__(self, burst: int, refill_s: float, clock: Callable[[], float]) -> None:
        if burst < 1 or not refill_s > 0:
            raise ValueError(
                f"token bucket of {burst}, one each {refill_s} s: expected at least 1, above 0 s"
            )
        self._burst = burst
        self._refill_s = refill_s
        self._clock = clock
        self._tokens = float(burst)
        self._seen_at = clock()

    def take(self) -> bool:
        """Take a token; tell whether there was one."""
        self._refill()
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def reserve(self) -> float:
        """Take a token, if necessary one of the future; return the seconds until it is there."""
        self._refill()
        self._tokens -= 1
        return max(0.0, -self._tokens * self._refill_s)

    def _refill(self) -> None:
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._seen_at) / self._refill_s)
        self._seen_at = now


class KeyedTokenBuckets(Generic[K]):
    """A token bucket for each key; of more than `most` keys the one unused longest gets a full one again."""

    def __init__(self, burst: int, refill_s: float, clock: Callable[[], float], most: int) -> None:
        self._make = lambda: TokenBucket(burst, refill_s, clock)
        self._buckets: BoundedDict[K, TokenBucket] = BoundedDict(most)

    def take(self, key: K) -> bool:
        """Take a token of a key; tell whether there was one."""
        return self._buckets.recall(key, self._make).take()

    def reserve(self, key: K) -> float:
        """Take a token of a key, if necessary one of the future; return the seconds until it is there."""
        return self._buckets.recall(key, self._make).reserve()
