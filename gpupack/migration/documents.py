"""Finds the pods in manifests and has each rewritten."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from ruamel.yaml.comments import CommentedMap

from allocator.names import GPU_PREFIX
from allocator.texts import list_some
from gpupack.errors import InputError
from gpupack.migration.pods import Say, rewrite_pod
from gpupack.migration.requests import KAI_AMOUNTS, MigrationOptions
from gpupack.migration.yamltext import list_shared, load, write_out_aliases

_CHANGED: Final = frozenset(
    {"containers", "initContainers", "image", "schedulerName", "annotations", "metadata"}
)
"""Keys of a pod under which something is changed."""

_NAMED: Final = re.compile(
    r"""(?<![\w.~-])(?:requests\.|limits\.)?(
    nvidia\\{0,2}\.com(?:/|~1)
      (?:gpu(?:\.shared|-(?!driver)[\w-]*\w)?|gpumem(?:-percentage)?|gpucores|total-gpu\w*|vgpu|priority|mig-[\w.-]*\w)
    |volcano\\{0,2}\.sh(?:/|~1)v?gpu-(?:number|memory|memory-percentage|cores)
    |aliyun\\{0,2}\.com(?:/|~1)gpu-(?:mem|count)
    |(?:gpu|mig)\.nvidia\.com
    )(?![\w/-]|\.\w)""",
    re.VERBOSE,
)
"""A resource or a device class of another project, also inside a text, as a patch or a program's options."""

_NOT_ASKING: Final = frozenset(
    {
        *("tolerations", "taints", "startupTaints", "nodeSelector", "nodeLabels", "affinity"),
        *("managedFields", "kubectl.kubernetes.io/last-applied-configuration"),
    }
)
"""What stands below these names cards and asks for none."""

_AMOUNTS: Final = frozenset({"limits", "requests", "resources"})
"""Below these names a key with `gpu` in it asks for cards, whoever reads it."""

_CLASSES: Final = frozenset({"deviceClassName", "resourceProfile"})
"""Their values say what is asked for: in a ResourceClaim, and in a Model of KubeAI."""

_SELF_ANNOTATED: Final = frozenset({"InferenceService", "ServingRuntime", "ClusterServingRuntime"})
"""Kinds of KServe whose pods have their annotations, and no schedulerName, beside their containers."""

_PLACES: Final = 3
"""So many places are written out in one note."""


@dataclass
class Migrated:
    """The manifests for gpupack, what a person has to know, and whether everything could be translated."""

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
            raise InputError(
                f"{name}, document {number} has no kind; allowed: Kubernetes manifests; values of a chart "
                "have to be rendered first (helm template)"
            )
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
    metadata = metadata if isinstance(metadata, dict) else {}
    name = f"{kind} {metadata.get('name') or metadata.get('generateName', '')}"
    group = str(manifest.get("apiVersion", "")).partition("/")[0]
    pods = list(_find_pods(manifest, "", self_annotated=kind in _SELF_ANNOTATED))
    takes_scheduler = group != "serving.knative.dev" and kind not in _SELF_ANNOTATED
    left_pods = []
    for pod in pods:
        where = f"{pod.path}: " if len(pods) > 1 else ""
        say: Say = lambda note, where=where: done.notes.append(f"{name}: {where}{note}")  # type: ignore[misc] # noqa: E731
        if not pod.rewrite(options, say, takes_scheduler=takes_scheduler):
            left_pods.append(pod.spec if pod.holder is None else pod.holder)
            done.complete = False
    places: dict[str, dict[str, None]] = {}
    for path, found in _find_named(manifest, "", left_pods):
        places.setdefault(found, {})[path] = None
    if not places and not pods and group.endswith(("run.ai", "kai.scheduler")):
        done.notes.append(f"{name}: left as it is: the kind is KAI's or Run:ai's; {_advise(kind, group, '')}")
        done.complete = False
    if places:
        said = "; ".join(f"{found} at {_list_places(paths)}" for found, paths in sorted(places.items()))
        done.notes.append(f"{name}: left as it is: {said}: {_advise(kind, group, said)}")
        done.complete = False
    _warn_of_owner(name, metadata, done)


def _list_places(paths: Iterable[str]) -> str:
    return list_some(list(paths), _PLACES)


def _advise(kind: str, group: str, said: str) -> str:
    """Say what a person has to do about what is named outside of pods."""
    advice = (
        (
            group == "kueue.x-k8s.io",
            "write gpupack.io/gpu-memory-gib and a quota in GiB (docs/howto/kueue.md)",
        ),
        (
            kind in {"ResourceQuota", "LimitRange"},
            "write requests.gpupack.io/gpu-memory-gib and a quota in GiB (docs/howto/quota.md)",
        ),
        (group.endswith(("run.ai", "kai.scheduler")), "queues of teams are in docs/queue.md"),
        (
            "gpu.nvidia.com" in said or "mig.nvidia.com" in said,
            "a claim has deviceClassName gpupack (docs/dra.md), or the pod asks in its limits",
        ),
        (
            "metadata.annotations" in said,
            "write the amount into the limits of the container that computes",
        ),
        (
            "resourceProfile" in said,
            "write the limits of the profile where its operator has them (KubeAI's chart: resourceProfiles)",
        ),
        (
            not _NAMED.search(said),
            "gpupack knows no such resource: write gpupack.io/gpu-memory-gib for NVIDIA's cards only",
        ),
    )
    return next(
        (text for holds, text in advice if holds),
        "write gpupack.io/gpu-memory-gib and its GiB, or gpupack.io/gpu-percent, by hand",
    )


