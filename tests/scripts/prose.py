"""Checks that no line of a page has more than 100 columns, as part of `make lint`.

How texts are written is for readers to judge: CONTRIBUTING.md says what they look for.
"""

import re
import sys
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[2]
MAX_COLUMNS: Final = 100

_CODE: Final = re.compile(r"``[^`]+``|`[^`]+`")
_LINK: Final = re.compile(r"!?\[((?:[^\]\[]|\[[^\]]*\])*)\]\([^)]*\)")
_ITEM: Final = re.compile(r"^\s*(?:[-*+]|\d+\.)\s+")
_FENCE: Final = re.compile(r"\s*(?:>\s*)?```")


class Fault(NamedTuple):
    """Fault is a line of a page that is too long."""

    line: int
    columns: int


def find_in_page(page: str) -> list[Fault]:
    """Find the lines of a page of Markdown that are too long and can be wrapped."""
    faults = []
    in_code = False
    for number, line in enumerate(page.splitlines(), start=1):
        if _FENCE.match(line):
            in_code = not in_code
        elif not in_code and len(line) > MAX_COLUMNS and _can_be_wrapped(line):
            faults.append(Fault(number, len(line)))
    return faults


def find_all(root: Path) -> dict[str, list[Fault]]:
    """Find the faults of every page below a folder, by path; pages without any are left out."""
    pages = sorted([*root.glob("*.md"), *(root / "docs").rglob("*.md")])
    found = {
        page.relative_to(root).as_posix(): find_in_page(page.read_text(encoding="utf-8")) for page in pages
    }
    return {path: faults for path, faults in found.items() if faults}


def _can_be_wrapped(line: str) -> bool:
    """Tell whether a line has a place to break it: headings and rows have none, nor has a single link."""
    if line.startswith("#") or line.lstrip("> ").startswith("|"):
        return False
    text = _LINK.sub(lambda link: link[0].replace(" ", "_"), line)
    text = _CODE.sub(lambda code: code[0].replace(" ", "_"), text)
    return " " in _ITEM.sub("", text, count=1).strip()


def main() -> int:
    """Print the faults of the repository; the exit status is 1 where there are any."""
    found = find_all(ROOT)
    for path, faults in found.items():
        for fault in faults:
            print(f"{path}:{fault.line}: {fault.columns} columns, at most {MAX_COLUMNS}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
