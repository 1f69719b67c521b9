"""Use from Prometheus: what the node daemons said of each container, in regular steps."""

import math
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import aiohttp
import msgspec

from allocator.names import MIB
from gpupack.errors import InputError
from gpupack.usage.records import Period, PodUse
from kubeapi.errors import UNREADABLE, describe_unreachable, shorten, shorten_body

PROMISED: Final = "gpupack_container_promised_bytes"
USED: Final = "gpupack_container_used_bytes"
LABELS: Final = "kube_pod_labels"
"""A metric of kube-state-metrics, which must be told to have the label (--metric-labels-allowlist)."""

POD: Final = "namespace, pod, exported_namespace, exported_pod"
"""A scrape configuration that sets `pod` to the daemon's own keeps ours as `exported_pod`."""

_IS_MEASURED: Final = f"({USED} >= 0)"
"""No comparison is true of NaN."""
EXPRESSIONS: Final = {
    "promised": f"sum by ({POD}) ({PROMISED})",
    "used": f"sum by ({POD}) ({_IS_MEASURED} and {PROMISED})",
    # What was promised to those containers, on those cards and at those moments whose use was measured.
    "measured": f"sum by ({POD}) ({PROMISED} and {_IS_MEASURED})",
}

AMBIGUOUS: Final = "(ambiguous)"
CONFLICTS: Final = 4
"""Labels of one pod that kube-state-metrics gives one name and numbers, at most."""

STEPS: Final = 2000
"""Points of one query; Prometheus answers 11 000 at most."""
MIN_STEP_S: Final = 15
TIMEOUT_S: Final = 120


class PrometheusError(InputError):
    """Prometheus does not answer, or answers something else."""


class _Series(msgspec.Struct):
    metric: dict[str, str]
    values: list[tuple[float, str]]


class _QueryData(msgspec.Struct):
    result: list[_Series]


class _Answer(msgspec.Struct):
    status: str
    data: _QueryData | None = None
    error: str = ""


class Prometheus:
    """Asks one Prometheus, at a URL without `/api/v1`."""

    def __init__(self, session: aiohttp.ClientSession, url: str, token: str) -> None:
        self._session = session
        self._url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    async def fetch_periods(
        self, since: float, until: float, step_s: float, label: str
    ) -> AsyncIterator[Period]:
        """Ask what pods had, a period of many steps at a time; a step counts with what was there at its end.

        Raises:
            PrometheusError: it does not answer, or answers something else.
        """
        start = since
        while start < until:
            end = min(until, start + STEPS * step_s)
            yield await self._fetch_period(start, end, step_s, label)
            start = end

    async def _fetch_period(self, start: float, end: float, step_s: float, label: str) -> Period:
        promised, seen = await self._fetch_sums("promised", start, end, step_s)
        used, _ = await self._fetch_sums("used", start, end, step_s)
        measured, _ = await self._fetch_sums("measured", start, end, step_s)
        labels = await self._fetch_labels(label, end, end - start) if label else {}
        pods = [
            PodUse(
                key[0],
                key[1],
                "/".join(key),
                labels.get(key, {}),
                amount / MIB,
                used[key] / MIB if key in used else None,
                measured.get(key, 0.0) / MIB,
            )
            for key, amount in promised.items()
        ]
        return Period(start, end, min(seen * step_s, end - start), pods)

    async def _fetch_sums(
        self, what: str, start: float, end: float, step_s: float
    ) -> tuple[dict[tuple[str, str], float], int]:
        """Sum bytes times seconds by namespace and pod, and count the steps at which anything was there."""
        query = EXPRESSIONS[what]
        answer = await self._query("query_range", query=query, start=start + step_s, end=end, step=step_s)
        sums: dict[tuple[str, str], float] = {}
        moments: set[float] = set()
        for series in answer.result:
            key = _pod_of(series.metric)
            for at, text in series.values:
                value = float(text)
                if math.isfinite(value):
                    sums[key] = sums.get(key, 0.0) + value * step_s
                    moments.add(at)
        return sums, len(moments)

    async def _fetch_labels(
        self, label: str, end: float, span_s: float
    ) -> dict[tuple[str, str], dict[str, str]]:
        answer = await self._query("query", query=make_label_query(label, span_s), time=end)
        names = list_label_names(label)
        found: dict[tuple[str, str], dict[str, str]] = {}
        for series in answer.result:
            values = {series.metric[name] for name in names if series.metric.get(name)}
            if values:
                found[_pod_of(series.metric)] = {label: values.pop() if len(values) == 1 else AMBIGUOUS}
        return found

    async def _query(self, what: str, **params: str | float) -> _QueryData:
        url = f"{self._url}/api/v1/{what}"
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        form = {name: str(value) for name, value in params.items()}
        try:
            async with self._session.post(url, data=form, headers=self._headers, timeout=timeout) as answer:
                body = await answer.read()
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise PrometheusError(f"{self._url} does not answer: {describe_unreachable(error)}") from error
        try:
            found = msgspec.json.decode(_as_series(body), type=_Answer)
        except (*UNREADABLE, TypeError, AttributeError) as error:
            said = f"{answer.status} {shorten_body(body)!r}"
            raise PrometheusError(f"{url} answers {said}; allowed: the API of Prometheus") from error
        if found.status != "success" or found.data is None:
            raise PrometheusError(f"{url} refuses the question: {shorten(found.error or found.status)}")
        return found.data


def _as_series(body: bytes) -> bytes:
    """Write the answer to an instant query as that to a query of a range with one value."""
    found: Any = msgspec.json.decode(body)
    data = found.get("data") or {}
    if data.get("resultType") == "vector":
        for series in data["result"]:
            series["values"] = [series.pop("value")]
    return msgspec.json.encode(found)


def _pod_of(labels: Mapping[str, str]) -> tuple[str, str]:
    return (
        labels.get("exported_namespace") or labels.get("namespace", ""),
        labels.get("exported_pod") or labels.get("pod", ""),
    )


def list_label_names(label: str) -> list[str]:
    """Write a label's key as kube-state-metrics does in `internal/store/utils.go`: costCenter, cost_center.

    Several labels of a pod that become one name get numbers, in the order of their keys. The names alone do
    not say which is which.
    """
    plain = re.sub("[^a-zA-Z0-9_]", "_", label)
    name = "label_" + re.sub("([a-z0-9])([A-Z])", r"\1_\2", plain).lower()
    return [name, *(f"{name}_conflict{number}" for number in range(1, CONFLICTS + 1))]


def make_label_query(label: str, span_s: float) -> str:
    """Ask for a label of all pods, at any time of the last seconds."""
    by = ", ".join([POD, *list_label_names(label)])
    return f"max by ({by}) (max_over_time({LABELS}[{max(1, round(span_s))}s]))"


def compute_step_s(since: float, until: float) -> float:
    """Compute the seconds of a step, so that a span has some thousand steps."""
    return max(MIN_STEP_S, math.ceil((until - since) / (2 * STEPS)))
