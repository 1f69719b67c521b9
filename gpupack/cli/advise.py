"""`gpupack advise`: the shortest list of moves that lets pods start, or empties a card or a node."""

import re
from typing import Any, Final

import click

from gpupack.cli.asking import ask, output_option, source_of, source_options
from gpupack.cli.common import say, version_option

ADVISE_HELP = """Say which pods to move so that others start, or a card or node becomes empty. It moves none.

\b
So that a pod of 40 GiB starts:     gpupack advise --for 40
So that three of 2 x 20 GiB start:  gpupack advise --for 40x3 --cards 2
To empty a card, or a node:         gpupack advise --empty gpu-node-3/0

A move is: a pod is ended, and its controller starts it again elsewhere. Pods without a controller, of
DaemonSets, with volumes of claims, and pods that a PodDisruptionBudget keeps stay. See docs/ask.md.
"""

_FOR: Final = re.compile(r"([1-9][0-9]{0,5})(?:x([1-9][0-9]{0,3}))?")


@click.command(help=ADVISE_HELP, short_help="Say which pods to move so that others start; moves none.")
@click.option("--for", "wanted", metavar="UNITS[xN]", help="N pods that ask for UNITS are to start.")
@click.option("--empty", metavar="CARD|NODE", help="Empty NODE/NUMBER, the card of a UUID, or all of a node.")
@click.option("--cards", type=click.IntRange(1, 64), default=1, show_default=True, help="Cards of a pod.")
@click.option("--model", default="", metavar="LIST", help="As the annotation gpupack.io/gpu-model.")
@click.option("--percent", is_flag=True, help="UNITS are percent of a card.")
@click.option(
    "--max-priority",
    type=int,
    metavar="N",
    help="Pods of a higher priority stay. Default: all but the system's.",
)
@source_options
@output_option
@version_option
def advise(output: str, wanted: str | None, empty: str | None, **options: Any) -> None:
    """Say which pods to move."""
    from gpupack.rebalance.advise import advise_empty, advise_start
    from gpupack.rebalance.planning import SearchLimits
    from gpupack.whatif.answers import add_notes, as_json
    from gpupack.whatif.fetching import read_cluster
    from gpupack.whatif.fit import FitQuestion
    from gpupack.whatif.rendering import format_advice

    if (wanted is None) == (empty is None):
        raise click.UsageError("allowed is one of --for UNITS[xN] and --empty CARD|NODE")
    match = _FOR.fullmatch(wanted) if wanted is not None else None
    if wanted is not None and match is None:
        raise click.BadParameter(f"--for {wanted!r}: allowed is UNITS or UNITSxN, such as 40 or 40x3")
    source = source_of(options)
    limits = (
        SearchLimits()
        if options["max_priority"] is None
        else SearchLimits(max_priority=options["max_priority"])
    )

    async def work() -> str:
        cluster = await read_cluster(source, budgets=True)
        if match is not None:
            size = FitQuestion(int(match[1]), options["cards"], options["model"], options["percent"])
            advice = advise_start(cluster, size, int(match[2] or 1), limits)
        else:
            advice = advise_empty(cluster, empty or "", limits)
        advice = add_notes(advice, cluster.list_omissions())
        return as_json(advice) if output == "json" else format_advice(advice)

    say(ask(work))
