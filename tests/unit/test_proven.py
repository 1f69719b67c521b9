"""Mutants run again where the code that they depend on is another one, and not where its text is."""

import inspect
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from tests.property.kernel import proven
from tests.property.kernel.history import ViolationError
from tests.property.kernel.proven import Record, read_code

MODEL = '''
"""A model."""

from shipped.old.place import rule

LIMIT = 3
"""Of the histories."""


def history(seed: int) -> int:
    """Run one."""
    return rule(seed, f"{seed:d} {LIMIT}", limit=None)
'''
SAME = '''
"""The model of something."""
from shipped.new_place import rule

LIMIT = (
    3
)


def history(seed: int) -> int:
    # Why so.
    return rule(
        seed,
        f"{seed:d} {LIMIT}",
        limit=None,
    )
'''


@dataclass
class Mutant:
    """A rule without which the histories of some seeds fail, beside those that fail with it."""

    name: str
    definition: str = "a line, and another one"
    modules: tuple[ModuleType, ...] = (inspect,)
    shown_by: Collection[int] = ()
    broken: Collection[int] = ()

    def take_out(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(self, "broken", {*self.broken, *self.shown_by})

    def kind(self, seed: int) -> None:
        if seed in self.broken:
            raise ViolationError


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Record:
    """Two mutants of one model, one of which was seen to fail."""
    monkeypatch.setattr(proven, "MODE", "record")
    (tmp_path / "model.py").write_text(MODEL)
    found = Record(tmp_path, [Mutant("a"), Mutant("b")], range(2, 20))
    found.add(Mutant("a"), 7)
    return found


def pending(folder: Path, *mutants: Mutant) -> list[str]:
    return [each.name for each in Record(folder, mutants).pending()]


def test_what_was_seen_to_fail_need_not_run(record: Record, tmp_path: Path) -> None:
    assert pending(tmp_path, Mutant("a"), Mutant("b")) == ["b"]
    assert record.seeds(Mutant("a")) == [7]


def test_a_history_that_fails_with_the_rule_in_place_proves_nothing(record: Record) -> None:
    record.prove(Mutant("b", shown_by=(9, 11), broken=(2,)))
    assert record.seeds(Mutant("b")) == [9]
    with pytest.raises(AssertionError, match="b: no history shows"):
        record.prove(Mutant("b", shown_by=(20,), broken=(2,)))


def test_who_reads_while_another_process_records_reads_a_whole_record(record: Record, tmp_path: Path) -> None:
    before = (tmp_path / "proven.json").read_text()
    with (tmp_path / "proven.json").open() as reader:
        record.add(Mutant("b"), 8)
        assert reader.read() == before
    assert record.seeds(Mutant("b")) == [8]
    assert [path.name for path in tmp_path.glob("*.new")] == []


def test_other_words_run_nothing(record: Record, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(SAME)
    assert pending(tmp_path, Mutant("a")) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("rule", "other_rule"),
        ("LIMIT = 3", "LIMIT = 4"),
        ("limit=None", "limit=False"),
        ("limit=None", ""),
        ("{seed:d} ", "{seed:x} "),
    ],
)
def test_another_model_runs_all(record: Record, tmp_path: Path, old: str, new: str) -> None:
    assert old in MODEL
    (tmp_path / "model.py").write_text(MODEL.replace(old, new))
    assert pending(tmp_path, Mutant("a")) == ["a"]


def test_another_change_or_module_runs_it(record: Record, tmp_path: Path) -> None:
    assert pending(tmp_path, Mutant("a", "another line")) == ["a"]
    assert pending(tmp_path, Mutant("a", modules=(inspect, proven))) == ["a"]


def test_nightly_runs_all(record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proven, "MODE", "all")
    assert pending(tmp_path, Mutant("a")) == ["a"]


def test_code_without_a_body_but_its_docstring() -> None:
    assert read_code('def f():\n    """Do nothing."""') == read_code("def f():\n    'Nothing.'")