def _warn_of_owner(name: str, metadata: dict[str, Any], done: Migrated) -> None:
    """Say of an object that was read from a cluster who will write it again."""
    if "resourceVersion" not in metadata:
        return
    owners = [
        f"{owner.get('kind')} {owner.get('name')}"
        for owner in metadata.get("ownerReferences") or ()
        if isinstance(owner, dict)
    ]
    annotations = metadata.get("annotations")
    release = annotations.get("meta.helm.sh/release-name") if isinstance(annotations, dict) else None
    if release is not None:
        owners.append(f"Helm's release {release}")
    if owners:
        done.notes.append(f"{name}: {' and '.join(owners)} will write it again: change that, too")


@dataclass(frozen=True, slots=True)
class _FoundPod:
    """A pod or a pod template in a document.

    Attributes:
        spec: what has its containers.
        holder: the mapping whose `metadata` are the pod's; None: there is no place for them.
        is_metadata: whether the holder itself has the annotations.
    """

    path: str
    spec: dict[str, Any]
    holder: dict[str, Any] | None
    is_metadata: bool = False

    def rewrite(self, options: MigrationOptions, say: Say, *, takes_scheduler: bool) -> bool:
        holder = self.holder
        if holder is None or self.is_metadata:
            return rewrite_pod(holder, self.spec, options, say, takes_scheduler=takes_scheduler)
        metadata = holder.get("metadata")
        template = metadata if isinstance(metadata, dict) else CommentedMap()
        if not rewrite_pod(template, self.spec, options, say, takes_scheduler=takes_scheduler):
            return False
        if template and metadata is not template:
            # The metadata of a template comes first, as people write it.
            holder.pop("metadata", None)
            if isinstance(holder, CommentedMap):
                holder.insert(0, "metadata", template)
        return True


def _find_pods(value: Any, path: str, *, self_annotated: bool) -> Iterator[_FoundPod]:
    """Find pods and pod templates wherever they stand.

    That is a mapping whose `spec` has containers; a template of a workflow, which has one `container` and its
    own `metadata`; a specification of pods under another name, as KServe's `predictor`.
    """
    if isinstance(value, list):
        for index, each in enumerate(value):
            yield from _find_pods(each, f"{path}[{index}]", self_annotated=self_annotated)
    elif isinstance(value, dict):
        spec = value.get("spec")
        if isinstance(spec, dict) and ("containers" in spec or "initContainers" in spec):
            holder = spec if self_annotated else value
            yield _FoundPod(path, spec, holder, is_metadata=self_annotated)
        elif self_annotated and _has_containers(value):
            yield _FoundPod(path, value, value, is_metadata=True)
        elif _is_container(value.get("container")) or _is_container(value.get("script")):
            yield _FoundPod(path, value, value)
        elif isinstance(value.get("containers"), list) and _has_containers(value):
            yield _FoundPod(path, value, None)
        else:
            for key, each in value.items():
                if key != "status":
                    yield from _find_pods(
                        each, f"{path}.{key}" if path else str(key), self_annotated=self_annotated
                    )


def _has_containers(value: dict[str, Any]) -> bool:
    listed = value.get("containers")
    return any(map(_is_container, [*value.values(), *(listed if isinstance(listed, list) else ())]))


def _is_container(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("resources"), dict)


def _concerns_cards(shared: Any) -> bool:
    """Return True if something that stands in several places is changed by this command."""
    return any(_find_named(shared, "", [])) or any(key in _CHANGED for key in _list_keys(shared))


def _list_keys(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from value
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from _list_keys(each)


def _find_named(value: Any, path: str, without: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Find what names cards of other projects, in keys, values and texts.

    Args:
        without: pods that were left as they are, of which that is said already.

    Yields:
        Where, and the name.
    """
    if isinstance(value, str):
        yield from ((path, name) for name in _NAMED.findall(value))
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from _find_named(each, f"{path}[{index}]", without)
    elif isinstance(value, dict) and not any(value is each for each in without):
        for key, each in value.items():
            below = f"{path}.{key}" if path else str(key)
            if key in _NOT_ASKING or below == "status":
                continue
            yield from ((path, name) for name in _NAMED.findall(key))
            if key in KAI_AMOUNTS and path.endswith("annotations"):
                yield path, key
            if isinstance(each, str):
                yield from _find_unknown(path, key, each)
            yield from _find_named(each, below, without)


def _find_unknown(path: str, key: str, value: str) -> Iterator[tuple[str, str]]:
    """Find a request for cards by a name that `_NAMED` does not have: a resource, a class or a profile."""
    if key in _CLASSES and "gpu" in value and "gpupack" not in value:
        yield f"{path}.{key}", value
    amounts = path.rpartition(".")[2] in _AMOUNTS
    if amounts and "gpu" in key and not key.startswith(GPU_PREFIX) and str(value) != "0":
        yield path, key
