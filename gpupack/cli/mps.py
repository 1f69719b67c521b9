"""`gpupack mps`: the control daemons of CUDA's Multi-Process Service on one node."""

from pathlib import Path
from typing import Any, Final

import click

from gpupack.cli.common import exit_with_faults, log_format, run_daemon, version_option

MPS_HELP: Final = """Run CUDA's Multi-Process Service (MPS) on one node: a control daemon for each card.

For drivers that cannot hold a container to its memory themselves. Start the node daemon with --sharing mps
and the same folder; it then gives containers what makes their processes clients, with their share as the
limit. A control daemon that dies is started again; meanwhile cards count as accounted only.

\b
As in manifests/components/mps:
  gpupack mps --root /run/gpupack/mps

Containers that run lose their MPS when this ends: end it on a drained node. See docs/mps.md.
"""


@click.command(help=MPS_HELP, short_help="Run CUDA's Multi-Process Service on one node.")
@click.option(
    "--root",
    type=click.Path(path_type=Path),
    default=Path("/run/gpupack/mps"),
    show_default=True,
    help="Folder of the host, of the same path here.",
)
@click.option(
    "--gpus", default="nvml", show_default=True, metavar="nvml|simulated", help="Where cards come from."
)
@click.option("--profile", metavar="NAME|FILE", help="Simulated cards: a shipped profile or a YAML file.")
@click.option(
    "--control-program",
    "program",
    default="nvidia-cuda-mps-control",
    show_default=True,
    help="NVIDIA's control daemon; its runtime brings it along with the capability `compute`.",
)
@click.option(
    "--multi-user/--single-user",
    default=False,
    help="Clients of several users at once: passes -multiuser-server, which newer drivers know.",
)
@click.option("--log-level", default="info", show_default=True, metavar="debug|info|warning|error")
@log_format
@version_option
def mps(**options: Any) -> None:
    """Run MPS on one node."""
    from gpupack.logs import configure

    configure(options["log_level"], options["log_format"])

    from deviceplugin.errors import DevicePluginError, NodeSettingsError
    from deviceplugin.gpus.nvidia.mps.supervisor import MpsOptions, run
    from deviceplugin.option_values import LOG_FORMATS, LOG_LEVELS

    arguments = ("-f", "-multiuser-server") if options["multi_user"] else ("-f",)
    wanted = MpsOptions(root=options["root"], program=options["program"], arguments=arguments)

    for option, allowed in (("log_level", LOG_LEVELS), ("log_format", LOG_FORMATS)):
        if options[option] not in allowed:
            name = option.replace("_", "-")
            exit_with_faults(
                NodeSettingsError((f"--{name} {options[option]!r}; allowed: {', '.join(allowed)}",))
            )

    async def work(stop: Any) -> None:
        await run(wanted, *_cards(options["gpus"], options["profile"]), stop)

    run_daemon(work, DevicePluginError)


def _cards(gpus: str, profile: str | None) -> tuple[Any, Any]:
    """Make the source of cards, and what tells their generation.

    Raises:
        DevicePluginError: there is no such source, or the profile cannot be used.
    """
    from deviceplugin.errors import NodeSettingsError
    from deviceplugin.gpus.api.provider import SourceOptions
    from deviceplugin.gpus.sources import SOURCES, list_names_with_mps

    names = list_names_with_mps()
    with_profile = [name for name in names if SOURCES[name].needs_profile]
    if (gpus in with_profile) != (profile is not None):
        needing = " or ".join(with_profile)
        raise NodeSettingsError((f"--profile: required with --gpus {needing}, and allowed with that only",))
    if gpus not in names:
        raise NodeSettingsError((f"--gpus {gpus!r}; allowed: {', '.join(names)}",))
    return SOURCES[gpus].make_source(SourceOptions(profile=profile)), SOURCES[gpus].make_generations()
