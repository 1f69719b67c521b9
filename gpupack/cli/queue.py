"""`gpupack queue`: the borrowing queue."""

from typing import Any

import click

from allocator.names import DEFAULT_CARD_POLICY, DEFAULT_NODE_POLICY
from gpupack.cli.common import (
    FAILED,
    context_option,
    fail,
    log_format,
    name_values,
    prepare,
    say,
    serve,
    version_option,
)
from gpupack.policies import PolicyGroup, all_policies

QUEUE_HELP = """Run the queue: pods that wear the scheduling gate gpupack.io/queue wait in the queue that
    their label gpupack.io/queue-name names. Each is released when it is its turn and a card can take it.

    docs/queue.md says how, and what the configuration has.
    """


@click.group(
    invoke_without_command=True,
    help=QUEUE_HELP,
    short_help="Run the borrowing queue.",
    cls=PolicyGroup,
    lists=all_policies,
)
@click.option("--config", metavar="FILE", help="YAML with the queues; read again when it changes.")
@click.option(
    "--kubeconfig",
    metavar="FILE",
    help="Default: $KUBECONFIG (several files are merged), ~/.kube/config, in-cluster.",
)
@click.option(
    "--http", default="127.0.0.1:8914", show_default=True, help="HOST:PORT of health, metrics, status."
)
@click.option("--node-policy", default=DEFAULT_NODE_POLICY, show_default=True, help="As of the scheduler.")
@click.option(
    "--node-policy-parameter",
    "node_policy_parameters",
    multiple=True,
    callback=name_values,
    metavar="NAME=VALUE",
    help="A parameter of the node policy; may be repeated. The configuration may have others.",
)
@click.option("--card-policy", default=DEFAULT_CARD_POLICY, show_default=True, help="As of the scheduler.")
@click.option("--unit-mib", type=int, default=1024, show_default=True, help="MiB of one unit.")
@click.option("--leader-elect/--no-leader-elect", default=False, help="Only the leader releases pods.")
@click.option("--lease-namespace", default="kube-system", show_default=True)
@click.option("--lease-name", default="gpupack-queue", show_default=True)
@click.option(
    "--pod-name",
    metavar="NAME",
    help="Of this process, in the Lease's namespace: the leader's pod gets the label gpupack.io/leader.",
)
@click.option("--log-level", default="info", show_default=True, metavar="debug|info|warning|error")
@log_format
@version_option
@click.pass_context
def queue(context: click.Context, /, config: str | None, **options: Any) -> None:
    """Run the queue."""
    if context.invoked_subcommand is not None:
        return
    if config is None:
        raise click.UsageError("--config is missing: allowed is the path of a YAML file")
    from gpupack.logs import configure

    configure(options["log_level"], options["log_format"])

    import uvloop  # half of what asyncio's own loop costs

    from kubeapi.errors import KubeApiError
    from scheduler_plugin.errors import SchedulerError
    from scheduler_plugin.queue.controller.app import run
    from scheduler_plugin.queue.controller.settings import QueueSettings

    prepare(all_policies())
    serve(
        lambda stop: run(QueueSettings(config=config, **options), stop=stop),
        *(SchedulerError, KubeApiError),
        new_loop=uvloop.new_event_loop,
    )


@queue.command(short_help="Show who has what, who waits and why.")
@click.argument("name", required=False)
@click.option("--pods/--no-pods", default=True, show_default=True, help="Also every pod that waits.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.option(
    "-n", "--namespace", default="gpupack-system", show_default=True, help="Of the queue's Service."
)
@click.option("--service", default="gpupack-queue", show_default=True, help="The queue's Service.")
@click.option(
    "--kubeconfig",
    metavar="FILE",
    help="Default: $KUBECONFIG (several files are merged), ~/.kube/config, in-cluster.",
)
@context_option
@version_option
def status(
    name: str | None,
    pods: bool,
    output: str,
    namespace: str,
    service: str,
    kubeconfig: str | None,
    context: str | None,
) -> None:
    """Show all queues, or the one of that NAME, as the queue's leader sees them.

    Units are those of GPU memory; BORROWED and LENT are between queues of one cohort.
    """
    import asyncio

    from gpupack import queuestatus
    from gpupack.errors import InputError
    from kubeapi.errors import ConfigError, KubeApiError

    try:
        raw = asyncio.run(queuestatus.fetch(kubeconfig, context, namespace, service))
        found = queuestatus.read(raw, name)
    except (InputError, ConfigError) as error:
        fail(error)
    except KubeApiError as error:
        fail(error, FAILED)
    if output == "json":
        import msgspec

        say(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        say(queuestatus.render(found, pods=pods))
