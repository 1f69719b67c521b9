"""The benchmark's table of libraries: whose a function is, and whose a function of C."""

import cProfile
import json
import pstats
from pathlib import Path

import msgspec
import pytest

from benchmarks.profiled import OURS, name_library, sum_by_library, write_table


@pytest.mark.parametrize(
    ("file", "function", "name"),
    [
        ("/venv/lib/python3.11/site-packages/aiohttp/client.py", "get", "aiohttp"),
        ("/venv/lib/python3.11/site-packages/typing_extensions.py", "f", "typing_extensions"),
        ("/usr/lib/python3.11/asyncio/events.py", "_run", "asyncio"),
        ("/usr/lib/python3.11/json/__init__.py", "loads", "json"),
        ("/clone/scheduler_plugin/cache/state.py", "apply_pod", OURS),
        ("~", "<method 'decode' of 'msgspec.json.Decoder' objects>", "msgspec"),
        ("~", "<built-in method builtins.len>", ""),
        ("<string>", "__init__", "generated code"),
    ],
)
def test_a_function_is_its_librarys(file: str, function: str, name: str) -> None:
    assert name_library(file, function) == name


def test_a_function_of_c_counts_for_its_caller_and_the_table_adds_up(tmp_path: Path) -> None:
    profile = cProfile.Profile()
    profile.enable()
    for _ in range(200):
        msgspec.json.decode(b'{"a": [1, 2, 3]}')
        json.loads('{"a": [1, 2, 3]}')
    profile.disable()
    seconds = sum_by_library(pstats.Stats(profile))
    assert {"msgspec", "json"} <= seconds.keys()
    assert sum(seconds.values()) == pytest.approx(pstats.Stats(profile).total_tt, rel=0.05)
    write_table(profile, tmp_path / "table")
    first, *rest = (tmp_path / "table").read_text().splitlines()
    assert first.split()[:2] == ["all", "100.0%"]
    assert any(line.startswith("json") for line in rest)
