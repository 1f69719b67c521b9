"""The order of the pods of a batch, and their retries."""

from collections import deque
from dataclasses import dataclass
from typing import Final

from scheduler_plugin.errors import SettingsError

_LONGEST_BACKOFF_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class PodTurn:
    """A pod's place in the queue of a batch: its number, earlier turns, and the earliest time of this one."""

    pod: int
    attempt: int = 0
    not_before_s: float = 0.0


class TurnQueue:
    """The pods of a batch in order; a pod that failed goes to the tail, later each time.

    Args:
        attempts: Turns a pod gets at most.
        backoff_s: Wait after the first failure; doubled each time, 5 s at most.

    Raises:
        SettingsError: attempts below 1, or a negative back-off.
    """

    def __init__(self, pods: int, attempts: int = 5, backoff_s: float = 0.05) -> None:
        if attempts < 1 or backoff_s < 0:
            raise SettingsError(
                f"{attempts} attempts with a back-off of {backoff_s:g} s; allowed: 1 or more, from 0 s"
            )
        self.attempts = attempts
        self.backoff_s = backoff_s
        self._queue = deque(PodTurn(pod) for pod in range(pods))

    def __len__(self) -> int:
        return len(self._queue)

    def pop_due(self, now_s: float) -> PodTurn | None:
        for at, turn in enumerate(self._queue):
            if turn.not_before_s <= now_s:
                del self._queue[at]
                return turn
        return None

    def get_next_due_s(self) -> float:
        return min((turn.not_before_s for turn in self._queue), default=float("inf"))

    def requeue_failed(self, turn: PodTurn, now_s: float) -> bool:
        """Put a pod back at the tail; False if it has used up its turns."""
        if turn.attempt + 1 >= self.attempts:
            return False
        wait_s = min(_LONGEST_BACKOFF_S, self.backoff_s * 2**turn.attempt)
        self._queue.append(PodTurn(turn.pod, turn.attempt + 1, now_s + wait_s))
        return True
