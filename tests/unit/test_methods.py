"""docs/methods.md shows what `python -m benchmarks.methods` prints of the five placement methods."""

import json
import re
import sys
from pathlib import Path

import pytest

from benchmarks import methods, slots

PAGE = Path(__file__).resolve().parents[2] / "docs" / "methods.md"


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    methods.main(arguments)
    return capsys.readouterr().out.splitlines()


def test_the_figures(capsys: pytest.CaptureFixture[str]) -> None:
    figures = json.loads(printed(capsys)[-1])
    packed = figures["packed"]
    assert (packed["free"], packed["fits"]) == ([2, 0, 6, 6], "no")
    assert sum(units for units, _ in packed["placed"]) == 4 * 16 - sum(packed["free"])
    assert figures["buckets"] == {
        "best fit": ["b", "a"],
        "first fit": ["a", None],
        "worst fit": ["a", None],
    }
    assert figures["balance"] == {
        "first come": {"ran": [5, 2], "left": [50, 100, 4]},
        "hold": {"ran": [5, 1, 4], "left": [0, 0, 0]},
    }
    assert figures["tiers"] == {"one scheduler_s": 20.0, "two tiers_s": 5.2}
    assert figures["slots"] == {
        "without borrowing": {"rounds": 6, "busy_percent": 50.0},
        "with borrowing": {"rounds": 3, "busy_percent": 100.0},
    }


def test_the_page_shows_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    shown = re.search(r"```text\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert shown is not None
    assert shown[1].splitlines() == printed(capsys)[:-1]


def test_one_method_alone(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "slots")
    assert [line.partition(":")[0] for line in lines[:-1]] == ["slots"]
    assert list(json.loads(lines[-1])) == ["slots"]


def test_a_method_that_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        methods.main(["rings"])
    assert "method 'rings'; allowed: packed, buckets, balance, tiers, slots" in capsys.readouterr().err


def test_the_picture_of_the_slots(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pages name the command without a file; without matplotlib it says what to install."""
    monkeypatch.chdir(tmp_path)
    slots.main([])
    assert json.loads(capsys.readouterr().out)["with borrowing"] == {"rounds": 3, "busy_percent": 100.0}
    assert (tmp_path / "slots.png").stat().st_size > 1000
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SystemExit) as ended:
        slots.main([])
    assert ended.value.code == 2
    assert "pip install matplotlib" in capsys.readouterr().err
