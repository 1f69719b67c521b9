"""`gpupack top`: every card of the cluster."""

import asyncio
import gc
import sys
from pathlib import Path
from typing import Any

import click

from gpupack.commands.common import FAILED, context_option, fail, version_option
from gpupack.helptexts import TOP_HELP


@click.command(help=TOP_HELP)
@click.argument("nodes", metavar="[NODE]...", nargs=-1)
@click.option(
    "-f",
    "--filename",
    metavar="FILE|-",
    help="Output of `kubectl get nodes -o json`; with --pods of `kubectl get nodes,pods -A -o json`. "
    "Default: ask the cluster.",
)
@click.option(
    "-o", "--output", type=click.Choice(["table", "wide", "json"]), default="table", show_default=True
)
@click.option("--pods", is_flag=True, help="Show the pods on each card.")
@click.option("-w", "--watch", is_flag=True, help="Show them again whenever something has changed.")
@click.option(
    "--kubeconfig",
    metavar="FILE",
    help="Default: $KUBECONFIG (several files are merged), ~/.kube/config, in-cluster.",
)
@context_option
@version_option
def top(**options: Any) -> None:
    """Show every card of the cluster."""
    from gpupack.errors import InputError
    from kubeapi.errors import ConfigError, KubeApiError

    if options["filename"] is not None:
        for name in ("watch", "context", "kubeconfig"):
            if options[name]:
                raise click.UsageError(f"--{name} is for a cluster: leave it out with --filename")
    try:
        text = _watched(options) if options["watch"] else _text(options)
    except (InputError, ConfigError, OSError) as error:
        fail(error)
    except KubeApiError as error:
        fail(error, FAILED)
    if text:
        click.echo(text)


def _text(options: dict[str, Any]) -> str:
    """Write what is there now."""
    from gpupack.top import fetch, load_nodes, render, rows

    names, pods, filename = options["nodes"], options["pods"], options["filename"]
    # The process ends with the answer: collecting would only walk every node and pod again and again.
    gc.disable()
    if filename is None:
        found = asyncio.run(fetch(options["kubeconfig"], names, pods=pods, context=options["context"]))
    else:
        raw = sys.stdin.buffer.read() if filename == "-" else Path(filename).read_bytes()
        found = load_nodes(raw, pods=pods)
    return render(rows(found, names), options["output"], pods=pods, colour=sys.stdout.isatty())


def _watched(options: dict[str, Any]) -> str:
    """Write every state until somebody ends it."""
    from gpupack.logs import configure
    from gpupack.top.rendering import Look
    from gpupack.top.watching import watch

    configure("critical")  # what is wrong is said below the rows
    look = Look(options["output"], options["pods"], sys.stdout.isatty())
    asyncio.run(watch(options["kubeconfig"], options["nodes"], look, context=options["context"]))
    return ""
