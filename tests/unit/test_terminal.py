"""Colours and control sequences: only where the terminal takes them and nobody said no."""

import sys

import pytest

from gpupack.terminal import takes_control_sequences, wants_colour


@pytest.mark.parametrize(
    ("terminal", "environment", "colour", "controls"),
    [
        (True, {"TERM": "xterm"}, True, True),
        (True, {}, True, True),
        (True, {"TERM": "xterm", "NO_COLOR": "1"}, False, True),
        (True, {"TERM": "xterm", "NO_COLOR": ""}, True, True),
        (True, {"TERM": "dumb"}, False, False),
        (False, {"TERM": "xterm"}, False, False),
    ],
)
def test_what_the_terminal_takes(
    monkeypatch: pytest.MonkeyPatch,
    terminal: bool,
    environment: dict[str, str],
    colour: bool,
    controls: bool,
) -> None:
    for name in ("TERM", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal, raising=False)
    assert (wants_colour(), takes_control_sequences()) == (colour, controls)
