"""`import gpupack`: what is wrong is an InputError, a sentence that names it and says what is allowed."""

import re

import numpy as np
import pytest

import gpupack
from gpupack import InputError
from tests.ask_world import EXAMPLE


@pytest.fixture(scope="module")
def cluster():
    return gpupack.read(EXAMPLE.text.encode())


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(
        InputError, match=re.escape(f"{tmp_path / 'missing'}: No such file or directory")
    ) as one:
        gpupack.read(tmp_path / "missing")
    assert isinstance(one.value.__cause__, FileNotFoundError)


@pytest.mark.parametrize(("name", "said"), [("", "Is a directory"), ("a\0b", "embedded null byte")])
def test_a_path_that_cannot_be_read(tmp_path, name, said):
    with pytest.raises(InputError, match=said):
        gpupack.read(f"{tmp_path}/{name}")


@pytest.mark.parametrize(
    ("value", "shown"), [(8.5, "8.5"), ("8", '"8"'), (0, "0"), (True, "True"), (None, "None")]
)
def test_units_are_whole_numbers(cluster, value, shown):
    said = re.escape(f"units is {shown}; allowed: a whole number from 1 to 131072")
    for ask in (gpupack.fit, gpupack.advise, gpupack.rank):
        with pytest.raises(InputError, match=said):
            ask(cluster, value)


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda it: gpupack.fit(it, 8, cards="2"), 'cards is "2"; allowed: a whole number from 1 to 64'),
        (lambda it: gpupack.advise(it, 8, 1.5), "pods is 1.5; allowed: a whole number of 1 or more"),
        (lambda it: gpupack.fit(it, 8, model=5), "model is 5; allowed: text"),
        (lambda it: gpupack.simulate(it, unit_mib=0), "unit_mib is 0; allowed: a whole number from 1 to"),
        (lambda it: gpupack.simulate(it, "best-fit"), 'policies is "best-fit"; allowed: a list of names'),
        (
            lambda _it: gpupack.read(b"{}", unit_mib="x"),
            'unit_mib is "x"; allowed: a whole number from 1 to',
        ),
    ],
    ids=["cards", "pods", "model", "simulate", "policies", "read"],
)
def test_other_values_are_checked_too(cluster, ask, said):
    with pytest.raises(InputError, match=re.escape(said)):
        ask(cluster)


def test_integers_of_numpy_are_whole_numbers(cluster):
    assert gpupack.fit(cluster, np.int64(8)) == gpupack.fit(cluster, 8)
