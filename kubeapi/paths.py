"""Paths of the Kubernetes API."""

from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, urlencode

NAMESPACES_PATH: Final = "/api/v1/namespaces"
NODES_PATH: Final = "/api/v1/nodes"
PODS_PATH: Final = "/api/v1/pods"

MERGE_PATCH: Final = "application/merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"
STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"
"""Content type of a patch that merges lists, as a pod's conditions, by their key."""


def quote_segment(name: str) -> str:
    """Quote one path segment: names come from users and may hold anything."""
    return quote(name, safe="")


def make_node_path(name: str) -> str:
    return f"{NODES_PATH}/{quote_segment(name)}"


def make_collection_path(namespace: str, kind: str) -> str:
    return f"{NAMESPACES_PATH}/{quote_segment(namespace)}/{kind}"


def make_pod_path(namespace: str, name: str) -> str:
    return f"{make_collection_path(namespace, 'pods')}/{quote_segment(name)}"


def make_leases_path(namespace: str) -> str:
    return f"/apis/coordination.k8s.io/v1/namespaces/{quote_segment(namespace)}/leases"


def make_service_path(namespace: str, service: str, page: str, port: str = "http", scheme: str = "") -> str:
    """Make the path of a page of a Service's port, for users who may proxy; scheme `https:` is for TLS."""
    name = f"{scheme}{quote_segment(service)}:{port}"
    return f"{make_collection_path(namespace, 'services')}/{name}/proxy/{page}"


def add_query(path: str, params: Mapping[str, str | int]) -> str:
    return f"{path}?{urlencode(params)}" if params else path
