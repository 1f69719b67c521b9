"""What the commands share that ask a cluster: where it is read from, and how they end."""

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import click

from gpupack.cli.common import FAILED, context_option, exit_with_faults

T = TypeVar("T")
Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def source_options(command: Decorated) -> Decorated:
    """Give a command the options that say which cluster."""
    options = (
        click.option(
            "-f",
            "--filename",
            metavar="FILE|-",
            help="Output of `kubectl get nodes,pods -A -o json`. Default: ask the cluster.",
        ),
        click.option(
            "--kubeconfig",
            metavar="FILE",
            help="Default: $KUBECONFIG (several files are merged), ~/.kube/config, in-cluster.",
        ),
        context_option,
        click.option(
            "--unit-mib",
            type=click.IntRange(1, 1 << 20),
            metavar="MIB",
            help="MiB of a unit. Default: of the pod asked about, else what most nodes publish.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


output_option = click.option(
    "-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True
)


def read_source(options: dict[str, Any]) -> Any:
    """Read the options of `source_options`.

    Raises:
        UsageError: options that contradict each other.
    """
    from gpupack.whatif.fetching import ClusterSource

    if options["filename"] is not None:
        for name in ("context", "kubeconfig"):
            if options[name]:
                raise click.UsageError(f"--{name} is for a cluster: leave it out with --filename")
    return ClusterSource(options["filename"], options["kubeconfig"], options["context"], options["unit_mib"])


def run_question(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Do the asking; what is wrong becomes one line and an exit status."""
    from allocator.errors import AllocatorError
    from gpupack.errors import InputError
    from kubeapi.errors import ConfigError, KubeApiError
    from scheduler_plugin.errors import SchedulerError

    # The process ends with the answer. Meanwhile the collector would walk every node and pod again and again.
    gc.disable()
    try:
        return asyncio.run(work())
    except (InputError, ConfigError, AllocatorError, SchedulerError, OSError) as error:
        exit_with_faults(error)
    except KubeApiError as error:
        exit_with_faults(error, FAILED)
