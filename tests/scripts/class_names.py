"""Checks that no two public classes of the product share a name: `make lint` runs it.

A reader who meets a class by its name alone must know which one it is.
"""

import ast
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = ("allocator", "deviceplugin", "gpupack", "kubeapi", "scheduler_plugin")

SHARED: Final = frozenset({"Metrics", "Settings"})
"""Names that each process has once: its settings, and its metrics."""


def find_classes(sources: Mapping[str, str]) -> dict[str, list[str]]:
    """Find the public classes of modules.

    Args:
        sources: Source text by path.

    Returns:
        The paths of each class by name; a path stands twice where a module has two classes of a name.
    """
    paths = defaultdict(list)
    for path, source in sources.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                paths[node.name].append(path)
    return dict(paths)


def find_duplicates(classes: Mapping[str, Iterable[str]]) -> list[str]:
    """Write a line for each name that several classes have and that is not in `SHARED`."""
    return [
        f"class {name} stands in {', '.join(sorted(paths))}; allowed: one class of a name"
        for name, paths in sorted(classes.items())
        if len(list(paths)) > 1 and name not in SHARED
    ]


def main() -> int:
    """Write the duplicates of the product to stderr; the exit status is 1 where there are any."""
    modules = [
        path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if "_pb2" not in path.name
    ]
    sources = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in modules}
    duplicates = find_duplicates(find_classes(sources))
    for line in duplicates:
        sys.stderr.write(f"{line}\n")
    return 1 if duplicates else 0


if __name__ == "__main__":
    sys.exit(main())
