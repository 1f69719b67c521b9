"""`gpupack queue check`: the faults of a queue's configuration, before a cluster sees it."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from gpupack.encodings import to_utf8
from gpupack.errors import InputError
from kubeapi.bounded_yaml import MOST_BYTES, load_yaml_documents
from scheduler_plugin.errors import QueueConfigError
from scheduler_plugin.queue.config.queues import PolicyCheck, parse_config

CONFIG_KEY: Final = "queues.yaml"
"""The key of the ConfigMap that the manifests mount."""

KUSTOMIZATIONS: Final = ("kustomization.yaml", "kustomization.yml", "Kustomization")
"""Names of files: `kubectl apply -k` looks for one of them in a folder."""


class CheckedConfig(msgspec.Struct, frozen=True):
    """A configuration, and what is wrong with it.

    Attributes:
        name: The file, with the ConfigMap and its key where it stands in one.
    """

    name: str
    queues: int
    faults: tuple[str, ...] = ()


def check_files(files: Sequence[str], check_policies: PolicyCheck) -> list[CheckedConfig]:
    """Check configurations as the queue checks them when it reads them.

    Args:
        files: Paths, also of an overlay's folder; `-` is standard input. Each holds a configuration, or
            manifests with ConfigMaps of which one key at least is `queues.yaml`.

    Raises:
        InputError: a file that cannot be read, or manifests without a configuration.
    """
    return [
        _check(name, text, check_policies)
        for file in files
        for name, text in _configurations(file, _read(file))
    ]


def _check(name: str, text: str, check_policies: PolicyCheck) -> CheckedConfig:
    try:
        config = parse_config(name, text, check_policies)
    except QueueConfigError as error:
        return CheckedConfig(name, 0, error.faults)
    return CheckedConfig(name, len(config.queues))


def _read(file: str) -> str:
    try:
        if file == "-":
            raw = sys.stdin.buffer.read(MOST_BYTES + 1)
        else:
            path = Path(file)
            if path.is_dir():
                there = [path / name for name in KUSTOMIZATIONS if (path / name).is_file()]
                if not there:
                    raise InputError(f"{file}: a folder without {KUSTOMIZATIONS[0]}")
                path = there[0]
            with path.open("rb") as stream:
                raw = stream.read(MOST_BYTES + 1)
        if len(raw) > MOST_BYTES:
            raise InputError(f"{file}: more than {MOST_BYTES} bytes, which the queue refuses")
        return to_utf8(raw).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"{file}: cannot be read: {reason}") from error


def _configurations(file: str, text: str) -> Iterator[tuple[str, str]]:
    """Find the configurations of a file: itself, or those in its ConfigMaps."""
    manifests = _manifests(text)
    if not manifests:
        yield file, text
        return
    has_any = False
    for manifest in manifests:
        data = manifest.get("data")
        if manifest.get("kind") != "ConfigMap" or not isinstance(data, dict):
            continue
        if isinstance(inner := data.get(CONFIG_KEY), str):
            has_any = True
            metadata = manifest.get("metadata")
            name = metadata.get("name") if isinstance(metadata, dict) else None
            yield f"{file}: ConfigMap {name or 'without a name'}, {CONFIG_KEY}", inner
    if not has_any:
        how = (
            "; allowed too: the output of `kubectl kustomize DIR`"
            if any(map(_is_kustomization, manifests))
            else ""
        )
        raise InputError(f"{file}: no ConfigMap in it has the key {CONFIG_KEY}{how}")


def _manifests(text: str) -> list[dict[str, Any]]:
    """Return the Kubernetes objects of a text; none if it is something else, such as a configuration.

    For a Kustomization they are the patches that it has in itself, or itself where it has none.
    """
    try:
        documents = [each for each in load_yaml_documents(text) if each is not None]
    except ValueError:  # parse_config tells what is wrong
        return []
    if any(map(_is_kustomization, documents)):
        return [patch for each in documents if _is_kustomization(each) for patch in _inline_patches(each)]
    objects = [each for each in documents if isinstance(each, dict) and {"apiVersion", "kind"} <= each.keys()]
    if len(objects) != len(documents):
        return []
    lists = [each["items"] for each in objects if isinstance(each.get("items"), list)]
    return objects + [item for items in lists for item in items if isinstance(item, dict)]


def _is_kustomization(document: object) -> bool:
    """Tell whether a document is a Kustomization, which need not say its kind."""
    if not isinstance(document, dict) or "queues" in document:
        return False
    return document.get("kind") == "Kustomization" or (
        "kind" not in document and bool(document.keys() & {"resources", "components", "patches"})
    )


def _inline_patches(kustomization: dict[str, Any]) -> list[dict[str, Any]]:
    patches = kustomization.get("patches")
    texts = (
        [each.get("patch") for each in patches if isinstance(each, dict)] if isinstance(patches, list) else []
    )
    found = [patch for text in texts if isinstance(text, str) for patch in _manifests(text)]
    return found or [kustomization]
