"""The console command: options in, one line on stderr and exit status 2 for what the user got wrong.

Every command imports what it runs when it runs: the node daemon must not pay for the scheduler's numpy.
"""

import asyncio
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final, NoReturn

import click

from allocator.errors import AllocatorError
from allocator.names import DEFAULT_CARD_POLICY, DEFAULT_NODE_POLICY
from gpupack import __version__
from gpupack.helptexts import NODE_HELP, SCHEDULER_HELP, SIMULATE_HELP, TOP_HELP
from gpupack.policies import PolicyCommand, all_policies, card_policies, prepare
from gpupack.simulating import simulate_options, simulation

CONTEXT: Final = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

FAILED: Final = 1
WRONG_USAGE: Final = 2
INTERRUPTED: Final = 130

_version = click.version_option(__version__, "--version", prog_name="gpupack")


def main() -> None:
    """Run the command; user errors, and what our own rules refuse, end in one line, never in a traceback."""
    try:
        status = cli.main(prog_name="gpupack", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(WRONG_USAGE)
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "gpupack"
        said = " ".join(error.format_message().split()).rstrip(".")
        click.echo(f"{path}: {said[:1].lower()}{said[1:]}; see {path} --help", err=True)
        sys.exit(WRONG_USAGE)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(INTERRUPTED)
    except AllocatorError as error:
        _fail(error, FAILED)
    sys.exit(status)


def _fail(error: BaseException, status: int = WRONG_USAGE) -> NoReturn:
    """Say what is wrong, a line per fault, and exit."""
    for line in _said(error).splitlines():
        click.echo(f"gpupack: {line}", err=True)
    sys.exit(status)


def _said(error: BaseException) -> str:
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__


def _prepare(registries: tuple[Any, ...], *card_policy: Any) -> None:
    """Find the policies of other packages; what is wrong with them is the user's to mend."""
    from gpupack.errors import InputError

    try:
        prepare(registries, *card_policy)
    except InputError as error:
        _fail(error)


def _serve(work: Callable[[asyncio.Event], Coroutine[Any, Any, None]], *errors: type[BaseException]) -> None:
    """Be a daemon until a signal sets the event; these errors are the user's to mend."""
    from gpupack.logs import tell_loop_trouble
    from gpupack.signals import told_to_stop

    async def serve() -> None:
        asyncio.get_running_loop().set_exception_handler(tell_loop_trouble)
        with told_to_stop() as stop:
            await work(stop)

    try:
        asyncio.run(serve())
    except errors as error:
        _fail(error)


@click.group(context_settings=CONTEXT)
@_version
def cli() -> None:
    """Share GPUs by memory on Kubernetes.

    A pod asks for `gpupack.io/gpu-memory-gib: 8`. Every node publishes its cards' size and use as a few
    bit-packed integers (gpupack node); the scheduler decodes them, picks node and card (gpupack scheduler).

    Try it on this machine, without GPU or cluster: gpupack demo
    """


def _parameters(_context: click.Context, _option: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
    """Read NAME=VALUE pairs."""
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise click.BadParameter(f"{text!r}: allowed is NAME=VALUE")
        pairs[name] = value
    return pairs


_card_policy_parameter = click.option(
    "--card-policy-parameter",
    "card_policy_parameters",
    multiple=True,
    callback=_parameters,
    metavar="NAME=VALUE",
    help="A parameter of the card policy; may be repeated.",
)


def _xids(_context: click.Context, _option: click.Parameter, text: str) -> frozenset[int]:
    """Read a comma list of XID codes."""
    from deviceplugin.gpus.health import parse_xids

    try:
        return parse_xids(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@cli.command(help=NODE_HELP, cls=PolicyCommand, lists=card_policies)
@click.option(
    "--node-name", required=True, envvar="NODE_NAME", help="Name of the Node object. Also $NODE_NAME."
)
@click.option(
    "--gpus", default="nvml", show_default=True, metavar="nvml|simulated", help="Where cards come from."
)
@click.option("--profile", metavar="NAME|FILE", help="Simulated cards: a shipped profile or a YAML file.")
@click.option(
    "--unit-mib", type=int, default=1024, show_default=True, help="MiB of one unit; names the resource."
)
@click.option("--kubeconfig", metavar="FILE", help="Default: $KUBECONFIG, ~/.kube/config, in-cluster.")
@click.option(
    "--device-plugin-dir",
    type=click.Path(path_type=Path),
    default=Path("/var/lib/kubelet/device-plugins"),
    show_default=True,
    help="Folder of the kubelet's device plugin sockets and of its book of devices.",
)
@click.option(
    "--pod-resources-socket",
    type=click.Path(path_type=Path),
    default=Path("/var/lib/kubelet/pod-resources/kubelet.sock"),
    show_default=True,
    help="The kubelet's PodResources socket; asked only so that it cleans its book.",
)
@click.option(
    "--http", default="127.0.0.1:8911", show_default=True, help="HOST:PORT of /healthz /readyz /metrics."
)
@click.option(
    "--card-policy", default=DEFAULT_CARD_POLICY, show_default=True, help="For pods nobody assigned a card."
)
@_card_policy_parameter
@click.option("--cdi/--no-cdi", default=False, help="Name the cards as CDI devices too.")
@click.option(
    "--cgroup-root",
    type=click.Path(path_type=Path),
    default=Path("/sys/fs/cgroup"),
    show_default=True,
    help="Where the host's cgroups are mounted.",
)
@click.option(
    "--ignored-xids",
    default="13,31,43,45,68,109",
    show_default=True,
    metavar="LIST",
    callback=_xids,
    help="XID errors that leave a card healthy: those that are the application's fault.",
)
@click.option(
    "--quiet-s",
    type=float,
    default=60.0,
    show_default=True,
    help="Seconds without trouble after which a card is healthy again.",
)
@click.option(
    "--publish-gap-s",
    type=float,
    default=2.0,
    show_default=True,
    help="Seconds between two patches of the Node that bring gains only; releases go out at once.",
)
@click.option("--log-level", default="info", show_default=True, metavar="debug|info|warning|error")
@_version
def node(**options: Any) -> None:
    """Run the daemon of one node."""
    from gpupack.logs import configure

    configure(options["log_level"])  # first: it loads structlog without what a daemon has no use for

    from deviceplugin.daemon import run
    from deviceplugin.errors import DevicePluginError
    from deviceplugin.settings import Settings
    from kubeapi.errors import KubeApiError

    _prepare(card_policies(), options["card_policy"], options.pop("card_policy_parameters"))
    _serve(lambda stop: run(Settings(**options), stop), DevicePluginError, KubeApiError)


@cli.command(
    help=SCHEDULER_HELP, short_help="Run the scheduler extender.", cls=PolicyCommand, lists=all_policies
)
@click.option("--kubeconfig", metavar="FILE", help="Default: $KUBECONFIG, ~/.kube/config, in-cluster.")
@click.option("--http", default="127.0.0.1:8910", show_default=True, help="HOST:PORT to serve on.")
@click.option("--node-policy", default=DEFAULT_NODE_POLICY, show_default=True, help="Ranks nodes.")
@click.option(
    "--node-policy-parameter",
    "node_policy_parameters",
    multiple=True,
    callback=_parameters,
    metavar="NAME=VALUE",
    help="A parameter of the node policy; may be repeated.",
)
@click.option(
    "--card-policy", default=DEFAULT_CARD_POLICY, show_default=True, help="Chooses cards on a node."
)
@_card_policy_parameter
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
    help="PEM; then filter, prioritize, bind and preempt want a client certificate of this authority.",
)
@click.option(
    "--leader-elect/--no-leader-elect", default=False, help="For the Service form: only the leader binds."
)
@click.option("--lease-namespace", default="kube-system", show_default=True)
@click.option("--lease-name", default="gpupack-scheduler-extender", show_default=True)
@click.option("--bind-timeout", "bind_timeout_s", type=float, default=4.0, show_default=True, help="Seconds.")
@click.option(
    "--stale-after",
    "stale_s",
    type=float,
    default=180.0,
    show_default=True,
    help="Seconds without word from the API server from which filter answers with an error; from 10.",
)
@click.option("--log-level", default="info", show_default=True, metavar="debug|info|warning|error")
@_version
def scheduler(**options: Any) -> None:
    """Run the scheduler extender."""
    from gpupack.logs import configure

    configure(options["log_level"])  # first: it loads structlog without what a daemon has no use for

    from kubeapi.errors import KubeApiError
    from scheduler_plugin.app import run
    from scheduler_plugin.errors import SchedulerError
    from scheduler_plugin.settings import Settings

    _prepare(all_policies(), options["card_policy"], options.pop("card_policy_parameters"))
    _serve(lambda stop: run(Settings(**options), stop=stop), SchedulerError, KubeApiError)


@cli.command(help=TOP_HELP)
@click.option(
    "-f",
    "--filename",
    metavar="FILE|-",
    help="Output of `kubectl get nodes -o json`; default: ask the cluster.",
)
@click.option(
    "-o", "--output", type=click.Choice(["table", "wide", "json"]), default="table", show_default=True
)
@click.option("--kubeconfig", metavar="FILE", help="Default: $KUBECONFIG, ~/.kube/config, in-cluster.")
@_version
def top(filename: str | None, output: str, kubeconfig: str | None) -> None:
    """Show every card of the cluster."""
    from typing import cast

    from gpupack import top as tables
    from gpupack.errors import InputError
    from kubeapi.errors import ConfigError, KubeApiError

    try:
        if filename is None:
            nodes = asyncio.run(tables.fetch(kubeconfig))
        else:
            raw = sys.stdin.buffer.read() if filename == "-" else Path(filename).read_bytes()
            nodes = tables.load_nodes(raw)
        text = tables.render(tables.rows(nodes), cast("tables.Output", output), colour=sys.stdout.isatty())
    except (InputError, ConfigError, OSError) as error:
        _fail(error)
    except KubeApiError as error:
        _fail(error, FAILED)
    click.echo(text)


@cli.command(help=SIMULATE_HELP, cls=PolicyCommand, lists=all_policies)
@click.option("--nodes", required=True, metavar="FILE", help="CSV: sn, cpu_milli, memory_mib, gpu, model.")
@click.option(
    "--pods", required=True, metavar="FILE", help="CSV: name, cpu_milli, memory_mib, num_gpu, gpu_milli."
)
@click.option("--policy", default=DEFAULT_NODE_POLICY, show_default=True, metavar="NAME[,NAME]")
@click.option("--card-policy", default=DEFAULT_CARD_POLICY, show_default=True)
@_card_policy_parameter
@simulate_options
@click.option(
    "--inflation", type=float, default=1.3, show_default=True, help="GPUs asked for, times the cluster's."
)
@click.option(
    "--seeds", default="42", show_default=True, metavar="42-51", help="Numbers and ranges, by commas."
)
@click.option("--jobs", type=int, help="Processes; default: one for each core. Results do not depend on it.")
@click.option("--card-units", type=int, default=1000, show_default=True, help="Units of a card.")
@click.option("--plot", metavar="DIR", help="Write PNG curves there; needs matplotlib (gpupack[plot]).")
@click.option("--json", "json_file", metavar="FILE|-", help="Write everything there.")
@click.option(
    "--policy-parameter", "parameters", multiple=True, metavar="POLICY.NAME=VALUE", help="May be repeated."
)
@_version
def simulate(**options: Any) -> None:
    """Run node policies over a trace of nodes and pods."""
    from scheduler_plugin.errors import SettingsError, TraceError
    from scheduler_plugin.simulator.app import run

    _prepare(all_policies())
    try:
        run(simulation(options))
    except (SettingsError, TraceError) as error:
        _fail(error)


@cli.command(short_help="Run the main job on this machine, without GPU or cluster.")
@click.option("--seed", type=int, default=1, show_default=True, help="Makes the run repeat.")
@click.option("--node-policy", default=DEFAULT_NODE_POLICY, show_default=True)
@click.option("--card-policy", default=DEFAULT_CARD_POLICY, show_default=True)
@click.option("-v", "--verbose", is_flag=True, help="Show the logs of all parts.")
@_version
def demo(seed: int, node_policy: str, card_policy: str, *, verbose: bool) -> None:
    """Run the main job on this machine: 3 simulated nodes, the extender, 20 pods.

    The parts are the real ones: node daemons speak gRPC to an embedded kubelet and HTTP to an embedded
    API server, pods go through the extender's filter, prioritize and bind. Shows the cards before, during
    and after, frees some, compares all views of every card, and exits 0 only if every check held.
    """
    from gpupack.demo import run
    from gpupack.errors import GpupackError
    from gpupack.logs import configure
    from scheduler_plugin.errors import SettingsError
    from standins.scheduler import SchedulingError

    configure("info" if verbose else "error")
    _prepare(all_policies())
    try:
        asyncio.run(run(seed, node_policy, card_policy))
    except SettingsError as error:
        _fail(error)
    except (GpupackError, SchedulingError) as error:
        _fail(error, FAILED)
