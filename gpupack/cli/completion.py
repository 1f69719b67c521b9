"""`gpupack completion`: scripts for shells, and what kubectl asks to complete `kubectl gpupack`."""

from typing import Final

import click
from click.shell_completion import BashComplete, CompletionItem, FishComplete, ShellComplete, ZshComplete

from gpupack.cli.common import version_option
from gpupack.helptexts import COMPLETION_HELP

SHELLS: Final = ("bash", "zsh", "fish")
VARIABLE: Final = "_GPUPACK_COMPLETE"

NO_FILES: Final = ":4"
FILES: Final = ":0"
"""What kubectl is told after the proposals: whether to propose the names of files too."""


@click.command(help=COMPLETION_HELP)
@click.argument("shell", type=click.Choice(SHELLS))
@version_option
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    made = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}[shell]
    click.echo(made(context.find_root().command, {}, "gpupack", VARIABLE).source())


def proposals(command: click.Command, words: list[str], unfinished: str) -> list[str]:
    """List what kubectl's completion script wants for a command line, its directive last."""
    items: list[CompletionItem[str]] = ShellComplete(command, {}, "gpupack", VARIABLE).get_completions(
        words, unfinished
    )
    plain = [item for item in items if item.type == "plain"]
    lines = [f"{item.value}\t{item.help}" if item.help else item.value for item in plain]
    return [*lines, NO_FILES if len(plain) == len(items) else FILES]
