"""Create, update, delete and bind on the stand-in's store; no HTTP here."""

import copy
import time
import uuid
from random import Random
from typing import Any

from kubeapi.metadata import format_time
from kubeapi.objects import TERMINAL_PHASES
from standins.apiserver import rules
from standins.apiserver.patch import apply_patch
from standins.apiserver.rules import NAMESPACES, NODES, PODS
from standins.apiserver.status import (
    Cause,
    JsonObject,
    RefusedError,
    Resource,
    already_exists,
    bad_request,
    conflict,
    invalid,
    modified,
    not_found,
    precondition,
    success,
    unreadable_patch,
)
from standins.apiserver.store import Key, Store, StoredEntry, key_of

_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_SYSTEM_FIELDS = ("creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation")


class Writer:
    """Every way to change the store, with the API server's rules."""

    def __init__(self, store: Store, random: Random) -> None:
        self._store = store
        self._random = random

    def stamp(self, later_s: float = 0.0) -> str:
        return format_time(time.time() + later_s)

    def found(self, resource: Resource, key: Key) -> StoredEntry:
        entry = self._store.get(resource, key)
        if entry is None:
            raise not_found(resource, key[1])
        return entry

    def create(self, resource: Resource, namespace: str, body: JsonObject) -> StoredEntry:
        item = _item(body)
        metadata = item["metadata"]
        self._place(resource, namespace, metadata)
        if metadata.get("resourceVersion"):
            raise RefusedError(500, "", "resourceVersion should not be set on objects to be created")
        _check_types(resource, item)
        if not metadata.get("name") and metadata.get("generateName"):
            suffix = "".join(self._random.choices(_SUFFIX_LETTERS, k=5))
            metadata["name"] = metadata["generateName"] + suffix
        metadata["uid"] = str(uuid.UUID(int=self._random.getrandbits(128), version=4))
        metadata["creationTimestamp"] = self.stamp()
        for field in ("deletionTimestamp", "deletionGracePeriodSeconds"):
            metadata.pop(field, None)
        _drop_empty(metadata)
        if metadata.get("name"):
            rules.set_defaults(resource, item, self.stamp())
        rules.check(resource, item)
        if self._store.get(resource, (metadata.get("namespace", ""), metadata["name"])):
            raise already_exists(resource, metadata["name"])
        return self._store.write(resource, item)

    def _place(self, resource: Resource, namespace: str, metadata: JsonObject) -> None:
        if not resource.namespaced:
            metadata.pop("namespace", None)
            return
        if metadata.setdefault("namespace", namespace) != namespace:
            raise bad_request(
                "the namespace of the provided object does not match the namespace sent on the request"
            )
        if self._store.get(NAMESPACES, ("", namespace)) is None:
            raise not_found(NAMESPACES, namespace)

    def replace(self, resource: Resource, key: Key, body: JsonObject, part: str) -> tuple[StoredEntry, bool]:
        """PUT an object or its status, and return whether it was created; a missing Lease is."""
        new = _item(body)
        _check_name(new["metadata"].get("name", key[1]), key)
        if self._store.get(resource, key) is None and resource is rules.LEASES:
            return self.create(resource, key[0], body), True
        old = self.found(resource, key)
        version = new["metadata"].get("resourceVersion")
        if not version and resource is rules.LEASES:
            cause = Cause("metadata.resourceVersion", "Invalid value: 0: must be specified for an update")
            raise invalid(resource, key[1], [cause], resource.full_name)
        _check_types(resource, new)
        uid, wanted = old.item["metadata"]["uid"], new["metadata"].get("uid")
        if wanted and wanted != uid:
            raise precondition(resource, key, "UID", wanted, uid)
        new["metadata"] = {**_immutable(old.item), **new["metadata"]}
        return self._update(resource, old, new, part), False

    def patch(self, resource: Resource, key: Key, patch: Any, content_type: str, part: str) -> StoredEntry:
        old = self.found(resource, key)
        new = apply_patch(old.item, patch, content_type)
        _check_name(new["metadata"].get("name"), key)
        try:
            rules.decode_check(new)
        except rules.UnreadableError as error:
            raise unreadable_patch(str(error)) from error
        return self._update(resource, old, new, part)

    def _update(self, resource: Resource, old: StoredEntry, new: JsonObject, part: str) -> StoredEntry:
        """Check and write a new state; `part` is "status" or "" for the rest."""
        metadata = new["metadata"]
        _check_identity(resource, old, metadata)
        for field in _SYSTEM_FIELDS:
            metadata.pop(field, None)
            if field in old.item["metadata"]:
                metadata[field] = old.item["metadata"][field]
        _drop_empty(metadata)
        if resource in {PODS, NODES}:
            kept = "spec" if part == "status" else "status"
            new[kept] = copy.deepcopy(old.item.get(kept, {}))
        if resource is NODES:
            rules.node_defaults(new)
        rules.check(resource, new)
        if resource is PODS and not part:
            rules.check_pod_spec(old.item, new)
        if new == old.item:
            return old
        ended = "deletionTimestamp" in metadata and not metadata.get("deletionGracePeriodSeconds")
        if ended and not metadata.get("finalizers"):
            # The last finalizer is gone: watches see the end only.
            return self._store.remove(resource, key_of(new))
        return self._store.write(resource, new)

    def delete(
        self, resource: Resource, key: Key, options: JsonObject
    ) -> tuple[JsonObject, StoredEntry | None]:
        """DELETE an object, and return the answer and a pod's last state; a bound pod is marked first."""
        entry = self.found(resource, key)
        self._check_preconditions(resource, entry, options.get("preconditions") or {})
        metadata = entry.item["metadata"]
        if resource is PODS:
            return self._delete_pod(entry, options)
        if metadata.get("finalizers"):
            self._terminate(resource, entry, 0)
        else:
            self._store.remove(resource, key)
        return success(resource, key[1], metadata["uid"]), None

    def _check_preconditions(self, resource: Resource, entry: StoredEntry, wanted: JsonObject) -> None:
        metadata = entry.item["metadata"]
        for what, field, happened in (
            ("UID", "uid", "deleted and then recreated"),
            ("ResourceVersion", "resourceVersion", "modified"),
        ):
            value = wanted.get(field)
            if value is not None and value != metadata[field]:
                why = (
                    f"the {what} in the precondition ({value}) does not match the {what} in record "
                    f"({metadata[field]}). The object might have been {happened}"
                )
                raise conflict(resource, metadata["name"], why, resource.kind)

    def _delete_pod(self, entry: StoredEntry, options: JsonObject) -> tuple[JsonObject, StoredEntry]:
        metadata, spec = entry.item["metadata"], entry.item["spec"]
        grace_s = options.get("gracePeriodSeconds")
        if grace_s is None:
            grace_s = spec.get("terminationGracePeriodSeconds", 30)
        grace_s = max(1, grace_s) if grace_s < 0 else grace_s
        if not spec.get("nodeName") or entry.item["status"].get("phase") in TERMINAL_PHASES:
            grace_s = 0
        left_s = metadata.get("deletionGracePeriodSeconds")
        if "deletionTimestamp" not in metadata or left_s is None or grace_s < left_s:
            entry = self._terminate(PODS, entry, grace_s)
        if not entry.item["metadata"]["deletionGracePeriodSeconds"] and not metadata.get("finalizers"):
            entry = self._store.remove(PODS, (metadata["namespace"], metadata["name"]))
        return {}, entry

    def _terminate(self, resource: Resource, entry: StoredEntry, grace_s: int) -> StoredEntry:
        new = copy.deepcopy(entry.item)
        metadata = new["metadata"]
        if "deletionTimestamp" not in metadata and resource is PODS:
            metadata["generation"] = metadata.get("generation", 1) + 1
        metadata["deletionTimestamp"] = self.stamp(grace_s)
        metadata["deletionGracePeriodSeconds"] = grace_s
        return self._store.write(resource, new)

    def bind(self, namespace: str, name: str, body: JsonObject) -> JsonObject:
        """POST pods/NAME/binding: node, condition and annotations in one write.

        Raises:
            RefusedError: 404; 409 for a wrong uid, a stale version, a terminating, bound or gated pod, in
                this order.
        """
        rules.check_binding(body, namespace, name)
        wanted = body.get("metadata") or {}
        entry = self.found(PODS, (namespace, name))
        metadata, spec = entry.item["metadata"], entry.item["spec"]
        for what, field in (("UID", "uid"), ("ResourceVersion", "resourceVersion")):
            if wanted.get(field) and wanted[field] != metadata[field]:
                raise precondition(PODS, (namespace, name), what, wanted[field], metadata[field])
        why = ""
        if "deletionTimestamp" in metadata:
            why = f"pod {name} is being deleted, cannot be assigned to a host"
        elif spec.get("nodeName"):
            why = f'pod {name} is already assigned to node "{spec["nodeName"]}"'
        elif spec.get("schedulingGates"):
            why = f"pod {name} has non-empty .spec.schedulingGates"
        if why:
            raise conflict(PODS, name, why, "pods/binding")
        new = copy.deepcopy(entry.item)
        new["spec"]["nodeName"] = body["target"]["name"]
        if wanted.get("annotations"):
            new["metadata"]["annotations"] = {
                **(metadata.get("annotations") or {}),
                **wanted["annotations"],
            }
        condition = {"type": "PodScheduled", "status": "True", "lastProbeTime": None}
        others = [old for old in new["status"].get("conditions") or () if old["type"] != "PodScheduled"]
        new["status"]["conditions"] = [*others, {**condition, "lastTransitionTime": self.stamp()}]
        self._store.write(PODS, new)
        return success(code=201)


