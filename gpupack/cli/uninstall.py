"""`gpupack uninstall`: take what gpupack wrote off the Nodes."""

import asyncio
import sys
from typing import TYPE_CHECKING, Any

import click

from gpupack.cli.common import FAILED, cluster_options, exit_on_faults, print_lines, version_option
from gpupack.cli.names import complete_nodes
from gpupack.components import COMPONENTS

if TYPE_CHECKING:
    from gpupack.uninstall import CleanOutcome

UNINSTALL_HELP = """Remove what gpupack wrote on the Nodes: its resources in capacity and allocatable,
annotations, labels and taints under gpupack.io/, the startup taint, what gpupack autoscale set for
autoscalers, and its placeholder pods. One Node after the other; all of them, or those named.

\b
  gpupack uninstall --dry-run              # what would go, and which pods still need gpupack
  kubectl delete -k manifests/overlays/MINE
  gpupack uninstall
  gpupack uninstall --component queue      # after kubectl apply -k without it

With --component only what the component brought, and what it wrote on pods and Nodes. Pods that wait in
a queue are let go.

A Node stays as it is while gpupack's daemon runs there, or pods that hold GPU memory (--force cleans it
all the same; the pods run on). The kubelet forgets a stopped plugin after five minutes and until then
writes its resource again: run the command once more then. Exit status 1 says that something is left.

Needed rights: list nodes and pods, get nodes, patch nodes/status; delete pods where there are placeholders,
patch nodes where there are taints, list resourceclaims where nodes serve claims.
"""


@click.command(help=UNINSTALL_HELP, short_help="Remove what gpupack wrote on the Nodes.")
@click.argument("nodes", nargs=-1, metavar="[NODE]...", shell_complete=complete_nodes)
@click.option(
    "--component",
    "components",
    multiple=True,
    type=click.Choice(list(COMPONENTS)),
    help="Take out this component, which is not applied any more; may be repeated.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be removed, and change nothing.")
@click.option("--force", is_flag=True, help="Also where pods hold GPU memory.")
@cluster_options
@version_option
def uninstall(nodes: tuple[str, ...], components: tuple[str, ...], **options: Any) -> None:
    if nodes and components:
        raise click.UsageError("NODE with --component: a component is taken out of the whole cluster")
    with exit_on_faults():
        clean = asyncio.run(_take_out(components, **options) if components else _run(nodes, **options))
    if not clean:
        sys.exit(FAILED)


async def _run(
    nodes: tuple[str, ...], *, dry_run: bool, force: bool, kubeconfig: str | None, context: str | None
) -> bool:
    """Clean and report; return True if nothing is left."""
    from gpupack.inventory.fetching import connect
    from gpupack.uninstall import Uninstaller, list_warnings

    async with await connect(kubeconfig, context) as client:
        uninstaller = Uninstaller(client, dry_run=dry_run, force=force)
        pods = await uninstaller.list_pods()
        names = await uninstaller.list_nodes(nodes)
        for warning in list_warnings(pods):
            print_lines(f"gpupack uninstall: {warning}", err=True)
        done = [] if nodes else await uninstaller.remove_placeholders(pods)
        for outcome in done:
            _print_outcome(outcome, dry_run=dry_run)
        async for outcome in uninstaller.clean_nodes(names, pods):
            done.append(outcome)
            _print_outcome(outcome, dry_run=dry_run)
        if not done:
            print_lines(f"Nothing of gpupack is on {'these nodes' if nodes else 'any node'}.")
        again = sum(outcome.comes_again and not outcome.why for outcome in done)
        if again and not dry_run:
            print_lines(
                f"gpupack uninstall: {again} of these nodes offered a resource of gpupack until now; the "
                "kubelet may write it again until five minutes after the daemon's end, run this command then",
                err=True,
            )
        return not any(outcome.why for outcome in done)


async def _take_out(
    components: tuple[str, ...], *, dry_run: bool, force: bool, kubeconfig: str | None, context: str | None
) -> bool:
    """Take out components and report; return True if nothing is left."""
    from gpupack.component_removal import ComponentRemover
    from gpupack.inventory.fetching import connect

    async with await connect(kubeconfig, context) as client:
        done = []
        async for outcome in ComponentRemover(client, dry_run=dry_run, force=force).remove(components):
            done.append(outcome)
            _print_outcome(outcome, dry_run=dry_run)
        if not done:
            print_lines(f"Nothing is left of {', '.join(components)}.")
        return not any(outcome.why for outcome in done)


def _print_outcome(outcome: "CleanOutcome", *, dry_run: bool) -> None:
    if outcome.why:
        print_lines(f"{outcome.what} stays as it is: {outcome.why}")
    else:
        print_lines(f"{outcome.what}: {'would remove' if dry_run else 'removed'} {outcome.removed}")
