"""Tests are found by `pytest` as people type it: over all folders at once."""

from collections import Counter
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def test_no_two_test_modules_have_one_name_for_pytest() -> None:
    """In a folder without `__init__.py` a module's name is that of its file alone."""
    loose = [path.stem for path in TESTS.rglob("test_*.py") if not (path.parent / "__init__.py").exists()]
    assert [name for name, count in Counter(loose).items() if count > 1] == []
