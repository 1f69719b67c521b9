"""`gpupack dashboard`: every card of the cluster on one page."""

from typing import Any

import click

from gpupack.cli.common import (
    FAILED,
    context_option,
    exit_with_faults,
    file_option,
    refuse_beside_file,
    refuse_option,
    run_daemon,
    version_option,
)
from gpupack.cli.settings_options import settings_options
from gpupack.dashboard.settings import Settings
from gpupack.helptexts import DASHBOARD_HELP


@click.command(help=DASHBOARD_HELP, short_help="Show every card of the cluster on one page, live.")
@file_option("Output of `kubectl get nodes,pods -A -o json`. Default: follow the cluster.")
@click.option("--port", type=click.IntRange(0, 65535), help="Listen on 127.0.0.1 at this port; 0: any.")
@click.option("--browser/--no-browser", default=None, help="Open it; default: on a terminal with a screen.")
@settings_options(Settings)
@context_option
@version_option
def dashboard(**options: Any) -> None:
    from gpupack.errors import GpupackError
    from gpupack.logs import configure
    from kubeapi.errors import ConfigError, KubeApiError

    filename, browser, port = options.pop("filename"), options.pop("browser"), options.pop("port")
    configure(options["log_level"], options["log_format"])
    if port is not None:
        refuse_option("http", "allowed without --port only")
        options["http"] = f"127.0.0.1:{port}"
    for_clusters = "namespace", "context", "kubeconfig", "queue_url", "daemon_port", "teams_http"
    refuse_beside_file({"filename": filename, **options}, *for_clusters)
    try:
        _serve(filename, options, browser)
    except KubeApiError as error:
        exit_with_faults(error, 2 if isinstance(error, ConfigError) else FAILED)
    except (GpupackError, OSError) as error:
        exit_with_faults(error)


def _serve(filename: str | None, options: dict[str, Any], browser: bool | None) -> None:
    from gpupack.dashboard.app import serve_cluster, serve_file
    from gpupack.dashboard.browser import can_open_browser, open_browser
    from gpupack.encodings import read_input
    from gpupack.whatif.objects import load_objects

    settings = Settings(**options)

    def started(url: str) -> None:
        click.echo(f"gpupack dashboard: {url} (Ctrl-C ends it)")
        if can_open_browser() if browser is None else browser:
            open_browser(url)

    if filename is None:
        run_daemon(lambda stop: serve_cluster(settings, stop=stop, started=started))
        return
    found = read_input(filename, load_objects)
    name = "standard input" if filename == "-" else filename
    run_daemon(lambda stop: serve_file(settings, found, name, stop=stop, started=started))
