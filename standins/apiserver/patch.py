"""Merge patch (RFC 7386), JSON patch (RFC 6902) and the strategic merge of the lists that matter here."""

import copy
from typing import Any

from standins.apiserver.status import JsonObject, RefusedError, bad_request

_MERGE_KEYS = {
    "conditions": "type",
    "addresses": "type",
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "schedulingGates": "name",
}
"""Lists that a strategic merge joins by a key; others are replaced."""


def apply_patch(target: JsonObject, patch: Any, content_type: str) -> JsonObject:
    """Return a patched copy.

    Raises:
        RefusedError: 400, 415 or 422.
    """
    result = copy.deepcopy(target)
    if content_type == "application/json-patch+json":
        return _json_patch(result, patch)
    if content_type not in {"application/merge-patch+json", "application/strategic-merge-patch+json"}:
        raise RefusedError(415, "UnsupportedMediaType", "415: Unsupported Media Type", {})
    if not isinstance(patch, dict):
        kind = {list: "array", str: "string", bool: "bool"}.get(type(patch), "number")
        wanted = "map[string]interface {}"
        raise bad_request(
            f"error decoding patch: json: cannot unmarshal {kind} into Go value of type {wanted}"
        )
    _merge(result, patch, strategic=content_type.startswith("application/strategic"))
    return result


def _merge(target: JsonObject, patch: JsonObject, *, strategic: bool) -> None:
    for key, value in patch.items():
        if strategic and key.startswith("$"):
            continue
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict):
            old = target.get(key)
            target[key] = old if isinstance(old, dict) else {}
            _merge(target[key], value, strategic=strategic)
        elif strategic and isinstance(value, list) and key in _MERGE_KEYS:
            target[key] = _merge_list(target.get(key) or [], value, _MERGE_KEYS[key])
        else:
            target[key] = copy.deepcopy(value)


def _merge_list(old: list[Any], patch: list[Any], key: str) -> list[Any]:
    """Join by key; new items come first, as the real one puts them."""
    new: list[Any] = []
    for each in patch:
        found = next((item for item in old if item.get(key) == each.get(key)), None)
        if each.get("$patch") == "delete":
            old = [item for item in old if item is not found]
        elif found is not None:
            _merge(found, each, strategic=True)
        else:
            new.append(copy.deepcopy(each))
    return new + old


def _json_patch(target: JsonObject, patch: Any) -> JsonObject:
    rejected = RefusedError(
        422, "Invalid", "the server rejected our request due to an error in our request", {}
    )
    document: Any = target
    try:
        for step in patch:
            document = _step(document, step)
    except (KeyError, IndexError, ValueError, TypeError, AttributeError) as error:
        raise rejected from error
    if not isinstance(document, dict):
        raise rejected
    return document


def _step(document: Any, step: JsonObject) -> Any:
    *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in step["path"].split("/")[1:]]
    holder = document
    for part in parents:
        holder = holder[int(part)] if isinstance(holder, list) else holder[part]
    operation = step["op"]
    if isinstance(holder, list):
        at = len(holder) if last == "-" else int(last)
        if operation == "add":
            holder.insert(at, step["value"])
            return document
        key: Any = at
    else:
        key = last
    if operation == "test":
        if holder[key] != step["value"]:
            raise ValueError
    elif operation == "remove":
        del holder[key]
    elif operation == "add" or (operation == "replace" and holder[key] is not None):
        holder[key] = step["value"]
    else:
        raise ValueError
    return document
