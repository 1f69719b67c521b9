"""`gpupack top`: every card of the cluster."""

import asyncio
import sys
from pathlib import Path

import click

from gpupack.commands.common import FAILED, fail, version_option
from gpupack.helptexts import TOP_HELP


@click.command(help=TOP_HELP)
@click.option(
    "-f",
    "--filename",
    metavar="FILE|-",
    help="Output of `kubectl get nodes -o json`; default: ask the cluster.",
)
@click.option(
    "-o", "--output", type=click.Choice(["table", "wide", "json"]), default="table", show_default=True
)
@click.option("--kubeconfig", metavar="FILE", help="Default: $KUBECONFIG, ~/.kube/config, in-cluster.")
@version_option
def top(filename: str | None, output: str, kubeconfig: str | None) -> None:
    """Show every card of the cluster."""
    from typing import cast

    from gpupack import top as tables
    from gpupack.errors import InputError
    from kubeapi.errors import ConfigError, KubeApiError

    try:
        if filename is None:
            nodes = asyncio.run(tables.fetch(kubeconfig))
        else:
            raw = sys.stdin.buffer.read() if filename == "-" else Path(filename).read_bytes()
            nodes = tables.load_nodes(raw)
        text = tables.render(tables.rows(nodes), cast("tables.Output", output), colour=sys.stdout.isatty())
    except (InputError, ConfigError, OSError) as error:
        fail(error)
    except KubeApiError as error:
        fail(error, FAILED)
    click.echo(text)
