"""The glossary stays short, and explains each word once."""

from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "glossary.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith("| word |")
]


WORDS = [word for row in ROWS for word in row[0].split(", ")]


def test_the_glossary_has_at_most_sixty_words() -> None:
    assert 40 <= len(WORDS) <= 60


def test_every_word_is_explained_once_and_in_a_sentence() -> None:
    assert sorted(set(WORDS)) == sorted(WORDS)
    assert [row for row in ROWS if len(row) != 3 or not row[2].endswith(".")] == []
