"""The console command: options in, one line on stderr and exit status 2 for what the user got wrong."""

import sys
from typing import Final

import click

from allocator.errors import AllocatorError
from gpupack.commands.advise import advise
from gpupack.commands.common import FAILED, INTERRUPTED, WRONG_USAGE, fail, version_option
from gpupack.commands.completion import completion
from gpupack.commands.cordon import cordon, uncordon
from gpupack.commands.dashboard import dashboard
from gpupack.commands.demo import demo
from gpupack.commands.fit import fit
from gpupack.commands.migrate import migrate
from gpupack.commands.mps import mps
from gpupack.commands.node import node
from gpupack.commands.queue import queue
from gpupack.commands.scheduler import scheduler
from gpupack.commands.simulate import simulate
from gpupack.commands.snapshot import snapshot
from gpupack.commands.top import top
from gpupack.commands.uninstall import uninstall
from gpupack.commands.usage import usage
from gpupack.commands.why import why

CONTEXT: Final = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


def main() -> None:
    """Run the command; user errors, and what our own rules refuse, end in one line, never in a traceback."""
    try:
        status = cli.main(prog_name="gpupack", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(WRONG_USAGE)
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "gpupack"
        said = " ".join(error.format_message().split()).rstrip(".")
        click.echo(f"{path}: {said[:1].lower()}{said[1:]}; see {path} --help", err=True)
        sys.exit(WRONG_USAGE)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(INTERRUPTED)
    except AllocatorError as error:
        fail(error, FAILED)
    sys.exit(status)


@click.group(context_settings=CONTEXT)
@version_option
def cli() -> None:
    """Share GPUs by memory on Kubernetes.

    A pod asks for `gpupack.io/gpu-memory-gib: 8`. Every node publishes its cards' size and use as a few
    bit-packed integers (gpupack node); the scheduler decodes them, picks node and card (gpupack scheduler).

    Try it on this machine, without GPU or cluster: gpupack demo
    """


for command in (
    advise,
    completion,
    cordon,
    dashboard,
    demo,
    fit,
    migrate,
    mps,
    node,
    queue,
    scheduler,
    simulate,
    snapshot,
    top,
    uncordon,
    uninstall,
    usage,
    why,
):
    cli.add_command(command)
