"""`gpupack top`: every card of the cluster."""

import asyncio
import gc
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from allocator.names import QUEUE_SERVICE, SYSTEM_NAMESPACE
from gpupack.cli.cluster_source import exit_with_refusal
from gpupack.cli.common import (
    cluster_options,
    exit_on_faults,
    file_option,
    output_option,
    refuse_beside_file,
    version_option,
)
from gpupack.cli.names import complete_nodes
from gpupack.helptexts import TOP_HELP
from gpupack.terminal import wants_colour

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpupack.inventory import NodeRow


@click.command(help=TOP_HELP, short_help="Show every card of the cluster: used and size.")
@click.argument("nodes", metavar="[NODE]...", nargs=-1, shell_complete=complete_nodes)
@file_option(
    "Output of `kubectl get nodes -o json` or, which --pods needs, `kubectl get nodes,pods -A -o json`. "
    "Default: ask the cluster."
)
@output_option("table", "wide", "json")
@click.option("--pods", is_flag=True, help="Show the pods on each card.")
@click.option("--queues", is_flag=True, help="Also the queues and who waits in them; JSON is an object then.")
@click.option(
    "--queue-service",
    metavar="NAMESPACE/NAME",
    default=f"{SYSTEM_NAMESPACE}/{QUEUE_SERVICE}",
    show_default=True,
    help="The queue's Service.",
)
@click.option(
    "--telemetry/--no-telemetry",
    default=None,
    help="Ask the node daemons what each card does, which needs the right to get pods/proxy. "
    "Default: with -o wide only.",
)
@click.option("-w", "--watch", is_flag=True, help="Show them again whenever something has changed.")
@cluster_options
@version_option
def top(**options: Any) -> None:
    refuse_beside_file(options, "watch", "context", "kubeconfig", "queues", "telemetry")
    has_column = options["output"] == "json" or (options["output"] == "wide" and not options["pods"])
    if options["telemetry"] and not has_column:
        raise click.UsageError("--telemetry is for -o wide without --pods, and for -o json")
    if options["queues"] and options["watch"]:
        raise click.UsageError("--queues is asked once: leave it out with --watch")
    with exit_on_faults(exit_with_refusal):
        text = _watched(options) if options["watch"] else _text(options)
    if text:
        click.echo(text)


def _text(options: dict[str, Any]) -> str:
    from gpupack.encodings import read_input
    from gpupack.inventory import build_rows, fetch, load_nodes, render
    from gpupack.inventory.objects import CLAIMS_NOT_READ

    names, pods, filename = options["nodes"], options["pods"], options["filename"]
    # The process ends with the answer: collecting would only walk every node and pod again and again.
    gc.disable()
    if filename is None:
        found = asyncio.run(fetch(options["kubeconfig"], names, pods=pods, context=options["context"]))
        rows, problem = _with_telemetry(build_rows(found, names), options)
    else:
        found = read_input(filename, partial(load_nodes, pods=pods))
        rows, problem = build_rows(found, names), ""
    if found.claims is None:
        problem = f"{problem}\n{CLAIMS_NOT_READ}".lstrip()
    look = {"pods": pods, "colour": wants_colour()}
    queues = options["queues"]
    text = _with_queues(rows, options, look) if queues else render(rows, options["output"], **look)
    if problem and options["output"] == "json":
        click.echo(problem, err=True)
    return f"{text}\n{problem}" if problem and options["output"] != "json" else text


def _asks_for_telemetry(options: dict[str, Any]) -> bool:
    wanted: bool | None = options["telemetry"]
    if wanted is None:
        return options["output"] == "wide" and not options["pods"]
    return wanted


def _get_namespace(options: dict[str, Any]) -> str:
    """Get the namespace of the installation: the queue's Service stands where the daemons run."""
    return str(options["queue_service"]).partition("/")[0]


def _with_telemetry(rows: "Sequence[NodeRow]", options: dict[str, Any]) -> "tuple[Sequence[NodeRow], str]":
    """Add what the cards do, where it is asked for; what is not known of it comes back in a sentence."""
    from gpupack.inventory.fetching import connect
    from gpupack.inventory.telemetry import add_telemetry, fetch_telemetry

    if not _asks_for_telemetry(options):
        return rows, ""

    async def ask() -> "tuple[Sequence[NodeRow], str]":
        async with await connect(options["kubeconfig"], options["context"]) as client:
            nodes = [row.node for row in rows if row.cards]
            found = await fetch_telemetry(client, nodes, _get_namespace(options))
            return add_telemetry(rows, found), found.problem

    return asyncio.run(ask())


def _with_queues(nodes: "Sequence[NodeRow]", options: dict[str, Any], look: dict[str, bool]) -> str:
    """Write nodes, then queues and the pods that wait: as tables, or as one JSON object."""
    import msgspec

    from gpupack import queuestatus
    from gpupack.encodings import as_json
    from gpupack.inventory.as_json import build_records
    from gpupack.inventory.rendering import render

    namespace, _, service = options["queue_service"].partition("/")
    if not namespace or not service:
        raise click.UsageError(
            f"--queue-service is {options['queue_service']!r}; allowed: NAMESPACE/NAME of a Service"
        )
    raw = asyncio.run(queuestatus.fetch(options["kubeconfig"], options["context"], namespace, service))
    status = queuestatus.read(raw)
    if options["output"] != "json":
        return f"{render(nodes, options['output'], **look)}\n\n{queuestatus.render(status, pods=True)}"
    answer = {"nodes": build_records(nodes, pods=look["pods"]), "queue": msgspec.to_builtins(status)}
    return as_json(answer)


def _watched(options: dict[str, Any]) -> str:
    """Write every state until somebody ends it."""
    from gpupack.inventory.rendering import RenderOptions
    from gpupack.inventory.watch_rows import watch
    from gpupack.logs import configure

    configure("critical")  # what is wrong is said below the rows
    look = RenderOptions(options["output"], options["pods"], wants_colour())
    telemetry = _asks_for_telemetry(options)
    asyncio.run(
        watch(
            options["kubeconfig"],
            options["nodes"],
            look,
            context=options["context"],
            telemetry=telemetry,
            daemons_in=_get_namespace(options),
        )
    )
    return ""
