"""`gpupack advise`: a short list of moves that lets pods start, or empties a card or a node."""

import asyncio
import re
import sys
from typing import TYPE_CHECKING, Any, Final

import click

from gpupack.cli.cluster_source import compute_option, read_source, run_question, source_options
from gpupack.cli.common import FAILED, INTERRUPTED, output_option, print_lines, timeout_option, version_option
from gpupack.cli.names import complete_nodes
from gpupack.terminal import wants_colour
from kubeapi.paths import make_collection_path

if TYPE_CHECKING:
    from gpupack.rebalance.apply import AppliedAdvice, ApplyOptions
    from gpupack.rebalance.planning import SearchLimits
    from gpupack.whatif.answers import Advice
    from gpupack.whatif.cluster import Cluster
    from gpupack.whatif.fetching import ClusterSource

ADVISE_HELP = """Say which pods to move so that others start, or a card or node becomes empty.

Without --apply nothing is moved.

\b
So that a pod of 40 GiB starts:     gpupack advise --for 40
So that three of 2 x 20 GiB start:  gpupack advise --for 40x3 --cards 2
To empty a card, or a node:         gpupack advise --empty gpu-node-3/0
To make the moves, one by one:      gpupack advise --for 40 --apply

A move evicts a pod, and its ReplicaSet or StatefulSet replaces it elsewhere. These stay: pods of other
controllers and of none, of gangs, with volumes of claims, and pods that a PodDisruptionBudget protects. See
docs/ask.md.
"""

_FOR: Final = re.compile(r"([1-9][0-9]{0,5})(?:x([1-9][0-9]{0,3}))?")


@click.command(help=ADVISE_HELP, short_help="Say which pods to move so that others start, or move them.")
@click.option("--for", "wanted", metavar="UNITS[xN]", help="N pods that ask for UNITS are to start.")
@click.option(
    "--empty",
    metavar="CARD|NODE",
    help="Empty NODE/NUMBER, the card of a UUID or its beginning, or all of a node.",
    shell_complete=complete_nodes,
)
@click.option("--cards", type=click.IntRange(1, 64), default=1, show_default=True, help="Cards of a pod.")
@click.option("--model", default="", metavar="LIST", help="As the annotation gpupack.io/gpu-model.")
@click.option("--percent", is_flag=True, help="UNITS are percent of a card.")
@compute_option
@click.option(
    "--max-priority",
    type=int,
    metavar="N",
    help="Pods of a higher priority stay. Default: all but the system's.",
)
@click.option(
    "--apply", "applies", is_flag=True, help="Make the moves: evict each pod, wait for its successor."
)
@click.option("--dry-run", is_flag=True, help="With --apply: only ask whether each eviction is allowed.")
@timeout_option("With --apply: for each move, beside the pod's grace period.")
@source_options
@output_option("text", "json")
@version_option
def advise(
    output: str,
    wanted: str | None,
    empty: str | None,
    applies: bool,
    dry_run: bool,
    timeout_s: float,
    **options: Any,
) -> None:
    from gpupack.encodings import as_json
    from gpupack.rebalance.planning import SearchLimits
    from gpupack.whatif.rendering import format_advice

    if (wanted is None) == (empty is None):
        raise click.UsageError("allowed: one of --for UNITS[xN] and --empty CARD|NODE")
    if dry_run and not applies:
        raise click.UsageError("--dry-run is for --apply: without that nothing is changed")
    if applies and options["filename"] is not None:
        raise click.UsageError("--apply is for a cluster: leave it out with --filename")
    pods = None if wanted is None else _read_size(wanted)
    source = read_source(options)
    most = options["max_priority"]
    limits = SearchLimits() if most is None else SearchLimits(max_priority=most)

    async def find() -> "tuple[Cluster, Advice]":
        return await _find(source, pods, empty or "", limits, options)

    if not applies:
        _, advice = run_question(find)
        if output == "json":
            print_lines(as_json(advice))
        else:
            click.echo(format_advice(advice, colour=wants_colour()))
        return

    from gpupack.rebalance.apply import ApplyOptions

    how = ApplyOptions(dry_run=dry_run, timeout_s=timeout_s, keeps_cordon=empty is not None)

    async def make() -> "AppliedAdvice":
        cluster, advice = await find()
        if output != "json":
            click.echo(format_advice(advice, planned=True, colour=wants_colour()))
        return await _apply(source, cluster, advice, limits, how, quiet=output == "json")

    done = run_question(make)
    print_lines(as_json(done) if output == "json" else _describe_done(done))
    if done.state == "stopped":
        sys.exit(FAILED)


