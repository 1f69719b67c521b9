"""Finds the pods in manifests and has each rewritten."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from gpupack.errors import InputError
from gpupack.migration.pods import Say, rewrite_pod
from gpupack.migration.requests import MigrationOptions, is_peer_resource
from gpupack.migration.yamltext import dump, has_comments, load

TEMPLATES: Final = {
    "Pod": (),
    "PodTemplate": ("template",),
    "Deployment": ("spec", "template"),
    "ReplicaSet": ("spec", "template"),
    "ReplicationController": ("spec", "template"),
    "StatefulSet": ("spec", "template"),
    "DaemonSet": ("spec", "template"),
    "Job": ("spec", "template"),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
}
"""Where a kind has its pod: a mapping with `metadata` and `spec`."""


@dataclass
class Migrated:
    """The manifests for gpupack.

    Attributes:
        text: YAML.
        notes: what a person has to know, each with the object that it is about.
        complete: whether everything could be translated.
    """

    text: str = ""
    notes: list[str] = field(default_factory=list)
    complete: bool = True


def migrate(text: str, name: str, options: MigrationOptions) -> Migrated:
    """Rewrite manifests: multi-document YAML, or JSON.

    Args:
        text: the manifests.
        name: of their file, for messages.
        options: what the manifests leave open.

    Raises:
        InputError: not YAML, or documents that are no Kubernetes objects.
    """
    documents = load(text, name)
    if not documents:
        raise InputError(f"{name} is empty; allowed: Kubernetes manifests in YAML or JSON")
    done = Migrated()
    for number, document in enumerate(documents, 1):
        if not isinstance(document, dict) or not document.get("kind"):
            raise InputError(f"{name}, document {number} has no kind; allowed: Kubernetes manifests")
        for one in _objects(document):
            _migrate(one, options, done)
    if has_comments(text):
        done.notes.append(f"{name}: comments are not kept")
    done.text = dump(documents)
    return done


def _objects(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The object itself, or those of a List, also of a List in a List."""
    items = document.get("items")
    if str(document.get("kind", "")).endswith("List") and isinstance(items, list):
        for item in items:
            if isinstance(item, dict):
                # A PodList as the API server writes it leaves the kind of its items out.
                yield from _objects(item if "kind" in item else _with_kind(item, document))
        return
    yield document


def _with_kind(item: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    return {**item, "kind": str(document["kind"]).removesuffix("List")}


def _migrate(one: dict[str, Any], options: MigrationOptions, done: Migrated) -> None:
    kind = str(one.get("kind", ""))
    metadata = one.get("metadata")
    named = metadata.get("name") or metadata.get("generateName", "") if isinstance(metadata, dict) else ""
    say: Say = lambda note: done.notes.append(f"{kind} {named}: {note}")  # noqa: E731
    path = TEMPLATES.get(kind)
    pod = one
    for step in path or ():
        found = pod.get(step)
        pod = found if isinstance(found, dict) else {}
    spec = pod.get("spec")
    if path is None or not isinstance(spec, dict):
        left = sorted({key for key in _keys(one) if _is_asked_for(key)})
        if left:
            say(f"left as it is: {', '.join(left)} in a kind that this command does not rewrite")
            done.complete = False
        return
    template = pod.get("metadata")
    if not isinstance(template, dict):
        template = {}
    if not rewrite_pod(template, spec, options, say):
        done.complete = False
    elif template and pod.get("metadata") is not template:
        # The metadata of a template comes first, as people write it.
        rest = {key: value for key, value in pod.items() if key != "metadata"}
        pod.clear()
        pod |= {"metadata": template, **rest}


def _keys(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from value
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from _keys(each)


def _is_asked_for(key: str) -> bool:
    """Tell a peer's resource, also as a ResourceQuota writes it."""
    bare = key.removeprefix("requests.").removeprefix("limits.")
    return is_peer_resource(bare)
