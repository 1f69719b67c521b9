"""`gpupack node`: the daemon of one node."""

import os
import sys
from typing import Any, NoReturn

import click

from deviceplugin.settings import Settings
from gpupack.cli.common import (
    FAILED,
    INTERRUPTED,
    card_policy_parameter,
    exit_with_faults,
    load_policies_or_exit,
    run_daemon,
    version_option,
)
from gpupack.cli.settings_options import settings_options
from gpupack.helptexts import NODE_HELP
from gpupack.policies import PolicyCommand, card_policies
from gpupack.terminal import wants_colour


@click.command(
    help=NODE_HELP, short_help="Run the daemon of one node.", cls=PolicyCommand, lists=card_policies
)
@settings_options(Settings, "node_name", "card_policy")
@card_policy_parameter
@settings_options(Settings, "device_list_strategy", "publish_gap_s")
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
@settings_options(Settings, "log_level", "log_format")
@version_option
def node(**options: Any) -> None:
    from gpupack.logs import configure

    # First: it loads structlog without what a daemon has no use for.
    configure(options["log_level"], options["log_format"])
    only_check, output = options.pop("check"), options.pop("output")
    proof = {name: options.pop(f"prove{name}") for name in ("", "_busy", "_mig")}
    if proof[""] and not only_check:
        raise click.UsageError("--prove: allowed with --check only")
    if not proof[""] and any(proof.values()):
        raise click.UsageError("--prove-busy, --prove-mig: allowed with --prove only")
    if only_check:
        _check(options, output, proof)
    if options["node_name"] is None:
        raise click.MissingParameter(param_hint="'--node-name'", param_type="option")

    from deviceplugin.app import run
    from deviceplugin.errors import DevicePluginError
    from kubeapi.errors import KubeApiError

    load_policies_or_exit(card_policies(), options["card_policy"], options.pop("card_policy_parameters"))
    run_daemon(lambda stop: run(Settings(**options), stop), DevicePluginError, KubeApiError)


def _check(options: dict[str, Any], output: str, proof: dict[str, bool]) -> NoReturn:
    """Say what the node offers, and with `proof` what its cards do, and exit."""
    from deviceplugin.check import can_serve, check_node
    from deviceplugin.errors import ProfileError
    from gpupack.errors import InputError
    from gpupack.nodecheck import render
    from gpupack.policies import load_policies

    if output not in {"table", "json"}:
        raise click.BadParameter(f"{output!r}; allowed: table, json", param_hint="'--output'")
    try:
        load_policies(card_policies(), options["card_policy"], options.pop("card_policy_parameters"))
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
        exit_with_faults(error)
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
        exit_with_faults(error)
    except GpuError as error:
        exit_with_faults(GpuError(f"nothing to prove: {error}"), FAILED)
    click.echo(render_report(report, output, colour=wants_colour()))
    if report.interrupted:
        sys.exit(INTERRUPTED)
    sys.exit(FAILED if report.refuted else 0)
