"""The objects that the cluster tests apply are those that kustomize makes of `manifests/`."""

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.harness import binaries
from tests.cluster.harness.manifests import COMPONENTS, MANIFESTS, OVERLAYS, build
from tests.yaml_text import read_yaml_documents

pytestmark = [
    pytest.mark.telling,
    pytest.mark.skipif(shutil.which("go") is None, reason="kustomize must be built and there is no Go"),
]


OF_A_NODE = ["mig", "memory-limits", "mps", "cdi", "nvidia-runtime-class"]
TOGETHER = {
    "all of a node's": OF_A_NODE,
    "all of a node's, with claims": ["dra", "dra-scheduler", *OF_A_NODE],
    "claims on simulated cards": ["dra", "dra-scheduler", "simulated-gpus"],
    "dashboard-teams": ["dashboard", "dashboard-teams"],
    "queue-batch": ["queue", "queue-batch"],  # it changes what the first one brings
    "queue-batch-own-nodes": ["queue", "queue-batch", "queue-batch-own-nodes"],
}


def by_name(objects: Iterable[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(one["kind"], one["metadata"]["name"]): one for one in objects}


def kustomized(folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    command = [str(binaries.kustomize()), str(folder)]
    made = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    return by_name(read_yaml_documents(made))


@pytest.mark.parametrize("folder", ["base", *(f"overlays/{name}" for name in OVERLAYS)])
def test_what_is_applied_here_is_what_kustomize_makes(folder):
    assert by_name(build(MANIFESTS / folder)) == kustomized(MANIFESTS / folder)


@pytest.mark.parametrize("component", sorted({path.name for path in COMPONENTS.iterdir()} | TOGETHER.keys()))
def test_what_components_add_is_what_kustomize_makes(component, tmp_path):
    """Some have no overlay, and one brings another along that may be named beside it."""
    shutil.copytree(MANIFESTS, tmp_path / "manifests", symlinks=True)
    named = TOGETHER.get(component, [component])
    overlay = tmp_path / "manifests" / "overlays" / "mine"
    overlay.mkdir()
    plan = {"resources": ["../../base"], "components": [f"../../components/{name}" for name in named]}
    (overlay / "kustomization.yaml").write_text(yaml.safe_dump(plan))
    ours = build(MANIFESTS / "base", *(COMPONENTS / name for name in named))
    assert by_name(ours) == kustomized(overlay)
