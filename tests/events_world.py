"""An API server's Events in memory, and a recorder on a clock of the test's own."""

import asyncio
import json
from contextlib import asynccontextmanager

from kubeapi.errors import Forbidden, NotFound, TimedOut, Unreachable
from kubeapi.events import EventRecorder


class EventsApi:
    """What a recorder asks of an API server.

    Attributes:
        now: seconds, for everybody; sleeping moves it.
        objects: Events by path.
        requests: method and path of each request that arrived.
        fault: of every request: "", "away", "forbidden"; "late" for the next: it is done, its answer is lost.
    """

    def __init__(self) -> None:
        self.now = 1000.0
        self.objects: dict[str, dict] = {}
        self.requests: list[str] = []
        self.sleeps: list[float] = []
        self.fault = ""

    async def post(self, path, body, *, timeout_s) -> bytes:
        self._arrive("POST")
        name = f"{path}/{body['metadata']['name']}"
        assert name not in self.objects
        self.objects[name] = json.loads(json.dumps(body))
        return self._leave()

    async def patch(self, path, body, *, timeout_s) -> bytes:
        self._arrive("PATCH")
        if path not in self.objects:
            raise NotFound("no such event", status=404)
        self.objects[path] |= json.loads(json.dumps(body))
        return self._leave()

    def _arrive(self, method) -> None:
        self.requests.append(method)
        if self.fault == "away":
            raise Unreachable("refused")
        if self.fault == "forbidden":
            raise Forbidden("may not create events", status=403)

    def _leave(self) -> bytes:
        if self.fault == "late":
            self.fault = ""
            raise TimedOut("no answer")
        return b"{}"

    async def sleep(self, seconds) -> None:
        self.sleeps.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)

    @property
    def shown(self) -> list[tuple[str, str, int]]:
        """Object, message and count of each Event."""
        return [
            (event["involvedObject"]["name"], event["message"], event["count"])
            for event in self.objects.values()
        ]


@asynccontextmanager
async def recording(api, *, host="", **more):
    """A recorder that runs."""
    recorder = EventRecorder(
        api,
        "gpupack-test",
        host,
        clock=lambda: api.now,
        wall=lambda: api.now,
        sleep=api.sleep,
        uniform=lambda _low, high: high,
        **more,
    )
    task = asyncio.create_task(recorder.run())
    try:
        yield recorder
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
