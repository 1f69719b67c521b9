"""Checks that each module of the product is imported by another one: `make lint` runs it.

A module that tests or benchmarks alone import is no part of the product. Since no modules import each other,
what such a module alone imports is found as soon as it has left.
"""

import sys
from collections.abc import Collection
from typing import Final

import grimp

import allocator.policies
import deviceplugin.gpus.sources
import gpupack.cli.app
import scheduler_plugin.scheduling.policies

PACKAGES: Final = ("allocator", "deviceplugin", "gpupack", "kubeapi", "scheduler_plugin", "standins")

PLUGINS: Final = frozenset(
    [
        *(f"allocator.policies.{name}" for name in allocator.policies._MODULES),
        *(f"deviceplugin.gpus.{name}.provider" for name in deviceplugin.gpus.sources._FOLDERS),
        *(
            f"scheduler_plugin.scheduling.policies.{name}"
            for name in scheduler_plugin.scheduling.policies._MODULES
        ),
        *(f"gpupack.cli.{name}" for name in gpupack.cli.app.COMMANDS),
        *(f"gpupack.cli.{name}" for name in gpupack.cli.app.SHARED_MODULES.values()),
    ]
)
"""Modules that are imported by their names."""

PROGRAMS: Final = frozenset({"deviceplugin.gpus.nvidia.cuda_child", "gpupack.__main__"})
"""Modules that `python -m` runs."""


def find_unimported(graph: grimp.ImportGraph, entries: Collection[str]) -> list[str]:
    """Write a line for each module that no module imports and that is no entry."""
    return [
        f"module {module} is imported by no other one; allowed: to import it, or to move it to tests/"
        for module in sorted(graph.modules)
        if module not in entries
        and not graph.find_children(module)
        and not graph.find_modules_that_directly_import(module)
    ]


def main() -> int:
    """Write the modules that nothing imports to stderr; the exit status is 1 where there are any."""
    found = find_unimported(grimp.build_graph(*PACKAGES, cache_dir=None), PLUGINS | PROGRAMS)
    for line in found:
        sys.stderr.write(f"{line}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
