"""`gpupack autoscale`: nodes for pods that fit by sums and on no card."""

from typing import Any

import click

from allocator.names import MIB_PER_GIB
from gpupack.autoscale.settings import AutoscaleSettings
from gpupack.cli.cluster_source import read_source, run_question, source_options
from gpupack.cli.common import name_values, print_lines, run_daemon, version_option
from gpupack.cli.names import complete_nodes
from gpupack.cli.settings_options import settings_options

AUTOSCALE_HELP = """Help a cluster autoscaler that adds cards up: placeholder pods ask for the nodes that pods
    need by their cards, and nodes are kept from scale-down whose pods have no cards elsewhere.

    docs/howto/autoscaling.md says how, for Cluster Autoscaler and Karpenter.
    """


@click.group(
    invoke_without_command=True,
    help=AUTOSCALE_HELP,
    short_help="Ask a cluster autoscaler for nodes by cards.",
)
@settings_options(AutoscaleSettings)
@version_option
@click.pass_context
def autoscale(context: click.Context, /, **options: Any) -> None:
    if context.invoked_subcommand is not None:
        return
    from gpupack.logs import configure

    configure(options["log_level"], options["log_format"])

    from gpupack.autoscale.app import run
    from kubeapi.errors import KubeApiError
    from scheduler_plugin.errors import SchedulerError

    run_daemon(lambda stop: run(AutoscaleSettings(**options), stop=stop), *(SchedulerError, KubeApiError))


SHAPES_HELP = """Print what an autoscaler must know of machine types: of NODEs, of all nodes, or as given.

\b
For the file of shapes:          gpupack autoscale shapes
Tags of a group on AWS:          gpupack autoscale shapes gpu-node-3 --format aws
Of a type without a node:        gpupack autoscale shapes --name a3 --cards 8x81559 --cpu 206 --memory 1800Gi

It reads Nodes and Pods, and changes nothing. docs/howto/autoscaling.md says where each format goes.
"""


@autoscale.command(help=SHAPES_HELP, short_help="Print machine types for autoscalers.")
@click.argument("nodes", nargs=-1, metavar="[NODE]...", shell_complete=complete_nodes)
@click.option(
    "--format",
    "form",
    default="file",
    show_default=True,
    metavar="file|aws|azure|gce|karpenter",
    help="What to write.",
)
@click.option("--name", help="Of the machine type, where no node has it.")
@click.option("--cards", multiple=True, metavar="COUNTxMIB[:MODEL]", help="Its cards; may be repeated.")
@click.option("--cpu", metavar="QUANTITY", help="What pods can have of its cpu, beside DaemonSets.")
@click.option("--memory", metavar="QUANTITY", help="What pods can have of its memory.")
@click.option(
    "--label",
    "labels",
    multiple=True,
    callback=name_values,
    metavar="NAME=VALUE",
    help="A label of its nodes.",
)
@click.option(
    "--taint",
    "taints",
    multiple=True,
    metavar="KEY=VALUE:EFFECT",
    help="A taint of its nodes; may be repeated.",
)
@source_options
@version_option
def shapes(nodes: tuple[str, ...], form: str, **options: Any) -> None:
    given = {key: options.pop(key) for key in ("name", "cards", "cpu", "memory", "labels", "taints")}
    if nodes and any(given.values()):
        raise click.UsageError("NODE is for what nodes have: leave --name, --cards and the like out with it")
    missing = [f"--{key}" for key in ("name", "cards", "cpu", "memory") if not given[key]]
    if any(given.values()) and missing:
        raise click.UsageError(
            f"a type without a node: {', '.join(missing)} not given; allowed: all of them together"
        )
    source = read_source(options)

    async def work() -> str:
        from gpupack.autoscale.shape_formats import FORMATS, find_shapes, make_given_shape, write_shapes
        from gpupack.errors import InputError
        from gpupack.whatif.fetching import read_cluster

        if form not in FORMATS:
            raise InputError(f"--format {form!r}; allowed: {', '.join(FORMATS)}")
        if any(given.values()):
            unit_mib = options["unit_mib"] or MIB_PER_GIB
            return write_shapes([make_given_shape(unit_mib=unit_mib, **given)], unit_mib, form)
        cluster = await read_cluster(source)
        return write_shapes(find_shapes(cluster, nodes), cluster.unit_mib, form)

    print_lines(run_question(work))
