"""Reads use from Prometheus or a running dashboard, and makes the report of it."""

import os
from datetime import UTC, datetime

import aiohttp
import msgspec

from gpupack.errors import InputError
from gpupack.usage.prometheus import Prometheus, compute_step_s
from gpupack.usage.report import UsageKey, UsageReport, build_report
from kubeapi.errors import UNREADABLE, describe_unreachable, make_printable, shorten, shorten_body
from kubeapi.urls import check_url, find_proxy


async def report_from_prometheus(
    url: str, token: str, by: UsageKey, since: float, until: float
) -> UsageReport:
    """Ask Prometheus.

    Raises:
        InputError: it does not answer, knows nothing of gpupack, or answers something else.
        ConfigError: a URL that is none, also of a proxy in the environment.
    """
    check_url("--prometheus", url)
    async with aiohttp.ClientSession(proxy=find_proxy(url, os.environ)) as session:
        prometheus = Prometheus(session, url, token)
        periods = [
            period
            async for period in prometheus.fetch_periods(since, until, compute_step_s(since, until), by.label)
        ]
    if not any(period.pods for period in periods):
        raise InputError(
            f"{url} has no metrics of gpupack node for this time; docs/observability.md says how it gets them"
        )
    return build_report(periods, by, since, until, f"Prometheus at {url}")


async def report_from_dashboard(url: str, by: UsageKey, since: float, until: float) -> UsageReport:
    """Ask a running dashboard what it has sampled.

    Raises:
        InputError: none runs there, or it has no report; with its own sentence then.
        ConfigError: as `report_from_prometheus`.
    """
    check_url("--dashboard", url)
    proxy = find_proxy(url, os.environ)
    params = {"by": str(by), "since": _write_report(since), "until": _write_report(until)}
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60), proxy=proxy) as session,
            session.get(f"{url.rstrip('/')}/api/usage", params=params) as answer,
        ):
            body = await answer.read()
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise InputError(
            f"no dashboard answers at {url} ({describe_unreachable(error)}): start `gpupack dashboard`, "
            "or name --prometheus URL"
        ) from error
    try:
        return msgspec.json.decode(body, type=UsageReport)
    except UNREADABLE as error:
        refused = _read_error(body)
        if refused:
            raise InputError(f"{url}: {make_printable(shorten(refused))}") from error
        said = f"{answer.status} {shorten_body(body)!r}"
        raise InputError(f"{url} answers {said}; allowed: a gpupack dashboard") from error


class _ErrorAnswer(msgspec.Struct):
    error: str


def _read_error(body: bytes) -> str:
    """Read why a dashboard gives no report, in its own words; empty if it does not say."""
    try:
        return msgspec.json.decode(body, type=_ErrorAnswer).error
    except UNREADABLE:
        return ""


def _write_report(moment_s: float) -> str:
    return datetime.fromtimestamp(moment_s, UTC).isoformat()
