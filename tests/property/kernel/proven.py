"""Mutants that need not run: nothing that their failing histories depend on has changed since they failed.

A model of random histories keeps a record beside it. The record has for each mutant the seed of a
history that failed, and a digest of the shipped modules that the mutant changes, of the change,
of the model and of the kernel. Comments, docstrings, wrapping and the folders of imported modules do
not count.

`GPUPACK_MUTANTS=all` runs every mutant, as the nightly workflow does. `GPUPACK_MUTANTS=record` runs those
whose digest differs and writes the record. What else a history runs through is left to the nightly run.
"""

import ast
import fcntl
import hashlib
import inspect
import json
import os
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from .history import ViolationError
from .mutant import Mutant

MODE: Final = os.environ.get("GPUPACK_MUTANTS", "")
if MODE not in ("", "all", "record"):
    raise ValueError(f"GPUPACK_MUTANTS={MODE}; allowed: all, record and nothing")


KERNEL: Final = Path(__file__).parent


class Proof(NamedTuple):
    """A mutant that was seen to fail.

    Attributes:
        digest: Of all that the proof depends on.
        seed: Of a history that failed.
    """

    digest: str
    seed: int


class Record:
    """Digests of the mutants that were seen to fail.

    Args:
        model: Folder of the model; the record is its file `proven.json`. Files that define mutants, named
            `*mutants.py`, do not count as the model.
        mutants: All of them.
        seeds: Histories that are tried after the recorded one.
        failures: What a history raises that fails.
    """

    def __init__(
        self,
        model: Path,
        mutants: Sequence[Mutant],
        seeds: Iterable[int] = range(1000, 1100),
        failures: tuple[type[Exception], ...] = (ViolationError,),
    ) -> None:
        self._path = model / "proven.json"
        self._mutants, self._seeds, self._failures = mutants, seeds, failures
        found = (path for folder in (KERNEL, model) for path in folder.glob("*.py"))
        files = sorted(path for path in found if not path.stem.endswith("mutants"))
        self._model = "\0".join(read_code(path.read_text(encoding="utf-8")) for path in files)

    def pending(self) -> list[Mutant]:
        if MODE == "all":
            return list(self._mutants)
        proven = {name: proof.digest for name, proof in self._read().items()}
        return [each for each in self._mutants if proven.get(each.name) != self._digest(each)]

    def seeds(self, mutant: Mutant) -> list[int]:
        """List the seeds of histories that failed without the rule when it was last recorded: one or none."""
        proof = self._read().get(mutant.name)
        return [] if proof is None else [proof.seed]

    def prove(self, mutant: Mutant) -> None:
        """Find a history that fails without the rule and not with it, and record its seed.

        Raises:
            AssertionError: no history shows that the rule is needed.
        """
        for seed in (*self.seeds(mutant), *self._seeds):
            if self._fails(mutant, seed, taken_out=True) and not self._fails(mutant, seed, taken_out=False):
                self.add(mutant, seed)
                return
        raise AssertionError(f"{mutant.name}: no history shows that the rule is needed")

    def _fails(self, mutant: Mutant, seed: int, *, taken_out: bool) -> bool:
        with pytest.MonkeyPatch.context() as patch:
            if taken_out:
                mutant.take_out(patch)
            try:
                mutant.kind(seed)
            except self._failures:
                return True
        return False

    def add(self, mutant: Mutant, seed: int) -> None:
        """Record that a mutant has failed, in the mode `record`; several processes may do so at a time."""
        if MODE != "record":
            return
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            known = {each.name for each in self._mutants}
            proofs = {name: proof for name, proof in self._read().items() if name in known}
            proofs[mutant.name] = Proof(self._digest(mutant), seed)
            lines = (f"{json.dumps(name)}: {json.dumps(proofs[name])}" for name in sorted(proofs))
            # Others read it meanwhile, without the lock: they see the old record or the new one.
            new = self._path.with_suffix(".new")
            new.write_text("{\n" + ",\n".join(lines) + "\n}\n")
            new.replace(self._path)
        finally:
            os.close(folder)

    def _read(self) -> dict[str, Proof]:
        if not self._path.exists():
            return {}
        return {name: Proof(*proof) for name, proof in json.loads(self._path.read_text()).items()}

    def _digest(self, mutant: Mutant) -> str:
        sources = [read_code(inspect.getsource(module)) for module in mutant.modules]
        text = "\0".join([self._model, mutant.definition, *sources])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache  # many mutants change few modules
def read_code(source: str) -> str:
    """Write what a module does, in a form that comments, docstrings, wrapping and folders do not change."""
    words: list[str] = []
    _write(ast.parse(source), words)
    return " ".join(words)


def _write(node: object, words: list[str]) -> None:
    if isinstance(node, list):
        for each in node:
            _write(each, words)
    elif not isinstance(node, ast.AST):
        words.append(repr(node))
    elif not (isinstance(node, ast.Expr) and _is_text(node.value)):
        words.append(type(node).__name__)
        for name, value in ast.iter_fields(node):
            moves = isinstance(node, ast.ImportFrom) and name in {"module", "level"}
            # Newer versions of Python have more fields; empty ones say nothing.
            if not moves and (isinstance(node, ast.Constant) or value not in (None, [])):
                _write(value, words)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)
