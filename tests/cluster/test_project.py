"""The project's own machinery: workflows that GitHub would take, and what they name exists."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.cluster.harness import binaries, versions
from tests.cluster.harness.daemons import REPOSITORY
from tests.yaml_text import read_yaml

WORKFLOWS = sorted((REPOSITORY / ".github" / "workflows").glob("*.yml"))


def test_the_workflows_have_no_mistakes() -> None:
    program = binaries.tool("actionlint")
    # Other checkers that it would call are not on every machine.
    command = [str(program), "-no-color", "-shellcheck=", "-pyflakes=", *map(str, WORKFLOWS)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, cwd=REPOSITORY)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_what_the_workflows_run_is_there(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    text = path.read_text()
    assert set(re.findall(r"\bmake ([a-z-]+)", text)) <= targets
    for name in re.findall(r"(?<![\w/])(\.ci/[\w.]+|manifests/[\w/-]+)", text):
        assert (REPOSITORY / name).exists(), name


def test_ci_runs_versions_that_are_pinned() -> None:
    jobs = read_yaml((REPOSITORY / ".github/workflows/ci.yml").read_text())["jobs"]
    asked = [each["kube"] for each in jobs["cluster"]["strategy"]["matrix"]["include"]]
    known = [version.number for version in versions.pinned()]
    assert all(any(number == one or number.startswith(f"{one}.") for number in known) for one in asked)
