"""Members' questions over HTTP. A denial reads the same whatever its reason and the namespace."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
import structlog
from aiohttp import web

from allocator.errors import shown
from allocator.request import MAX_CARDS, MAX_UNITS
from gpupack.errors import InputError
from gpupack.teams import DENIED, TOKEN_HEADER
from gpupack.teams.answers import count_fit_for_member, explain_own_pod, list_own_pods
from gpupack.teams.reviews import MemberReviewer, TooManyReviewsError
from gpupack.whatif import FitQuestion
from gpupack.whatif.cluster import Cluster
from kubeapi.errors import KubeApiError
from kubeapi.names import is_label
from kubeapi.ratelimit import TokenBucket

if TYPE_CHECKING:
    from scheduler_plugin.queue.controller.status import WaitExplanation as QueueWhy

FindQueued = Callable[[str, str], "Sequence[QueueWhy] | None"]
Answer = Callable[[Cluster, str, Mapping[str, str]], Awaitable[msgspec.Struct]]
"""Answers a question from the cluster, for a namespace; values of the query besides."""

NAMESPACE_BURST, NAMESPACE_REFILL_S = 10, 1.0
"""Questions of one namespace at once, and seconds for one more."""
MAX_CONTAINERS: Final = 16
MAX_TEXT: Final = 2048
"""Characters of a value."""

TOO_MANY: Final = "too many questions: ask again in some seconds"
NOT_READY: Final = "not ready: nodes and pods are not read yet"
UNCHECKED: Final = "the API server did not say whether you may ask: ask again in some seconds"

log = structlog.get_logger(__name__)


class _RefusedError(Exception):
    """An answer that is none, with its HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class MemberHandlers:
    """Answers the members of namespaces.

    Args:
        reviewer: Says who may ask.
        get_cluster: The cluster as it is now; None before it was read.
        find_queued: What the queue says of a pod, by namespace and name.
        more: Answers to further questions, by their names.
        clock: Monotonic seconds.
        now_s: Seconds since the epoch.
    """

    def __init__(
        self,
        reviewer: MemberReviewer,
        get_cluster: Callable[[], Cluster | None],
        find_queued: FindQueued,
        more: Mapping[str, Answer] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._reviewer = reviewer
        self._get_cluster = get_cluster
        self._find_queued = find_queued
        self._answers: dict[str, Answer] = {"why": self._explain, "fit": _count, **(more or {})}
        self._clock = clock
        self._now_s = now_s
        self._buckets: dict[str, TokenBucket] = {}
        self._turn = asyncio.Lock()

    def make_app(self) -> web.Application:
        """Build the application."""
        app = web.Application(client_max_size=1024)
        app.add_routes(
            [
                web.get("/why", self.answer),
                web.get("/fit", self.answer),
                web.get("/page", self.answer),
                web.get("/node", self.answer),
            ]
        )
        return app

    async def _explain(self, cluster: Cluster, namespace: str, query: Mapping[str, str]) -> msgspec.Struct:
        """GET /why?namespace=NAMESPACE&pod=POD, or &workload=KIND/NAME, or neither: all that wait."""
        pod = query.get("pod", "")
        if pod:
            return explain_own_pod(cluster, namespace, pod, self._find_queued(namespace, pod))
        names = (pod.metadata.name for pod in cluster.pods.values() if pod.metadata.namespace == namespace)
        queued = [each for name in names for each in self._find_queued(namespace, name) or ()]
        return list_own_pods(cluster, namespace, query.get("workload", ""), self._now_s(), queued)

    async def answer(self, request: web.Request) -> web.Response:
        """GET /QUESTION?namespace=NAMESPACE and what the question takes besides."""
        answer = self._answers.get(request.path.removeprefix("/"))
        if answer is None:
            raise web.HTTPNotFound
        try:
            namespace = await self._check_member(request)
            async with self._turn:
                cluster = self._read_cluster()
                _check_lengths(request.query)
                found = await answer(cluster, namespace, request.query)
                # Others of this process have their turn before the next question is answered.
                await asyncio.sleep(0)
        except InputError as error:
            return _refuse(422, str(error))
        except _RefusedError as error:
            return _refuse(error.status, str(error))
        return web.Response(body=msgspec.json.encode(found), content_type="application/json")

    def _read_cluster(self) -> Cluster:
        cluster = self._get_cluster()
        if cluster is None:
            raise _RefusedError(503, NOT_READY)
        return cluster

    async def _check_member(self, request: web.Request) -> str:
        """Check that a member asks, and not too often; returns the namespace.

        Raises:
            _RefusedError: what to answer.
        """
        namespace = request.query.get("namespace", "")
        token = request.headers.get(TOKEN_HEADER, "")
        try:
            if not (token and is_label(namespace) and await self._reviewer.is_member(token, namespace)):
                raise _RefusedError(403, DENIED)
        except TooManyReviewsError as error:
            raise _RefusedError(429, TOO_MANY) from error
        except KubeApiError as error:
            log.warning("a member's token cannot be reviewed", error=str(error))
            raise _RefusedError(503, UNCHECKED) from error
        if not self._take_turn(namespace):
            raise _RefusedError(429, TOO_MANY)
        return namespace

    def _take_turn(self, namespace: str) -> bool:
        """Tell whether the namespace's members asked seldom enough."""
        bucket = self._buckets.get(namespace)
        if bucket is None:  # only of namespaces with members, so there are no more than namespaces
            bucket = TokenBucket(NAMESPACE_BURST, NAMESPACE_REFILL_S, self._clock)
            self._buckets[namespace] = bucket
        return bucket.take()


async def _count(cluster: Cluster, namespace: str, query: Mapping[str, str]) -> msgspec.Struct:
    """GET /fit?namespace=NAMESPACE&units=N,N and what `read_fit_question` reads besides."""
    return count_fit_for_member(cluster, namespace, read_fit_question(query))


def read_fit_question(query: Mapping[str, str]) -> FitQuestion:
    """Read what is asked about.

    Raises:
        InputError: a number is none, or too large.
    """
    first, *more = (_number("units", text, MAX_UNITS) for text in query.get("units", "").split(","))
    if len(more) >= MAX_CONTAINERS:
        raise InputError(f"units of {len(more) + 1} containers; allowed: at most {MAX_CONTAINERS}")
    return FitQuestion(
        first,
        _number("cards", query.get("cards", "1"), MAX_CARDS),
        query.get("model", ""),
        _is_set(query, "percent"),
        tuple(more),
        _is_set(query, "mixed-models"),
        query.get("containers", ""),
    )


def _number(name: str, text: str, most: int) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text) or not 1 <= int(text) <= most:
        raise InputError(f"{name} {shown(text)}; allowed: 1 to {most}")
    return int(text)


def _is_set(query: Mapping[str, str], name: str) -> bool:
    return query.get(name, "") not in {"", "0"}


def _check_lengths(query: Mapping[str, str]) -> None:
    for name, value in query.items():
        if len(value) > MAX_TEXT:
            raise InputError(f"{shown(name)} has {len(value)} characters; allowed: {MAX_TEXT}")


def _refuse(status: int, message: str) -> web.Response:
    """Refuse in the form of the API server's errors, which clients of it read."""
    headers = {"Retry-After": "5"} if status in {429, 503} else None
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status, "message": message}
    return web.json_response(body, status=status, headers=headers)
