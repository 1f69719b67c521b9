"""`gpupack queue status`: usage of the queues, waiting pods and why they wait, from the queue's leader."""

import os
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from gpupack.errors import InputError
from gpupack.inventory.fetching import connect
from gpupack.terminal import cell_width, short_age
from kubeapi.errors import UNREADABLE, NotFound, ServerError, describe_unreachable, make_printable
from kubeapi.paths import make_service_path
from kubeapi.urls import check_url, find_proxy
from scheduler_plugin.queue.controller.status import QueueReport, WaitExplanation

STATUS_PATH: Final = "/status"
TIMEOUT_S: Final = 10.0


class NoQueueError(InputError):
    """Nobody takes connections at the address of a queue."""


class QueueStatusAnswer(msgspec.Struct, frozen=True):
    """The queue's answer to `/status`.

    Attributes:
        pods: Pods that wait, by queue and position.
        trouble: Why nothing is admitted, empty for nothing.
        fault: Why the newest configuration is not in force, empty for nothing.
        warning: What about the configuration this cluster cannot keep, empty for nothing.
    """

    queues: tuple[QueueReport, ...]
    pods: tuple[WaitExplanation, ...]
    trouble: str = ""
    fault: str = ""
    warning: str = ""
    mode: str = "gate"


async def fetch(kubeconfig: str | None, context: str | None, namespace: str, service: str) -> bytes:
    """Ask the queue through the API server.

    Raises:
        KubeApiError: there is no way to it.
    """
    path = make_service_path(namespace, service, "status")
    where = f"the Service {service} in namespace {namespace}"
    async with await connect(kubeconfig, context) as client:
        try:
            return await client.get(path)
        except NotFound as error:
            raise NotFound(
                f"no queue here: {where} is not there; docs/queue.md says how to start one",
                status=error.status,
            ) from error
        except ServerError as error:
            raise ServerError(
                f"{where} does not answer: is the queue installed (docs/queue.md), and a pod of it Ready? "
                f"({error.message})",
                status=error.status,
            ) from error


async def fetch_from(url: str) -> bytes:
    """Ask a queue at its own address, without the API server.

    Raises:
        NoQueueError: nobody takes connections there.
        InputError: no answer within `TIMEOUT_S` seconds, or an answer that is no success.
        ConfigError: a URL that is none, of the queue or in the environment as that of a proxy.
    """
    import aiohttp  # noqa: PLC0415 - the way through the API server does without it

    base = url.rstrip("/").removesuffix(STATUS_PATH)
    check_url("--url", url)
    proxy = find_proxy(base, os.environ)
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S), proxy=proxy) as session,
            session.get(f"{base}{STATUS_PATH}") as response,
        ):
            body = await response.read()
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        kind = NoQueueError if isinstance(error, aiohttp.ClientConnectorError) else InputError
        raise kind(f"no queue answers at {base}: {describe_unreachable(error)}") from error
    if not response.ok:
        raise InputError(f"{base}{STATUS_PATH} answers {response.status}: is it a queue?")
    return body


def read(raw: bytes, queue: str | None = None) -> QueueStatusAnswer:
    """Read an answer, of all queues or of one.

    Raises:
        InputError: it is none, or there is no such queue.
    """
    try:
        status = msgspec.json.decode(raw, type=QueueStatusAnswer)
    except UNREADABLE as error:
        raise InputError(f"the answer is not a queue's: {error}") from error
    if queue is None:
        return status
    names = [each.name for each in status.queues]
    if queue not in names:
        raise InputError(f"queue {queue!r} does not exist; allowed: {', '.join(names)}")
    queues = tuple(each for each in status.queues if each.name == queue)
    pods = tuple(pod for pod in status.pods if pod.queue == queue)
    return msgspec.structs.replace(status, queues=queues, pods=pods)


def render(status: QueueStatusAnswer, *, pods: bool) -> str:
    """Write tables: of the queues, and of the pods that wait if they are wanted."""
    parts = [f"nothing is admitted: {make_printable(status.trouble)}"] if status.trouble else []
    if status.fault:
        faults = map(make_printable, status.fault.splitlines())
        parts.append("\n".join(["the newest configuration is not in force:", *faults]))
    if status.warning:
        parts.append(f"warning: {make_printable(status.warning)}")
    parts.append(_table(_QUEUE_HEADER, map(_queue, status.queues)))
    if pods:
        parts.append(_table(_POD_HEADER, map(_pod, status.pods)) if status.pods else "no pod waits")
    return "\n\n".join(parts)


_QUEUE_HEADER = (
    "QUEUE",
    "COHORT",
    "WEIGHT",
    "NOMINAL",
    "USED",
    "BORROWED",
    "LENT",
    "RUNNING",
    "WAITING",
    "OLDEST",
    "STOP",
)
_POD_HEADER = ("QUEUE", "POSITION", "POD", "GANG", "WAITS", "REASON", "WHY")


def _queue(queue: QueueReport) -> Sequence[str]:
    return (
        queue.name,
        queue.cohort or "-",
        f"{queue.weight:g}",
        "-" if queue.nominal is None else str(queue.nominal),
        str(queue.used),
        str(queue.borrowed),
        str(queue.lent),
        str(queue.running),
        str(queue.waiting),
        short_age(queue.oldest_wait_s) if queue.waiting else "-",
        queue.stop,
    )


def _pod(pod: WaitExplanation) -> Sequence[str]:
    return (
        pod.queue or "-",
        str(pod.position) if pod.position else "-",
        f"{pod.namespace}/{pod.name}",
        _gang(pod),
        short_age(pod.waits_s),
        pod.reason,
        pod.message,
    )


def _gang(pod: WaitExplanation) -> str:
    if not pod.gang:
        return "-"
    return f"{pod.gang} ({pod.gang_size})" if pod.gang_size else pod.gang


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, *([make_printable(cell) for cell in row] for row in rows)]
    widths = [max(cell_width(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(_line(line, widths) for line in lines)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (text + " " * (width - cell_width(text)) for text, width in zip(cells, widths, strict=True))
    return "  ".join(padded).rstrip()
