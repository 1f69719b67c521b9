#!/usr/bin/env python3
"""What a release is made of that no other tool writes, for .github/workflows/release.yml.

.ci/release.py check TAG OWNER/NAME   fails unless pyproject.toml and CHANGELOG.md are ready for the tag
.ci/release.py repository             prints OWNER/NAME, as pyproject.toml has it
.ci/release.py notes TAG              prints the tag's section of CHANGELOG.md
.ci/release.py chart IMAGE            makes this checkout's chart install IMAGE, such as ghcr.io/OWNER/NAME
.ci/release.py krew TAG FOLDER        prints krew's manifest, with the checksums of the archives in FOLDER

It needs only Python, and is tested by tests/unit/test_release.py.
"""

import hashlib
import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
FORGE: Final = "https://github.com/"
_SECTION: Final = r"^## \[{}\][^\n]*\n(.*?)(?=^## \[|^\[|\Z)"
_ARCHIVE: Final = re.compile(r'\{\{addURIAndSha "([^"]+)" \.TagName \}\}')


class ReleaseError(Exception):
    """Something is not ready for a release; the message says what to change."""


def read_project(root: Path) -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    return project


def read_repository(root: Path) -> str:
    """Read OWNER/NAME, which pyproject.toml has and nothing else decides."""
    url: str = read_project(root)["urls"]["Repository"]
    return url.removeprefix(FORGE)


def read_notes(root: Path, version: str) -> str:
    """Read the section of a version from the changelog.

    Raises:
        ReleaseError: there is none, or it is empty.
    """
    text = (root / "CHANGELOG.md").read_text()
    found = re.search(_SECTION.format(re.escape(version)), text, re.DOTALL | re.MULTILINE)
    if found is None or not found[1].strip():
        raise ReleaseError(f"CHANGELOG.md has no section [{version}] with anything in it")
    return f"{found[1].strip()}\n"


def check(root: Path, tag: str, repository: str) -> None:
    """Check that a tag fits what it tags.

    Raises:
        ReleaseError: everything that does not, a line each.
    """
    version, ours = read_project(root)["version"], read_repository(root)
    faults = []
    if tag != f"v{version}":
        faults.append(f"tag {tag}; allowed: v{version}, as pyproject.toml has it")
    if repository.lower() != ours.lower():
        faults.append(f"this repository is {repository}, and pyproject.toml's urls name {ours}: change them")
    try:
        read_notes(root, version)
    except ReleaseError as error:
        faults.append(str(error))
    if faults:
        raise ReleaseError("\n".join(faults))


def point_chart_at(root: Path, image: str) -> None:
    """Write an image's name into the chart's values and annotations, in place.

    Raises:
        ReleaseError: a file does not have the name where it is expected.
    """
    chart = root / "manifests" / "helm" / "gpupack"
    for name, pattern in (
        ("values.yaml", r"(?m)^(image:\n  repository: )gpupack$"),
        ("Chart.yaml", r"(?m)^(      image: )gpupack(?=:)"),
    ):
        text, changes = re.subn(pattern, rf"\g<1>{image}", (chart / name).read_text())
        if changes != 1:
            raise ReleaseError(f"{name} names the image gpupack {changes} times; allowed: once")
        (chart / name).write_text(text)


def render_krew_manifest(root: Path, tag: str, folder: Path) -> str:
    """Fill in krew's template as krew-release-bot does, from archives that are here and not yet published.

    Raises:
        ReleaseError: an archive is missing.
    """

    def add_uri_and_sha(found: re.Match[str]) -> str:
        uri = found[1].replace("{{ .TagName }}", tag)
        archive = folder / uri.rpartition("/")[2]
        if not archive.is_file():
            raise ReleaseError(f"{archive} is missing")
        return f"uri: {uri}\n      sha256: {hashlib.sha256(archive.read_bytes()).hexdigest()}"

    template = (root / ".krew.yaml").read_text()
    return _ARCHIVE.sub(add_uri_and_sha, template).replace("{{ .TagName }}", tag)


COMMANDS: Final[dict[str, tuple[int, Callable[..., str | None]]]] = {
    "check": (2, lambda tag, repository: check(ROOT, tag, repository)),
    "repository": (0, lambda: f"{read_repository(ROOT)}\n"),
    "notes": (1, lambda tag: read_notes(ROOT, tag.removeprefix("v"))),
    "chart": (1, lambda image: point_chart_at(ROOT, image)),
    "krew": (2, lambda tag, folder: render_krew_manifest(ROOT, tag, Path(folder))),
}


def main(arguments: list[str]) -> int:
    name, *rest = arguments or [""]
    if name not in COMMANDS or len(rest) != COMMANDS[name][0]:
        sys.stderr.write(__doc__ or "")
        return 2
    try:
        sys.stdout.write(COMMANDS[name][1](*rest) or "")
    except ReleaseError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
