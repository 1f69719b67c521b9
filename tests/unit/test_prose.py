"""The checks of docstrings and pages find what they are for, and nothing else."""

import pytest

from tests.scripts import prose

LONG = "a " * 26 + "word."


def module(docstring: str) -> str:
    return f'"""{docstring}"""\n'


@pytest.mark.parametrize(
    "word", ["It", "They", "Those", "Who", "Whoever", "One", "Of", "The same", "Likewise", "Nobody"]
)
def test_a_sentence_that_begins_without_a_subject_is_a_fault(word: str) -> None:
    assert [fault.text for fault in prose.find_in_module(module(f"Do this. {word} is here."))] == [
        f"a sentence begins with {word!r}, name the subject: {word} is here.…"
    ]


@pytest.mark.parametrize("text", ["of the pod", "likewise", "see there"])
def test_an_entry_that_says_nothing_is_a_fault(text: str) -> None:
    (fault,) = prose.find_in_module(module(f"Do.\n\nArgs:\n    name: {text}.\n"))
    assert fault.line == 4


def test_a_word_that_only_begins_like_a_banned_one_is_none() -> None:
    assert prose.find_in_module(module("Items of a list. Itself or not.")) == []


def test_docstrings_of_classes_and_functions_are_checked() -> None:
    source = (
        'class A:\n    """They."""\n    def b(self):\n        """Of it."""\n    async def c(): "Who."\n'
        'D = 1\n"""One."""\n'
    )
    assert [fault.line for fault in prose.find_in_module(source)] == [2, 4, 5, 7]


@pytest.mark.parametrize(
    "docstring",
    [
        f"Do.\n\n{LONG}",
        f"Do.\n\nArgs:\n    name: {LONG}\n",
        f"Do.\n\n- {LONG}",
        "Do.\n\n" + LONG.replace("a a ", "a\na ", 1),
    ],
    ids=["paragraph", "argument", "item", "over two lines"],
)
def test_a_long_sentence_of_a_docstring_is_a_fault(docstring: str) -> None:
    (fault,) = prose.find_in_module(module(docstring))
    assert fault.text.startswith("a sentence of 27 words, at most 25: a a")


@pytest.mark.parametrize(
    "docstring",
    [
        "Do. A " + "a " * 23 + "word.",
        "Do.\n\n" + "A b c. " * 20,
        "Do.\n\nArgs:\n" + "    name: a b c\n" * 20,
        "Do.\n\n" + "`A b` c. " * 20,
        "Do.\n\n" + "gpupack a. kube-scheduler b. " * 20,
        "Do.\n\n" + "A b c. " * 9 + "Two\nwords: " + "a " * 20,
        "Do.\n\n" + "    a --> b    c --> d\n" * 20,
    ],
    ids=[
        "25 words",
        "short sentences",
        "arguments",
        "sentences that begin with code",
        "with a name",
        "a colon",
        "drawing",
    ],
)
def test_what_is_no_long_sentence_of_a_docstring(docstring: str) -> None:
    assert prose.find_in_module(module(docstring)) == []


@pytest.mark.parametrize(
    "page",
    [LONG, f"- {LONG}", f"| a | {LONG} |", f"> {LONG}", f"# Heading\n{LONG}", f"```\ncode\n```\n{LONG}"],
    ids=["paragraph", "item", "cell", "quote", "below a heading", "below code"],
)
def test_a_long_sentence_of_a_page_is_a_fault(page: str) -> None:
    (fault,) = prose.find_in_page(page)
    assert fault.text.startswith("a sentence of 27 words")
    assert fault.line == page.count("\n") + 1


@pytest.mark.parametrize(
    "page",
    [
        f"```\n{LONG}\n```",
        f"# {LONG}",
        "[text](" + "a%20b/" * 40 + ")",
        "`" + "a " * 40 + "`",
        "- a b c\n" * 20,
        "| " + "a b c | " * 20,
    ],
    ids=["code", "heading", "link", "span of code", "items", "row"],
)
def test_what_is_no_long_sentence_of_a_page(page: str) -> None:
    assert prose.find_in_page(page) == []


def test_a_line_of_more_than_100_columns_is_a_fault() -> None:
    line = "x " * 10 + "y" * 81
    assert [fault.text for fault in prose.find_in_page(line)] == ["101 columns: at most 100"]
    assert prose.find_in_page(line[:-1]) == []


@pytest.mark.parametrize(
    "line",
    [
        "# " + "a " * 30 + "b" * 60,
        "| " + "y" * 100 + " |",
        f"```\n{'y ' * 20}{'y' * 100}\n```",
        "- " + "y" * 100,
    ],
    ids=["heading", "table", "code", "one word"],
)
def test_lines_that_cannot_be_wrapped_may_be_longer(line: str) -> None:
    assert prose.find_in_page(line) == []


def test_every_package_and_page_is_read(tmp_path) -> None:
    """Every package and page is looked at: a fault in each of them is found."""
    for folder in (*prose.PACKAGES, "docs/howto"):
        (tmp_path / folder).mkdir(parents=True)
    for package in prose.PACKAGES:
        (tmp_path / package / "module.py").write_text(module("It is."))
        (tmp_path / package / "made_pb2.py").write_text(module("It is."))
    for page in ("README.md", "docs/page.md", "docs/howto/page.md"):
        (tmp_path / page).write_text(LONG)
    assert list(prose.find_all(tmp_path)) == sorted(
        [
            *(f"{package}/module.py" for package in prose.PACKAGES),
            "README.md",
            "docs/page.md",
            "docs/howto/page.md",
        ]
    )
    assert all(path.is_dir() for path in (prose.ROOT / package for package in prose.PACKAGES))
