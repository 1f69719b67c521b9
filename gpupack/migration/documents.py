"""Finds the pods in manifests and has each rewritten."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ruamel.yaml.comments import CommentedMap

from gpupack.errors import InputError
from gpupack.migration.pods import Say, rewrite_pod
from gpupack.migration.requests import MigrationOptions, is_peer_resource
from gpupack.migration.yamltext import list_shared, load, write_out_aliases

_CHANGED: Final = frozenset({"containers", "initContainers", "schedulerName", "annotations", "metadata"})
"""Keys of a pod under which something is changed."""


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

    Raises:
        InputError: not YAML, or documents that are no Kubernetes objects.
    """
    documents = load(text, name)
    if all(document.content is None for document in documents):
        raise InputError(f"{name} is empty; allowed: Kubernetes manifests in YAML or JSON")
    done, number = Migrated(), 0
    for document in documents:
        if document.content is None:
            done.text += document.before + document.text + document.after
            continue
        number += 1
        if not isinstance(document.content, dict) or not document.content.get("kind"):
            raise InputError(f"{name}, document {number} has no kind; allowed: Kubernetes manifests")
        before = document.format_content()
        if any(_concerns_cards(shared) for shared in list_shared(document.content)):
            document.content = write_out_aliases(document.content)
        for kind, manifest in _list_objects(document.content):
            _migrate(kind, manifest, options, done)
        done.text += document.dump(before)
    return done


def _list_objects(document: dict[str, Any], kind: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """List the object itself, or those of a List, also of a List in a List, each with its kind."""
    # A PodList as the API server writes it leaves the kind of its items out.
    kind = str(document.get("kind", kind))
    items = document.get("items")
    if kind.endswith("List") and isinstance(items, list):
        for item in items:
            if isinstance(item, dict):
                yield from _list_objects(item, kind.removesuffix("List"))
        return
    yield kind, document


def _migrate(kind: str, manifest: dict[str, Any], options: MigrationOptions, done: Migrated) -> None:
    metadata = manifest.get("metadata")
    named = metadata.get("name") or metadata.get("generateName", "") if isinstance(metadata, dict) else ""
    found = list(_find_pods(manifest, ""))
    left = {key for key in _list_keys(manifest, [pod for _, pod in found]) if _is_asked_for(key)}
    for path, pod in found:
        where = f"{path}: " if len(found) > 1 else ""
        say: Say = lambda note, where=where: done.notes.append(f"{kind} {named}: {where}{note}")  # type: ignore[misc] # noqa: E731
        if not _rewrite(pod, options, say):
            done.complete = False
    if left:
        done.notes.append(
            f"{kind} {named}: left as it is: {', '.join(sorted(left))} in no pod and no pod template"
        )
        done.complete = False


def _find_pods(value: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Find pods and pod templates wherever they stand: a mapping whose `spec` has containers.

    Yields:
        Where it stands, such as `spec.template`, and the mapping.
    """
    if isinstance(value, list):
        for index, each in enumerate(value):
            yield from _find_pods(each, f"{path}[{index}]")
    elif isinstance(value, dict):
        spec = value.get("spec")
        if isinstance(spec, dict) and ("containers" in spec or "initContainers" in spec):
            yield path, value
            return
        for key, each in value.items():
            yield from _find_pods(each, f"{path}.{key}" if path else str(key))


def _rewrite(pod: dict[str, Any], options: MigrationOptions, say: Say) -> bool:
    metadata = pod.get("metadata")
    template = metadata if isinstance(metadata, dict) else CommentedMap()
    if not rewrite_pod(template, pod["spec"], options, say):
        return False
    if template and metadata is not template:
        # The metadata of a template comes first, as people write it.
        pod.pop("metadata", None)
        if isinstance(pod, CommentedMap):
            pod.insert(0, "metadata", template)
    return True


def _concerns_cards(shared: Any) -> bool:
    """Tell whether what stands in several places is something that this command changes."""
    return any(_is_asked_for(key) or key in _CHANGED for key in _list_keys(shared, ()))


def _list_keys(value: Any, without: Sequence[Any]) -> Iterator[str]:
    """List all keys of a value, but for those inside some mappings."""
    if any(value is each for each in without):
        return
    if isinstance(value, dict):
        yield from value
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from _list_keys(each, without)


def _is_asked_for(key: str) -> bool:
    """Tell a peer's resource, also as a ResourceQuota writes it."""
    bare = key.removeprefix("requests.").removeprefix("limits.")
    return is_peer_resource(bare)
