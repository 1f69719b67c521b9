"""One thing happens, several hear of it."""

import pytest

from scheduler_plugin.cache.signals import Signal


def test_everybody_hears_in_order() -> None:
    heard: list[tuple[str, int]] = []
    signal: Signal[[int]] = Signal()
    signal(1)
    signal.connect(lambda number: heard.append(("a", number)))
    signal.connect(lambda number: heard.append(("b", number)))
    signal(2)
    assert heard == [("a", 2), ("b", 2)]


def test_one_that_raises_keeps_nobody_from_hearing() -> None:
    heard: list[str] = []
    signal: Signal[[str]] = Signal()

    def fail(word: str) -> None:
        raise ValueError(word)

    signal.connect(fail)
    signal.connect(heard.append)
    signal.connect(lambda _: fail("second"))
    with pytest.raises(ValueError, match="first"):
        signal("first")
    assert heard == ["first"]


def test_nobody_listens() -> None:
    heard: list[str] = []
    signal: Signal[[str]] = Signal(heard.append)
    signal("a")
    signal.connect(lambda _: None)
    signal("b")
    assert heard == ["a"]
