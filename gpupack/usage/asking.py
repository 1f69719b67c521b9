"""Reports from where somebody says that they are: Prometheus, a history, a running dashboard."""

import os
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import msgspec

from allocator.errors import shown
from gpupack.errors import InputError
from gpupack.usage.prometheus import Prometheus, step_of
from gpupack.usage.report import By, Report, report
from gpupack.usage.store import read
from kubeapi.errors import ConfigError, describe_unreachable, make_printable, shorten
from kubeapi.urls import proxy_for


async def from_prometheus(url: str, token: str, by: By, since: float, until: float) -> Report:
    """Ask Prometheus.

    Raises:
        InputError: it does not answer, knows nothing of gpupack, or answers something else.
    """
    proxy = _way_to("--prometheus", url)
    async with aiohttp.ClientSession(proxy=proxy) as session:
        prometheus = Prometheus(session, url, token)
        periods = [
            period async for period in prometheus.periods(since, until, step_of(since, until), by.label)
        ]
    if not any(period.pods for period in periods):
        raise InputError(
            f"{url} has no metrics of gpupack node for this time; docs/observability.md says how it gets them"
        )
    return report(periods, by, since, until, f"Prometheus at {url}")


def from_history(path: str, by: By, since: float, until: float) -> Report:
    """Read what a dashboard has written.

    Raises:
        InputError: the file is something else.
        OSError: it cannot be read.
    """
    return report(read(Path(path)), by, since, until, path)


async def from_dashboard(url: str, by: By, since: float, until: float) -> Report:
    """Ask a running dashboard what it has sampled.

    Raises:
        InputError: none runs there, or it has no report; with its own sentence then.
    """
    proxy = _way_to("--dashboard", url)
    params = {"by": str(by), "since": _written(since), "until": _written(until)}
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60), proxy=proxy) as session,
            session.get(f"{url.rstrip('/')}/api/usage", params=params) as answer,
        ):
            body = await answer.read()
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise InputError(
            f"no dashboard answers at {url} ({describe_unreachable(error)}): start `gpupack dashboard`, "
            "or name --prometheus URL or --history FILE"
        ) from error
    try:
        return msgspec.json.decode(body, type=Report)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        refused = _refusal(body)
        if refused:
            raise InputError(f"{url}: {make_printable(shorten(refused))}") from error
        said = shorten(body[:200].decode(errors="replace"))
        raise InputError(f"{url} answers {answer.status} {said!r}; allowed: a gpupack dashboard") from error


class _Refusal(msgspec.Struct):
    error: str


def _refusal(body: bytes) -> str:
    """Why a dashboard gives no report, in its words; empty where it says nothing."""
    try:
        return msgspec.json.decode(body, type=_Refusal).error
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return ""


def _written(moment_s: float) -> str:
    return datetime.fromtimestamp(moment_s, UTC).isoformat()


def _way_to(option: str, url: str) -> str | None:
    """Find the proxy on the way to a URL; None for a direct connection.

    Raises:
        InputError: the URL, or what the environment says of proxies, cannot be used.
    """
    if not url.startswith(("http://", "https://")):
        raise InputError(f"{option} {shown(url)}; allowed: http://HOST:PORT")
    try:
        return proxy_for(url, os.environ)
    except ValueError as error:
        raise InputError(f"{option} {shown(url)}: {error}") from error
    except ConfigError as error:
        raise InputError(str(error)) from error
