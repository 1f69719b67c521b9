"""The check of class names finds those that stand twice, and no others."""

from tests.scripts.class_names import find_classes, find_duplicates


def test_a_name_in_two_modules_is_told_with_both() -> None:
    sources = {"b/x.py": "class Plan: ...", "a/y.py": "class Plan: ...\nclass Node: ..."}
    assert find_duplicates(find_classes(sources)) == [
        "class Plan stands in a/y.py, b/x.py; allowed: one class of a name"
    ]


def test_a_name_twice_in_one_module_is_told() -> None:
    source = "class Outer:\n    class Plan: ...\nclass Plan: ..."
    assert find_duplicates(find_classes({"a.py": source})) == [
        "class Plan stands in a.py, a.py; allowed: one class of a name"
    ]


def test_private_classes_and_those_that_each_process_has_may_share_a_name() -> None:
    source = "class _Plan: ...\nclass Settings: ...\nclass Metrics: ..."
    assert find_duplicates(find_classes({"a.py": source, "b.py": source})) == []
