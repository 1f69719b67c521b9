"""Paths of the API server stand-in and what it says about them."""

from typing import NamedTuple

from standins.apiserver.rules import PODS, RESOURCES
from standins.apiserver.status import JsonObject, Resource
from standins.apiserver.store import Key


class Place(NamedTuple):
    """What a path names; `name` is "" for a collection, `part` for the object itself."""

    resource: Resource
    namespace: str
    name: str
    part: str

    @property
    def key(self) -> Key:
        return self.namespace, self.name


def parse_path(path: str) -> Place | None:
    """Read a path of the API, None for any other."""
    for resource in RESOURCES:
        root = f"/apis/{resource.api_version}/" if resource.group else "/api/v1/"
        if not path.startswith(root):
            continue
        parts = path[len(root) :].split("/")
        namespace = ""
        if resource.namespaced and len(parts) > 2 and parts[0] == "namespaces":  # noqa: PLR2004
            namespace, parts = parts[1], parts[2:]
        if parts[0] != resource.plural or len(parts) > 3 or not all(parts):  # noqa: PLR2004
            continue
        name, part = (*parts[1:], "", "")[:2]
        if part and (part not in {"status", "binding"} or (part == "binding" and resource is not PODS)):
            continue
        return Place(resource, namespace, name, part)
    return None


def discovery(path: str) -> JsonObject | None:
    """Answer what clients ask to find out what is served."""
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
    if path == "/apis":
        groups = sorted({resource.group for resource in RESOURCES if resource.group})
        listed = []
        for group in groups:
            version = {"groupVersion": f"{group}/v1", "version": "v1"}
            listed.append({"name": group, "versions": [version], "preferredVersion": version})
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}
    served = [
        {
            "name": each.plural,
            "singularName": each.kind.lower(),
            "namespaced": each.namespaced,
            "kind": each.kind,
        }
        for each in RESOURCES
        if path == (f"/apis/{each.api_version}" if each.group else "/api/v1")
    ]
    if not served:
        return None
    served_version = path.removeprefix("/apis/").removeprefix("/api/")
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": served_version,
        "resources": served,
    }
