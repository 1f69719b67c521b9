"""`gpupack fit`: how many pods of a size fit, and where."""

from typing import TYPE_CHECKING, Any

import click

from gpupack.cli.cluster_source import (
    ask_where_forbidden,
    compute_option,
    read_source,
    run_question,
    source_options,
)
from gpupack.cli.common import output_option, print_lines, version_option
from gpupack.cli.names import complete_nodes

if TYPE_CHECKING:
    from gpupack.whatif.fit import FitQuestion

FIT_HELP = """Say how many pods of UNITS of GPU memory fit now, and where; and the largest request that fits.

\b
Pods of 8 GiB:                   gpupack fit 8
Of 2 x 40 GiB on cards A100:     gpupack fit 80 --cards 2 --model '*A100*'
Of half a card:                  gpupack fit 50 --percent
Of 8 GiB and 30 % of the compute: gpupack fit 8 --compute 30
Of three containers:             gpupack fit 40 40 80 --percent
A gang of 4 pods of 40 GiB:      gpupack fit 40 --gang 4
What if a node were gone:        gpupack fit 8 --without gpu-node-3
What if two nodes were added:    gpupack fit 8 --add 8xh100-80x2

Nodes that are not Ready, cordoned or in trouble are left out. It reads Nodes and Pods, and changes nothing.
See docs/ask.md.
"""


@click.command(help=FIT_HELP, short_help="Say how many pods of a size fit now, and where.")
@click.argument("units", type=int, metavar="UNITS...", nargs=-1, required=True)
@click.option(
    "--cards", type=click.IntRange(1, 64), default=1, show_default=True, help="Cards of each container."
)
@click.option("--model", default="", metavar="LIST", help="As the annotation gpupack.io/gpu-model.")
@click.option("--mixed-models", is_flag=True, help="Cards of one container may be of several models.")
@click.option(
    "--containers",
    type=click.Choice(["same-card", "apart"]),
    help="Where several containers go, as the annotation gpupack.io/containers.",
)
@click.option("--percent", is_flag=True, help="UNITS are percent of a card.")
@compute_option
@click.option(
    "--gang",
    type=click.IntRange(2),
    metavar="PODS",
    help="Say whether so many pods fit at once, as those of a gang must.",
)
@click.option(
    "--without",
    multiple=True,
    metavar="NODE",
    help="As if this node were gone; may be repeated.",
    shell_complete=complete_nodes,
)
@click.option(
    "--add",
    multiple=True,
    metavar="PROFILE[xN]",
    help="As if N empty nodes of a profile of `gpupack node --profile` were there; may be repeated.",
)
@click.option(
    "-n",
    "--namespace",
    metavar="NAMESPACE",
    help="Whose member asks, where you may not list nodes. Default: the context's, else default.",
)
@source_options
@output_option("text", "json")
@version_option
def fit(output: str, **options: Any) -> None:
    from gpupack.encodings import as_json
    from gpupack.whatif.answers import FitAnswer
    from gpupack.whatif.changes import apply_changes
    from gpupack.whatif.fetching import read_cluster
    from gpupack.whatif.fit import FitQuestion
    from gpupack.whatif.fit import answer_fit as fit_of
    from gpupack.whatif.rendering import format_fit
    from kubeapi.errors import Forbidden

    source = read_source(options)
    first, *more = options["units"]
    asked = FitQuestion(
        first,
        options["cards"],
        options["model"],
        options["percent"],
        tuple(more),
        options["mixed_models"],
        options["containers"] or "",
        options["gang"] or 0,
        options["compute"],
    )

    async def work() -> str:
        try:
            cluster = await read_cluster(source)
        except Forbidden as refusal:
            if options["without"] or options["add"]:
                raise
            answer, _ = await ask_where_forbidden(
                refusal, source, options["namespace"], "fit", _write_query(asked), FitAnswer
            )
        else:
            changed, notes = apply_changes(cluster, options["without"], options["add"])
            answer = fit_of(cluster, asked, changed, notes)
        return as_json(answer) if output == "json" else format_fit(answer)

    print_lines(run_question(work))


def _write_query(asked: "FitQuestion") -> dict[str, str | int]:
    """Write a question in the way that gpupack in the cluster reads it."""
    query: dict[str, str | int] = {
        "units": ",".join(map(str, (asked.units, *asked.more))),
        "cards": asked.cards,
        "model": asked.model,
        "percent": int(asked.percent),
        "mixed-models": int(asked.mixed_models),
        "containers": asked.containers,
        "gang": asked.gang,
        "compute": asked.compute,
    }
    return {name: value for name, value in query.items() if value}
