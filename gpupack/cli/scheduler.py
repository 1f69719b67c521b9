"""`gpupack scheduler`: the scheduler extender."""

from typing import Any

import click

from gpupack.cli.common import card_policy_parameter, load_policies_or_exit, run_daemon, version_option
from gpupack.cli.settings_options import settings_options
from gpupack.helptexts import SCHEDULER_HELP
from gpupack.policies import PolicyCommand, all_policies
from scheduler_plugin.settings import Settings


@click.command(
    help=SCHEDULER_HELP, short_help="Run the scheduler extender.", cls=PolicyCommand, lists=all_policies
)
@settings_options(Settings)
@card_policy_parameter
@version_option
def scheduler(**options: Any) -> None:
    from gpupack.logs import configure

    # First: it loads structlog without what a daemon has no use for.
    configure(options["log_level"], options["log_format"])

    import uvloop  # half of what asyncio's own loop costs; not for the node daemon, where memory counts more

    from kubeapi.errors import KubeApiError
    from scheduler_plugin.app import run
    from scheduler_plugin.errors import SchedulerError

    load_policies_or_exit(all_policies(), options["card_policy"], options.pop("card_policy_parameters"))
    run_daemon(
        lambda stop: run(Settings(**options), stop=stop),
        *(SchedulerError, KubeApiError),
        new_loop=uvloop.new_event_loop,
    )
