"""Packages whose policies cannot be used: one line when a command starts, never a silent default."""

import os
import re
import subprocess
import sys

import pytest

from allocator.errors import CardPolicyError
from allocator.installed import installed
from allocator.policies import CARD_POLICIES
from allocator.registry import Entry, Registry
from gpupack.cli.app import main
from scheduler_plugin.errors import PolicyError
from scheduler_plugin.scheduling.policies import NODE_POLICIES

GOOD = """
class P:
    epoch = 0
    def __init__(self, parameters): ...
    def score(self, view, ask, rows): ...
    def costs(self, cards, units): ...
"""
NO_ARRAYS = "class P:\n    array_costs = 5\n    def __init__(self, _): ...\n    costs = print"
NO_EPOCH = "class P:\n    def __init__(self, _): ...\n    score = print"


def package(folder, name, node="", card="", code=GOOD):
    """Lay a package out as pip would, with one entry point."""
    (folder / f"{name}.py").write_text(code)
    info = folder / f"{name}-2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 2.0\n")
    (info / "entry_points.txt").write_text(
        f"[gpupack.node_policies]\n{node}\n[gpupack.card_policies]\n{card}\n"
    )


@pytest.fixture
def start(tmp_path, monkeypatch, capsys):
    """Start a command in this process, with what lies in tmp_path installed; its status and stderr."""
    monkeypatch.syspath_prepend(tmp_path)
    nowhere = tmp_path / "nowhere.csv"
    arguments = {
        "scheduler": ["--http", "nowhere"],
        "simulate": ["--nodes", nowhere, "--pods", nowhere],
        "demo": ["--node-policy", "none"],
        "queue": ["--config", nowhere],
        "node": ["--node-name", "", "--gpus", "simulated", "--profile", "2xt4"],
    }

    def command(name):
        monkeypatch.setattr(sys, "argv", ["gpupack", name, *map(str, arguments[name])])
        with pytest.raises(SystemExit) as exit_of:
            main()
        return exit_of.value.code, capsys.readouterr().err

    yield command
    for registry in (NODE_POLICIES, CARD_POLICIES):
        registry.adopt(())
    for name in ("bad", "first", "second"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("kind", "line", "code", "said"),
    [
        ("node", "x = gone:P", GOOD, '"gone:P" cannot be imported: ModuleNotFoundError: No module named'),
        ("node", "x = bad:Q", GOOD, '"bad:Q" cannot be imported: AttributeError'),
        ("node", "x = bad:P", "1 / 0", '"bad:P" cannot be imported: ZeroDivisionError: division by zero'),
        ("node", "x = bad:P", "raise SystemExit(3)", '"bad:P" cannot be imported: SystemExit: 3'),
        ("node", "x = bad:P", "P = 5", '"bad:P" is a int; allowed: a function of the parameters'),
        ("node", "x = bad:P", "P = dict", "is a dict without a method score(view, ask, rows)"),
        ("node", "x = bad:P", NO_EPOCH, "is a P without a whole number epoch"),
        ("card", "x = bad:P", "P = dict", "is a dict without a method costs(cards, units)"),
        ("card", "x = bad:P", NO_ARRAYS, "is a P without a usable method array_costs(size, free, units)"),
        ("card", "x = bad:P", "def P(): ...", "cannot be made: TypeError: P() takes 0 positional arguments"),
        ("node", "balanced = bad:P", GOOD, "the name is taken by gpupack"),
        ("card", "least-used = bad:P", GOOD, "the name is taken by gpupack"),
        ("card", "A.b = bad:P", GOOD, "allowed: names of lower case letters, digits and single `-`"),
    ],
)
def test_a_policy_that_cannot_be_used(tmp_path, start, kind, line, code, said):
    package(tmp_path, "bad", code=code, **{kind: line})
    for name in ("scheduler", "simulate", "demo", "queue", *(["node"] if kind == "card" else [])):
        status, err = start(name)
        assert status == 2
        assert re.fullmatch(r"gpupack: [^\n]+\n", err), err
        assert f"{kind} policy " in err
        assert "of bad 2.0" in err
        assert said in err


def test_the_node_daemon_has_nothing_to_do_with_node_policies(tmp_path, start):
    package(tmp_path, "bad", node="x = gone:P")
    assert "policy" not in start("node")[1]


def test_two_packages_of_one_name(tmp_path, start):
    for name in ("first", "second"):
        package(tmp_path, name, node=f"x = {name}:P")
    assert start("scheduler") == (
        2,
        'gpupack: node policy "x" of second 2.0: the name is taken by first 2.0\n',
    )


def test_a_package_that_is_gone_is_forgotten(tmp_path, monkeypatch):
    own = NODE_POLICIES.allowed
    with monkeypatch.context() as patched:
        patched.syspath_prepend(tmp_path)
        package(tmp_path, "first", node="x = first:P")
        assert NODE_POLICIES.load_packages() == ()
        assert "x" in NODE_POLICIES
    assert NODE_POLICIES.load_packages() == ()
    assert "x" not in NODE_POLICIES
    with pytest.raises(PolicyError, match=f'^node policy "x"; allowed: {own}$'):
        NODE_POLICIES.made("x")
    del sys.modules["first"]


@pytest.fixture
def registries():
    """Two that have not looked for packages yet."""
    one = Registry("node policy", "gpupack.node_policies", PolicyError, lambda _: "", installed)
    return one, Registry("card policy", "gpupack.card_policies", CardPolicyError, lambda _: "", installed)


def test_packages_are_looked_for_when_a_name_is_not_ours(tmp_path, monkeypatch, registries):
    """A command that needs no other name imports nothing of others, and none has to remember to look."""
    monkeypatch.syspath_prepend(tmp_path)
    package(tmp_path, "first", node="x = first:P")
    registry, _ = registries
    registry.register(Entry("own", lambda _: object(), ""))
    assert "own" in registry
    assert registry.made("own") is not None
    assert "first" not in sys.modules
    assert "x" in registry
    assert "first" in sys.modules
    assert registry.names() == ("own", "x")
    (tmp_path / "first-2.0.dist-info" / "entry_points.txt").unlink()
    assert "y" not in registry
    assert "x" in registry
    del sys.modules["first"]


def test_what_is_wrong_is_said_of_names_that_are_unknown(tmp_path, monkeypatch, registries):
    monkeypatch.syspath_prepend(tmp_path)
    package(tmp_path, "bad", node="x = gone:P\nz = bad:P", card="y = gone:P")
    for registry, name, error in zip(registries, "xy", (PolicyError, CardPolicyError), strict=True):
        assert name not in registry
        with pytest.raises(error, match=rf'"{name}"; allowed: .*; .* "{name}" of bad 2.0: "gone:P" cannot'):
            registry.made(name)
    assert "z" in registries[0]
    del sys.modules["bad"]


def test_everything_that_is_wrong_is_said_at_the_start(tmp_path, start):
    package(tmp_path, "bad", node="x = gone:P\ny = bad:Q", card="z = gone:P")
    status, err = start("queue")
    assert status == 2
    assert [line.split(" of bad")[0] for line in err.splitlines()] == [
        'gpupack: node policy "x"',
        'gpupack: node policy "y"',
        'gpupack: card policy "z"',
    ]


def test_help_says_what_is_wrong_and_lists_the_others(tmp_path):
    package(tmp_path, "bad", card="x = gone:P")
    done = subprocess.run(
        [sys.executable, "-m", "gpupack", "node", "--help"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    text = " ".join(done.stdout.split())
    assert 'card policy "x" of bad 2.0: "gone:P" cannot be imported: ModuleNotFoundError' in text
    assert "least-used spread" in text
