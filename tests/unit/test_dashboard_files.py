"""The page's files: libraries as their authors published them, nothing from elsewhere, all in the wheel."""

import hashlib
import json
import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

from gpupack.dashboard.handlers import load_files

ROOT = Path(__file__).resolve().parents[2]
STATIC = ROOT / "gpupack" / "dashboard" / "static"
VENDOR = STATIC / "vendor"
MANIFEST = json.loads((VENDOR / "manifest.json").read_text())
OURS = [path for path in STATIC.iterdir() if path.is_file()]


@pytest.mark.parametrize("name", sorted(MANIFEST))
def test_a_library_is_what_its_authors_published_with_its_licence(name: str) -> None:
    record = MANIFEST[name]
    assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == record["sha256"]
    assert re.fullmatch(r"npm:[a-z]+@\d+\.\d+\.\d+ package/\S+", record["from"])
    for licence in record["licences"]:
        assert re.search("MIT|Apache", (VENDOR / licence).read_text())


def test_every_file_of_a_library_is_in_the_manifest() -> None:
    licences = {licence for record in MANIFEST.values() for licence in record["licences"]}
    assert {path.name for path in VENDOR.iterdir()} == MANIFEST.keys() | licences | {"manifest.json"}


def test_all_of_them_are_in_the_wheel_and_served() -> None:
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    patterns = data["gpupack.dashboard"]
    paths = [path for path in STATIC.rglob("*") if path.is_file()]
    for path in paths:
        inside = str(path.relative_to(STATIC.parent))
        assert any(fnmatch(inside, pattern) for pattern in patterns), inside
    assert load_files().keys() == {str(path.relative_to(STATIC)) for path in paths}


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_our_files_keep_to_the_security_policy_and_to_relative_addresses(path: Path) -> None:
    text = path.read_text()
    assert not re.search(r"https?://(?!www\.w3\.org/)", text), "an address elsewhere"
    assert not re.search(r"""(?:src|href|fetch\(|EventSource\(|from)\s*[=(]?\s*["'`]/""", text), (
        "an absolute one"
    )
    assert "eval(" not in text
    assert "innerHTML" not in text
    assert 'style="' not in text
    for name in re.findall(r"""from "\./([^"]+)";""", text):
        assert (STATIC / name).is_file()
