"""Builds a kustomization and applies it through the REST API; as much of kustomize as `manifests/` uses.

A field of a kustomization that is not understood here is an error, so nothing is left out in silence.
"""

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.cluster.harness.polling import until
from tests.cluster.harness.rest import Api, Json
from tests.yaml_text import read_yaml, read_yaml_documents

MANIFESTS = Path(__file__).resolve().parents[3] / "manifests"
COMPONENTS = MANIFESTS / "components"
OVERLAYS = sorted(path.parent.name for path in MANIFESTS.glob("overlays/*/kustomization.yaml"))
CLUSTER_WIDE = {
    "Namespace",
    "ClusterRole",
    "ClusterRoleBinding",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "MutatingAdmissionPolicy",
    "MutatingAdmissionPolicyBinding",
    "DeviceClass",
    "PriorityClass",
    "RuntimeClass",
    "SecurityContextConstraints",
}
"""Kinds of objects that are in no namespace."""

RIGHTS = {"Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}
OPTIONAL = {"gpupack-node-dra"}
"""What components change where another one has brought it; kustomize passes over a patch without a target."""

UNDERSTOOD = {
    "apiVersion",
    "kind",
    "resources",
    "components",
    "namespace",
    "patches",
    "images",
    "configMapGenerator",
    "generatorOptions",
}
FIRST = ("Namespace", "CustomResourceDefinition", "ServiceAccount", "ClusterRole", "Role", "ConfigMap")
MUTATING, MUTATING_V1 = "MutatingAdmissionPolicy", "admissionregistration.k8s.io/v1"


def build(folder: Path, *components: Path) -> list[Json]:
    """All objects of a kustomization, in the order to apply them.

    Args:
        components: Folders of components that an overlay of it would name.

    Raises:
        AssertionError: If the kustomization uses a field that is not understood.
    """
    objects = _build(folder, [])
    for component in components:
        objects = _build(component, objects)
    return sorted(objects, key=lambda one: FIRST.index(one["kind"]) if one["kind"] in FIRST else len(FIRST))


def build_for(api: Api, folder: Path, *components: Path) -> list[Json]:
    """As `build`, with the component that docs/install.md names for an API server before 1.36."""
    objects = build(folder, *components)
    ours = {one["apiVersion"] for one in objects if one["kind"] == MUTATING}
    if has_mutating_policies(api) or ours != {MUTATING_V1}:
        return objects
    return build(folder, COMPONENTS / "scheduler-name-v1beta1", *components)


def has_mutating_policies(api: Api) -> bool:
    """Whether the API server has MutatingAdmissionPolicy as v1, from 1.36 on."""
    return any(found["kind"] == MUTATING for found in api.get(f"/apis/{MUTATING_V1}")["resources"])


def apply_all(api: Api, objects: list[Json], *, dry_run: bool = False) -> list[Json]:
    """Server-side apply of every object; returns them as the API server stored them, or would."""
    return [api.apply(path_of(api, one), one, dry_run=dry_run) for one in objects]


def define_kinds(api: Api, definitions: list[Json]) -> None:
    """Apply CustomResourceDefinitions; returns when the API server serves them, which is a moment later."""
    apply_all(api, definitions)
    until(lambda: all(_is_served(api, each) for each in definitions), "new kinds are served")


def named(objects: list[Json], *names: str) -> list[Json]:
    """The objects of these names."""
    return [one for one in objects if one["metadata"]["name"] in names]


def apply_rights(api: Api, *folders: Path) -> None:
    """Apply namespaces, accounts and their roles of some folders, and nothing else."""
    apply_all(api, [one for folder in folders for one in build(folder) if one["kind"] in RIGHTS])


def path_of(api: Api, one: Json) -> str:
    """The REST path of an object, its plural taken from the API server's own discovery."""
    version = one["apiVersion"]
    root = f"/api/{version}" if "/" not in version else f"/apis/{version}"
    kinds = {found["kind"]: found for found in api.get(root)["resources"] if "/" not in found["name"]}
    resource, metadata = kinds[one["kind"]], one["metadata"]
    where = f"/namespaces/{metadata['namespace']}" if resource["namespaced"] else ""
    return f"{root}{where}/{resource['name']}/{metadata['name']}"


def _is_served(api: Api, definition: Json) -> bool:
    spec = definition["spec"]
    return all(
        any(found["name"] == spec["names"]["plural"] for found in served["resources"])
        for version in spec["versions"]
        if version["served"]
        for served in [api.get(f"/apis/{spec['group']}/{version['name']}")]
    )


def _build(folder: Path, objects: list[Json]) -> list[Json]:
    plan = read_yaml((folder / "kustomization.yaml").read_text())
    unknown = set(plan) - UNDERSTOOD
    assert not unknown, (
        f"{folder}/kustomization.yaml uses {sorted(unknown)}, which this applier does not know"
    )
    for name in plan.get("resources", []):
        target = folder / name
        objects += _build(target, []) if target.is_dir() else _documents(target)
    for entry in plan.get("configMapGenerator", []):
        made = _config_map(folder, entry)
        if entry.get("behavior") == "replace":
            replaced = made["kind"], made["metadata"]["name"]
            objects = [one for one in objects if (one["kind"], one["metadata"]["name"]) != replaced]
        objects.append(made)
    for name in plan.get("components", []):
        objects = _build(folder / name, objects)
    for patch in plan.get("patches", []):
        _patch(folder, patch, objects)
    for image in plan.get("images", []):
        for one in objects:
            _tag(one, image["name"], f"{image.get('newName', image['name'])}:{image['newTag']}")
    if "namespace" in plan:
        for one in objects:
            _move(one, plan["namespace"])
    return objects


def _tag(one: Json, name: str, image: str) -> None:
    for container in one.get("spec", {}).get("template", {}).get("spec", {}).get("containers", []):
        if container["image"].partition(":")[0] == name:
            container["image"] = image


def _documents(path: Path) -> Iterator[Json]:
    return (document for document in read_yaml_documents(path.read_text()) if document)


def _config_map(folder: Path, entry: dict[str, Any]) -> Json:
    files = [item.partition("=") for item in entry.get("files", [])]
    data = {(key if path else Path(key).name): (folder / (path or key)).read_text() for key, _, path in files}
    data.update(item.split("=", 1) for item in entry.get("literals", []))
    metadata = {key: entry[key] for key in ("name", "namespace") if key in entry}
    if labels := entry.get("options", {}).get("labels"):
        metadata["labels"] = labels
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def _patch(folder: Path, patch: dict[str, Any], objects: list[Json]) -> None:
    text = (folder / patch["path"]).read_text() if "path" in patch else patch["patch"]
    change = read_yaml(text)
    target = patch.get("target") or {"kind": change["kind"], "name": change["metadata"]["name"]}
    hits = [one for one in objects if _selected(one, target)]
    assert hits or target.get("name") in OPTIONAL, f"patch of {folder} finds no {target}"
    for one in hits:
        if isinstance(change, dict) and change.get("$patch") == "delete":
            objects.remove(one)
        elif isinstance(change, list):
            for step in change:
                _step(one, step)
        else:
            merged = _merge(one, change)
            one.clear()
            one.update(merged)


def _selected(one: Json, target: dict[str, str]) -> bool:
    name = target.get("name", ".*")
    return one["kind"] == target["kind"] and re.fullmatch(name, one["metadata"]["name"]) is not None


def _step(one: Json, step: dict[str, Any]) -> None:
    *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in step["path"].split("/")[1:]]
    place: Any = one
    for part in parents:
        place = place[int(part)] if isinstance(place, list) else place[part]
    if isinstance(place, list) and step["op"] == "add":
        place.insert(len(place) if last == "-" else int(last), step["value"])
    elif step["op"] in {"add", "replace"}:
        place[int(last) if isinstance(place, list) else last] = step["value"]
    else:
        assert step["op"] == "remove", step
        del place[int(last) if isinstance(place, list) else last]


def _merge(old: Any, new: Any) -> Any:
    """Strategic merge as far as we need it: objects by key, lists of named objects by name."""
    if isinstance(old, dict) and isinstance(new, dict):
        merged = copy.deepcopy(old)
        for key, value in new.items():
            if value is None:
                merged.pop(key, None)
            else:
                merged[key] = _merge(old.get(key), value)
        return merged
    if (
        isinstance(old, list)
        and isinstance(new, list)
        and all(isinstance(one, dict) and "name" in one for one in new)
    ):
        changes = {one["name"]: one for one in new}
        kept = [_merge(one, changes.pop(one["name"], one)) for one in old]
        return kept + list(changes.values())
    return copy.deepcopy(new)


def _move(one: Json, namespace: str) -> None:
    if one["kind"] not in CLUSTER_WIDE:
        one["metadata"]["namespace"] = namespace
    for subject in one.get("subjects", []):
        if subject["kind"] == "ServiceAccount":
            subject["namespace"] = namespace
