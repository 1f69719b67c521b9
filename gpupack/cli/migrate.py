"""`gpupack migrate`: manifests for other ways to share GPUs, for gpupack."""

import sys

import click

from allocator.names import MAX_UNIT_MIB, MIB_PER_GIB, SCHEDULER_NAME
from gpupack.cli.common import FAILED, exit_with_faults, file_option, print_lines, version_option

MIGRATE_HELP = """Rewrite manifests that ask for GPUs as HAMi, Volcano, KAI, Run:ai, gpushare or NVIDIA's
plugin read them.

Pods and pod templates come out on standard output with gpupack's resources, annotations and scheduler,
wherever they stand in a document. Everything else stays as it is, with its order and comments. What could not
be translated, and what will work otherwise, is said on standard error.

\b
  gpupack migrate -f deployment.yaml > for-gpupack.yaml
  kubectl get deployment -o yaml | gpupack migrate -f - --strict | kubectl replace -f -

docs/migration has tables of what becomes what.
"""


@click.command(help=MIGRATE_HELP, short_help="Rewrite manifests for other ways to share GPUs.")
@file_option("YAML or JSON; - is standard input.", required=True)
@click.option(
    "--gpu-gib",
    type=click.IntRange(1, 4096),
    metavar="GIB",
    help="GiB for each nvidia.com/gpu or nvidia.com/gpu.shared that says no memory, as with time-slicing; "
    "default: nvidia.com/gpu is a whole card.",
)
@click.option(
    "--gpushare-unit",
    type=click.Choice(["GiB", "MiB"]),
    default="GiB",
    show_default=True,
    help="What one aliyun.com/gpu-mem is: --memory-unit of gpushare's device plugin.",
)
@click.option(
    "--unit-mib",
    type=click.IntRange(1, MAX_UNIT_MIB),
    default=MIB_PER_GIB,
    show_default=True,
    help="As of the nodes.",
)
@click.option("--scheduler-name", default=SCHEDULER_NAME, show_default=True, help="For pods that ask.")
@click.option("--strict", is_flag=True, help="Write nothing, and fail, where something is not translated.")
@version_option
def migrate(
    filename: str, gpu_gib: int | None, gpushare_unit: str, unit_mib: int, scheduler_name: str, strict: bool
) -> None:
    from gpupack.encodings import read_input
    from gpupack.errors import InputError
    from gpupack.migration.documents import migrate as rewritten
    from gpupack.migration.requests import MigrationOptions
    from kubeapi.names import SUBDOMAIN, is_subdomain

    if not is_subdomain(scheduler_name):
        raise click.BadParameter(f"{scheduler_name!r}; allowed: {SUBDOMAIN}", param_hint="'--scheduler-name'")
    try:
        name = "standard input" if filename == "-" else filename
        text = read_input(filename, _decode)
        options = MigrationOptions(
            unit_mib=unit_mib,
            gpushare_unit_mib=1024 if gpushare_unit == "GiB" else 1,
            gpu_gib=gpu_gib,
            scheduler_name=scheduler_name,
        )
        done = rewritten(text, name, options)
    except (InputError, OSError) as error:
        exit_with_faults(error)
    for note in done.notes:
        print_lines(f"gpupack migrate: {note}", err=True)
    if strict and not done.complete:
        click.echo("gpupack migrate: nothing is written: with --strict all has to be translated", err=True)
        sys.exit(FAILED)
    click.echo(done.text, nl=False)


def _decode(raw: bytes) -> str:
    from gpupack.encodings import to_utf8
    from gpupack.errors import InputError

    try:
        return to_utf8(raw).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"no text in UTF-8 or UTF-16: {error.reason} at byte {error.start}") from error
