"""`gpupack snapshot`: the cluster as files for the simulator."""

from pathlib import Path
from typing import Any

import click

from gpupack.cli.cluster_source import read_source, run_question, source_options
from gpupack.cli.common import exit_with_faults, print_lines, version_option

SNAPSHOT_HELP = """Write the cluster as nodes.csv and pods.csv, for `gpupack simulate` and for others.

\b
From the cluster:            gpupack snapshot --out before
Without names:               gpupack snapshot --out before --hash
Policies on it:              gpupack simulate --nodes before/nodes.csv --pods before/pods.csv

Pods that ask for GPU memory, or have it by claims, are written, with their arrival, start and end where the
API server still knows them, and nodes with cards. See docs/ask.md.
"""


@click.command(help=SNAPSHOT_HELP, short_help="Write the cluster as nodes.csv and pods.csv.")
@click.option("--out", required=True, metavar="DIR", help="Folder for the files; made if it is not there.")
@click.option("--hash", "hidden", is_flag=True, help="Write digests in place of names.")
@click.option(
    "--resource",
    "resources",
    multiple=True,
    metavar="NAME",
    help="Write a further resource, too, such as ephemeral-storage. May be repeated.",
)
@source_options
@version_option
def snapshot(out: str, hidden: bool, resources: tuple[str, ...], **options: Any) -> None:
    from gpupack.whatif.fetching import read_cluster
    from gpupack.whatif.snapshot import describe_snapshot
    from gpupack.whatif.snapshot import make_snapshot as snapshot_of
    from scheduler_plugin.errors import PolicyError
    from scheduler_plugin.scheduling.policies.fractions import parse_resources

    source = read_source(options)
    try:
        others = parse_resources("snapshot", {"resources": ",".join(resources)})
    except PolicyError as error:
        exit_with_faults(error)

    async def work() -> list[str]:
        found = snapshot_of(await read_cluster(source), hidden=hidden, others=others)
        return describe_snapshot(found, found.write(Path(out)))

    for line in run_question(work):
        print_lines(line)
