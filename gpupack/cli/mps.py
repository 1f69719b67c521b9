"""`gpupack mps`: the control daemons of CUDA's Multi-Process Service on one node."""

import asyncio
from typing import Any, Final

import click

from deviceplugin.mps_settings import MpsSettings
from gpupack.cli.common import run_daemon, version_option
from gpupack.cli.settings_options import settings_options

MPS_HELP: Final = """Run CUDA's Multi-Process Service (MPS) on one node: a control daemon for each card.

It holds containers to their memory where the driver cannot, and to the compute that they ask for. Start the
node daemon with --sharing mps and the same folder; it then gives containers what makes their processes
clients, with their share as the limit. A control daemon that dies is started again; meanwhile cards count as
accounted only.

\b
As in manifests/components/mps:
  gpupack mps --root /run/gpupack/mps

Containers that run lose their MPS when this ends: end it on a drained node. See docs/mps.md.
"""


@click.command(help=MPS_HELP, short_help="Run CUDA's Multi-Process Service on one node.")
@settings_options(MpsSettings)
@version_option
def mps(**options: Any) -> None:
    from gpupack.logs import configure

    configure(options["log_level"], options["log_format"])

    from deviceplugin.errors import DevicePluginError
    from deviceplugin.gpus.api.provider import SourceOptions
    from deviceplugin.gpus.nvidia.mps.supervisor import run

    async def work(stop: asyncio.Event) -> None:
        settings = MpsSettings(**options)
        settings.check()
        provider = settings.provider
        source = provider.make_source(SourceOptions(profile=settings.profile))
        generations: Any = provider.make_generations()  # there are some wherever there is MPS
        await run(settings, source, generations, stop)

    run_daemon(work, DevicePluginError)
