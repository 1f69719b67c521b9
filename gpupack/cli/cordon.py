"""`gpupack cordon` and `gpupack uncordon`: keep cards free of new pods, and give them back."""

import asyncio
from typing import TYPE_CHECKING, Any, Final

import click

from allocator.texts import count_of
from gpupack.cli.common import cluster_options, exit_on_faults, join_options, print_lines, version_option
from gpupack.cli.names import complete_nodes

if TYPE_CHECKING:
    from gpupack.cordon import CordonOutcome, CordonRequest

CORDON_HELP: Final = """Keep cards of a node free of new pods; those that run there run on.

\b
  kubectl gpupack cordon NODE 3 --reason "ECC errors, ticket 4711"
  kubectl gpupack cordon NODE GPU-5a1c GPU-77f0     # the beginning of a UUID will do
  kubectl gpupack cordon NODE --all
  kubectl gpupack top NODE -o wide                  # shows indexes, UUIDs, and what is cordoned

CARD is the driver's index, a UUID, or the beginning of one that no other card of the node has. The cards
stand in the node's annotation gpupack.io/cordon. For the whole node there is kubectl cordon.

Needed rights: get and patch nodes.
"""
UNCORDON_HELP: Final = """Give cards back that `gpupack cordon` keeps free of new pods.

\b
  kubectl gpupack uncordon NODE 3
  kubectl gpupack uncordon NODE --all

CARD is the driver's index, a UUID, or the beginning of one. Needed rights: get and patch nodes.
"""


_options = join_options(
    click.argument("node", shell_complete=complete_nodes),
    click.argument("cards", nargs=-1, metavar="[CARD]..."),
    click.option("--all", "every", is_flag=True, help="All cards of the node, in place of CARD."),
    click.option("--dry-run", is_flag=True, help="Say what would be done, and change nothing."),
    cluster_options,
    version_option,
)


@click.command(help=CORDON_HELP, short_help="Keep cards of a node free of new pods.")
@click.option("--reason", default="", metavar="TEXT", help="Why, for others; `top -o wide` shows it.")
@_options
def cordon(reason: str, **options: Any) -> None:
    _change(options, reason, cordon=True)


@click.command(help=UNCORDON_HELP, short_help="Give cordoned cards back.")
@_options
def uncordon(**options: Any) -> None:
    _change(options, "", cordon=False)


def _change(options: dict[str, Any], reason: str, *, cordon: bool) -> None:
    from gpupack.cordon import CordonRequest

    if bool(options["cards"]) == options["every"]:
        raise click.UsageError("name the cards of the node, or give --all; allowed: one of the two")
    with exit_on_faults():
        outcomes = asyncio.run(_apply(CordonRequest(cordon, options["cards"], reason), options))
    for outcome in outcomes:
        print_lines(_describe_outcome(options["node"], outcome, cordon=cordon, dry_run=options["dry_run"]))
    if not outcomes:
        print_lines(f"node/{options['node']}: no card is cordoned")


async def _apply(request: "CordonRequest", options: dict[str, Any]) -> "tuple[CordonOutcome, ...]":
    from gpupack.cordon import Cordoner
    from gpupack.inventory.fetching import connect

    async with await connect(options["kubeconfig"], options["context"]) as client:
        return await Cordoner(client, dry_run=options["dry_run"]).apply(options["node"], request)


def _describe_outcome(node: str, outcome: "CordonOutcome", *, cordon: bool, dry_run: bool) -> str:
    """Write what became of a card, in the words of `kubectl cordon`."""
    card = "card" if outcome.index is None else f"card {outcome.index}"
    text = f"node/{node} {card} {outcome.uuid} {'' if outcome.changed else 'already '}"
    text += "cordoned" if cordon else "uncordoned"
    if cordon and outcome.pods:
        text += f"; {count_of(outcome.pods, 'pod')} there run{'s' * (outcome.pods == 1)} on"
    if outcome.cordoned_with:
        text += f"; it stays cordoned with its card {outcome.cordoned_with}"
    return text + (" (dry run)" if dry_run else "")
