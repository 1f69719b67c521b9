"""The console command: options in, one line on stderr and exit status 2 for what the user got wrong."""

import contextlib
import errno
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Final

import click

from allocator.errors import AllocatorError
from gpupack.cli.common import FAILED, INTERRUPTED, WRONG_USAGE, exit_with_faults, version_option
from gpupack.cli.completion import proposals

_NOT_A_NUMBER: Final = re.compile(r"^(Invalid value.*: '.*') is not a valid (?:integer|float)(?: range)?\.$")
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
COMMANDS: Final = (
    "advise",
    "autoscale",
    "completion",
    "cordon",
    "dashboard",
    "demo",
    "fit",
    "migrate",
    "mps",
    "node",
    "queue",
    "scheduler",
    "simulate",
    "snapshot",
    "top",
    "uncordon",
    "uninstall",
    "usage",
    "verify",
    "why",
)
SHARED_MODULES: Final = {"uncordon": "cordon"}
"""The others are in the module of their name."""
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
        path = context.command_path if context is not None else _named(sys.argv[1:])
        said = " ".join(_describe_error(error).split()).rstrip(".")
        click.echo(f"{path}: {said[:1].lower()}{said[1:]}; see {path} --help", err=True)
        sys.exit(WRONG_USAGE)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(INTERRUPTED)
    except AllocatorError as error:
        exit_with_faults(error, FAILED)
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        # What is still in the buffer would fail again, with a traceback, when Python closes the stream.
        with contextlib.suppress(OSError):
            sys.stdout.close()
        exit_with_faults(error, FAILED)
    sys.exit(status)


def complete_kubectl() -> None:
    """Be `kubectl_complete-gpupack`: words in, the last unfinished; proposals out."""
    *words, unfinished = sys.argv[1:] or [""]
    for line in proposals(cli, words, unfinished):
        click.echo(line)


def _named(arguments: Sequence[str]) -> str:
    """Find the command that a command line names: click does not say it of an option without its value."""
    path = "gpupack"
    command: click.Command = cli
    for argument in arguments:
        if not isinstance(command, click.Group) or argument not in command.commands:
            break
        path, command = f"{path} {argument}", command.commands[argument]
    return path


def _describe_error(error: click.ClickException) -> str:
    """Phrase click's error; for text in place of a number, say also what is allowed."""
    said = error.format_message()
    kind = error.param.type if isinstance(error, click.BadParameter) and error.param is not None else None
    found = _NOT_A_NUMBER.match(said)
    if found is None or kind is None:
        return said
    allowed = "a number" if isinstance(kind, click.types.FloatParamType) else "a whole number"
    match kind:
        case click.IntRange(min=int(low), max=int(high)) | click.FloatRange(min=float(low), max=float(high)):
            return f"{found[1]}; allowed: {allowed} from {low} to {high}"
        case click.IntRange(min=int(low)) | click.FloatRange(min=float(low)):
            return f"{found[1]}; allowed: {allowed} from {low}"
    return f"{found[1]}; allowed: {allowed}"


class _Commands(Mapping[str, click.Command]):
    """The commands, each imported when it is asked for: all of them take longer than most take to answer."""

    def __getitem__(self, name: str) -> click.Command:
        if name not in COMMANDS:
            raise KeyError(name)
        module = import_module(f"gpupack.cli.{SHARED_MODULES.get(name, name)}")
        command: click.Command = getattr(module, name)
        return command

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


@click.group(commands=_Commands(), context_settings=CONTEXT)
@version_option
def cli() -> None:
    """Share GPUs by memory on Kubernetes.

    A pod asks for `gpupack.io/gpu-memory-gib: 8`. Every node publishes its cards' size and use as a few
    bit-packed integers (gpupack node); the scheduler decodes them, picks node and card (gpupack scheduler).

    Try it on this machine, without GPU or cluster: gpupack demo
    """
