"""Which Kubernetes the cluster tests run on, when it is built, and what its answers are compared with."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pytest_mock import MockerFixture

from tests.cluster.conftest import pytest_runtestloop
from tests.cluster.harness import binaries, versions
from tests.scripts import answers, apiserver_script, kubelet_script

REPOSITORY = Path(__file__).resolve().parents[2]
# It starts no cluster.
CLUSTER_TEST = "tests/cluster/test_harness.py::test_missing_program_is_named"
LIMIT_S, BUILD_S = 2, 3
# Stands for the compiler: says where it was called, and takes its time for Kubernetes.
SLOW_GO = f"""#!/bin/sh
case "$1" in
env) echo go0.0 ;;
build) echo "$PWD" >> "$BUILDS"; case "$PWD" in */kubebin) sleep {BUILD_S} ;; esac ;;
esac
"""


def run_cluster_test(
    folder: Path, tools: Path, *arguments: str, **environment: str
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """One cluster test with a limit shorter than a build, and nothing built; and which builds there were."""
    go = tools / "go"
    go.write_text(SLOW_GO)
    go.chmod(0o755)
    builds = folder / "builds"
    without = {"CI", "GPUPACK_CLUSTER_REQUIRED", "GPUPACK_KUBE_BIN", "KUBEBUILDER_ASSETS", versions.VARIABLE}
    kept = {name: value for name, value in os.environ.items() if name not in without}
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--timeout={LIMIT_S}"),
            *(CLUSTER_TEST, *arguments),
        ],
        cwd=REPOSITORY,
        env={**kept, "XDG_CACHE_HOME": str(folder / "cache"), "BUILDS": str(builds), **environment},
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done, [Path(line).name for line in builds.read_text().splitlines()] if builds.exists() else []


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    folder = tmp_path / "tools"
    folder.mkdir()
    return folder


def test_everything_is_built_before_the_limit_of_a_test_runs(tmp_path: Path, tools: Path) -> None:
    reason = binaries.obstacle()
    if reason is not None and "no Go" not in reason:
        pytest.skip(reason)
    done, builds = run_cluster_test(tmp_path, tools, "-n", "1", PATH=f"{tools}:{os.environ['PATH']}")
    assert "1 passed" in done.stdout, done.stdout
    assert builds == ["kubebin", "containerdbin", "kustomizebin", "toolbin", "promqlbin"]


def test_nothing_is_built_where_the_cluster_tests_are_skipped(tmp_path: Path, tools: Path) -> None:
    sh = shutil.which("sh")
    assert sh is not None
    (tools / "sh").symlink_to(sh)
    done, builds = run_cluster_test(tmp_path, tools, PATH=str(tools))
    assert "1 skipped" in done.stdout, done.stdout
    assert builds == []


@pytest.mark.parametrize(
    ("is_run", "collect_only", "expected"), [(True, False, 1), (True, True, 0), (False, False, 0)]
)
def test_nothing_is_built_where_no_cluster_test_is_run(
    is_run: bool, collect_only: bool, expected: int, mocker: MockerFixture
) -> None:
    mocker.patch.object(binaries, "obstacle", return_value=None)
    build = mocker.patch.object(binaries, "build")
    start_tests([mocker.Mock()] if is_run else [], collect_only=collect_only)
    assert build.call_count == expected


def test_an_unknown_version_ends_the_run(mocker: MockerFixture, monkeypatch) -> None:
    mocker.patch.object(binaries, "obstacle", return_value=None)
    monkeypatch.delenv("GPUPACK_KUBE_BIN", raising=False)
    monkeypatch.setenv(versions.VARIABLE, "1.22.0")
    allowed = ", ".join(version.number for version in reversed(versions.pinned()))
    with pytest.raises(
        pytest.UsageError, match=rf"^no Kubernetes 1\.22\.0 here: KUBE_VERSION may be one of {allowed}"
    ):
        start_tests([mocker.Mock()])


def start_tests(items: list[Any], *, collect_only: bool = False) -> None:
    """Begin a run of these tests in one process."""
    option = SimpleNamespace(collectonly=collect_only)
    plugins = SimpleNamespace(has_plugin=lambda _name: False)
    pytest_runtestloop(
        cast(
            "pytest.Session",
            SimpleNamespace(items=items, config=SimpleNamespace(option=option, pluginmanager=plugins)),
        )
    )


@pytest.mark.parametrize("minor", ["1.34", "1.35", "1.36", "1.37"])
def test_every_claimed_minor_version_is_pinned_and_may_be_named(minor: str, monkeypatch) -> None:
    (version,) = [one for one in versions.pinned() if one.minor == minor]
    assert version.number.startswith(f"{minor}.")
    for name in (version.number, minor):
        monkeypatch.setenv(versions.VARIABLE, name)
        assert versions.picked() == version


def test_the_newest_is_the_default(monkeypatch) -> None:
    monkeypatch.delenv(versions.VARIABLE, raising=False)
    assert versions.picked() == versions.pinned()[-1]
    assert versions.picked().minor == "1.37"


def test_a_version_beside_a_folder_is_refused(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GPUPACK_KUBE_BIN", str(tmp_path))
    monkeypatch.setenv(versions.VARIABLE, "1.34")
    with pytest.raises(ValueError, match="not both"):
        binaries.programs()


@pytest.mark.parametrize(
    "whole", [kubelet_script.ANSWERS, apiserver_script.ANSWERS], ids=lambda path: path.stem
)
def test_an_older_version_has_only_its_own_answers(whole: Path) -> None:
    newer = answers.recorded(whole)
    files = {file.stem.rpartition("_")[2]: file for file in whole.parent.glob(f"{whole.stem}_*.json")}
    assert files
    for version in reversed(versions.pinned()):
        transcript = answers.recorded(whole, version.minor)
        assert [entry["step"] for entry in transcript] == [entry["step"] for entry in newer]
        own = json.loads(files.pop(version.minor).read_text()) if version.minor in files else []
        assert [entry for entry in transcript if entry not in newer] == own
        newer = transcript
    assert not files, "recorded of a version that cannot be picked"


def test_a_recording_is_read_as_it_was_written(tmp_path: Path) -> None:
    whole = tmp_path / "answers.json"
    newest = [{"step": "a", "answer": 1}, {"step": "b", "answer": 2}, {"step": "c", "answer": 2}]
    older = [{"step": "a", "answer": 1}, {"step": "b", "answer": 3}, {"step": "c", "answer": 2}]
    oldest = [{"step": "a", "answer": 1}, {"step": "b", "answer": 3}, {"step": "c", "answer": 5}]
    answers.record(newest, whole, None, json.dumps)
    answers.record(older, whole, "1.10", json.dumps)
    answers.record(oldest, whole, "1.9", json.dumps)
    assert answers.recorded(whole) == answers.recorded(whole, "1.11") == newest
    assert answers.recorded(whole, "1.10") == older
    assert answers.recorded(whole, "1.9") == answers.recorded(whole, "1.8") == oldest
    assert json.loads((tmp_path / "answers_1.9.json").read_text()) == oldest[2:]
    answers.record(newest, whole, "1.10", json.dumps)
    assert not (tmp_path / "answers_1.10.json").exists()


def test_differences_are_told_step_by_step() -> None:
    recorded = [{"step": "a", "answer": 1}, {"step": "b", "answer": 2}]
    assert answers.differences(recorded, recorded) == []
    (wrong,) = answers.differences([recorded[0], {"step": "b", "answer": 3}], recorded)
    assert wrong.startswith("b\n")
    assert answers.differences(recorded[:1], recorded) == ["b\n  was not played"]
