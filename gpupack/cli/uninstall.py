"""`gpupack uninstall`: take what gpupack wrote off the Nodes."""

import asyncio
import sys

import click

from gpupack.cli.common import FAILED, context_option, exit_with_faults, print_lines, version_option
from gpupack.cli.names import complete_nodes

UNINSTALL_HELP = """Remove what gpupack wrote on the Nodes: its resources in capacity and allocatable,
annotations, labels and taints under gpupack.io/, the startup taint, what gpupack autoscale set for
autoscalers, and its placeholder pods. One Node after the other; all of them, or those named.

\b
  gpupack uninstall --dry-run              # what would go, and which pods still need gpupack
  kubectl delete -k manifests/overlays/MINE
  gpupack uninstall

A Node stays as it is while gpupack's daemon runs there, or pods that hold GPU memory (--force cleans it
all the same; the pods run on). The kubelet forgets a stopped plugin after five minutes and until then
writes its resource again: run the command once more then. Exit status 1 says that something is left.

Needed rights: list nodes and pods, get nodes, patch nodes/status; delete pods where there are placeholders,
patch nodes where there are taints, list resourceclaims where nodes serve claims.
"""


@click.command(help=UNINSTALL_HELP, short_help="Remove what gpupack wrote on the Nodes.")
@click.argument("nodes", nargs=-1, metavar="[NODE]...", shell_complete=complete_nodes)
@click.option("--dry-run", is_flag=True, help="Say what would be removed, and change nothing.")
@click.option("--force", is_flag=True, help="Also where pods hold GPU memory.")
@click.option(
    "--kubeconfig",
    metavar="FILE",
    help="Default: $KUBECONFIG (several files are merged), ~/.kube/config, in-cluster.",
)
@context_option
@version_option
def uninstall(
    nodes: tuple[str, ...], dry_run: bool, force: bool, kubeconfig: str | None, context: str | None
) -> None:
    """Clean the Nodes."""
    from gpupack.errors import InputError
    from kubeapi.errors import ConfigError, KubeApiError

    try:
        clean = asyncio.run(_run(nodes, dry_run=dry_run, force=force, kubeconfig=kubeconfig, context=context))
    except (InputError, ConfigError) as error:
        exit_with_faults(error)
    except KubeApiError as error:
        exit_with_faults(error, FAILED)
    if not clean:
        sys.exit(FAILED)


async def _run(
    nodes: tuple[str, ...], *, dry_run: bool, force: bool, kubeconfig: str | None, context: str | None
) -> bool:
    """Clean and report; whether nothing is left."""
    from gpupack.inventory.fetching import connect
    from gpupack.uninstall import Uninstaller, list_warnings

    async with await connect(kubeconfig, context) as client:
        uninstaller = Uninstaller(client, dry_run=dry_run, force=force)
        pods = await uninstaller.list_pods()
        names = await uninstaller.list_nodes(nodes)
        for warning in list_warnings(pods):
            print_lines(f"gpupack uninstall: {warning}", err=True)
        removed = [] if nodes else await uninstaller.remove_placeholders(pods)
        for text in removed:
            print_lines(f"pod {text}: {'would remove' if dry_run else 'removed'} it, a placeholder")
        left = again = traced = 0
        async for outcome in uninstaller.clean_nodes(names, pods):
            traced += 1
            if not outcome.cleaned:
                left += 1
                print_lines(f"node {outcome.node} stays as it is: {outcome.why}")
                continue
            print_lines(
                f"node {outcome.node}: {'would remove' if dry_run else 'removed'} {outcome.traces.text}"
            )
            if outcome.traces.offered and not dry_run:
                again += 1
        if not (traced or removed):
            print_lines(f"Nothing of gpupack is on {'these nodes' if nodes else 'any node'}.")
        if again:
            print_lines(
                f"gpupack uninstall: {again} of these nodes offered a resource of gpupack until now; the "
                "kubelet may write it again until five minutes after the daemon's end, run this command then",
                err=True,
            )
        return not left
