"""What the API server stand-in remembers: objects, one version counter, a log for watches, list snapshots.

Invariant: an Entry never changes; a write puts a new one in its place. So lists, snapshots and the log share
entries freely, and the bytes of an object are made once.
"""

import asyncio
import base64
import json
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from kubeapi.bounded import BoundedDict
from standins.apiserver.select import Matcher
from standins.apiserver.status import JsonObject, RefusedError, Resource, bad_request, expired

Kind = Literal["ADDED", "MODIFIED", "DELETED"]
Key = tuple[str, str]

LOG_LENGTH = 20_000
SNAPSHOTS = 64

_LIST_TOO_OLD = "The resourceVersion for the provided list is too old."
_CONTINUE_TOO_OLD = (
    "The provided continue parameter is too old to display a consistent list result. You can start a "
    "new list without the continue parameter, or use the continue token in this response to retrieve "
    "the remainder of the results. Continuing with the provided token results in an inconsistent list - "
    "objects that were created, modified, or deleted between the time the first chunk was returned and "
    "now may show up in the list."
)


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """A state of an object.

    Attributes:
        item: the object without kind and apiVersion, as lists carry it; not to be changed.
        raw: the same as JSON.
        version: resourceVersion.
    """

    item: JsonObject
    raw: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Change:
    """A line of the log; `old` is None for a create."""

    kind: Kind
    entry: StoredEntry
    old: StoredEntry | None


@dataclass(slots=True)
class Table:
    """Objects of one resource and their log.

    Attributes:
        entries: by (namespace, name); namespace "" where there are none.
        oldest: a watch from an earlier version gets 410.
    """

    entries: dict[Key, StoredEntry] = field(default_factory=dict)
    log: deque[Change] = field(default_factory=deque)
    oldest: int = 0


@dataclass(frozen=True, slots=True)
class Backup:
    """The store at one moment: its version, and objects by resource and key."""

    version: int
    entries: dict[str, dict[Key, StoredEntry]]


