"""docs/ask.md and docs/python.md show what the commands and the Python functions really give."""

import inspect
import pydoc
import re

import gpupack
from tests.ask_world import EXAMPLE
from tests.scripts import ask_docs


def test_the_pages_show_what_is_really_given():
    for page, text in ask_docs.run().items():
        assert page.read_text(encoding="utf-8") == text, f"{page}: python -m tests.scripts.ask_docs"
        assert "OUTPUT" not in text


def test_every_name_of_the_package_can_be_had():
    for name in gpupack.__all__:
        assert getattr(gpupack, name).__doc__, name
    assert set(gpupack.__all__) <= set(dir(gpupack))


def test_help_of_the_package_shows_its_functions():
    text = pydoc.plain(pydoc.render_doc(gpupack))
    assert "Say why a pod waits and what would let it start" in text
    assert "class Cluster(" in text


def test_every_error_that_a_docstring_names_is_exported():
    """Whoever catches one needs its name."""
    said = {
        word
        for name in gpupack.__all__
        for word in re.findall(r"\b[A-Z]\w*Error\b", getattr(gpupack, name).__doc__ or "")
        if inspect.isfunction(getattr(gpupack, name))
    }
    assert said - set(gpupack.__all__) <= {"OSError"}
    assert {"InputError", "KubeApiError", "PolicyError", "SettingsError", "TraceError"} <= said


def test_a_cluster_is_shown_in_one_line():
    cluster = gpupack.read(EXAMPLE.text.encode())
    assert repr(cluster) == f"<Cluster of the file: 4 nodes, {len(cluster.pods)} pods, units of 1024 MiB>"
