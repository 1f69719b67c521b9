"""The stand-in kubelet's link to an API server: its pods, their statuses, its Node.

Plain HTTP, not the client of kubeapi: a stand-in that shared that would share its faults. While the API
server is away everything waits and is tried again; nothing is forgotten.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

from allocator.quantity import parse_integer
from kubeapi.metadata import format_time
from kubeapi.objects import is_extended_resource
from standins.kubelet.pods import Pod, read_pod
from standins.kubelet.process import PodStatus, Process

_RETRY_S: Final = 0.2
_STATUS_INTERVAL_S: Final = 10.0
_STRATEGIC: Final = {"Content-Type": "application/strategic-merge-patch+json"}
_HTTP_NOT_FOUND: Final = 404
_NOBODY_THERE: Final = frozenset({404, 409})
_ANSWER_S: Final = aiohttp.ClientTimeout(total=10)
_HTTP_ERROR: Final = 400
_BASE_CAPACITY: Final = {"cpu": "64", "memory": "512Gi", "pods": "250"}


class _ApiError(Exception):
    """An answer of the API server that is no success."""

    def __init__(self, status: int, body: str) -> None:
        self.status = status
        super().__init__(f"{status}: {body[:256]}")


@dataclass(frozen=True, slots=True)
class _Event:
    kind: str
    pods: tuple[Pod, ...]


class ApiLink:
    """Connection of a kubelet process to the API server.

    Args:
        sync_delay_s: before the first list, the time that a kubelet takes to get going.
        zero_resources: set all extended resources of the Node to 0 first; what others wrote there is lost. A
            kubelet that finds no checkpoint does so.
    """

    def __init__(
        self, url: str, node_name: str, process: Process, *, sync_delay_s: float, zero_resources: bool
    ) -> None:
        self._url = url.rstrip("/")
        self._node_name = node_name
        self._process = process
        self._sync_delay_s = sync_delay_s
        self._zero_resources = zero_resources
        self._events: asyncio.Queue[_Event] = asyncio.Queue()
        self._statuses: dict[str, tuple[Pod, PodStatus]] = {}
        self._status_wake = asyncio.Event()
        self._node_wake = asyncio.Event()

    def report(self, pod: Pod, status: PodStatus) -> None:
        """Have a pod's status written; the last one counts."""
        self._statuses[pod.uid] = (pod, status)
        self._status_wake.set()

    def capacity_changed(self) -> None:
        """Have the Node's status checked; a real kubelet does so every 10 s only."""
        self._node_wake.set()

    async def run(self) -> None:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5)
        async with aiohttp.ClientSession(self._url, timeout=timeout) as session, asyncio.TaskGroup() as group:
            group.create_task(self._watch_for_ever(session))
            group.create_task(self._handle_events())
            group.create_task(self._write_statuses(session))
            group.create_task(self._keep_node(session))

    # --- pods -----------------------------------------------------------------------------------------

    async def _watch_for_ever(self, session: aiohttp.ClientSession) -> None:
        await asyncio.sleep(self._sync_delay_s)
        version = ""
        while True:
            try:
                version = version or await self._list(session)
                version = await self._watch(session, version)
            except _ApiError:
                version = ""
                await asyncio.sleep(_RETRY_S)
            except (aiohttp.ClientError, TimeoutError, ConnectionError, ValueError):
                await asyncio.sleep(_RETRY_S)

    async def _list(self, session: aiohttp.ClientSession) -> str:
        body = await _request(session, "GET", "/api/v1/pods", params=self._selector())
        pods = tuple(read_pod(item) for item in body.get("items") or ())
        self._events.put_nowait(_Event("SYNC", pods))
        return str(body["metadata"]["resourceVersion"])

    async def _watch(self, session: aiohttp.ClientSession, version: str) -> str:
        params = self._selector() | {
            "watch": "1",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": "300",
        }
        async with session.get("/api/v1/pods", params=params) as response:
            if response.status >= _HTTP_ERROR:
                raise _ApiError(response.status, await response.text())
            # A broken connection ends the watch like any other end: it goes on from the last version seen.
            with suppress(aiohttp.ClientPayloadError):
                async for line in _lines(response.content):
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise _ApiError(int(event["object"].get("code") or 0), str(event["object"]))
                    version = str(event["object"]["metadata"]["resourceVersion"])
                    if event["type"] != "BOOKMARK":
                        self._events.put_nowait(_Event(event["type"], (read_pod(event["object"]),)))
        return version

    def _selector(self) -> dict[str, str]:
        return {"fieldSelector": f"spec.nodeName={self._node_name}"}

    async def _handle_events(self) -> None:
        """Take events in order; additions that came together are one batch."""
        while True:
            event = await self._events.get()
            batch: list[Pod] = []
            while event.kind == "ADDED":
                batch += event.pods
                if self._events.empty():
                    break
                event = self._events.get_nowait()
            if batch:
                await self._process.add([pod for pod in batch if self._process.pod(pod.uid) is None])
            if event.kind == "SYNC":
                await self._process.sync(event.pods)
            for pod in event.pods:
                if event.kind == "DELETED":
                    self._process.remove(pod.uid)
                elif event.kind == "MODIFIED":
                    self._process.update(pod)

    async def _write_statuses(self, session: aiohttp.ClientSession) -> None:
        while True:
            await self._status_wake.wait()
            self._status_wake.clear()
            for uid, (pod, status) in tuple(self._statuses.items()):
                try:
                    await self._write_status(session, pod, status)
                except (aiohttp.ClientError, TimeoutError, ConnectionError, _ApiError) as error:
                    # Gone, or another pod has the name: nobody is left to be told.
                    if getattr(error, "status", 0) not in _NOBODY_THERE:
                        await asyncio.sleep(_RETRY_S)
                        self._status_wake.set()
                        continue
                if self._statuses.get(uid) == (pod, status):
                    del self._statuses[uid]

    async def _write_status(self, session: aiohttp.ClientSession, pod: Pod, status: PodStatus) -> None:
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
        body = {"metadata": {"uid": pod.uid}, "status": status_fields(pod, status)}
        await _request(session, "PATCH", f"{path}/status", body, headers=_STRATEGIC)
        if status.gone:
            options = {
                "apiVersion": "v1",
                "kind": "DeleteOptions",
                "gracePeriodSeconds": 0,
                "preconditions": {"uid": pod.uid},
            }
            await _request(session, "DELETE", path, options)

    # --- the Node --------------------------------------------------------------------------------------

    async def _keep_node(self, session: aiohttp.ClientSession) -> None:
        await self._until_done(lambda: self._register(session))
        dropped: set[str] = set()
        while True:
            self._node_wake.clear()
            await self._until_done(lambda: self._write_capacity(session, dropped))
            with suppress(TimeoutError):
                async with asyncio.timeout(_STATUS_INTERVAL_S):
                    await self._node_wake.wait()

    async def _until_done(self, work: Callable[[], Any]) -> None:
        while True:
            try:
                await work()
            except (aiohttp.ClientError, TimeoutError, ConnectionError, _ApiError):
                await asyncio.sleep(_RETRY_S)
            else:
                return

    async def _register(self, session: aiohttp.ClientSession) -> None:
        """Create the Node if it is missing; only at the start: a Node deleted later is not created again."""
        node = await self._node(session)
        if node is None:
            await _request(session, "POST", "/api/v1/nodes", new_node(self._node_name))
        elif self._zero_resources:
            zero = {name: 0 for name in _resources(node, "capacity") if is_extended_resource(name)}
            await self._patch_node(session, zero, zero)

    async def _write_capacity(self, session: aiohttp.ClientSession, dropped: set[str]) -> None:
        capacity, allocatable, gone = self._process.devices.capacity()
        dropped |= gone
        dropped -= capacity.keys()
        wanted = capacity | dict.fromkeys(dropped, 0)
        usable = allocatable | dict.fromkeys(dropped, 0)
        node = await self._node(session)
        if node is None:
            return
        same = all(
            amounts.items() <= _counts(node, which, amounts).items()
            for which, amounts in (("capacity", wanted), ("allocatable", usable))
        )
        if not same:
            await self._patch_node(session, wanted, usable)

    async def _patch_node(
        self, session: aiohttp.ClientSession, capacity: Mapping[str, int], allocatable: Mapping[str, int]
    ) -> None:
        body = {
            "status": {
                "capacity": {name: str(count) for name, count in capacity.items()},
                "allocatable": {name: str(count) for name, count in allocatable.items()},
            }
        }
        await _request(session, "PATCH", f"/api/v1/nodes/{self._node_name}/status", body, headers=_STRATEGIC)

    async def _node(self, session: aiohttp.ClientSession) -> dict[str, Any] | None:
        try:
            return await _request(session, "GET", f"/api/v1/nodes/{self._node_name}")
        except _ApiError as error:
            if error.status == _HTTP_NOT_FOUND:
                return None
            raise


