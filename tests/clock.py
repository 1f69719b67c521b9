"""A clock that tests set."""


class Clock:
    """Seconds that pass only when a test says so, or so many with every look."""

    def __init__(self, now: float = 1000.0, step_s: float = 0.0) -> None:
        self.now, self.step_s = now, step_s

    def __call__(self) -> float:
        self.now += self.step_s
        return self.now
