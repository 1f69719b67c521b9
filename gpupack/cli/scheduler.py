"""`gpupack scheduler`: the scheduler extender."""

from typing import Any

import click

from allocator.names import DEFAULT_CARD_POLICY, DEFAULT_NODE_POLICY
from gpupack.cli.common import (
    card_policy_parameter,
    log_format,
    name_values,
    prepare,
    run_daemon,
    version_option,
)
from gpupack.helptexts import SCHEDULER_HELP
from gpupack.policies import PolicyCommand, all_policies


@click.command(
    help=SCHEDULER_HELP, short_help="Run the scheduler extender.", cls=PolicyCommand, lists=all_policies
)
@click.option(
    "--kubeconfig",
    metavar="FILE",
    help="Default: $KUBECONFIG (several files are merged), ~/.kube/config, in-cluster.",
)
@click.option("--http", default="127.0.0.1:8910", show_default=True, help="HOST:PORT to serve on.")
@click.option(
    "--metrics-http",
    metavar="HOST:PORT",
    help="Serve /healthz /readyz /metrics there too: without TLS, without the verbs.",
)
@click.option("--node-policy", default=DEFAULT_NODE_POLICY, show_default=True, help="Ranks nodes.")
@click.option(
    "--node-policy-parameter",
    "node_policy_parameters",
    multiple=True,
    callback=name_values,
    metavar="NAME=VALUE",
    help="A parameter of the node policy; may be repeated.",
)
@click.option(
    "--card-policy", default=DEFAULT_CARD_POLICY, show_default=True, help="Chooses cards on a node."
)
@card_policy_parameter
@click.option(
    "--rank-all-pods/--no-rank-all-pods",
    default=False,
    show_default=True,
    help="Rank nodes for pods without GPU too, where kube-scheduler is told to ask about them.",
)
@click.option(
    "--shortlist", type=int, default=16, show_default=True, help="Nodes filter returns; 0 for all that fit."
)
@click.option(
    "--unit-mib", type=int, default=1024, show_default=True, help="MiB of one unit; names the resource."
)
@click.option(
    "--tls-cert-file", "tls_cert", metavar="FILE", help="PEM; with the key, the server speaks TLS only."
)
@click.option("--tls-key-file", "tls_key", metavar="FILE", help="PEM.")
@click.option(
    "--tls-client-ca-file",
    "tls_client_ca",
    metavar="FILE",
    help="PEM; then filter, prioritize, bind and preempt want a client certificate of this authority. "
    "Needed where --http is not a loopback address.",
)
@click.option(
    "--anonymous-auth/--no-anonymous-auth",
    default=False,
    show_default=True,
    help="Let everybody who reaches --http bind and evict pods, in place of --tls-client-ca-file.",
)
@click.option(
    "--leader-elect/--no-leader-elect", default=False, help="For the Service form: only the leader answers."
)
@click.option("--lease-namespace", default="kube-system", show_default=True)
@click.option("--lease-name", default="gpupack-scheduler-extender", show_default=True)
@click.option(
    "--pod-name",
    metavar="NAME",
    help="Of this process, in the Lease's namespace: the leader's pod gets the label gpupack.io/leader.",
)
@click.option("--bind-timeout", "bind_timeout_s", type=float, default=4.0, show_default=True, help="Seconds.")
@click.option(
    "--stale-after",
    "stale_s",
    type=float,
    default=180.0,
    show_default=True,
    help="Seconds without word from the API server from which filter answers with an error; from 10.",
)
@click.option(
    "--commit/--no-commit",
    default=False,
    show_default=True,
    help="Bind pods with schedulerName gpupack-batch that a queue hands over: gpupack queue --committer.",
)
@click.option(
    "--follow-lease",
    metavar="NAMESPACE/NAME",
    help="With --commit: bind only while the kube-scheduler of this pod holds that Lease.",
)
@click.option(
    "--preemption/--no-preemption",
    default=True,
    show_default=True,
    help="Evict pods of smaller priority for one that no card has room for, though its node's sum has.",
)
@click.option("--log-level", default="info", show_default=True, metavar="debug|info|warning|error")
@log_format
@version_option
def scheduler(**options: Any) -> None:
    """Run the scheduler extender."""
    from gpupack.logs import configure

    # First: it loads structlog without what a daemon has no use for.
    configure(options["log_level"], options["log_format"])

    import uvloop  # half of what asyncio's own loop costs; not for the node daemon, where memory counts more

    from kubeapi.errors import KubeApiError
    from scheduler_plugin.app import run
    from scheduler_plugin.errors import SchedulerError
    from scheduler_plugin.settings import Settings

    prepare(all_policies(), options["card_policy"], options.pop("card_policy_parameters"))
    run_daemon(
        lambda stop: run(Settings(**options), stop=stop),
        *(SchedulerError, KubeApiError),
        new_loop=uvloop.new_event_loop,
    )
