"""Colours and control sequences: only where the terminal takes them and nobody said no."""

import io
import sys

import pytest

from gpupack.terminal import Style, cell_width, takes_control_sequences, wants_colour
from scheduler_plugin.simulator.app import _draw_progress_bar


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


@pytest.mark.parametrize(("term", "drawn"), [("xterm", True), ("dumb", False)])
def test_a_progress_bar_is_drawn_where_a_line_can_be_written_anew(
    monkeypatch: pytest.MonkeyPatch, term: str, drawn: bool
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", term)
    _draw_progress_bar(1, 2)
    assert ("\r" in stream.getvalue()) is drawn


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("", 0),
        ("node-1", 6),
        ("█▎░░ 12/80", 10),
        ("bücher…", 7),
        ("日本語", 6),
        ("ｶﾞ", 2),
        ("e\u0301", 1),
        ("カ\u3099", 2),
        ("🚀 go", 5),
    ],
)
def test_columns_of_a_text(text: str, columns: int) -> None:
    assert cell_width(text) == columns


def test_a_style_ends_with_its_text() -> None:
    assert Style.DIM_RED.render("out") == "\x1b[2;31mout\x1b[0m"
    assert Style.RED.render("") == ""
    assert Style.PLAIN.render("text") == "text"
