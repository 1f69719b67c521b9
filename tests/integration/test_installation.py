"""What people install: the second command, the locked dependencies, and a Python that will not do."""

import os
import re
import subprocess
import sys
import sysconfig
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from setuptools import find_packages

import gpupack

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCKS = {"runtime": "requirements.lock", "dev": "requirements-dev.lock"}
# What a dependency is imported as, where that is not its name.
MODULES = {
    "grpcio": "grpc",
    "nvidia-ml-py": "pynvml",
    "prometheus-client": "prometheus_client",
    "protobuf": "google",
    "pyyaml": "yaml",
    "ruamel.yaml": "ruamel",
}


def pins(name: str) -> dict[str, list[tuple[str, int]]]:
    """Versions and numbers of hashes by package of a lock file."""
    found: dict[str, list[tuple[str, int]]] = {}
    for entry in re.split(r"\n(?=\S)", (ROOT / name).read_text()):
        pin = re.match(r"(\S+)==(\S+)", entry)
        assert pin, entry
        hashes = len(re.findall(r"--hash=sha256:[0-9a-f]{64}\b", entry))
        found.setdefault(canonicalize_name(pin[1]), []).append((pin[2], hashes))
    return found


def test_kubectl_finds_the_command_under_its_second_name() -> None:
    command = Path(sysconfig.get_path("scripts")) / "kubectl-gpupack"
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(f", version {gpupack.__version__}\n")


def test_kubectl_completes_by_a_command_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As pyproject.toml has it now, whatever was installed before."""
    name = "kubectl_complete-gpupack"
    monkeypatch.setattr(sys, "argv", [name, "to"])
    EntryPoint(name, PROJECT["scripts"][name], "console_scripts").load()()
    said = capsys.readouterr().out
    assert said.startswith("top\t")


def test_kubectl_finds_it_through_a_link_too(tmp_path: Path) -> None:
    """As docs/install.md has it: a link on the PATH to the script of a virtual environment elsewhere."""
    (tmp_path / "kubectl-gpupack").symlink_to(Path(sysconfig.get_path("scripts")) / "kubectl-gpupack")
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(
        ["kubectl-gpupack", "--version"], env=environment, capture_output=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_every_package_is_distributed() -> None:
    """Every folder with modules is a package, and setuptools finds it."""
    include = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"][
        "include"
    ]
    tops = {pattern.rstrip("*") for pattern in include}
    there = {
        ".".join(path.parent.relative_to(ROOT).parts) for top in tops for path in (ROOT / top).rglob("*.py")
    }
    assert set(find_packages(str(ROOT), include=include)) == there


def test_every_file_that_is_no_module_is_distributed() -> None:
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    named = {
        path
        for package, patterns in data.items()
        for folder in (ROOT.glob("*") if package == "*" else [ROOT.joinpath(*package.split("."))])
        for pattern in patterns
        for path in folder.glob(pattern)
    }
    tops = [path.parent for path in ROOT.glob("*/py.typed")]
    there = {path for top in tops for path in top.rglob("*") if path.is_file()}
    ours = {path for path in there if path.suffix not in {".py", ".pyc", ".pyi", ".proto"}}
    assert ours - named == set()


@pytest.mark.parametrize("kind", sorted(LOCKS))
def test_every_dependency_is_locked_to_a_version_that_is_allowed(kind: str) -> None:
    wanted = [Requirement(text) for text in PROJECT["dependencies"]]
    if kind == "dev":
        wanted += [Requirement(text) for text in PROJECT["optional-dependencies"]["dev"]]
    locked = pins(LOCKS[kind])
    for requirement in wanted:
        versions = locked.get(canonicalize_name(requirement.name), [])
        assert versions, requirement
        assert [v for v, _ in versions if v not in requirement.specifier] == [], requirement


@pytest.mark.parametrize("kind", sorted(LOCKS))
def test_nothing_is_locked_without_hashes(kind: str) -> None:
    assert [name for name, found in pins(LOCKS[kind]).items() if not all(count for _, count in found)] == []


def test_both_locks_agree() -> None:
    runtime, dev = pins(LOCKS["runtime"]), pins(LOCKS["dev"])
    assert {name: dev.get(name) for name in runtime} == runtime


def test_the_allocator_may_import_no_dependency_but_msgspec() -> None:
    """The import rule names what is forbidden, so a new dependency has to join its list."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (rule,) = [one for one in contracts if one["name"].startswith("allocator is pure")]
    names = {Requirement(text).name for text in PROJECT["dependencies"]} - {"msgspec"}
    assert {MODULES.get(name, name) for name in names} <= set(rule["forbidden_modules"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("sys.modules['ensurepip'] = None", "Python's venv module is missing: apt-get install python3-venv"),
        (
            "sys.version_info = (3, 10, 9)",
            "gpupack needs Python 3.11 or later as {}: apt-get install python3",
        ),
        ("sys.exit(127)", "gpupack needs Python 3.11 or later as {}: apt-get install python3"),
    ],
    ids=["no venv module", "too old", "none at all"],
)
def test_a_python_that_will_not_do_is_told_with_the_package_to_install(
    tmp_path: Path, change: str, message: str
) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -c "import sys; {change}; exec(sys.argv[2])" "$@"\n')
    python.chmod(0o755)
    outside = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(
        ["make", "--no-print-directory", f"PYTHON={python}", "python"],
        cwd=ROOT,
        env=outside | {"LC_ALL": "C"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (2, "")
    said, of_make = done.stderr.splitlines()
    assert said == message.format(python)
    assert of_make.startswith("make: ***")
