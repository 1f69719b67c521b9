"""Label and field selectors of the API server stand-in."""

import re
from collections.abc import Callable
from typing import Any

from standins.apiserver.status import JsonObject, Resource, bad_request

Matcher = Callable[[JsonObject], bool]

_SET = re.compile(r"(?P<key>[^\s!=,()]+)\s+(?P<how>in|notin)\s*\((?P<values>[^()]*)\)")
_EQUALS = re.compile(r"(?P<key>[^\s!=,()]+)\s*(?P<how>==|!=|=)\s*(?P<value>[^\s,()]*)")
_EXISTS = re.compile(r"(?P<no>!?)\s*(?P<key>[^\s!=,()]+)")

_FIELDS: dict[str, frozenset[str]] = {
    "resourceslices": frozenset({"metadata.name", "spec.nodeName", "spec.driver"}),
    "pods": frozenset(
        {
            "metadata.name",
            "metadata.namespace",
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        }
    ),
    "nodes": frozenset({"metadata.name", "spec.unschedulable"}),
    "events": frozenset(
        {
            "metadata.name",
            "metadata.namespace",
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "reason",
            "type",
        }
    ),
}
_COMMON = frozenset({"metadata.name", "metadata.namespace"})


def matcher(resource: Resource, labels: str, fields: str) -> Matcher | None:
    """Read both selectors as a predicate, None if everything matches.

    Raises:
        RefusedError: 400, worded as the real one's.
    """
    tests = [*_label_tests(labels), *_field_tests(resource, fields)]
    if not tests:
        return None
    return lambda item: all(test(item) for test in tests)


def _split(text: str) -> list[str]:
    """Split at commas outside parentheses."""
    return [part.strip() for part in re.split(r",(?![^()]*\))", text) if part.strip()]


def _label_tests(text: str) -> list[Matcher]:
    tests: list[Matcher] = []
    for part in _split(text):
        if found := _SET.fullmatch(part):
            values = frozenset(value.strip() for value in found["values"].split(","))
            tests.append(_label_test(found["key"], values, negate=found["how"] == "notin"))
        elif found := _EQUALS.fullmatch(part):
            tests.append(_label_test(found["key"], frozenset({found["value"]}), negate=found["how"] == "!="))
        elif found := _EXISTS.fullmatch(part):
            tests.append(_label_test(found["key"], None, negate=bool(found["no"])))
        else:
            wrong = [*part.split(), ""][1]
            raise bad_request(
                f"unable to parse requirement: found '{wrong}', expected: in, notin, =, ==, !=, gt, lt"
            )
    return tests


def _label_test(key: str, values: frozenset[str] | None, *, negate: bool) -> Matcher:
    """Make a test of one label; `values` None asks only whether it is there."""

    def test(item: JsonObject) -> bool:
        value = (item["metadata"].get("labels") or {}).get(key)
        met = value is not None if values is None else value in values
        return met != negate

    return test


def _field_tests(resource: Resource, text: str) -> list[Matcher]:
    allowed = _FIELDS.get(resource.plural, _COMMON)
    tests: list[Matcher] = []
    for part in _split(text):
        found = _EQUALS.fullmatch(part)
        if found is None:
            raise bad_request(f"invalid selector: '{text}'; can't understand '{part}'")
        if found["key"] not in allowed:
            raise bad_request(f"field label not supported: {found['key']}")
        tests.append(_field_test(found["key"].split("."), found["value"], negate=found["how"] == "!="))
    return tests


def _field_test(path: list[str], value: str, *, negate: bool) -> Matcher:
    def test(item: JsonObject) -> bool:
        return (_field(item, path) == value) != negate

    return test


def _field(item: JsonObject, path: list[str]) -> str:
    found: Any = item
    for step in path:
        found = (found or {}).get(step)
    if found is None:
        return "false" if path[-1] in {"unschedulable", "hostNetwork"} else ""
    return str(found).lower() if isinstance(found, bool) else str(found)
