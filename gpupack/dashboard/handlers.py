"""Serves the page: files, one stream of events for each open page, and answers in JSON."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final, Protocol

import msgspec
from aiohttp import web

from allocator.errors import shown
from gpupack.dashboard.board import ClusterBoard
from gpupack.dashboard.page_hub import PageHub, PageState, TooManyPagesError
from gpupack.dashboard.settings import host_is_allowed
from gpupack.dashboard.telemetry import NodeCourse
from gpupack.diagnose import explain_pod
from gpupack.errors import InputError
from gpupack.inventory.objects import make_unknown_node_error
from gpupack.teams.handlers import read_fit_question
from gpupack.whatif import answer_fit
from gpupack.whatif.questions import Questions, TooManyQuestionsError
from kubeapi.errors import KubeApiError
from kubeapi.serving import Handler, serve_health, serve_shared

GAP_S: Final = 0.1
BEAT_S: Final = 15.0
"""How long without news until a page is told that the server is there."""
SLOW_S: Final = 60.0
"""A page that takes nothing for so long is closed; its browser connects again."""

HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}

_TYPES: Final = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".json": "application/json",
}


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file of the page."""

    body: bytes
    content_type: str
    etag: str


def load_files() -> dict[str, StaticFile]:
    found: dict[str, StaticFile] = {}

    def walk(folder: Traversable, prefix: str) -> None:
        for each in folder.iterdir():
            if each.is_dir():
                walk(each, f"{prefix}{each.name}/")
            else:
                body, suffix = each.read_bytes(), f".{each.name.rpartition('.')[2]}"
                etag = hashlib.sha256(body).hexdigest()[:16]
                found[prefix + each.name] = StaticFile(body, _TYPES.get(suffix, "text/plain"), etag)

    walk(files("gpupack.dashboard") / "static", "")
    return found


class PageAnswers(Protocol):
    """Answers what a page asks besides its stream, in JSON."""

    def has_node(self, name: str) -> bool: ...

    async def describe_node(self, name: str) -> bytes:
        """Describe one node's cards with their pods.

        Raises:
            InputError: there is no such node.
            KubeApiError: there is no answer; the other methods raise it too.
        """

    def find_nodes_with_pod(self, text: str) -> list[str]: ...

    async def explain_pod(self, namespace: str, pod: str) -> bytes:
        """Say what `gpupack why -o json` says.

        Raises:
            InputError: there is no such pod.
            TooManyQuestionsError: too many others wait for an answer; so for `count_fit`.
        """

    async def count_fit(self, query: Mapping[str, str]) -> bytes:
        """Say what `gpupack fit -o json` says.

        Raises:
            InputError: something is wrong with the question.
        """


class BoardAnswers:
    """Answers from a board; see `PageAnswers`."""

    def __init__(self, board: ClusterBoard, questions: Questions) -> None:
        self._board = board
        self._questions = questions

    def has_node(self, name: str) -> bool:
        return name in (self._board.nodes or {})

    async def describe_node(self, name: str) -> bytes:
        detail = self._board.make_detail(name)
        if detail is None:
            raise make_unknown_node_error([name])
        return msgspec.json.encode(detail)

    def find_nodes_with_pod(self, text: str) -> list[str]:
        return self._board.find_nodes_with_pod(text)

    async def explain_pod(self, namespace: str, pod: str) -> bytes:
        queued = self._board.find_queued(namespace, pod)
        return await self._questions.ask(
            lambda cluster: msgspec.json.encode(explain_pod(cluster, namespace, pod, queued=queued))
        )

    async def count_fit(self, query: Mapping[str, str]) -> bytes:
        question = read_fit_question({"units": "1", **query})
        return await self._questions.ask(lambda cluster: msgspec.json.encode(answer_fit(cluster, question)))


