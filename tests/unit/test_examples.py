"""Hypothesis tries the same examples wherever the repository was cloned to, and whatever ran before."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]

DRAWS = """
from hypothesis import core, given, strategies as st
from tests.examples import choose_examples
choose_examples()
import os, product
core.global_force_seed = int(os.environ.get("SEED", "0")) or None
drawn = []
@given(st.integers())
def draw(number):
    drawn.append(number)
draw()
print(drawn)
"""


@pytest.fixture
def product() -> str:
    return "ODD = [" + ", ".join(str(918_273_645 + 7 * each) for each in range(200)) + "]\n"


def draws(folder: Path, product: str, **environment: str) -> str:
    """Numbers that hypothesis draws beside a module with constants of its own."""
    folder.mkdir()
    (folder / "product.py").write_text(product)
    inherited = {name: value for name, value in os.environ.items() if name != "GPUPACK_RANDOM_EXAMPLES"}
    done = subprocess.run(
        [sys.executable, "-c", DRAWS],
        env={**inherited, "PYTHONPATH": f"{folder}:{REPOSITORY}", **environment},
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout


def test_examples_depend_neither_on_the_folder_nor_on_what_is_loaded(tmp_path: Path, product: str) -> None:
    elsewhere = draws(tmp_path / "code", product)
    assert elsewhere == draws(tmp_path / "test", product) == draws(tmp_path / "other", "NONE = 1\n")


def test_a_random_seed_finds_its_examples_again_wherever_the_clone_is(tmp_path: Path, product: str) -> None:
    random = {"GPUPACK_RANDOM_EXAMPLES": "1", "SEED": "7"}
    elsewhere = draws(tmp_path / "code", product, **random)
    assert elsewhere == draws(tmp_path / "test", product, **random)
    assert elsewhere != draws(tmp_path / "again", product, **{**random, "SEED": "8"})


def test_random_examples_differ(tmp_path: Path, product: str) -> None:
    first, second = (draws(tmp_path / name, product, GPUPACK_RANDOM_EXAMPLES="1") for name in ("a", "b"))
    assert first != second
