"""`gpupack queue`: the borrowing queue."""

import sys
from typing import Any

import click

from allocator.names import DEFAULT_NODE_POLICY, QUEUE_SERVICE, SYSTEM_NAMESPACE
from allocator.texts import count_of
from gpupack.cli.common import (
    FAILED,
    cluster_options,
    exit_on_faults,
    exit_with_faults,
    load_policies_or_exit,
    output_option,
    print_lines,
    refuse_option,
    run_daemon,
    version_option,
)
from gpupack.cli.names import complete_queues
from gpupack.cli.settings_options import settings_options
from gpupack.policies import PolicyGroup, all_policies
from scheduler_plugin.queue.controller.settings import QueueSettings

QUEUE_HELP = """Run the queue: pods that wear the scheduling gate gpupack.io/queue wait in the queue that
    their label gpupack.io/queue-name names. Each is admitted when it is its turn and a card can take it.

    docs/queue.md says how, and what the configuration has.
    """


@click.group(
    invoke_without_command=True,
    help=QUEUE_HELP,
    short_help="Run the borrowing queue.",
    cls=PolicyGroup,
    lists=all_policies,
)
@settings_options(QueueSettings)
@version_option
@click.pass_context
def queue(context: click.Context, /, config: str | None, **options: Any) -> None:
    if context.invoked_subcommand is not None:
        return
    if config is None:
        raise click.UsageError("--config is missing; allowed: the path of a YAML file")
    from gpupack.logs import configure

    configure(options["log_level"], options["log_format"])

    import uvloop  # half of what asyncio's own loop costs

    from kubeapi.errors import KubeApiError
    from scheduler_plugin.errors import SchedulerError
    from scheduler_plugin.queue.controller.app import run

    load_policies_or_exit(all_policies())
    run_daemon(
        lambda stop: run(QueueSettings(config=config, **options), stop=stop),
        *(SchedulerError, KubeApiError),
        new_loop=uvloop.new_event_loop,
    )


CHECK_HELP = """Check configurations of the queue, and tell every fault with its path.

FILE is a configuration, manifests with a ConfigMap that has the key queues.yaml, or an overlay (or its
folder) with that in a patch; - is standard input.
The exit status is 0 where all can be used, and 1 where one has a fault. It needs no cluster.
"""


@queue.command(help=CHECK_HELP, short_help="Check configurations, without a cluster.")
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@output_option("text", "json")
@click.option("--node-policy", default=DEFAULT_NODE_POLICY, show_default=True, help="As of the queue.")
@version_option
def check(files: tuple[str, ...], output: str, node_policy: str) -> None:
    from gpupack.encodings import as_json
    from gpupack.errors import InputError
    from gpupack.queuecheck import check_files
    from scheduler_plugin.errors import SettingsError

    load_policies_or_exit(all_policies())
    settings = QueueSettings(config="", node_policy=node_policy)
    try:
        settings.check()
        checked = check_files(files, settings.find_policy_faults)
    except (InputError, SettingsError) as error:
        exit_with_faults(error)
    if output == "json":
        print_lines(as_json(checked))
    else:
        for each in checked:
            if not each.faults:
                print_lines(f"{each.name}: {count_of(each.queues, 'queue')}, no fault")
            for fault in each.faults:
                print_lines(f"{each.name}: {fault}", err=True)
    if any(each.faults for each in checked):
        sys.exit(FAILED)


@queue.command(short_help="Show who has what, who waits and why.")
@click.argument("name", required=False, shell_complete=complete_queues)
@click.option("--pods/--no-pods", default=True, show_default=True, help="Also every pod that waits.")
@output_option("table", "json")
@click.option(
    "-n", "--namespace", default=SYSTEM_NAMESPACE, show_default=True, help="Of the queue's Service."
)
@click.option("--service", default=QUEUE_SERVICE, show_default=True, help="The queue's Service.")
@click.option("--url", metavar="URL", help="Ask the queue itself there, such as http://127.0.0.1:8914.")
@cluster_options
@version_option
def status(
    name: str | None,
    pods: bool,
    output: str,
    namespace: str,
    service: str,
    url: str | None,
    kubeconfig: str | None,
    context: str | None,
) -> None:
    """Show all queues, or the one of that NAME, as the queue's leader sees them.

    Units are those of GPU memory; BORROWED and LENT are between queues of one cohort.
    """
    import asyncio

    from gpupack import queuestatus
    from gpupack.encodings import as_json

    if url is not None:
        for option in ("namespace", "service", "kubeconfig", "context"):
            refuse_option(option, "is for a way through the API server: leave it out with --url")
    with exit_on_faults():
        if url is not None:
            raw = asyncio.run(queuestatus.fetch_from(url))
        else:
            raw = asyncio.run(queuestatus.fetch(kubeconfig, context, namespace, service))
        queue_status = queuestatus.read(raw, name)
    print_lines(as_json(queue_status) if output == "json" else queuestatus.render(queue_status, pods=pods))
