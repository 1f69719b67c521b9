"""`gpupack why`: why a pod is pending, what it has, what happened to it."""

from typing import Any

import click

from gpupack.commands.asking import ask, output_option, source_of, source_options
from gpupack.commands.common import version_option

WHY_HELP = """Say why a pod waits, and what would let it start; of a running pod what it has.

\b
As a kubectl plugin:     kubectl gpupack why -n NAMESPACE POD
From a file, or a pipe:  kubectl get nodes,pods -A -o json | gpupack why -f - POD
For scripts:             gpupack why POD -o json

Every node's reason is filter's own, with its numbers; every way out was tried on the cluster as it is.
It reads Nodes and Pods (and, from a cluster, the pod's Events), and changes nothing. See docs/ask.md.
"""


@click.command(help=WHY_HELP, short_help="Say why a pod is pending, and what would let it start.")
@click.argument("pod", metavar="POD")
@click.option(
    "-n", "--namespace", metavar="NAMESPACE", help="Of the pod. Default: the context's, else default."
)
@source_options
@output_option
@version_option
def why(pod: str, namespace: str | None, output: str, **options: Any) -> None:
    """Say why a pod is as it is."""
    from gpupack.ask.answers import as_json
    from gpupack.ask.fetching import read_about
    from gpupack.ask.rendering import why_text
    from gpupack.ask.why import why as why_of

    source = source_of(options)

    async def work() -> str:
        cluster, around = await read_about(source, namespace, pod)
        answer = why_of(cluster, around.namespace, pod, events=around.events, queued=around.queued)
        return as_json(answer) if output == "json" else why_text(answer)

    click.echo(ask(work))
