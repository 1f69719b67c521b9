"""HTTP of the API server stand-in: verbs, media types and lists on top of its store."""

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from standins.apiserver.paths import Place, discovery, parse_path
from standins.apiserver.select import Matcher, matcher
from standins.apiserver.status import (
    JsonObject,
    RefusedError,
    Resource,
    bad_request,
    no_such_path,
)
from standins.apiserver.store import Key, Store, StoredEntry, encode, too_large
from standins.apiserver.watch import Watch, whole
from standins.apiserver.writes import Writer

Intercept = Callable[[web.Request], Awaitable[web.Response | None]]

_VERSION = {"major": "1", "minor": "37", "gitVersion": "v1.37.1+gpupack-standin", "platform": "any"}
_TEXT_PATHS = frozenset({"/healthz", "/readyz", "/livez"})
_CREATED = 201


class Handlers:
    """Answers requests; the knobs are the attributes.

    Attributes:
        bind_latency_s: wait before a binding is made.
        bind_answer_latency_s: wait after a binding was made, before it is answered.
        bookmark_s: time between bookmarks of a watch.
        gone_as_status: answer a watch from too old a version with HTTP 410, not with an ERROR event.
        intercept: asked first for every request; an answer of its is final.
        requests: how often which (method, resource, subresource) was asked; "WATCH" is a method here.
    """

    def __init__(self, store: Store, writer: Writer) -> None:
        self._store = store
        self._writer = writer
        self.latency_s = 0.0
        self.bind_latency_s = 0.0
        self.bind_answer_latency_s = 0.0
        self.bookmark_s = 60.0
        self.gone_as_status = False
        self.intercept: Intercept | None = None
        self.requests: Counter[tuple[str, str, str]] = Counter()
        self.watches: set[Watch] = set()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if self.latency_s:
            await asyncio.sleep(self.latency_s)
        if self.intercept is not None:
            answer = await self.intercept(request)
            if answer is not None:
                return answer
        try:
            return await self._route(request)
        except RefusedError as refused:
            return _json(refused.body, refused.code)

    async def _route(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        if path in _TEXT_PATHS:
            return web.Response(text="ok")
        if path == "/version":
            return _json(_VERSION)
        discovered = discovery(path)
        if discovered is not None:
            return _json(discovered)
        place = parse_path(path)
        if place is None:
            if path.startswith(("/api/", "/apis/")):
                raise no_such_path()
            return web.Response(status=404, text="404 page not found\n")
        watching = request.query.get("watch") in {"1", "true"} and not place.name
        method = "WATCH" if watching else request.method
        self.requests[method, place.resource.plural, place.part] += 1
        if watching:
            return await self._watch(request, place)
        handler = {
            ("GET", True): self._get,
            ("PUT", True): self._put,
            ("PATCH", True): self._patch,
            ("DELETE", True): self._delete,
            ("POST", True): self._bind,
            ("GET", False): self._list,
            ("POST", False): self._create,
            ("DELETE", False): self._delete_all,
        }.get((request.method, bool(place.name)))
        if handler is None or (place.part == "binding") != (handler == self._bind):
            message = "the server does not allow this method on the requested resource"
            raise RefusedError(405, "MethodNotAllowed", message, {})
        return await handler(request, place)

    async def _get(self, _request: web.Request, place: Place) -> web.Response:
        return _object(place.resource, self._writer.found(place.resource, place.key))

    async def _create(self, request: web.Request, place: Place) -> web.Response:
        body = await _body(request, place.resource)
        entry = self._writer.create(place.resource, place.namespace, body)
        return _object(place.resource, entry, _CREATED)

    async def _put(self, request: web.Request, place: Place) -> web.Response:
        body = await _body(request, place.resource)
        entry, created = self._writer.replace(place.resource, place.key, body, place.part)
        return _object(place.resource, entry, _CREATED if created else 200)

    async def _patch(self, request: web.Request, place: Place) -> web.Response:
        try:
            patch = json.loads(await request.read())
        except ValueError as error:
            raise bad_request("invalid JSON patch") from error
        entry = self._writer.patch(place.resource, place.key, patch, request.content_type, place.part)
        return _object(place.resource, entry)

    async def _delete(self, request: web.Request, place: Place) -> web.Response:
        return self._deleted(place.resource, place.key, await _delete_options(request))

    def _deleted(self, resource: Resource, key: Key, options: JsonObject) -> web.Response:
        answer, entry = self._writer.delete(resource, key, options)
        return _object(resource, entry) if entry is not None else _json(answer)

    async def _delete_all(self, request: web.Request, place: Place) -> web.Response:
        entries = self._store.select(place.resource, place.namespace, _matcher(request, place.resource))
        options = await _delete_options(request)
        for entry in entries:
            metadata = entry.item["metadata"]
            self._deleted(place.resource, (metadata.get("namespace", ""), metadata["name"]), options)
        return web.Response(
            body=_list_body(place.resource, entries, self._store.version), content_type="application/json"
        )

    async def _bind(self, request: web.Request, place: Place) -> web.Response:
        body = await _body(request, place.resource)
        if self.bind_latency_s:
            await asyncio.sleep(self.bind_latency_s)
        answer = self._writer.bind(place.namespace, place.name, body)
        if self.bind_answer_latency_s:
            await asyncio.sleep(self.bind_answer_latency_s)
        return _json(answer, _CREATED)

    async def _list(self, request: web.Request, place: Place) -> web.Response:
        query = request.query
        token, wanted = query.get("continue", ""), query.get("resourceVersion", "")
        limit = max(0, _integer(query.get("limit", "")))
        if token and wanted not in {"", "0"}:
            raise bad_request("specifying resource version is not allowed when using continue")
        version = _version(wanted, list_form=True)
        if version > self._store.version:
            raise too_large(version, self._store.version)
        if query.get("resourceVersionMatch") == "Exact":
            self._store.check_exact(version)
        elif wanted == "0":
            limit = 0
        matches = _matcher(request, place.resource)
        selection = f"{query.get('labelSelector', '')}&{query.get('fieldSelector', '')}"
        entries, listed, following, left = self._store.page(
            place.resource, place.namespace, matches, limit, token, selection
        )
        # With a selector nobody counts what is left.
        body = _list_body(place.resource, entries, listed, following, 0 if matches else left)
        return web.Response(body=body, content_type="application/json")

    async def _watch(self, request: web.Request, place: Place) -> web.StreamResponse:
        query = request.query
        timeout_s = _integer(query.get("timeoutSeconds", "")) or 1800
        matches = _matcher(request, place.resource)
        wanted = query.get("resourceVersion", "")
        version = _version(wanted, list_form=False)
        watch = Watch(
            self._store, place, matches, bookmarks=query.get("allowWatchBookmarks") in {"1", "true"}
        )
        if version:
            try:
                self._store.check_watch(place.resource, version)
            except RefusedError as gone:
                if self.gone_as_status:
                    raise
                watch.end_with(gone)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        self.watches.add(watch)
        try:
            await watch.serve(response, version, timeout_s, lambda: self.bookmark_s)
        finally:
            self.watches.discard(watch)
        await response.write_eof()
        return response


def _json(body: JsonObject, status: int = 200) -> web.Response:
    return web.Response(body=encode(body), status=status, content_type="application/json")


def _object(resource: Resource, entry: StoredEntry, status: int = 200) -> web.Response:
    return web.Response(body=whole(resource, entry), status=status, content_type="application/json")


def _list_body(
    resource: Resource, entries: list[StoredEntry], version: int, following: str = "", left: int = 0
) -> bytes:
    metadata: dict[str, Any] = {"resourceVersion": str(version)}
    if following:
        metadata["continue"] = following
    if left:
        metadata["remainingItemCount"] = left
    head = {"kind": f"{resource.kind}List", "apiVersion": resource.api_version, "metadata": metadata}
    items = b",".join(entry.raw for entry in entries)
    return encode(head)[:-1] + b',"items":[' + items + b"]}"


def _matcher(request: web.Request, resource: Resource) -> Matcher | None:
    query = request.query
    return matcher(resource, query.get("labelSelector", ""), query.get("fieldSelector", ""))


async def _body(request: web.Request, resource: Resource) -> JsonObject:
    if request.content_type != "application/json":
        raise RefusedError(415, "UnsupportedMediaType", "415: Unsupported Media Type", {})
    raw = await request.read()
    try:
        body = json.loads(raw)
    except ValueError as error:
        shown = raw.decode(errors="replace")[:256]
        raise bad_request(
            f"the object provided is unrecognized (must be of type {resource.kind}): couldn't get "
            f"version/kind; json parse error: unexpected end of JSON input ({shown})"
        ) from error
    if not isinstance(body, dict):
        raise bad_request(f"the object provided is unrecognized (must be of type {resource.kind})")
    return body


async def _delete_options(request: web.Request) -> JsonObject:
    raw = await request.read()
    try:
        options: JsonObject = json.loads(raw) if raw else {}
    except ValueError as error:
        raise bad_request("DeleteOptions cannot be read: unexpected end of JSON input") from error
    grace = request.query.get("gracePeriodSeconds")
    if grace is not None:
        options["gracePeriodSeconds"] = _integer(grace)
    return options


def _integer(text: str) -> int:
    try:
        return int(text) if text else 0
    except ValueError as error:
        raise bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax') from error


def _version(text: str, *, list_form: bool) -> int:
    """Read a resourceVersion; a watch answers rubbish with 500, as the real one does."""
    if not text or text.isdecimal():
        return int(text or 0)
    why = f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax'
    if list_form:
        raise bad_request(f"invalid resource version: {why}")
    raise RefusedError(500, "", why)