class DashboardHandlers:
    """Answers browsers.

    Args:
        advise: computes what waits and what fits, which otherwise happens only while a page is open.
    """

    def __init__(
        self,
        answers: PageAnswers,
        live: PageHub,
        advise: Callable[[], Awaitable[None]],
        ready: Callable[[], bool],
        usage: Callable[[Mapping[str, str]], bytes] | None,
        telemetry: Callable[[str], Awaitable[NodeCourse]],
        allowed_hosts: tuple[str, ...],
    ) -> None:
        self._answers = answers
        self._hub = live
        self._advise = advise
        self._ready = ready
        self._usage = usage
        self._telemetry = telemetry
        self._allowed_hosts = allowed_hosts
        self._files = load_files()
        self._ending = asyncio.Event()
        self._turn = asyncio.Lock()

    def make_app(self) -> web.Application:
        app = web.Application(middlewares=[self._guard])
        app.add_routes(
            [
                web.get("/", self.index),
                web.get("/static/{path:.+}", self.static),
                web.get("/api/events", self.events),
                serve_shared("/api/state", self._write_state),
                web.get("/api/node", self.node),
                web.get("/api/telemetry", self.telemetry),
                web.get("/api/find", self.find),
                web.get("/api/why", self.why),
                web.get("/api/fit", self.fit),
                web.get("/api/usage", self.usage),
                *serve_health(lambda: "" if self._ready() else "nodes are not read yet"),
            ]
        )
        return app

    def end_streams(self) -> None:
        self._ending.set()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse host names that may stand for this server by DNS rebinding; explain errors in one line."""
        host = request.headers.get("Host", "")
        if not host_is_allowed(host, self._allowed_hosts) and request.path not in {"/healthz", "/readyz"}:
            text = f"host {shown(host)}; allowed: localhost, IP addresses and --allowed-host NAME\n"
            return web.Response(text=text, status=421, headers=HEADERS)
        try:
            answer = await handler(request)
        except web.HTTPException as error:
            error.headers.update(HEADERS)
            raise
        if not answer.prepared:
            answer.headers.update(HEADERS)
        return answer

    async def index(self, request: web.Request) -> web.StreamResponse:
        """GET /."""
        return self._file(request, "index.html")

    async def static(self, request: web.Request) -> web.StreamResponse:
        """GET /static/PATH."""
        return self._file(request, request.match_info["path"])

    def _file(self, request: web.Request, path: str) -> web.Response:
        file = self._files.get(path)
        if file is None:
            raise web.HTTPNotFound
        if any(tag.value == file.etag for tag in request.if_none_match or ()):
            return web.Response(status=304, headers={"ETag": f'"{file.etag}"'})
        answer = web.Response(body=file.body, content_type=file.content_type, charset="utf-8")
        answer.etag = file.etag
        return answer

    async def _write_state(self) -> bytes:
        """Write everything that the page shows, for scripts."""
        if not self._hub.is_watched:
            with self._hub.open_page():
                await self._advise()
        return self._hub.encode_everything()

    async def node(self, request: web.Request) -> web.Response:
        """GET /api/node?name=NODE."""
        return await _answer(self._answers.describe_node(request.query.get("name", "")), 404)

    async def telemetry(self, request: web.Request) -> web.Response:
        """GET /api/telemetry?name=NODE: what one node's cards do, and did during the last ten minutes."""
        name = request.query.get("name", "")
        if not self._answers.has_node(name):
            error = NodeCourse(error=str(make_unknown_node_error([name])))
            return web.Response(body=msgspec.json.encode(error), content_type="application/json", status=404)
        course = await self._telemetry(name)
        return web.Response(body=msgspec.json.encode(course), content_type="application/json")

    async def find(self, request: web.Request) -> web.Response:
        """GET /api/find?pod=TEXT: nodes with a pod whose namespace/name has this in it."""
        async with self._in_turn():
            found = self._answers.find_nodes_with_pod(request.query.get("pod", ""))
        return web.Response(body=msgspec.json.encode({"nodes": found}), content_type="application/json")

    async def why(self, request: web.Request) -> web.Response:
        """GET /api/why?namespace=NAMESPACE&pod=POD."""
        query = request.query
        return await _answer(
            self._answers.explain_pod(query.get("namespace", "default"), query.get("pod", "")), 404
        )

    async def fit(self, request: web.Request) -> web.Response:
        """GET /api/fit?units=N,N and what `read_fit_question` reads besides."""
        return await _answer(self._answers.count_fit(request.query), 400)

    @asynccontextmanager
    async def _in_turn(self) -> AsyncIterator[None]:
        """Do something that takes a moment, one at a time: probes are answered between two."""
        async with self._turn:
            yield
            await asyncio.sleep(0)

    async def usage(self, request: web.Request) -> web.Response:
        """GET /api/usage: what this process has sampled; see `gpupack usage --dashboard`."""
        if self._usage is None:
            return web.json_response({"error": "use is not recorded here"}, status=404)
        try:
            async with self._in_turn():
                body = self._usage(request.query)
        except ValueError as error:
            return web.json_response({"error": str(error)}, status=400)
        return web.Response(body=body, content_type="application/json")

    async def events(self, request: web.Request) -> web.StreamResponse:
        """GET /api/events: everything, and then what changes, as server-sent events."""
        try:
            with self._hub.open_page() as page:
                return await self._stream(request, page)
        except TooManyPagesError as error:
            return web.Response(text=f"{error}\n", status=503, headers={"Retry-After": "30"})

    async def _stream(self, request: web.Request, page: PageState) -> web.StreamResponse:
        headers = {**HEADERS, "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        answer = web.StreamResponse(headers=headers)
        answer.content_type = "text/event-stream"
        await answer.prepare(request)
        try:
            await _send(answer, b"event: whole\ndata: " + self._hub.encode_everything() + b"\n\n")
            while not self._ending.is_set():
                if await self._wait(page):
                    await _send(answer, b"event: news\ndata: " + self._hub.encode_changes(page) + b"\n\n")
                else:
                    await _send(answer, b": still here\n\n")
        except (ConnectionError, TimeoutError):
            if request.transport is not None:
                request.transport.abort()
        return answer

    async def _wait(self, page: PageState) -> bool:
        """Wait for news, the end, or the next beat; return True if there is news."""
        waits = [asyncio.ensure_future(page.has_changes.wait()), asyncio.ensure_future(self._ending.wait())]
        try:
            await asyncio.wait(waits, timeout=BEAT_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
        if page.has_changes.is_set() and not self._ending.is_set():
            await asyncio.sleep(GAP_S)
            return True
        return False


async def _answer(asked: Awaitable[bytes], status: int) -> web.Response:
    """Answer in JSON, or with `status` where something is wrong with the question."""
    try:
        return web.Response(body=await asked, content_type="application/json")
    except InputError as error:
        return web.json_response({"error": str(error)}, status=status)
    except TooManyQuestionsError as error:
        return web.json_response({"error": str(error)}, status=429, headers={"Retry-After": "5"})
    except KubeApiError as error:
        return web.json_response({"error": str(error)}, status=502)


async def _send(answer: web.StreamResponse, message: bytes) -> None:
    """Write one message; returns when the connection has taken most of it.

    Raises:
        ConnectionError: the page is closed.
        TimeoutError: it takes nothing.
    """
    async with asyncio.timeout(SLOW_S):
        await answer.write(message)
