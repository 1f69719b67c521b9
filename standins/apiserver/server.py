"""An API server in this process: real HTTP on loopback, the rules of kube-apiserver 1.37, nothing on disk.

The server has nodes, pods (status, binding), namespaces, events and Leases. The demo and the tests use it,
and so can anybody who wants to try gpupack without a cluster. A script of the tests, `apiserver_script`,
holds it to the answers of the real one.
"""

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Self

from aiohttp import web

from allocator.names import SYSTEM_NAMESPACE
from standins.apiserver.http import Handlers
from standins.apiserver.rules import LEASES, NAMESPACES, NODES, PODS, RESOURCES
from standins.apiserver.status import JsonObject, RefusedError, Resource, expired
from standins.apiserver.store import Backup, Key, Store
from standins.apiserver.writes import Writer

MAX_BODY = 4 * 2**20
NAMES = ("default", "kube-system", SYSTEM_NAMESPACE)


class ApiServer:
    """The stand-in: start it, point clients at `url`, look inside with the helpers."""

    def __init__(self, *, seed: int | None = None) -> None:
        """Make an empty cluster; a seed makes UIDs and generated names repeat."""
        self.store = Store()
        self._writer = Writer(self.store, Random(seed))  # noqa: S311  (names, not secrets)
        self.http = Handlers(self.store, self._writer)
        self._runner: web.AppRunner | None = None
        self._site: web.TCPSite | None = None
        self._host = "127.0.0.1"
        self._port = 0
        for name in NAMES:
            self._writer.create(NAMESPACES, "", {"metadata": {"name": name}})

    # Life

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen; port 0 takes a free one and keeps it until `stop`."""
        app = web.Application(client_max_size=MAX_BODY)
        app.router.add_route("*", "/{path:.*}", self.http.handle)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        self._host, self._port = host, port
        await self._listen()

    async def _listen(self) -> None:
        if self._runner is None:
            raise RuntimeError("the API server stand-in is not started")
        self._site = web.TCPSite(self._runner, self._host, self._port, reuse_address=True)
        await self._site.start()
        self._port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Drop every connection and close; objects stay, `start` may follow."""
        if self._runner is not None:
            await self.away(True)
            await self._runner.cleanup()
        self._runner = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def url(self) -> str:
        """Where it listens, without a trailing slash."""
        return f"http://{self._host}:{self._port}"

    def kubeconfig(self, path: str | Path) -> str:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "standin",
            "clusters": [{"name": "standin", "cluster": {"server": self.url}}],
            "users": [{"name": "standin", "user": {}}],
            "contexts": [{"name": "standin", "context": {"cluster": "standin", "user": "standin"}}],
        }
        Path(path).write_text(json.dumps(config), encoding="utf-8")
        return str(path)

    # Knobs

    async def away(self, away: bool) -> None:
        """Be gone (connections reset, new ones refused) or back on the same port."""
        if away:
            if self._site is not None:
                await self._site.stop()
                self._site = None
            self.drop_connections()
        elif self._site is None:
            await self._listen()

    def drop_connections(self) -> None:
        """Reset every open connection, in the middle of whatever it carries."""
        server = self._runner.server if self._runner is not None else None
        for handler in server.connections if server is not None else ():
            if handler.transport is not None:
                handler.transport.abort()

    async def restored(self, backup: Backup) -> None:
        """Come back after an etcd restore: the server is gone for a moment, then as `store.backup` saw it."""
        await self.away(True)
        self.store.restore(backup)
        await self.away(False)

    def compact(self) -> None:
        """Forget history: watches and list pages from earlier versions get 410; open watches go on."""
        self.store.compact()

    def expire_watches(self) -> None:
        """Compact, and end open watches with a 410 ERROR event."""
        self.compact()
        for watch in list(self.http.watches):
            watch.end_with(expired(f"too old resource version: 1 ({self.store.version})"))

    def end_watches(self) -> None:
        """End open watches as on a time-out: a zero chunk while the connection stays open."""
        for watch in list(self.http.watches):
            watch.end()

    def say(self, line: bytes) -> None:
        """Send raw bytes, also invalid ones, into every open watch."""
        for watch in list(self.http.watches):
            watch.say(line)

    def bookmark(self) -> None:
        """Send a bookmark to every open watch that wants them."""
        for watch in list(self.http.watches):
            if watch.bookmarks:
                watch.say(watch.bookmark())

    # Helpers for tests and the demo; each is one write by the rules, seen by watches

    def objects(self, plural: str) -> list[JsonObject]:
        """Copy all objects of a resource ("pods"), in the order of their names."""
        resource = next(each for each in RESOURCES if each.plural == plural)
        return [copy.deepcopy(entry.item) for entry in self.store.select(resource, "", None)]

    def node(self, name: str) -> JsonObject:
        return self._copy(NODES, ("", name))

    def pod(self, namespace: str, name: str) -> JsonObject:
        return self._copy(PODS, (namespace, name))

    def lease(self, namespace: str, name: str) -> JsonObject:
        return self._copy(LEASES, (namespace, name))

    def has_pod(self, namespace: str, name: str) -> bool:
        return self.store.get(PODS, (namespace, name)) is not None

    def _copy(self, resource: Resource, key: Key) -> JsonObject:
        return copy.deepcopy(self._writer.found(resource, key).item)

    def add_node(
        self,
        name: str,
        labels: Mapping[str, str] | None = None,
        capacity: Mapping[str, str | int] | None = None,
        annotations: Mapping[str, str] | None = None,
    ) -> JsonObject:
        """Create a Ready node; return a copy."""
        amounts = {"cpu": "16", "memory": "64Gi", "pods": "110"} if capacity is None else dict(capacity)
        node = {
            "metadata": {"name": name, "labels": dict(labels or {}), "annotations": dict(annotations or {})},
            "status": {
                "capacity": amounts,
                "allocatable": dict(amounts),
                "conditions": [{"type": "Ready", "status": "True", "reason": "StandIn"}],
            },
        }
        return copy.deepcopy(self._writer.create(NODES, "", node).item)

    def add_pod(self, pod: JsonObject) -> JsonObject:
        """Create a pod; a `status` in it is written afterwards, as its kubelet would. Returns a copy."""
        namespace = pod.get("metadata", {}).get("namespace", "default")
        if self.store.get(NAMESPACES, ("", namespace)) is None:
            self._writer.create(NAMESPACES, "", {"metadata": {"name": namespace}})
        entry = self._writer.create(PODS, namespace, pod)
        if pod.get("status"):
            return self.patch_pod(namespace, entry.item["metadata"]["name"], {"status": pod["status"]})
        return copy.deepcopy(entry.item)

    def patch_pod(self, namespace: str, name: str, patch: JsonObject) -> JsonObject:
        """Merge into a pod: into its status where the patch has one, else into the rest."""
        return self._patched(PODS, (namespace, name), patch)

    def patch_node(self, name: str, patch: JsonObject) -> JsonObject:
        """Merge into a node: into its status where the patch has one, else into the rest."""
        return self._patched(NODES, ("", name), patch)

    def _patched(self, resource: Resource, key: Key, patch: JsonObject) -> JsonObject:
        part = "status" if "status" in patch else ""
        entry = self._writer.patch(resource, key, patch, "application/merge-patch+json", part)
        return copy.deepcopy(entry.item)

    def bind_pod(
        self, namespace: str, name: str, node: str, annotations: Mapping[str, str] | None = None
    ) -> None:
        metadata = {"name": name, "annotations": dict(annotations or {})}
        self._writer.bind(namespace, name, {"metadata": metadata, "target": {"kind": "Node", "name": node}})

    def delete_pod(self, namespace: str, name: str, grace_s: int | None = None) -> None:
        """Delete a pod; None takes the pod's own grace period, 0 removes it at once."""
        self._writer.delete(
            PODS, (namespace, name), {} if grace_s is None else {"gracePeriodSeconds": grace_s}
        )

    def delete_node(self, name: str) -> None:
        self._writer.delete(NODES, ("", name), {})


__all__ = ["ApiServer", "RefusedError"]
