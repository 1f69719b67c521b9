"""Members' questions over HTTP. A denial reads the same whatever its reason and the namespace."""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
import structlog
from aiohttp import web

from allocator.errors import shown
from allocator.request import MAX_POD_CARDS, MAX_UNITS, WHOLE
from gpupack.errors import InputError
from gpupack.teams import DENIED, TOKEN_HEADER
from gpupack.teams.answers import count_fit_for_member, explain_own_pod, list_own_pods
from gpupack.teams.reviews import MemberReviewer, TooManyReviewsError
from gpupack.whatif import FitQuestion
from gpupack.whatif.cluster import Cluster
from gpupack.whatif.questions import Questions, TooLargeQuestionError, TooManyQuestionsError, WorkBudget
from kubeapi.errors import KubeApiError
from kubeapi.names import is_label
from kubeapi.ratelimit import KeyedTokenBuckets

if TYPE_CHECKING:
    from scheduler_plugin.queue.controller.status import WaitExplanation as QueueWhy

FindQueued = Callable[[str, str], "Sequence[QueueWhy] | None"]
Answer = Callable[[Cluster, str, Mapping[str, str], WorkBudget], msgspec.Struct]
"""Answers a question from the cluster, for a namespace, by the values of its query and within a budget."""

NAMESPACE_BURST, NAMESPACE_REFILL_S = 10, 1.0
"""Questions of one namespace at once, and seconds for one more."""
MOST_NAMESPACES: Final = 10_000
"""Namespaces whose questions are counted."""
CPU_S_OF_A_QUESTION: Final = 0.1
"""Processor time of one question; what takes more counts as several questions."""
MAX_CONTAINERS: Final = 16
MAX_TEXT: Final = 2048
"""Longest value of a query."""

TOO_MANY: Final = "too many questions: ask again in some seconds"
NOT_READY: Final = "not ready: nodes and pods are not read yet"
UNCHECKED: Final = "the API server did not say whether you may ask: ask again in some seconds"

log = structlog.get_logger(__name__)


class _RefusedError(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class MemberHandlers:
    """Answers the members of namespaces."""

    def __init__(
        self,
        reviewer: MemberReviewer,
        questions: Questions,
        is_ready: Callable[[], bool],
        find_queued: FindQueued,
        more: Mapping[str, Answer] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        now_s: Callable[[], float] = time.time,
        make_budget: Callable[[], WorkBudget] = WorkBudget,
    ) -> None:
        self._reviewer = reviewer
        self._questions = questions
        self._is_ready = is_ready
        self._find_queued = find_queued
        self._answers: dict[str, Answer] = {"why": self._explain, "fit": _count, **(more or {})}
        self._now_s = now_s
        self._make_budget = make_budget
        self._turns: KeyedTokenBuckets[str] = KeyedTokenBuckets(
            NAMESPACE_BURST, NAMESPACE_REFILL_S, clock, MOST_NAMESPACES
        )

    def make_app(self) -> web.Application:
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

    def _explain(
        self, cluster: Cluster, namespace: str, query: Mapping[str, str], budget: WorkBudget
    ) -> msgspec.Struct:
        """GET /why?namespace=NAMESPACE&pod=POD, or &workload=KIND/NAME, or neither: all that wait."""
        pod = query.get("pod", "")
        if pod:
            return explain_own_pod(cluster, namespace, pod, self._find_queued(namespace, pod))
        names = (pod.metadata.name for pod in cluster.pods.values() if pod.metadata.namespace == namespace)
        queued = [each for name in names for each in self._find_queued(namespace, name) or ()]
        return list_own_pods(cluster, namespace, query.get("workload", ""), self._now_s(), queued, budget)

    async def answer(self, request: web.Request) -> web.Response:
        """GET /QUESTION?namespace=NAMESPACE and what the question takes besides."""
        answer = self._answers.get(request.path.removeprefix("/"))
        if answer is None:
            raise web.HTTPNotFound
        try:
            namespace = await self._check_member(request)
            self._check_ready()
            _check_lengths(request.query)
            body = await self._ask(answer, namespace, request.query)
        except InputError as error:
            return _refuse(422, str(error))
        except TooLargeQuestionError as error:
            return _refuse(413, str(error))
        except TooManyQuestionsError:
            return _refuse(429, TOO_MANY)
        except _RefusedError as error:
            return _refuse(error.status, str(error))
        return web.Response(body=body, content_type="application/json")

    async def _ask(self, answer: Answer, namespace: str, query: Mapping[str, str]) -> bytes:
        spent_s = 0.0

        def work(cluster: Cluster) -> bytes:
            nonlocal spent_s
            budget = self._make_budget()
            try:
                return msgspec.json.encode(answer(cluster, namespace, query, budget))
            finally:
                spent_s = budget.spent_s

        try:
            return await self._questions.ask(work)
        finally:
            for _ in range(int(spent_s / CPU_S_OF_A_QUESTION)):
                self._turns.reserve(namespace)

    def _check_ready(self) -> None:
        if not self._is_ready():
            raise _RefusedError(503, NOT_READY)

    async def _check_member(self, request: web.Request) -> str:
        """Check that a member asks, and not too often; return the namespace."""
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
        if not self._turns.take(namespace):
            raise _RefusedError(429, TOO_MANY)
        return namespace


def _count(cluster: Cluster, namespace: str, query: Mapping[str, str], _budget: WorkBudget) -> msgspec.Struct:
    """GET /fit?namespace=NAMESPACE&units=N,N and what `read_fit_question` reads besides."""
    return count_fit_for_member(cluster, namespace, read_fit_question(query))


FIT_PARAMETERS: Final = (
    "units",
    "cards",
    "model",
    "percent",
    "mixed-models",
    "containers",
    "gang",
    "compute",
)
"""What `read_fit_question` reads."""


def read_fit_question(query: Mapping[str, str]) -> FitQuestion:
    first, *more = (_number("units", text, MAX_UNITS) for text in query.get("units", "").split(","))
    if len(more) >= MAX_CONTAINERS:
        raise InputError(f"units of {len(more) + 1} containers; allowed: at most {MAX_CONTAINERS}")
    return FitQuestion(
        first,
        _number("cards", query.get("cards", "1"), MAX_POD_CARDS),
        query.get("model", ""),
        _is_set(query, "percent"),
        tuple(more),
        _is_set(query, "mixed-models"),
        query.get("containers", ""),
        _number("gang", query["gang"], MAX_UNITS) if query.get("gang") else 0,
        _number("compute", query["compute"], WHOLE) if _is_set(query, "compute") else 0,
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
