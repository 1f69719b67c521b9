"""An API server of answers given beforehand, and a sink that takes notes."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import msgspec
import pytest

from kubeapi.reflect import Reflector


class Meta(msgspec.Struct):
    name: str


class Item(msgspec.Struct):
    metadata: Meta


def item(name, version="1") -> dict:
    return {
        "metadata": {"name": name, "resourceVersion": version, "extra": {"deep": [1, None]}},
        "spec": None,
    }


def page(version, *items, more="") -> bytes:
    return json.dumps(
        {"metadata": {"resourceVersion": version, "continue": more}, "items": list(items)}
    ).encode()


def event(kind, name, version) -> bytes:
    return json.dumps({"type": kind, "object": item(name, version)}).encode()


def error_event(code) -> bytes:
    body = {"kind": "Status", "code": code, "reason": "Expired", "message": "too old resource version: 1 (2)"}
    return json.dumps({"type": "ERROR", "object": body}).encode()


class Api:
    """Plays answers: for a list its pages, for a watch its lines; an exception is raised in its place.

    When nothing is left it waits for ever and sets `idle`. What a list of one object says of the newest
    version is not part of the script: `newest`, or by default that nothing has gone back.
    """

    def __init__(self, *answers) -> None:
        self.answers = list(answers)
        self.asked = []
        self.idle = asyncio.Event()
        self.now = 0.0
        self.slept = []
        self.open = 0
        self.newest = "999"
        self.probes = 0
        self.rubbish = False

    async def _next(self, kind, *asked) -> list:
        self.asked.append((kind, *asked))
        if not self.answers:
            self.idle.set()
            await asyncio.Event().wait()
        wanted, answer = self.answers.pop(0)
        assert wanted == kind, f"a {kind} came, the script expects a {wanted}"
        return answer

    async def pages(self, path, limit, **params) -> AsyncIterator[bytes]:
        if limit == 1:
            self.probes += 1
            yield b"<html>" if self.rubbish else page(self.newest, item("any"), more="x")
            raise AssertionError("nobody wants a second page of that")
        for each in await self._next("list", path, limit, params):
            if isinstance(each, Exception):
                raise each
            yield each

    async def watch(
        self, path, resource_version, *, timeout_s, idle_s, opened, **params
    ) -> AsyncIterator[bytes]:
        self.open += 1
        try:
            for each in await self._next("watch", path, resource_version, timeout_s, params):
                if isinstance(each, float):
                    self.now += each
                elif isinstance(each, Exception):
                    raise each
                elif each is None:
                    opened()
                else:
                    yield each
        finally:
            self.open -= 1

    async def sleep(self, seconds) -> None:
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)


class Log:
    """A sink that remembers; `fail` makes its next call raise."""

    def __init__(self) -> None:
        self.calls = []
        self.fail = None

    def _note(self, *call) -> None:
        self.calls.append(call)
        if self.fail == call[0]:
            self.fail = None
            raise KeyError("a bug in the consumer")

    def replace(self, items, resource_version) -> None:
        self._note("replace", [each.metadata.name for each in items], resource_version)

    def event(self, kind, item, resource_version) -> None:
        self._note(kind, item.metadata.name, resource_version)

    def bookmark(self, resource_version) -> None:
        self._note("bookmark", resource_version)

    def disconnected(self, error) -> None:
        self._note("disconnected", type(error))


@contextlib.asynccontextmanager
async def running(api, sink=None, kind=Item, **options):
    sink = sink or Log()
    reflector = Reflector(
        api,
        "/api/v1/pods",
        kind,
        sink,
        clock=lambda: api.now,
        sleep=api.sleep,
        uniform=lambda _low, high: high,
        **options,
    )
    task = asyncio.create_task(reflector.run())
    try:
        yield reflector, sink
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert api.open == 0


async def play(*answers, **options):
    api = Api(*answers)
    async with running(api, **options) as (reflector, sink):
        await asyncio.wait_for(api.idle.wait(), 5)
    return api, reflector, sink


def versions(api) -> list[str]:
    return [asked[2] for asked in api.asked if asked[0] == "watch"]