def _read_size(text: str) -> tuple[int, int]:
    """Read UNITS[xN]: units of a pod, and how many such pods."""
    match = _FOR.fullmatch(text)
    if match is None:
        raise click.BadParameter(
            f"--for {text!r}; allowed: UNITS or UNITSxN, such as 40 or 40x3,"
            " with UNITS up to 999999 and N up to 9999"
        )
    return int(match[1]), int(match[2] or 1)


async def _find(
    source: "ClusterSource",
    pods: tuple[int, int] | None,
    empty: str,
    limits: "SearchLimits",
    options: dict[str, Any],
) -> "tuple[Cluster, Advice]":
    """Find the moves for pods of a size, None: to empty a card or node."""
    from gpupack.rebalance.advise import advise_empty, advise_start
    from gpupack.whatif.answers import add_notes
    from gpupack.whatif.fetching import read_cluster
    from gpupack.whatif.fit import FitQuestion

    cluster = await read_cluster(source, moves=True)
    if pods is None:
        advice = advise_empty(cluster, empty, limits)
    else:
        size = FitQuestion(
            pods[0], options["cards"], options["model"], options["percent"], compute=options["compute"]
        )
        advice = advise_start(cluster, size, pods[1], limits)
    return cluster, add_notes(advice, cluster.list_omissions())


async def _apply(
    source: "ClusterSource",
    cluster: "Cluster",
    advice: "Advice",
    limits: "SearchLimits",
    options: "ApplyOptions",
    *,
    quiet: bool,
) -> "AppliedAdvice":
    """Make the moves; a signal ends it between two writes, and cards are given back."""
    from gpupack.cordon import Cordoner
    from gpupack.inventory.fetching import connect, list_all
    from gpupack.rebalance.apply import MoveApplier
    from gpupack.signals import cancel_on_signals
    from gpupack.whatif.fetching import list_cluster
    from kubeapi.objects import Pod

    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - a coroutine runs in a task
    async with await connect(source.kubeconfig, source.context) as client:
        applier = MoveApplier(
            api=client,
            read=lambda: list_cluster(client, source, moves=True),
            list_pods=lambda namespace: list_all(
                client, make_collection_path(namespace, "pods"), Pod, "pods"
            ),
            cordon=Cordoner(client).apply,
            limits=limits,
            options=options,
            report=(lambda _line: None) if quiet else print_lines,
        )
        try:
            with cancel_on_signals(task):
                return await applier.apply(cluster, advice)
        except asyncio.CancelledError:
            left = applier.list_cordoned()
            told = _describe_cordoned(left) if left else "Cordoned cards were given back."
            print_lines(f"interrupted: no further pod is moved. {told}", err=True)
            sys.exit(INTERRUPTED)


def _describe_done(done: "AppliedAdvice") -> str:
    lines = ["", f"{done.text}."]
    if done.left:
        lines += ["Not done:", *(f"  {move.text}" for move in done.left)]
    if done.cordoned:
        lines.append(_describe_cordoned(done.cordoned, sure=done.state == "done"))
    return "\n".join(lines)


def _describe_cordoned(cards: tuple[str, ...], *, sure: bool = False) -> str:
    stay = "stay cordoned" if sure else "are cordoned, or may be"
    return f"These cards {stay}, until gpupack uncordon: {', '.join(cards)}"
