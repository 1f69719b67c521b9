"""The objects that the cluster tests apply are those that kustomize makes of `manifests/`."""

import shutil
import subprocess

import pytest
import yaml

from tests.cluster.harness import binaries
from tests.cluster.harness.manifests import MANIFESTS, OVERLAYS, build

pytestmark = pytest.mark.telling


@pytest.mark.skipif(shutil.which("go") is None, reason="kustomize must be built and there is no Go")
@pytest.mark.parametrize("folder", ["base", *(f"overlays/{name}" for name in OVERLAYS)])
def test_what_is_applied_here_is_what_kustomize_makes(folder):
    command = [str(binaries.kustomize()), str(MANIFESTS / folder)]
    made = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    ours = {(one["kind"], one["metadata"]["name"]): one for one in build(MANIFESTS / folder)}
    real = {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(made)}
    assert ours == real
