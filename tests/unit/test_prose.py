"""The check of pages finds lines that are too long, and nothing else."""

import pytest

from tests.scripts import prose

LONG = "x " * 10 + "y" * 81


@pytest.mark.parametrize(
    "page",
    [LONG, f"- {LONG}", f"> {LONG}", f"# Heading\n{LONG}", f"```\ncode\n```\n{LONG}"],
    ids=["paragraph", "item", "quote", "below a heading", "below code"],
)
def test_a_line_of_more_than_100_columns_is_a_fault(page: str) -> None:
    (fault,) = prose.find_in_page(page)
    assert fault == prose.Fault(page.count("\n") + 1, len(page.splitlines()[-1]))


@pytest.mark.parametrize(
    "line",
    [
        LONG[:-1],
        "# " + "a " * 30 + "b" * 60,
        "| " + "y" * 100 + " |",
        f"```\n{'y ' * 20}{'y' * 100}\n```",
        "- " + "y" * 100,
        "[several words](" + "a/" * 60 + ")",
        "`" + "a " * 60 + "`",
    ],
    ids=["100 columns", "heading", "table", "code", "one word", "link", "span of code"],
)
def test_lines_that_are_short_or_cannot_be_wrapped(line: str) -> None:
    assert prose.find_in_page(line) == []


def test_every_page_is_read(tmp_path) -> None:
    (tmp_path / "docs/howto").mkdir(parents=True)
    pages = ["README.md", "docs/howto/page.md", "docs/page.md"]
    for page in pages:
        (tmp_path / page).write_text(LONG)
    assert list(prose.find_all(tmp_path)) == pages
