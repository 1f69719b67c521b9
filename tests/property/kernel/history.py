"""What the histories of every model have: a seed, steps, a trace, and how to run one again."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from random import Random
from typing import Final, ParamSpec, TypeVar

AGAIN: Final = "to run this history again: "
TOLD: Final = 60
"""Lines of the trace that a failure tells."""

P = ParamSpec("P")
R = TypeVar("R")


class ViolationError(AssertionError):
    """What must hold does not; its notes tell how that came about, and how to run the history again."""


class History:
    """One random history.

    A model fills `actions` and `weights`, or drives the history by itself.

    Attributes:
        steps: Steps that were done.
        trace: What happened, the newest last.
        actions: What may happen, each with how often it does; the order is part of what a seed means.
        weights: How often each action happens now.
    """

    longest_step_s = 0.4
    rests_after = 250
    """Steps after which everything comes to rest."""

    def __init__(self, seed: int | str) -> None:
        self.random = Random(seed)
        self.steps = 0
        self.trace: deque[str] = deque(maxlen=400)
        self.actions: list[tuple[float, Callable[[], object]]] = []
        self.weights: list[float] = []

    @property
    def now(self) -> float:
        """Seconds of the model's clock."""
        raise NotImplementedError

    def play(self, steps: int) -> None:
        """Let so many things happen, with a rest from time to time, and come to the end."""
        with self.telling():
            for _ in range(steps):
                self.step()
                if self.steps % self.rests_after == 0:
                    self.rest()
            self.end()

    def step(self) -> None:
        """Let one thing happen, and look at what must hold."""
        self.steps += 1
        self._pass(self.random.uniform(0.01, self.longest_step_s))
        ((_, action),) = self.random.choices(self.actions, self.weights)
        self._do(action)
        self.check()

    def _pass(self, seconds: float) -> None:
        raise NotImplementedError

    def _do(self, action: Callable[[], object]) -> None:
        action()

    def check(self) -> None:
        """Look at what must hold at every moment.

        Raises:
            ViolationError: it does not.
        """

    def rest(self) -> None:
        """Deliver everything, and compare all views."""

    def end(self) -> None:
        """Let everything end, and look at what is left."""

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Have whatever is raised tell what happened before."""
        try:
            yield
        except BaseException as error:
            error.add_note("\n".join([*self.trace][-TOLD:]))
            raise

    def _say(self, text: str) -> None:
        self.trace.append(f"{self.steps:6} {self.now:8.2f} {text}")

    def _fail(self, text: str) -> None:
        raise ViolationError(f"{text}\nnow {self.now:.2f}, step {self.steps}")


def replayable(run: Callable[P, R]) -> Callable[P, R]:
    """Have whatever a function raises that runs a history tell the command that runs it again."""

    @wraps(run)
    def running(*args: P.args, **options: P.kwargs) -> R:
        try:
            return run(*args, **options)
        except BaseException as error:
            given = ", ".join([*map(repr, args), *(f"{name}={value!r}" for name, value in options.items())])
            name = run.__name__
            error.add_note(f'{AGAIN}python -c "from {run.__module__} import {name}; {name}({given})"')
            raise

    return running
