"""Which way to share a card: two programs on it at once, side by side and under MPS.

`python -m benchmarks.sharing [--framework torch] [--seconds S]`, as root on a node whose only card is idle.
The programs (`benchmarks.sharing_program`) have what gpupack gives the containers of two pods with half of
the card each. They are processes of the machine: no image with a framework is needed. For each framework and
each way it measures

- two training loops: the steps of both, in percent of those of one that has the card alone;
- a small inference, with a pause after each answer, beside a training loop: how long its answers take,
  and what is left of the training.

The ways are: alone, time-sliced, MPS with limits of memory, MPS with limits of the multiprocessors, too.

It says what is missing and leaves out what needs it. `--framework python` is a trial of the benchmark itself
on the processor. The last line is JSON.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.machine import machine, make_parser, percentile
from deviceplugin.enforcement.mps_clients import share_of_compute
from deviceplugin.errors import GpuError
from deviceplugin.gpus.api.source import GpuCard
from deviceplugin.gpus.nvidia.mps.folder import CardFolder
from deviceplugin.gpus.nvidia.mps.grants import grant_client
from deviceplugin.gpus.nvidia.mps.options import PROGRAM as MPS_PROGRAM
from deviceplugin.gpus.nvidia.source import NvmlGpus

WORKLOAD: Final = Path(__file__).with_name("sharing_program.py")
START_S: Final = 120.0
MIB_PER_GIB: Final = 1024
TRAIN, INFER = "train", "infer"
WITHOUT_CARD: Final = "python"
PERCENTILES: Final = (50, 95, 99)


class Run(NamedTuple):
    """What one program did.

    Attributes:
        rate: steps a second.
        percentiles_ms: of the time of a step, see `PERCENTILES`.
    """

    rate: float
    percentiles_ms: tuple[float, ...]


class Row(NamedTuple):
    """What one way to share a card makes of two programs on it.

    Attributes:
        trainings_percent: of two training loops, each; of one that has the card alone.
        training_percent: of one beside an inference.
        inference: that one.
    """

    way: str
    trainings_percent: tuple[float, ...]
    training_percent: float | None
    inference: Run


class Program:
    """A program that runs and is ready to work.

    Raises:
        RuntimeError: it ends before it is ready, or has not found the card; carries why.
    """

    def __init__(self, python: str, framework: str, kind: str, variables: Mapping[str, str]) -> None:
        # Another environment's Python may have the framework.
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - `end` closes it
        self._process = subprocess.Popen(
            [python, str(WORKLOAD), framework, kind],
            env={**kept, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        if self._read()["device"] == "cpu":
            self.end()
            raise RuntimeError("it does not find the card and uses the processor")

    def begin(self, seconds: float) -> None:
        """Let it work for so long."""
        into = self._process.stdin
        assert into is not None
        into.write(f"{seconds}\n")
        into.flush()

    def result(self) -> Run:
        """Wait until it has worked."""
        took_ms = [1000 * each for each in self._read()["took_s"]]
        whole_s = sum(took_ms) / 1000
        return Run(len(took_ms) / whole_s, tuple(percentile(took_ms, each) for each in PERCENTILES))

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def _read(self) -> dict[str, Any]:
        out = self._process.stdout
        assert out is not None
        line = out.readline()
        if not line:
            self._errors.seek(0)
            said = self._errors.read().strip().splitlines()
            self.end()
            raise RuntimeError(said[-1] if said else "it ended without a word")
        return dict(json.loads(line))


def work_together(
    python: str, framework: str, programs: Sequence[tuple[str, Mapping[str, str]]], seconds: float
) -> list[Run]:
    """Run programs at the same time, each of a kind and with its own variables, all of them ready before.

    Raises:
        RuntimeError: one of them cannot work.
    """
    with ExitStack() as stack:
        ready = []
        for kind, variables in programs:
            ready.append(Program(python, framework, kind, variables))
            stack.callback(ready[-1].end)
        for program in ready:
            program.begin(seconds)
        return [program.result() for program in ready]


def measure_framework(
    python: str, framework: str, ways: Mapping[str, Mapping[str, str]], seconds: float
) -> list[Row]:
    """Measure a framework in each way, and alone.

    Args:
        ways: variables of a container with half of the card, by the name of the way.

    Raises:
        RuntimeError: its programs cannot work.
    """

    def run(*kinds: str, variables: Mapping[str, str]) -> list[Run]:
        return work_together(python, framework, [(kind, variables) for kind in kinds], seconds)

    (training,), (inference,) = run(TRAIN, variables={}), run(INFER, variables={})

    def of_alone(found: Run) -> float:
        return 100 * found.rate / training.rate

    rows = [Row("alone", (100.0,), None, inference)]
    for way, variables in ways.items():
        both = run(TRAIN, TRAIN, variables=variables)
        beside, answers = run(TRAIN, INFER, variables=variables)
        rows.append(Row(way, tuple(map(of_alone, both)), of_alone(beside), answers))
    return rows


def table(framework: str, rows: Sequence[Row]) -> list[str]:
    """Write the rows as Markdown, as docs/hardware/proving.md shows them."""
    heads = ["two trainings, % of alone", "together", *(f"inference p{each}, ms" for each in PERCENTILES)]
    lines = [f"| {framework} | {' | '.join(heads)} | training beside it, % of alone |", "|---" * 7 + "|"]
    for row in rows:
        cells = [
            " and ".join(f"{each:.0f}" for each in row.trainings_percent),
            f"{sum(row.trainings_percent):.0f}",
            *(f"{each:.2f}" for each in row.inference.percentiles_ms),
            "-" if row.training_percent is None else f"{row.training_percent:.0f}",
        ]
        lines.append(f"| {row.way} | {' | '.join(cells)} |")
    return lines


def find_card() -> GpuCard:
    """Find the card.

    Raises:
        GpuError: there is none, or more than one.
    """
    source = NvmlGpus()
    source.open()
    try:
        cards = source.cards()
    finally:
        source.close()
    if len(cards) != 1 or cards[0].error is not None:
        raise GpuError(f"{len(cards)} cards; allowed: 1 that can be used")
    return cards[0]


@contextmanager
def serving_mps(card: GpuCard) -> Iterator[tuple[CardFolder, Path]]:
    """Run `gpupack mps`: the card's folder, and that of all cards.

    Raises:
        RuntimeError: it does not answer.
    """
    with tempfile.TemporaryDirectory(prefix="gp-") as name:
        root = Path(name)
        with subprocess.Popen([sys.executable, "-m", "gpupack", "mps", "--root", name]) as mps:
            try:
                folder, end_s = CardFolder(root, card.uuid), time.monotonic() + START_S
                while not (folder.path.exists() and folder.state() is not None):
                    if mps.poll() is not None or time.monotonic() > end_s:
                        raise RuntimeError("gpupack mps does not serve the card")
                    time.sleep(0.1)
                yield folder, root
            finally:
                mps.terminate()


def mps_variables(folder: CardFolder, root: Path, card: GpuCard, *, threads: bool) -> dict[str, str]:
    """Return what a container with half of the card is given; its paths are the machine's here."""
    half_mib = card.schedulable_mib // 2 // MIB_PER_GIB * MIB_PER_GIB
    compute = share_of_compute(half_mib, card.schedulable_mib) if threads else 0
    grant = grant_client(folder, root, half_mib, compute)
    return {**grant.envs, "CUDA_MPS_PIPE_DIRECTORY": str(folder.pipe)}


