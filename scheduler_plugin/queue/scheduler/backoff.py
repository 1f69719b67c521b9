"""Keyed backoff: refusals, and pauses that grow with each of them. Pure."""

import math
from collections.abc import Container, Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class KeyedBackoff(Generic[K]):
    """Pauses by key; each key's pause doubles with its refusals.

    Args:
        first_s: The first one, seconds.
    """

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._refusals: dict[K, int] = {}
        self._until: dict[K, float] = {}
        self._why: dict[K, str] = {}
        self._next = math.inf

    def __iter__(self) -> Iterator[K]:
        return iter(self._refusals)

    @property
    def next_end_s(self) -> float:
        """Latest time at which the next pause ends; infinite if there is none."""
        return self._next

    def record_refusal(self, key: K, now: float, why: str = "") -> None:
        """Begin a pause, longer than the last one."""
        self._why[key] = why
        refusals = self._refusals[key] = self._refusals.get(key, 0) + 1
        # The exponent is bounded: what is refused for weeks must not build an integer of thousands of digits.
        self._until[key] = now + min(self._longest_s, self._first_s * 2 ** min(refusals - 1, 32))
        self._next = min(self._next, self._until[key])

    def pause_again(self, key: K, now: float) -> None:
        """Begin a pause that is as long as the last one."""
        self._refusals[key] -= 1
        self.record_refusal(key, now, self._why[key])

    def count_refusals(self, key: K) -> int:
        return self._refusals.get(key, 0)

    def is_paused(self, key: K) -> bool:
        """Return True during a key's pause, which lasts until `pop_due` has returned the key."""
        return key in self._until

    def explain_pause(self, key: K) -> str:
        return self._why[key] if key in self._until else ""

    def get_last_reason(self, key: K) -> str:
        """Return why a key was refused last; empty if it never was, or no reason was given."""
        return self._why.get(key, "")

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
        """Forget the refusals of a key: the next one is the first."""
        self._refusals.pop(key, None)
        self._until.pop(key, None)
        self._why.pop(key, None)

    def forget_others(self, keys: Container[K]) -> None:
        for key in [key for key in self._refusals if key not in keys]:
            self.forget(key)
