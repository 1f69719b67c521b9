"""What a release publishes: pinned by digest, named after one repository, and complete."""

import hashlib
import importlib.util
import re
import shutil
from pathlib import Path
from types import ModuleType

import pytest

import gpupack
from tests.yaml_text import read_yaml

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TAG = f"v{gpupack.__version__}"


def load(name: str) -> ModuleType:
    """Import a script of .ci, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


release = load("release")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what the script reads and writes, with a section for the version in the changelog."""
    for name in ("pyproject.toml", ".krew.yaml", "manifests/helm/gpupack/values.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "manifests/helm/gpupack/Chart.yaml", tmp_path / "manifests/helm/gpupack")
    (tmp_path / "CHANGELOG.md").write_text(
        f"# Changelog\n\n## [Unreleased]\n\n## [{gpupack.__version__}] - 2027-01-31\n\n- First.\n- Last.\n"
    )
    return tmp_path


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_every_action_is_pinned_by_digest_with_its_version_beside_it(path: Path) -> None:
    used = re.findall(r"uses: (.+)", path.read_text())
    assert used
    pinned = re.compile(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+")
    assert [each for each in used if not pinned.fullmatch(each)] == []


def test_one_version_of_each_action_is_used() -> None:
    used = {each for path in WORKFLOWS for each in re.findall(r"uses: (\S+)", path.read_text())}
    names = [each.partition("@")[0] for each in used]
    assert sorted(names) == sorted(set(names))


def test_every_name_of_the_repository_is_that_of_pyproject() -> None:
    ours = release.read_repository(ROOT)
    assert re.fullmatch(r"[a-z0-9-]+/[a-z0-9-]+", ours)
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / ".krew.yaml"]
    chart = ROOT / "manifests" / "helm" / "gpupack"
    pages += [each for each in (*chart.glob("*.*"), *chart.glob("templates/*")) if each.is_file()]
    named = {
        found
        for page in pages
        for found in re.findall(r"(?:github\.com|ghcr\.io)/([\w-]+/gpupack)\b", page.read_text())
    }
    assert named == {ours}
    icon = read_yaml((chart / "Chart.yaml").read_text())["icon"]
    name, _, path = icon.removeprefix("https://raw.githubusercontent.com/").partition("/main/")
    assert (name, (ROOT / path).is_file()) == (ours, True)
    assert "OWNER" not in (ROOT / ".krew.yaml").read_text()


def test_krew_gets_the_archives_that_the_workflow_builds_with_their_checksums(
    checkout: Path, tmp_path: Path
) -> None:
    jobs = read_yaml((ROOT / ".github/workflows/release.yml").read_text())["jobs"]
    built = [each["platform"] for each in jobs["plugin"]["strategy"]["matrix"]["include"]]
    folder = tmp_path / "assets"
    folder.mkdir()
    for platform in built:
        (folder / f"gpupack-{platform}.tar.gz").write_bytes(platform.encode())
    spec = read_yaml(release.render_krew_manifest(checkout, TAG, folder))["spec"]
    assert spec["version"] == TAG
    said = {
        f"{each['selector']['matchLabels']['os']}-{each['selector']['matchLabels']['arch']}": each
        for each in spec["platforms"]
    }
    assert sorted(said) == sorted(built)
    for platform, each in said.items():
        assert each["uri"].endswith(f"/releases/download/{TAG}/gpupack-{platform}.tar.gz")
        assert each["sha256"] == hashlib.sha256(platform.encode()).hexdigest()


def test_a_missing_archive_is_named(checkout: Path, tmp_path: Path) -> None:
    with pytest.raises(release.ReleaseError, match=r"gpupack-linux-amd64\.tar\.gz is missing"):
        release.render_krew_manifest(checkout, TAG, tmp_path)


def test_the_chart_installs_the_image_that_was_published(checkout: Path) -> None:
    image = f"ghcr.io/{release.read_repository(checkout)}"
    release.point_chart_at(checkout, image)
    chart = checkout / "manifests" / "helm" / "gpupack"
    assert read_yaml((chart / "values.yaml").read_text())["image"]["repository"] == image
    annotations = read_yaml((chart / "Chart.yaml").read_text())["annotations"]
    images = read_yaml(annotations["artifacthub.io/images"])
    assert images[0] == {"name": "gpupack", "image": f"{image}:{gpupack.__version__}"}
    with pytest.raises(release.ReleaseError, match="0 times; allowed: once"):
        release.point_chart_at(checkout, image)


def test_the_notes_are_all_of_the_versions_section(checkout: Path) -> None:
    """Also of the first version, after which nothing stands in the file."""
    assert release.read_notes(checkout, gpupack.__version__) == "- First.\n- Last.\n"
    changelog = checkout / "CHANGELOG.md"
    changelog.write_text(f"{changelog.read_text()}\n## [0.0.1]\n\n- Older.\n")
    assert release.read_notes(checkout, gpupack.__version__) == "- First.\n- Last.\n"


def test_a_tag_that_is_not_ready_is_told_everything_at_once(checkout: Path) -> None:
    ours = release.read_repository(checkout)
    release.check(checkout, TAG, ours)
    (checkout / "CHANGELOG.md").write_text("## [Unreleased]\n\n- Something.\n")
    with pytest.raises(release.ReleaseError) as error:
        release.check(checkout, "v9.9.9", "somebody/fork")
    assert str(error.value).splitlines() == [
        f"tag v9.9.9; allowed: {TAG}, as pyproject.toml has it",
        f"this repository is somebody/fork, and pyproject.toml's urls name {ours}: change them",
        f"CHANGELOG.md has no section [{gpupack.__version__}] with anything in it",
    ]


@pytest.mark.parametrize("arguments", [[], ["publish"], ["check", TAG]], ids=["none", "unknown", "too-few"])
def test_wrong_arguments_are_answered_with_those_that_are_right(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert release.main(arguments) == 2
    assert ".ci/release.py check TAG OWNER/NAME" in capsys.readouterr().err


def test_installing_says_what_is_downloaded_and_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """With a pip that prints what pip prints, and fails."""
    pip = tmp_path / "pip"
    pip.write_text(
        "#!/bin/sh\n"
        "echo 'Requirement already satisfied: attrs==26.1.0 in ./site-packages (26.1.0)'\n"
        "echo 'Collecting numpy==2.4.6 (from -r requirements.lock (line 4))'\n"
        "echo '  Downloading numpy-2.4.6-cp311-cp311-manylinux_2_28_x86_64.whl (16.9 MB)'\n"
        "echo 'Installing collected packages: numpy'\n"
        "echo 'ERROR: no room left' >&2\n"
        "exit 3\n"
    )
    pip.chmod(0o755)
    lock = tmp_path / "requirements.lock"
    lock.write_text("attrs==26.1.0 \\\n    --hash=sha256:00\nnumpy==2.4.6 \\\n    --hash=sha256:00\n")
    install = load("install")
    monkeypatch.setattr(install, "PIP", (str(pip),))
    assert install.main(str(lock)) == 3
    said = capfd.readouterr()
    assert said.out.splitlines() == [
        f"Packages of {lock}, 2 in all:",
        "  2/2 downloading numpy 2.4.6, 16.9 MB",
        "  installing them",
    ]
    assert said.err == "ERROR: no room left\n"
