"""`benchmarks.compare`: two commits in turn, and the ratios of their figures."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.compare import Comparison, compare, flatten_figures, main

RUN = """
import json, os
with open({log!r}, "a") as log:
    log.write({figure!r} + " ")
print("for people")
print(json.dumps({{"nodes": 8, "seconds": {{"why": {figure}}}}}))
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with two commits, `base` and `head`, whose `ask` says 2 and 3 and writes that to a log."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    tree = tmp_path / "repository"
    (tree / "benchmarks").mkdir(parents=True)

    def git(*words: str) -> None:
        who = ("-c", "user.name=x", "-c", "user.email=x@example.invalid", "-c", "commit.gpgsign=false")
        subprocess.run(["git", "-C", str(tree), *who, *words], check=True, capture_output=True)

    git("init")
    for name, figure in (("base", "2"), ("head", "3")):
        program = RUN.format(log=str(tmp_path / "log"), figure=figure)
        (tree / "benchmarks" / "ask.py").write_text(program)
        (tree / "benchmarks" / "node.py").write_text("raise SystemExit('no kubelet')")
        git("add", "-A")
        git("commit", "-m", name)
        git("tag", name)
    return tree


def test_each_commit_runs_its_own_benchmark_and_the_first_one_changes(repository, capsys):
    main(["base", "head", "--only", "ask", "--rounds", "3"], repository)

    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last["ask.seconds.why"] == {"base": 2, "head": 3, "ratio": 1.5, "smallest": 1.5, "largest": 1.5}
    assert last.keys() == {"ask.seconds.why", "ask.processor_s"}
    assert (repository.parent / "log").read_text().split() == ["2", "3", "3", "2", "2", "3"]
    listed = subprocess.run(
        ["git", "-C", str(repository), "worktree", "list"], check=True, capture_output=True, text=True
    )
    assert len(listed.stdout.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["base", "head", "--only", "node"], "no kubelet"),
        (["nowhere", "--only", "ask"], "nowhere"),
    ],
    ids=["a benchmark fails", "no such commit"],
)
def test_a_failure_says_what_failed(repository, arguments, said):
    with pytest.raises(SystemExit, match=said):
        main(arguments, repository)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["base", "--only", "speed"], "--only speed; allowed: extender"),
        (["base", "--rounds", "0"], "1 or more"),
    ],
)
def test_bad_options_are_refused(arguments, said, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert said in capsys.readouterr().err


def test_numbers_are_named_by_their_keys():
    assert flatten_figures({"a": {"b": 1, "c": {"d": 2.5}}, "text": "x", "e": 3}) == {
        "a.b": 1,
        "a.c.d": 2.5,
        "e": 3,
    }


def test_a_ratio_is_of_one_round_and_the_median_of_all():
    rounds = [
        ({"s": 1.0, "idle": 0.0, "nodes": 5, "old": 1}, {"s": 2.0, "idle": 1.0, "nodes": 5}),
        ({"s": 10.0, "idle": 0.0, "nodes": 5, "old": 1}, {"s": 11.0, "idle": 1.0, "nodes": 5}),
        ({"s": 4.0, "idle": 0.0, "nodes": 5, "old": 1}, {"s": 6.0, "idle": 1.0, "nodes": 5}),
    ]

    assert compare(rounds) == {"s": Comparison(base=4, head=6, ratio=1.5, smallest=1.1, largest=2)}
