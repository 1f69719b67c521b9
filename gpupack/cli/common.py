"""Functions and options that several commands share: errors and exit status, daemons, NAME=VALUE."""

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import click
from click.core import ParameterSource

from gpupack import __version__
from gpupack.policies import load_policies
from kubeapi.process_options import KUBECONFIG_HELP

if TYPE_CHECKING:
    from kubeapi.errors import KubeApiError

Command = TypeVar("Command", bound=Callable[..., Any])

FAILED: Final = 1
WRONG_USAGE: Final = 2
INTERRUPTED: Final = 130

version_option = click.version_option(__version__, "--version", prog_name="gpupack")


def print_lines(text: str, *, err: bool = False) -> None:
    """Write lines to the terminal, without the control sequences of those who wrote parts of them."""
    from kubeapi.errors import make_printable

    click.echo("\n".join(make_printable(line) for line in text.split("\n")), err=err)


def exit_with_faults(error: BaseException, status: int = WRONG_USAGE, *hints: str) -> NoReturn:
    """Say what is wrong, a line per fault, then the hints, and exit."""
    for line in (*_describe_error(error).splitlines(), *hints):
        print_lines(f"gpupack: {line}", err=True)
    sys.exit(status)


def _describe_error(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename is not None else error.strerror
    return str(error) or type(error).__name__


def load_policies_or_exit(registries: tuple[Any, ...], *card_policy: Any) -> None:
    """Find the policies of other packages; what is wrong with them is the user's to mend."""
    from gpupack.errors import InputError

    try:
        load_policies(registries, *card_policy)
    except InputError as error:
        exit_with_faults(error)


def run_daemon(
    work: Callable[[asyncio.Event], Coroutine[Any, Any, None]],
    *errors: type[BaseException],
    new_loop: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> None:
    """Be a daemon until a signal sets the event.

    Args:
        work: What to do until then.
    """
    from gpupack.logs import log_loop_trouble
    from gpupack.signals import connect_stop_event

    async def until_told() -> None:
        asyncio.get_running_loop().set_exception_handler(log_loop_trouble)
        with connect_stop_event() as stop:
            await work(stop)

    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(until_told())
    except errors as error:
        exit_with_faults(error)


def name_values(_context: click.Context, _option: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
    """Read NAME=VALUE pairs."""
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise click.BadParameter(f"{text!r}; allowed: NAME=VALUE")
        pairs[name] = value
    return pairs


def refuse_option(name: str, why: str) -> None:
    """Refuse an option that was given and would be ignored.

    Args:
        name: Name of the option, as Python has it.
        why: When it is allowed.
    """
    if click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE:
        raise click.UsageError(f"--{name.replace('_', '-')}: {why}")


card_policy_parameter = click.option(
    "--card-policy-parameter",
    "card_policy_parameters",
    multiple=True,
    callback=name_values,
    metavar="NAME=VALUE",
    help="A parameter of the card policy; may be repeated.",
)

context_option = click.option(
    "--context", metavar="NAME", help="Context of the kubeconfig; default: its current one."
)


def join_options(*options: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """Make one decorator of several; `--help` lists their options in this order."""

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


cluster_options = join_options(
    click.option("--kubeconfig", metavar="FILE", help=KUBECONFIG_HELP), context_option
)
"""How the API server is reached."""


def output_option(*formats: str) -> Callable[[Command], Command]:
    """Make the option for the form of an answer; the first format is the default."""
    return click.option("-o", "--output", type=click.Choice(formats), default=formats[0], show_default=True)


def timeout_option(what: str) -> Callable[[Command], Command]:
    return click.option(
        "--timeout",
        "timeout_s",
        type=click.FloatRange(1, 86_400),
        default=300.0,
        show_default=True,
        metavar="SECONDS",
        help=what,
    )


def file_option(what: str, *, required: bool = False) -> Callable[[Command], Command]:
    """Let the user name a file in place of what is asked otherwise; - is standard input."""
    return click.option("-f", "--filename", metavar="FILE|-", required=required, help=what)


def refuse_beside_file(options: Mapping[str, Any], *names: str) -> None:
    """Refuse options that are for a cluster where the answer is about a file."""
    for name in names if options["filename"] is not None else ():
        if options[name]:
            option = f"--{name.replace('_', '-')}"
            raise click.UsageError(f"{option} is for a cluster: leave it out with --filename")


@contextmanager
def exit_on_faults(exit_refused: "Callable[[KubeApiError], NoReturn] | None" = None) -> Iterator[None]:
    """Make what is wrong one line, and an exit status: 2 where the user can mend it, else 1."""
    from allocator.errors import AllocatorError
    from gpupack.errors import InputError
    from kubeapi.errors import ConfigError, KubeApiError
    from scheduler_plugin.errors import SchedulerError

    try:
        yield
    except (InputError, ConfigError, AllocatorError, SchedulerError, OSError) as error:
        exit_with_faults(error)
    except KubeApiError as error:
        if exit_refused is not None:
            exit_refused(error)
        exit_with_faults(error, FAILED)
