"""Answers questions about a cluster beside the event loop: a large one takes seconds."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from gpupack.errors import GpupackError
from gpupack.whatif.cluster import Cluster

T = TypeVar("T")

MOST_WAITING: Final = 16
"""Most questions that wait for their turn, that of the one under way included."""

MOST_CPU_S: Final = 2.0
"""Processor time of a question that can be asked for less."""


class TooManyQuestionsError(GpupackError):
    """More questions wait than may."""


class TooLargeQuestionError(GpupackError):
    """A question takes more than its share; the message says how to ask for less."""


class WorkBudget:
    """The processor time that a question has, in the thread that answers it."""

    def __init__(self, most_s: float = MOST_CPU_S, clock: Callable[[], float] = time.thread_time) -> None:
        self.most_s = most_s
        self._clock = clock
        self._began_s = clock()

    @property
    def spent_s(self) -> float:
        return self._clock() - self._began_s

    @property
    def is_spent(self) -> bool:
        return self.spent_s > self.most_s


class Questions:
    """Answers questions in a thread of its own, one after the other, in the order in which they came.

    Args:
        prepare: Called in the event loop; returns what makes the cluster of that moment. That is called in
            the thread, in the same order.
    """

    def __init__(self, prepare: Callable[[], Callable[[], Cluster]]) -> None:
        self._prepare = prepare
        self._thread = ThreadPoolExecutor(1, "questions")
        self._waiting = 0

    async def ask(self, answer: Callable[[Cluster], T], *, is_bounded: bool = True) -> T:
        """Answer a question.

        A question is finished even if its client disconnects, because it has already changed cached state.

        Args:
            is_bounded: Refuse the question where too many wait; those of this process itself are few.

        Raises:
            TooManyQuestionsError: too many wait.
        """
        if is_bounded and self._waiting >= MOST_WAITING:
            raise TooManyQuestionsError(f"{MOST_WAITING} questions wait for an answer; allowed: no more")
        update = self._prepare()
        self._waiting += 1
        future = asyncio.get_running_loop().run_in_executor(self._thread, lambda: answer(update()))
        future.add_done_callback(self._note_answered)
        return await asyncio.shield(future)

    def _note_answered(self, future: "asyncio.Future[T]") -> None:
        self._waiting -= 1
        if not future.cancelled():
            future.exception()  # the asker may have gone away

    def close(self) -> None:
        """Stop answering questions, without waiting for the one under way."""
        self._thread.shutdown(wait=False, cancel_futures=True)