class Store:
    """All objects; every method is synchronous, `changed` wakes the readers of the log."""

    def __init__(self) -> None:
        self.version = 1
        self.tables: dict[str, Table] = {}
        self._snapshots: BoundedDict[tuple[str, str, str, int], list[StoredEntry]] = BoundedDict(SNAPSHOTS)
        self._waiters: set[asyncio.Future[None]] = set()

    def table(self, resource: Resource) -> Table:
        return self.tables.setdefault(resource.plural, Table())

    def get(self, resource: Resource, key: Key) -> StoredEntry | None:
        return self.table(resource).entries.get(key)

    def write(self, resource: Resource, item: JsonObject) -> StoredEntry:
        """Create or replace an object, whose metadata gets the next version."""
        table = self.table(resource)
        key = key_of(item)
        old = table.entries.get(key)
        entry = self._entry(item)
        table.entries[key] = entry
        self._log(table, Change("MODIFIED" if old else "ADDED", entry, old))
        return entry

    def remove(self, resource: Resource, key: Key) -> StoredEntry:
        """Delete an object; returns its last state under a version of its own."""
        table = self.table(resource)
        old = table.entries.pop(key)
        entry = self._entry({**old.item, "metadata": dict(old.item["metadata"])})
        self._log(table, Change("DELETED", entry, old))
        return entry

    def restamped(self, entry: StoredEntry, version: int) -> StoredEntry:
        """Copy a state under another version, for an object that leaves a selection."""
        metadata = {**entry.item["metadata"], "resourceVersion": str(version)}
        item = {**entry.item, "metadata": metadata}
        return StoredEntry(item, encode(item), version)

    def _entry(self, item: JsonObject) -> StoredEntry:
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)
        return StoredEntry(item, encode(item), self.version)

    def _log(self, table: Table, change: Change) -> None:
        table.log.append(change)
        while len(table.log) > LOG_LENGTH:
            table.oldest = table.log.popleft().entry.version
        self.wake()

    # Lists

    def select(self, resource: Resource, namespace: str, matches: Matcher | None) -> list[StoredEntry]:
        """List matching objects in the order of their names."""
        entries = self.table(resource).entries
        found = sorted(key for key in entries if not namespace or key[0] == namespace)
        listed = [entries[key] for key in found]
        return listed if matches is None else [entry for entry in listed if matches(entry.item)]

    def page(
        self, resource: Resource, namespace: str, matches: Matcher | None, limit: int, token: str, query: str
    ) -> tuple[list[StoredEntry], int, str, int]:
        """Read a page of a consistent list: entries, version, the next `continue`, and objects left.

        Raises:
            RefusedError: 410 where the snapshot is gone, 400 for a token that is not ours.
        """
        if not token:
            entries, version, start = self.select(resource, namespace, matches), self.version, 0
            if limit and len(entries) > limit:
                self._snapshots[resource.plural, namespace, query, version] = entries
        else:
            version, start = _read_token(token)
            snapshot = self._snapshots.get((resource.plural, namespace, query, version))
            if snapshot is None:
                raise expired(_CONTINUE_TOO_OLD)
            entries = snapshot
        end = start + limit if limit else len(entries)
        left = max(0, len(entries) - end)
        return entries[start:end], version, _write_token(version, end) if left else "", left

    def check_exact(self, version: int) -> None:
        """Check a list at an exact version: only the newest is kept."""
        if version != self.version:
            raise expired(_LIST_TOO_OLD)

    # Backups

    def backup(self) -> "Backup":
        """Take a snapshot of everything, as of etcd."""
        return Backup(self.version, {plural: dict(table.entries) for plural, table in self.tables.items()})

    def restore(self, backup: "Backup") -> None:
        """Be as then, version included; what came after never happened."""
        self.version = backup.version
        for plural, table in self.tables.items():
            table.entries = dict(backup.entries.get(plural, {}))
        self.compact()

    # Watches

    def compact(self) -> None:
        """Forget history: older watches and the pages of older lists get 410."""
        self._snapshots.clear()
        for table in self.tables.values():
            table.log.clear()
            table.oldest = self.version

    def check_watch(self, resource: Resource, version: int) -> None:
        """Check that a watch can start after this version."""
        table = self.table(resource)
        if version < table.oldest:
            raise expired(f"too old resource version: {version} ({table.oldest})")

    def changes(
        self, resource: Resource, after: int, namespace: str, matches: Matcher | None
    ) -> Iterator[tuple[Kind, StoredEntry]]:
        """Give changes after a version as a watch with this selection sees them."""
        fresh: list[Change] = []
        for change in reversed(self.table(resource).log):
            if change.entry.version <= after:
                break
            fresh.append(change)
        for change in reversed(fresh):
            if namespace and change.entry.item["metadata"].get("namespace") != namespace:
                continue
            seen = self._as_seen(change, matches)
            if seen is not None:
                yield seen

    def _as_seen(self, change: Change, matches: Matcher | None) -> tuple[Kind, StoredEntry] | None:
        """Translate a change: what enters a selection is added to it, what leaves it is deleted from it."""
        if matches is None:
            return change.kind, change.entry
        before = change.old is not None and matches(change.old.item)
        after = change.kind != "DELETED" and matches(change.entry.item)
        if before and not after:
            if change.kind == "DELETED" or change.old is None:
                return "DELETED", change.entry
            return "DELETED", self.restamped(change.old, change.entry.version)
        if after:
            return ("MODIFIED" if before else "ADDED"), change.entry
        return None

    def changed(self) -> asyncio.Future[None]:
        """Wait for the next change, or for `wake`; counts from this call, not from the await."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        waiter.add_done_callback(self._waiters.discard)
        return waiter

    def wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters = set()


def key_of(item: JsonObject) -> Key:
    metadata = item["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def encode(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _write_token(version: int, start: int) -> str:
    return base64.urlsafe_b64encode(encode({"v": "standin", "rv": version, "start": start})).decode()


def _read_token(token: str) -> tuple[int, int]:
    try:
        found = json.loads(base64.urlsafe_b64decode(token))
        return int(found["rv"]), int(found["start"])
    except (ValueError, KeyError, TypeError) as error:
        raise bad_request(f"invalid continue token: continue key is not valid: {error}") from error


def too_large(wanted: int, current: int) -> RefusedError:
    """Make the 504 of a list from the future."""
    body = {
        "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
        "retryAfterSeconds": 1,
    }
    message = f"Timeout: Too large resource version: {wanted}, current: {current}"
    return RefusedError(504, "Timeout", message, body)
