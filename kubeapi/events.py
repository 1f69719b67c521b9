"""Kubernetes Events about any object, written beside the work: never a wait, never a failure for the caller.

Core v1 Events with a count, as the kubelet writes them. `kubectl describe` and `kubectl get events` sort them
by their last time and show "x7 over 5m". For events.k8s.io's series they do that in part only.

An Event is a note to people. So what cannot be written in time is dropped and counted. The queue may be full,
the API server away for longer than the tries last, or the rights missing.
"""

import asyncio
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from kubeapi.backoff import Backoff
from kubeapi.client import KubeClient
from kubeapi.correlation import (
    EventCorrelator,
    EventSeries,
    EventType,
    ObjectRef,
    make_node_ref,
    make_pod_group_ref,
    make_pod_ref,
)
from kubeapi.errors import (
    ConfigError,
    Conflict,
    KubeApiError,
    NotFound,
    Unauthorized,
    shorten,
)
from kubeapi.metadata import format_time
from kubeapi.paths import make_collection_path, quote_segment
from kubeapi.ratelimit import TokenBucket

QUEUE: Final = 1000
"""Series that wait to be written unless the process says otherwise; more are dropped."""

WRITES: Final = 50
WRITE_EACH_S: Final = 0.1
"""All objects together get a burst of writes, then one every so many seconds. Events about thousands of pods
must not cost the API server what the pods themselves need."""

BUSY_S: Final = 1.0
"""While the process has more urgent things to write, an Event waits for so long at least. Thousands of pods
that are released or bound at once get theirs afterwards."""

TRIES: Final = 12
RETRY_S: Final = 10.0
"""Longest pause between the tries for one Event: a restart of the API server loses nothing."""

REQUEST_S: Final = 10.0
REMIND_S: Final = 60.0
"""How often it is logged that Events cannot be written."""

REASON_LIMIT: Final = 128
MESSAGE_LIMIT: Final = 1024
NAME_LIMIT: Final = 253

log = structlog.get_logger(__name__)


class EventRecorder:
    """Takes Events at once and writes them while `run` runs.

    Args:
        client: API server; the right to create and patch events is needed in the objects' namespaces, in
            "default" for objects without one.
        busy: whether the process has more urgent things to write now, or had within the last `BUSY_S`: what
            it waits for may come a moment later.

    Attributes:
        written: requests that the API server has accepted.
        limited: Events that only raised a count in memory: their object had too many writes.
    """

    def __init__(
        self,
        client: KubeClient,
        component: str,
        host: str = "",
        *,
        busy: Callable[[], bool] = lambda: False,
        most: int = QUEUE,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._client = client
        self._component = component
        self._host = host
        self._busy = busy
        self._most = most
        self._clock = clock
        self._wall = wall
        self._sleep = sleep
        self._correlator = EventCorrelator(clock, wall)
        self._pace = TokenBucket(WRITES, WRITE_EACH_S, clock)
        self._backoff = Backoff(cap_s=RETRY_S, uniform=uniform)
        self._queue: deque[EventSeries] = deque()
        self._more = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._serial = 0
        self._reminded_s = float("-inf")
        self.written = 0
        self.limited = 0
        self.dropped = 0

    def event(self, ref: ObjectRef, type_: EventType, reason: str, message: str) -> None:
        """Note something about an object; returns at once.

        Args:
            reason: one word in CamelCase that a machine may look for.
            message: for people. Repeating the very same one is cheap; numbers that change make it another.
        """
        series = self._correlator.add(
            ref, type_, shorten(reason, REASON_LIMIT), shorten(message, MESSAGE_LIMIT)
        )
        if series.queued:
            return
        if len(self._queue) >= self._most:
            self._drop("queue is full")
        elif not self._correlator.may_write(ref):
            self.limited += 1
        else:
            series.queued = True
            self._queue.append(series)
            self._more.set()
            self._idle.clear()

    async def run(self) -> None:
        while True:
            await self._more.wait()
            while self._queue:
                wait_s = max(self._pace.reserve(), BUSY_S if self._busy() else 0.0)
                if wait_s > 0:
                    await self._sleep(wait_s)
                series = self._queue.popleft()
                series.queued = False
                await self._write(series)
            self._more.clear()
            self._idle.set()

    async def drain(self, within_s: float) -> bool:
        """Wait while `run` writes what is queued, as at the end of the process; return True if all is."""
        try:
            async with asyncio.timeout(within_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def _write(self, series: EventSeries) -> None:
        for left in reversed(range(TRIES)):
            try:
                await self._send(series)
            except KubeApiError as error:
                # A process that lives long may be given other credentials meanwhile.
                if not left or not (error.is_passing or isinstance(error, ConfigError | Unauthorized)):
                    self._drop(str(error))
                    return
                await self._sleep(self._backoff.failed(error.retry_after_s))
            else:
                self._backoff.reset()
                self.written += 1
                return

    async def _send(self, series: EventSeries) -> None:
        collection = make_collection_path(series.ref.namespace or "default", "events")
        newest = {
            "count": series.count,
            "lastTimestamp": format_time(series.last_s),
            "message": series.message,
        }
        if series.name:
            try:
                await self._client.patch(
                    f"{collection}/{quote_segment(series.name)}", newest, timeout_s=REQUEST_S
                )
            except NotFound:
                series.name = ""  # Events end after an hour, by default.
            else:
                return
        name = self._name(series.ref)
        body = self._body(series, name) | newest
        try:
            await self._client.post(collection, body, timeout_s=REQUEST_S)
        except Conflict as error:
            if error.cause != "exists":
                raise
        except KubeApiError as error:
            # It may be there all the same: the next try patches it, and creates it where it is not.
            series.name = name if error.maybe_done else ""
            raise
        series.name = name

    def _body(self, series: EventSeries, name: str) -> dict[str, object]:
        ref = series.ref
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": ref.namespace or "default"},
            "involvedObject": {
                "apiVersion": ref.api_version,
                "kind": ref.kind,
                "name": ref.name,
                **({"namespace": ref.namespace} if ref.namespace else {}),
                **({"uid": ref.uid} if ref.uid else {}),
            },
            "type": series.type,
            "reason": series.reason,
            "source": {"component": self._component, **({"host": self._host} if self._host else {})},
            "reportingComponent": self._component,
            "reportingInstance": self._host or self._component,
            "firstTimestamp": format_time(series.first_s),
        }

    def _name(self, ref: ObjectRef) -> str:
        """Make a name that no Event had: the object's and the time, as client-go makes them."""
        self._serial = max(self._serial + 1, int(self._wall() * 1e9))
        suffix = f".{self._serial:x}"
        return ref.name[: NAME_LIMIT - len(suffix)].rstrip("-.") + suffix

    def _drop(self, why: str) -> None:
        self.dropped += 1
        now_s = self._clock()
        if now_s - self._reminded_s >= REMIND_S:
            self._reminded_s = now_s
            log.warning("Events are lost", why=why, lost=self.dropped)


__all__ = ["EventRecorder", "EventType", "ObjectRef", "make_node_ref", "make_pod_group_ref", "make_pod_ref"]
