"""`gpupack verify`: shows in this cluster that sharing works, and leaves nothing behind."""

import asyncio
import os
import sys
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from allocator.names import SCHEDULER_NAME, SYSTEM_NAMESPACE
from gpupack.cli.common import (
    FAILED,
    INTERRUPTED,
    cluster_options,
    exit_on_faults,
    output_option,
    print_lines,
    timeout_option,
    version_option,
)
from gpupack.cli.names import complete_nodes
from gpupack.helptexts import VERIFY_HELP
from gpupack.terminal import wants_colour

if TYPE_CHECKING:
    from deviceplugin.proof.report import ProofReport
    from gpupack.verify.verifier import VerifyOptions


@click.command(help=VERIFY_HELP, short_help="Show in this cluster that sharing works, and undo it.")
@click.option(
    "--node",
    default="",
    metavar="NAME",
    help="Use the cards of this node. Default: of the one with most room.",
    shell_complete=complete_nodes,
)
@click.option(
    "--restart-daemon",
    is_flag=True,
    help="Also delete the pod of the node's daemon, and see that the new one loses nothing. Running pods run "
    "on; new pods of the node wait for some seconds.",
)
@click.option(
    "--image",
    default="",
    metavar="IMAGE",
    help="Image of gpupack for the pods. Default: that of the node's daemon, which the node has.",
)
@click.option(
    "--runtime-class",
    metavar="NAME",
    help="RuntimeClass of the pods; empty for none. Default: that of the node's daemon.",
)
@click.option(
    "--scheduler-name",
    default=SCHEDULER_NAME,
    show_default=True,
    metavar="NAME",
    help="Scheduler of the pods: one that calls gpupack's extender.",
)
@click.option(
    "--namespace",
    "-n",
    default="gpupack-verify",
    show_default=True,
    metavar="NAME",
    help="Namespace to create and to remove; it must not exist.",
)
@click.option(
    "--system-namespace",
    default=SYSTEM_NAMESPACE,
    show_default=True,
    metavar="NAME",
    help="Namespace of gpupack's daemons.",
)
@timeout_option("For all steps together, beside what is undone.")
@cluster_options
@output_option("table", "json")
@click.option("--in-container", type=click.IntRange(0), hidden=True, metavar="MIB")
@version_option
def verify(
    output: str, kubeconfig: str | None, context: str | None, in_container: int | None, **options: Any
) -> None:
    if in_container is not None:
        from gpupack.verify.container import serve

        serve(in_container, os.environ, click.echo)
    from gpupack.nodecheck import render_report
    from gpupack.verify.verifier import VerifyOptions, has_failed

    with exit_on_faults():
        report = asyncio.run(_run(VerifyOptions(**options), kubeconfig, context))
    click.echo(render_report(report, output, colour=wants_colour(), page="docs/howto/verify.md"))
    if report.interrupted:
        sys.exit(INTERRUPTED)
    sys.exit(FAILED if has_failed(report) else 0)


async def _run(options: "VerifyOptions", kubeconfig: str | None, context: str | None) -> "ProofReport":
    from gpupack import __version__
    from gpupack.inventory.fetching import connect
    from gpupack.signals import cancel_on_signals
    from gpupack.verify.verifier import Verifier

    def report(line: str) -> None:
        # What is undone must be undone also where the terminal is gone.
        with suppress(OSError):
            print_lines(f"gpupack verify: {line}", err=True)

    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - a coroutine runs in a task
    async with await connect(kubeconfig, context) as client:
        with cancel_on_signals(task):
            return await Verifier(client, options, __version__, uuid.uuid4().hex, report).run()
