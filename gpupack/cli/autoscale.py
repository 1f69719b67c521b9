"""`gpupack autoscale`: nodes for pods that fit by sums and on no card."""

from typing import Any

import click

from gpupack.cli.common import log_format, serve, version_option

AUTOSCALE_HELP = """Help a cluster autoscaler that adds cards up: placeholder pods ask for the nodes that pods
    need by their cards, and nodes are kept from scale-down whose pods have no cards elsewhere.

    docs/howto/autoscaling.md says how, for Cluster Autoscaler and Karpenter.
    """


@click.group(
    invoke_without_command=True,
    help=AUTOSCALE_HELP,
    short_help="Ask a cluster autoscaler for nodes by cards.",
)
@click.option(
    "--kubeconfig",
    metavar="FILE",
    help="Default: $KUBECONFIG (several files are merged), ~/.kube/config, in-cluster.",
)
@click.option(
    "--http", default="127.0.0.1:8915", show_default=True, help="HOST:PORT of health, metrics, status."
)
@click.option("--unit-mib", type=int, help="MiB of one unit. Default: what most nodes publish.")
@click.option("--shapes", metavar="FILE", help="YAML with machine types that may have no node yet.")
@click.option(
    "--placeholders/--no-placeholders", default=True, show_default=True, help="Ask for nodes at all."
)
@click.option(
    "--keep-nodes/--no-keep-nodes",
    default=True,
    show_default=True,
    help="Keep nodes from scale-down whose pods have no cards elsewhere.",
)
@click.option(
    "--grace-s",
    type=float,
    default=15.0,
    show_default=True,
    help="Seconds that a pod has been refused on every node before a node is asked for.",
)
@click.option(
    "--max-placeholders", "most", type=int, default=20, show_default=True, help="Nodes asked for at one time."
)
@click.option("--namespace", default="gpupack-system", show_default=True, help="Of the placeholder pods.")
@click.option("--leader-elect/--no-leader-elect", default=False, help="Only the leader writes.")
@click.option("--lease-namespace", default="kube-system", show_default=True)
@click.option("--lease-name", default="gpupack-autoscale", show_default=True)
@click.option(
    "--pod-name",
    metavar="NAME",
    help="Of this process, in the Lease's namespace: the leader's pod gets the label gpupack.io/leader.",
)
@click.option("--log-level", default="info", show_default=True, metavar="debug|info|warning|error")
@log_format
@version_option
@click.pass_context
def autoscale(context: click.Context, /, **options: Any) -> None:
    """Ask for nodes, and keep nodes."""
    if context.invoked_subcommand is not None:
        return
    from gpupack.logs import configure

    configure(options["log_level"], options["log_format"])

    from gpupack.autoscale.app import run
    from gpupack.autoscale.settings import AutoscaleSettings
    from kubeapi.errors import KubeApiError
    from scheduler_plugin.errors import SchedulerError

    serve(lambda stop: run(AutoscaleSettings(**options), stop=stop), *(SchedulerError, KubeApiError))
