"""Ratios of the figures of two commits: `python -m benchmarks.compare BASE [HEAD] [--rounds N]`.

A machine has fast and slow phases, so figures of two commits compare only if both were measured in the same
phase. Each commit gets a worktree of its own in a temporary folder, and its own benchmarks run there, with
the packages of this virtual environment. A round runs one benchmark on both commits, one right after the
other, and the commit that goes first changes with each round. A round's ratio is HEAD's figure over BASE's.

The figures are those of a benchmark's last line, which is JSON, and `processor_s`: what the benchmark and all
its processes took together, which compares nothing if the benchmark itself has changed. Figures that only one
of the commits has are left out, and so are those that never differ, such as the number of nodes. The last
line is JSON: by figure the medians of both commits and of the ratios, and the smallest and the largest ratio.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.machine import children_cpu_s, machine, make_parser

BENCHMARKS: Final[Mapping[str, tuple[str, ...]]] = {
    "extender": ("--calls", "200"),
    "queue": (),
    "ask": ("--runs", "1"),
    "node": ("--idle-s", "20", "--rounds", "5", "--restarts", "1"),
    "throughput": ("--pods", "400", "--rounds", "1"),
}
"""The benchmarks that can be compared, and the options that they run with: those that older commits know."""

DEFAULT: Final = "extender,queue,ask,node"
"""The benchmarks that need neither root nor Kubernetes' programs."""

Figures = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Comparison is a figure of two commits: the median of each, and what the ratios of the rounds are."""

    base: float
    head: float
    ratio: float
    smallest: float
    largest: float


def main(arguments: Sequence[str] | None = None, repository: Path = Path()) -> None:
    """Run the benchmarks as the command line says."""
    parser = make_parser("compare", __doc__, rounds=(5, "runs of each benchmark"))
    parser.add_argument("base", help="the commit to compare with")
    parser.add_argument("head", nargs="?", default="HEAD", help="the commit that is compared (default HEAD)")
    parser.add_argument("--only", default=DEFAULT, help=f"of {','.join(BENCHMARKS)} (default %(default)s)")
    options = parser.parse_args(arguments)
    names = options.only.split(",")
    if not set(names) <= set(BENCHMARKS):
        parser.error(f"--only {options.only}; allowed: {', '.join(BENCHMARKS)}, by commas")
    print(machine())
    compared: dict[str, Comparison] = {}
    with check_out(repository, options.base) as base, check_out(repository, options.head) as head:
        for name in names:
            rounds = [
                run_round(name, base, head, swapped=number % 2 == 1) for number in range(options.rounds)
            ]
            found = compare(rounds)
            compared |= {f"{name}.{figure}": comparison for figure, comparison in found.items()}
            for figure, it in found.items():
                print(
                    f"{name}.{figure:32} {it.base:10.3f} -> {it.head:10.3f}"
                    f"  ratio {it.ratio:.2f} ({it.smallest:.2f} to {it.largest:.2f})",
                    flush=True,
                )
    print(json.dumps({figure: asdict(comparison) for figure, comparison in compared.items()}))


@contextmanager
def check_out(repository: Path, commit: str) -> Iterator[Path]:
    """Give a worktree of a commit, compiled, so that its first run takes no longer than the others."""
    with tempfile.TemporaryDirectory(prefix="gp-") as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(repository), "worktree"]
        done = subprocess.run(
            [*git, "add", "--detach", str(tree), commit], check=False, capture_output=True, text=True
        )
        if done.returncode:
            raise SystemExit(f"{commit}: {done.stderr.strip()}")
        try:
            compiling = [sys.executable, "-m", "compileall", "-q", "."]
            subprocess.run(compiling, cwd=tree, env=make_environment(tree), check=True)
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def make_environment(tree: Path) -> dict[str, str]:
    """Make the variables with which Python imports a tree's packages and keeps its bytecode beside it."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": str(tree), "PYTHONPYCACHEPREFIX": str(tree.parent / "bytecode")}


def run_round(name: str, base: Path, head: Path, *, swapped: bool) -> tuple[Figures, Figures]:
    """Run a benchmark on two trees.

    Args:
        swapped: `head` goes first.

    Returns:
        The figures of `base` and of `head`.
    """
    if swapped:
        second = run_benchmark(name, head)
        return run_benchmark(name, base), second
    first = run_benchmark(name, base)
    return first, run_benchmark(name, head)


def run_benchmark(name: str, tree: Path) -> Figures:
    """Run a benchmark of a tree, and return its figures."""
    before = children_cpu_s()
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", *BENCHMARKS[name]],
        cwd=tree,
        env=make_environment(tree),
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"benchmarks.{name} failed:\n{done.stderr.strip()[-2000:]}")
    return {
        **flatten_figures(json.loads(done.stdout.splitlines()[-1])),
        "processor_s": children_cpu_s() - before,
    }


def flatten_figures(value: Any, prefix: str = "") -> dict[str, float]:
    """Name every number of a JSON object by its keys, joined with points."""
    if isinstance(value, dict):
        return {
            name: number
            for key, inner in value.items()
            for name, number in flatten_figures(inner, f"{prefix}.{key}" if prefix else key).items()
        }
    return {prefix: float(value)} if isinstance(value, int | float) else {}


def compare(rounds: Sequence[tuple[Figures, Figures]]) -> dict[str, Comparison]:
    """Compare the figures that every run has and that differ; a figure that is 0 has no ratio."""
    names = [name for name in rounds[0][0] if all(name in run for both in rounds for run in both)]
    compared = {}
    for name in names:
        pairs = [(base[name], head[name]) for base, head in rounds]
        ratios = [head / base for base, head in pairs if base]
        if ratios and len({figure for pair in pairs for figure in pair}) > 1:
            compared[name] = Comparison(
                base=statistics.median(base for base, _ in pairs),
                head=statistics.median(head for _, head in pairs),
                ratio=statistics.median(ratios),
                smallest=min(ratios),
                largest=max(ratios),
            )
    return compared


if __name__ == "__main__":
    main()
