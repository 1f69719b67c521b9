"""docs/ask.md and docs/python.md show what the commands and the Python functions really give."""

import gpupack
from tests.scripts import ask_docs


def test_the_pages_show_what_is_really_given():
    for page, text in ask_docs.run().items():
        assert page.read_text(encoding="utf-8") == text, f"{page}: python -m tests.scripts.ask_docs"
        assert "OUTPUT" not in text


def test_every_name_of_the_package_can_be_had():
    for name in gpupack.__all__:
        assert getattr(gpupack, name).__doc__, name
    assert set(gpupack.__all__) <= set(dir(gpupack)) | set(gpupack.__all__)