def measure(python: str, frameworks: Sequence[str], seconds: float) -> tuple[dict[str, list[Row]], list[str]]:
    """Measure everything that can be measured here; the second list says what is missing."""
    measured: dict[str, list[Row]] = {}
    missing: list[str] = []
    # Else JAX takes three quarters of the card when it starts.
    common = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    ways: dict[str, Mapping[str, str]] = {"time-sliced": common}
    card = None
    try:
        card = find_card()
    except GpuError as error:
        missing.append(f"a card: {error}")
    with ExitStack() as stack:
        if card is not None and shutil.which(MPS_PROGRAM) is None:
            missing.append(f"MPS: there is no {MPS_PROGRAM}")
        elif card is not None:
            folder, root = stack.enter_context(serving_mps(card))
            for way, threads in (("MPS", False), ("MPS with half of the multiprocessors", True)):
                ways[way] = common | mps_variables(folder, root, card, threads=threads)
        for framework in frameworks:
            if card is None and framework != WITHOUT_CARD:
                missing.append(f"{framework}: it needs the card")
                continue
            try:
                measured[framework] = measure_framework(python, framework, ways, seconds)
            except RuntimeError as error:
                missing.append(f"{framework} in {python}: {error}")
    return measured, missing


def figures(measured: Mapping[str, Sequence[Row]], missing: Sequence[str]) -> dict[str, Any]:
    """What the last line says; people script against its keys."""
    rows = {
        framework: {
            row.way: {
                "trainings_percent": [round(each, 1) for each in row.trainings_percent],
                "training_percent": row.training_percent and round(row.training_percent, 1),
                **{
                    f"inference_p{each}_ms": round(value, 3)
                    for each, value in zip(PERCENTILES, row.inference.percentiles_ms, strict=True)
                },
            }
            for row in found
        }
        for framework, found in measured.items()
    }
    return {"frameworks": rows, "missing": list(missing)}


def main() -> int:
    """Run the benchmark as its command line says; the status is 1 where nothing could be measured."""
    parser = make_parser("sharing", __doc__)
    parser.add_argument(
        "--framework",
        action="append",
        choices=("torch", "jax", WITHOUT_CARD),
        help="may be given again; default torch and jax",
    )
    parser.add_argument("--python", default=sys.executable, help="a Python that has the frameworks")
    parser.add_argument("--seconds", type=float, default=20, help="seconds of each measurement (default 20)")
    options = parser.parse_args()
    if options.seconds <= 0:
        parser.error("--seconds must be more than 0")
    print(machine())
    measured, missing = measure(options.python, options.framework or ["torch", "jax"], options.seconds)
    for framework, rows in measured.items():
        print(*table(framework, rows), "", sep="\n")
    for each in missing:
        print(f"missing: {each}")
    print(json.dumps(figures(measured, missing)))
    return 0 if measured else 1


if __name__ == "__main__":
    sys.exit(main())
