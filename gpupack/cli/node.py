"""`gpupack node`: the daemon of one node."""

import os
import sys
from pathlib import Path
from typing import Any, NoReturn

import click

from allocator.names import DEFAULT_CARD_POLICY
from gpupack.cli.common import (
    FAILED,
    INTERRUPTED,
    card_policy_parameter,
    fail,
    log_format,
    prepare,
    serve,
    version_option,
)
from gpupack.helptexts import NODE_HELP
from gpupack.policies import PolicyCommand, card_policies
from gpupack.terminal import wants_colour


def _xids(_context: click.Context, _option: click.Parameter, text: str) -> frozenset[int]:
    """Read a comma list of XID codes."""
    from deviceplugin.gpus.nvidia.vendor import parse_xids

    try:
        return parse_xids(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def _comma_list(_context: click.Context, _option: click.Parameter, text: str) -> tuple[str, ...]:
    """Read a comma list; blanks and repetitions are left out."""
    return tuple(dict.fromkeys(entry.strip() for entry in text.split(",") if entry.strip()))


def _strategy(options: dict[str, Any]) -> tuple[str, ...]:
    """Take the option that came before the list of strategies for what it means there."""
    if not options.pop("cdi"):
        return tuple(options["device_list_strategy"])
    source = click.get_current_context().get_parameter_source("device_list_strategy")
    if source not in {None, click.core.ParameterSource.DEFAULT}:
        raise click.UsageError("--cdi is --device-list-strategy envvar,cdi-cri: give only the list")
    click.echo("gpupack node: --cdi is an old name, write --device-list-strategy envvar,cdi-cri", err=True)
    return ("envvar", "cdi-cri")


@click.command(
    help=NODE_HELP, short_help="Run the daemon of one node.", cls=PolicyCommand, lists=card_policies
)
@click.option("--node-name", envvar="NODE_NAME", help="Name of the Node object, required. Also $NODE_NAME.")
@click.option(
    "--gpus", default="nvml", show_default=True, metavar="nvml|simulated", help="Where cards come from."
)
@click.option("--profile", metavar="NAME|FILE", help="Simulated cards: a shipped profile or a YAML file.")
@click.option(
    "--serve",
    default="device-plugin",
    show_default=True,
    metavar="device-plugin|dra",
    help="How pods get their cards here: dra serves ResourceClaims, on Kubernetes 1.36 or later.",
)
@click.option(
    "--unit-mib", type=int, default=1024, show_default=True, help="MiB of one unit; names the resource."
)
@click.option(
    "--kubeconfig",
    metavar="FILE",
    help="Default: $KUBECONFIG (several files are merged), ~/.kube/config, in-cluster.",
)
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
    help="The kubelet's PodResources socket; asked which pods it has taken up, and to clean its book.",
)
@click.option(
    "--http", default="127.0.0.1:8911", show_default=True, help="HOST:PORT of /healthz /readyz /metrics."
)
@click.option(
    "--card-policy", default=DEFAULT_CARD_POLICY, show_default=True, help="For pods nobody assigned a card."
)
@card_policy_parameter
@click.option(
    "--device-list-strategy",
    default="envvar",
    show_default=True,
    metavar="LIST",
    callback=_comma_list,
    help="How containers are told their cards: envvar, cdi-annotations, cdi-cri.",
)
@click.option(
    "--cdi-dirs",
    default="/etc/cdi,/var/run/cdi",
    show_default=True,
    metavar="LIST",
    callback=_comma_list,
    help="Folders of CDI specifications; one of ours is written into the last where cards lack one.",
)
@click.option(
    "--pass-device-specs/--no-pass-device-specs",
    default=False,
    help="Give the kubelet the cards' device nodes too: for its static cpu manager.",
)
@click.option(
    "--advise-frameworks/--no-advise-frameworks",
    default=False,
    help="Where nothing holds a container to its share, set variables of JAX and TensorFlow.",
)
@click.option("--cdi/--no-cdi", default=False, help="Old name of --device-list-strategy envvar,cdi-cri.")
@click.option(
    "--cgroup-root",
    type=click.Path(path_type=Path),
    default=Path("/sys/fs/cgroup"),
    show_default=True,
    help="Where the host's cgroups are mounted.",
)
@click.option(
    "--memory-limits",
    default="auto",
    show_default=True,
    metavar="auto|off|require",
    help="Let the driver hold containers to their shares: where it can, nowhere, or offer no other cards.",
)
@click.option(
    "--sharing",
    default="time-slicing",
    show_default=True,
    metavar="time-slicing|mps",
    help="With mps, gpupack mps holds containers to their shares where the driver does not.",
)
@click.option(
    "--mps-root",
    type=click.Path(path_type=Path),
    default=Path("/run/gpupack/mps"),
    show_default=True,
    help="Folder of the host where gpupack mps is met.",
)
@click.option(
    "--mps-threads/--no-mps-threads",
    default=False,
    help="Limit a container's share of the multiprocessors like that of the memory.",
)
@click.option(
    "--over-use-mib",
    type=int,
    default=512,
    show_default=True,
    help="MiB beyond its share that a container may use before an Event tells of it.",
)
@click.option(
    "--evict-over-use-after-s",
    type=float,
    default=0.0,
    show_default=True,
    help="Evict a pod that uses more for so many seconds; 0: never. Needs the component evict-over-use.",
)
@click.option(
    "--container-logs",
    type=click.Path(path_type=Path),
    default=Path("/var/log/containers"),
    show_default=True,
    help="The kubelet's links to containers' logs: their names tell containers of a pod apart.",
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
@click.option(
    "--check",
    is_flag=True,
    help="Run no daemon: say what this node offers, what would be used and why not more. Exits 0, 1 where a "
    "daemon cannot serve pods, 2 for wrong options.",
)
@click.option(
    "--prove",
    is_flag=True,
    help="With --check: try out what the cards and their driver do, as root, limits on idle cards only, and "
    "undo it. Exits 1 where something is not as documented, or there is no card.",
)
@click.option(
    "--prove-busy", is_flag=True, help="With --prove: try limits also where somebody uses the card."
)
@click.option(
    "--prove-mig", is_flag=True, help="With --prove: create a MIG instance, and destroy it, in MIG mode."
)
@click.option(
    "-o",
    "--output",
    default="table",
    show_default=True,
    metavar="table|json",
    help="How --check says it.",
)
@click.option("--log-level", default="info", show_default=True, metavar="debug|info|warning|error")
@log_format
@version_option
def node(**options: Any) -> None:
    """Run the daemon of one node."""
    from gpupack.logs import configure

    only_check, output = options.pop("check"), options.pop("output")
    proof = {name: options.pop(f"prove{name}") for name in ("", "_busy", "_mig")}
    if proof[""] and not only_check:
        raise click.UsageError("--prove: allowed with --check only")
    if not proof[""] and any(proof.values()):
        raise click.UsageError("--prove-busy, --prove-mig: allowed with --prove only")
    options["device_list_strategy"] = _strategy(options)
    options["cdi_dirs"] = tuple(map(Path, options["cdi_dirs"]))
    if only_check:
        _check(options, output, proof)
    if options["node_name"] is None:
        raise click.MissingParameter(param_hint="'--node-name'", param_type="option")
    # First: it loads structlog without what a daemon has no use for.
    configure(options["log_level"], options["log_format"])

    from deviceplugin.app import run
    from deviceplugin.errors import DevicePluginError
    from deviceplugin.settings import Settings
    from kubeapi.errors import KubeApiError

    prepare(card_policies(), options["card_policy"], options.pop("card_policy_parameters"))
    serve(lambda stop: run(Settings(**options), stop), DevicePluginError, KubeApiError)


def _check(options: dict[str, Any], output: str, proof: dict[str, bool]) -> NoReturn:
    """Say what the node offers, and with `proof` what its cards do, and exit."""
    from deviceplugin.check import can_serve, check_node
    from deviceplugin.errors import ProfileError
    from deviceplugin.settings import Settings
    from gpupack.errors import InputError
    from gpupack.nodecheck import render
    from gpupack.policies import prepare as find_policies

    if output not in {"table", "json"}:
        raise click.BadParameter(f"{output!r}; allowed: table, json", param_hint="'--output'")
    try:
        find_policies(card_policies(), options["card_policy"], options.pop("card_policy_parameters"))
    except InputError as error:
        raise click.UsageError(str(error)) from error
    settings = Settings(**{**options, "node_name": options["node_name"] or "this-node"})
    faults = settings.faults()
    if faults:
        raise click.UsageError("\n".join(faults))
    if proof[""]:
        _prove(settings, output, busy=proof["_busy"], instances=proof["_mig"])
    try:
        findings = check_node(settings)
    except ProfileError as error:  # an option that is wrong, as for the daemon
        fail(error)
    click.echo(render(findings, output, colour=wants_colour()))
    sys.exit(0 if can_serve(findings) else FAILED)


def _prove(settings: Any, output: str, *, busy: bool, instances: bool) -> NoReturn:
    """Say what the cards of the node do, and exit."""
    from deviceplugin.errors import GpuError, ProfileError
    from deviceplugin.proof.report import prove_node
    from gpupack import __version__
    from gpupack.nodecheck import render_report

    if settings.provider.needs_root_to_prove and os.geteuid() != 0:
        raise click.UsageError(f"--prove: allowed to root only, this is user {os.geteuid()}")
    try:
        report = prove_node(settings, __version__, busy=busy, instances=instances)
    except ProfileError as error:
        fail(error)
    except GpuError as error:
        fail(GpuError(f"nothing to prove: {error}"), FAILED)
    click.echo(render_report(report, output, colour=wants_colour()))
    if report.interrupted:
        sys.exit(INTERRUPTED)
    sys.exit(FAILED if report.refuted else 0)
