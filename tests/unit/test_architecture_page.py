"""docs/architecture.md names files, and names in them, that exist: who follows it must find them."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PACKAGES = ("", "scheduler_plugin", "deviceplugin", "allocator", "gpupack", "kubeapi")
ROWS = [line for line in PAGE.partition("## To change something")[2].splitlines() if line.startswith("| ")]


def find_missing(page: str) -> list[str]:
    """List files that a page names and that stand neither in a package nor beside a path of its line.

    Of a row's last column also names that stand in none of its files.
    """
    missing = []
    for line in page.splitlines():
        paths = re.findall(r"`([\w.]+/[\w./]*)`", line)
        folders = [*PACKAGES, *(path if path.endswith("/") else str(Path(path).parent) for path in paths)]
        texts = []
        for name in re.findall(r"`([\w./]+\.py)`", line):
            files = [path for folder in folders if (path := ROOT / folder / name).is_file()]
            texts += [path.read_text(encoding="utf-8") for path in files]
            missing += [] if files else [name]
        if line.startswith("| ") and texts:
            named = re.findall(r"`([A-Za-z]\w+)`", line.rstrip("| ").rpartition(" | ")[2])
            missing += [name for name in named if not any(name in text for text in texts)]
    return missing


def test_all_that_is_named_exists() -> None:
    assert find_missing(PAGE) == []


def test_a_file_that_does_not_exist_is_found() -> None:
    page = "| a | `allocator/ledger/release.py`, `pods.py` |\n| b | `pods.py`, `allocator/none.py` |\n"
    assert find_missing(page) == ["pods.py", "allocator/none.py"]


def test_a_name_that_its_file_does_not_have_is_found() -> None:
    page = "| a | `PodAccount` and `PodBook` in `allocator/ledger/pods.py` |\n"
    assert find_missing(page) == ["PodBook"]


def test_the_page_says_where_to_start_for_fifteen_changes() -> None:
    assert len(ROWS) - 1 >= 15
