"""Paths of the Kubernetes API."""

from urllib.parse import quote


def segment(name: str) -> str:
    """Quote one path segment: names come from users and may hold anything."""
    return quote(name, safe="")


def pod_path(namespace: str, name: str) -> str:
    """Path of a pod."""
    return f"/api/v1/namespaces/{segment(namespace)}/pods/{segment(name)}"
