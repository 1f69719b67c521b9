"""The check of modules that nothing imports."""

import grimp

from tests.scripts.unimported import find_unimported


def test_a_module_that_nothing_imports_is_told_but_entries_and_packages() -> None:
    graph = grimp.ImportGraph()
    for module in ("p", "p.main", "p.used", "p.left", "p.plugin"):
        graph.add_module(module)
    graph.add_import(importer="p.main", imported="p.used")
    graph.add_import(importer="p.left", imported="p.used")
    assert find_unimported(graph, {"p.main", "p.plugin"}) == [
        "module p.left is imported by no other one; allowed: to import it, or to move it to tests/"
    ]
