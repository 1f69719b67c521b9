"""Checks how docstrings and pages are written, as part of `make lint`.

There are three faults: a sentence of more than 25 words, a line of a page of more than 100 columns, and a
docstring that has a sentence without a subject. The text below a constant is a docstring too.
"""

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = (
    "allocator",
    "benchmarks",
    "deviceplugin",
    "gpupack",
    "kubeapi",
    "scheduler_plugin",
    "standins",
)
MAX_WORDS: Final = 25
MAX_COLUMNS: Final = 100

BANNED: Final = re.compile(r"(?:It|They|Those|Who|Whoever|One|The same|Nobody|(?i:of|likewise|see there))\b")
"""How no sentence of a docstring begins: these words name no subject."""
_WORD: Final = re.compile(r"[\w./%+-]*\w[\w./%+-]*")
_SMALL_NAMES: Final = "gpupack|kube|vLLM|runc|etcd"
"""Beginnings of names that are written small: a sentence may begin with them."""
_END_OF_SENTENCE: Final = re.compile(
    rf"""(?<=[.!?])[)"'*_]*\s+(?=[("'*_]*(?:[A-Z0-9`\[]|(?:{_SMALL_NAMES})))"""
)
_CODE: Final = re.compile(r"``[^`]+``|`[^`]+`")
_LINK: Final = re.compile(r"!?\[((?:[^\]\[]|\[[^\]]*\])*)\]\([^)]*\)")
_ITEM: Final = re.compile(r"^\s*(?:[-*+]|\d+\.)\s+")
_ENTRY: Final = re.compile(r"^\s*[\w`*.]+(?:(?:, | / )[\w`*.]+)*(?: \([^)]*\))?:(?:\s|$)")
_FENCE: Final = re.compile(r"\s*(?:>\s*)?```")


class Fault(NamedTuple):
    """Fault is a place where a text breaks a rule."""

    line: int
    text: str


def find_in_module(source: str) -> list[Fault]:
    """Find the faults in the docstrings of a module."""
    faults = []
    for node in ast.walk(ast.parse(source)):
        if not (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            continue
        for line, sentence in _sentences(_docstring_blocks(inspect.cleandoc(node.value.value))):
            banned = BANNED.match(sentence.lstrip("(\"'"))
            if banned:
                faults.append(
                    Fault(
                        node.lineno + line,
                        f"a sentence begins with {banned[0]!r}, name the subject: {sentence[:60]}…",
                    )
                )
            faults += _find_length(node.lineno + line, sentence)
    return sorted(faults)


def find_in_page(page: str) -> list[Fault]:
    """Find the faults in a page of Markdown."""
    faults = [
        Fault(number, f"{len(line)} columns: at most {MAX_COLUMNS}")
        for number, line in _prose_lines(page)
        if len(line) > MAX_COLUMNS and _can_be_wrapped(line)
    ]
    for line, sentence in _sentences(_page_blocks(page)):
        faults += _find_length(line, sentence)
    return sorted(faults)


def find_all(root: Path) -> dict[str, list[Fault]]:
    """Find the faults of every package and page below a folder, by path; files without any are left out."""
    modules = [
        path for package in PACKAGES for path in (root / package).rglob("*.py") if "_pb2" not in path.name
    ]
    pages = [*root.glob("*.md"), *(root / "docs").rglob("*.md")]
    found = {
        **{path: find_in_module(path.read_text(encoding="utf-8")) for path in modules},
        **{path: find_in_page(path.read_text(encoding="utf-8")) for path in pages},
    }
    return {path.relative_to(root).as_posix(): faults for path, faults in sorted(found.items()) if faults}


def _prose_lines(page: str) -> Iterator[tuple[int, str]]:
    """Lines of a page with their numbers, without code and tables."""
    in_code = False
    for number, line in enumerate(page.splitlines(), start=1):
        if _FENCE.match(line):
            in_code = not in_code
        elif not in_code and not line.lstrip("> ").startswith("|"):
            yield number, line


def _can_be_wrapped(line: str) -> bool:
    """Tell whether a line has a place to break it: headings have none, nor has a single link."""
    if line.startswith("#"):
        return False
    text = _LINK.sub(lambda link: link[0].replace(" ", "_"), line)
    text = _CODE.sub(lambda code: code[0].replace(" ", "_"), text)
    return " " in _ITEM.sub("", text, count=1).strip()


def _page_blocks(page: str) -> Iterator[tuple[int, str]]:
    """Paragraphs, list items and table cells of a page, each with its first line's number."""
    in_code = False
    block: list[str] = []
    first = 1
    for number, line in enumerate([*page.splitlines(), ""], start=1):
        fence = bool(_FENCE.match(line))
        table = line.lstrip("> ").startswith("|")
        if in_code or fence or table or not line.strip() or line.startswith("#") or _ITEM.match(line):
            yield first, " ".join(block)
            block = []
        in_code ^= fence
        if in_code or fence or line.startswith("#"):
            continue
        if table:
            yield from ((number, cell) for cell in line.split("|"))
            continue
        if not block:
            first = number
        block.append(_ITEM.sub("", line, count=1).strip("> "))


def _docstring_blocks(text: str) -> Iterator[tuple[int, str]]:
    """Paragraphs, list items and entries such as `name: text` of a docstring, each with its line's offset.

    Drawings and formulas are no sentences: a line with two spaces inside, or two columns deeper than its
    paragraph, ends one.
    """
    block: list[str] = []
    first = 0
    for number, line in enumerate([*text.splitlines(), ""]):
        drawn = bool(re.search(r"\S {2,}\S", line))
        if not line.strip() or drawn or _ITEM.match(line) or _ENTRY.match(line):
            yield first, " ".join(block)
            block = []
        if line.strip() and not drawn:
            if not block:
                first = number
            block.append(_ENTRY.sub("", _ITEM.sub("", line, count=1), count=1).strip())


def _sentences(blocks: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Sentences of blocks with the line of their block; code in them counts as a word."""
    for line, block in blocks:
        text = _CODE.sub("Code", _LINK.sub(r"\1", block))
        yield from ((line, sentence.strip()) for sentence in _END_OF_SENTENCE.split(text))


def _find_length(line: int, sentence: str) -> Iterator[Fault]:
    count = len(_WORD.findall(sentence))
    if count > MAX_WORDS:
        yield Fault(line, f"a sentence of {count} words, at most {MAX_WORDS}: {sentence[:60]}…")


def main() -> int:
    """Print the faults; return 1 where there are any."""
    faults = find_all(ROOT)
    for path, found in faults.items():
        for fault in found:
            print(f"{path}:{fault.line}: {fault.text}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
