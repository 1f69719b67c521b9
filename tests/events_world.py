"""An API server's Events in memory, and a recorder on a clock of the test's own."""

import asyncio
import json
from contextlib import asynccontextmanager

from kubeapi.errors import NotFound
from kubeapi.events import EventRecorder
from tests.api_requests import ApiRequests
from tests.running import background


class EventsApi(ApiRequests):
    """What a recorder asks of an API server.

    Attributes:
        now: seconds, for everybody; sleeping moves it.
        objects: Events by path.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.objects: dict[str, dict] = {}
        self.sleeps: list[float] = []

    def answer(self, verb, path, body) -> dict:
        if verb == "post":
            path = f"{path}/{body['metadata']['name']}"
            assert path not in self.objects
            self.objects[path] = {}
        elif path not in self.objects:
            raise NotFound("no such event", status=404)
        self.objects[path] |= json.loads(json.dumps(body))
        return {}

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
    async with background(recorder.run()):
        yield recorder