def new_node(name: str) -> dict[str, Any]:
    """Make the Node object of a kubelet that finds none."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}},
        "status": {
            "capacity": _BASE_CAPACITY,
            "allocatable": _BASE_CAPACITY,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    }


def status_fields(pod: Pod, status: PodStatus) -> dict[str, Any]:
    """Make the fields of pod status that the kubelet writes; startTime is set once and then stays."""
    now = format_time(time.time())
    running = status.phase == "Running"
    fields: dict[str, Any] = {
        "phase": status.phase,
        "startTime": pod.started or now,
        "conditions": [
            {"type": "Ready", "status": "True" if running else "False", "lastTransitionTime": now}
        ],
    }
    if status.reason:
        return fields | {"reason": status.reason, "message": status.message}
    states: dict[str, dict[str, Any]] = {
        "Pending": {"waiting": {"reason": "CreateContainerConfigError"}},
        "Running": {"running": {"startedAt": now}},
    }
    state = states.get(status.phase, {"terminated": {"exitCode": 0, "finishedAt": now}})
    fields["containerStatuses"] = [
        {
            "name": container.name,
            "ready": running,
            "restartCount": 0,
            "image": "stand-in",
            "imageID": "",
            "state": state,
        }
        for container in pod.containers
        if container.kind == "main"
    ]
    return fields


def _resources(node: Mapping[str, Any], which: str) -> dict[str, str]:
    return {name: str(value) for name, value in ((node.get("status") or {}).get(which) or {}).items()}


def _counts(node: Mapping[str, Any], which: str, names: Collection[str]) -> dict[str, int]:
    """Read those of a Node's resources that are in `names`; 5000 comes back as "5k"."""
    return {name: parse_integer(value) for name, value in _resources(node, which).items() if name in names}


async def _request(
    session: aiohttp.ClientSession,
    method: str,
    path: str,
    body: Mapping[str, Any] | None = None,
    *,
    params: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    data = None if body is None else json.dumps(body).encode()
    sent = {"Content-Type": "application/json"} | dict(headers or {})
    async with session.request(
        method, path, data=data, params=params, headers=sent, timeout=_ANSWER_S
    ) as response:
        text = await response.text()
        if response.status >= _HTTP_ERROR:
            raise _ApiError(response.status, text)
        parsed: dict[str, Any] = json.loads(text)
        return parsed


async def _lines(stream: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    rest = b""
    async for chunk in stream.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.strip():
                yield line
