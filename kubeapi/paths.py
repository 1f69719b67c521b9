"""Paths of the Kubernetes API."""

from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, urlencode

STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"
"""Content type of a patch that merges lists, as a pod's conditions, by their key."""


def quote_segment(name: str) -> str:
    """Quote one path segment: names come from users and may hold anything."""
    return quote(name, safe="")


def make_pod_path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{quote_segment(namespace)}/pods/{quote_segment(name)}"


def add_query(path: str, params: Mapping[str, str | int]) -> str:
    return f"{path}?{urlencode(params)}" if params else path
