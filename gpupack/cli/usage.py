"""`gpupack usage`: GiB-hours of GPU memory."""

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpupack.cli.common import exit_on_faults, output_option, print_lines, version_option
from gpupack.helptexts import USAGE_HELP

if TYPE_CHECKING:
    from gpupack.usage.report import UsageReport


@click.command(help=USAGE_HELP, short_help="Add up GiB-hours of GPU memory, promised and used.")
@click.option("--prometheus", metavar="URL", help="Ask this Prometheus.")
@click.option("--token-file", metavar="FILE", help="With --prometheus: a bearer token.")
@click.option("--dashboard", metavar="URL", help="Ask this running dashboard; default: http://127.0.0.1:8913")
@click.option("--by", default="namespace", show_default=True, metavar="namespace|pod|label:KEY")
@click.option("--since", default="24h", show_default=True, metavar="TIME", help="Where the time begins.")
@click.option("--until", default="now", show_default=True, metavar="TIME", help="Where it ends.")
@output_option("table", "csv", "json")
@version_option
def usage(**options: Any) -> None:
    from gpupack.usage.report import format_report

    if options["prometheus"] is not None and options["dashboard"] is not None:
        raise click.UsageError("--prometheus and --dashboard are two sources: give one of them")
    if options["token_file"] is not None and options["prometheus"] is None:
        raise click.UsageError("--token-file is for --prometheus")
    with exit_on_faults():
        print_lines(format_report(_report(options), options["output"]))


def _report(options: dict[str, Any]) -> "UsageReport":
    from gpupack.usage import sources
    from gpupack.usage.report import UsageKey
    from gpupack.usage.times import parse_span

    by = UsageKey.parse(options["by"])
    since, until = parse_span(options["since"], options["until"], time.time())
    if options["prometheus"] is not None:
        token = _read_token(options["token_file"]) if options["token_file"] else ""
        return asyncio.run(sources.report_from_prometheus(options["prometheus"], token, by, since, until))
    url = options["dashboard"] or "http://127.0.0.1:8913"
    return asyncio.run(sources.report_from_dashboard(url, by, since, until))


def _read_token(file: str) -> str:
    from gpupack.errors import InputError
    from kubeapi.credentials import clean_token
    from kubeapi.errors import ConfigError

    try:
        return clean_token(Path(file).read_text(errors="replace"))
    except ConfigError as error:
        raise InputError(f"{file}: {error}") from error
