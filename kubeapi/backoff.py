"""Computes how long to wait before the next attempt: of one thing, or of many by their keys.

Pure: the caller says what time it is, and gives the random source.
"""

import math
import random
from collections.abc import Callable, Container, Hashable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

Draw = Callable[[float, float], float]


class Backoff:
    """Doubling delays with a cap, each drawn from its upper half so that clients do not march in step.

    The n-th delay (from 0) lies in `[d/2, d]`, `d = min(cap_s, base_s * 2**n)`.

    Args:
        base_s: first delay at most, above 0.
        cap_s: longest delay, at least base_s.

    Raises:
        ValueError: not 0 < base_s <= cap_s.
    """

    def __init__(self, base_s: float = 0.5, cap_s: float = 15.0, uniform: Draw = random.uniform) -> None:
        if not 0 < base_s <= cap_s:
            raise ValueError(f"back-off from {base_s} s to {cap_s} s: expected 0 < base <= cap")
        self._base_s = base_s
        self._cap_s = cap_s
        self._uniform = uniform
        self.failures = 0

    def failed(self, at_least_s: float | None = None) -> float:
        """Count a failure, and return the seconds to wait now.

        Args:
            at_least_s: what the server asked for (Retry-After); heeded up to the cap.
        """
        # The exponent is bounded: an outage of days must not build an integer of thousands of digits.
        delay_s = min(self._cap_s, self._base_s * 2 ** min(self.failures, 32))
        self.failures += 1
        drawn_s = self._uniform(delay_s / 2, delay_s)
        return max(drawn_s, min(at_least_s or 0.0, self._cap_s))

    def log_failure(
        self, log: Any, event: str, error: object, *, loud: bool = False, **values: object
    ) -> float:
        """Count a failure and log it, the first of several louder; return the seconds to wait now.

        Args:
            error: its `retry_after_s`, where it has one, is what the server asked for.
            loud: later failures are warnings, too.
        """
        delay_s = self.failed(getattr(error, "retry_after_s", None))
        note = log.warning if loud or self.failures == 1 else log.debug
        note(event, error=str(error), retry_s=round(delay_s, 2), **values)
        return delay_s

    def reset(self) -> None:
        self.failures = 0


def _draw_longest(_low_s: float, high_s: float) -> float:
    return high_s


@dataclass(slots=True)
class _Pause:
    """The newest pause of a key; it stays known after its end, until the key is forgotten."""

    backoff: Backoff
    ends_at: float = -math.inf
    why: str = ""


class KeyedBackoff(Generic[K]):
    """Pauses by key; a key's pause doubles with each of its failures.

    A pause lasts until `pop_due` has returned its key, so that everything in one round sees the same pauses.

    Args:
        first_s: the first pause of a key.
        longest_s: the longest one, at least as long as the first.
        uniform: draws a pause as `Backoff` does. By default nothing is drawn, and each pause is the longest
            that it may be: right for a process that competes with nobody.
    """

    def __init__(self, first_s: float, longest_s: float, uniform: Draw = _draw_longest) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._uniform = uniform
        self._known: dict[K, _Pause] = {}
        self._until: dict[K, float] = {}
        self._next = math.inf

    def __iter__(self) -> Iterator[K]:
        return iter(self._known)

    @property
    def next_end_s(self) -> float:
        """Latest time at which the next pause ends; infinite if there is none."""
        return self._next

    def find_wait_s(self, now: float) -> float | None:
        """Return the seconds until the next pause ends; None if there is none."""
        return max(0.0, min(self._until.values()) - now) if self._until else None

    def failed(self, key: K, now: float, why: str = "") -> float:
        """Begin a pause, longer than the last one of this key; return its seconds."""
        pause = self._recall(key)
        pause.why = why
        return self._begin(key, pause, now, pause.backoff.failed())

    def log_failure(self, key: K, now: float, log: Any, event: str, error: object, **values: Any) -> float:
        """Begin a pause, and log as `Backoff.log_failure` does, which gets the further arguments."""
        pause = self._recall(key)
        return self._begin(key, pause, now, pause.backoff.log_failure(log, event, error, **values))

    def pause_again(self, key: K, now: float) -> None:
        pause = self._known[key]
        pause.backoff.failures -= 1
        self._begin(key, pause, now, pause.backoff.failed())

    def _recall(self, key: K) -> _Pause:
        pause = self._known.get(key)
        if pause is None:
            pause = self._known[key] = _Pause(Backoff(self._first_s, self._longest_s, self._uniform))
        return pause

    def _begin(self, key: K, pause: _Pause, now: float, delay_s: float) -> float:
        pause.ends_at = self._until[key] = now + delay_s
        self._next = min(self._next, pause.ends_at)
        return delay_s

    def count_failures(self, key: K) -> int:
        pause = self._known.get(key)
        return 0 if pause is None else pause.backoff.failures

    def is_paused(self, key: K) -> bool:
        """Return True during a key's pause, which lasts until `pop_due` has returned the key."""
        return key in self._until

    def get_last_end(self, key: K) -> float:
        """Return when a key's newest pause ends or ended; minus infinity if it had none."""
        pause = self._known.get(key)
        return -math.inf if pause is None else pause.ends_at

    def explain_pause(self, key: K) -> str:
        return self._known[key].why if key in self._until else ""

    def get_last_reason(self, key: K) -> str:
        """Return why a key failed last; empty if it never did, or no reason was given."""
        pause = self._known.get(key)
        return "" if pause is None else pause.why

    def pop_due(self, now: float) -> list[K]:
        """End the pauses that are over, and return their keys."""
        if now < self._next:
            return []
        due = [key for key, until in self._until.items() if until <= now]
        for key in due:
            del self._until[key]
        self._next = min(self._until.values(), default=math.inf)
        return due

    def forget(self, key: K) -> None:
        """Forget the failures of a key: the next one is the first."""
        self._known.pop(key, None)
        self._until.pop(key, None)

    def forget_others(self, keys: Container[K]) -> None:
        for key in [key for key in self._known if key not in keys]:
            self.forget(key)
