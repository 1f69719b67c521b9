"""`gpupack demo`: real daemons with simulated nodes and pods, on this machine."""

import asyncio

import click

from allocator.names import DEFAULT_CARD_POLICY, DEFAULT_NODE_POLICY
from gpupack.cli.common import FAILED, exit_with_faults, load_policies_or_exit, refuse_option, version_option
from gpupack.policies import all_policies


@click.command(short_help="Show gpupack at work on this machine, without GPU or cluster.")
@click.option(
    "--seed", type=int, default=1, show_default=True, help="Order of the pods; the same one repeats the run."
)
@click.option("--node-policy", default=DEFAULT_NODE_POLICY, show_default=True)
@click.option("--card-policy", default=DEFAULT_CARD_POLICY, show_default=True)
@click.option(
    "--dashboard", is_flag=True, help="In place of the story: the dashboard, on pods that come and go."
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8913, show_default=True, help="Of --dashboard."
)
@click.option("-v", "--verbose", is_flag=True, help="Show the logs of all parts.")
@version_option
def demo(seed: int, node_policy: str, card_policy: str, *, dashboard: bool, port: int, verbose: bool) -> None:
    """Show gpupack at work on this machine: 3 simulated nodes, the extender, 20 pods, each with its card.

    The parts are the real ones. Node daemons speak gRPC to an embedded kubelet and HTTP to an embedded
    API server. Pods go through the extender's filter, prioritize and bind. Shows the cards before, during
    and after, frees some, and decodes a packed word. Then gives the same pods to nodes by their sums, as
    kube-scheduler does alone. Compares all views of every card, and exits 0 only if every check held.
    """
    from gpupack.demo.play import run
    from gpupack.errors import GpupackError
    from gpupack.logs import configure
    from scheduler_plugin.errors import SettingsError
    from standins.scheduler import SchedulingError

    if not dashboard:
        refuse_option("port", "allowed with --dashboard only")
    configure("info" if verbose else "error")
    load_policies_or_exit(all_policies())
    if dashboard:
        from gpupack.cli.common import run_daemon
        from gpupack.demo.load import watch

        run_daemon(
            lambda stop: watch(seed, node_policy, card_policy, port, stop),
            SettingsError,
            GpupackError,
        )
        return
    try:
        asyncio.run(run(seed, node_policy, card_policy))
    except SettingsError as error:
        exit_with_faults(error)
    except (GpupackError, SchedulingError) as error:
        exit_with_faults(error, FAILED)