def _item(body: JsonObject) -> JsonObject:
    """Make a private copy without kind and apiVersion, with metadata."""
    item = copy.deepcopy(body)
    item.pop("kind", None)
    item.pop("apiVersion", None)
    metadata = item.pop("metadata", None) or {}
    return {"metadata": metadata, **item}


def _check_types(resource: Resource, item: JsonObject) -> None:
    try:
        rules.decode_check(item)
    except rules.UnreadableError as error:
        raise bad_request(
            f'{resource.kind} in version "v1" cannot be handled as a {resource.kind}: {error}'
        ) from error


def _check_name(name: str | None, key: Key) -> None:
    if name != key[1]:
        raise bad_request(f"the name of the object ({name}) does not match the name on the URL ({key[1]})")


def _drop_empty(metadata: JsonObject) -> None:
    for field in ("labels", "annotations"):
        if not metadata.get(field):
            metadata.pop(field, None)


def _check_identity(resource: Resource, old: StoredEntry, metadata: JsonObject) -> None:
    """Check that an update means this object in this state.

    Raises:
        RefusedError: 409 for a stale version, 422 for another uid.
    """
    before = old.item["metadata"]
    if metadata.get("resourceVersion") not in {None, "", before["resourceVersion"]}:
        raise modified(resource, before["name"])
    metadata["resourceVersion"] = before["resourceVersion"]
    if metadata.get("uid") != before["uid"]:
        cause = Cause("metadata.uid", f'Invalid value: "{metadata.get("uid")}": field is immutable')
        raise invalid(resource, before["name"], [cause, cause])


def _immutable(item: JsonObject) -> JsonObject:
    fields = ("name", "namespace", "uid")
    return {field: item["metadata"][field] for field in fields if field in item["metadata"]}
