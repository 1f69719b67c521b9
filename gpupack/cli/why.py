"""`gpupack why`: why a pod is pending, what it has, what happened to it."""

import time
from typing import TYPE_CHECKING, Any, Final

import click

from gpupack.cli.cluster_source import (
    ask_where_forbidden,
    read_source,
    run_question,
    source_options,
)
from gpupack.cli.common import output_option, print_lines, version_option
from gpupack.cli.names import complete_pods
from gpupack.terminal import wants_colour

if TYPE_CHECKING:
    from gpupack.diagnose.listing import Workload
    from gpupack.whatif.fetching import ClusterSource

_KINDS: Final = ("pod", "pods", "po")
"""What stands before a slash where kubectl names a pod."""

WHY_HELP = """Say why a pod waits, and what would let it start; of a running pod what it has.

\b
As a kubectl plugin:     kubectl gpupack why -n NAMESPACE POD
The same in one word:    kubectl gpupack why NAMESPACE/POD
All pods that wait:      kubectl gpupack why
Those of a workload:     kubectl gpupack why -n NAMESPACE deploy/NAME
From a file, or a pipe:  kubectl get nodes,pods -A -o json | gpupack why -f - POD
For scripts:             gpupack why POD -o json

Every node's reason is filter's own, with its numbers; every way out was tried on the cluster as it is.
It reads Nodes and Pods (and, from a cluster, the pod's Events), and changes nothing. See docs/ask.md.
"""


@click.command(help=WHY_HELP, short_help="Say why a pod is pending, and what would let it start.")
@click.argument("pod", metavar="[POD|KIND/NAME]", required=False, shell_complete=complete_pods)
@click.option(
    "-n",
    "--namespace",
    metavar="NAMESPACE",
    help="Of the pod or workload. Default: the context's, else default; for the list of who waits all.",
)
@source_options
@output_option("text", "json")
@version_option
def why(pod: str | None, namespace: str | None, output: str, **options: Any) -> None:
    import msgspec

    from gpupack.diagnose.listing import parse_workload
    from gpupack.diagnose.why import explain_pod as why_of
    from gpupack.encodings import as_json
    from gpupack.whatif.answers import PodExplanation
    from gpupack.whatif.fetching import read_cluster_and_pod, read_own_events
    from gpupack.whatif.rendering import format_why
    from kubeapi.errors import Forbidden

    show = print_lines if output == "json" else click.echo  # a text is printable, but for our own colours
    source = read_source(options)
    workload = None if pod is None else parse_workload(pod)
    if pod is None or workload is not None:
        show(_list(source, namespace, workload, output))
        return
    pod, namespace = _named(pod, namespace)

    async def work() -> str:
        try:
            cluster, around = await read_cluster_and_pod(source, namespace, pod)
        except Forbidden as refusal:
            answer, of = await ask_where_forbidden(
                refusal, source, namespace, "why", {"pod": pod}, PodExplanation
            )
            answer = msgspec.structs.replace(answer, events=await read_own_events(source, of, pod))
        else:
            answer = why_of(cluster, around.namespace, pod, events=around.events, queued=around.queued)
        if output == "json":
            return as_json(answer)
        return format_why(answer, colour=wants_colour(), now_s=time.time())

    show(run_question(work))


def _list(source: "ClusterSource", namespace: str | None, workload: "Workload | None", output: str) -> str:
    """Ask about the pods of a workload, None: about all that wait."""
    from gpupack.diagnose.listing import PodList, format_pods, list_waiting, list_workload
    from gpupack.encodings import as_json
    from gpupack.whatif.fetching import read_waiting
    from kubeapi.errors import Forbidden

    async def work() -> str:
        try:
            cluster, around = await read_waiting(source)
        except Forbidden as refusal:
            query: dict[str, str | int] = {} if workload is None else {"workload": workload.name}
            found, _ = await ask_where_forbidden(refusal, source, namespace, "why", query, PodList)
            return as_json(found) if output == "json" else format_pods(found, colour=wants_colour())
        if workload is None:
            found = list_waiting(cluster, time.time(), namespace, around.queued)
        else:
            found = list_workload(
                cluster, namespace or around.namespace, workload, time.time(), around.queued
            )
        return as_json(found) if output == "json" else format_pods(found, colour=wants_colour())

    return run_question(work)


def _named(pod: str, namespace: str | None) -> tuple[str, str | None]:
    """Read the name and the namespace of POD, also where it is written as kubectl or our answers write it."""
    before, _, name = pod.rpartition("/")
    if not before or before in _KINDS:
        return name, namespace
    if namespace not in {None, before}:
        raise click.BadParameter(
            f"{pod!r} with --namespace {namespace!r}; allowed: one namespace", param_hint="'POD'"
        )
    return name, before
